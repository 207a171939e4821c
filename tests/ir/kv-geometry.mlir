// The geometry is an attribute of the module, checked by every operation that needs it.

// CASE: found in an outer module
// The nearest module around an operation that has a geometry gives it.
// CHECK: kv.geometry = {max_context = 20 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", recent = 4 : i64
// CHECK: "kv.row"
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64}} {
  module {
    func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
      %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
      return %0 : tensor<2xi64>
    }
  }
}

// -----

// CASE: missing
// An operation needs the cache it is about.
// ERROR: InputError: 'kv.row' no enclosing module has the attribute kv.geometry
module {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: not a dictionary
// The attribute is a dictionary.
// ERROR: InputError: 'kv.row' kv.geometry is invalid: the attribute is 3 : i64, expected a dictionary
module attributes {kv.geometry = 3 : i64} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: missing field
// Every field stands there.
// ERROR: InputError: 'kv.row' kv.geometry is invalid: obs is missing
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64}} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: unknown field
// No other field does.
// ERROR: InputError: 'kv.row' kv.geometry is invalid: unknown field budget (known fields: sink, recent, topk, obs, pool, pool_mode, max_context, rows, dtype, window, policy, key_bits, fetch, layer_topk, window_stride, spare)
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64, budget = 9 : i64}} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: integer
// Sizes are integers.
// ERROR: InputError: 'kv.row' kv.geometry is invalid: sink is 2.000000e+00 : f32, expected an integer
module attributes {kv.geometry = {sink = 2.0 : f32, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64}} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: string
// The pool mode is a string.
// ERROR: InputError: 'kv.row' kv.geometry is invalid: pool_mode is 1 : i64, expected a string
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = 1 : i64, max_context = 20 : i64}} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: no ring
// A ring has at least one row.
// ERROR: InputError: 'kv.row' kv.geometry is invalid: KV recent must be at least 1, got 0
module attributes {kv.geometry = {sink = 2 : i64, recent = 0 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64}} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: negative
// Sizes are not negative.
// ERROR: InputError: 'kv.row' kv.geometry is invalid: KV topk must be at least 0, got -1
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = -1 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64}} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: even pool
// A pooling kernel has a middle.
// ERROR: InputError: 'kv.row' kv.geometry is invalid: KV pool must be odd, got 4
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 4 : i64, pool_mode = "avg", max_context = 20 : i64}} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: rows may be left out
// They are compact then.
// CHECK: "kv.update"({{.*}}){{.*}} -> tensor<2x2x9x8xf32>
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64}} {
  func.func @f(%cache: tensor<2x2x9x8xf32>, %new: tensor<2x2x1x8xf32>, %row: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x2x9x8xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x9x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x9x8xf32>
    return %0 : tensor<2x2x9x8xf32>
  }
}

// -----

// CASE: indexed rows
// The cache has all rows; attention sees those of the index too.
// CHECK: "kv.update"({{.*}}){{.*}} -> tensor<2x2x9x8xf32>
// CHECK: "kv.validity"({{.*}}){{.*}} -> tensor<2x12xi1>
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64, rows = "indexed"}} {
  func.func @f(%cache: tensor<2x2x9x8xf32>, %new: tensor<2x2x1x8xf32>, %row: tensor<2xi64>, %active: tensor<2xi1>, %topk: index, %index: tensor<2x2x3xi64>) -> (tensor<2x2x9x8xf32>, tensor<2x12xi1>) {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x9x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x9x8xf32>
    %1 = "kv.validity"(%row, %row, %active, %topk, %index) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x3xi64>) -> tensor<2x12xi1>
    return %0, %1 : tensor<2x2x9x8xf32>, tensor<2x12xi1>
  }
}

// -----

// CASE: rows that every query chooses
// The cache itself has sinks and ring alone; attention sees all rows.
// CHECK: "kv.update"({{.*}}){{.*}} -> tensor<2x2x6x8xf32>
// CHECK: "kv.validity"({{.*}}){{.*}} -> tensor<2x9xi1>
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64, rows = "indexed", policy = "query", key_bits = 2 : i64}} {
  func.func @f(%cache: tensor<2x2x6x8xf32>, %new: tensor<2x2x1x8xf32>, %row: tensor<2xi64>, %active: tensor<2xi1>, %topk: index) -> (tensor<2x2x6x8xf32>, tensor<2x9xi1>) {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x6x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x6x8xf32>
    %1 = "kv.validity"(%row, %row, %active, %topk) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x9xi1>
    return %0, %1 : tensor<2x2x6x8xf32>, tensor<2x9xi1>
  }
}

// -----

// CASE: a cache without rows for what is selected
// ERROR: InputError: 'kv.update' cache is tensor<2x2x6x8xf32>: dimension 2 (T) is 6, expected 9
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64, rows = "indexed"}} {
  func.func @f(%cache: tensor<2x2x6x8xf32>, %new: tensor<2x2x1x8xf32>, %row: tensor<2xi64>, %active: tensor<2xi1>) -> tensor<2x2x6x8xf32> {
    %0 = "kv.update"(%cache, %new, %row, %active) : (tensor<2x2x6x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x6x8xf32>
    return %0 : tensor<2x2x6x8xf32>
  }
}

// -----

// CASE: unknown rows
// There are two places for them.
// ERROR: InputError: 'kv.row' kv.geometry is invalid: KV rows must be one of compact, indexed, got 'paged'
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64, rows = "paged"}} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: pool mode
// There are two ways to pool.
// ERROR: InputError: 'kv.row' kv.geometry is invalid: KV pool mode must be one of avg, max, got 'sum'
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "sum", max_context = 20 : i64}} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: context
// The cache is not longer than the context.
// ERROR: InputError: 'kv.row' kv.geometry is invalid: sink + recent = 2 + 19 = 21 rows exceed max-context 20: lower --kv-recent or raise --max-context
module attributes {kv.geometry = {sink = 2 : i64, recent = 19 : i64, topk = 0 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64}} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: top-K
// Nor is there more to select than there are candidates.
// ERROR: InputError: 'kv.row' kv.geometry is invalid: topk = 15 exceeds max-context - sink - recent = 20 - 2 - 4 = 14: lower --kv-topk or raise --max-context
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 15 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64}} {
  func.func @f(%position: tensor<2xi64>, %base: tensor<2xi64>, %topk: index) -> tensor<2xi64> {
    %0 = "kv.row"(%position, %base, %topk) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    return %0 : tensor<2xi64>
  }
}

// -----

// CASE: a group
// An operation that names a group is about that group's cache: here of 5 rows.
// CHECK: "kv.validity"(%{{.*}}) {kv.group = "window5"}
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64}, kv.groups = {window5 = {sink = 0 : i64, recent = 5 : i64, topk = 0 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64, window = 5 : i64}}} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<2xi1>, %topk: index) -> tensor<2x5xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk) {kv.group = "window5"} : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x5xi1>
    return %0 : tensor<2x5xi1>
  }
}

// -----

// CASE: a group that is not there
// Its geometry must be somewhere.
// ERROR: InputError: 'kv.validity' its kv.group 'window6' is not in the module's kv.groups
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64}, kv.groups = {window5 = {sink = 0 : i64, recent = 5 : i64, topk = 0 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64, window = 5 : i64}}} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<2xi1>, %topk: index) -> tensor<2x5xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk) {kv.group = "window6"} : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x5xi1>
    return %0 : tensor<2x5xi1>
  }
}

// -----

// CASE: no groups
// The module's own geometry is not one of them.
// ERROR: InputError: 'kv.validity' its kv.group 'window5' is not in the module's kv.groups
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64}} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<2xi1>, %topk: index) -> tensor<2x5xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk) {kv.group = "window5"} : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x5xi1>
    return %0 : tensor<2x5xi1>
  }
}

// -----

// CASE: a group that is no name
// Groups have names.
// ERROR: InputError: 'kv.validity' kv.group is 5 : i64, expected a name
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64}, kv.groups = {window5 = {sink = 0 : i64, recent = 5 : i64, topk = 0 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64, window = 5 : i64}}} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<2xi1>, %topk: index) -> tensor<2x5xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk) {kv.group = 5 : i64} : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x5xi1>
    return %0 : tensor<2x5xi1>
  }
}

// -----

// CASE: groups that are no dictionary
// Groups are found by name.
// ERROR: InputError: 'kv.validity' kv.groups is 3 : i64, expected a dictionary
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64}, kv.groups = 3 : i64} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<2xi1>, %topk: index) -> tensor<2x5xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk) {kv.group = "window5"} : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x5xi1>
    return %0 : tensor<2x5xi1>
  }
}

// -----

// CASE: a window beside sinks
// A window of so many positions is a ring of as many rows.
// ERROR: InputError: 'kv.validity' kv.groups.window5 is invalid: a layer that attends within a window of 5 positions keeps a ring of 5 rows, not sink 1, recent 5 and topk 0
module attributes {kv.geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64}, kv.groups = {window5 = {sink = 1 : i64, recent = 5 : i64, topk = 0 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", max_context = 20 : i64, window = 5 : i64}}} {
  func.func @f(%position: tensor<2xi64>, %active: tensor<2xi1>, %topk: index) -> tensor<2x5xi1> {
    %0 = "kv.validity"(%position, %position, %active, %topk) {kv.group = "window5"} : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x5xi1>
    return %0 : tensor<2x5xi1>
  }
}
