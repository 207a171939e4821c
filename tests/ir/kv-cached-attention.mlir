// One query per slot over the cache. B 2, H 4, Hkv 2, D 8, Dv 6; the geometry has 9 rows.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// The output has the values' head dim.
// CHECK: "kv.cached_attention"({{.*}}){{.*}} : (tensor<2x4x1x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x9xi1>) -> tensor<2x4x1x6xf32>
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %valid: tensor<2x9xi1>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%query, %key, %value, %valid) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.5 : f64} : (tensor<2x4x1x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x9xi1>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: rank
// Flags are per slot and row, the same for all heads.
// ERROR: InputError: 'kv.cached_attention' segments[0].valid is tensor<2x2x9xi1>, expected a tensor of rank 2 [Q R0]
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %valid: tensor<2x2x9xi1>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%query, %key, %value, %valid) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.5 : f64} : (tensor<2x4x1x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9xi1>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: one query
// A step has one query per slot.
// ERROR: InputError: 'kv.cached_attention' query is tensor<2x4x2x8xf32>: dimension 2 (1) is 2, expected 1
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x2x8xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %valid: tensor<2x9xi1>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%query, %key, %value, %valid) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.5 : f64} : (tensor<2x4x2x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x9xi1>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: rows
// Keys have the rows of the geometry.
// ERROR: InputError: 'kv.cached_attention' segments[0].value is tensor<2x2x9x6xf32>: dimension 2 (R0) is 9, expected 6
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %key: tensor<2x2x6x8xf32>, %value: tensor<2x2x9x6xf32>, %valid: tensor<2x9xi1>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%query, %key, %value, %valid) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.5 : f64} : (tensor<2x4x1x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x9x6xf32>, tensor<2x9xi1>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: element type
// Keys have the queries' element type.
// ERROR: InputError: 'kv.cached_attention' segments[0].key is tensor<2x2x9x8xbf16>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %key: tensor<2x2x9x8xbf16>, %value: tensor<2x2x9x6xf32>, %valid: tensor<2x9xi1>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%query, %key, %value, %valid) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.5 : f64} : (tensor<2x4x1x8xf32>, tensor<2x2x9x8xbf16>, tensor<2x2x9x6xf32>, tensor<2x9xi1>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: groups
// Every KV head serves as many query heads.
// ERROR: InputError: 'kv.cached_attention' 5 query heads are not a multiple of 2 KV heads
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x5x1x8xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %valid: tensor<2x9xi1>) -> tensor<2x5x1x6xf32> {
    %0 = "kv.cached_attention"(%query, %key, %value, %valid) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.5 : f64} : (tensor<2x5x1x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x9xi1>) -> tensor<2x5x1x6xf32>
    return %0 : tensor<2x5x1x6xf32>
  }
}

// -----

// CASE: scale
// The scale cannot be left out.
// ERROR: InputError: 'kv.cached_attention' op attribute "scale" is expected but not provided
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %valid: tensor<2x9xi1>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%query, %key, %value, %valid) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x4x1x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x9xi1>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: scale type
// The scale is a float.
// ERROR: InputError: expected base attribute 'builtin.float' but got 'builtin.integer'
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %valid: tensor<2x9xi1>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%query, %key, %value, %valid) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 1 : i64} : (tensor<2x4x1x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x9xi1>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: two segments
// The second one is rows that an index names.
// CHECK: "kv.cached_attention"
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %valid: tensor<2x9xi1>, %k: tensor<2x2x20x8xf32>, %v: tensor<2x2x20x6xf32>, %flags: tensor<2x3xi1>, %index: tensor<2x2x3xi64>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%query, %key, %value, %valid, %k, %v, %flags, %index) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x9xi1>, tensor<2x2x20x8xf32>, tensor<2x2x20x6xf32>, tensor<2x3xi1>, tensor<2x2x3xi64>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: rows without an index
// Without one they are those of K and V.
// ERROR: InputError: 'kv.cached_attention' segments[1].valid is tensor<2x3xi1>: dimension 1 (R1) is 3, expected 20
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %valid: tensor<2x9xi1>, %k: tensor<2x2x20x8xf32>, %v: tensor<2x2x20x6xf32>, %flags: tensor<2x3xi1>, %index: tensor<2x2x3xi64>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%query, %key, %value, %valid, %k, %v, %flags) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x9xi1>, tensor<2x2x20x8xf32>, tensor<2x2x20x6xf32>, tensor<2x3xi1>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: an index for all slots
// Each slot has its rows.
// ERROR: InputError: 'kv.cached_attention' segments[1].index is tensor<2x3xi64>, expected a tensor of rank 3 [Slots1 Hkv R1]
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %valid: tensor<2x9xi1>, %k: tensor<2x2x20x8xf32>, %v: tensor<2x2x20x6xf32>, %flags: tensor<2x3xi1>, %index: tensor<2x3xi64>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%query, %key, %value, %valid, %k, %v, %flags, %index) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x9xi1>, tensor<2x2x20x8xf32>, tensor<2x2x20x6xf32>, tensor<2x3xi1>, tensor<2x3xi64>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: a segment in parts
// A segment has K, V and a mask.
// ERROR: InputError: 'kv.cached_attention' operandSegmentSizes are [1, 0, 1, 1, 1, 0, 1, 1, 0, 1, 0, 0, 0, 0]: each member is (key, optional value, valid, optional index)
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %valid: tensor<2x9xi1>, %k: tensor<2x2x20x8xf32>, %v: tensor<2x2x20x6xf32>, %flags: tensor<2x3xi1>, %index: tensor<2x2x3xi64>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%query, %key, %value, %valid, %k, %v, %index) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 0, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x9xi1>, tensor<2x2x20x8xf32>, tensor<2x2x20x6xf32>, tensor<2x2x3xi64>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: a gap
// Segments follow each other.
// ERROR: InputError: 'kv.cached_attention' operandSegmentSizes are [1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]: each member is (key, optional value, valid, optional index)
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %valid: tensor<2x9xi1>, %k: tensor<2x2x20x8xf32>, %v: tensor<2x2x20x6xf32>, %flags: tensor<2x3xi1>, %index: tensor<2x2x3xi64>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%query, %k, %v, %flags, %index) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x20x8xf32>, tensor<2x2x20x6xf32>, tensor<2x3xi1>, tensor<2x2x3xi64>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: no segment
// There is something to attend to.
// ERROR: InputError: 'kv.cached_attention' has no segment to attend to
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %valid: tensor<2x9xi1>, %k: tensor<2x2x20x8xf32>, %v: tensor<2x2x20x6xf32>, %flags: tensor<2x3xi1>, %index: tensor<2x2x3xi64>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%query) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}
