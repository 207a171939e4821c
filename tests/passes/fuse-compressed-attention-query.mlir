// Rows that every step's query chooses: one operation of a step. B 2, H 4, Hkv 2, D 8, Dv 6, T 8; SR is 3, topk 1.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64, rows = "indexed", policy = "query", key_bits = 2 : i64}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}
!kc = tensor<2x2x3x8xf32>
!vc = tensor<2x2x3x6xf32>
!ks = tensor<2x2x8x8xf32>
!vs = tensor<2x2x8x6xf32>
!l = tensor<2x2x8x2xi8>
!s = tensor<2x2x8x1xbf16>

// -----

// CASE: decode
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // Scores, choice and masks are gone.
  // CHECK-LABEL: func.func private @k(
  // CHECK-SAME: %[[Q:arg0]]: {{.*}}, %[[KN:arg1]]: {{.*}}, %[[VN:arg2]]: {{.*}}, %[[KC:arg3]]: {{.*}}, %[[VC:arg4]]: {{.*}}, %[[KS:arg5]]: {{.*}}, %[[VS:arg6]]: {{.*}}, %[[L:arg7]]: {{.*}}, %[[S:arg8]]: {{.*}}, %[[P:arg9]]: {{.*}}, %{{.+}}: {{.*}}, %[[A:arg11]]: tensor<2xi1>
  // CHECK-NOT: kv.update
  // CHECK-NOT: kv.validity
  // CHECK-NOT: kv.quantized_key
  // CHECK: %[[O:.+]]:7 = "kv.query_attention"(%[[Q]], %[[KN]], %[[VN]], %[[KC]], %[[VC]], %[[KC]], %[[VC]], %[[KS]], %[[VS]], %[[L]], %[[S]], %[[P]], %[[A]]) {{.*}}scale = 2.500000e-01 : f64}
  // CHECK-NEXT: return %[[O]]#0, %[[O]]#1, %[[O]]#2, %[[O]]#3, %[[O]]#4, %[[O]]#5, %[[O]]#6
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %k: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %v: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: !kc {sscc.state = "k_cache"}, %vc: !vc {sscc.state = "v_cache"}, %ks: !ks {sscc.state = "k_store"}, %vs: !vs {sscc.state = "v_store"},
      %l: !l {sscc.state = "quantized_keys"}, %s: !s {sscc.state = "quantized_key_scales"},
      %p: tensor<2xi64> {sscc.input = "position"}, %b: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, !kc {sscc.state = "k_cache"}, !vc {sscc.state = "v_cache"}, !ks {sscc.state = "k_store"}, !vs {sscc.state = "v_store"},
      !l {sscc.state = "quantized_keys"}, !s {sscc.state = "quantized_key_scales"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %row = "kv.row"(%p, %b, %c0) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %k, %row, %a) : (!kc, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !kc
    %v1 = "kv.update"(%vc, %v, %row, %a) : (!vc, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vc
    %lm:2 = "kv.quantize_keys"(%k) : (tensor<2x2x1x8xf32>) -> (tensor<2x2x1x2xi8>, tensor<2x2x1x1xbf16>)
    %ks1 = "kv.update"(%ks, %k, %p, %a) : (!ks, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !ks
    %vs1 = "kv.update"(%vs, %v, %p, %a) : (!vs, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vs
    %l1 = "kv.update"(%l, %lm#0, %p, %a) : (!l, tensor<2x2x1x2xi8>, tensor<2xi64>, tensor<2xi1>) -> !l
    %s1 = "kv.update"(%s, %lm#1, %p, %a) : (!s, tensor<2x2x1x1xbf16>, tensor<2xi64>, tensor<2xi1>) -> !s
    %valid = "kv.validity"(%p, %b, %a, %c1) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x4xi1>
    %f = "kv.quantized_key_scores"(%q, %l1, %s1, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !l, !s, tensor<2xi64>, tensor<2xi1>) -> tensor<2x4x8xf32>
    %i = "kv.choose"(%q, %k1, %f, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !kc, tensor<2x4x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x1xi64>
    %near = tensor.extract_slice %valid[0, 0] [2, 3] [1, 1] : tensor<2x4xi1> to tensor<2x3xi1>
    %far = tensor.extract_slice %valid[0, 3] [2, 1] [1, 1] : tensor<2x4xi1> to tensor<2x1xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %ks1, %vs1, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.25 : f64}
      : (tensor<2x4x1x8xf32>, !kc, !vc, tensor<2x3xi1>, !ks, !vs, tensor<2x1xi1>, tensor<2x2x1xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1, %ks1, %vs1, %l1, %s1 : tensor<2x4x1x6xf32>, !kc, !vc, !ks, !vs, !l, !s
  }
}

// -----

// CASE: a mask without the chosen rows
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // It is of sinks and ring alone; the fused operation attends to the chosen rows too.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.query_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %k: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %v: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: !kc {sscc.state = "k_cache"}, %vc: !vc {sscc.state = "v_cache"}, %ks: !ks {sscc.state = "k_store"}, %vs: !vs {sscc.state = "v_store"},
      %l: !l {sscc.state = "quantized_keys"}, %s: !s {sscc.state = "quantized_key_scales"},
      %p: tensor<2xi64> {sscc.input = "position"}, %b: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, !kc {sscc.state = "k_cache"}, !vc {sscc.state = "v_cache"}, !ks {sscc.state = "k_store"}, !vs {sscc.state = "v_store"},
      !l {sscc.state = "quantized_keys"}, !s {sscc.state = "quantized_key_scales"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %row = "kv.row"(%p, %b, %c0) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %k, %row, %a) : (!kc, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !kc
    %v1 = "kv.update"(%vc, %v, %row, %a) : (!vc, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vc
    %lm:2 = "kv.quantize_keys"(%k) : (tensor<2x2x1x8xf32>) -> (tensor<2x2x1x2xi8>, tensor<2x2x1x1xbf16>)
    %ks1 = "kv.update"(%ks, %k, %p, %a) : (!ks, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !ks
    %vs1 = "kv.update"(%vs, %v, %p, %a) : (!vs, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vs
    %l1 = "kv.update"(%l, %lm#0, %p, %a) : (!l, tensor<2x2x1x2xi8>, tensor<2xi64>, tensor<2xi1>) -> !l
    %s1 = "kv.update"(%s, %lm#1, %p, %a) : (!s, tensor<2x2x1x1xbf16>, tensor<2xi64>, tensor<2xi1>) -> !s
    %valid = "kv.validity"(%p, %b, %a, %c0) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x4xi1>
    %f = "kv.quantized_key_scores"(%q, %l1, %s1, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !l, !s, tensor<2xi64>, tensor<2xi1>) -> tensor<2x4x8xf32>
    %i = "kv.choose"(%q, %k1, %f, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !kc, tensor<2x4x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x1xi64>
    %near = tensor.extract_slice %valid[0, 0] [2, 3] [1, 1] : tensor<2x4xi1> to tensor<2x3xi1>
    %far = tensor.extract_slice %valid[0, 3] [2, 1] [1, 1] : tensor<2x4xi1> to tensor<2x1xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %ks1, %vs1, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.25 : f64}
      : (tensor<2x4x1x8xf32>, !kc, !vc, tensor<2x3xi1>, !ks, !vs, tensor<2x1xi1>, tensor<2x2x1xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1, %ks1, %vs1, %l1, %s1 : tensor<2x4x1x6xf32>, !kc, !vc, !ks, !vs, !l, !s
  }
}

// -----

// CASE: a ring that begins behind kept rows
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The cache has none between sinks and ring.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.query_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %k: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %v: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: !kc {sscc.state = "k_cache"}, %vc: !vc {sscc.state = "v_cache"}, %ks: !ks {sscc.state = "k_store"}, %vs: !vs {sscc.state = "v_store"},
      %l: !l {sscc.state = "quantized_keys"}, %s: !s {sscc.state = "quantized_key_scales"},
      %p: tensor<2xi64> {sscc.input = "position"}, %b: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, !kc {sscc.state = "k_cache"}, !vc {sscc.state = "v_cache"}, !ks {sscc.state = "k_store"}, !vs {sscc.state = "v_store"},
      !l {sscc.state = "quantized_keys"}, !s {sscc.state = "quantized_key_scales"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %row = "kv.row"(%p, %b, %c1) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %k, %row, %a) : (!kc, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !kc
    %v1 = "kv.update"(%vc, %v, %row, %a) : (!vc, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vc
    %lm:2 = "kv.quantize_keys"(%k) : (tensor<2x2x1x8xf32>) -> (tensor<2x2x1x2xi8>, tensor<2x2x1x1xbf16>)
    %ks1 = "kv.update"(%ks, %k, %p, %a) : (!ks, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !ks
    %vs1 = "kv.update"(%vs, %v, %p, %a) : (!vs, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vs
    %l1 = "kv.update"(%l, %lm#0, %p, %a) : (!l, tensor<2x2x1x2xi8>, tensor<2xi64>, tensor<2xi1>) -> !l
    %s1 = "kv.update"(%s, %lm#1, %p, %a) : (!s, tensor<2x2x1x1xbf16>, tensor<2xi64>, tensor<2xi1>) -> !s
    %valid = "kv.validity"(%p, %b, %a, %c1) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x4xi1>
    %f = "kv.quantized_key_scores"(%q, %l1, %s1, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !l, !s, tensor<2xi64>, tensor<2xi1>) -> tensor<2x4x8xf32>
    %i = "kv.choose"(%q, %k1, %f, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !kc, tensor<2x4x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x1xi64>
    %near = tensor.extract_slice %valid[0, 0] [2, 3] [1, 1] : tensor<2x4xi1> to tensor<2x3xi1>
    %far = tensor.extract_slice %valid[0, 3] [2, 1] [1, 1] : tensor<2x4xi1> to tensor<2x1xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %ks1, %vs1, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.25 : f64}
      : (tensor<2x4x1x8xf32>, !kc, !vc, tensor<2x3xi1>, !ks, !vs, tensor<2x1xi1>, tensor<2x2x1xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1, %ks1, %vs1, %l1, %s1 : tensor<2x4x1x6xf32>, !kc, !vc, !ks, !vs, !l, !s
  }
}

// -----

// CASE: a number that is known late
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The fused operation chooses as many rows as the geometry says.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.query_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %k: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %v: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: !kc {sscc.state = "k_cache"}, %vc: !vc {sscc.state = "v_cache"}, %ks: !ks {sscc.state = "k_store"}, %vs: !vs {sscc.state = "v_store"},
      %l: !l {sscc.state = "quantized_keys"}, %s: !s {sscc.state = "quantized_key_scales"},
      %p: tensor<2xi64> {sscc.input = "position"}, %b: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"}, %n: index {sscc.input = "topk"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, !kc {sscc.state = "k_cache"}, !vc {sscc.state = "v_cache"}, !ks {sscc.state = "k_store"}, !vs {sscc.state = "v_store"},
      !l {sscc.state = "quantized_keys"}, !s {sscc.state = "quantized_key_scales"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %row = "kv.row"(%p, %b, %c0) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %k, %row, %a) : (!kc, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !kc
    %v1 = "kv.update"(%vc, %v, %row, %a) : (!vc, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vc
    %lm:2 = "kv.quantize_keys"(%k) : (tensor<2x2x1x8xf32>) -> (tensor<2x2x1x2xi8>, tensor<2x2x1x1xbf16>)
    %ks1 = "kv.update"(%ks, %k, %p, %a) : (!ks, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !ks
    %vs1 = "kv.update"(%vs, %v, %p, %a) : (!vs, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vs
    %l1 = "kv.update"(%l, %lm#0, %p, %a) : (!l, tensor<2x2x1x2xi8>, tensor<2xi64>, tensor<2xi1>) -> !l
    %s1 = "kv.update"(%s, %lm#1, %p, %a) : (!s, tensor<2x2x1x1xbf16>, tensor<2xi64>, tensor<2xi1>) -> !s
    %valid = "kv.validity"(%p, %b, %a, %n) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x4xi1>
    %f = "kv.quantized_key_scores"(%q, %l1, %s1, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !l, !s, tensor<2xi64>, tensor<2xi1>) -> tensor<2x4x8xf32>
    %i = "kv.choose"(%q, %k1, %f, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !kc, tensor<2x4x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x1xi64>
    %near = tensor.extract_slice %valid[0, 0] [2, 3] [1, 1] : tensor<2x4xi1> to tensor<2x3xi1>
    %far = tensor.extract_slice %valid[0, 3] [2, 1] [1, 1] : tensor<2x4xi1> to tensor<2x1xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %ks1, %vs1, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.25 : f64}
      : (tensor<2x4x1x8xf32>, !kc, !vc, tensor<2x3xi1>, !ks, !vs, tensor<2x1xi1>, tensor<2x2x1xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1, %ks1, %vs1, %l1, %s1 : tensor<2x4x1x6xf32>, !kc, !vc, !ks, !vs, !l, !s
  }
}

// -----

// CASE: a store that is written elsewhere
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The row of a position in the ring is not its row in the store.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.query_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %k: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %v: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: !kc {sscc.state = "k_cache"}, %vc: !vc {sscc.state = "v_cache"}, %ks: !ks {sscc.state = "k_store"}, %vs: !vs {sscc.state = "v_store"},
      %l: !l {sscc.state = "quantized_keys"}, %s: !s {sscc.state = "quantized_key_scales"},
      %p: tensor<2xi64> {sscc.input = "position"}, %b: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, !kc {sscc.state = "k_cache"}, !vc {sscc.state = "v_cache"}, !ks {sscc.state = "k_store"}, !vs {sscc.state = "v_store"},
      !l {sscc.state = "quantized_keys"}, !s {sscc.state = "quantized_key_scales"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %row = "kv.row"(%p, %b, %c0) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %k, %row, %a) : (!kc, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !kc
    %v1 = "kv.update"(%vc, %v, %row, %a) : (!vc, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vc
    %lm:2 = "kv.quantize_keys"(%k) : (tensor<2x2x1x8xf32>) -> (tensor<2x2x1x2xi8>, tensor<2x2x1x1xbf16>)
    %ks1 = "kv.update"(%ks, %k, %row, %a) : (!ks, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !ks
    %vs1 = "kv.update"(%vs, %v, %p, %a) : (!vs, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vs
    %l1 = "kv.update"(%l, %lm#0, %p, %a) : (!l, tensor<2x2x1x2xi8>, tensor<2xi64>, tensor<2xi1>) -> !l
    %s1 = "kv.update"(%s, %lm#1, %p, %a) : (!s, tensor<2x2x1x1xbf16>, tensor<2xi64>, tensor<2xi1>) -> !s
    %valid = "kv.validity"(%p, %b, %a, %c1) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x4xi1>
    %f = "kv.quantized_key_scores"(%q, %l1, %s1, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !l, !s, tensor<2xi64>, tensor<2xi1>) -> tensor<2x4x8xf32>
    %i = "kv.choose"(%q, %k1, %f, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !kc, tensor<2x4x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x1xi64>
    %near = tensor.extract_slice %valid[0, 0] [2, 3] [1, 1] : tensor<2x4xi1> to tensor<2x3xi1>
    %far = tensor.extract_slice %valid[0, 3] [2, 1] [1, 1] : tensor<2x4xi1> to tensor<2x1xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %ks1, %vs1, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.25 : f64}
      : (tensor<2x4x1x8xf32>, !kc, !vc, tensor<2x3xi1>, !ks, !vs, tensor<2x1xi1>, tensor<2x2x1xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1, %ks1, %vs1, %l1, %s1 : tensor<2x4x1x6xf32>, !kc, !vc, !ks, !vs, !l, !s
  }
}

// -----

// CASE: quantized keys as they were
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // Without the quantized key of this step: it is no candidate, but that is not for this pass to know.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.query_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %k: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %v: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: !kc {sscc.state = "k_cache"}, %vc: !vc {sscc.state = "v_cache"}, %ks: !ks {sscc.state = "k_store"}, %vs: !vs {sscc.state = "v_store"},
      %l: !l {sscc.state = "quantized_keys"}, %s: !s {sscc.state = "quantized_key_scales"},
      %p: tensor<2xi64> {sscc.input = "position"}, %b: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, !kc {sscc.state = "k_cache"}, !vc {sscc.state = "v_cache"}, !ks {sscc.state = "k_store"}, !vs {sscc.state = "v_store"},
      !l {sscc.state = "quantized_keys"}, !s {sscc.state = "quantized_key_scales"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %row = "kv.row"(%p, %b, %c0) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %k, %row, %a) : (!kc, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !kc
    %v1 = "kv.update"(%vc, %v, %row, %a) : (!vc, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vc
    %lm:2 = "kv.quantize_keys"(%k) : (tensor<2x2x1x8xf32>) -> (tensor<2x2x1x2xi8>, tensor<2x2x1x1xbf16>)
    %ks1 = "kv.update"(%ks, %k, %p, %a) : (!ks, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !ks
    %vs1 = "kv.update"(%vs, %v, %p, %a) : (!vs, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vs
    %l1 = "kv.update"(%l, %lm#0, %p, %a) : (!l, tensor<2x2x1x2xi8>, tensor<2xi64>, tensor<2xi1>) -> !l
    %s1 = "kv.update"(%s, %lm#1, %p, %a) : (!s, tensor<2x2x1x1xbf16>, tensor<2xi64>, tensor<2xi1>) -> !s
    %valid = "kv.validity"(%p, %b, %a, %c1) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x4xi1>
    %f = "kv.quantized_key_scores"(%q, %l, %s1, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !l, !s, tensor<2xi64>, tensor<2xi1>) -> tensor<2x4x8xf32>
    %i = "kv.choose"(%q, %k1, %f, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !kc, tensor<2x4x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x1xi64>
    %near = tensor.extract_slice %valid[0, 0] [2, 3] [1, 1] : tensor<2x4xi1> to tensor<2x3xi1>
    %far = tensor.extract_slice %valid[0, 3] [2, 1] [1, 1] : tensor<2x4xi1> to tensor<2x1xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %ks1, %vs1, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.25 : f64}
      : (tensor<2x4x1x8xf32>, !kc, !vc, tensor<2x3xi1>, !ks, !vs, tensor<2x1xi1>, tensor<2x2x1xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1, %ks1, %vs1, %l1, %s1 : tensor<2x4x1x6xf32>, !kc, !vc, !ks, !vs, !l, !s
  }
}

// -----

// CASE: another scale
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // Scores of another scale weigh less beside those of sinks and ring.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.query_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %k: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %v: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: !kc {sscc.state = "k_cache"}, %vc: !vc {sscc.state = "v_cache"}, %ks: !ks {sscc.state = "k_store"}, %vs: !vs {sscc.state = "v_store"},
      %l: !l {sscc.state = "quantized_keys"}, %s: !s {sscc.state = "quantized_key_scales"},
      %p: tensor<2xi64> {sscc.input = "position"}, %b: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, !kc {sscc.state = "k_cache"}, !vc {sscc.state = "v_cache"}, !ks {sscc.state = "k_store"}, !vs {sscc.state = "v_store"},
      !l {sscc.state = "quantized_keys"}, !s {sscc.state = "quantized_key_scales"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %row = "kv.row"(%p, %b, %c0) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %k, %row, %a) : (!kc, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !kc
    %v1 = "kv.update"(%vc, %v, %row, %a) : (!vc, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vc
    %lm:2 = "kv.quantize_keys"(%k) : (tensor<2x2x1x8xf32>) -> (tensor<2x2x1x2xi8>, tensor<2x2x1x1xbf16>)
    %ks1 = "kv.update"(%ks, %k, %p, %a) : (!ks, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !ks
    %vs1 = "kv.update"(%vs, %v, %p, %a) : (!vs, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vs
    %l1 = "kv.update"(%l, %lm#0, %p, %a) : (!l, tensor<2x2x1x2xi8>, tensor<2xi64>, tensor<2xi1>) -> !l
    %s1 = "kv.update"(%s, %lm#1, %p, %a) : (!s, tensor<2x2x1x1xbf16>, tensor<2xi64>, tensor<2xi1>) -> !s
    %valid = "kv.validity"(%p, %b, %a, %c1) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x4xi1>
    %f = "kv.quantized_key_scores"(%q, %l1, %s1, %p, %a) {scale = 0.5 : f64} : (tensor<2x4x1x8xf32>, !l, !s, tensor<2xi64>, tensor<2xi1>) -> tensor<2x4x8xf32>
    %i = "kv.choose"(%q, %k1, %f, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !kc, tensor<2x4x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x1xi64>
    %near = tensor.extract_slice %valid[0, 0] [2, 3] [1, 1] : tensor<2x4xi1> to tensor<2x3xi1>
    %far = tensor.extract_slice %valid[0, 3] [2, 1] [1, 1] : tensor<2x4xi1> to tensor<2x1xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %ks1, %vs1, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.25 : f64}
      : (tensor<2x4x1x8xf32>, !kc, !vc, tensor<2x3xi1>, !ks, !vs, tensor<2x1xi1>, tensor<2x2x1xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1, %ks1, %vs1, %l1, %s1 : tensor<2x4x1x6xf32>, !kc, !vc, !ks, !vs, !l, !s
  }
}

// -----

// CASE: chosen by the ring as it was
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The choice has seen other keys than attention does.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.query_attention
  // CHECK-NOT: kv.decode_attention
  // CHECK: "kv.choose"(%arg0, %arg3,
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %k: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %v: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: !kc {sscc.state = "k_cache"}, %vc: !vc {sscc.state = "v_cache"}, %ks: !ks {sscc.state = "k_store"}, %vs: !vs {sscc.state = "v_store"},
      %l: !l {sscc.state = "quantized_keys"}, %s: !s {sscc.state = "quantized_key_scales"},
      %p: tensor<2xi64> {sscc.input = "position"}, %b: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, !kc {sscc.state = "k_cache"}, !vc {sscc.state = "v_cache"}, !ks {sscc.state = "k_store"}, !vs {sscc.state = "v_store"},
      !l {sscc.state = "quantized_keys"}, !s {sscc.state = "quantized_key_scales"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %row = "kv.row"(%p, %b, %c0) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %k, %row, %a) : (!kc, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !kc
    %v1 = "kv.update"(%vc, %v, %row, %a) : (!vc, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vc
    %lm:2 = "kv.quantize_keys"(%k) : (tensor<2x2x1x8xf32>) -> (tensor<2x2x1x2xi8>, tensor<2x2x1x1xbf16>)
    %ks1 = "kv.update"(%ks, %k, %p, %a) : (!ks, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !ks
    %vs1 = "kv.update"(%vs, %v, %p, %a) : (!vs, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vs
    %l1 = "kv.update"(%l, %lm#0, %p, %a) : (!l, tensor<2x2x1x2xi8>, tensor<2xi64>, tensor<2xi1>) -> !l
    %s1 = "kv.update"(%s, %lm#1, %p, %a) : (!s, tensor<2x2x1x1xbf16>, tensor<2xi64>, tensor<2xi1>) -> !s
    %valid = "kv.validity"(%p, %b, %a, %c1) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x4xi1>
    %f = "kv.quantized_key_scores"(%q, %l1, %s1, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !l, !s, tensor<2xi64>, tensor<2xi1>) -> tensor<2x4x8xf32>
    %i = "kv.choose"(%q, %kc, %f, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !kc, tensor<2x4x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x1xi64>
    %near = tensor.extract_slice %valid[0, 0] [2, 3] [1, 1] : tensor<2x4xi1> to tensor<2x3xi1>
    %far = tensor.extract_slice %valid[0, 3] [2, 1] [1, 1] : tensor<2x4xi1> to tensor<2x1xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %ks1, %vs1, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.25 : f64}
      : (tensor<2x4x1x8xf32>, !kc, !vc, tensor<2x3xi1>, !ks, !vs, tensor<2x1xi1>, tensor<2x2x1xi64>) -> tensor<2x4x1x6xf32>
    return %o, %k1, %v1, %ks1, %vs1, %l1, %s1 : tensor<2x4x1x6xf32>, !kc, !vc, !ks, !vs, !l, !s
  }
}

// -----

// CASE: scores that are read elsewhere
// PASSES: fuse-compressed-attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // They would have to be computed twice.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: kv.query_attention
  // CHECK: "kv.cached_attention"
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %k: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %v: tensor<2x2x1x6xf32> {sscc.input = "vn"},
      %kc: !kc {sscc.state = "k_cache"}, %vc: !vc {sscc.state = "v_cache"}, %ks: !ks {sscc.state = "k_store"}, %vs: !vs {sscc.state = "v_store"},
      %l: !l {sscc.state = "quantized_keys"}, %s: !s {sscc.state = "quantized_key_scales"},
      %p: tensor<2xi64> {sscc.input = "position"}, %b: tensor<2xi64> {sscc.input = "base"}, %a: tensor<2xi1> {sscc.input = "active"})
      -> (tensor<2x4x1x6xf32> {sscc.output = "o"}, !kc {sscc.state = "k_cache"}, !vc {sscc.state = "v_cache"}, !ks {sscc.state = "k_store"}, !vs {sscc.state = "v_store"},
      !l {sscc.state = "quantized_keys"}, !s {sscc.state = "quantized_key_scales"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %row = "kv.row"(%p, %b, %c0) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %k1 = "kv.update"(%kc, %k, %row, %a) : (!kc, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !kc
    %v1 = "kv.update"(%vc, %v, %row, %a) : (!vc, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vc
    %lm:2 = "kv.quantize_keys"(%k) : (tensor<2x2x1x8xf32>) -> (tensor<2x2x1x2xi8>, tensor<2x2x1x1xbf16>)
    %ks1 = "kv.update"(%ks, %k, %p, %a) : (!ks, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> !ks
    %vs1 = "kv.update"(%vs, %v, %p, %a) : (!vs, tensor<2x2x1x6xf32>, tensor<2xi64>, tensor<2xi1>) -> !vs
    %l1 = "kv.update"(%l, %lm#0, %p, %a) : (!l, tensor<2x2x1x2xi8>, tensor<2xi64>, tensor<2xi1>) -> !l
    %s1 = "kv.update"(%s, %lm#1, %p, %a) : (!s, tensor<2x2x1x1xbf16>, tensor<2xi64>, tensor<2xi1>) -> !s
    %valid = "kv.validity"(%p, %b, %a, %c1) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x4xi1>
    %f = "kv.quantized_key_scores"(%q, %l1, %s1, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !l, !s, tensor<2xi64>, tensor<2xi1>) -> tensor<2x4x8xf32>
    %i = "kv.choose"(%q, %k1, %f, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !kc, tensor<2x4x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x1xi64>
    %near = tensor.extract_slice %valid[0, 0] [2, 3] [1, 1] : tensor<2x4xi1> to tensor<2x3xi1>
    %far = tensor.extract_slice %valid[0, 3] [2, 1] [1, 1] : tensor<2x4xi1> to tensor<2x1xi1>
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %ks1, %vs1, %far, %i) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.25 : f64}
      : (tensor<2x4x1x8xf32>, !kc, !vc, tensor<2x3xi1>, !ks, !vs, tensor<2x1xi1>, tensor<2x2x1xi64>) -> tensor<2x4x1x6xf32>
    %again = "kv.choose"(%q, %k1, %f, %p, %a) {scale = 0.25 : f64} : (tensor<2x4x1x8xf32>, !kc, tensor<2x4x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x1xi64>
    return %o, %k1, %v1, %ks1, %vs1, %l1, %s1 : tensor<2x4x1x6xf32>, !kc, !vc, !ks, !vs, !l, !s
  }
}
