// Scores of every prompt position. H 4, Hkv 2, T 20, D 8; the geometry observes 2 queries.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// One score per KV head and position.
// CHECK: "kv.observation_scores"({{.*}}){{.*}} : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, index) -> tensor<2x20xf32>
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %length: index) -> tensor<2x20xf32> {
    %0 = "kv.observation_scores"(%observed, %log_sum_exp, %key, %length) {scale = 0.5 : f64} : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, index) -> tensor<2x20xf32>
    return %0 : tensor<2x20xf32>
  }
}

// -----

// CASE: rank
// Scores are per KV head and position.
// ERROR: InputError: 'kv.observation_scores' scores is tensor<1x2x20xf32>, expected a tensor of rank 2 [Hkv T]
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %length: index) -> tensor<1x2x20xf32> {
    %0 = "kv.observation_scores"(%observed, %log_sum_exp, %key, %length) {scale = 0.5 : f64} : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, index) -> tensor<1x2x20xf32>
    return %0 : tensor<1x2x20xf32>
  }
}

// -----

// CASE: window
// As many queries as the geometry observes.
// ERROR: InputError: 'kv.observation_scores' observed is tensor<1x4x4x8xf32>: dimension 2 (W) is 4, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x4x8xf32>, %log_sum_exp: tensor<1x4x4x1xf32>, %key: tensor<1x2x20x8xf32>, %length: index) -> tensor<2x20xf32> {
    %0 = "kv.observation_scores"(%observed, %log_sum_exp, %key, %length) {scale = 0.5 : f64} : (tensor<1x4x4x8xf32>, tensor<1x4x4x1xf32>, tensor<1x2x20x8xf32>, index) -> tensor<2x20xf32>
    return %0 : tensor<2x20xf32>
  }
}

// -----

// CASE: KV heads
// Scores are per KV head, not per query head.
// ERROR: InputError: 'kv.observation_scores' scores is tensor<4x20xf32>: dimension 0 (Hkv) is 4, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %length: index) -> tensor<4x20xf32> {
    %0 = "kv.observation_scores"(%observed, %log_sum_exp, %key, %length) {scale = 0.5 : f64} : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, index) -> tensor<4x20xf32>
    return %0 : tensor<4x20xf32>
  }
}

// -----

// CASE: element type
// Scores are f32, whatever the keys are.
// ERROR: InputError: 'kv.observation_scores' scores is tensor<2x20xbf16>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xbf16>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xbf16>, %length: index) -> tensor<2x20xbf16> {
    %0 = "kv.observation_scores"(%observed, %log_sum_exp, %key, %length) {scale = 0.5 : f64} : (tensor<1x4x2x8xbf16>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xbf16>, index) -> tensor<2x20xbf16>
    return %0 : tensor<2x20xbf16>
  }
}

// -----

// CASE: groups
// Every KV head serves as many query heads.
// ERROR: InputError: 'kv.observation_scores' 3 query heads are not a multiple of 2 KV heads
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x3x2x8xf32>, %log_sum_exp: tensor<1x3x2x1xf32>, %key: tensor<1x2x20x8xf32>, %length: index) -> tensor<2x20xf32> {
    %0 = "kv.observation_scores"(%observed, %log_sum_exp, %key, %length) {scale = 0.5 : f64} : (tensor<1x3x2x8xf32>, tensor<1x3x2x1xf32>, tensor<1x2x20x8xf32>, index) -> tensor<2x20xf32>
    return %0 : tensor<2x20xf32>
  }
}

// -----

// CASE: scale
// The scale cannot be left out.
// ERROR: InputError: 'kv.observation_scores' op attribute "scale" is expected but not provided
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %length: index) -> tensor<2x20xf32> {
    %0 = "kv.observation_scores"(%observed, %log_sum_exp, %key, %length) : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, index) -> tensor<2x20xf32>
    return %0 : tensor<2x20xf32>
  }
}

// -----

// CASE: scale type
// The scale is a float.
// ERROR: InputError: expected base attribute 'builtin.float' but got 'builtin.integer'
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %length: index) -> tensor<2x20xf32> {
    %0 = "kv.observation_scores"(%observed, %log_sum_exp, %key, %length) {scale = 1 : i64} : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, index) -> tensor<2x20xf32>
    return %0 : tensor<2x20xf32>
  }
}

// -----

// CASE: log-sum-exp
// One number for each observed query and head.
// ERROR: InputError: 'kv.observation_scores' log_sum_exp is tensor<1x4x2x8xf32>: dimension 3 (1) is 8, expected 1
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %key: tensor<1x2x20x8xf32>, %length: index) -> tensor<2x20xf32> {
    %0 = "kv.observation_scores"(%observed, %observed, %key, %length) {scale = 0.5 : f64} : (tensor<1x4x2x8xf32>, tensor<1x4x2x8xf32>, tensor<1x2x20x8xf32>, index) -> tensor<2x20xf32>
    return %0 : tensor<2x20xf32>
  }
}

// -----

// CASE: log-sum-exp type
// It is f32, whatever the queries are.
// ERROR: InputError: 'kv.observation_scores' log_sum_exp is tensor<1x4x2x1xbf16>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xbf16>, %log_sum_exp: tensor<1x4x2x1xbf16>, %key: tensor<1x2x20x8xbf16>, %length: index) -> tensor<2x20xf32> {
    %0 = "kv.observation_scores"(%observed, %log_sum_exp, %key, %length) {scale = 0.5 : f64} : (tensor<1x4x2x8xbf16>, tensor<1x4x2x1xbf16>, tensor<1x2x20x8xbf16>, index) -> tensor<2x20xf32>
    return %0 : tensor<2x20xf32>
  }
}
