// Encoded rows. B 2, C 4, H 4, Hkv 2, D 8, Dv 6; an encoded row of K is 12 bytes, of V 10. Caches have 4 rows.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64, dtype = "int8"}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}

// -----

// CASE: decode layer
// PASSES: thread-cache
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The new rows are encoded on their way into the caches; attention reads the caches as they are.
  // CHECK-LABEL: func.func private @decode.layer.3(
  // CHECK-SAME: %[[KC:arg3]]: tensor<2x2x4x12xi8> {sscc.state = "k_cache"}
  // CHECK-SAME: %[[VC:arg4]]: tensor<2x2x4x10xi8> {sscc.state = "v_cache"}
  // CHECK: %[[ROW:.+]] = "kv.row"
  // CHECK-NEXT: %[[KN:.+]] = "kv.quantize_rows"(%arg1) : (tensor<2x2x1x8xf32>) -> tensor<2x2x1x12xi8>
  // CHECK-NEXT: %[[K1:.+]] = "kv.update"(%[[KC]], %[[KN]], %[[ROW]], %{{.*}})
  // CHECK-NEXT: %[[VN:.+]] = "kv.quantize_rows"(%arg2) : (tensor<2x2x1x6xf32>) -> tensor<2x2x1x10xi8>
  // CHECK-NEXT: %[[V1:.+]] = "kv.update"(%[[VC]], %[[VN]], %[[ROW]], %{{.*}})
  // CHECK-NEXT: %[[VALID:.+]] = "kv.validity"
  // CHECK-NEXT: %[[OUT:.+]] = "kv.cached_attention"(%arg0, %[[K1]], %[[V1]], %[[VALID]])
  // CHECK-NEXT: return %[[OUT]], %[[K1]], %[[V1]]
  func.func private @decode.layer.3(%q: tensor<2x4x1x8xf32> {sscc.input = "hidden"}, %k: tensor<2x2x1x8xf32> {sscc.weight = "k"},
      %v: tensor<2x2x1x6xf32> {sscc.weight = "v"}) -> (tensor<2x4x1x6xf32> {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 3 : i64} {
    %o = "kv.self_attention"(%q, %k, %v) {layer = 3 : i64, scale = 0.25 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>) -> tensor<2x4x1x6xf32>
    return %o : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: prefill layer
// PASSES: thread-cache
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // A prompt's own K and V, and the observation window, stay numbers; rows are encoded when they are assembled.
  // CHECK-LABEL: func.func private @prefill.layer.0(
  // CHECK-SAME: tensor<1x2x8x8xf32> {sscc.state = "k_scratch"}
  // CHECK-NOT: kv.quantize_rows
  // CHECK-LABEL: func.func private @prefill.compress.0(
  // CHECK-NOT: kv.quantize_rows
  // CHECK: %[[ROWS:.+]] = "kv.gather"({{.*}} -> tensor<1x2x4x12xi8>
  // CHECK-NEXT: tensor.insert_slice %[[ROWS]] into %arg4[%arg6, 0, 0, 0] [1, 2, 4, 12]
  // CHECK: "kv.gather"({{.*}} -> tensor<1x2x4x10xi8>
  func.func private @prefill.layer.0(%q: tensor<1x4x4x8xf32> {sscc.input = "hidden"}, %k: tensor<1x2x4x8xf32> {sscc.weight = "k"},
      %v: tensor<1x2x4x6xf32> {sscc.weight = "v"}) -> (tensor<1x4x4x6xf32> {sscc.output = "hidden"})
      attributes {sscc.entry = "prefill", sscc.layer = 0 : i64} {
    %o = "kv.self_attention"(%q, %k, %v) {layer = 0 : i64, scale = 0.25 : f64}
      : (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>) -> tensor<1x4x4x6xf32>
    return %o : tensor<1x4x4x6xf32>
  }
}
