// The rows that a query sees. B 2, Hkv 2; the geometry has 9 rows.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}
#indexed = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
            max_context = 20 : i64, rows = "indexed"}

// -----

// CASE: accepted
// A flag per slot and row.
// CHECK: "kv.validity"({{.*}}){{.*}} : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x9xi1>
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<2xi1>, %topk: index) -> tensor<2x9xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x9xi1>
    return %0 : tensor<2x9xi1>
  }
}

// -----

// CASE: rank
// One position per slot.
// ERROR: InputError: 'kv.validity' position is tensor<2x1xi64>, expected a tensor of rank 1 [Q]
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2x1xi64>, %active: tensor<2xi1>, %topk: index) -> tensor<2x9xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk) : (tensor<2x1xi64>, tensor<2x1xi64>, tensor<2xi1>, index) -> tensor<2x9xi1>
    return %0 : tensor<2x9xi1>
  }
}

// -----

// CASE: slots
// As many flags as positions.
// ERROR: InputError: 'kv.validity' active is tensor<3xi1>: dimension 0 (Q) is 3, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<3xi1>, %topk: index) -> tensor<2x9xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk) : (tensor<2xi64>, tensor<2xi64>, tensor<3xi1>, index) -> tensor<2x9xi1>
    return %0 : tensor<2x9xi1>
  }
}

// -----

// CASE: element type
// Flags are i1.
// ERROR: InputError: 'kv.validity' active is tensor<2xi8>, expected element type i1
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<2xi8>, %topk: index) -> tensor<2x9xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi8>, index) -> tensor<2x9xi1>
    return %0 : tensor<2x9xi1>
  }
}

// -----

// CASE: rows
// A flag for every row of the geometry.
// ERROR: InputError: 'kv.validity' covers 8 rows, kv.geometry has 9
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<2xi1>, %topk: index) -> tensor<2x8xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x8xi1>
    return %0 : tensor<2x8xi1>
  }
}

// -----

// CASE: an index
// A flag for each of its rows too.
// CHECK: "kv.validity"({{.*}}){{.*}} : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x3xi64>) -> tensor<2x12xi1>
module attributes {kv.geometry = #indexed} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<2xi1>, %topk: index, %index: tensor<2x2x3xi64>) -> tensor<2x12xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk, %index) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x3xi64>) -> tensor<2x12xi1>
    return %0 : tensor<2x12xi1>
  }
}

// -----

// CASE: no flags for an index
// The rows of the cache are not all.
// ERROR: InputError: 'kv.validity' covers 9 rows, kv.geometry has 12
module attributes {kv.geometry = #indexed} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<2xi1>, %topk: index, %index: tensor<2x2x3xi64>) -> tensor<2x9xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk, %index) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x3xi64>) -> tensor<2x9xi1>
    return %0 : tensor<2x9xi1>
  }
}

// -----

// CASE: rows of an index
// As many as the geometry selects.
// ERROR: InputError: 'kv.validity' index is tensor<2x2x4xi64>: dimension 2 (K) is 4, expected 3
module attributes {kv.geometry = #indexed} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<2xi1>, %topk: index, %index: tensor<2x2x4xi64>) -> tensor<2x13xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk, %index) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x4xi64>) -> tensor<2x13xi1>
    return %0 : tensor<2x13xi1>
  }
}

// -----

// CASE: top-K
// The number of selected positions is an index.
// ERROR: InputError: 'kv.validity' topk is tensor<2xi64>, expected index
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<2xi1>, %topk: tensor<2xi64>) -> tensor<2x9xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, tensor<2xi64>) -> tensor<2x9xi1>
    return %0 : tensor<2x9xi1>
  }
}

// -----

// CASE: an index of no prompt
// Only where steps read rows of prompts is there an index.
// ERROR: InputError: 'kv.validity' has an index, but kv.geometry reads no rows of prompts
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<2xi1>, %topk: index, %index: tensor<2x2x3xi64>) -> tensor<2x12xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk, %index) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x3xi64>) -> tensor<2x12xi1>
    return %0 : tensor<2x12xi1>
  }
}
