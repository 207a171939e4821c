// A chunk, appended to the scratch. H 4, Hkv 2, C 4, T 20, D 8, Dv 6.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// What is appended to keeps its type.
// CHECK: "kv.chunk_attention"({{.*}}){{.*}} -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>)
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new_key: tensor<1x2x4x8xf32>, %new_value: tensor<1x2x4x6xf32>, %k_scratch: tensor<1x2x20x8xf32>, %v_scratch: tensor<1x2x20x6xf32>, %start: index, %length: index)
      -> tensor<1x4x4x6xf32> {
    %0:4 = "kv.chunk_attention"(%query, %new_key, %new_value, %k_scratch, %v_scratch, %start, %length) {scale = 0.5 : f64} 
      : (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index)
      -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: one sequence
// Prefill takes one sequence.
// ERROR: InputError: 'kv.chunk_attention' query is tensor<2x4x4x8xf32>: dimension 0 (1) is 2, expected 1
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x4x8xf32>, %new_key: tensor<1x2x4x8xf32>, %new_value: tensor<1x2x4x6xf32>, %k_scratch: tensor<1x2x20x8xf32>, %v_scratch: tensor<1x2x20x6xf32>, %start: index, %length: index)
      -> tensor<1x4x4x6xf32> {
    %0:4 = "kv.chunk_attention"(%query, %new_key, %new_value, %k_scratch, %v_scratch, %start, %length) {scale = 0.5 : f64} 
      : (tensor<2x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index)
      -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: new rows
// A key for every token of the chunk.
// ERROR: InputError: 'kv.chunk_attention' new_key is tensor<1x2x3x8xf32>: dimension 2 (C) is 3, expected 4
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new_key: tensor<1x2x3x8xf32>, %new_value: tensor<1x2x4x6xf32>, %k_scratch: tensor<1x2x20x8xf32>, %v_scratch: tensor<1x2x20x6xf32>, %start: index, %length: index)
      -> tensor<1x4x4x6xf32> {
    %0:4 = "kv.chunk_attention"(%query, %new_key, %new_value, %k_scratch, %v_scratch, %start, %length) {scale = 0.5 : f64} 
      : (tensor<1x4x4x8xf32>, tensor<1x2x3x8xf32>, tensor<1x2x4x6xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index)
      -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: scratch
// Keys and values have as many rows.
// ERROR: InputError: 'kv.chunk_attention' v_scratch is tensor<1x2x16x6xf32>: dimension 2 (T) is 16, expected 20
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new_key: tensor<1x2x4x8xf32>, %new_value: tensor<1x2x4x6xf32>, %k_scratch: tensor<1x2x20x8xf32>, %v_scratch: tensor<1x2x16x6xf32>, %start: index, %length: index)
      -> tensor<1x4x4x6xf32> {
    %0:4 = "kv.chunk_attention"(%query, %new_key, %new_value, %k_scratch, %v_scratch, %start, %length) {scale = 0.5 : f64} 
      : (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>, tensor<1x2x20x8xf32>, tensor<1x2x16x6xf32>, index, index)
      -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: chunks
// The scratch is whole chunks long.
// ERROR: InputError: 'kv.chunk_attention' 18 scratch rows are not a multiple of the chunk of 4
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new_key: tensor<1x2x4x8xf32>, %new_value: tensor<1x2x4x6xf32>, %k_scratch: tensor<1x2x18x8xf32>, %v_scratch: tensor<1x2x18x6xf32>, %start: index, %length: index)
      -> tensor<1x4x4x6xf32> {
    %0:4 = "kv.chunk_attention"(%query, %new_key, %new_value, %k_scratch, %v_scratch, %start, %length) {scale = 0.5 : f64} 
      : (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>, tensor<1x2x18x8xf32>, tensor<1x2x18x6xf32>, index, index)
      -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>, tensor<1x2x18x8xf32>, tensor<1x2x18x6xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: log-sum-exp
// It is f32, whatever the queries are.
// ERROR: InputError: 'kv.chunk_attention' log_sum_exp is tensor<1x4x4x1xf64>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new_key: tensor<1x2x4x8xf32>, %new_value: tensor<1x2x4x6xf32>, %k_scratch: tensor<1x2x20x8xf32>, %v_scratch: tensor<1x2x20x6xf32>, %start: index, %length: index)
      -> tensor<1x4x4x6xf32> {
    %0:4 = "kv.chunk_attention"(%query, %new_key, %new_value, %k_scratch, %v_scratch, %start, %length) {scale = 0.5 : f64} 
      : (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index)
      -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf64>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: element type
// Queries and scratch have one element type.
// ERROR: InputError: 'kv.chunk_attention' k_scratch is tensor<1x2x20x8xbf16>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new_key: tensor<1x2x4x8xf32>, %new_value: tensor<1x2x4x6xf32>, %k_scratch: tensor<1x2x20x8xbf16>, %v_scratch: tensor<1x2x20x6xf32>, %start: index, %length: index)
      -> tensor<1x4x4x6xf32> {
    %0:4 = "kv.chunk_attention"(%query, %new_key, %new_value, %k_scratch, %v_scratch, %start, %length) {scale = 0.5 : f64} 
      : (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>, tensor<1x2x20x8xbf16>, tensor<1x2x20x6xf32>, index, index)
      -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: start
// The start is an index, not a tensor.
// ERROR: InputError: 'kv.chunk_attention' start is tensor<1xi64>, expected index
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new_key: tensor<1x2x4x8xf32>, %new_value: tensor<1x2x4x6xf32>, %k_scratch: tensor<1x2x20x8xf32>, %v_scratch: tensor<1x2x20x6xf32>, %start: tensor<1xi64>, %length: index)
      -> tensor<1x4x4x6xf32> {
    %0:4 = "kv.chunk_attention"(%query, %new_key, %new_value, %k_scratch, %v_scratch, %start, %length) {scale = 0.5 : f64} 
      : (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, tensor<1xi64>, index)
      -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: groups
// Every KV head serves as many query heads.
// ERROR: InputError: 'kv.chunk_attention' 3 query heads are not a multiple of 2 KV heads
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x3x4x8xf32>, %new_key: tensor<1x2x4x8xf32>, %new_value: tensor<1x2x4x6xf32>, %k_scratch: tensor<1x2x20x8xf32>, %v_scratch: tensor<1x2x20x6xf32>, %start: index, %length: index)
      -> tensor<1x3x4x6xf32> {
    %0:4 = "kv.chunk_attention"(%query, %new_key, %new_value, %k_scratch, %v_scratch, %start, %length) {scale = 0.5 : f64} 
      : (tensor<1x3x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index)
      -> (tensor<1x3x4x6xf32>, tensor<1x3x4x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>)
    return %0#0 : tensor<1x3x4x6xf32>
  }
}

// -----

// CASE: result
// The scratch that comes out has the rows that went in.
// ERROR: InputError: 'kv.chunk_attention' k_appended is tensor<1x2x24x8xf32>: dimension 2 (T) is 24, expected 20
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new_key: tensor<1x2x4x8xf32>, %new_value: tensor<1x2x4x6xf32>, %k_scratch: tensor<1x2x20x8xf32>, %v_scratch: tensor<1x2x20x6xf32>, %start: index, %length: index)
      -> tensor<1x4x4x6xf32> {
    %0:4 = "kv.chunk_attention"(%query, %new_key, %new_value, %k_scratch, %v_scratch, %start, %length) {scale = 0.5 : f64} 
      : (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index)
      -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>, tensor<1x2x24x8xf32>, tensor<1x2x20x6xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: scale
// The scale cannot be left out.
// ERROR: InputError: 'kv.chunk_attention' op attribute "scale" is expected but not provided
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new_key: tensor<1x2x4x8xf32>, %new_value: tensor<1x2x4x6xf32>, %k_scratch: tensor<1x2x20x8xf32>, %v_scratch: tensor<1x2x20x6xf32>, %start: index, %length: index)
      -> tensor<1x4x4x6xf32> {
    %0:4 = "kv.chunk_attention"(%query, %new_key, %new_value, %k_scratch, %v_scratch, %start, %length) 
      : (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index)
      -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: scale type
// The scale is a float.
// ERROR: InputError: expected base attribute 'builtin.float' but got 'builtin.integer'
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new_key: tensor<1x2x4x8xf32>, %new_value: tensor<1x2x4x6xf32>, %k_scratch: tensor<1x2x20x8xf32>, %v_scratch: tensor<1x2x20x6xf32>, %start: index, %length: index)
      -> tensor<1x4x4x6xf32> {
    %0:4 = "kv.chunk_attention"(%query, %new_key, %new_value, %k_scratch, %v_scratch, %start, %length) {scale = 1 : i64} 
      : (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>, index, index)
      -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>, tensor<1x2x20x8xf32>, tensor<1x2x20x6xf32>)
    return %0#0 : tensor<1x4x4x6xf32>
  }
}
