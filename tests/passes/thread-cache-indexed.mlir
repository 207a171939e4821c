// Indexed rows. B 2, C 4, H 4, Hkv 2, D 8, Dv 6; max_context 6, so a prompt has T = 8 rows, and a cache 4.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64, rows = "indexed"}
#no_sink = {sink = 0 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64, rows = "indexed"}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}

// -----

// CASE: decode layer
// PASSES: thread-cache
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The caches have as many rows as compact ones. Prompts and their selected positions are read, and are no results.
  // CHECK-LABEL: func.func private @decode.layer.3(
  // CHECK-SAME: %[[Q:arg0]]: tensor<2x4x1x8xf32> {sscc.input = "hidden"}
  // CHECK-SAME: %[[K:arg1]]: tensor<2x2x1x8xf32> {sscc.weight = "k"}
  // CHECK-SAME: %[[V:arg2]]: tensor<2x2x1x6xf32> {sscc.weight = "v"}
  // CHECK-SAME: %[[KC:arg3]]: tensor<2x2x4x8xf32> {sscc.state = "k_cache"}
  // CHECK-SAME: %[[VC:arg4]]: tensor<2x2x4x6xf32> {sscc.state = "v_cache"}
  // CHECK-SAME: %[[KP:arg5]]: tensor<2x2x8x8xf32> {sscc.state = "k_store"}
  // CHECK-SAME: %[[VP:arg6]]: tensor<2x2x8x6xf32> {sscc.state = "v_store"}
  // CHECK-SAME: %[[I:arg7]]: tensor<2x2x1xi64> {sscc.state = "selected"}
  // CHECK-SAME: %[[POSITION:arg8]]: tensor<2xi64> {sscc.input = "position"}
  // CHECK-SAME: %[[BASE:arg9]]: tensor<2xi64> {sscc.input = "base"}
  // CHECK-SAME: %[[ACTIVE:arg10]]: tensor<2xi1> {sscc.input = "active"}
  // CHECK-SAME: {sscc.output = "hidden"}, tensor<2x2x4x8xf32> {sscc.state = "k_cache"}, tensor<2x2x4x6xf32> {sscc.state = "v_cache"})
  //
  // Attention is over two segments: the cache, and the selected rows of the prompt, which stay where they are. The mask
  // knows which rows of the cache they replace.
  // CHECK-NEXT: %[[TOPK:.+]] = arith.constant 1 : index
  // CHECK-NEXT: %[[ROW:.+]] = "kv.row"(%[[POSITION]], %[[BASE]], %[[TOPK]])
  // CHECK-NEXT: %[[K1:.+]] = "kv.update"(%[[KC]], %[[K]], %[[ROW]], %[[ACTIVE]])
  // CHECK-NEXT: %[[V1:.+]] = "kv.update"(%[[VC]], %[[V]], %[[ROW]], %[[ACTIVE]])
  // CHECK-NEXT: %[[VALID:.+]] = "kv.validity"(%[[POSITION]], %[[BASE]], %[[ACTIVE]], %[[TOPK]], %[[I]]) {{.*}} -> tensor<2x5xi1>
  // CHECK-NEXT: %[[NEAR:.+]] = tensor.extract_slice %[[VALID]][0, 0] [2, 4]
  // CHECK-NEXT: %[[FAR:.+]] = tensor.extract_slice %[[VALID]][0, 4] [2, 1]
  // CHECK-NEXT: %[[OUT:.+]] = "kv.cached_attention"(%[[Q]], %[[K1]], %[[V1]], %[[NEAR]], %[[KP]], %[[VP]], %[[FAR]], %[[I]]) {{{.*}}scale = 2.500000e-01 : f64}
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
  // A chunk knows nothing of where rows live: it appends to a scratch, which is a part of the prompts.
  // CHECK-LABEL: func.func private @prefill.layer.0(
  // CHECK-SAME: tensor<1x2x8x8xf32> {sscc.state = "k_scratch"}
  // CHECK-SAME: tensor<1x2x8x6xf32> {sscc.state = "v_scratch"}
  // CHECK: tensor.insert_slice
  // CHECK: "kv.causal_attention"
  //
  // Compression writes rows that are not selected, and the positions of the slot: no row is gathered by them.
  // CHECK-LABEL: func.func private @prefill.compress.0(
  // CHECK-SAME: %[[KC:arg4]]: tensor<2x2x4x8xf32> {sscc.state = "k_cache"}, %[[VC:arg5]]: tensor<2x2x4x6xf32> {sscc.state = "v_cache"}
  // CHECK-SAME: %[[I:arg6]]: tensor<2x2x1xi64> {sscc.state = "selected"}
  // CHECK-SAME: %[[SLOT:arg7]]: index {sscc.input = "slot"}, %[[N:arg8]]: index {sscc.input = "length"}
  // CHECK-SAME: tensor<2x2x1xi64> {sscc.state = "selected"})
  // CHECK: %[[PICKED:.+]] = "kv.select"({{.*}}, %[[TOPK:[a-z0-9]+]]) {{.*}} -> tensor<2x1xi64>
  // CHECK-NEXT: %[[KEPT:.+]] = "kv.kept_positions"(%[[N]], %[[TOPK]]) : (index, index) -> tensor<2x4xi64>
  // CHECK-NEXT: %[[PLACE:.+]] = tensor.extract_slice %[[KC]][%[[SLOT]], 0, 0, 0] [1, 2, 4, 8]
  // CHECK-NEXT: %[[ROWS:.+]] = "kv.gather"(%arg0, %[[KEPT]], %[[PLACE]]) {{.*}} -> tensor<1x2x4x8xf32>
  // CHECK-NEXT: %[[K1:.+]] = tensor.insert_slice %[[ROWS]] into %[[KC]][%[[SLOT]], 0, 0, 0] [1, 2, 4, 8]
  // CHECK-NEXT: %[[PLACE:.+]] = tensor.extract_slice %[[VC]][%[[SLOT]], 0, 0, 0] [1, 2, 4, 6]
  // CHECK-NEXT: %[[ROWS:.+]] = "kv.gather"(%arg1, %[[KEPT]], %[[PLACE]])
  // CHECK-NEXT: %[[V1:.+]] = tensor.insert_slice %[[ROWS]] into %[[VC]][%[[SLOT]], 0, 0, 0] [1, 2, 4, 6]
  // CHECK-NEXT: %[[I1:.+]] = tensor.insert_slice %[[PICKED]] into %[[I]][%[[SLOT]], 0, 0] [1, 2, 1]
  // CHECK-NEXT: return %[[K1]], %[[V1]], %[[I1]]
  func.func private @prefill.layer.0(%q: tensor<1x4x4x8xf32> {sscc.input = "hidden"}, %k: tensor<1x2x4x8xf32> {sscc.weight = "k"},
      %v: tensor<1x2x4x6xf32> {sscc.weight = "v"}) -> (tensor<1x4x4x6xf32> {sscc.output = "hidden"})
      attributes {sscc.entry = "prefill", sscc.layer = 0 : i64} {
    %o = "kv.self_attention"(%q, %k, %v) {layer = 0 : i64, scale = 0.25 : f64}
      : (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x6xf32>) -> tensor<1x4x4x6xf32>
    return %o : tensor<1x4x4x6xf32>
  }
}

// -----

// CASE: without sinks
// PASSES: thread-cache
module attributes {kv.geometry = #no_sink, sscc.program = #program} {
  // The cache begins with the rows that those of the prompt replace.
  // CHECK-LABEL: func.func private @prefill.compress.0(
  // CHECK: "kv.kept_positions"({{.*}} : (index, index) -> tensor<4x3xi64>
  // CHECK: %[[R:.+]] = "kv.gather"
  // CHECK-NEXT: tensor.insert_slice %[[R]] into %arg4[%arg7, 0, 0, 0] [1, 4, 3, 8]
  // CHECK: tensor.insert_slice {{.*}} into %arg6[%arg7, 0, 0] [1, 4, 1]
  func.func private @prefill.layer.0(%h: tensor<1x4x4x8xf32> {sscc.input = "hidden"}) -> (tensor<1x4x4x8xf32> {sscc.output = "hidden"})
      attributes {sscc.entry = "prefill", sscc.layer = 0 : i64} {
    %o = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64}
      : (tensor<1x4x4x8xf32>, tensor<1x4x4x8xf32>, tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32>
    return %o : tensor<1x4x4x8xf32>
  }
}
