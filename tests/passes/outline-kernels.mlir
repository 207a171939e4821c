#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
!h = tensor<2x8xf32>

// -----

// CASE: a kernel for every operation
// PASSES: outline-kernels
// LOCATIONS
module attributes {kv.geometry = #geometry} {
  // The entry is a schedule of calls, in program order, each where its operation stood in the model.
  // CHECK-LABEL: func.func public @decode(
  // CHECK-SAME: %[[H:arg0]]: tensor<2x8xf32> {sscc.input = "hidden"}
  // CHECK-NEXT: %[[A:.+]] = call @exp.0(%[[H]]) {{.*}} loc("layers.0"("model.py":5:0))
  // CHECK-NEXT: %[[B:.+]] = call @mulf.1(%[[A]], %[[H]]) {{.*}} loc("layers.0"("model.py":6:0))
  // CHECK-NEXT: return %[[B]]
  //
  // A kernel is named after what it computes last, and holds the operation with what it fills its result with.
  // CHECK-LABEL: func.func private @exp.0(
  // CHECK-SAME: %arg0: tensor<2x8xf32> {sscc.input = "x0"}
  // CHECK-SAME: -> (tensor<2x8xf32> {sscc.output = "y0"}) attributes {sscc.kernel}
  // CHECK-NEXT: %[[E:.+]] = tensor.empty()
  // CHECK-NEXT: %[[R:.+]] = linalg.generic {{.*}} ins(%arg0 : {{.*}} outs(%[[E]] :
  // CHECK: math.exp
  // CHECK: return %[[R]]
  // CHECK-LABEL: func.func private @mulf.1(
  // CHECK-SAME: {sscc.input = "x1"}
  //
  // The parts are gone.
  // CHECK-NOT: layer.0(
  func.func private @decode.layer.0(%h: !h {sscc.input = "hidden"}) -> !h {
    %e = tensor.empty() : !h
    %a = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
        ins(%h : !h) outs(%e : !h) {
    ^bb0(%x: f32, %o: f32):
      %0 = math.exp %x : f32
      linalg.yield %0 : f32
    } -> !h loc("layers.0"("model.py":5:0))
    %b = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
        ins(%a, %h : !h, !h) outs(%e : !h) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %0 = arith.mulf %x, %y : f32
      linalg.yield %0 : f32
    } -> !h loc("layers.0"("model.py":6:0))
    return %b : !h
  }
  func.func public @decode(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @decode.layer.0(%h) : (!h) -> !h
    return %0 : !h
  }
}

// -----

// CASE: a part called twice
// PASSES: outline-kernels
module attributes {kv.geometry = #geometry} {
  // Inlined twice, with the caller's values each time.
  // CHECK-LABEL: func.func public @decode(
  // CHECK-NEXT: %[[A:.+]] = call @exp.0(%arg0)
  // CHECK-NEXT: %[[B:.+]] = call @exp.1(%[[A]])
  // CHECK-NEXT: return %[[B]]
  func.func private @decode.layer.0(%h: !h {sscc.input = "hidden"}) -> !h {
    %e = tensor.empty() : !h
    %a = linalg.exp ins(%h : !h) outs(%e : !h) -> !h
    return %a : !h
  }
  func.func public @decode(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @decode.layer.0(%h) : (!h) -> !h
    %1 = func.call @decode.layer.0(%0) : (!h) -> !h
    return %1 : !h
  }
}

// -----

// CASE: inside loops and branches
// PASSES: outline-kernels
module attributes {kv.geometry = #geometry} {
  // What a loop computes becomes a call inside the loop; an index that it reads becomes a scalar parameter.
  // CHECK-LABEL: func.func public @prefill(
  // CHECK: scf.for %[[I:.+]] = %arg1 to %arg2 step %{{.+}} iter_args(%[[X:.+]] = %arg0)
  // CHECK-NEXT: func.call @kept_positions.0(%[[I]], %arg1) : (index, index) -> tensor<1x4xi64>
  // CHECK-NEXT: func.call @exp.1(%[[X]])
  // CHECK: scf.if
  // CHECK-NEXT: func.call @exp.2(
  // CHECK-LABEL: func.func private @kept_positions.0(%arg0: index {sscc.input = "x0"}, %arg1: index {sscc.input = "x1"}) -> (tensor<1x4xi64> {sscc.output = "y0"})
  // CHECK-NEXT: "kv.kept_positions"(%arg0, %arg1)
  func.func public @prefill(%h: !h {sscc.input = "hidden"}, %lo: index {sscc.input = "phase"}, %hi: index {sscc.input = "chunk"}) -> (!h {sscc.output = "logits"}) {
    %one = arith.constant 1 : index
    %0 = scf.for %i = %lo to %hi step %one iter_args(%x = %h) -> !h {
      %e = tensor.empty() : !h
      %p = "kv.kept_positions"(%i, %lo) : (index, index) -> tensor<1x4xi64>
      %a = linalg.exp ins(%x : !h) outs(%e : !h) -> !h
      scf.yield %a : !h
    }
    %c = arith.cmpi eq, %lo, %hi : index
    %1 = scf.if %c -> !h {
      %e = tensor.empty() : !h
      %a = linalg.exp ins(%0 : !h) outs(%e : !h) -> !h
      scf.yield %a : !h
    } else {
      scf.yield %0 : !h
    }
    return %1 : !h
  }
}

// -----

// CASE: a constant result
// PASSES: outline-kernels
module attributes {kv.geometry = #geometry} {
  // A part may return what it only names; the entry names it then.
  // CHECK-LABEL: func.func public @decode(
  // CHECK: %[[C:.+]] = arith.constant dense<2.000000e+00>
  // CHECK: return %[[C]]
  func.func private @decode.head(%h: !h {sscc.input = "hidden"}) -> !h {
    %c = arith.constant dense<2.0> : !h
    return %c : !h
  }
  func.func public @decode(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @decode.head(%h) : (!h) -> !h
    return %0 : !h
  }
}

// -----

// CASE: a kernel for every part
// PASSES: outline-kernels{granularity=layer}
// LOCATIONS
module attributes {kv.geometry = #geometry} {
  // What the entry calls is a kernel, with whatever that calls inlined, also inside loops; what nobody calls any more is
  // gone. Names, arguments and locations stay.
  // CHECK-LABEL: func.func private @prefill.phase.layer.0(
  // CHECK-SAME: %[[H:arg0]]: tensor<2x8xf32> {sscc.state = "hidden"}
  // CHECK-SAME: %[[N:arg1]]: index {sscc.input = "chunks"}
  // CHECK-SAME: attributes {sscc.kernel}
  // CHECK: %[[TWICE:.+]] = arith.addi %[[N]], %[[N]]
  // CHECK: scf.for %{{.+}} = %{{.+}} to %[[TWICE]]
  // CHECK: linalg.exp {{.*}} loc("layers.0"("model.py":5:0))
  // CHECK-NOT: call
  // CHECK-LABEL: func.func public @prefill(
  // CHECK-NOT: sscc.kernel
  // CHECK-NEXT: %[[R:.+]] = call @prefill.phase.layer.0(%arg0, %arg1)
  // CHECK-NEXT: return %[[R]]
  // CHECK-NOT: func.func
  func.func private @progress(%n: index {sscc.input = "n"}) -> (index {sscc.output = "m"}) {
    %m = arith.addi %n, %n : index
    return %m : index
  }
  func.func private @prefill.layer.0(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"}) {
    %e = tensor.empty() : !h
    %a = linalg.exp ins(%h : !h) outs(%e : !h) -> !h loc("layers.0"("model.py":5:0))
    return %a : !h
  }
  func.func private @unused(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"}) {
    return %h : !h
  }
  func.func private @prefill.phase.layer.0(%h: !h {sscc.state = "hidden"}, %n: index {sscc.input = "chunks"}) -> (!h {sscc.state = "hidden"}) {
    %m = func.call @progress(%n) : (index) -> index
    %zero = arith.constant 0 : index
    %one = arith.constant 1 : index
    %r = scf.for %i = %zero to %m step %one iter_args(%x = %h) -> !h {
      %y = func.call @prefill.layer.0(%x) : (!h) -> !h
      scf.yield %y : !h
    }
    return %r : !h
  }
  func.func public @prefill(%h: !h {sscc.state = "hidden"}, %n: index {sscc.input = "length"}) -> (!h {sscc.state = "hidden"}) {
    %0 = func.call @prefill.phase.layer.0(%h, %n) : (!h, index) -> !h
    return %0 : !h
  }
}

// -----

// CASE: a part that both entries call
// PASSES: outline-kernels{granularity=layer}
module attributes {kv.geometry = #geometry} {
  // One kernel. A part that another kernel also calls is inlined there, and a kernel here.
  // CHECK-LABEL: func.func private @head(
  // CHECK-SAME: attributes {sscc.kernel}
  // CHECK-LABEL: func.func private @both(
  // CHECK-SAME: attributes {sscc.kernel}
  // CHECK: linalg.exp
  // CHECK: linalg.tanh
  // CHECK-LABEL: func.func public @prefill(
  // CHECK-NEXT: call @both(
  // CHECK-LABEL: func.func public @decode(
  // CHECK-NEXT: call @head(
  func.func private @head(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "logits"}) {
    %e = tensor.empty() : !h
    %a = linalg.tanh ins(%h : !h) outs(%e : !h) -> !h
    return %a : !h
  }
  func.func private @both(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "logits"}) {
    %e = tensor.empty() : !h
    %a = linalg.exp ins(%h : !h) outs(%e : !h) -> !h
    %b = func.call @head(%a) : (!h) -> !h
    return %b : !h
  }
  func.func public @prefill(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @both(%h) : (!h) -> !h
    return %0 : !h
  }
  func.func public @decode(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @head(%h) : (!h) -> !h
    return %0 : !h
  }
}

// -----

// CASE: what nobody reads stays inside
// PASSES: outline-kernels
module attributes {kv.geometry = #geometry} {
  // CHECK-LABEL: func.func public @prefill(
  // CHECK: %{{[a-z0-9_]+}} = call @causal_attention.0(
  // CHECK-LABEL: func.func private @causal_attention.0(
  // CHECK-SAME: -> (tensor<1x4x4x8xf32> {sscc.output = "y0"})
  func.func public @prefill(%q: tensor<1x4x4x8xf32> {sscc.input = "q"}, %k: tensor<1x2x8x8xf32> {sscc.input = "k"}, %start: index {sscc.input = "start"}, %n: index {sscc.input = "length"})
      -> (tensor<1x4x4x8xf32> {sscc.output = "o"}) {
    %o:2 = "kv.causal_attention"(%q, %k, %k, %start, %n) {scale = 0.5 : f64}
      : (tensor<1x4x4x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, index, index) -> (tensor<1x4x4x8xf32>, tensor<1x4x4x1xf32>)
    return %o#0 : tensor<1x4x4x8xf32>
  }
}
