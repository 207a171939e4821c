// A chunk over the prompt scratch. H 4, Hkv 2, C 4, T 20, D 8, Dv 6.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// The scratch is whole chunks long.
// CHECK: "kv.causal_attention"({{.*}}){{.*}} : (tensor<1x4x4x8xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index) -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>)
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %start: index, %length: index) -> tensor<1x4x4x6xf32> {
    %0:2 = "kv.causal_attention"(%query, %key, %value, %start, %length) {scale = 0.5 : f64} : (tensor<1x4x4x8xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index) -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: rank
// Queries have a batch dimension.
// ERROR: InputError: 'kv.causal_attention' query is tensor<4x4x8xf32>, expected a tensor of rank 4 [1 H C D]
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<4x4x8xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %start: index, %length: index) -> tensor<1x4x4x6xf32> {
    %0:2 = "kv.causal_attention"(%query, %key, %value, %start, %length) {scale = 0.5 : f64} : (tensor<4x4x8xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index) -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: one sequence
// Prefill takes one sequence.
// ERROR: InputError: 'kv.causal_attention' query is tensor<2x4x4x8xf32>: dimension 0 (1) is 2, expected 1
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x4x8xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %start: index, %length: index) -> tensor<1x4x4x6xf32> {
    %0:2 = "kv.causal_attention"(%query, %key, %value, %start, %length) {scale = 0.5 : f64} : (tensor<2x4x4x8xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index) -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: start
// The start is an index, not a tensor.
// ERROR: InputError: 'kv.causal_attention' start is tensor<1xi64>, expected index
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %start: tensor<1xi64>, %length: index) -> tensor<1x4x4x6xf32> {
    %0:2 = "kv.causal_attention"(%query, %key, %value, %start, %length) {scale = 0.5 : f64} : (tensor<1x4x4x8xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, tensor<1xi64>, index) -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: element type
// The output has the queries' element type.
// ERROR: InputError: 'kv.causal_attention' out is tensor<1x4x4x6xf64>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %start: index, %length: index) -> tensor<1x4x4x6xf64> {
    %0:2 = "kv.causal_attention"(%query, %key, %value, %start, %length) {scale = 0.5 : f64} : (tensor<1x4x4x8xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index) -> (tensor<1x4x4x6xf64>, tensor<1x4x4x1xf32>)
    return %0#0 : tensor<1x4x4x6xf64>
  }
}

// -----

// CASE: groups
// Every KV head serves as many query heads.
// ERROR: InputError: 'kv.causal_attention' 3 query heads are not a multiple of 2 KV heads
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x3x4x8xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %start: index, %length: index) -> tensor<1x3x4x6xf32> {
    %0:2 = "kv.causal_attention"(%query, %key, %value, %start, %length) {scale = 0.5 : f64} : (tensor<1x3x4x8xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index) -> (tensor<1x3x4x6xf32>, tensor<1x3x4x1xf32>)
    return %0#0 : tensor<1x3x4x6xf32>
  }
}

// -----

// CASE: chunks
// The scratch is whole chunks long.
// ERROR: InputError: 'kv.causal_attention' 18 scratch rows are not a multiple of the chunk of 4
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %key: tensor<1x2x18x8xf32>, %value: tensor<1x2x18x6xf32>, %start: index, %length: index) -> tensor<1x4x4x6xf32> {
    %0:2 = "kv.causal_attention"(%query, %key, %value, %start, %length) {scale = 0.5 : f64} : (tensor<1x4x4x8xf32>, tensor<1x2x18x8xf32>, tensor<1x2x18x6xf32>, index, index) -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: scale
// The scale cannot be left out.
// ERROR: InputError: 'kv.causal_attention' op attribute "scale" is expected but not provided
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %start: index, %length: index) -> tensor<1x4x4x6xf32> {
    %0:2 = "kv.causal_attention"(%query, %key, %value, %start, %length) : (tensor<1x4x4x8xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index) -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: scale type
// The scale is a float.
// ERROR: InputError: expected base attribute 'builtin.float' but got 'builtin.integer'
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %start: index, %length: index) -> tensor<1x4x4x6xf32> {
    %0:2 = "kv.causal_attention"(%query, %key, %value, %start, %length) {scale = 1 : i64} : (tensor<1x4x4x8xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index) -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: log-sum-exp
// One number for each query and head.
// ERROR: InputError: 'kv.causal_attention' log_sum_exp is tensor<1x2x4x1xf32>: dimension 1 (H) is 2, expected 4
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %start: index, %length: index) -> tensor<1x4x4x6xf32> {
    %0:2 = "kv.causal_attention"(%query, %key, %value, %start, %length) {scale = 0.5 : f64} : (tensor<1x4x4x8xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index) -> (tensor<1x4x4x6xf32>, tensor<1x2x4x1xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: log-sum-exp type
// It is f32, whatever the queries are.
// ERROR: InputError: 'kv.causal_attention' log_sum_exp is tensor<1x4x4x1xbf16>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xbf16>, %key: tensor<1x2x20x8xbf16>, %value: tensor<1x2x20x6xbf16>, %start: index, %length: index) -> tensor<1x4x4x6xbf16> {
    %0:2 = "kv.causal_attention"(%query, %key, %value, %start, %length) {scale = 0.5 : f64} : (tensor<1x4x4x8xbf16>, tensor<1x2x20x8xbf16>, tensor<1x2x20x6xbf16>, index, index) -> (tensor<1x4x4x6xbf16>, tensor<1x4x4x1xbf16>)
    return %0#0 : tensor<1x4x4x6xbf16>
  }
}

// -----

// CASE: number of results
// A dump of an older compiler, without the log-sum-exp, is refused and not misread.
// ERROR: InputError: 'kv.causal_attention' has 5 operands and 1 results, expected query, key, value, start, length, out, log_sum_exp
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %key: tensor<1x2x20x8xf32>, %value: tensor<1x2x20x6xf32>, %start: index, %length: index) -> tensor<1x4x4x6xf32> {
    %0 = "kv.causal_attention"(%query, %key, %value, %start, %length) {scale = 0.5 : f64} : (tensor<1x4x4x8xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index) -> tensor<1x4x4x6xf32>
    return %0 : tensor<1x4x4x6xf32>
  }
}
