// One step over a cache, and over rows of the prompts in the place of some of its rows. B 2, H 4, Hkv 2, D 8, Dv 6, T 20;
// the geometry has 2 + 3 + 4 rows, and an index can replace 3 of them.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64, rows = "indexed"}
#compact = {sink = 6 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
            max_context = 20 : i64, rows = "compact"}

// -----

// CASE: accepted
// The caches keep their types.
// CHECK: "kv.decode_attention"({{.*}}){{.*}} -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %k_store: tensor<2x2x20x8xf32>, %v_store: tensor<2x2x20x6xf32>, %selected: tensor<2x2x3xi64>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk, %k_store, %v_store, %selected) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x20x8xf32>, tensor<2x2x20x6xf32>, tensor<2x2x3xi64>)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: compact rows
// Where rows are compact nothing is read from a prompt.
// ERROR: InputError: 'kv.decode_attention' has 1 segments, but kv.geometry reads no rows of prompts
module attributes {kv.geometry = #compact} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x13x8xf32>, %value: tensor<2x2x13x6xf32>, %k_cache: tensor<2x2x13x8xf32>, %v_cache: tensor<2x2x13x6xf32>, %k_store: tensor<2x2x20x8xf32>, %v_store: tensor<2x2x20x6xf32>, %selected: tensor<2x2x3xi64>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk, %k_store, %v_store, %selected) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x13x8xf32>, tensor<2x2x13x6xf32>, tensor<2x2x13x8xf32>, tensor<2x2x13x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x20x8xf32>, tensor<2x2x20x6xf32>, tensor<2x2x3xi64>)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x13x8xf32>, tensor<2x2x13x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: no segment
// Where rows are indexed a step reads some of a prompt.
// ERROR: InputError: 'kv.decode_attention' has 0 segments, but kv.geometry reads rows of prompts
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %k_store: tensor<2x2x20x8xf32>, %v_store: tensor<2x2x20x6xf32>, %selected: tensor<2x2x3xi64>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: no index
// An index says which rows of a prompt these are.
// ERROR: InputError: 'kv.decode_attention' operandSegmentSizes are [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0]: each member is (key, optional value, index)
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %k_store: tensor<2x2x20x8xf32>, %v_store: tensor<2x2x20x6xf32>, %selected: tensor<2x2x3xi64>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk, %k_store, %v_store) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x20x8xf32>, tensor<2x2x20x6xf32>)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: sinks and ring alone
// The cache has rows for what is selected too: those of a short prompt stand there.
// ERROR: InputError: 'kv.decode_attention' k_cache is tensor<2x2x6x8xf32>: dimension 2 (R) is 6, expected 9
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x6x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %k_store: tensor<2x2x20x8xf32>, %v_store: tensor<2x2x20x6xf32>, %selected: tensor<2x2x3xi64>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk, %k_store, %v_store, %selected) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x6x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x20x8xf32>, tensor<2x2x20x6xf32>, tensor<2x2x3xi64>)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: slots of the prompt
// Every slot has its prompt.
// ERROR: InputError: 'kv.decode_attention' segments[0].key is tensor<1x2x20x8xf32>: dimension 0 (B) is 1, expected 2
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %k_store: tensor<1x2x20x8xf32>, %v_store: tensor<2x2x20x6xf32>, %selected: tensor<2x2x3xi64>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk, %k_store, %v_store, %selected) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<1x2x20x8xf32>, tensor<2x2x20x6xf32>, tensor<2x2x3xi64>)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: length of the prompt
// Keys and values of a prompt are equally many.
// ERROR: InputError: 'kv.decode_attention' segments[0].value is tensor<2x2x19x6xf32>: dimension 2 (T0) is 19, expected 20
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %k_store: tensor<2x2x20x8xf32>, %v_store: tensor<2x2x19x6xf32>, %selected: tensor<2x2x3xi64>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk, %k_store, %v_store, %selected) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x20x8xf32>, tensor<2x2x19x6xf32>, tensor<2x2x3xi64>)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: head dim of the prompt
// A selected row is like one of the cache.
// ERROR: InputError: 'kv.decode_attention' segments[0].value is tensor<2x2x20x8xf32>: dimension 3 (Dv) is 8, expected 6
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %k_store: tensor<2x2x20x8xf32>, %v_store: tensor<2x2x20x8xf32>, %selected: tensor<2x2x3xi64>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk, %k_store, %v_store, %selected) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x20x8xf32>, tensor<2x2x20x8xf32>, tensor<2x2x3xi64>)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: element type of the prompt
// And of its element type.
// ERROR: InputError: 'kv.decode_attention' segments[0].key is tensor<2x2x20x8xbf16>, expected element type f32
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %k_store: tensor<2x2x20x8xbf16>, %v_store: tensor<2x2x20x6xf32>, %selected: tensor<2x2x3xi64>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk, %k_store, %v_store, %selected) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x20x8xbf16>, tensor<2x2x20x6xf32>, tensor<2x2x3xi64>)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: one index set
// Every slot and KV head has its positions.
// ERROR: InputError: 'kv.decode_attention' segments[0].index is tensor<2x3xi64>, expected a tensor of rank 3 [B Hkv R0]
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %k_store: tensor<2x2x20x8xf32>, %v_store: tensor<2x2x20x6xf32>, %selected: tensor<2x3xi64>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk, %k_store, %v_store, %selected) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x20x8xf32>, tensor<2x2x20x6xf32>, tensor<2x3xi64>)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: positions
// As many as the geometry selects.
// ERROR: InputError: 'kv.decode_attention' selects 4 rows, kv.geometry has topk 3
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %k_store: tensor<2x2x20x8xf32>, %v_store: tensor<2x2x20x6xf32>, %selected: tensor<2x2x4xi64>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk, %k_store, %v_store, %selected) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x20x8xf32>, tensor<2x2x20x6xf32>, tensor<2x2x4xi64>)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: type of positions
// They are integers.
// ERROR: InputError: 'kv.decode_attention' segments[0].index is tensor<2x2x3xf32>, expected element type i64
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %k_store: tensor<2x2x20x8xf32>, %v_store: tensor<2x2x20x6xf32>, %selected: tensor<2x2x3xf32>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk, %k_store, %v_store, %selected) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x20x8xf32>, tensor<2x2x20x6xf32>, tensor<2x2x3xf32>)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: heads
// Query heads share KV heads evenly.
// ERROR: InputError: 'kv.decode_attention' 3 query heads are not a multiple of 2 KV heads
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x3x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %k_store: tensor<2x2x20x8xf32>, %v_store: tensor<2x2x20x6xf32>, %selected: tensor<2x2x3xi64>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x3x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk, %k_store, %v_store, %selected) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1>, scale = 0.5 : f64}
      : (tensor<2x3x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x20x8xf32>, tensor<2x2x20x6xf32>, tensor<2x2x3xi64>)
      -> (tensor<2x3x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x3x1x6xf32>
  }
}

// -----

// CASE: scale
// The scale cannot be left out.
// ERROR: InputError: 'kv.decode_attention' op attribute "scale" is expected but not provided
module attributes {kv.geometry = #geometry} {
  func.func @f(%query: tensor<2x4x1x8xf32>, %new_key: tensor<2x2x1x8xf32>, %new_value: tensor<2x2x1x6xf32>, %key: tensor<2x2x9x8xf32>, %value: tensor<2x2x9x6xf32>, %k_cache: tensor<2x2x9x8xf32>, %v_cache: tensor<2x2x9x6xf32>, %k_store: tensor<2x2x20x8xf32>, %v_store: tensor<2x2x20x6xf32>, %selected: tensor<2x2x3xi64>, %position: tensor<2xi64>, %base: tensor<2xi64>, %active: tensor<2xi1>, %topk: index)
      -> tensor<2x4x1x6xf32> {
    %0:3 = "kv.decode_attention"(%query, %new_key, %new_value, %key, %value, %k_cache, %v_cache, %position, %base, %active, %topk, %k_store, %v_store, %selected) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1>}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x20x8xf32>, tensor<2x2x20x6xf32>, tensor<2x2x3xi64>)
      -> (tensor<2x4x1x6xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x6xf32>)
    return %0#0 : tensor<2x4x1x6xf32>
  }
}
