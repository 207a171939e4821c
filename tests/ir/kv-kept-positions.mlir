// Which position each row of sinks and ring holds; the geometry has 2 + 4 of them.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// A position per KV head and row: an index of rows.
// CHECK: "kv.kept_positions"({{.*}}){{.*}} : (index) -> tensor<2x6xi64>
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index) -> tensor<2x6xi64> {
    %0 = "kv.kept_positions"(%length) : (index) -> tensor<2x6xi64>
    return %0 : tensor<2x6xi64>
  }
}

// -----

// CASE: rank
// An index says which rows of each KV head.
// ERROR: InputError: 'kv.kept_positions' positions is tensor<6xi64>, expected a tensor of rank 2 [Hkv SR]
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index) -> tensor<6xi64> {
    %0 = "kv.kept_positions"(%length) : (index) -> tensor<6xi64>
    return %0 : tensor<6xi64>
  }
}

// -----

// CASE: rows
// As many as the geometry has sinks and ring rows.
// ERROR: InputError: 'kv.kept_positions' positions is tensor<2x9xi64>: dimension 1 (SR) is 9, expected 6
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index) -> tensor<2x9xi64> {
    %0 = "kv.kept_positions"(%length) : (index) -> tensor<2x9xi64>
    return %0 : tensor<2x9xi64>
  }
}

// -----

// CASE: element type
// Positions are i64.
// ERROR: InputError: 'kv.kept_positions' positions is tensor<2x6xf32>, expected element type i64
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index) -> tensor<2x6xf32> {
    %0 = "kv.kept_positions"(%length) : (index) -> tensor<2x6xf32>
    return %0 : tensor<2x6xf32>
  }
}

// -----

// CASE: length
// The length is an index.
// ERROR: InputError: 'kv.kept_positions' length is tensor<1xi64>, expected index
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: tensor<1xi64>) -> tensor<2x6xi64> {
    %0 = "kv.kept_positions"(%length) : (tensor<1xi64>) -> tensor<2x6xi64>
    return %0 : tensor<2x6xi64>
  }
}
