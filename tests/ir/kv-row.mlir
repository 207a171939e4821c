// The row of a position in a cache whose ring begins at `base`. B 2.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// One row per slot.
// CHECK: "kv.row"({{.*}}){{.*}} : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: rank
// Positions are one per slot.
// ERROR: InputError: 'kv.row' position is tensor<2x1xi64>, expected a tensor of rank 1 [Q]
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2x1xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2x1xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: element type
// Positions are i64.
// ERROR: InputError: 'kv.row' position is tensor<2xi32>, expected element type i64
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi32>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi32>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: slots
// As many rows as positions.
// ERROR: InputError: 'kv.row' row is tensor<3xi64>: dimension 0 (Q) is 3, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<3xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<3xi64>
    return %0 : tensor<3xi64>
  }
}

// -----

// CASE: not a tensor
// A position is a tensor, not a number.
// ERROR: InputError: 'kv.row' position is index, expected a tensor of rank 1 [Q]
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: index, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (index, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: bases
// One per slot.
// ERROR: InputError: 'kv.row' base is tensor<3xi64>: dimension 0 (Q) is 3, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<3xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<3xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: top-K
// The number of selected positions is an index.
// ERROR: InputError: 'kv.row' topk is tensor<2xi64>, expected index
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: tensor<2xi64>) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}
