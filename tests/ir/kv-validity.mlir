// Which rows a query sees. B 2; the geometry has 9 rows.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// A flag per slot and row.
// CHECK: "kv.validity"({{.*}}){{.*}} : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x9xi1>
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>, %prompt_len: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x9xi1> {
    %0 = "kv.validity"(%position, %prompt_len, %active) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x9xi1>
    return %0 : tensor<2x9xi1>
  }
}

// -----

// CASE: rank
// One position per slot.
// ERROR: InputError: 'kv.validity' position is tensor<2x1xi64>, expected a tensor of rank 1 [B]
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2x1xi64>, %prompt_len: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x9xi1> {
    %0 = "kv.validity"(%position, %prompt_len, %active) : (tensor<2x1xi64>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x9xi1>
    return %0 : tensor<2x9xi1>
  }
}

// -----

// CASE: slots
// As many counts as positions.
// ERROR: InputError: 'kv.validity' prompt_len is tensor<3xi64>: dimension 0 (B) is 3, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>, %prompt_len: tensor<3xi64>, %active: tensor<2xi1>) -> tensor<2x9xi1> {
    %0 = "kv.validity"(%position, %prompt_len, %active) : (tensor<2xi64>, tensor<3xi64>, tensor<2xi1>) -> tensor<2x9xi1>
    return %0 : tensor<2x9xi1>
  }
}

// -----

// CASE: element type
// Flags are i1.
// ERROR: InputError: 'kv.validity' active is tensor<2xi8>, expected element type i1
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>, %prompt_len: tensor<2xi64>, %active: tensor<2xi8>) -> tensor<2x9xi1> {
    %0 = "kv.validity"(%position, %prompt_len, %active) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi8>) -> tensor<2x9xi1>
    return %0 : tensor<2x9xi1>
  }
}

// -----

// CASE: rows
// A flag for every row of the geometry.
// ERROR: InputError: 'kv.validity' valid is tensor<2x8xi1>: dimension 1 (R) is 8, expected 9
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>, %prompt_len: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x8xi1> {
    %0 = "kv.validity"(%position, %prompt_len, %active) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x8xi1>
    return %0 : tensor<2x8xi1>
  }
}
