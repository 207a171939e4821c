// Attention of a layer that attends to the K and V of an earlier one. B 2, H 4, S 5, D 8.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// The width of values is the other layer's; there may be learned sinks.
// CHECK: "kv.shared_attention"({{.*}}) {{.*}}shares = 0 : i64{{.*}} : (tensor<2x4x5x8xf32>) -> tensor<2x4x5x6xf32>
// CHECK: "kv.shared_attention"({{.*}}) {{.*}} : (tensor<2x4x5x8xf32>, tensor<4xf32>) -> tensor<2x4x5x6xf32>
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x5x8xf32>, %sinks: tensor<4xf32>) -> (tensor<2x4x5x6xf32>, tensor<2x4x5x6xf32>) {
    %0 = "kv.shared_attention"(%query) {layer = 1 : i64, shares = 0 : i64, scale = 0.5 : f64, window = 3 : i64} : (tensor<2x4x5x8xf32>) -> tensor<2x4x5x6xf32>
    %1 = "kv.shared_attention"(%query, %sinks) {layer = 2 : i64, shares = 0 : i64, scale = 0.5 : f64, softcap = 3.0 : f64} : (tensor<2x4x5x8xf32>, tensor<4xf32>) -> tensor<2x4x5x6xf32>
    return %0, %1 : tensor<2x4x5x6xf32>, tensor<2x4x5x6xf32>
  }
}

// -----

// CASE: no layer to share with
// ERROR: InputError: 'kv.shared_attention' op attribute "shares" is expected but not provided
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x5x8xf32>) -> tensor<2x4x5x6xf32> {
    %0 = "kv.shared_attention"(%query) {layer = 1 : i64, scale = 0.5 : f64} : (tensor<2x4x5x8xf32>) -> tensor<2x4x5x6xf32>
    return %0 : tensor<2x4x5x6xf32>
  }
}

// -----

// CASE: heads
// ERROR: InputError: 'kv.shared_attention' out is tensor<2x3x5x6xf32>: dimension 1 (H) is 3, expected 4
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x5x8xf32>) -> tensor<2x3x5x6xf32> {
    %0 = "kv.shared_attention"(%query) {layer = 1 : i64, shares = 0 : i64, scale = 0.5 : f64} : (tensor<2x4x5x8xf32>) -> tensor<2x3x5x6xf32>
    return %0 : tensor<2x3x5x6xf32>
  }
}
