// B 2, H 4, Hkv 2, D 8, Dv 6; the cache has 1 + 1 + 2 = 4 rows, the scratch 8, a chunk 4.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}
!q = tensor<2x4x1x8xf32>
!k = tensor<2x2x4x8xf32>
!v = tensor<2x2x4x6xf32>
!i = tensor<2xi64>
!f = tensor<2xi1>
!ks = tensor<1x2x8x8xf32>
!vs = tensor<1x2x8x6xf32>
!o = tensor<1x4x1x8xf32>
!l = tensor<1x4x1x1xf32>

// -----

// CASE: a step of a looped kernel
// PASSES: fuse-compressed-attention
// LOCATIONS
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The caches come in twice, to be read and to be updated. Whoever read an updated cache reads it from the one
  // operation, which stands where the attention stood. The mask is still there for its other reader; the row is not.
  // CHECK-LABEL: func.func private @k(
  // CHECK-SAME: %[[Q:arg0]]: {{.*}}"q"}
  // CHECK: scf.for
  // CHECK: %[[KI:.+]] = tensor.extract_slice
  // CHECK-NEXT: %[[VI:.+]] = tensor.extract_slice
  // CHECK-NEXT: %[[MASK:.+]] = "kv.validity"(%[[P:arg5]], %[[T:arg6]], %[[A:arg7]], %[[N:arg8]])
  // CHECK-NEXT: %[[O:.+]]:3 = "kv.decode_attention"(%[[Q]], %[[KN:arg1]], %[[VN:arg2]], %[[KI]], %[[VI]], %[[KI]], %[[VI]], %[[P]], %[[T]], %[[A]], %[[N]]) {{{.*}}scale = 2.500000e-01 : f64}
  // CHECK-SAME: loc("layers.0.attention"("model.py":5:0))
  // CHECK-NEXT: tensor.insert_slice %[[O]]#1 into
  // CHECK-NEXT: tensor.insert_slice %[[O]]#2 into
  // CHECK-NEXT: arith.andi %{{.+}}, %[[MASK]]
  // CHECK-NOT: kv.row
  // CHECK-NOT: kv.update
  // CHECK-NOT: kv.cached_attention
  func.func private @k(%q: !q {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<3x2x2x4x8xf32> {sscc.state = "k_cache"}, %vc: tensor<3x2x2x4x6xf32> {sscc.state = "v_cache"}, %p: !i {sscc.input = "position"},
      %t: !i {sscc.input = "base"}, %a: !f {sscc.input = "active"}, %n: index {sscc.input = "topk"}, %m: tensor<2x4xi1> {sscc.input = "mask"})
      -> (tensor<3x2x2x4x8xf32> {sscc.state = "k_cache"}, tensor<3x2x2x4x6xf32> {sscc.state = "v_cache"}, tensor<2x4xi1> {sscc.output = "mask"})
      attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c3 = arith.constant 3 : index
    %r:3 = scf.for %i = %c0 to %c3 step %c1 iter_args(%x = %kc, %y = %vc, %z = %m) -> (tensor<3x2x2x4x8xf32>, tensor<3x2x2x4x6xf32>, tensor<2x4xi1>) {
      %k = tensor.extract_slice %x[%i, 0, 0, 0, 0] [1, 2, 2, 4, 8] [1, 1, 1, 1, 1] : tensor<3x2x2x4x8xf32> to !k
      %v = tensor.extract_slice %y[%i, 0, 0, 0, 0] [1, 2, 2, 4, 6] [1, 1, 1, 1, 1] : tensor<3x2x2x4x6xf32> to !v
      %row = "kv.row"(%p, %t, %n) : (!i, !i, index) -> !i
      %k1 = "kv.update"(%k, %kn, %row, %a) : (!k, tensor<2x2x1x8xf32>, !i, !f) -> !k
      %v1 = "kv.update"(%v, %vn, %row, %a) : (!v, tensor<2x2x1x6xf32>, !i, !f) -> !v
      %valid = "kv.validity"(%p, %t, %a, %n) : (!i, !i, !f, index) -> tensor<2x4xi1>
      %o = "kv.cached_attention"(%q, %k1, %v1, %valid) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.25 : f64} : (!q, !k, !v, tensor<2x4xi1>) -> tensor<2x4x1x6xf32>
        loc("layers.0.attention"("model.py":5:0))
      %x1 = tensor.insert_slice %k1 into %x[%i, 0, 0, 0, 0] [1, 2, 2, 4, 8] [1, 1, 1, 1, 1] : !k into tensor<3x2x2x4x8xf32>
      %y1 = tensor.insert_slice %v1 into %y[%i, 0, 0, 0, 0] [1, 2, 2, 4, 6] [1, 1, 1, 1, 1] : !v into tensor<3x2x2x4x6xf32>
      %z1 = arith.andi %z, %valid : tensor<2x4xi1>
      scf.yield %x1, %y1, %z1 : tensor<3x2x2x4x8xf32>, tensor<3x2x2x4x6xf32>, tensor<2x4xi1>
    }
    return %r#0, %r#1, %r#2 : tensor<3x2x2x4x8xf32>, tensor<3x2x2x4x6xf32>, tensor<2x4xi1>
  }
}

// -----

// CASE: a chunk
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // Appends and attention, in whatever order the model computed keys and values. What is observed stays as it is.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NEXT: %[[VN:.+]] = math.tanh %arg4
  // CHECK-NEXT: %[[R:.+]]:4 = "kv.chunk_attention"(%arg0, %arg3, %[[VN]], %arg1, %arg2, %arg7, %arg8) {scale = 2.500000e-01 : f64}
  // CHECK-NEXT: %[[SUMS:.+]] = "kv.observe"(%arg6, %[[R]]#1, %arg7, %arg8)
  // CHECK-NEXT: %[[SEEN:.+]] = "kv.observe"(%arg5, %arg0, %arg7, %arg8)
  // CHECK-NEXT: return %[[R]]#0, %[[R]]#2, %[[R]]#3, %[[SEEN]], %[[SUMS]]
  func.func private @k(%q: tensor<1x4x4x8xf32> {sscc.input = "q"}, %k: !ks {sscc.state = "k_scratch"}, %v: !vs {sscc.state = "v_scratch"},
      %kn: tensor<1x2x4x8xf32> {sscc.input = "kn"}, %vn: tensor<1x2x4x6xf32> {sscc.input = "vn"}, %s: !o {sscc.state = "observed"},
      %l: !l {sscc.state = "log_sum_exp"}, %start: index {sscc.input = "start"}, %n: index {sscc.input = "length"})
      -> (tensor<1x4x4x6xf32> {sscc.output = "o"}, !ks {sscc.state = "k_scratch"}, !vs {sscc.state = "v_scratch"}, !o {sscc.state = "observed"}, !l {sscc.state = "log_sum_exp"})
      attributes {sscc.kernel} {
    %k1 = tensor.insert_slice %kn into %k[0, 0, %start, 0] [1, 2, 4, 8] [1, 1, 1, 1] : tensor<1x2x4x8xf32> into !ks
    %t = math.tanh %vn : tensor<1x2x4x6xf32>
    %v1 = tensor.insert_slice %t into %v[0, 0, %start, 0] [1, 2, 4, 6] [1, 1, 1, 1] : tensor<1x2x4x6xf32> into !vs
    %o:2 = "kv.causal_attention"(%q, %k1, %v1, %start, %n) {scale = 0.25 : f64} : (tensor<1x4x4x8xf32>, !ks, !vs, index, index) -> (tensor<1x4x4x6xf32>, tensor<1x4x4x1xf32>)
    %l1 = "kv.observe"(%l, %o#1, %start, %n) : (!l, tensor<1x4x4x1xf32>, index, index) -> !l
    %s1 = "kv.observe"(%s, %q, %start, %n) : (!o, tensor<1x4x4x8xf32>, index, index) -> !o
    return %o#0, %k1, %v1, %s1, %l1 : tensor<1x4x4x6xf32>, !ks, !vs, !o, !l
  }
}
