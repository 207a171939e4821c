// Encoded rows: the fused form takes numbers and encodes them itself. B 2, H 4, Hkv 2, D 8, T 8; the cache has 4 rows.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64, dtype = "int8"}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}

// -----

// CASE: decode
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // CHECK-LABEL: func.func private @k(
  // CHECK-SAME: %[[Q:arg0]]: {{.*}}, %[[KN:arg1]]: {{.*}}, %[[VN:arg2]]: {{.*}}, %[[KC:arg3]]: {{.*}}, %[[VC:arg4]]: {{.*}}, %[[P:arg5]]: {{.*}}, %[[T:arg6]]: {{.*}}, %[[A:arg7]]: {{.*}}, %[[N:arg8]]: index
  // CHECK-NEXT: %[[O:.+]]:3 = "kv.decode_attention"(%[[Q]], %[[KN]], %[[VN]], %[[KC]], %[[VC]], %[[KC]], %[[VC]], %[[P]], %[[T]], %[[A]], %[[N]]) {{{.*}}scale = 5.000000e-01 : f64}
  // CHECK-NEXT: return %[[O]]#0, %[[O]]#1, %[[O]]#2
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x8xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x4x12xi8> {sscc.state = "k_cache"}, %vc: tensor<2x2x4x12xi8> {sscc.state = "v_cache"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"})
      -> (tensor<2x4x1x8xf32> {sscc.output = "o"}, tensor<2x2x4x12xi8> {sscc.state = "k_cache"}, tensor<2x2x4x12xi8> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %kq = "kv.quantize_rows"(%kn) : (tensor<2x2x1x8xf32>) -> tensor<2x2x1x12xi8>
    %k1 = "kv.update"(%kc, %kq, %row, %a) : (tensor<2x2x4x12xi8>, tensor<2x2x1x12xi8>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x4x12xi8>
    %vq = "kv.quantize_rows"(%vn) : (tensor<2x2x1x8xf32>) -> tensor<2x2x1x12xi8>
    %v1 = "kv.update"(%vc, %vq, %row, %a) : (tensor<2x2x4x12xi8>, tensor<2x2x1x12xi8>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x4x12xi8>
    %valid = "kv.validity"(%p, %t, %a, %n) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x4xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %valid) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.5 : f64} : (tensor<2x4x1x8xf32>, tensor<2x2x4x12xi8>, tensor<2x2x4x12xi8>, tensor<2x4xi1>) -> tensor<2x4x1x8xf32>
    return %o, %k1, %v1 : tensor<2x4x1x8xf32>, tensor<2x2x4x12xi8>, tensor<2x2x4x12xi8>
  }
}
