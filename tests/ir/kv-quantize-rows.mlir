// Rows of floats as codes and a scale. B 2, Hkv 2, D 8, Dv 6; 2 + 4 + 3 = 9 rows. An encoded row of 8 is 12 bytes.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64, dtype = "int8"}
#plain = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
          max_context = 20 : i64}

// -----

// CASE: accepted
// CHECK: "kv.quantize_rows"({{.*}}){{.*}} : (tensor<2x2x1x8xf32>) -> tensor<2x2x1x12xi8>
module attributes {kv.geometry = #geometry} {
  func.func @f(%x: tensor<2x2x1x8xf32>) -> tensor<2x2x1x12xi8> {
    %0 = "kv.quantize_rows"(%x) : (tensor<2x2x1x8xf32>) -> tensor<2x2x1x12xi8>
    return %0 : tensor<2x2x1x12xi8>
  }
}

// -----

// CASE: width
// Behind the codes come the 4 bytes of a scale.
// ERROR: InputError: 'kv.quantize_rows' out is tensor<2x2x1x8xi8>: dimension 3 (D) is 8, expected 12
module attributes {kv.geometry = #geometry} {
  func.func @f(%x: tensor<2x2x1x8xf32>) -> tensor<2x2x1x8xi8> {
    %0 = "kv.quantize_rows"(%x) : (tensor<2x2x1x8xf32>) -> tensor<2x2x1x8xi8>
    return %0 : tensor<2x2x1x8xi8>
  }
}

// -----

// CASE: plain caches
// Only where the geometry says that rows are encoded.
// ERROR: InputError: 'kv.quantize_rows' encodes rows, but rows of kv.geometry have the dtype model
module attributes {kv.geometry = #plain} {
  func.func @f(%x: tensor<2x2x1x8xf32>) -> tensor<2x2x1x8xf32> {
    %0 = "kv.quantize_rows"(%x) : (tensor<2x2x1x8xf32>) -> tensor<2x2x1x8xf32>
    return %0 : tensor<2x2x1x8xf32>
  }
}

// -----

// CASE: an update takes encoded rows
// CHECK: "kv.update"({{.*}}){{.*}} : (tensor<2x2x9x12xi8>, tensor<2x2x1x12xi8>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x9x12xi8>
module attributes {kv.geometry = #geometry} {
  func.func @f(%cache: tensor<2x2x9x12xi8>, %new: tensor<2x2x1x12xi8>, %row: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x2x9x12xi8> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x9x12xi8>, tensor<2x2x1x12xi8>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x9x12xi8>
    return %0 : tensor<2x2x9x12xi8>
  }
}

// -----

// CASE: an update with a row that is not encoded
// ERROR: InputError: 'kv.update' new is tensor<2x2x1x8xf32>: dimension 3 (D) is 8, expected 12
module attributes {kv.geometry = #geometry} {
  func.func @f(%cache: tensor<2x2x9x12xi8>, %new: tensor<2x2x1x8xf32>, %row: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x2x9x12xi8> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x9x12xi8>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x9x12xi8>
    return %0 : tensor<2x2x9x12xi8>
  }
}

// -----

// CASE: an update of a cache that is not encoded
// ERROR: InputError: 'kv.update' cache is tensor<2x2x9x8xf32>, expected element type i8
module attributes {kv.geometry = #geometry} {
  func.func @f(%cache: tensor<2x2x9x8xf32>, %new: tensor<2x2x1x8xf32>, %row: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x2x9x8xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x9x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x9x8xf32>
    return %0 : tensor<2x2x9x8xf32>
  }
}

// -----

// CASE: attention reads encoded rows
// CHECK: "kv.cached_attention"({{.*}}){{.*}} : (tensor<2x4x1x8xf32>, tensor<2x2x9x12xi8>, tensor<2x2x9x10xi8>, tensor<2x9xi1>) -> tensor<2x4x1x6xf32>
module attributes {kv.geometry = #geometry} {
  func.func @f(%q: tensor<2x4x1x8xf32>, %k: tensor<2x2x9x12xi8>, %v: tensor<2x2x9x10xi8>, %valid: tensor<2x9xi1>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%q, %k, %v, %valid) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.5 : f64} : (tensor<2x4x1x8xf32>, tensor<2x2x9x12xi8>, tensor<2x2x9x10xi8>, tensor<2x9xi1>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: attention over rows of another width
// ERROR: InputError: 'kv.cached_attention' segments[0].key is tensor<2x2x9x16xi8>: dimension 3 (D) is 16, expected 12
module attributes {kv.geometry = #geometry} {
  func.func @f(%q: tensor<2x4x1x8xf32>, %k: tensor<2x2x9x16xi8>, %v: tensor<2x2x9x10xi8>, %valid: tensor<2x9xi1>) -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%q, %k, %v, %valid) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.5 : f64} : (tensor<2x4x1x8xf32>, tensor<2x2x9x16xi8>, tensor<2x2x9x10xi8>, tensor<2x9xi1>) -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}
