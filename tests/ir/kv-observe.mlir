// Keeping the last queries. H 4, C 4, D 8; the geometry observes 2 queries.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// The kept queries keep their type.
// CHECK: "kv.observe"({{.*}}){{.*}} : (tensor<1x4x2x8xf32>, tensor<1x4x4x8xf32>, index, index) -> tensor<1x4x2x8xf32>
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %query: tensor<1x4x4x8xf32>, %start: index, %length: index) -> tensor<1x4x2x8xf32> {
    %0 = "kv.observe"(%observed, %query, %start, %length) : (tensor<1x4x2x8xf32>, tensor<1x4x4x8xf32>, index, index) -> tensor<1x4x2x8xf32>
    return %0 : tensor<1x4x2x8xf32>
  }
}

// -----

// CASE: a number for each query
// Log-sum-exps are kept as queries are, with D = 1.
// CHECK: "kv.observe"({{.*}}){{.*}} : (tensor<1x4x2x1xf32>, tensor<1x4x4x1xf32>, index, index) -> tensor<1x4x2x1xf32>
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x1xf32>, %query: tensor<1x4x4x1xf32>, %start: index, %length: index) -> tensor<1x4x2x1xf32> {
    %0 = "kv.observe"(%observed, %query, %start, %length) : (tensor<1x4x2x1xf32>, tensor<1x4x4x1xf32>, index, index) -> tensor<1x4x2x1xf32>
    return %0 : tensor<1x4x2x1xf32>
  }
}

// -----

// CASE: rank
// Queries have a batch dimension.
// ERROR: InputError: 'kv.observe' query is tensor<4x4x8xf32>, expected a tensor of rank 4 [1 H C D]
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %query: tensor<4x4x8xf32>, %start: index, %length: index) -> tensor<1x4x2x8xf32> {
    %0 = "kv.observe"(%observed, %query, %start, %length) : (tensor<1x4x2x8xf32>, tensor<4x4x8xf32>, index, index) -> tensor<1x4x2x8xf32>
    return %0 : tensor<1x4x2x8xf32>
  }
}

// -----

// CASE: window
// As many rows as the geometry observes.
// ERROR: InputError: 'kv.observe' observed is tensor<1x4x3x8xf32>: dimension 2 (W) is 3, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x3x8xf32>, %query: tensor<1x4x4x8xf32>, %start: index, %length: index) -> tensor<1x4x2x8xf32> {
    %0 = "kv.observe"(%observed, %query, %start, %length) : (tensor<1x4x3x8xf32>, tensor<1x4x4x8xf32>, index, index) -> tensor<1x4x2x8xf32>
    return %0 : tensor<1x4x2x8xf32>
  }
}

// -----

// CASE: heads
// All query heads are kept.
// ERROR: InputError: 'kv.observe' query is tensor<1x2x4x8xf32>: dimension 1 (H) is 2, expected 4
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %query: tensor<1x2x4x8xf32>, %start: index, %length: index) -> tensor<1x4x2x8xf32> {
    %0 = "kv.observe"(%observed, %query, %start, %length) : (tensor<1x4x2x8xf32>, tensor<1x2x4x8xf32>, index, index) -> tensor<1x4x2x8xf32>
    return %0 : tensor<1x4x2x8xf32>
  }
}

// -----

// CASE: element type
// Queries are kept in their own element type.
// ERROR: InputError: 'kv.observe' query is tensor<1x4x4x8xbf16>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %query: tensor<1x4x4x8xbf16>, %start: index, %length: index) -> tensor<1x4x2x8xf32> {
    %0 = "kv.observe"(%observed, %query, %start, %length) : (tensor<1x4x2x8xf32>, tensor<1x4x4x8xbf16>, index, index) -> tensor<1x4x2x8xf32>
    return %0 : tensor<1x4x2x8xf32>
  }
}

// -----

// CASE: length
// The length is an index.
// ERROR: InputError: 'kv.observe' length is i64, expected index
module attributes {kv.geometry = #geometry} {
  func.func @f(%observed: tensor<1x4x2x8xf32>, %query: tensor<1x4x4x8xf32>, %start: index, %length: i64) -> tensor<1x4x2x8xf32> {
    %0 = "kv.observe"(%observed, %query, %start, %length) : (tensor<1x4x2x8xf32>, tensor<1x4x4x8xf32>, index, i64) -> tensor<1x4x2x8xf32>
    return %0 : tensor<1x4x2x8xf32>
  }
}
