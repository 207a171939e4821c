// Indexed rows: the prompts' K and V stay. B 2, C 4, max_context 6, T 8; caches have 2 + 1 rows.
#geometry = {sink = 0 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64, rows = "indexed"}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 2 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}

// -----

// CASE: the scratch of a prompt is its slot's part of a state
// PASSES: build-entries
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // A phase gets its layer's prompts, of all slots, and cuts out those of its own before the first chunk. Chunks append
  // to them directly, and what they are afterwards goes back to where it was.
  // CHECK-LABEL: func.func private @prefill.phase.layer.0(
  // CHECK-SAME: %[[SLOT:arg5]]: index {sscc.input = "slot"}, %[[R:arg6]]: index {sscc.input = "reused"}
  // CHECK-NOT: scratch
  // CHECK-SAME: %[[O:arg8]]: tensor<1x1x1x8xf32> {sscc.state = "observed"}
  // CHECK-SAME: %[[KC:arg9]]: tensor<2x1x3x8xf32> {sscc.state = "k_cache"}, %[[VC:arg10]]: tensor<2x1x3x8xf32> {sscc.state = "v_cache"}, %[[I:arg11]]: tensor<2x1x1xi64> {sscc.state = "selected"}
  // CHECK-SAME: %[[KP:arg12]]: tensor<2x1x8x8xf32> {sscc.state = "k_store"}, %[[VP:arg13]]: tensor<2x1x8x8xf32> {sscc.state = "v_store"}
  // CHECK-NEXT: %[[K:.+]] = tensor.extract_slice %[[KP]][%[[SLOT]], 0, 0, 0] [1, 1, 8, 8] [1, 1, 1, 1] : tensor<2x1x8x8xf32> to tensor<1x1x8x8xf32>
  // CHECK-NEXT: %[[V:.+]] = tensor.extract_slice %[[VP]][%[[SLOT]], 0, 0, 0] [1, 1, 8, 8]
  // CHECK: %[[LO:.+]] = arith.minsi %{{.+}}, %[[ALL:.+]] : index
  // CHECK: %[[HI:.+]] = arith.minsi %{{.+}}, %[[ALL]] : index
  // CHECK: %[[L:.+]]:4 = scf.for %{{.+}} = %[[LO]] to %[[HI]] {{.*}} iter_args(%[[H:.+]] = %arg7, %[[KS:.+]] = %[[K]], %[[VS:.+]] = %[[V]], %{{.+}} = %[[O]])
  // CHECK: func.call @prefill.layer.0(%{{.+}}, %[[KS]], %[[VS]],
  // CHECK: %[[C:.+]]:3 = scf.if
  // CHECK-NEXT: func.call @prefill.compress.0(%[[L]]#1, %[[L]]#2, %[[L]]#3, %[[KC]], %[[VC]], %[[I]], %[[SLOT]], %arg4)
  // CHECK: else
  // CHECK-NEXT: scf.yield %[[KC]], %[[VC]], %[[I]]
  // CHECK: %[[KP1:.+]] = tensor.insert_slice %[[L]]#1 into %[[KP]][%[[SLOT]], 0, 0, 0]
  // CHECK-NEXT: %[[VP1:.+]] = tensor.insert_slice %[[L]]#2 into %[[VP]][%[[SLOT]], 0, 0, 0]
  // CHECK-NEXT: return %[[L]]#0, %[[L]]#3, %[[C]]#0, %[[C]]#1, %[[C]]#2, %[[KP1]], %[[VP1]]
  //
  // Prompts and positions are stacked over layers, as the caches are; there is no scratch besides.
  // CHECK-LABEL: func.func public @prefill(
  // CHECK-NOT: scratch
  // CHECK-SAME: tensor<2x2x1x1xi64> {sscc.state = "selected"}, %[[P:.+]]: tensor<2x2x1x8x8xf32> {sscc.state = "k_store"}, %{{.+}}: tensor<2x2x1x8x8xf32> {sscc.state = "v_store"}
  // CHECK: %[[A:.+]] = tensor.extract_slice %[[P]][0, 0, 0, 0, 0] [1, 2, 1, 8, 8]
  // CHECK: %[[M:.+]]:7 = call @prefill.phase.layer.0(
  // CHECK: %[[P1:.+]] = tensor.insert_slice %[[M]]#5 into %[[P]][0, 0, 0, 0, 0]
  // CHECK: tensor.extract_slice %[[P1]][1, 0, 0, 0, 0] [1, 2, 1, 8, 8]
  // CHECK: call @prefill.phase.layer.1(
  //
  // Decode reads prompts and positions, layer by layer, and gives back the caches alone.
  // CHECK-LABEL: func.func public @decode(
  // CHECK-SAME: %[[DK:[a-z0-9]+]]: tensor<2x2x1x3x8xf32> {sscc.state = "k_cache"}
  // CHECK-SAME: %[[DP:[a-z0-9]+]]: tensor<2x2x1x8x8xf32> {sscc.state = "k_store"}
  // CHECK-SAME: %[[DI:[a-z0-9]+]]: tensor<2x2x1x1xi64> {sscc.state = "selected"}
  // CHECK-SAME: -> (tensor<2x9xf32> {sscc.output = "logits"}, tensor<2x2x1x3x8xf32> {sscc.state = "k_cache"}, tensor<2x2x1x3x8xf32> {sscc.state = "v_cache"})
  // CHECK: tensor.extract_slice %[[DP]][0, 0, 0, 0, 0]
  // CHECK: tensor.extract_slice %[[DI]][0, 0, 0, 0]
  // CHECK: %[[D:.+]]:3 = call @decode.layer.0(
  // CHECK: tensor.insert_slice %[[D]]#1 into %[[DK]][0, 0, 0, 0, 0]
  // CHECK: tensor.extract_slice %[[DP]][1, 0, 0, 0, 0]
  // CHECK: call @decode.layer.1(
  func.func private @prefill.embed(tensor<1x4xi64> {sscc.input = "ids"}, tensor<1x4xi64> {sscc.input = "positions"}) -> (tensor<1x4x8xf32> {sscc.output = "hidden"})
  func.func private @prefill.layer.0(tensor<1x4x8xf32> {sscc.input = "hidden"}, tensor<1x1x8x8xf32> {sscc.state = "k_scratch"},
    tensor<1x1x8x8xf32> {sscc.state = "v_scratch"}, tensor<1x1x1x8xf32> {sscc.state = "observed"}, index {sscc.input = "start"}, index {sscc.input = "length"})
    -> (tensor<1x4x8xf32> {sscc.output = "hidden"}, tensor<1x1x8x8xf32> {sscc.state = "k_scratch"},
        tensor<1x1x8x8xf32> {sscc.state = "v_scratch"}, tensor<1x1x1x8xf32> {sscc.state = "observed"})
  func.func private @prefill.compress.0(tensor<1x1x8x8xf32> {sscc.state = "k_scratch"}, tensor<1x1x8x8xf32> {sscc.state = "v_scratch"},
    tensor<1x1x1x8xf32> {sscc.state = "observed"}, tensor<2x1x3x8xf32> {sscc.state = "k_cache"}, tensor<2x1x3x8xf32> {sscc.state = "v_cache"},
    tensor<2x1x1xi64> {sscc.state = "selected"}, index {sscc.input = "slot"}, index {sscc.input = "length"})
    -> (tensor<2x1x3x8xf32> {sscc.state = "k_cache"}, tensor<2x1x3x8xf32> {sscc.state = "v_cache"}, tensor<2x1x1xi64> {sscc.state = "selected"})
  func.func private @prefill.layer.1(tensor<1x4x8xf32> {sscc.input = "hidden"}, tensor<1x1x8x8xf32> {sscc.state = "k_scratch"},
    tensor<1x1x8x8xf32> {sscc.state = "v_scratch"}, tensor<1x1x1x8xf32> {sscc.state = "observed"}, index {sscc.input = "start"}, index {sscc.input = "length"})
    -> (tensor<1x4x8xf32> {sscc.output = "hidden"}, tensor<1x1x8x8xf32> {sscc.state = "k_scratch"},
        tensor<1x1x8x8xf32> {sscc.state = "v_scratch"}, tensor<1x1x1x8xf32> {sscc.state = "observed"})
  func.func private @prefill.compress.1(tensor<1x1x8x8xf32> {sscc.state = "k_scratch"}, tensor<1x1x8x8xf32> {sscc.state = "v_scratch"},
    tensor<1x1x1x8xf32> {sscc.state = "observed"}, tensor<2x1x3x8xf32> {sscc.state = "k_cache"}, tensor<2x1x3x8xf32> {sscc.state = "v_cache"},
    tensor<2x1x1xi64> {sscc.state = "selected"}, index {sscc.input = "slot"}, index {sscc.input = "length"})
    -> (tensor<2x1x3x8xf32> {sscc.state = "k_cache"}, tensor<2x1x3x8xf32> {sscc.state = "v_cache"}, tensor<2x1x1xi64> {sscc.state = "selected"})
  func.func private @prefill.head(tensor<1x4x8xf32> {sscc.input = "hidden"}, tensor<1xi64> {sscc.input = "last"}) -> (tensor<1x1x9xf32> {sscc.output = "logits"})
  func.func private @decode.embed(tensor<2x1xi64> {sscc.input = "ids"}, tensor<2x1xi64> {sscc.input = "positions"}) -> (tensor<2x1x8xf32> {sscc.output = "hidden"})
  func.func private @decode.layer.0(tensor<2x1x8xf32> {sscc.input = "hidden"}, tensor<2x1x3x8xf32> {sscc.state = "k_cache"},
    tensor<2x1x3x8xf32> {sscc.state = "v_cache"}, tensor<2x1x8x8xf32> {sscc.state = "k_store"}, tensor<2x1x8x8xf32> {sscc.state = "v_store"},
    tensor<2x1x1xi64> {sscc.state = "selected"}, tensor<2xi64> {sscc.input = "position"}, tensor<2xi64> {sscc.input = "base"}, tensor<2xi1> {sscc.input = "active"})
    -> (tensor<2x1x8xf32> {sscc.output = "hidden"}, tensor<2x1x3x8xf32> {sscc.state = "k_cache"}, tensor<2x1x3x8xf32> {sscc.state = "v_cache"})
  func.func private @decode.layer.1(tensor<2x1x8xf32> {sscc.input = "hidden"}, tensor<2x1x3x8xf32> {sscc.state = "k_cache"},
    tensor<2x1x3x8xf32> {sscc.state = "v_cache"}, tensor<2x1x8x8xf32> {sscc.state = "k_store"}, tensor<2x1x8x8xf32> {sscc.state = "v_store"},
    tensor<2x1x1xi64> {sscc.state = "selected"}, tensor<2xi64> {sscc.input = "position"}, tensor<2xi64> {sscc.input = "base"}, tensor<2xi1> {sscc.input = "active"})
    -> (tensor<2x1x8xf32> {sscc.output = "hidden"}, tensor<2x1x3x8xf32> {sscc.state = "k_cache"}, tensor<2x1x3x8xf32> {sscc.state = "v_cache"})
  func.func private @decode.head(tensor<2x1x8xf32> {sscc.input = "hidden"}) -> (tensor<2x1x9xf32> {sscc.output = "logits"})
}
