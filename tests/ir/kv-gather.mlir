// Rows of the scratch by position. Hkv 2, T 20, D 8.
#encoded = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
            max_context = 20 : i64, dtype = "int8"}
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// One index set per KV head.
// CHECK: "kv.gather"({{.*}}){{.*}} : (tensor<1x2x20x8xf32>, tensor<2x3xi64>, tensor<1x2x3x8xf32>) -> tensor<1x2x3x8xf32>
module attributes {kv.geometry = #geometry} {
  func.func @f(%source: tensor<1x2x20x8xf32>, %index: tensor<2x3xi64>, %out: tensor<1x2x3x8xf32>) -> tensor<1x2x3x8xf32> {
    %0 = "kv.gather"(%source, %index, %out) : (tensor<1x2x20x8xf32>, tensor<2x3xi64>, tensor<1x2x3x8xf32>) -> tensor<1x2x3x8xf32>
    return %0 : tensor<1x2x3x8xf32>
  }
}

// -----

// CASE: rank
// An index is per KV head.
// ERROR: InputError: 'kv.gather' index is tensor<1x2x3xi64>, expected a tensor of rank 2 [Hkv J]
module attributes {kv.geometry = #geometry} {
  func.func @f(%source: tensor<1x2x20x8xf32>, %index: tensor<1x2x3xi64>, %out: tensor<1x2x3x8xf32>) -> tensor<1x2x3x8xf32> {
    %0 = "kv.gather"(%source, %index, %out) : (tensor<1x2x20x8xf32>, tensor<1x2x3xi64>, tensor<1x2x3x8xf32>) -> tensor<1x2x3x8xf32>
    return %0 : tensor<1x2x3x8xf32>
  }
}

// -----

// CASE: heads
// One index set for each of the scratch's heads.
// ERROR: InputError: 'kv.gather' index is tensor<4x3xi64>: dimension 0 (Hkv) is 4, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%source: tensor<1x2x20x8xf32>, %index: tensor<4x3xi64>, %out: tensor<1x2x3x8xf32>) -> tensor<1x2x3x8xf32> {
    %0 = "kv.gather"(%source, %index, %out) : (tensor<1x2x20x8xf32>, tensor<4x3xi64>, tensor<1x2x3x8xf32>) -> tensor<1x2x3x8xf32>
    return %0 : tensor<1x2x3x8xf32>
  }
}

// -----

// CASE: rows
// As many rows as indices.
// ERROR: InputError: 'kv.gather' out is tensor<1x2x4x8xf32>: dimension 2 (J) is 4, expected 3
module attributes {kv.geometry = #geometry} {
  func.func @f(%source: tensor<1x2x20x8xf32>, %index: tensor<2x3xi64>, %out: tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32> {
    %0 = "kv.gather"(%source, %index, %out) : (tensor<1x2x20x8xf32>, tensor<2x3xi64>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
    return %0 : tensor<1x2x4x8xf32>
  }
}

// -----

// CASE: element type
// An index is i64.
// ERROR: InputError: 'kv.gather' index is tensor<2x3xi32>, expected element type i64
module attributes {kv.geometry = #geometry} {
  func.func @f(%source: tensor<1x2x20x8xf32>, %index: tensor<2x3xi32>, %out: tensor<1x2x3x8xf32>) -> tensor<1x2x3x8xf32> {
    %0 = "kv.gather"(%source, %index, %out) : (tensor<1x2x20x8xf32>, tensor<2x3xi32>, tensor<1x2x3x8xf32>) -> tensor<1x2x3x8xf32>
    return %0 : tensor<1x2x3x8xf32>
  }
}

// -----

// CASE: result type
// Rows keep their element type.
// ERROR: InputError: 'kv.gather' out is tensor<1x2x3x8xbf16>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%source: tensor<1x2x20x8xf32>, %index: tensor<2x3xi64>, %out: tensor<1x2x3x8xbf16>) -> tensor<1x2x3x8xbf16> {
    %0 = "kv.gather"(%source, %index, %out) : (tensor<1x2x20x8xf32>, tensor<2x3xi64>, tensor<1x2x3x8xbf16>) -> tensor<1x2x3x8xbf16>
    return %0 : tensor<1x2x3x8xbf16>
  }
}
// -----

// CASE: encoded
// Rows are stored as those of the cache are.
// CHECK: "kv.gather"({{.*}}){{.*}} -> tensor<1x2x3x12xi8>
module attributes {kv.geometry = #encoded} {
  func.func @f(%source: tensor<1x2x20x8xf32>, %index: tensor<2x3xi64>, %out: tensor<1x2x3x12xi8>) -> tensor<1x2x3x12xi8> {
    %0 = "kv.gather"(%source, %index, %out) : (tensor<1x2x20x8xf32>, tensor<2x3xi64>, tensor<1x2x3x12xi8>) -> tensor<1x2x3x12xi8>
    return %0 : tensor<1x2x3x12xi8>
  }
}

// -----

// CASE: encoded as the others are not
// ERROR: InputError: 'kv.gather' out is tensor<1x2x3x8xf32>: dimension 3 (D) is 8, expected 12
module attributes {kv.geometry = #encoded} {
  func.func @f(%source: tensor<1x2x20x8xf32>, %index: tensor<2x3xi64>, %out: tensor<1x2x3x8xf32>) -> tensor<1x2x3x8xf32> {
    %0 = "kv.gather"(%source, %index, %out) : (tensor<1x2x20x8xf32>, tensor<2x3xi64>, tensor<1x2x3x8xf32>) -> tensor<1x2x3x8xf32>
    return %0 : tensor<1x2x3x8xf32>
  }
}
