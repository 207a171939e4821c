// Which position each ring row holds; the geometry has 4 ring rows.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// One position per ring row, the same for all heads.
// CHECK: "kv.ring_positions"({{.*}}){{.*}} : (index) -> tensor<4xi64>
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index) -> tensor<4xi64> {
    %0 = "kv.ring_positions"(%length) : (index) -> tensor<4xi64>
    return %0 : tensor<4xi64>
  }
}

// -----

// CASE: rank
// The ring is the same for all heads.
// ERROR: InputError: 'kv.ring_positions' positions is tensor<2x4xi64>, expected a tensor of rank 1 [N]
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index) -> tensor<2x4xi64> {
    %0 = "kv.ring_positions"(%length) : (index) -> tensor<2x4xi64>
    return %0 : tensor<2x4xi64>
  }
}

// -----

// CASE: rows
// As many as the geometry has ring rows.
// ERROR: InputError: 'kv.ring_positions' positions is tensor<9xi64>: dimension 0 (N) is 9, expected 4
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index) -> tensor<9xi64> {
    %0 = "kv.ring_positions"(%length) : (index) -> tensor<9xi64>
    return %0 : tensor<9xi64>
  }
}

// -----

// CASE: element type
// Positions are i64.
// ERROR: InputError: 'kv.ring_positions' positions is tensor<4xf32>, expected element type i64
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index) -> tensor<4xf32> {
    %0 = "kv.ring_positions"(%length) : (index) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CASE: length
// The length is an index.
// ERROR: InputError: 'kv.ring_positions' length is tensor<1xi64>, expected index
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: tensor<1xi64>) -> tensor<4xi64> {
    %0 = "kv.ring_positions"(%length) : (tensor<1xi64>) -> tensor<4xi64>
    return %0 : tensor<4xi64>
  }
}
