// One step over latent rows, of which values are the first numbers. B 2, H 4, D 8; the geometry has 2 + 4 + 3 = 9 rows.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}
#encoded = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
            max_context = 20 : i64, dtype = "int8"}

// -----

// CASE: accepted
// One cache.
// CHECK: "kv.decode_attention"({{.*}}){{.*}} -> (tensor<2x4x1x6xf32>, tensor<2x1x9x8xf32>)
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x1x1x8xf32>, %cache: tensor<2x1x9x8xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:2 = "kv.decode_attention"(%query, %new_key, %cache, %cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x1x1x8xf32>, tensor<2x1x9x8xf32>, tensor<2x1x9x8xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x1x9x8xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: values wider than rows
// Values are a part of a row.
// ERROR: InputError: 'kv.decode_attention' has no values, and keys of 8 numbers cannot hold 9 of a value
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x1x1x8xf32>, %cache: tensor<2x1x9x8xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x9xf32> {
    %0:2 = "kv.decode_attention"(%query, %new_key, %cache, %cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x1x1x8xf32>, tensor<2x1x9x8xf32>, tensor<2x1x9x8xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x9xf32>, tensor<2x1x9x8xf32>)
    return %0#0 : tensor<2x4x1x9xf32>
  }
}

// -----

// CASE: encoded
// They are the first of the numbers that codes stand for.
// CHECK: "kv.decode_attention"({{.*}}){{.*}} -> (tensor<2x4x1x6xf32>, tensor<2x1x9x12xi8>)
module attributes {kv.geometry = #encoded} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x1x1x8xf32>, %cache: tensor<2x1x9x12xi8>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:2 = "kv.decode_attention"(%query, %new_key, %cache, %cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x1x1x8xf32>, tensor<2x1x9x12xi8>, tensor<2x1x9x12xi8>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x1x9x12xi8>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: a new value alone
// All of V, or nothing.
// ERROR: InputError: 'kv.decode_attention' has values for some of its keys, but not value, v_cache; give all of them, or none
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x1x1x8xf32>, %new_value: tensor<2x1x1x6xf32>, %cache: tensor<2x1x9x8xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:2 = "kv.decode_attention"(%query, %new_key, %new_value, %cache, %cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x1x1x8xf32>, tensor<2x1x1x6xf32>, tensor<2x1x9x8xf32>, tensor<2x1x9x8xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x1x9x8xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: segments with values
// All of V, or nothing.
// ERROR: InputError: 'kv.cached_attention' has values for some of its keys, but not segments[0].value; give all of them, or none
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %cache: tensor<2x1x6x8xf32>, %ring: tensor<2x6xi1>, %more: tensor<2x1x3x8xf32>, %values: tensor<2x1x3x6xf32>, %others: tensor<2x3xi1>)
      -> tensor<2x4x1x6xf32> {
    %0 = "kv.cached_attention"(%query, %cache, %ring, %more, %values, %others) {operandSegmentSizes = array<i32: 1, 0, 1, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x1x6x8xf32>, tensor<2x6xi1>, tensor<2x1x3x8xf32>, tensor<2x1x3x6xf32>, tensor<2x3xi1>)
      -> tensor<2x4x1x6xf32>
    return %0 : tensor<2x4x1x6xf32>
  }
}
