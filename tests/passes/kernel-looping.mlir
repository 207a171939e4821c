// Kernels of layers, called in a row. Hidden states are 2 x 8, caches have a layer per index of their first axis.
!h = tensor<2x8xf32>
!w = tensor<8xf32>
!c = tensor<3x2x8xf32>
!s = tensor<16x8xf32>

// -----

// CASE: every class of parameter
// PASSES: kernel-looping
// LOCATIONS
module {
  // CHECK: sscc.looping = [{entry = "decode", kernel = "layer", layers = 3 : i64, reason = ""}]
  //
  // One call is left. The weights of the layers have become one stack, the states are passed as they are, and what
  // comes out is what the last layer and the last insertion gave.
  // CHECK-LABEL: func.func public @decode(
  // CHECK-SAME: %[[H:arg0]]: tensor<2x8xf32> {sscc.input = "h"}
  // CHECK-SAME: %[[C:arg1]]: tensor<2x8xf32> {sscc.input = "cos"}
  // CHECK-SAME: %[[CACHE:arg2]]: tensor<3x2x8xf32> {sscc.state = "cache"}
  // CHECK-SAME: %[[S:arg3]]: tensor<16x8xf32> {sscc.state = "scratch"}
  // CHECK-SAME: %[[W:arg4]]: tensor<3x2x8xf32> {sscc.sources = ["layers.0.w", "layers.1.w", "layers.2.w"], sscc.weight = "layers.0-2.w"}
  // CHECK-NOT: "layers.1.w"}
  // CHECK-NOT: tensor.extract_slice
  // CHECK: %[[R:.+]]:3 = call @layer.x3(%[[H]], %[[S]], %[[CACHE]], %[[C]], %[[W]])
  // CHECK-NEXT: return %[[R]]#0, %[[R]]#1, %[[R]]#2
  //
  // The unlooped kernel is gone; of the looped one, every parameter says its class. The index is none any more.
  // CHECK-NOT: @layer(
  // CHECK-LABEL: func.func private @layer.x3(
  // CHECK-SAME: %[[H:arg0]]: tensor<2x8xf32> {sscc.class = "carried", sscc.state = "hidden"}
  // CHECK-SAME: %[[S:arg1]]: tensor<16x8xf32> {sscc.class = "carried in memory", sscc.state = "scratch"}
  // CHECK-SAME: %[[CACHE:arg2]]: tensor<3x2x8xf32> {sscc.class = "layer-indexed in/out", sscc.state = "cache"}
  // CHECK-SAME: %[[C:arg3]]: tensor<2x8xf32> {sscc.class = "invariant", sscc.input = "cos"}
  // CHECK-SAME: %[[W:arg4]]: tensor<3x2x8xf32> {sscc.class = "layer-indexed read", sscc.weight = "layers.0-2.w"}
  // CHECK-SAME: attributes {sscc.kernel}
  //
  // Three iterations. The first carried value stays on the chip; the scratch, updated in place, stays in memory.
  // CHECK: %[[L:.+]]:3 = scf.for %[[I:arg[0-9]+]] = %c0{{.*}} to %c3{{.*}} step %c1{{.*}} iter_args(%[[HI:.+]] = %[[H]], %[[SI:.+]] = %[[S]], %[[CI:.+]] = %[[CACHE]])
  //
  // Iteration i gets 4 + 2 * i as its index, weight i, and slice 2 - i of the cache.
  // CHECK: %[[SCALED:.+]] = arith.muli %[[I]], %c2
  // CHECK: %[[AT:.+]] = arith.addi %[[SCALED]], %c4
  // CHECK-NEXT: %[[WI:.+]] = tensor.extract_slice %[[W]][%[[I]], 0, 0] [1, 2, 8] [1, 1, 1] : tensor<3x2x8xf32> to tensor<2x8xf32>
  // CHECK: %[[BACK:.+]] = arith.muli %[[I]], %c-1
  // CHECK: %[[SLICE:.+]] = arith.addi %[[BACK]], %c2
  // CHECK-NEXT: %[[K:.+]] = tensor.extract_slice %[[CI]][%[[SLICE]], 0, 0] [1, 2, 8] [1, 1, 1] : tensor<3x2x8xf32> to tensor<2x8xf32>
  // CHECK-NEXT: %[[Y:.+]] = arith.addf %[[HI]], %[[WI]] : tensor<2x8xf32> loc("layers.0"("model.py":3:0))
  // CHECK-NEXT: %[[Z:.+]] = arith.mulf %[[Y]], %[[C]]
  // CHECK-NEXT: %[[K1:.+]] = tensor.insert_slice %[[Z]] into %[[K]][0, 0] [2, 8]
  // CHECK-NEXT: %[[S1:.+]] = tensor.insert_slice %[[Z]] into %[[SI]][%[[AT]], 0] [2, 8]
  //
  // The slice is put back where it came from.
  // CHECK-NEXT: %[[C1:.+]] = tensor.insert_slice %[[K1]] into %[[CI]][%[[SLICE]], 0, 0] [1, 2, 8]
  // CHECK: scf.yield %[[Z]], %[[S1]], %[[C1]]
  // CHECK-NEXT: {df.carried = array<i64: 0>}
  // CHECK: return %[[L]]#0, %[[L]]#1, %[[L]]#2
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %c: !h {sscc.input = "cos"}, %i: index {sscc.input = "i"}, %w: !h {sscc.weight = "w"},
      %k: !h {sscc.state = "cache"}, %s: !s {sscc.state = "scratch"})
      -> (!h {sscc.output = "hidden"}, !h {sscc.state = "cache"}, !s {sscc.state = "scratch"}) attributes {sscc.kernel} {
    %y = arith.addf %h, %w : !h loc("layers.0"("model.py":3:0))
    %z = arith.mulf %y, %c : !h
    %k1 = tensor.insert_slice %z into %k[0, 0] [2, 8] [1, 1] : !h into !h
    %s1 = tensor.insert_slice %z into %s[%i, 0] [2, 8] [1, 1] : !h into !s
    return %z, %k1, %s1 : !h, !h, !s
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %c: !h {sscc.input = "cos"}, %cache: !c {sscc.state = "cache"}, %s: !s {sscc.state = "scratch"},
      %w0: !h {sscc.weight = "layers.0.w"}, %w1: !h {sscc.weight = "layers.1.w"}, %w2: !h {sscc.weight = "layers.2.w"})
      -> (!h {sscc.output = "logits"}, !s {sscc.state = "scratch"}, !c {sscc.state = "cache"}) {
    %i0 = arith.constant 4 : index
    %k0 = tensor.extract_slice %cache[2, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %0:3 = func.call @layer(%h, %c, %i0, %w0, %k0, %s) : (!h, !h, index, !h, !h, !s) -> (!h, !h, !s)
    %cache0 = tensor.insert_slice %0#1 into %cache[2, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    %i1 = arith.constant 6 : index
    %k1 = tensor.extract_slice %cache0[1, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %1:3 = func.call @layer(%0#0, %c, %i1, %w1, %k1, %0#2) : (!h, !h, index, !h, !h, !s) -> (!h, !h, !s)
    %cache1 = tensor.insert_slice %1#1 into %cache0[1, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    %i2 = arith.constant 8 : index
    %k2 = tensor.extract_slice %cache1[0, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %2:3 = func.call @layer(%1#0, %c, %i2, %w2, %k2, %1#2) : (!h, !h, index, !h, !h, !s) -> (!h, !h, !s)
    %cache2 = tensor.insert_slice %2#1 into %cache1[0, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    return %2#0, %2#2, %cache2 : !h, !s, !c
  }
}

// -----

// CASE: a cache read from the state as it was
// PASSES: kernel-looping
module {
  // The slices of the state before the run, not of its last version: as no two calls share one, that is the same.
  // CHECK: reason = ""
  // CHECK-LABEL: func.func public @decode(
  // CHECK: call @layer.x2(
  // CHECK-LABEL: func.func private @layer.x2(
  // CHECK-SAME: tensor<3x2x8xf32> {sscc.class = "layer-indexed in/out", sscc.state = "cache"}
  // CHECK: iter_args(%{{.+}} = %arg0, %[[CI:.+]] = %arg1)
  // CHECK: %[[K:.+]] = tensor.extract_slice %[[CI]][
  // CHECK: tensor.insert_slice %{{.+}} into %[[CI]][
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %k: !h {sscc.state = "cache"}) -> (!h {sscc.output = "hidden"}, !h {sscc.state = "cache"})
      attributes {sscc.kernel} {
    %y = arith.addf %h, %k : !h
    %k1 = tensor.insert_slice %h into %k[0, 0] [2, 8] [1, 1] : !h into !h
    return %y, %k1 : !h, !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %cache: !c {sscc.state = "cache"}) -> (!h {sscc.output = "logits"}, !c {sscc.state = "cache"}) {
    %k0 = tensor.extract_slice %cache[0, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %k1 = tensor.extract_slice %cache[1, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %0:2 = func.call @layer(%h, %k0) : (!h, !h) -> (!h, !h)
    %cache0 = tensor.insert_slice %0#1 into %cache[0, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    %1:2 = func.call @layer(%0#0, %k1) : (!h, !h) -> (!h, !h)
    %cache1 = tensor.insert_slice %1#1 into %cache0[1, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    return %1#0, %cache1 : !h, !c
  }
}

// -----

// CASE: a state that a layer after the run goes on to write
// PASSES: kernel-looping
module {
  // Its insertion stays, into what the loop leaves of the state.
  // CHECK: reason = ""
  // CHECK-LABEL: func.func public @decode(
  // CHECK: %[[R:.+]]:2 = call @layer.x2(%arg0, %[[CACHE:arg1]])
  // CHECK: %[[T:.+]]:2 = call @tail(%[[R]]#0
  // CHECK: %[[LAST:.+]] = tensor.insert_slice %[[T]]#1 into %[[R]]#1[2, 0, 0] [1, 2, 8]
  // CHECK: return %[[T]]#0, %[[LAST]]
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %k: !h {sscc.state = "cache"}) -> (!h {sscc.output = "hidden"}, !h {sscc.state = "cache"})
      attributes {sscc.kernel} {
    %y = arith.addf %h, %k : !h
    %k1 = tensor.insert_slice %h into %k[0, 0] [2, 8] [1, 1] : !h into !h
    return %y, %k1 : !h, !h
  }
  func.func private @tail(%h: !h {sscc.input = "hidden"}, %k: !h {sscc.state = "cache"}) -> (!h {sscc.output = "hidden"}, !h {sscc.state = "cache"})
      attributes {sscc.kernel} {
    %y = arith.mulf %h, %k : !h
    %k1 = tensor.insert_slice %h into %k[0, 0] [2, 8] [1, 1] : !h into !h
    return %y, %k1 : !h, !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %cache: !c {sscc.state = "cache"}) -> (!h {sscc.output = "logits"}, !c {sscc.state = "cache"}) {
    %k0 = tensor.extract_slice %cache[0, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %0:2 = func.call @layer(%h, %k0) : (!h, !h) -> (!h, !h)
    %cache0 = tensor.insert_slice %0#1 into %cache[0, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    %k1 = tensor.extract_slice %cache0[1, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %1:2 = func.call @layer(%0#0, %k1) : (!h, !h) -> (!h, !h)
    %cache1 = tensor.insert_slice %1#1 into %cache0[1, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    %k2 = tensor.extract_slice %cache1[2, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %2:2 = func.call @tail(%1#0, %k2) : (!h, !h) -> (!h, !h)
    %cache2 = tensor.insert_slice %2#1 into %cache1[2, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    return %2#0, %cache2 : !h, !c
  }
}

// -----

// CASE: a state that is only read
// PASSES: kernel-looping
module {
  // Slices that nobody puts back: the state is passed, and is no result.
  // CHECK: reason = ""
  // CHECK-LABEL: func.func public @decode(
  // CHECK: %[[R:.+]] = call @layer.x2(%arg0, %arg1) : (tensor<2x8xf32>, tensor<3x2x8xf32>) -> tensor<2x8xf32>
  // CHECK-LABEL: func.func private @layer.x2(
  // CHECK: scf.for %[[I:arg[0-9]+]] = {{.*}} iter_args(%[[H:.+]] = %arg0) -> (tensor<2x8xf32>)
  // CHECK: tensor.extract_slice %arg1[%{{.+}}, 0, 0] [1, 2, 8]
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %k: !h {sscc.state = "cache"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = arith.addf %h, %k : !h
    return %y : !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %cache: !c {sscc.state = "cache"}) -> (!h {sscc.output = "logits"}) {
    %k0 = tensor.extract_slice %cache[0, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %0 = func.call @layer(%h, %k0) : (!h, !h) -> !h
    %k1 = tensor.extract_slice %cache[2, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %1 = func.call @layer(%0, %k1) : (!h, !h) -> !h
    return %1 : !h
  }
}

// -----

// CASE: layers that take turns
// PASSES: kernel-looping
module {
  // A, B, A, B: one body holds the whole period. What A hands to B inside an iteration is an ordinary value; what B
  // hands to the next A is carried.
  // CHECK: sscc.looping = [{entry = "decode", kernel = "a+b", layers = 4 : i64, reason = ""}]
  // CHECK-LABEL: func.func public @decode(
  // CHECK-SAME: {sscc.sources = ["layers.0.w", "layers.2.w"], sscc.weight = "layers.0-2:2.w"}
  // CHECK-SAME: {sscc.sources = ["layers.1.w", "layers.3.w"], sscc.weight = "layers.1-3:2.w"}
  // CHECK: call @"a+b.x2"(
  // CHECK-LABEL: func.func private @"a+b.x2"(
  // CHECK-SAME: {sscc.class = "carried"
  // CHECK: scf.for {{.*}} to %c2 {{.*}} iter_args(%[[H:.+]] = %arg0)
  // CHECK: %[[A:.+]] = arith.addf %[[H]],
  // CHECK: %[[B:.+]] = arith.mulf %[[A]],
  // CHECK: scf.yield %[[B]] : tensor<2x8xf32>
  func.func private @a(%h: !h {sscc.input = "hidden"}, %w: !h {sscc.weight = "w"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = arith.addf %h, %w : !h
    return %y : !h
  }
  func.func private @b(%h: !h {sscc.input = "hidden"}, %w: !h {sscc.weight = "w"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = arith.mulf %h, %w : !h
    return %y : !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %w0: !h {sscc.weight = "layers.0.w"}, %w1: !h {sscc.weight = "layers.1.w"},
      %w2: !h {sscc.weight = "layers.2.w"}, %w3: !h {sscc.weight = "layers.3.w"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @a(%h, %w0) : (!h, !h) -> !h
    %1 = func.call @b(%0, %w1) : (!h, !h) -> !h
    %2 = func.call @a(%1, %w2) : (!h, !h) -> !h
    %3 = func.call @b(%2, %w3) : (!h, !h) -> !h
    return %3 : !h
  }
}

// -----

// CASE: weights of both entries
// PASSES: kernel-looping
module {
  // One stack, for both. The looped kernels have different names, even where both entries loop the same kernel.
  // CHECK: sscc.looping = [{entry = "prefill", kernel = "layer", layers = 2 : i64, reason = ""}, {entry = "decode", kernel = "layer", layers = 2 : i64, reason = ""}]
  // CHECK-LABEL: func.func public @prefill(
  // CHECK-SAME: {sscc.input = "h"}, %{{.+}}: tensor<2x2x8xf32> {sscc.sources = ["layers.0.w", "layers.1.w"], sscc.weight = "layers.0-1.w"}) ->
  // CHECK: call @layer.x2(
  // CHECK-LABEL: func.func public @decode(
  // CHECK-SAME: {sscc.input = "h"}, %{{.+}}: tensor<2x2x8xf32> {sscc.sources = ["layers.0.w", "layers.1.w"], sscc.weight = "layers.0-1.w"}) ->
  // CHECK: call @layer.x2.1(
  // CHECK: func.func private @layer.x2(
  // CHECK: func.func private @layer.x2.1(
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %w: !h {sscc.weight = "w"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = arith.addf %h, %w : !h
    return %y : !h
  }
  func.func public @prefill(%h: !h {sscc.input = "h"}, %w0: !h {sscc.weight = "layers.0.w"}, %w1: !h {sscc.weight = "layers.1.w"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @layer(%h, %w0) : (!h, !h) -> !h
    %1 = func.call @layer(%0, %w1) : (!h, !h) -> !h
    return %1 : !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %w0: !h {sscc.weight = "layers.0.w"}, %w1: !h {sscc.weight = "layers.1.w"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @layer(%h, %w0) : (!h, !h) -> !h
    %1 = func.call @layer(%0, %w1) : (!h, !h) -> !h
    return %1 : !h
  }
}

// -----

// CASE: weights of an entry that is not looped
// PASSES: kernel-looping
module {
  // Decode is not looped, because the caller reads what layer 0 makes. Its layers take their slices of the stack that
  // prefill made: no weight is stored twice. A weight of the head stays as it is.
  // CHECK: {entry = "prefill", kernel = "layer", layers = 2 : i64, reason = ""}
  // CHECK-SAME: {entry = "decode", kernel = "layer", layers = 2 : i64, reason = "result 0 of call 0 of layer is read outside of the run"}
  // CHECK-LABEL: func.func public @decode(
  // CHECK-SAME: %[[H:arg0]]: tensor<2x8xf32> {sscc.input = "h"}, %[[HEAD:arg1]]: tensor<2x8xf32> {sscc.weight = "head"}, %[[W:arg2]]: tensor<2x2x8xf32> {sscc.sources = ["layers.0.w", "layers.1.w"], sscc.weight = "layers.0-1.w"})
  // CHECK-DAG: %[[W0:.+]] = tensor.extract_slice %[[W]][0, 0, 0] [1, 2, 8] [1, 1, 1] : tensor<2x2x8xf32> to tensor<2x8xf32>
  // CHECK-DAG: %[[W1:.+]] = tensor.extract_slice %[[W]][1, 0, 0] [1, 2, 8] [1, 1, 1] : tensor<2x2x8xf32> to tensor<2x8xf32>
  // CHECK: %[[A:.+]] = call @layer(%[[H]], %[[W0]])
  // CHECK-NEXT: %[[B:.+]] = call @layer(%[[A]], %[[W1]])
  // CHECK-NEXT: %[[Y:.+]] = call @head(%[[B]], %[[HEAD]])
  // CHECK-NEXT: return %[[Y]], %[[A]]
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %w: !h {sscc.weight = "w"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = arith.addf %h, %w : !h
    return %y : !h
  }
  func.func private @head(%h: !h {sscc.input = "hidden"}, %w: !h {sscc.weight = "w"}) -> (!h {sscc.output = "logits"}) attributes {sscc.kernel} {
    %y = arith.mulf %h, %w : !h
    return %y : !h
  }
  func.func public @prefill(%h: !h {sscc.input = "h"}, %w0: !h {sscc.weight = "layers.0.w"}, %w1: !h {sscc.weight = "layers.1.w"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @layer(%h, %w0) : (!h, !h) -> !h
    %1 = func.call @layer(%0, %w1) : (!h, !h) -> !h
    return %1 : !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %w0: !h {sscc.weight = "layers.0.w"}, %w1: !h {sscc.weight = "layers.1.w"}, %w: !h {sscc.weight = "head"})
      -> (!h {sscc.output = "logits"}, !h {sscc.output = "early"}) {
    %0 = func.call @layer(%h, %w0) : (!h, !h) -> !h
    %1 = func.call @layer(%0, %w1) : (!h, !h) -> !h
    %2 = func.call @head(%1, %w) : (!h, !h) -> !h
    return %2, %0 : !h, !h
  }
}

// -----

// CASE: names of stacks
// PASSES: kernel-looping
module {
  // Numbers in a row become a range; others are listed.
  // CHECK-LABEL: func.func public @decode(
  // CHECK-SAME: {sscc.sources = ["layers.2.w", "layers.5.w", "layers.1.w"], sscc.weight = "layers.2,5,1.w"}
  // CHECK-SAME: {sscc.constant = "layers.0-2.c", sscc.sources = ["layers.0.c", "layers.1.c", "layers.2.c"]}
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %w: !h {sscc.weight = "w"}, %c: !w {sscc.constant = "c"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %e = tensor.expand_shape %c [[0, 1]] output_shape [1, 8] : !w into tensor<1x8xf32>
    %c1 = tensor.insert_slice %e into %w[0, 0] [1, 8] [1, 1] : tensor<1x8xf32> into !h
    %y = arith.addf %h, %c1 : !h
    return %y : !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %w0: !h {sscc.weight = "layers.2.w"}, %w1: !h {sscc.weight = "layers.5.w"}, %w2: !h {sscc.weight = "layers.1.w"},
      %c0: !w {sscc.constant = "layers.0.c"}, %c1: !w {sscc.constant = "layers.1.c"}, %c2: !w {sscc.constant = "layers.2.c"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @layer(%h, %w0, %c0) : (!h, !h, !w) -> !h
    %1 = func.call @layer(%0, %w1, %c1) : (!h, !h, !w) -> !h
    %2 = func.call @layer(%1, %w2, %c2) : (!h, !h, !w) -> !h
    return %2 : !h
  }
}

// -----

// CASE: constants that are no progression
// PASSES: kernel-looping
module {
  // They are looked up in a table, once for all parameters that have the same ones; a progression is computed.
  // CHECK: sscc.looping = [{entry = "decode", kernel = "layer", layers = 3 : i64, reason = ""}]
  // CHECK-LABEL: func.func public @decode(
  // CHECK: call @layer.x3(%arg0, %arg1)
  // CHECK-LABEL: func.func private @layer.x3(
  // CHECK-SAME: %[[H:arg0]]: tensor<2x8xf32> {sscc.class = "carried", sscc.state = "hidden"}
  // CHECK-SAME: %[[S:arg1]]: tensor<16x8xf32> {sscc.class = "carried in memory", sscc.state = "scratch"}
  // CHECK: scf.for %[[I:arg[0-9]+]] = %c0{{.*}} to %c3{{.*}} step %c1{{.*}} iter_args(%[[HI:.+]] = %[[H]], %[[SI:.+]] = %[[S]])
  // CHECK-NEXT: %[[T:.+]] = arith.constant dense<[0, 9, 4]> : tensor<3xindex>
  // CHECK-NEXT: %[[AT:.+]] = tensor.extract %[[T]][%[[I]]] : tensor<3xindex>
  // CHECK-NEXT: %[[U:.+]] = arith.constant dense<[1, 2, 1]> : tensor<3xindex>
  // CHECK-NEXT: %[[BY:.+]] = tensor.extract %[[U]][%[[I]]] : tensor<3xindex>
  // CHECK-NOT: tensor.extract %
  // CHECK: %[[SCALED:.+]] = arith.muli %[[I]], %c-2
  // CHECK: %[[BACK:.+]] = arith.addi %[[SCALED]], %c8
  // CHECK: %[[S1:.+]] = tensor.insert_slice %{{.+}} into %[[SI]][%[[AT]], 0] [2, 8]
  // CHECK: %[[A:.+]] = arith.addi %[[AT]], %[[BY]]
  // CHECK: %[[S2:.+]] = tensor.insert_slice %{{.+}} into %[[S1]][%[[A]], 0] [2, 8]
  // CHECK: tensor.insert_slice %{{.+}} into %[[S2]][%[[BACK]], 0] [2, 8]
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %i: index {sscc.input = "i"}, %same: index {sscc.input = "same"},
      %by: index {sscc.input = "by"}, %back: index {sscc.input = "back"}, %s: !s {sscc.state = "scratch"})
      -> (!h {sscc.output = "hidden"}, !s {sscc.state = "scratch"}) attributes {sscc.kernel} {
    %y = math.exp %h : !h
    %s1 = tensor.insert_slice %y into %s[%i, 0] [2, 8] [1, 1] : !h into !s
    %next = arith.addi %same, %by : index
    %s2 = tensor.insert_slice %h into %s1[%next, 0] [2, 8] [1, 1] : !h into !s
    %s3 = tensor.insert_slice %y into %s2[%back, 0] [2, 8] [1, 1] : !h into !s
    return %y, %s3 : !h, !s
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %s: !s {sscc.state = "scratch"}) -> (!h {sscc.output = "logits"}, !s {sscc.state = "scratch"}) {
    %i0 = arith.constant 0 : index
    %i1 = arith.constant 9 : index
    %i2 = arith.constant 4 : index
    %one = arith.constant 1 : index
    %two = arith.constant 2 : index
    %b0 = arith.constant 8 : index
    %b1 = arith.constant 6 : index
    %0:2 = func.call @layer(%h, %i0, %i0, %one, %b0, %s) : (!h, index, index, index, index, !s) -> (!h, !s)
    %1:2 = func.call @layer(%0#0, %i1, %i1, %two, %b1, %0#1) : (!h, index, index, index, index, !s) -> (!h, !s)
    %2:2 = func.call @layer(%1#0, %i2, %i2, %one, %i2, %1#1) : (!h, index, index, index, index, !s) -> (!h, !s)
    return %2#0, %2#1 : !h, !s
  }
}
