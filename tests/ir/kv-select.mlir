// The best positions per KV head. Hkv 2, T 20; the geometry selects 3.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// Positions are i64.
// CHECK: "kv.select"({{.*}}){{.*}} : (tensor<2x20xf32>, index, index) -> tensor<2x3xi64>
module attributes {kv.geometry = #geometry} {
  func.func @f(%scores: tensor<2x20xf32>, %length: index, %topk: index) -> tensor<2x3xi64> {
    %0 = "kv.select"(%scores, %length, %topk) : (tensor<2x20xf32>, index, index) -> tensor<2x3xi64>
    return %0 : tensor<2x3xi64>
  }
}

// -----

// CASE: rank
// One index set per KV head.
// ERROR: InputError: 'kv.select' selected is tensor<3xi64>, expected a tensor of rank 2 [Hkv K]
module attributes {kv.geometry = #geometry} {
  func.func @f(%scores: tensor<2x20xf32>, %length: index, %topk: index) -> tensor<3xi64> {
    %0 = "kv.select"(%scores, %length, %topk) : (tensor<2x20xf32>, index, index) -> tensor<3xi64>
    return %0 : tensor<3xi64>
  }
}

// -----

// CASE: top-K
// As many as the geometry selects.
// ERROR: InputError: 'kv.select' selected is tensor<2x4xi64>: dimension 1 (K) is 4, expected 3
module attributes {kv.geometry = #geometry} {
  func.func @f(%scores: tensor<2x20xf32>, %length: index, %topk: index) -> tensor<2x4xi64> {
    %0 = "kv.select"(%scores, %length, %topk) : (tensor<2x20xf32>, index, index) -> tensor<2x4xi64>
    return %0 : tensor<2x4xi64>
  }
}

// -----

// CASE: element type
// Positions are i64.
// ERROR: InputError: 'kv.select' selected is tensor<2x3xi32>, expected element type i64
module attributes {kv.geometry = #geometry} {
  func.func @f(%scores: tensor<2x20xf32>, %length: index, %topk: index) -> tensor<2x3xi32> {
    %0 = "kv.select"(%scores, %length, %topk) : (tensor<2x20xf32>, index, index) -> tensor<2x3xi32>
    return %0 : tensor<2x3xi32>
  }
}
