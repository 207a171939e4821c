// Indexed rows: attention over the cache and rows of a prompt in the place of some of its rows, and what must stay as it
// is. B 2, H 4, Hkv 2, D 8, Dv 6, T 8; the cache has 1 + 2 + 2 = 5 rows.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 2 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64, rows = "indexed"}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}

// -----

// CASE: decode
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // No gathered tensor is left: its index and its source are operands.
  // CHECK-LABEL: func.func private @k(
  // CHECK-SAME: %[[Q:arg0]]: {{.*}}, %[[KN:arg1]]: {{.*}}, %[[VN:arg2]]: {{.*}}, %[[KC:arg3]]: {{.*}}, %[[VC:arg4]]: {{.*}}, %[[KP:arg5]]: {{.*}}, %[[VP:arg6]]: {{.*}}, %[[I:arg7]]: {{.*}}, %[[P:arg8]]: {{.*}}, %[[T:arg9]]: {{.*}}, %[[A:arg10]]: {{.*}}, %[[N:arg11]]: index
  // CHECK-NEXT: %[[O:.+]]:3 = "kv.decode_attention"(%[[Q]], %[[KN]], %[[VN]], %[[KC]], %[[VC]], %[[KC]], %[[VC]], %[[P]], %[[T]], %[[A]], %[[N]], %[[KP]], %[[VP]], %[[I]]) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1, 1>, scale = 5.000000e-01 : f64}
  // CHECK-NEXT: return %[[O]]#0, %[[O]]#1, %[[O]]#2
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %kn, %row, %a) : (tensor<2x2x5x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x8xf32>
    %v1 = "kv.update"(%vc, %vn, %row, %a) : (tensor<2x2x5x6xf32>, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x6xf32>
    %valid = "kv.validity"(%p, %t, %a, %n, %i) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %far = tensor.extract_slice %valid[0, 5] [2, 2] [1, 1] : tensor<2x7xi1> to tensor<2x2xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %kp, %vp, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>, tensor<2x2x8x8xf32>, tensor<2x2x8x6xf32>, tensor<2x2xi1>, tensor<2x2x2xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1 : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}

// -----

// CASE: the cache comes last
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The cache is the segment that is updated; its rows come first in the mask.
  // CHECK-LABEL: func.func private @k(
  // CHECK-SAME: %[[Q:arg0]]: {{.*}}, %[[KN:arg1]]: {{.*}}, %[[VN:arg2]]: {{.*}}, %[[KC:arg3]]: {{.*}}, %[[VC:arg4]]: {{.*}}, %[[KP:arg5]]: {{.*}}, %[[VP:arg6]]: {{.*}}, %[[I:arg7]]: {{.*}}, %[[P:arg8]]: {{.*}}, %[[T:arg9]]: {{.*}}, %[[A:arg10]]: {{.*}}, %[[N:arg11]]: index
  // CHECK-NEXT: %[[O:.+]]:3 = "kv.decode_attention"(%[[Q]], %[[KN]], %[[VN]], %[[KC]], %[[VC]], %[[KC]], %[[VC]], %[[P]], %[[T]], %[[A]], %[[N]], %[[KP]], %[[VP]], %[[I]]) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1, 1>, scale = 5.000000e-01 : f64}
  // CHECK-NEXT: return %[[O]]#0, %[[O]]#1, %[[O]]#2
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %kn, %row, %a) : (tensor<2x2x5x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x8xf32>
    %v1 = "kv.update"(%vc, %vn, %row, %a) : (tensor<2x2x5x6xf32>, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x6xf32>
    %valid = "kv.validity"(%p, %t, %a, %n, %i) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %far = tensor.extract_slice %valid[0, 5] [2, 2] [1, 1] : tensor<2x7xi1> to tensor<2x2xi1>
    %o = "kv.cached_attention"(%q, %kp, %vp, %far, %i, %k1, %v1, %near) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x8x8xf32>, tensor<2x2x8x6xf32>, tensor<2x2xi1>, tensor<2x2x2xi64>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1 : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}

// -----

// CASE: three segments
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // Rows of an index are one segment.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %i1 = tensor.extract_slice %i[0, 0, 0] [2, 2, 1] [1, 1, 1] : tensor<2x2x2xi64> to tensor<2x2x1xi64>
    %i2 = tensor.extract_slice %i[0, 0, 1] [2, 2, 1] [1, 1, 1] : tensor<2x2x2xi64> to tensor<2x2x1xi64>
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %kn, %row, %a) : (tensor<2x2x5x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x8xf32>
    %v1 = "kv.update"(%vc, %vn, %row, %a) : (tensor<2x2x5x6xf32>, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x6xf32>
    %valid = "kv.validity"(%p, %t, %a, %n, %i) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %one = tensor.extract_slice %valid[0, 5] [2, 1] [1, 1] : tensor<2x7xi1> to tensor<2x1xi1>
    %two = tensor.extract_slice %valid[0, 6] [2, 1] [1, 1] : tensor<2x7xi1> to tensor<2x1xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %kp, %vp, %two, %i2, %kp, %vp, %one, %i1) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>, tensor<2x2x8x8xf32>, tensor<2x2x8x6xf32>, tensor<2x1xi1>, tensor<2x2x1xi64>, tensor<2x2x8x8xf32>, tensor<2x2x8x6xf32>, tensor<2x1xi1>, tensor<2x2x1xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1 : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}

// -----

// CASE: one segment alone
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The fused operation is over all rows that the validity is about.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %kn, %row, %a) : (tensor<2x2x5x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x8xf32>
    %v1 = "kv.update"(%vc, %vn, %row, %a) : (tensor<2x2x5x6xf32>, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x6xf32>
    %valid = "kv.validity"(%p, %t, %a, %n, %i) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1 : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}

// -----

// CASE: a segment twice
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // Rows that are seen twice weigh twice.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %kn, %row, %a) : (tensor<2x2x5x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x8xf32>
    %v1 = "kv.update"(%vc, %vn, %row, %a) : (tensor<2x2x5x6xf32>, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x6xf32>
    %valid = "kv.validity"(%p, %t, %a, %n, %i) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %far = tensor.extract_slice %valid[0, 5] [2, 2] [1, 1] : tensor<2x7xi1> to tensor<2x2xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %kp, %vp, %far, %i, %kp, %vp, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>, tensor<2x2x8x8xf32>, tensor<2x2x8x6xf32>, tensor<2x2xi1>, tensor<2x2x2xi64>, tensor<2x2x8x8xf32>, tensor<2x2x8x6xf32>, tensor<2x2xi1>, tensor<2x2x2xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1 : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}

// -----

// CASE: rows of the cache once more
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The update would have to come before and after.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %kn, %row, %a) : (tensor<2x2x5x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x8xf32>
    %v1 = "kv.update"(%vc, %vn, %row, %a) : (tensor<2x2x5x6xf32>, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x6xf32>
    %valid = "kv.validity"(%p, %t, %a, %n, %i) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %far = tensor.extract_slice %valid[0, 5] [2, 2] [1, 1] : tensor<2x7xi1> to tensor<2x2xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %k1, %v1, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x2xi1>, tensor<2x2x2xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1 : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}

// -----

// CASE: rows of the cache as it was
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // They are gone once the update has been made in place.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %kn, %row, %a) : (tensor<2x2x5x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x8xf32>
    %v1 = "kv.update"(%vc, %vn, %row, %a) : (tensor<2x2x5x6xf32>, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x6xf32>
    %valid = "kv.validity"(%p, %t, %a, %n, %i) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %far = tensor.extract_slice %valid[0, 5] [2, 2] [1, 1] : tensor<2x7xi1> to tensor<2x2xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %kc, %vc, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x2xi1>, tensor<2x2x2xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1 : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}

// -----

// CASE: the cache by an index
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The new row would have to be found in it.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"}, %e: tensor<2x2x3xi64> {sscc.input = "e"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %kn, %row, %a) : (tensor<2x2x5x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x8xf32>
    %v1 = "kv.update"(%vc, %vn, %row, %a) : (tensor<2x2x5x6xf32>, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x6xf32>
    %valid = "kv.validity"(%p, %t, %a, %n, %i) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %far = tensor.extract_slice %valid[0, 5] [2, 2] [1, 1] : tensor<2x7xi1> to tensor<2x2xi1>
    %i3 = tensor.concat dim(2) %i, %e : (tensor<2x2x2xi64>, tensor<2x2x3xi64>) -> tensor<2x2x5xi64>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %i3, %kp, %vp, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>, tensor<2x2x5xi64>, tensor<2x2x8x8xf32>, tensor<2x2x8x6xf32>, tensor<2x2xi1>, tensor<2x2x2xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1 : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}

// -----

// CASE: another mask
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // A mask that is given is not the one that the fused operation computes.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"}, %m: tensor<2x2xi1> {sscc.input = "m"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %kn, %row, %a) : (tensor<2x2x5x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x8xf32>
    %v1 = "kv.update"(%vc, %vn, %row, %a) : (tensor<2x2x5x6xf32>, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x6xf32>
    %valid = "kv.validity"(%p, %t, %a, %n, %i) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %kp, %vp, %m, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>, tensor<2x2x8x8xf32>, tensor<2x2x8x6xf32>, tensor<2x2xi1>, tensor<2x2x2xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1 : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}

// -----

// CASE: masks that overlap
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // A row of the mask is a row of one segment.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %kn, %row, %a) : (tensor<2x2x5x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x8xf32>
    %v1 = "kv.update"(%vc, %vn, %row, %a) : (tensor<2x2x5x6xf32>, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x6xf32>
    %valid = "kv.validity"(%p, %t, %a, %n, %i) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %far = tensor.extract_slice %valid[0, 4] [2, 2] [1, 1] : tensor<2x7xi1> to tensor<2x2xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %kp, %vp, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>, tensor<2x2x8x8xf32>, tensor<2x2x8x6xf32>, tensor<2x2xi1>, tensor<2x2x2xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1 : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}

// -----

// CASE: a mask for other slots
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // Slots that are updated are those that attend.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"}, %b: tensor<2xi1> {sscc.input = "b"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %kn, %row, %a) : (tensor<2x2x5x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x8xf32>
    %v1 = "kv.update"(%vc, %vn, %row, %a) : (tensor<2x2x5x6xf32>, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x6xf32>
    %valid = "kv.validity"(%p, %t, %b, %n, %i) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %far = tensor.extract_slice %valid[0, 5] [2, 2] [1, 1] : tensor<2x7xi1> to tensor<2x2xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %kp, %vp, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>, tensor<2x2x8x8xf32>, tensor<2x2x8x6xf32>, tensor<2x2xi1>, tensor<2x2x2xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1 : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}

// -----

// CASE: a mask for another position
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // And at the position that they attend from.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"}, %s: tensor<2xi64> {sscc.input = "s"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %kn, %row, %a) : (tensor<2x2x5x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x8xf32>
    %v1 = "kv.update"(%vc, %vn, %row, %a) : (tensor<2x2x5x6xf32>, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x6xf32>
    %valid = "kv.validity"(%s, %t, %a, %n, %i) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %far = tensor.extract_slice %valid[0, 5] [2, 2] [1, 1] : tensor<2x7xi1> to tensor<2x2xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %kp, %vp, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>, tensor<2x2x8x8xf32>, tensor<2x2x8x6xf32>, tensor<2x2xi1>, tensor<2x2x2xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1 : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}

// -----

// CASE: rows without an update
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // A cache that is not updated is not one of a step.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %valid = "kv.validity"(%p, %p, %a, %n, %i) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %far = tensor.extract_slice %valid[0, 5] [2, 2] [1, 1] : tensor<2x7xi1> to tensor<2x2xi1>
    %o = "kv.cached_attention"(%q, %kc, %vc, %near, %kp, %vp, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>, tensor<2x2x8x8xf32>, tensor<2x2x8x6xf32>, tensor<2x2xi1>, tensor<2x2x2xi64>) -> tensor<2x4x1x6xf32>
    return %o, %kc, %vc : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}

// -----

// CASE: another index
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The mask knows the rows of the cache that it replaces.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"}, %j: tensor<2x2x2xi64> {sscc.input = "j"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %kn, %row, %a) : (tensor<2x2x5x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x8xf32>
    %v1 = "kv.update"(%vc, %vn, %row, %a) : (tensor<2x2x5x6xf32>, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x6xf32>
    %valid = "kv.validity"(%p, %t, %a, %n, %j) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %far = tensor.extract_slice %valid[0, 5] [2, 2] [1, 1] : tensor<2x7xi1> to tensor<2x2xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %kp, %vp, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>, tensor<2x2x8x8xf32>, tensor<2x2x8x6xf32>, tensor<2x2xi1>, tensor<2x2x2xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1 : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}

// -----

// CASE: another number of selected positions
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The new row would be in another place than the fused operation puts it.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, %vc: tensor<2x2x5x6xf32> {sscc.state = "v_cache"},
      %kp: tensor<2x2x8x8xf32> {sscc.state = "k_store"}, %vp: tensor<2x2x8x6xf32> {sscc.state = "v_store"},
      %i: tensor<2x2x2xi64> {sscc.state = "selected"}, %p: tensor<2xi64> {sscc.input = "position"},
      %t: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"}, %m: index {sscc.input = "m"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, tensor<2x2x5x8xf32> {sscc.state = "k_cache"}, tensor<2x2x5x6xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %row = "kv.row"(%p, %t, %n) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %kn, %row, %a) : (tensor<2x2x5x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x8xf32>
    %v1 = "kv.update"(%vc, %vn, %row, %a) : (tensor<2x2x5x6xf32>, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x5x6xf32>
    %valid = "kv.validity"(%p, %t, %a, %m, %i) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index, tensor<2x2x2xi64>) -> tensor<2x7xi1>
    %near = tensor.extract_slice %valid[0, 0] [2, 5] [1, 1] : tensor<2x7xi1> to tensor<2x5xi1>
    %far = tensor.extract_slice %valid[0, 5] [2, 2] [1, 1] : tensor<2x7xi1> to tensor<2x2xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %kp, %vp, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>, tensor<2x5xi1>, tensor<2x2x8x8xf32>, tensor<2x2x8x6xf32>, tensor<2x2xi1>, tensor<2x2x2xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1 : tensor<2x4x1x6xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x6xf32>
  }
}
