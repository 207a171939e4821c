// A prompt's scratch becomes one slot of the cache. H 4, Hkv 2, T 20, D 8, Dv 6; 2 queries observed, 2 + 4 + 3 = 9 rows.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// The slot keeps its type, and every KV head says what it selected.
// CHECK: "kv.compress"({{.*}}){{.*}} -> (tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<2x3xi64>)
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %k_cache: tensor<1x2x9x8xf32>, %v_cache: tensor<1x2x9x6xf32>, %length: index, %topk: index)
      -> tensor<1x2x9x8xf32> {
    %0:3 = "kv.compress"(%observed, %log_sum_exp, %key, %value, %k_cache, %v_cache, %length, %topk) {scale = 0.5 : f64} 
      : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, index, index)
      -> (tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<2x3xi64>)
    return %0#0 : tensor<1x2x9x8xf32>
  }
}

// -----

// CASE: one slot
// One slot at a time.
// ERROR: InputError: 'kv.compress' k_cache is tensor<2x2x9x8xf32>: dimension 0 (1) is 2, expected 1
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<1x2x9x6xf32>, %length: index, %topk: index)
      -> tensor<1x2x9x8xf32> {
    %0:3 = "kv.compress"(%observed, %log_sum_exp, %key, %value, %k_cache, %v_cache, %length, %topk) {scale = 0.5 : f64} 
      : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, tensor<2x2x9x8xf32>, tensor<1x2x9x6xf32>, index, index)
      -> (tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<2x3xi64>)
    return %0#0 : tensor<1x2x9x8xf32>
  }
}

// -----

// CASE: rows
// The slot has the rows of the geometry.
// ERROR: InputError: 'kv.compress' v_cache is tensor<1x2x8x6xf32>: dimension 2 (R) is 8, expected 9
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %k_cache: tensor<1x2x9x8xf32>, %v_cache: tensor<1x2x8x6xf32>, %length: index, %topk: index)
      -> tensor<1x2x9x8xf32> {
    %0:3 = "kv.compress"(%observed, %log_sum_exp, %key, %value, %k_cache, %v_cache, %length, %topk) {scale = 0.5 : f64} 
      : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, tensor<1x2x9x8xf32>, tensor<1x2x8x6xf32>, index, index)
      -> (tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<2x3xi64>)
    return %0#0 : tensor<1x2x9x8xf32>
  }
}

// -----

// CASE: scratch
// Keys and values have as many rows.
// ERROR: InputError: 'kv.compress' value is tensor<1x2x16x6xf32>: dimension 2 (T) is 16, expected 20
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x16x6xf32>, %k_cache: tensor<1x2x9x8xf32>, %v_cache: tensor<1x2x9x6xf32>, %length: index, %topk: index)
      -> tensor<1x2x9x8xf32> {
    %0:3 = "kv.compress"(%observed, %log_sum_exp, %key, %value, %k_cache, %v_cache, %length, %topk) {scale = 0.5 : f64} 
      : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x16x6xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, index, index)
      -> (tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<2x3xi64>)
    return %0#0 : tensor<1x2x9x8xf32>
  }
}

// -----

// CASE: window
// As many queries as the geometry observes.
// ERROR: InputError: 'kv.compress' observed is tensor<1x4x4x8xf32>: dimension 2 (W) is 4, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x4x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %k_cache: tensor<1x2x9x8xf32>, %v_cache: tensor<1x2x9x6xf32>, %length: index, %topk: index)
      -> tensor<1x2x9x8xf32> {
    %0:3 = "kv.compress"(%observed, %log_sum_exp, %key, %value, %k_cache, %v_cache, %length, %topk) {scale = 0.5 : f64} 
      : (tensor<1x4x4x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, index, index)
      -> (tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<2x3xi64>)
    return %0#0 : tensor<1x2x9x8xf32>
  }
}

// -----

// CASE: log-sum-exp
// One number for each observed query and head.
// ERROR: InputError: 'kv.compress' log_sum_exp is tensor<1x2x2x1xf32>: dimension 1 (H) is 2, expected 4
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x2x2x1xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %k_cache: tensor<1x2x9x8xf32>, %v_cache: tensor<1x2x9x6xf32>, %length: index, %topk: index)
      -> tensor<1x2x9x8xf32> {
    %0:3 = "kv.compress"(%observed, %log_sum_exp, %key, %value, %k_cache, %v_cache, %length, %topk) {scale = 0.5 : f64} 
      : (tensor<1x4x2x8xf32>, tensor<1x2x2x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, index, index)
      -> (tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<2x3xi64>)
    return %0#0 : tensor<1x2x9x8xf32>
  }
}

// -----

// CASE: element type
// The slot has the scratch's element type.
// ERROR: InputError: 'kv.compress' k_cache is tensor<1x2x9x8xbf16>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %k_cache: tensor<1x2x9x8xbf16>, %v_cache: tensor<1x2x9x6xf32>, %length: index, %topk: index)
      -> tensor<1x2x9x8xf32> {
    %0:3 = "kv.compress"(%observed, %log_sum_exp, %key, %value, %k_cache, %v_cache, %length, %topk) {scale = 0.5 : f64} 
      : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, tensor<1x2x9x8xbf16>, tensor<1x2x9x6xf32>, index, index)
      -> (tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<2x3xi64>)
    return %0#0 : tensor<1x2x9x8xf32>
  }
}

// -----

// CASE: length
// The length is an index.
// ERROR: InputError: 'kv.compress' length is tensor<1xi64>, expected index
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %k_cache: tensor<1x2x9x8xf32>, %v_cache: tensor<1x2x9x6xf32>, %length: tensor<1xi64>, %topk: index)
      -> tensor<1x2x9x8xf32> {
    %0:3 = "kv.compress"(%observed, %log_sum_exp, %key, %value, %k_cache, %v_cache, %length, %topk) {scale = 0.5 : f64} 
      : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<1xi64>, index)
      -> (tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<2x3xi64>)
    return %0#0 : tensor<1x2x9x8xf32>
  }
}

// -----

// CASE: selected
// As many as the geometry's top-K.
// ERROR: InputError: 'kv.compress' selected is tensor<2x4xi64>: dimension 1 (K) is 4, expected 3
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %k_cache: tensor<1x2x9x8xf32>, %v_cache: tensor<1x2x9x6xf32>, %length: index, %topk: index)
      -> tensor<1x2x9x8xf32> {
    %0:3 = "kv.compress"(%observed, %log_sum_exp, %key, %value, %k_cache, %v_cache, %length, %topk) {scale = 0.5 : f64} 
      : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, index, index)
      -> (tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<2x4xi64>)
    return %0#0 : tensor<1x2x9x8xf32>
  }
}

// -----

// CASE: selected heads
// Every KV head selects for itself.
// ERROR: InputError: 'kv.compress' selected is tensor<4x3xi64>: dimension 0 (Hkv) is 4, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %k_cache: tensor<1x2x9x8xf32>, %v_cache: tensor<1x2x9x6xf32>, %length: index, %topk: index)
      -> tensor<1x2x9x8xf32> {
    %0:3 = "kv.compress"(%observed, %log_sum_exp, %key, %value, %k_cache, %v_cache, %length, %topk) {scale = 0.5 : f64} 
      : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, index, index)
      -> (tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<4x3xi64>)
    return %0#0 : tensor<1x2x9x8xf32>
  }
}

// -----

// CASE: groups
// Every KV head serves as many query heads.
// ERROR: InputError: 'kv.compress' 3 query heads are not a multiple of 2 KV heads
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x3x2x8xf32>, %log_sum_exp: tensor<1x3x2x1xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %k_cache: tensor<1x2x9x8xf32>, %v_cache: tensor<1x2x9x6xf32>, %length: index, %topk: index)
      -> tensor<1x2x9x8xf32> {
    %0:3 = "kv.compress"(%observed, %log_sum_exp, %key, %value, %k_cache, %v_cache, %length, %topk) {scale = 0.5 : f64} 
      : (tensor<1x3x2x8xf32>, tensor<1x3x2x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, index, index)
      -> (tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<2x3xi64>)
    return %0#0 : tensor<1x2x9x8xf32>
  }
}

// -----

// CASE: scale
// The scale cannot be left out.
// ERROR: InputError: 'kv.compress' op attribute "scale" is expected but not provided
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %k_cache: tensor<1x2x9x8xf32>, %v_cache: tensor<1x2x9x6xf32>, %length: index, %topk: index)
      -> tensor<1x2x9x8xf32> {
    %0:3 = "kv.compress"(%observed, %log_sum_exp, %key, %value, %k_cache, %v_cache, %length, %topk) 
      : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, index, index)
      -> (tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<2x3xi64>)
    return %0#0 : tensor<1x2x9x8xf32>
  }
}

// -----

// CASE: scale type
// The scale is a float.
// ERROR: InputError: expected base attribute 'builtin.float' but got 'builtin.integer'
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %log_sum_exp: tensor<1x4x2x1xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %k_cache: tensor<1x2x9x8xf32>, %v_cache: tensor<1x2x9x6xf32>, %length: index, %topk: index)
      -> tensor<1x2x9x8xf32> {
    %0:3 = "kv.compress"(%observed, %log_sum_exp, %key, %value, %k_cache, %v_cache, %length, %topk) {scale = 1 : i64} 
      : (tensor<1x4x2x8xf32>, tensor<1x4x2x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, index, index)
      -> (tensor<1x2x9x8xf32>, tensor<1x2x9x6xf32>, tensor<2x3xi64>)
    return %0#0 : tensor<1x2x9x8xf32>
  }
}
