// B 2, C 4, H 4, Hkv 2, D 8, Dv 6; max_context 6, so the prompt scratch has T = 8 rows.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64}
#no_sink = {sink = 0 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64}
#ring = {sink = 0 : i64, recent = 2 : i64, topk = 0 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}

// -----

// CASE: decode layer
// PASSES: thread-cache
// LOCATIONS
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // States and slots are appended to the arguments; the caches are results too. A cache has sink + topk + recent rows,
  // and values have their own head dim.
  // CHECK-LABEL: func.func private @decode.layer.3(
  // CHECK-SAME: %[[Q:arg0]]: tensor<2x4x1x8xf32> {sscc.input = "hidden"}
  // CHECK-SAME: %[[K:arg1]]: tensor<2x2x1x8xf32> {sscc.weight = "k"}
  // CHECK-SAME: %[[V:arg2]]: tensor<2x2x1x6xf32> {sscc.weight = "v"}
  // CHECK-SAME: %[[KC:arg3]]: tensor<2x2x4x8xf32> {sscc.state = "k_cache"}
  // CHECK-SAME: %[[VC:arg4]]: tensor<2x2x4x6xf32> {sscc.state = "v_cache"}
  // CHECK-SAME: %[[POSITION:arg5]]: tensor<2xi64> {sscc.input = "position"}
  // CHECK-SAME: %[[BASE:arg6]]: tensor<2xi64> {sscc.input = "base"}
  // CHECK-SAME: %[[ACTIVE:arg7]]: tensor<2xi1> {sscc.input = "active"}
  // CHECK-SAME: {sscc.output = "hidden"}, tensor<2x2x4x8xf32> {sscc.state = "k_cache"}, tensor<2x2x4x6xf32> {sscc.state = "v_cache"})
  // CHECK-SAME: attributes {sscc.entry = "decode", sscc.layer = 3 : i64}
  //
  // The new row is written before anything is read, and every new operation has the location of the attention.
  // CHECK-NEXT: %[[TOPK:.+]] = arith.constant 1 : index loc("layers.3"("model.py":5:0))
  // CHECK-NEXT: %[[ROW:.+]] = "kv.row"(%[[POSITION]], %[[BASE]], %[[TOPK]]) {{.*}} loc("layers.3"("model.py":5:0))
  // CHECK-NEXT: %[[K1:.+]] = "kv.update"(%[[KC]], %[[K]], %[[ROW]], %[[ACTIVE]])
  // CHECK-NEXT: %[[V1:.+]] = "kv.update"(%[[VC]], %[[V]], %[[ROW]], %[[ACTIVE]])
  // CHECK-NEXT: %[[VALID:.+]] = "kv.validity"(%[[POSITION]], %[[BASE]], %[[ACTIVE]], %[[TOPK]])
  // CHECK-NEXT: %[[OUT:.+]] = "kv.cached_attention"(%[[Q]], %[[K1]], %[[V1]], %[[VALID]]) {{{.*}}scale = 2.500000e-01 : f64}
  // CHECK-SAME: loc("layers.3"("model.py":5:0))
  //
  // The rest of the layer stays.
  // CHECK-NEXT: %[[H:.+]] = math.tanh %[[OUT]]
  // CHECK-NEXT: return %[[H]], %[[K1]], %[[V1]]
  //
  // Decode layers alone are compressed nowhere.
  // CHECK-NOT: compress
  func.func private @decode.layer.3(%q: tensor<2x4x1x8xf32> {sscc.input = "hidden"}, %k: tensor<2x2x1x8xf32> {sscc.weight = "k"},
      %v: tensor<2x2x1x6xf32> {sscc.weight = "v"}) -> (tensor<2x4x1x6xf32> {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 3 : i64} {
    %o = "kv.self_attention"(%q, %k, %v) {layer = 3 : i64, scale = 0.25 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x6xf32>) -> tensor<2x4x1x6xf32> loc("layers.3"("model.py":5:0))
    %h = math.tanh %o : tensor<2x4x1x6xf32>
    return %h : tensor<2x4x1x6xf32>
  }
}

// -----

// CASE: prefill layer
// PASSES: thread-cache
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The scratch holds whole chunks: 8 rows for a context of 6. Three queries are observed.
  // CHECK-LABEL: func.func private @prefill.layer.0(
  // CHECK-SAME: %[[KS:arg3]]: tensor<1x2x8x8xf32> {sscc.state = "k_scratch"}
  // CHECK-SAME: %[[VS:arg4]]: tensor<1x2x8x6xf32> {sscc.state = "v_scratch"}
  // CHECK-SAME: %[[OBSERVED:arg5]]: tensor<1x4x3x8xf32> {sscc.state = "observed"}
  // CHECK-SAME: %[[LSE:arg6]]: tensor<1x4x3x1xf32> {sscc.state = "log_sum_exp"}
  // CHECK-SAME: %[[START:arg7]]: index {sscc.input = "start"}, %[[LENGTH:arg8]]: index {sscc.input = "length"}
  //
  // The chunk is appended at its start, then attends to the scratch.
  // CHECK-NEXT: %[[K1:.+]] = tensor.insert_slice %arg1 into %[[KS]][0, 0, %[[START]], 0] [1, 2, 4, 8]
  // CHECK-NEXT: %[[V1:.+]] = tensor.insert_slice %arg2 into %[[VS]][0, 0, %[[START]], 0] [1, 2, 4, 6]
  // CHECK-NEXT: %[[OUT:.+]]:2 = "kv.causal_attention"(%arg0, %[[K1]], %[[V1]], %[[START]], %[[LENGTH]]) {scale = 2.500000e-01 : f64}
  //
  // What is observed: the last queries, and the log-sum-exp that attention found for each of them.
  // CHECK-NEXT: %[[SEEN:.+]] = "kv.observe"(%[[OBSERVED]], %arg0, %[[START]], %[[LENGTH]])
  // CHECK-NEXT: %[[KEPT:.+]] = "kv.observe"(%[[LSE]], %[[OUT]]#1, %[[START]], %[[LENGTH]])
  // CHECK-NEXT: return %[[OUT]]#0, %[[K1]], %[[V1]], %[[SEEN]], %[[KEPT]]
  //
  // Compression is a function of its own, once per layer; it writes one slot of both caches.
  // CHECK-LABEL: func.func private @prefill.compress.0(
  // CHECK-SAME: %[[KC:arg4]]: tensor<2x2x4x8xf32> {sscc.state = "k_cache"}, %[[VC:arg5]]: tensor<2x2x4x6xf32> {sscc.state = "v_cache"}
  // CHECK-SAME: %[[SLOT:arg6]]: index {sscc.input = "slot"}, %[[N:arg7]]: index {sscc.input = "length"}
  // CHECK-SAME: tensor<2x1xi64> {sscc.state = "selected"})
  //
  // Keys decide which positions are selected, for keys and values alike.
  // CHECK-NEXT: %[[TOPK:.+]] = arith.constant 1 : index
  // CHECK-NEXT: %[[SCORES:.+]] = "kv.observation_scores"(%arg2, %arg3, %arg0, %[[N]]) {scale = 2.500000e-01 : f64} {{.*}} -> tensor<2x8xf32>
  // CHECK-NEXT: %[[POOLED:.+]] = "kv.pool"(%[[SCORES]], %[[N]])
  // CHECK-NEXT: %[[PICKED:.+]] = "kv.select"(%[[POOLED]], %[[N]], %[[TOPK]]) {{.*}} -> tensor<2x1xi64>
  //
  // Sinks, then what was selected, then the ring: the positions in the rows of the cache, in order.
  // CHECK-NEXT: %[[INDEX:.+]] = "kv.kept_positions"(%[[N]], %[[TOPK]], %[[PICKED]]) {{.*}} -> tensor<2x4xi64>
  // CHECK-NEXT: %[[PLACE:.+]] = tensor.extract_slice %[[KC]][%[[SLOT]], 0, 0, 0] [1, 2, 4, 8]
  // CHECK-NEXT: %[[ROWS:.+]] = "kv.gather"(%arg0, %[[INDEX]], %[[PLACE]]) {{.*}} -> tensor<1x2x4x8xf32>
  // CHECK-NEXT: %[[K2:.+]] = tensor.insert_slice %[[ROWS]] into %[[KC]][%[[SLOT]], 0, 0, 0] [1, 2, 4, 8]
  // CHECK-NEXT: %[[PLACE:.+]] = tensor.extract_slice %[[VC]][%[[SLOT]], 0, 0, 0] [1, 2, 4, 6]
  // CHECK-NEXT: %[[ROWS:.+]] = "kv.gather"(%arg1, %[[INDEX]], %[[PLACE]])
  // CHECK-NEXT: %[[V2:.+]] = tensor.insert_slice %[[ROWS]] into %[[VC]][%[[SLOT]], 0, 0, 0] [1, 2, 4, 6]
  // CHECK-NEXT: return %[[K2]], %[[V2]], %[[PICKED]]
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
  // The cache begins with what was selected.
  // CHECK-LABEL: func.func private @prefill.compress.0(
  // CHECK: "kv.kept_positions"({{.*}} : (index, index, tensor<4x1xi64>) -> tensor<4x3xi64>
  func.func private @prefill.layer.0(%h: tensor<1x4x4x8xf32> {sscc.input = "hidden"}) -> (tensor<1x4x4x8xf32> {sscc.output = "hidden"})
      attributes {sscc.entry = "prefill", sscc.layer = 0 : i64} {
    %o = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64}
      : (tensor<1x4x4x8xf32>, tensor<1x4x4x8xf32>, tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32>
    return %o : tensor<1x4x4x8xf32>
  }
}

// -----

// CASE: only a ring
// PASSES: thread-cache
module attributes {kv.geometry = #ring, sscc.program = #program} {
  // Without top-K nothing is observed, scored or selected.
  // CHECK-LABEL: func.func private @prefill.layer.0(
  // CHECK-NOT: observe
  // CHECK-LABEL: func.func private @prefill.compress.0(
  // CHECK-NOT: selected
  // CHECK-NOT: kv.observation_scores
  // CHECK: %[[TOPK:.+]] = arith.constant 0 : index
  // CHECK-NEXT: %[[RING:.+]] = "kv.kept_positions"(%{{.+}}, %[[TOPK]]) {{.*}} -> tensor<4x2xi64>
  // CHECK-NEXT: %[[KC:.+]] = tensor.extract_slice %arg2[%arg4, 0, 0, 0]
  // CHECK-NEXT: %[[K:.+]] = "kv.gather"(%arg0, %[[RING]], %[[KC]])
  // CHECK-NEXT: tensor.insert_slice %[[K]] into %arg2[%arg4, 0, 0, 0] [1, 4, 2, 8]
  // CHECK-NEXT: %[[VC:.+]] = tensor.extract_slice %arg3[%arg4, 0, 0, 0]
  // CHECK-NEXT: %[[V:.+]] = "kv.gather"(%arg1, %[[RING]], %[[VC]])
  // CHECK-NEXT: tensor.insert_slice %[[V]] into %arg3[%arg4, 0, 0, 0] [1, 4, 2, 8]
  // CHECK-NEXT: return
  func.func private @prefill.layer.0(%h: tensor<1x4x4x8xf32> {sscc.input = "hidden"}) -> (tensor<1x4x4x8xf32> {sscc.output = "hidden"})
      attributes {sscc.entry = "prefill", sscc.layer = 0 : i64} {
    %o = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64}
      : (tensor<1x4x4x8xf32>, tensor<1x4x4x8xf32>, tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32>
    return %o : tensor<1x4x4x8xf32>
  }
}

// -----

// CASE: constants stay with their users
// PASSES: thread-cache
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK: %[[TWO:.+]] = arith.constant dense<2.000000e+00>
  // CHECK-NEXT: %[[Q:.+]] = arith.mulf %arg0, %[[TWO]]
  // CHECK: "kv.cached_attention"(%[[Q]]
  func.func private @decode.layer.0(%h: tensor<2x4x1x8xf32> {sscc.input = "hidden"}) -> (tensor<2x4x1x8xf32> {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %two = arith.constant dense<2.0> : tensor<2x4x1x8xf32>
    %q = arith.mulf %h, %two : tensor<2x4x1x8xf32>
    %o = "kv.self_attention"(%q, %h, %h) {layer = 0 : i64, scale = 0.25 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x4x1x8xf32>, tensor<2x4x1x8xf32>) -> tensor<2x4x1x8xf32>
    return %o : tensor<2x4x1x8xf32>
  }
}
