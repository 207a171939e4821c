// One step over the cache, which it updates. B 2, H 4, Hkv 2, D 8, Dv 6; the geometry has 2 + 4 + 3 = 9 rows.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// The caches keep their types.
// CHECK: "kv.decode_attention"({{.*}}){{.*}} -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64} 
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: tokens
// A step has one token per slot.
// ERROR: InputError: 'kv.decode_attention' query is tensor<2x4x2x8xf32>: dimension 2 (1) is 2, expected 1
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x2x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64} 
      : (tensor<2x4x2x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: new rows
// As many new keys as slots.
// ERROR: InputError: 'kv.decode_attention' new_key is tensor<3x2x1x8xf32>: dimension 0 (Q) is 3, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<3x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64} 
      : (tensor<2x4x1x8xf32>, tensor<3x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: head dim of the values
// Values have their own head dim, the same in rows, caches and results.
// ERROR: InputError: 'kv.decode_attention' value is tensor<2x2x9x8xf32>: dimension 3 (Dv) is 8, expected 6
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x8xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64} 
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: rows
// A cache has the rows of the geometry.
// ERROR: InputError: 'kv.decode_attention' k_cache is tensor<2x2x10x8xf32>: dimension 2 (R) is 10, expected 9
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x10x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64} 
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x10x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: streams
// What is read has the shape of the cache.
// ERROR: InputError: 'kv.decode_attention' key is tensor<2x2x4x8xf32>: dimension 2 (R) is 4, expected 9
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x4x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64} 
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x4x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: element type
// Queries and caches have one element type.
// ERROR: InputError: 'kv.decode_attention' v_cache is tensor<2x2x9x6xbf16>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xbf16>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64} 
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xbf16>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: positions
// One position per slot, as i64.
// ERROR: InputError: 'kv.decode_attention' position is tensor<2xi32>, expected element type i64
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %position: tensor<2xi32>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64} 
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi32>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: flags
// Flags are i1.
// ERROR: InputError: 'kv.decode_attention' active is tensor<2xi64>, expected element type i1
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi64>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64} 
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: groups
// Every KV head serves as many query heads.
// ERROR: InputError: 'kv.decode_attention' 3 query heads are not a multiple of 2 KV heads
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x3x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x3x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64} 
      : (tensor<2x3x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x3x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x3x1x6xf32>
  }
}

// -----

// CASE: result
// The output has the values' head dim.
// ERROR: InputError: 'kv.decode_attention' out is tensor<2x4x1x8xf32>: dimension 3 (Dv) is 8, expected 6
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x8xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64} 
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x8xf32>
  }
}

// -----

// CASE: updated cache
// An updated cache has the cache's type.
// ERROR: InputError: 'kv.decode_attention' k_updated is tensor<2x2x9x6xf32>: dimension 3 (D) is 6, expected 8
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64} 
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: scale
// The scale cannot be left out.
// ERROR: InputError: 'kv.decode_attention' op attribute "scale" is expected but not provided
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>} 
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: scale type
// The scale is a float.
// ERROR: InputError: expected base attribute 'builtin.float' but got 'builtin.integer'
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 1 : i64} 
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}
