#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}
!k = tensor<2x2x4x8xf32>
!ks = tensor<1x2x8x8xf32>

// -----

// CASE: what is no kernel
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // CHECK-LABEL: func.func private @part(
  // CHECK-NEXT: "kv.row"
  // CHECK-NEXT: "kv.update"
  // CHECK-NEXT: "kv.validity"
  // CHECK-NEXT: "kv.cached_attention"
  func.func private @part(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %k: !k {sscc.state = "k_cache"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"},
      %p: tensor<2xi64> {sscc.input = "position"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"}) -> (tensor<2x4x1x8xf32> {sscc.output = "o"}) {
    %row = "kv.row"(%p, %p, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%k, %kn, %row, %a) : (!k, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !k
    %valid = "kv.validity"(%p, %p, %a, %n) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x4xi1>
    %o = "kv.cached_attention"(%q, %k1, %k1, %valid) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !k, !k, tensor<2x4xi1>) -> tensor<2x4x1x8xf32>
    return %o : tensor<2x4x1x8xf32>
  }
}

// -----

// CASE: a module without geometry
// PASSES: fuse-compressed-attention
// ERROR: level.no-facts attributes=sscc.program,kv.geometry
module {
  func.func private @k(%h: !k {sscc.input = "h"}) -> (!k {sscc.output = "h"}) attributes {sscc.kernel} {
    return %h : !k
  }
}
