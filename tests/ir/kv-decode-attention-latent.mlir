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
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x1x1x8xf32>, %cache: tensor<2x1x9x8xf32>, %position: tensor<2xi64>, %prompt_len: tensor<2xi64>, %active: tensor<2xi1>)
      -> tensor<2x4x1x6xf32> {
    %0:2 = "kv.decode_attention"(%query, %new_key, %cache, %cache, %position, %prompt_len, %active) {operandSegmentSizes = array<i32: 1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x1x1x8xf32>, tensor<2x1x9x8xf32>, tensor<2x1x9x8xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>)
      -> (tensor<2x4x1x6xf32>, tensor<2x1x9x8xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: values wider than rows
// Values are a part of a row.
// ERROR: InputError: 'kv.decode_attention' has no values: they are the first 9 of the 8 numbers of its rows, which are not encoded and alone
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x1x1x8xf32>, %cache: tensor<2x1x9x8xf32>, %position: tensor<2xi64>, %prompt_len: tensor<2xi64>, %active: tensor<2xi1>)
      -> tensor<2x4x1x9xf32> {
    %0:2 = "kv.decode_attention"(%query, %new_key, %cache, %cache, %position, %prompt_len, %active) {operandSegmentSizes = array<i32: 1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x1x1x8xf32>, tensor<2x1x9x8xf32>, tensor<2x1x9x8xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>)
      -> (tensor<2x4x1x9xf32>, tensor<2x1x9x8xf32>)
    return %0#0 : tensor<2x4x1x9xf32>
  }
}

// -----

// CASE: encoded
// The first numbers of a row of codes are no row.
// ERROR: InputError: 'kv.decode_attention' has no values: they are the first 6 of the 8 numbers of its rows, which are not encoded and alone
module attributes {kv.geometry = #encoded} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x1x1x8xf32>, %cache: tensor<2x1x9x12xi8>, %position: tensor<2xi64>, %prompt_len: tensor<2xi64>, %active: tensor<2xi1>)
      -> tensor<2x4x1x6xf32> {
    %0:2 = "kv.decode_attention"(%query, %new_key, %cache, %cache, %position, %prompt_len, %active) {operandSegmentSizes = array<i32: 1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x1x1x8xf32>, tensor<2x1x9x12xi8>, tensor<2x1x9x12xi8>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>)
      -> (tensor<2x4x1x6xf32>, tensor<2x1x9x12xi8>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: a new value alone
// All of V, or nothing.
// ERROR: InputError: 'kv.decode_attention' has some of new_value, value and v_cache: it has all or none
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x1x1x8xf32>, %new_value: tensor<2x1x1x6xf32>, %cache: tensor<2x1x9x8xf32>, %position: tensor<2xi64>, %prompt_len: tensor<2xi64>, %active: tensor<2xi1>)
      -> tensor<2x4x1x6xf32> {
    %0:2 = "kv.decode_attention"(%query, %new_key, %new_value, %cache, %cache, %position, %prompt_len, %active) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x1x1x8xf32>, tensor<2x1x1x6xf32>, tensor<2x1x9x8xf32>, tensor<2x1x9x8xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>)
      -> (tensor<2x4x1x6xf32>, tensor<2x1x9x8xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}
