// One new row per slot. B 2, Hkv 2, D 8; the geometry has 2 + 4 + 3 = 9 rows.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}

// -----

// CASE: accepted
// The cache keeps its type.
// CHECK: "kv.update"({{.*}}){{.*}} : (tensor<2x2x9x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x9x8xf32>
module attributes {kv.geometry = #geometry} {
  func.func @f(%cache: tensor<2x2x9x8xf32>, %new: tensor<2x2x1x8xf32>, %row: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x2x9x8xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x9x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x9x8xf32>
    return %0 : tensor<2x2x9x8xf32>
  }
}

// -----

// CASE: rank
// The cache has a batch dimension.
// ERROR: InputError: 'kv.update' cache is tensor<2x9x8xf32>, expected a tensor of rank 4 [B Hkv T D]
module attributes {kv.geometry = #geometry} {
  func.func @f(%cache: tensor<2x9x8xf32>, %new: tensor<2x2x1x8xf32>, %row: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x2x9x8xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x9x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x9x8xf32>
    return %0 : tensor<2x2x9x8xf32>
  }
}

// -----

// CASE: rows
// A cache has the rows of the geometry.
// ERROR: InputError: 'kv.update' cache is tensor<2x2x10x8xf32>: dimension 2 (T) is 10, expected 9
module attributes {kv.geometry = #geometry} {
  func.func @f(%cache: tensor<2x2x10x8xf32>, %new: tensor<2x2x1x8xf32>, %row: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x2x9x8xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x10x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x9x8xf32>
    return %0 : tensor<2x2x9x8xf32>
  }
}

// -----

// CASE: one token
// A step has one token per slot.
// ERROR: InputError: 'kv.update' new is tensor<2x2x2x8xf32>: dimension 2 (1) is 2, expected 1
module attributes {kv.geometry = #geometry} {
  func.func @f(%cache: tensor<2x2x9x8xf32>, %new: tensor<2x2x2x8xf32>, %row: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x2x9x8xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x9x8xf32>, tensor<2x2x2x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x9x8xf32>
    return %0 : tensor<2x2x9x8xf32>
  }
}

// -----

// CASE: heads
// The new row has the cache's heads.
// ERROR: InputError: 'kv.update' new is tensor<2x4x1x8xf32>: dimension 1 (Hkv) is 4, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%cache: tensor<2x2x9x8xf32>, %new: tensor<2x4x1x8xf32>, %row: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x2x9x8xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x9x8xf32>, tensor<2x4x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x9x8xf32>
    return %0 : tensor<2x2x9x8xf32>
  }
}

// -----

// CASE: element type
// The new row has the cache's element type.
// ERROR: InputError: 'kv.update' new is tensor<2x2x1x8xbf16>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%cache: tensor<2x2x9x8xf32>, %new: tensor<2x2x1x8xbf16>, %row: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x2x9x8xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x9x8xf32>, tensor<2x2x1x8xbf16>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x9x8xf32>
    return %0 : tensor<2x2x9x8xf32>
  }
}

// -----

// CASE: row type
// Rows are i64.
// ERROR: InputError: 'kv.update' row is tensor<2xf32>, expected element type i64
module attributes {kv.geometry = #geometry} {
  func.func @f(%cache: tensor<2x2x9x8xf32>, %new: tensor<2x2x1x8xf32>, %row: tensor<2xf32>, %active: tensor<2xi1>) -> tensor<2x2x9x8xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x9x8xf32>, tensor<2x2x1x8xf32>, tensor<2xf32>, tensor<2xi1>) -> tensor<2x2x9x8xf32>
    return %0 : tensor<2x2x9x8xf32>
  }
}

// -----

// CASE: flags
// Flags are i1.
// ERROR: InputError: 'kv.update' active is tensor<2xi64>, expected element type i1
module attributes {kv.geometry = #geometry} {
  func.func @f(%cache: tensor<2x2x9x8xf32>, %new: tensor<2x2x1x8xf32>, %row: tensor<2xi64>, %active: tensor<2xi64>) -> tensor<2x2x9x8xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x9x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi64>) -> tensor<2x2x9x8xf32>
    return %0 : tensor<2x2x9x8xf32>
  }
}

// -----

// CASE: result
// The result is the cache.
// ERROR: InputError: 'kv.update' updated is tensor<2x2x9x4xf32>: dimension 3 (D) is 4, expected 8
module attributes {kv.geometry = #geometry} {
  func.func @f(%cache: tensor<2x2x9x8xf32>, %new: tensor<2x2x1x8xf32>, %row: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x2x9x4xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x9x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x9x4xf32>
    return %0 : tensor<2x2x9x4xf32>
  }
}

// -----

// CASE: several tokens
// The tokens of a slot follow one another: two for each slot, one of which may be rejected.
// CHECK: "kv.update"({{.*}}){{.*}} : (tensor<2x2x10x8xf32>, tensor<4x2x1x8xf32>, tensor<4xi64>, tensor<4xi1>) -> tensor<2x2x10x8xf32>
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64, spare = 1 : i64}} {
  func.func @f(%cache: tensor<2x2x10x8xf32>, %new: tensor<4x2x1x8xf32>, %row: tensor<4xi64>, %active: tensor<4xi1>) -> tensor<2x2x10x8xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x10x8xf32>, tensor<4x2x1x8xf32>, tensor<4xi64>, tensor<4xi1>) -> tensor<2x2x10x8xf32>
    return %0 : tensor<2x2x10x8xf32>
  }
}

// -----

// CASE: unequal tokens
// Every slot has equally many tokens.
// ERROR: InputError: 'kv.update' has 3 tokens for 2 slots, expected a multiple
module attributes {kv.geometry = #geometry} {
  func.func @f(%cache: tensor<2x2x9x8xf32>, %new: tensor<3x2x1x8xf32>, %row: tensor<3xi64>, %active: tensor<3xi1>) -> tensor<2x2x9x8xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x9x8xf32>, tensor<3x2x1x8xf32>, tensor<3xi64>, tensor<3xi1>) -> tensor<2x2x9x8xf32>
    return %0 : tensor<2x2x9x8xf32>
  }
}

// -----

// CASE: no spare rows
// Each token after the first needs a spare row.
// ERROR: InputError: 'kv.update' has 2 tokens per slot, kv.geometry has 0 spare rows
module attributes {kv.geometry = #geometry} {
  func.func @f(%cache: tensor<2x2x9x8xf32>, %new: tensor<4x2x1x8xf32>, %row: tensor<4xi64>, %active: tensor<4xi1>) -> tensor<2x2x9x8xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x9x8xf32>, tensor<4x2x1x8xf32>, tensor<4xi64>, tensor<4xi1>) -> tensor<2x2x9x8xf32>
    return %0 : tensor<2x2x9x8xf32>
  }
}
