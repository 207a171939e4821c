#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
#id = affine_map<(i, j) -> (i, j)>
!h = tensor<2x8xf32>

// -----

// CASE: equal bodies
// PASSES: merge-equal-kernels
module attributes {kv.geometry = #geometry} {
  // Names of functions and values, locations and the place of a call do not matter; the first kernel stays.
  // CHECK-LABEL: func.func private @exp.0(
  // CHECK-NOT: @exp.1
  // CHECK-LABEL: func.func public @decode(
  // CHECK: scf.for
  // CHECK-NEXT: func.call @exp.0(
  // CHECK: call @exp.0(
  // CHECK-NOT: @exp.1
  func.func private @exp.0(%a: !h {sscc.input = "x0"}) -> (!h {sscc.output = "y0"}) attributes {sscc.kernel} {
    %e = tensor.empty() : !h
    %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : !h) outs(%e : !h) {
    ^bb0(%x: f32, %o: f32):
      %0 = math.exp %x : f32
      linalg.yield %0 : f32
    } -> !h loc("layers.0"("model.py":3:0))
    return %r : !h
  }
  func.func private @exp.1(%b: !h {sscc.input = "x0"}) -> (!h {sscc.output = "y0"}) attributes {sscc.kernel} {
    %empty = tensor.empty() : !h
    %result = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%b : !h) outs(%empty : !h) {
    ^bb0(%in: f32, %out: f32):
      %1 = math.exp %in : f32
      linalg.yield %1 : f32
    } -> !h loc("layers.1"("model.py":3:0))
    return %result : !h
  }
  func.func public @decode(%h: !h {sscc.input = "hidden"}, %lo: index {sscc.input = "phase"}, %hi: index {sscc.input = "chunk"}) -> (!h {sscc.output = "logits"}) {
    %one = arith.constant 1 : index
    %0 = scf.for %i = %lo to %hi step %one iter_args(%x = %h) -> !h {
      %1 = func.call @exp.1(%x) : (!h) -> !h
      scf.yield %1 : !h
    }
    %2 = func.call @exp.0(%0) : (!h) -> !h
    return %2 : !h
  }
}

// -----

// CASE: kernels of layers
// PASSES: merge-equal-kernels
module attributes {kv.geometry = #geometry} {
  // Which layer a kernel was made for is not part of what it does: neither its number nor its weights' names. Its calls
  // keep their own weights.
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: {sscc.weight = "layers.0.w"}
  // CHECK-NOT: @decode.layer.1
  // CHECK-NOT: @decode.layer.2(
  // CHECK-LABEL: func.func public @decode(
  // CHECK-SAME: %[[W0:arg1]]: tensor<2x8xf32> {sscc.weight = "layers.0.w"}, %[[W1:arg2]]: {{.*}}, %[[W2:arg3]]:
  // CHECK-NEXT: %[[A:.+]] = call @decode.layer.0(%arg0, %[[W0]])
  // CHECK-NEXT: %[[B:.+]] = call @decode.layer.0(%[[A]], %[[W1]])
  // CHECK-NEXT: %[[C:.+]] = call @decode.layer.0(%[[B]], %[[W2]])
  // CHECK-NEXT: return %[[C]]
  func.func private @decode.layer.0(%h: !h {sscc.input = "hidden"}, %w: !h {sscc.weight = "layers.0.w"}) -> (!h {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.kernel, sscc.layer = 0 : i64} {
    %y = arith.addf %h, %w : !h loc("layers.0")
    return %y : !h
  }
  func.func private @decode.layer.1(%h: !h {sscc.input = "hidden"}, %w: !h {sscc.weight = "layers.1.w"}) -> (!h {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.kernel, sscc.layer = 1 : i64} {
    %y = arith.addf %h, %w : !h loc("layers.1")
    return %y : !h
  }
  func.func private @decode.layer.2(%h: !h {sscc.input = "hidden"}, %w: !h {sscc.weight = "layers.2.w"}) -> (!h {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.kernel, sscc.layer = 2 : i64} {
    %y = arith.addf %h, %w : !h loc("layers.2")
    return %y : !h
  }
  func.func public @decode(%h: !h {sscc.input = "hidden"}, %w0: !h {sscc.weight = "layers.0.w"}, %w1: !h {sscc.weight = "layers.1.w"}, %w2: !h {sscc.weight = "layers.2.w"})
      -> (!h {sscc.output = "logits"}) {
    %0 = func.call @decode.layer.0(%h, %w0) : (!h, !h) -> !h
    %1 = func.call @decode.layer.1(%0, %w1) : (!h, !h) -> !h
    %2 = func.call @decode.layer.2(%1, %w2) : (!h, !h) -> !h
    return %2 : !h
  }
}

// -----

// CASE: kernels with loops
// PASSES: merge-equal-kernels
module attributes {kv.geometry = #geometry} {
  // Phases of prefill: equal down to the inside of their loops, or not. What the loops are called with differs for all.
  // CHECK: func.func private @phase.0(
  // CHECK-NOT: func.func private @phase.1(
  // CHECK: func.func private @phase.2(
  // CHECK-LABEL: func.func public @prefill(
  // CHECK: call @phase.0(
  // CHECK: call @phase.0(
  // CHECK: call @phase.2(
  func.func private @phase.0(%h: !h {sscc.state = "hidden"}, %n: index {sscc.input = "chunks"}) -> (!h {sscc.state = "hidden"}) attributes {sscc.kernel} {
    %zero = arith.constant 0 : index
    %one = arith.constant 1 : index
    %r = scf.for %i = %zero to %n step %one iter_args(%x = %h) -> !h {
      %y = math.exp %x : !h
      scf.yield %y : !h
    }
    return %r : !h
  }
  func.func private @phase.1(%h: !h {sscc.state = "hidden"}, %n: index {sscc.input = "chunks"}) -> (!h {sscc.state = "hidden"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %loop = scf.for %step = %c0 to %n step %c1 iter_args(%before = %h) -> !h {
      %after = math.exp %before : !h
      scf.yield %after : !h
    }
    return %loop : !h
  }
  func.func private @phase.2(%h: !h {sscc.state = "hidden"}, %n: index {sscc.input = "chunks"}) -> (!h {sscc.state = "hidden"}) attributes {sscc.kernel} {
    %zero = arith.constant 0 : index
    %one = arith.constant 1 : index
    %r = scf.for %i = %zero to %n step %one iter_args(%x = %h) -> !h {
      %y = math.exp %h : !h
      scf.yield %y : !h
    }
    return %r : !h
  }
  func.func public @prefill(%h: !h {sscc.state = "hidden"}, %n: index {sscc.input = "length"}) -> (!h {sscc.state = "hidden"}) {
    %0 = func.call @phase.0(%h, %n) : (!h, index) -> !h
    %1 = func.call @phase.1(%0, %n) : (!h, index) -> !h
    %2 = func.call @phase.2(%1, %n) : (!h, index) -> !h
    return %2 : !h
  }
}
