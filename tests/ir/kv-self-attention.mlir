// Attention as captured, before the cache is threaded through. B 2, H 4, Hkv 2, S 5, D 8.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// Values may have another head dim than keys; the output has theirs.
// CHECK: "kv.self_attention"({{.*}}){{.*}} : (tensor<2x4x5x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32>
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x5x8xf32>, %key: tensor<2x2x5x8xf32>, %value: tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32> {
    %0 = "kv.self_attention"(%query, %key, %value) {layer = 1 : i64, scale = 0.5 : f64} : (tensor<2x4x5x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32>
    return %0 : tensor<2x4x5x6xf32>
  }
}

// -----

// CASE: rank
// There are no queries without a batch dimension.
// ERROR: InputError: 'kv.self_attention' query is tensor<4x5x8xf32>, expected a tensor of rank 4 [B H S D]
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<4x5x8xf32>, %key: tensor<2x2x5x8xf32>, %value: tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32> {
    %0 = "kv.self_attention"(%query, %key, %value) {layer = 1 : i64, scale = 0.5 : f64} : (tensor<4x5x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32>
    return %0 : tensor<2x4x5x6xf32>
  }
}

// -----

// CASE: element type
// Queries are floats.
// ERROR: InputError: 'kv.self_attention' query is tensor<2x4x5x8xi64>, expected a float element type
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x5x8xi64>, %key: tensor<2x2x5x8xf32>, %value: tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32> {
    %0 = "kv.self_attention"(%query, %key, %value) {layer = 1 : i64, scale = 0.5 : f64} : (tensor<2x4x5x8xi64>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32>
    return %0 : tensor<2x4x5x6xf32>
  }
}

// -----

// CASE: mixed element types
// All operands have the queries' element type.
// ERROR: InputError: 'kv.self_attention' value is tensor<2x2x5x6xbf16>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x5x8xf32>, %key: tensor<2x2x5x8xf32>, %value: tensor<2x2x5x6xbf16>) -> tensor<2x4x5x6xf32> {
    %0 = "kv.self_attention"(%query, %key, %value) {layer = 1 : i64, scale = 0.5 : f64} : (tensor<2x4x5x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xbf16>) -> tensor<2x4x5x6xf32>
    return %0 : tensor<2x4x5x6xf32>
  }
}

// -----

// CASE: head dim
// Keys have the queries' head dim.
// ERROR: InputError: 'kv.self_attention' key is tensor<2x2x5x4xf32>: dimension 3 (D) is 4, expected 8
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x5x8xf32>, %key: tensor<2x2x5x4xf32>, %value: tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32> {
    %0 = "kv.self_attention"(%query, %key, %value) {layer = 1 : i64, scale = 0.5 : f64} : (tensor<2x4x5x8xf32>, tensor<2x2x5x4xf32>, tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32>
    return %0 : tensor<2x4x5x6xf32>
  }
}

// -----

// CASE: groups
// Every KV head serves as many query heads.
// ERROR: InputError: 'kv.self_attention' 3 query heads are not a multiple of 2 KV heads
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x3x5x8xf32>, %key: tensor<2x2x5x8xf32>, %value: tensor<2x2x5x6xf32>) -> tensor<2x3x5x6xf32> {
    %0 = "kv.self_attention"(%query, %key, %value) {layer = 1 : i64, scale = 0.5 : f64} : (tensor<2x3x5x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>) -> tensor<2x3x5x6xf32>
    return %0 : tensor<2x3x5x6xf32>
  }
}

// -----

// CASE: dynamic
// Sizes are static from here on.
// ERROR: InputError: 'kv.self_attention' query is tensor<2x4x?x8xf32>, expected static sizes
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x?x8xf32>, %key: tensor<2x2x5x8xf32>, %value: tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32> {
    %0 = "kv.self_attention"(%query, %key, %value) {layer = 1 : i64, scale = 0.5 : f64} : (tensor<2x4x?x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32>
    return %0 : tensor<2x4x5x6xf32>
  }
}

// -----

// CASE: scale
// The scale cannot be left out.
// ERROR: InputError: 'kv.self_attention' op attribute "scale" is expected but not provided
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x5x8xf32>, %key: tensor<2x2x5x8xf32>, %value: tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32> {
    %0 = "kv.self_attention"(%query, %key, %value) {layer = 1 : i64} : (tensor<2x4x5x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32>
    return %0 : tensor<2x4x5x6xf32>
  }
}

// -----

// CASE: scale type
// The scale is a float.
// ERROR: InputError: expected base attribute 'builtin.float' but got 'builtin.integer'
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x5x8xf32>, %key: tensor<2x2x5x8xf32>, %value: tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32> {
    %0 = "kv.self_attention"(%query, %key, %value) {layer = 1 : i64, scale = 1 : i64} : (tensor<2x4x5x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>) -> tensor<2x4x5x6xf32>
    return %0 : tensor<2x4x5x6xf32>
  }
}
