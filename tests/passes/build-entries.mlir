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
  // Steps are counted from the start of the prompt's work: phase `number` starts after number * chunks of them, and has
  // `limit` of its own. Of those, lo to hi - 1 lie in [begin, end).
  // CHECK-LABEL: func.func private @progress(
  // CHECK-SAME: %[[BEGIN:arg0]]: index {sscc.input = "begin"}, %[[END:arg1]]: index {sscc.input = "end"}, %[[CHUNKS:arg2]]: index {sscc.input = "chunks"}, %[[NUMBER:arg3]]: index {sscc.input = "number"}, %[[LIMIT:arg4]]: index {sscc.input = "limit"}
  // CHECK-SAME: -> (index {sscc.output = "lo"}, index {sscc.output = "hi"}, i1 {sscc.output = "done"})
  // CHECK-NEXT: %[[FIRST:.+]] = arith.muli %[[NUMBER]], %[[CHUNKS]]
  // CHECK-NEXT: %[[ZERO:.+]] = arith.constant 0
  // CHECK-NEXT: %[[FROM:.+]] = arith.subi %[[BEGIN]], %[[FIRST]]
  // CHECK-NEXT: %[[SOME:.+]] = arith.maxsi %[[FROM]], %[[ZERO]]
  // CHECK-NEXT: %[[LO:.+]] = arith.minsi %[[SOME]], %[[LIMIT]]
  // CHECK-NEXT: %[[TO:.+]] = arith.subi %[[END]], %[[FIRST]]
  // CHECK-NEXT: %[[SOME:.+]] = arith.maxsi %[[TO]], %[[ZERO]]
  // CHECK-NEXT: %[[HI:.+]] = arith.minsi %[[SOME]], %[[LIMIT]]
  //
  // A phase is done where it does its last step now: not where it was done before, nor where it has not begun.
  // CHECK-NEXT: %[[ANY:.+]] = arith.cmpi slt, %[[LO]], %[[HI]]
  // CHECK-NEXT: %[[LAST:.+]] = arith.cmpi eq, %[[HI]], %[[LIMIT]]
  // CHECK-NEXT: %[[DONE:.+]] = arith.andi %[[ANY]], %[[LAST]]
  // CHECK-NEXT: return %[[LO]], %[[HI]], %[[DONE]]
  //
  // Phase 0 embeds chunk by chunk, every token where it stands in its text. Chunks that are there already are skipped:
  // the others follow them.
  // CHECK-LABEL: func.func private @prefill.phase.embed(
  // CHECK-SAME: index {sscc.input = "begin"}, %{{.+}}: index {sscc.input = "end"}, %[[CHUNKS:arg2]]: index {sscc.input = "chunks"}, %{{.+}}: index {sscc.input = "number"}
  // CHECK-SAME: %[[LENGTH:arg4]]: index {sscc.input = "length"}, %[[REUSED:arg5]]: index {sscc.input = "reused"}, %[[TOKENS:arg6]]: tensor<1x8xi64> {sscc.input = "tokens"}, %[[IDS:arg7]]: tensor<1x8xi64> {sscc.input = "position_ids"}, %[[HIDDEN:arg8]]: tensor<1x8x8xf32> {sscc.state = "hidden"}) -> (tensor<1x8x8xf32> {sscc.state = "hidden"})
  // CHECK-NEXT: %[[P:.+]]:3 = call @progress(%arg0, %arg1, %[[CHUNKS]], %arg3, %[[CHUNKS]])
  // CHECK: %[[ALL:.+]] = arith.ceildivsi %[[LENGTH]], %c4
  // CHECK-NEXT: %[[FROM:.+]] = arith.addi %[[P]]#0, %[[REUSED]]
  // CHECK-NEXT: %[[FIRST:.+]] = arith.minsi %[[FROM]], %[[ALL]]
  // CHECK-NEXT: %[[TO:.+]] = arith.addi %[[P]]#1, %[[REUSED]]
  // CHECK-NEXT: %[[LAST:.+]] = arith.minsi %[[TO]], %[[ALL]]
  // CHECK-NEXT: %[[EMBEDDED:.+]] = scf.for %[[C:.+]] = %[[FIRST]] to %[[LAST]] step %{{.+}} iter_args(%[[H:.+]] = %[[HIDDEN]])
  // CHECK: %[[START:.+]] = arith.muli %[[C]],
  // CHECK: %[[T:.+]] = tensor.extract_slice %[[TOKENS]][0, %[[START]]] [1, 4]
  // CHECK: %[[I:.+]] = tensor.extract_slice %[[IDS]][0, %[[START]]] [1, 4]
  // CHECK: %[[E:.+]] = func.call @prefill.embed(%[[T]], %[[I]])
  // CHECK-NEXT: %[[H1:.+]] = tensor.insert_slice %[[E]] into %[[H]][0, %[[START]], 0] [1, 4, 8]
  // CHECK-NEXT: scf.yield %[[H1]]
  // CHECK: return %[[EMBEDDED]]
  //
  // The phase of a layer: one step per chunk, its states carried from chunk to chunk.
  // CHECK-LABEL: func.func private @prefill.phase.layer.0(
  // CHECK-SAME: %[[LENGTH:arg4]]: index {sscc.input = "length"}, %[[SLOT:arg5]]: index {sscc.input = "slot"}, %[[REUSED:arg6]]: index {sscc.input = "reused"}
  // CHECK-SAME: %[[HIDDEN:arg7]]: tensor<1x8x8xf32> {sscc.state = "hidden"}
  // CHECK-SAME: %[[KC:arg11]]: tensor<2x1x3x8xf32> {sscc.state = "k_cache"}, %[[VC:arg12]]: tensor<2x1x3x8xf32> {sscc.state = "v_cache"})
  // CHECK: %[[P:.+]]:3 = call @progress(%arg0, %arg1, %arg2, %arg3, %arg2)
  // CHECK: %[[FROM:.+]] = arith.addi %[[P]]#0, %[[REUSED]]
  // CHECK-NEXT: %[[FIRST:.+]] = arith.minsi %[[FROM]],
  // CHECK-NEXT: %[[TO:.+]] = arith.addi %[[P]]#1, %[[REUSED]]
  // CHECK-NEXT: %[[LAST:.+]] = arith.minsi %[[TO]],
  // CHECK-NEXT: %[[L:.+]]:4 = scf.for %[[C:.+]] = %[[FIRST]] to %[[LAST]] {{.*}} iter_args(%[[H:.+]] = %[[HIDDEN]], %[[K:.+]] = %arg8, %[[V:.+]] = %arg9, %[[O:.+]] = %arg10)
  // CHECK-NEXT: %[[START:.+]] = arith.muli %[[C]],
  // CHECK-NEXT: %[[CHUNK:.+]] = tensor.extract_slice %[[H]][0, %[[START]], 0] [1, 4, 8]
  // CHECK-NEXT: %[[MADE:.+]]:4 = func.call @prefill.layer.0(%[[CHUNK]], %[[K]], %[[V]], %[[O]], %[[START]], %[[LENGTH]])
  // CHECK-NEXT: %[[H1:.+]] = tensor.insert_slice %[[MADE]]#0 into %[[H]][0, %[[START]], 0] [1, 4, 8]
  // CHECK-NEXT: scf.yield %[[H1]], %[[MADE]]#1, %[[MADE]]#2, %[[MADE]]#3
  //
  // The layer is compressed once all of its chunks are done; before that, the caches stay as they are.
  // CHECK: %[[CACHES:.+]]:2 = scf.if %[[P]]#2
  // CHECK-NEXT: %[[NOW:.+]]:2 = func.call @prefill.compress.0(%[[L]]#1, %[[L]]#2, %[[L]]#3, %[[KC]], %[[VC]], %[[SLOT]], %[[LENGTH]])
  // CHECK-NEXT: scf.yield %[[NOW]]#0, %[[NOW]]#1
  // CHECK-NEXT: else
  // CHECK-NEXT: scf.yield %[[KC]], %[[VC]]
  // CHECK: return %[[L]]#0, %[[L]]#1, %[[L]]#2, %[[L]]#3, %[[CACHES]]#0, %[[CACHES]]#1
  //
  // The last phase is the head: one step, on the chunk and the row of the last token.
  // CHECK-LABEL: func.func private @prefill.phase.head(
  // CHECK-SAME: %[[HIDDEN:arg5]]: tensor<1x8x8xf32> {sscc.state = "hidden"}, %[[BEFORE:arg6]]: tensor<1x9xf32> {sscc.output = "prefill_logits"})
  // CHECK-NEXT: %{{.+}} = arith.constant 4
  // CHECK-NEXT: %[[ONE:.+]] = arith.constant 1
  // CHECK: %[[ALL:.+]] = arith.ceildivsi %arg4,
  // CHECK-NEXT: %[[P:.+]]:3 = call @progress(%arg0, %arg1, %arg2, %arg3, %[[ONE]])
  // CHECK-NEXT: scf.if %[[P]]#2
  // CHECK-NEXT: %[[FULL:.+]] = arith.subi %[[ALL]], %[[ONE]]
  // CHECK-NEXT: %[[START:.+]] = arith.muli %[[FULL]],
  // CHECK-NEXT: %[[ENDS:.+]] = arith.subi %arg4, %[[ONE]]
  // CHECK-NEXT: %[[LAST:.+]] = arith.subi %[[ENDS]], %[[START]]
  // CHECK-NEXT: %[[CHUNK:.+]] = tensor.extract_slice %[[HIDDEN]][0, %[[START]], 0] [1, 4, 8]
  // CHECK: arith.minsi %{{.+}}, %[[LAST]]
  // CHECK: %[[Y:.+]] = func.call @prefill.head(%[[CHUNK]],
  // CHECK-NEXT: %[[FLAT:.+]] = tensor.collapse_shape %[[Y]]
  // CHECK-NEXT: tensor.insert_slice %[[FLAT]] into %[[BEFORE]][0, 0] [1, 9]
  // CHECK: else
  // CHECK-NEXT: scf.yield %[[BEFORE]]
  //
  // The caller gives tokens, where they stand, and the cursor, keeps the states, and gets logits and the cursor back.
  // CHECK-LABEL: func.func public @prefill(
  // CHECK-SAME: %[[TOKENS:arg0]]: tensor<1x8xi64> {sscc.input = "tokens"}, %[[IDS:arg1]]: tensor<1x8xi64> {sscc.input = "position_ids"}, %[[LENGTH:arg2]]: index {sscc.input = "length"}, %[[SLOT:arg3]]: index {sscc.input = "slot"}, %[[PHASE:arg4]]: index {sscc.input = "phase"}, %[[CHUNK:arg5]]: index {sscc.input = "chunk"}, %[[STEPS:arg6]]: index {sscc.input = "steps"}, %[[REUSED:arg7]]: index {sscc.input = "reused"}
  // CHECK-SAME: tensor<1x9xf32> {sscc.output = "prefill_logits"}
  // CHECK-SAME: tensor<1x8x8xf32> {sscc.state = "hidden"}
  // CHECK-SAME: tensor<1x2x1x3x8xf32> {sscc.state = "k_cache"}
  // CHECK-SAME: -> (tensor<1x9xf32> {sscc.output = "prefill_logits"}, index {sscc.output = "phase"}, index {sscc.output = "chunk"}, tensor<1x8x8xf32> {sscc.state = "hidden"}
  //
  // Trip counts follow the prompt's length, not the context's. There are 2 * chunks + 1 steps in all, of the chunks that
  // are not there already.
  // CHECK: %[[ALL:.+]] = arith.ceildivsi %[[LENGTH]], %c4
  // CHECK-NEXT: %[[LEFT:.+]] = arith.subi %[[ALL]], %[[REUSED]]
  // CHECK: %[[CHUNKS:.+]] = arith.maxsi %[[LEFT]], %c1
  // CHECK-NEXT: %[[PAST:.+]] = arith.muli %[[PHASE]], %[[CHUNKS]]
  // CHECK-NEXT: %[[BEGIN:.+]] = arith.addi %[[PAST]], %[[CHUNK]]
  // CHECK: %[[HEAD:.+]] = arith.muli %c2{{.*}}, %[[CHUNKS]]
  // CHECK: %[[TOTAL:.+]] = arith.addi %[[HEAD]], %c1
  // CHECK-NEXT: %[[REACH:.+]] = arith.addi %[[BEGIN]], %[[STEPS]]
  // CHECK-NEXT: %[[END:.+]] = arith.minsi %[[REACH]], %[[TOTAL]]
  //
  // Then a straight line of calls: no control in an entry. A layer gets its slices of the stacked caches.
  // CHECK-NOT: scf.
  // CHECK: %[[H0:.+]] = call @prefill.phase.embed(%[[BEGIN]], %[[END]], %[[CHUNKS]], %c0{{.*}}, %[[LENGTH]], %[[REUSED]], %[[TOKENS]], %[[IDS]], %arg9)
  // CHECK-NEXT: %[[K:.+]] = tensor.extract_slice %arg13[0, 0, 0, 0, 0] [1, 2, 1, 3, 8]
  // CHECK-NEXT: %[[V:.+]] = tensor.extract_slice %arg14[0, 0, 0, 0, 0] [1, 2, 1, 3, 8]
  // CHECK: %[[L:.+]]:6 = call @prefill.phase.layer.0(%[[BEGIN]], %[[END]], %[[CHUNKS]], %c1{{.*}}, %[[LENGTH]], %[[SLOT]], %[[REUSED]], %[[H0]], %arg10, %arg11, %arg12, %[[K]], %[[V]])
  // CHECK-NEXT: %[[K1:.+]] = tensor.insert_slice %[[L]]#4 into %arg13[0, 0, 0, 0, 0]
  // CHECK-NEXT: %[[V1:.+]] = tensor.insert_slice %[[L]]#5 into %arg14[0, 0, 0, 0, 0]
  // CHECK: %[[LOGITS:.+]] = call @prefill.phase.head(%[[BEGIN]], %[[END]], %[[CHUNKS]], %c2{{.*}}, %[[LENGTH]], %[[L]]#0, %arg8)
  //
  // The cursor after the last step of all stands behind the last phase.
  // CHECK-NEXT: %[[FINISHED:.+]] = arith.cmpi eq, %[[END]], %[[TOTAL]]
  // CHECK-NEXT: %[[REACHED:.+]] = arith.floordivsi %[[END]], %[[CHUNKS]]
  // CHECK-NEXT: %[[WHOLE:.+]] = arith.muli %[[REACHED]], %[[CHUNKS]]
  // CHECK-NEXT: %[[INSIDE:.+]] = arith.subi %[[END]], %[[WHOLE]]
  // CHECK: %[[PHASE1:.+]] = arith.select %[[FINISHED]], %c3{{.*}}, %[[REACHED]]
  // CHECK: %[[CHUNK1:.+]] = arith.select %[[FINISHED]], %c0{{.*}}, %[[INSIDE]]
  // CHECK-NEXT: return %[[LOGITS]], %[[PHASE1]], %[[CHUNK1]], %[[L]]#0, %[[L]]#1, %[[L]]#2, %[[L]]#3, %[[K1]], %[[V1]]
  //
  // Decode knows nothing of chunks, and touches no prefill state.
  // CHECK-LABEL: func.func public @decode(
  // CHECK-SAME: %[[TOKEN:arg0]]: tensor<2x1xi64> {sscc.input = "token"}, %[[ID:arg1]]: tensor<2x1xi64> {sscc.input = "position_id"}
  // CHECK-SAME: {sscc.input = "active"}
  // CHECK-NOT: scf.
  // CHECK-NOT: scratch
  // CHECK: call @decode.embed(%[[TOKEN]], %[[ID]])
  // CHECK: call @decode.layer.0(
  // CHECK: call @decode.head(
  //
  // Logits after two positions of a prompt, by the head of a step of two slots.
  // CHECK-LABEL: func.func public @score(
  // CHECK-SAME: %[[FIRST:arg0]]: index {sscc.input = "first"}, %[[HIDDEN:arg1]]: tensor<1x8x8xf32> {sscc.state = "hidden"}) -> (tensor<2x9xf32> {sscc.output = "logits"})
  // CHECK-NEXT: %[[TWO:.+]] = tensor.extract_slice %[[HIDDEN]][0, %[[FIRST]], 0] [1, 2, 8]
  // CHECK-NEXT: %[[FLAT:.+]] = tensor.collapse_shape %[[TWO]]
  // CHECK-NEXT: %[[ROWS:.+]] = tensor.expand_shape %[[FLAT]]
  // CHECK-NEXT: %[[Y:.+]] = call @decode.head(%[[ROWS]])
  // CHECK-NEXT: %[[LOGITS:.+]] = tensor.collapse_shape %[[Y]]
  // CHECK-NEXT: return %[[LOGITS]]
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
    tensor<2xi64> {sscc.input = "position"}, tensor<2xi64> {sscc.input = "base"}, tensor<2xi1> {sscc.input = "active"})
    -> (tensor<2x1x8xf32> {sscc.output = "hidden"}, !c {sscc.state = "k_cache"}, !c {sscc.state = "v_cache"})
  func.func private @decode.head(tensor<2x1x8xf32> {sscc.input = "hidden"}) -> (tensor<2x1x9xf32> {sscc.output = "logits"})
}

// -----

// CASE: weights and tables
// PASSES: build-entries
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // A table is a state of prefill, as long as the scratch; the token axis is the one where prefill has a chunk and
  // decode one token, here the first. A weight that two parts share is one argument.
  // CHECK-LABEL: func.func private @prefill.phase.embed(
  // CHECK-SAME: %[[TABLE:arg9]]: tensor<8x1x5xf32> {sscc.state = "table.0"}, %[[TIED:arg10]]: tensor<9x8xf32> {sscc.weight = "tied"})
  // CHECK: iter_args(%{{.+}} = %arg8, %[[T:.+]] = %[[TABLE]])
  // CHECK: func.call @prefill.embed(%{{.+}}, %{{.+}}, %[[TIED]])
  // CHECK: tensor.insert_slice %{{.+}} into %[[T]][%{{.+}}, 0, 0] [4, 1, 5]
  //
  // A layer reads the table of its chunk, and does not change it.
  // CHECK-LABEL: func.func private @prefill.phase.layer.0(
  // CHECK-SAME: %[[TABLE:arg8]]: tensor<8x1x5xf32> {sscc.state = "table.0"}
  // CHECK: scf.for %[[C:[a-z0-9]+]] =
  // CHECK-NEXT: %[[START:.+]] = arith.muli %[[C]],
  // CHECK-NEXT: %[[T:.+]] = tensor.extract_slice %[[TABLE]][%[[START]], 0, 0] [4, 1, 5]
  // CHECK: func.call @prefill.layer.0(%{{.+}}, %[[T]],
  //
  // The head's weights are its phase's.
  // CHECK-LABEL: func.func private @prefill.phase.head(
  // CHECK-SAME: {sscc.weight = "tied"}, %{{.+}}: tensor<8xf32> {sscc.constant = "scale"}) ->
  // CHECK-LABEL: func.func public @prefill(
  // CHECK-SAME: tensor<8x1x5xf32> {sscc.state = "table.0"}
  // CHECK-SAME: %[[TIED:[a-z0-9]+]]: tensor<9x8xf32> {sscc.weight = "tied"}, %{{.+}}: tensor<8xf32> {sscc.constant = "scale"}) ->
  // CHECK: call @prefill.phase.embed({{.*}}, %[[TIED]])
  // CHECK: call @prefill.phase.head({{.*}}, %[[TIED]], %{{.+}})
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
    !c {sscc.state = "v_cache"}, tensor<2xi64> {sscc.input = "position"}, tensor<2xi64> {sscc.input = "base"}, tensor<2xi1> {sscc.input = "active"})
    -> (tensor<2x1x8xf32> {sscc.output = "hidden"}, !c {sscc.state = "k_cache"}, !c {sscc.state = "v_cache"})
  func.func private @decode.head(tensor<2x1x8xf32> {sscc.input = "hidden"}, tensor<9x8xf32> {sscc.weight = "tied"}) -> (tensor<2x1x9xf32> {sscc.output = "logits"})
}
