// One layer without weights; B 2, C 4, max_context 6 (scratch of T = 8 rows), no top-K unless said otherwise.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 0 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}
!h = tensor<1x4x8xf32>
!k = tensor<1x1x8x8xf32>
!q = tensor<1x1x1x8xf32>
!c = tensor<2x1x3x8xf32>

// -----

// CASE: the entries of one layer
// PASSES: build-entries
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // How far a phase gets: only the phase that the cursor is in moves; at its end the cursor goes to the next one.
  // CHECK-LABEL: func.func private @advance(
  // CHECK-SAME: %[[PHASE:arg0]]: index {sscc.input = "phase"}, %[[CHUNK:arg1]]: index {sscc.input = "chunk"}, %[[STEPS:arg2]]: index {sscc.input = "steps"}, %[[INDEX:arg3]]: index {sscc.input = "index"}, %[[LIMIT:arg4]]: index {sscc.input = "limit"}
  // CHECK-NEXT: %[[ACTIVE:.+]] = arith.cmpi eq, %[[PHASE]], %[[INDEX]]
  // CHECK-NEXT: %[[REACH:.+]] = arith.addi %[[CHUNK]], %[[STEPS]]
  // CHECK-NEXT: %[[LEAST:.+]] = arith.minsi %[[REACH]], %[[LIMIT]]
  // CHECK-NEXT: %[[HI:.+]] = arith.select %[[ACTIVE]], %[[LEAST]], %[[CHUNK]]
  // CHECK-NEXT: %[[ENDED:.+]] = arith.cmpi eq, %[[HI]], %[[LIMIT]]
  // CHECK-NEXT: %[[DONE:.+]] = arith.andi %[[ACTIVE]], %[[ENDED]]
  // CHECK: return %[[HI]], %[[DONE]]
  //
  // The caller gives tokens and the cursor, keeps the states, and gets logits and the cursor back.
  // CHECK-LABEL: func.func public @prefill(
  // CHECK-SAME: tensor<1x8xi64> {sscc.input = "tokens"}
  // CHECK-SAME: {sscc.input = "length"}
  // CHECK-SAME: {sscc.input = "slot"}
  // CHECK-SAME: {sscc.input = "phase"}
  // CHECK-SAME: {sscc.input = "chunk"}
  // CHECK-SAME: {sscc.input = "steps"}
  // CHECK-SAME: tensor<1x9xf32> {sscc.output = "prefill_logits"}
  // CHECK-SAME: tensor<1x8x8xf32> {sscc.state = "hidden"}
  // CHECK-SAME: tensor<1x2x1x3x8xf32> {sscc.state = "k_cache"}
  // CHECK-SAME: -> (tensor<1x9xf32> {sscc.output = "prefill_logits"}, index {sscc.output = "phase"}, index {sscc.output = "chunk"}, tensor<1x8x8xf32> {sscc.state = "hidden"}
  //
  // Trip counts follow the prompt's length, not the context's.
  // CHECK: %[[CHUNKS:.+]] = arith.ceildivsi %arg1, %c4
  //
  // Phase 0 embeds chunk by chunk; positions past the prompt's end repeat its last one.
  // CHECK: %[[A:.+]]:5 = call @advance(%arg3, %arg4, %arg5, %c0, %[[CHUNKS]])
  // CHECK: %[[EMBEDDED:.+]] = scf.for %[[C:.+]] = %arg4 to %[[A]]#0 step %{{.+}} iter_args(%[[HIDDEN:.+]] = %arg7)
  // CHECK: %[[START:.+]] = arith.muli %[[C]],
  // CHECK: tensor.extract_slice %arg0[0, %[[START]]] [1, 4]
  // CHECK: arith.minsi
  // CHECK: %[[H:.+]] = func.call @prefill.embed(
  // CHECK: tensor.insert_slice %[[H]] into %[[HIDDEN]][0, %[[START]], 0] [1, 4, 8]
  //
  // Phase 1 is layer 0, and goes on from where phase 0 left the cursor.
  // CHECK: %[[B:.+]]:5 = call @advance(%[[A]]#2, %[[A]]#3, %[[A]]#4, %c1{{.*}}, %[[CHUNKS]])
  // CHECK: %[[L:.+]]:4 = scf.for %[[C:.+]] = %[[A]]#3 to %[[B]]#0 {{.*}} iter_args(%[[HIDDEN:.+]] = %[[EMBEDDED]],
  // CHECK: func.call @prefill.layer.0(
  //
  // The layer is compressed once all of its chunks are done.
  // CHECK: scf.if %[[B]]#1
  // CHECK: func.call @prefill.compress.0(%[[L]]#1, %[[L]]#2, %[[L]]#3, %{{.+}}, %{{.+}}, %arg2, %arg1)
  //
  // The last phase is the head: one step, on the chunk and the row of the last token.
  // CHECK: %[[D:.+]]:5 = call @advance(%[[B]]#2, %[[B]]#3, %[[B]]#4, %c2{{.*}}, %c1{{.*}})
  // CHECK: scf.if %[[D]]#1
  // CHECK: tensor.extract_slice %[[L]]#0[0, %{{.+}}, 0] [1, 4, 8]
  // CHECK: func.call @prefill.head(
  // CHECK: return %{{.+}}, %[[D]]#2, %[[D]]#3, %[[L]]#0
  //
  // Decode knows nothing of chunks, and touches no prefill state.
  // CHECK-LABEL: func.func public @decode(
  // CHECK-SAME: tensor<2x1xi64> {sscc.input = "token"}
  // CHECK-SAME: {sscc.input = "active"}
  // CHECK-NOT: scf.for
  // CHECK-NOT: scratch
  // CHECK: call @decode.embed(
  // CHECK: call @decode.layer.0(
  // CHECK: call @decode.head(
  func.func private @prefill.embed(tensor<1x4xi64> {sscc.input = "ids"}, tensor<1x4xi64> {sscc.input = "positions"}) -> (!h {sscc.output = "hidden"})
  func.func private @prefill.layer.0(!h {sscc.input = "hidden"}, !k {sscc.state = "k_scratch"}, !k {sscc.state = "v_scratch"}, !q {sscc.state = "observed"},
    index {sscc.input = "start"}, index {sscc.input = "length"})
    -> (!h {sscc.output = "hidden"}, !k {sscc.state = "k_scratch"}, !k {sscc.state = "v_scratch"}, !q {sscc.state = "observed"})
  func.func private @prefill.compress.0(!k {sscc.state = "k_scratch"}, !k {sscc.state = "v_scratch"}, !q {sscc.state = "observed"},
    !c {sscc.state = "k_cache"}, !c {sscc.state = "v_cache"}, index {sscc.input = "slot"}, index {sscc.input = "length"})
    -> (!c {sscc.state = "k_cache"}, !c {sscc.state = "v_cache"})
  func.func private @prefill.head(!h {sscc.input = "hidden"}, tensor<1xi64> {sscc.input = "last"}) -> (tensor<1x1x9xf32> {sscc.output = "logits"})
  func.func private @decode.embed(tensor<2x1xi64> {sscc.input = "ids"}, tensor<2x1xi64> {sscc.input = "positions"}) -> (tensor<2x1x8xf32> {sscc.output = "hidden"})
  func.func private @decode.layer.0(tensor<2x1x8xf32> {sscc.input = "hidden"}, !c {sscc.state = "k_cache"}, !c {sscc.state = "v_cache"},
    tensor<2xi64> {sscc.input = "position"}, tensor<2xi64> {sscc.input = "valid_topk"}, tensor<2xi1> {sscc.input = "active"})
    -> (tensor<2x1x8xf32> {sscc.output = "hidden"}, !c {sscc.state = "k_cache"}, !c {sscc.state = "v_cache"})
  func.func private @decode.head(tensor<2x1x8xf32> {sscc.input = "hidden"}) -> (tensor<2x1x9xf32> {sscc.output = "logits"})
}

// -----

// CASE: weights and tables
// PASSES: build-entries
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // A table is a state of prefill, as long as the scratch; the token axis is the one where prefill has a chunk and
  // decode one token, here the first. A weight that two parts share is one argument.
  // CHECK-LABEL: func.func public @prefill(
  // CHECK-SAME: tensor<8x1x5xf32> {sscc.state = "table.0"}
  // CHECK-SAME: {sscc.weight = "tied"}, %{{.+}}: tensor<8xf32> {sscc.constant = "scale"}) ->
  // CHECK: tensor.insert_slice %{{.+}} into %{{.+}}[%{{.+}}, 0, 0] [4, 1, 5]
  // CHECK: tensor.extract_slice %{{.+}}[%{{.+}}, 0, 0] [4, 1, 5]
  // CHECK: func.call @prefill.layer.0(
  // CHECK-LABEL: func.func public @decode(
  // CHECK-SAME: {sscc.weight = "tied"}) ->
  func.func private @prefill.embed(tensor<1x4xi64> {sscc.input = "ids"}, tensor<1x4xi64> {sscc.input = "positions"}, tensor<9x8xf32> {sscc.weight = "tied"})
    -> (!h {sscc.output = "hidden"}, tensor<4x1x5xf32> {sscc.output = "table.0"})
  func.func private @prefill.layer.0(!h {sscc.input = "hidden"}, tensor<4x1x5xf32> {sscc.input = "table.0"}, !k {sscc.state = "k_scratch"},
    !k {sscc.state = "v_scratch"}, !q {sscc.state = "observed"}, index {sscc.input = "start"}, index {sscc.input = "length"})
    -> (!h {sscc.output = "hidden"}, !k {sscc.state = "k_scratch"}, !k {sscc.state = "v_scratch"}, !q {sscc.state = "observed"})
  func.func private @prefill.compress.0(!k {sscc.state = "k_scratch"}, !k {sscc.state = "v_scratch"}, !q {sscc.state = "observed"},
    !c {sscc.state = "k_cache"}, !c {sscc.state = "v_cache"}, index {sscc.input = "slot"}, index {sscc.input = "length"})
    -> (!c {sscc.state = "k_cache"}, !c {sscc.state = "v_cache"})
  func.func private @prefill.head(!h {sscc.input = "hidden"}, tensor<1xi64> {sscc.input = "last"}, tensor<9x8xf32> {sscc.weight = "tied"},
    tensor<8xf32> {sscc.constant = "scale"}) -> (tensor<1x1x9xf32> {sscc.output = "logits"})
  func.func private @decode.embed(tensor<2x1xi64> {sscc.input = "ids"}, tensor<2x1xi64> {sscc.input = "positions"}, tensor<9x8xf32> {sscc.weight = "tied"})
    -> (tensor<2x1x8xf32> {sscc.output = "hidden"}, tensor<1x1x5xf32> {sscc.output = "table.0"})
  func.func private @decode.layer.0(tensor<2x1x8xf32> {sscc.input = "hidden"}, tensor<1x1x5xf32> {sscc.input = "table.0"}, !c {sscc.state = "k_cache"},
    !c {sscc.state = "v_cache"}, tensor<2xi64> {sscc.input = "position"}, tensor<2xi64> {sscc.input = "valid_topk"}, tensor<2xi1> {sscc.input = "active"})
    -> (tensor<2x1x8xf32> {sscc.output = "hidden"}, !c {sscc.state = "k_cache"}, !c {sscc.state = "v_cache"})
  func.func private @decode.head(tensor<2x1x8xf32> {sscc.input = "hidden"}, tensor<9x8xf32> {sscc.weight = "tied"}) -> (tensor<2x1x9xf32> {sscc.output = "logits"})
}
