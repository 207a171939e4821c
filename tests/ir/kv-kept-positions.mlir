// The position that each row of the cache holds after a prompt; the geometry has 2 + 3 + 4 of them.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}
#query = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
          max_context = 20 : i64, rows = "indexed", policy = "query", key_bits = 2 : i64}

// -----

// CASE: accepted
// A position per KV head and row: an index of rows.
// CHECK: "kv.kept_positions"({{.*}}){{.*}} : (index, index) -> tensor<2x9xi64>
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index, %topk: index) -> tensor<2x9xi64> {
    %0 = "kv.kept_positions"(%length, %topk) : (index, index) -> tensor<2x9xi64>
    return %0 : tensor<2x9xi64>
  }
}

// -----

// CASE: rank
// An index says which rows of each KV head.
// ERROR: InputError: 'kv.kept_positions' positions is tensor<9xi64>, expected a tensor of rank 2 [Hkv R]
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index, %topk: index) -> tensor<9xi64> {
    %0 = "kv.kept_positions"(%length, %topk) : (index, index) -> tensor<9xi64>
    return %0 : tensor<9xi64>
  }
}

// -----

// CASE: rows
// As many as the cache has.
// ERROR: InputError: 'kv.kept_positions' positions is tensor<2x8xi64>: dimension 1 (R) is 8, expected 9
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index, %topk: index) -> tensor<2x8xi64> {
    %0 = "kv.kept_positions"(%length, %topk) : (index, index) -> tensor<2x8xi64>
    return %0 : tensor<2x8xi64>
  }
}

// -----

// CASE: element type
// Positions are i64.
// ERROR: InputError: 'kv.kept_positions' positions is tensor<2x9xf32>, expected element type i64
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index, %topk: index) -> tensor<2x9xf32> {
    %0 = "kv.kept_positions"(%length, %topk) : (index, index) -> tensor<2x9xf32>
    return %0 : tensor<2x9xf32>
  }
}

// -----

// CASE: length
// The length is an index.
// ERROR: InputError: 'kv.kept_positions' length is tensor<1xi64>, expected index
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: tensor<1xi64>, %topk: index) -> tensor<2x9xi64> {
    %0 = "kv.kept_positions"(%length, %topk) : (tensor<1xi64>, index) -> tensor<2x9xi64>
    return %0 : tensor<2x9xi64>
  }
}

// -----

// CASE: selected positions
// The rows between sinks and ring hold them.
// CHECK: "kv.kept_positions"({{.*}}){{.*}} : (index, index, tensor<2x3xi64>) -> tensor<2x9xi64>
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index, %topk: index, %selected: tensor<2x3xi64>) -> tensor<2x9xi64> {
    %0 = "kv.kept_positions"(%length, %topk, %selected) : (index, index, tensor<2x3xi64>) -> tensor<2x9xi64>
    return %0 : tensor<2x9xi64>
  }
}

// -----

// CASE: number of selected positions
// As many as the geometry selects.
// ERROR: InputError: 'kv.kept_positions' selected is tensor<2x4xi64>: dimension 1 (K) is 4, expected 3
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index, %topk: index, %selected: tensor<2x4xi64>) -> tensor<2x9xi64> {
    %0 = "kv.kept_positions"(%length, %topk, %selected) : (index, index, tensor<2x4xi64>) -> tensor<2x9xi64>
    return %0 : tensor<2x9xi64>
  }
}

// -----

// CASE: KV heads of selected positions
// Each KV head has its own.
// ERROR: InputError: 'kv.kept_positions' positions is tensor<3x9xi64>: dimension 0 (Hkv) is 3, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index, %topk: index, %selected: tensor<2x3xi64>) -> tensor<3x9xi64> {
    %0 = "kv.kept_positions"(%length, %topk, %selected) : (index, index, tensor<2x3xi64>) -> tensor<3x9xi64>
    return %0 : tensor<3x9xi64>
  }
}

// -----

// CASE: top-K
// The number of selected positions is an index.
// ERROR: InputError: 'kv.kept_positions' topk is tensor<1xi64>, expected index
module attributes {kv.geometry = #geometry} {
  func.func @f(%length: index, %topk: tensor<1xi64>) -> tensor<2x9xi64> {
    %0 = "kv.kept_positions"(%length, %topk) : (index, tensor<1xi64>) -> tensor<2x9xi64>
    return %0 : tensor<2x9xi64>
  }
}

// -----

// CASE: every query chooses
// The cache has sinks and ring alone.
// CHECK: "kv.kept_positions"({{.*}}){{.*}} : (index, index) -> tensor<2x6xi64>
module attributes {kv.geometry = #query} {
  func.func @f(%length: index, %topk: index) -> tensor<2x6xi64> {
    %0 = "kv.kept_positions"(%length, %topk) : (index, index) -> tensor<2x6xi64>
    return %0 : tensor<2x6xi64>
  }
}
