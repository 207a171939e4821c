// Rows that every step's query chooses. B 2, C 4, H 4, Hkv 2, D 8, Dv 6; max_context 6, so a store has T = 8 rows. SR is
// 3, topk 1. Quantized keys of 8 numbers of 2 bits are 2 bytes.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64, rows = "indexed", policy = "query", key_bits = 2 : i64}
#plain = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64, rows = "indexed", policy = "query", key_bits = 16 : i64}
#int8 = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64, rows = "indexed", policy = "query", key_bits = 2 : i64, dtype = "int8"}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}

// -----

// CASE: decode layer
// PASSES: thread-cache
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The caches hold sinks and ring alone. Stores and quantized keys have a row for every position, and are results too.
  // CHECK-LABEL: func.func private @decode.layer.3(
  // CHECK-SAME: %[[Q:arg0]]: tensor<2x4x1x8xf32> {sscc.input = "hidden"}
  // CHECK-SAME: %[[K:arg1]]: tensor<2x2x1x8xf32> {sscc.weight = "k"}
  // CHECK-SAME: %[[V:arg2]]: tensor<2x2x1x6xf32> {sscc.weight = "v"}
  // CHECK-SAME: %[[KC:arg3]]: tensor<2x2x3x8xf32> {sscc.state = "k_cache"}
  // CHECK-SAME: %[[VC:arg4]]: tensor<2x2x3x6xf32> {sscc.state = "v_cache"}
  // CHECK-SAME: %[[KS:arg5]]: tensor<2x2x8x8xf32> {sscc.state = "k_store"}
  // CHECK-SAME: %[[VS:arg6]]: tensor<2x2x8x6xf32> {sscc.state = "v_store"}
  // CHECK-SAME: %[[L:arg7]]: tensor<2x2x8x2xi8> {sscc.state = "quantized_keys"}
  // CHECK-SAME: %[[S:arg8]]: tensor<2x2x8x1xbf16> {sscc.state = "quantized_key_scales"}
  // CHECK-SAME: %[[P:arg9]]: tensor<2xi64> {sscc.input = "position"}
  // CHECK-SAME: %[[BASE:arg10]]: tensor<2xi64> {sscc.input = "base"}
  // CHECK-SAME: %[[ACTIVE:arg11]]: tensor<2xi1> {sscc.input = "active"}
  // CHECK-SAME: tensor<2x2x8x2xi8> {sscc.state = "quantized_keys"}, tensor<2x2x8x1xbf16> {sscc.state = "quantized_key_scales"})
  //
  // The step's row goes to the ring, and to the row of its position in the stores, with its quantized key.
  // The ring begins behind the sinks, whatever the prompt: nothing is kept between them.
  // CHECK-NEXT: %[[ZERO:.+]] = arith.constant 0 : index
  // CHECK-NEXT: %[[ROW:.+]] = "kv.row"(%[[P]], %[[BASE]], %[[ZERO]])
  // CHECK-NEXT: %[[LM:.+]]:2 = "kv.quantize_keys"(%[[K]])
  // CHECK-NEXT: %[[K1:.+]] = "kv.update"(%[[KC]], %[[K]], %[[ROW]], %[[ACTIVE]])
  // CHECK-NEXT: %[[V1:.+]] = "kv.update"(%[[VC]], %[[V]], %[[ROW]], %[[ACTIVE]])
  // CHECK-NEXT: %[[KS1:.+]] = "kv.update"(%[[KS]], %[[K]], %[[P]], %[[ACTIVE]])
  // CHECK-NEXT: %[[VS1:.+]] = "kv.update"(%[[VS]], %[[V]], %[[P]], %[[ACTIVE]])
  // CHECK-NEXT: %[[L1:.+]] = "kv.update"(%[[L]], %[[LM]]#0, %[[P]], %[[ACTIVE]])
  // CHECK-NEXT: %[[S1:.+]] = "kv.update"(%[[S]], %[[LM]]#1, %[[P]], %[[ACTIVE]])
  //
  // Chosen rows stand behind those of the cache, and are seen once there are more positions than rows of the cache.
  // CHECK-NEXT: %[[TOPK:.+]] = arith.constant 1 : index
  // CHECK-NEXT: %[[VALID:.+]] = "kv.validity"(%[[P]], %[[BASE]], %[[ACTIVE]], %[[TOPK]]) {{.*}} -> tensor<2x4xi1>
  // CHECK-NEXT: %[[F:.+]] = "kv.quantized_key_scores"(%[[Q]], %[[L1]], %[[S1]], %[[P]], %[[ACTIVE]]) {scale = 2.500000e-01 : f64}
  // CHECK-NEXT: %[[I:.+]] = "kv.choose"(%[[Q]], %[[K1]], %[[F]], %[[P]], %[[ACTIVE]]) {scale = 2.500000e-01 : f64}
  // CHECK-NEXT: %[[NEAR:.+]] = tensor.extract_slice %[[VALID]][0, 0] [2, 3]
  // CHECK-NEXT: %[[FAR:.+]] = tensor.extract_slice %[[VALID]][0, 3] [2, 1]
  // CHECK-NEXT: %[[OUT:.+]] = "kv.cached_attention"(%[[Q]], %[[K1]], %[[V1]], %[[NEAR]], %[[KS1]], %[[VS1]], %[[FAR]], %[[I]])
  // CHECK-NEXT: return %[[OUT]], %[[K1]], %[[V1]], %[[KS1]], %[[VS1]], %[[L1]], %[[S1]]
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
  // A chunk leaves its quantized keys beside them. Nothing is observed.
  // CHECK-LABEL: func.func private @prefill.layer.0(
  // CHECK-SAME: %[[L:arg5]]: tensor<1x2x8x2xi8> {sscc.state = "quantized_key_scratch"}, %[[S:arg6]]: tensor<1x2x8x1xbf16> {sscc.state = "quantized_key_scale_scratch"}
  // CHECK-SAME: %[[START:arg7]]: index {sscc.input = "start"}
  // CHECK-NOT: kv.observe
  // CHECK: %[[LM:.+]]:2 = "kv.quantize_keys"(%arg1)
  // CHECK-NEXT: tensor.insert_slice %[[LM]]#0 into %[[L]][0, 0, %[[START]], 0] [1, 2, 4, 2]
  // CHECK-NEXT: tensor.insert_slice %[[LM]]#1 into %[[S]][0, 0, %[[START]], 0] [1, 2, 4, 1]
  // CHECK: "kv.causal_attention"
  //
  // The end of a prompt fills sinks and ring, and selects nothing.
  // CHECK-LABEL: func.func private @prefill.compress.0(
  // CHECK-NOT: kv.observation_scores
  // CHECK-NOT: kv.select
  // CHECK: %[[ZERO:.+]] = arith.constant 0 : index
  // CHECK-NEXT: %[[KEPT:.+]] = "kv.kept_positions"(%{{.+}}, %[[ZERO]]) : (index, index) -> tensor<2x3xi64>
  // CHECK: "kv.gather"(%arg0, %[[KEPT]], 
  func.func private @prefill.layer.0(%q: tensor<1x4x4x8xf32> {sscc.input = "hidden"}, %k: tensor<1x2x4x8xf32> {sscc.weight = "k"},
      %v: tensor<1x2x4x6xf32> {sscc.weight = "v"}) -> (tensor<1x4x4x6xf32> {sscc.output = "hidden"})
      attributes {sscc.entry = "prefill", sscc.layer = 0 : i64} {
    %o = "kv.self_attention"(%q, %k, %v) {layer = 0 : i64, scale = 0.25 : f64}
      : (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>) -> tensor<1x4x4x6xf32>
    return %o : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: prefill layer, encoded rows
// PASSES: thread-cache
module attributes {kv.geometry = #int8, sscc.program = #program} {
  // A chunk's rows are encoded on their way into the scratch, which attention reads; quantized keys are made from the keys themselves.
  // CHECK-LABEL: func.func private @prefill.layer.0(
  // CHECK-SAME: %[[KS:arg3]]: tensor<1x2x8x12xi8> {sscc.state = "k_scratch"}, %[[VS:arg4]]: tensor<1x2x8x10xi8> {sscc.state = "v_scratch"}
  // CHECK: "kv.quantize_keys"(%arg1)
  // CHECK: %[[K:.+]] = "kv.quantize_rows"(%arg1)
  // CHECK: %[[V:.+]] = "kv.quantize_rows"(%arg2)
  // CHECK: %[[K1:.+]] = tensor.insert_slice %[[K]] into %[[KS]]
  // CHECK: %[[V1:.+]] = tensor.insert_slice %[[V]] into %[[VS]]
  // CHECK: "kv.causal_attention"(%arg0, %[[K1]], %[[V1]], 
  // What the end of the prompt copies into the cache is encoded already.
  // CHECK-LABEL: func.func private @prefill.compress.0(
  // CHECK-NOT: kv.quantize_rows
  // CHECK: "kv.gather"(%arg0, %{{.+}}, %{{.+}}) : (tensor<1x2x8x12xi8>, tensor<2x3xi64>, tensor<1x2x3x12xi8>) -> tensor<1x2x3x12xi8>
  func.func private @prefill.layer.0(%q: tensor<1x4x4x8xf32> {sscc.input = "hidden"}, %k: tensor<1x2x4x8xf32> {sscc.weight = "k"},
      %v: tensor<1x2x4x6xf32> {sscc.weight = "v"}) -> (tensor<1x4x4x6xf32> {sscc.output = "hidden"})
      attributes {sscc.entry = "prefill", sscc.layer = 0 : i64} {
    %o = "kv.self_attention"(%q, %k, %v) {layer = 0 : i64, scale = 0.25 : f64}
      : (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>) -> tensor<1x4x4x6xf32>
    return %o : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: quantized keys of 16 bits
// PASSES: thread-cache
module attributes {kv.geometry = #plain, sscc.program = #program} {
  // They are the keys themselves, and have no scales.
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: %[[L:arg7]]: tensor<2x2x8x8xf32> {sscc.state = "quantized_keys"}, %[[P:arg8]]: tensor<2xi64> {sscc.input = "position"}
  // CHECK-SAME: %[[ACTIVE:arg10]]: tensor<2xi1> {sscc.input = "active"}
  // CHECK-NOT: kv.quantize_keys
  // CHECK: %[[L1:.+]] = "kv.update"(%[[L]], %arg1, %[[P]], %[[ACTIVE]])
  // CHECK: "kv.quantized_key_scores"(%arg0, %[[L1]], %[[P]], %[[ACTIVE]]) {scale = 2.500000e-01 : f64}
  func.func private @decode.layer.0(%q: tensor<2x4x1x8xf32> {sscc.input = "hidden"}, %k: tensor<2x2x1x8xf32> {sscc.weight = "k"},
      %v: tensor<2x2x1x6xf32> {sscc.weight = "v"}) -> (tensor<2x4x1x6xf32> {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %o = "kv.self_attention"(%q, %k, %v) {layer = 0 : i64, scale = 0.25 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>) -> tensor<2x4x1x6xf32>
    return %o : tensor<2x4x1x6xf32>
  }
}
