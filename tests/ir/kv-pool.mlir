// Pooling of scores along positions. Hkv 2, T 20.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// Pooling keeps the shape.
// CHECK: "kv.pool"({{.*}}){{.*}} : (tensor<2x20xf32>, index) -> tensor<2x20xf32>
module attributes {kv.geometry = #geometry} {
  func.func @f(%scores: tensor<2x20xf32>, %length: index) -> tensor<2x20xf32> {
    %0 = "kv.pool"(%scores, %length) : (tensor<2x20xf32>, index) -> tensor<2x20xf32>
    return %0 : tensor<2x20xf32>
  }
}

// -----

// CASE: rank
// Scores are per KV head and position.
// ERROR: InputError: 'kv.pool' scores is tensor<1x2x20xf32>, expected a tensor of rank 2 [Hkv T]
module attributes {kv.geometry = #geometry} {
  func.func @f(%scores: tensor<1x2x20xf32>, %length: index) -> tensor<2x20xf32> {
    %0 = "kv.pool"(%scores, %length) : (tensor<1x2x20xf32>, index) -> tensor<2x20xf32>
    return %0 : tensor<2x20xf32>
  }
}

// -----

// CASE: stride
// Pooling has stride 1.
// ERROR: InputError: 'kv.pool' pooled is tensor<2x10xf32>: dimension 1 (T) is 10, expected 20
module attributes {kv.geometry = #geometry} {
  func.func @f(%scores: tensor<2x20xf32>, %length: index) -> tensor<2x10xf32> {
    %0 = "kv.pool"(%scores, %length) : (tensor<2x20xf32>, index) -> tensor<2x10xf32>
    return %0 : tensor<2x10xf32>
  }
}

// -----

// CASE: element type
// Scores are f32.
// ERROR: InputError: 'kv.pool' scores is tensor<2x20xbf16>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%scores: tensor<2x20xbf16>, %length: index) -> tensor<2x20xf32> {
    %0 = "kv.pool"(%scores, %length) : (tensor<2x20xbf16>, index) -> tensor<2x20xf32>
    return %0 : tensor<2x20xf32>
  }
}
