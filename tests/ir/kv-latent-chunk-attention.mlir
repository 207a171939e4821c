// A chunk over latent rows. H 4, C 4, T 20; 6 of a row's 9 numbers make 5 columns of keys of 8 numbers, and values of 7.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// The other columns of keys are the row's other numbers.
// CHECK: "kv.latent_chunk_attention"({{.*}}){{.*}} -> (tensor<1x4x4x7xf32>, tensor<1x4x4x1xf32>, tensor<1x1x20x9xf32>)
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new: tensor<1x1x4x9xf32>, %rows: tensor<1x1x20x9xf32>, %k_up: tensor<4x5x6xf32>, %v_up: tensor<4x7x6xf32>, %start: index, %length: index) -> tensor<1x4x4x7xf32> {
    %0:3 = "kv.latent_chunk_attention"(%query, %new, %rows, %k_up, %v_up, %start, %length) {scale = 0.5 : f64, first = 3 : i64}
      : (tensor<1x4x4x8xf32>, tensor<1x1x4x9xf32>, tensor<1x1x20x9xf32>, tensor<4x5x6xf32>, tensor<4x7x6xf32>, index, index) -> (tensor<1x4x4x7xf32>, tensor<1x4x4x1xf32>, tensor<1x1x20x9xf32>)
    return %0#0 : tensor<1x4x4x7xf32>
  }
}

// -----

// CASE: too narrow a row
// Columns would be missing.
// ERROR: InputError: 'kv.latent_chunk_attention' latent rows of width 8, whose first 6 give the 5 columns from 0 on, do not give keys of width 8
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new: tensor<1x1x4x8xf32>, %rows: tensor<1x1x20x8xf32>, %k_up: tensor<4x5x6xf32>, %v_up: tensor<4x7x6xf32>, %start: index, %length: index) -> tensor<1x4x4x7xf32> {
    %0:3 = "kv.latent_chunk_attention"(%query, %new, %rows, %k_up, %v_up, %start, %length) {scale = 0.5 : f64, first = 0 : i64}
      : (tensor<1x4x4x8xf32>, tensor<1x1x4x8xf32>, tensor<1x1x20x8xf32>, tensor<4x5x6xf32>, tensor<4x7x6xf32>, index, index) -> (tensor<1x4x4x7xf32>, tensor<1x4x4x1xf32>, tensor<1x1x20x8xf32>)
    return %0#0 : tensor<1x4x4x7xf32>
  }
}

// -----

// CASE: columns beyond the key
// There are three others.
// ERROR: InputError: 'kv.latent_chunk_attention' latent rows of width 9, whose first 6 give the 5 columns from 4 on, do not give keys of width 8
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new: tensor<1x1x4x9xf32>, %rows: tensor<1x1x20x9xf32>, %k_up: tensor<4x5x6xf32>, %v_up: tensor<4x7x6xf32>, %start: index, %length: index) -> tensor<1x4x4x7xf32> {
    %0:3 = "kv.latent_chunk_attention"(%query, %new, %rows, %k_up, %v_up, %start, %length) {scale = 0.5 : f64, first = 4 : i64}
      : (tensor<1x4x4x8xf32>, tensor<1x1x4x9xf32>, tensor<1x1x20x9xf32>, tensor<4x5x6xf32>, tensor<4x7x6xf32>, index, index) -> (tensor<1x4x4x7xf32>, tensor<1x4x4x1xf32>, tensor<1x1x20x9xf32>)
    return %0#0 : tensor<1x4x4x7xf32>
  }
}

// -----

// CASE: one row for all heads
// Heads share it.
// ERROR: InputError: 'kv.latent_chunk_attention' latent_scratch is tensor<1x4x20x9xf32>: dimension 1 (1) is 4, expected 1
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new: tensor<1x1x4x9xf32>, %rows: tensor<1x4x20x9xf32>, %k_up: tensor<4x5x6xf32>, %v_up: tensor<4x7x6xf32>, %start: index, %length: index) -> tensor<1x4x4x7xf32> {
    %0:3 = "kv.latent_chunk_attention"(%query, %new, %rows, %k_up, %v_up, %start, %length) {scale = 0.5 : f64, first = 3 : i64}
      : (tensor<1x4x4x8xf32>, tensor<1x1x4x9xf32>, tensor<1x4x20x9xf32>, tensor<4x5x6xf32>, tensor<4x7x6xf32>, index, index) -> (tensor<1x4x4x7xf32>, tensor<1x4x4x1xf32>, tensor<1x4x20x9xf32>)
    return %0#0 : tensor<1x4x4x7xf32>
  }
}

// -----

// CASE: a matrix a head
// As many as there are queries.
// ERROR: InputError: 'kv.latent_chunk_attention' k_up is tensor<2x5x6xf32>: dimension 0 (H) is 2, expected 4
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<1x4x4x8xf32>, %new: tensor<1x1x4x9xf32>, %rows: tensor<1x1x20x9xf32>, %k_up: tensor<2x5x6xf32>, %v_up: tensor<4x7x6xf32>, %start: index, %length: index) -> tensor<1x4x4x7xf32> {
    %0:3 = "kv.latent_chunk_attention"(%query, %new, %rows, %k_up, %v_up, %start, %length) {scale = 0.5 : f64, first = 3 : i64}
      : (tensor<1x4x4x8xf32>, tensor<1x1x4x9xf32>, tensor<1x1x20x9xf32>, tensor<2x5x6xf32>, tensor<4x7x6xf32>, index, index) -> (tensor<1x4x4x7xf32>, tensor<1x4x4x1xf32>, tensor<1x1x20x9xf32>)
    return %0#0 : tensor<1x4x4x7xf32>
  }
}
