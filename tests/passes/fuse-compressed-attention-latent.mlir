// Latent rows of 8 numbers, of which values are the first 6. B 2, H 4; the cache has 1 + 1 + 2 = 4 rows.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
#encoded = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64, dtype = "int8"}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}
!q = tensor<2x4x1x8xf32>
!o = tensor<2x4x1x6xf32>
!c = tensor<2x1x4x8xf32>
!e = tensor<2x1x4x12xi8>
!n = tensor<2x1x1x8xf32>
!v = tensor<2x1x4x6xf32>
!i = tensor<2xi64>
!f = tensor<2xi1>

// -----

// CASE: one cache
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // CHECK-LABEL: func.func private @k(
  // CHECK-NEXT: %[[O:.+]]:2 = "kv.decode_attention"(%arg0, %arg1, %arg2, %arg2, %arg3, %arg4, %arg5, %arg6) {operandSegmentSizes = array<i32: 1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0>, scale = 5.000000e-01 : f64}
  // CHECK-NEXT: return %[[O]]#0, %[[O]]#1
  func.func private @k(%q: !q {sscc.input = "q"}, %new: !n {sscc.input = "new"}, %c: !c {sscc.state = "latent_cache"}, %p: !i {sscc.input = "position"},
      %t: !i {sscc.input = "base"}, %a: !f {sscc.input = "active"}, %n: index {sscc.input = "topk"}) -> (!o {sscc.output = "o"}, !c {sscc.state = "latent_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (!i, !i, index) -> !i
    %c1 = "kv.update"(%c, %new, %row, %a) : (!c, !n, !i, !f) -> !c
    %valid = "kv.validity"(%p, %t, %a, %n) : (!i, !i, !f, index) -> tensor<2x4xi1>
    %o = "kv.cached_attention"(%q, %c1, %valid) {scale = 0.5 : f64, operandSegmentSizes = array<i32: 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (!q, !c, tensor<2x4xi1>) -> !o
    return %o, %c1 : !o, !c
  }
}

// -----

// CASE: encoded rows
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #encoded, sscc.program = #program} {
  // CHECK-LABEL: func.func private @k(
  // CHECK-NEXT: %[[O:.+]]:2 = "kv.decode_attention"(%arg0, %arg1, %arg2, %arg2, %arg3, %arg4, %arg5, %arg6) {operandSegmentSizes = array<i32: 1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0>, scale = 5.000000e-01 : f64}
  // CHECK-NEXT: return %[[O]]#0, %[[O]]#1
  func.func private @k(%q: !q {sscc.input = "q"}, %new: !n {sscc.input = "new"}, %c: !e {sscc.state = "latent_cache"}, %p: !i {sscc.input = "position"},
      %t: !i {sscc.input = "base"}, %a: !f {sscc.input = "active"}, %n: index {sscc.input = "topk"}) -> (!o {sscc.output = "o"}, !e {sscc.state = "latent_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (!i, !i, index) -> !i
    %codes = "kv.quantize_rows"(%new) : (!n) -> tensor<2x1x1x12xi8>
    %c1 = "kv.update"(%c, %codes, %row, %a) : (!e, tensor<2x1x1x12xi8>, !i, !f) -> !e
    %valid = "kv.validity"(%p, %t, %a, %n) : (!i, !i, !f, index) -> tensor<2x4xi1>
    %o = "kv.cached_attention"(%q, %c1, %valid) {scale = 0.5 : f64, operandSegmentSizes = array<i32: 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (!q, !e, tensor<2x4xi1>) -> !o
    return %o, %c1 : !o, !e
  }
}

// -----

// CASE: values that begin elsewhere
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // They are a part of the rows, and not their first numbers.
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: !q {sscc.input = "q"}, %new: !n {sscc.input = "new"}, %c: !c {sscc.state = "latent_cache"}, %p: !i {sscc.input = "position"},
      %t: !i {sscc.input = "base"}, %a: !f {sscc.input = "active"}, %n: index {sscc.input = "topk"}) -> (!o {sscc.output = "o"}, !c {sscc.state = "latent_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (!i, !i, index) -> !i
    %c1 = "kv.update"(%c, %new, %row, %a) : (!c, !n, !i, !f) -> !c
    %valid = "kv.validity"(%p, %t, %a, %n) : (!i, !i, !f, index) -> tensor<2x4xi1>
    %v = tensor.extract_slice %c1[0, 0, 0, 2] [2, 1, 4, 6] [1, 1, 1, 1] : !c to !v
    %o = "kv.cached_attention"(%q, %c1, %v, %valid) {scale = 0.5 : f64, operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (!q, !c, !v, tensor<2x4xi1>) -> !o
    return %o, %c1 : !o, !c
  }
}

// -----

// CASE: values of the cache as it was
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: !q {sscc.input = "q"}, %new: !n {sscc.input = "new"}, %c: !c {sscc.state = "latent_cache"}, %p: !i {sscc.input = "position"},
      %t: !i {sscc.input = "base"}, %a: !f {sscc.input = "active"}, %n: index {sscc.input = "topk"}) -> (!o {sscc.output = "o"}, !c {sscc.state = "latent_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (!i, !i, index) -> !i
    %c1 = "kv.update"(%c, %new, %row, %a) : (!c, !n, !i, !f) -> !c
    %valid = "kv.validity"(%p, %t, %a, %n) : (!i, !i, !f, index) -> tensor<2x4xi1>
    %v = tensor.extract_slice %c[0, 0, 0, 0] [2, 1, 4, 6] [1, 1, 1, 1] : !c to !v
    %o = "kv.cached_attention"(%q, %c1, %v, %valid) {scale = 0.5 : f64, operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (!q, !c, !v, tensor<2x4xi1>) -> !o
    return %o, %c1 : !o, !c
  }
}
