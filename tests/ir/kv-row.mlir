// The row of a position. B 2.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// One row per slot.
// CHECK: "kv.row"({{.*}}){{.*}} : (tensor<2xi64>) -> tensor<2xi64>
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>) -> tensor<2xi64> {
    %0 = "kv.row"(%position) : (tensor<2xi64>) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: rank
// Positions are one per slot.
// ERROR: InputError: 'kv.row' position is tensor<2x1xi64>, expected a tensor of rank 1 [B]
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2x1xi64>) -> tensor<2xi64> {
    %0 = "kv.row"(%position) : (tensor<2x1xi64>) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: element type
// Positions are i64.
// ERROR: InputError: 'kv.row' position is tensor<2xi32>, expected element type i64
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi32>) -> tensor<2xi64> {
    %0 = "kv.row"(%position) : (tensor<2xi32>) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: slots
// As many rows as positions.
// ERROR: InputError: 'kv.row' row is tensor<3xi64>: dimension 0 (B) is 3, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: tensor<2xi64>) -> tensor<3xi64> {
    %0 = "kv.row"(%position) : (tensor<2xi64>) -> tensor<3xi64>
    return %0 : tensor<3xi64>
  }
}

// -----

// CASE: not a tensor
// A position is a tensor, not a number.
// ERROR: InputError: 'kv.row' position is index, expected a tensor of rank 1 [B]
module attributes {kv.geometry = #geometry} {
  func.func @f(%position: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position) : (index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}
