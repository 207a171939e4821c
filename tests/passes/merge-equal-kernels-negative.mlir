#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
#id = affine_map<(i, j) -> (i, j)>
#low = affine_map<(i, j) -> (0, j)>
!h = tensor<2x8xf32>

// -----

// CASE: constants in the last bit
// PASSES: merge-equal-kernels
module attributes {kv.geometry = #geometry} {
  // Constants that print alike in six digits are still different numbers.
  // CHECK: func.func private @first
  // CHECK: func.func private @second
  // CHECK: call @first
  // CHECK: call @second
  func.func private @first(%a: !h {sscc.input = "x0"}) -> (!h {sscc.output = "y0"}) attributes {sscc.kernel} {
    %c = arith.constant dense<0.1> : !h
    %r = arith.mulf %a, %c : !h
    return %r : !h
  }
  func.func private @second(%a: !h {sscc.input = "x0"}) -> (!h {sscc.output = "y0"}) attributes {sscc.kernel} {
    %c = arith.constant dense<0.10000001> : !h
    %r = arith.mulf %a, %c : !h
    return %r : !h
  }
  func.func public @decode(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @first(%h) : (!h) -> !h
    %1 = func.call @second(%0) : (!h) -> !h
    return %1 : !h
  }
}

// -----

// CASE: access maps
// PASSES: merge-equal-kernels
module attributes {kv.geometry = #geometry} {
  // One copies, the other spreads row 0.
  // CHECK: func.func private @first
  // CHECK: func.func private @second
  // CHECK: call @first
  // CHECK: call @second
  func.func private @first(%a: !h {sscc.input = "x0"}) -> (!h {sscc.output = "y0"}) attributes {sscc.kernel} {
    %e = tensor.empty() : !h
    %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : !h) outs(%e : !h) {
    ^bb0(%x: f32, %o: f32):
      linalg.yield %x : f32
    } -> !h
    return %r : !h
  }
  func.func private @second(%a: !h {sscc.input = "x0"}) -> (!h {sscc.output = "y0"}) attributes {sscc.kernel} {
    %e = tensor.empty() : !h
    %r = linalg.generic {indexing_maps = [#low, #id], iterator_types = ["parallel", "parallel"]} ins(%a : !h) outs(%e : !h) {
    ^bb0(%x: f32, %o: f32):
      linalg.yield %x : f32
    } -> !h
    return %r : !h
  }
  func.func public @decode(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @first(%h) : (!h) -> !h
    %1 = func.call @second(%0) : (!h) -> !h
    return %1 : !h
  }
}

// -----

// CASE: attributes
// PASSES: merge-equal-kernels
module attributes {kv.geometry = #geometry} {
  // Attention with another scale.
  // CHECK: func.func private @first
  // CHECK: func.func private @second
  // CHECK: call @first
  // CHECK: call @second
  func.func private @first(%q: tensor<2x2x1x8xf32> {sscc.input = "x0"}, %k: tensor<2x2x4x8xf32> {sscc.input = "x1"}, %v: tensor<2x4xi1> {sscc.input = "x2"}) -> (tensor<2x2x1x8xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %r = "kv.cached_attention"(%q, %k, %k, %v) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.5 : f64} : (tensor<2x2x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>, tensor<2x4xi1>) -> tensor<2x2x1x8xf32>
    return %r : tensor<2x2x1x8xf32>
  }
  func.func private @second(%q: tensor<2x2x1x8xf32> {sscc.input = "x0"}, %k: tensor<2x2x4x8xf32> {sscc.input = "x1"}, %v: tensor<2x4xi1> {sscc.input = "x2"}) -> (tensor<2x2x1x8xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %r = "kv.cached_attention"(%q, %k, %k, %v) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.25 : f64} : (tensor<2x2x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>, tensor<2x4xi1>) -> tensor<2x2x1x8xf32>
    return %r : tensor<2x2x1x8xf32>
  }
  func.func public @decode(%q: tensor<2x2x1x8xf32> {sscc.input = "q"}, %k: tensor<2x2x4x8xf32> {sscc.state = "k"}, %v: tensor<2x4xi1> {sscc.input = "v"})
      -> (tensor<2x2x1x8xf32> {sscc.output = "logits"}) {
    %0 = func.call @first(%q, %k, %v) : (tensor<2x2x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x4xi1>) -> tensor<2x2x1x8xf32>
    %1 = func.call @second(%0, %k, %v) : (tensor<2x2x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x4xi1>) -> tensor<2x2x1x8xf32>
    return %1 : tensor<2x2x1x8xf32>
  }
}

// -----

// CASE: types
// PASSES: merge-equal-kernels
module attributes {kv.geometry = #geometry} {
  // The same operation in bf16.
  // CHECK: func.func private @first
  // CHECK: func.func private @second
  // CHECK: call @first
  // CHECK: call @second
  func.func private @first(%a: !h {sscc.input = "x0"}) -> (!h {sscc.output = "y0"}) attributes {sscc.kernel} {
    %r = math.exp %a : !h
    return %r : !h
  }
  func.func private @second(%a: tensor<2x8xbf16> {sscc.input = "x0"}) -> (tensor<2x8xbf16> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %r = math.exp %a : tensor<2x8xbf16>
    return %r : tensor<2x8xbf16>
  }
  func.func public @decode(%h: !h {sscc.input = "hidden"}, %g: tensor<2x8xbf16> {sscc.input = "other"}) -> (!h {sscc.output = "logits"}, tensor<2x8xbf16> {sscc.output = "rest"}) {
    %0 = func.call @first(%h) : (!h) -> !h
    %1 = func.call @second(%g) : (tensor<2x8xbf16>) -> tensor<2x8xbf16>
    return %0, %1 : !h, tensor<2x8xbf16>
  }
}

// -----

// CASE: operand order
// PASSES: merge-equal-kernels
module attributes {kv.geometry = #geometry} {
  // a - b is not b - a.
  // CHECK: func.func private @first
  // CHECK: func.func private @second
  // CHECK: call @first
  // CHECK: call @second
  func.func private @first(%a: !h {sscc.input = "x0"}, %b: !h {sscc.input = "x1"}) -> (!h {sscc.output = "y0"}) attributes {sscc.kernel} {
    %r = arith.subf %a, %b : !h
    return %r : !h
  }
  func.func private @second(%a: !h {sscc.input = "x0"}, %b: !h {sscc.input = "x1"}) -> (!h {sscc.output = "y0"}) attributes {sscc.kernel} {
    %r = arith.subf %b, %a : !h
    return %r : !h
  }
  func.func public @decode(%h: !h {sscc.input = "hidden"}, %g: !h {sscc.input = "other"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @first(%h, %g) : (!h, !h) -> !h
    %1 = func.call @second(%0, %g) : (!h, !h) -> !h
    return %1 : !h
  }
}

// -----

// CASE: operand order of a sum
// PASSES: merge-equal-kernels
module attributes {kv.geometry = #geometry} {
  // Nor is it known here that a + b is b + a: another order of computing stays apart.
  // CHECK: func.func private @first
  // CHECK: func.func private @second
  // CHECK: call @first
  // CHECK: call @second
  func.func private @first(%a: !h {sscc.input = "x0"}, %b: !h {sscc.input = "x1"}) -> (!h {sscc.output = "y0"}) attributes {sscc.kernel} {
    %r = arith.addf %a, %b : !h
    return %r : !h
  }
  func.func private @second(%a: !h {sscc.input = "x0"}, %b: !h {sscc.input = "x1"}) -> (!h {sscc.output = "y0"}) attributes {sscc.kernel} {
    %r = arith.addf %b, %a : !h
    return %r : !h
  }
  func.func public @decode(%h: !h {sscc.input = "hidden"}, %g: !h {sscc.input = "other"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @first(%h, %g) : (!h, !h) -> !h
    %1 = func.call @second(%0, %g) : (!h, !h) -> !h
    return %1 : !h
  }
}

// -----

// CASE: what is returned
// PASSES: merge-equal-kernels
module attributes {kv.geometry = #geometry} {
  // Equal operations, but another of the two results.
  // CHECK: func.func private @first
  // CHECK: func.func private @second
  // CHECK: call @first
  // CHECK: call @second
  func.func private @first(%a: !h {sscc.input = "x0"}) -> (!h {sscc.output = "y0"}) attributes {sscc.kernel} {
    %r = math.exp %a : !h
    %s = math.tanh %a : !h
    return %r : !h
  }
  func.func private @second(%a: !h {sscc.input = "x0"}) -> (!h {sscc.output = "y0"}) attributes {sscc.kernel} {
    %r = math.exp %a : !h
    %s = math.tanh %a : !h
    return %s : !h
  }
  func.func public @decode(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @first(%h) : (!h) -> !h
    %1 = func.call @second(%0) : (!h) -> !h
    return %1 : !h
  }
}
