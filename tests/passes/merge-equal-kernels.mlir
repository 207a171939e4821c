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
