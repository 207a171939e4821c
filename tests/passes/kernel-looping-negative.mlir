// Runs that stay calls; `sscc.looping` says why.
!h = tensor<2x8xf32>
!c = tensor<3x2x8xf32>
!d = tensor<4x2x8xf32>

// -----

// CASE: a single call
// PASSES: kernel-looping
module {
  // Nothing repeats, so nothing is noted; the weight keeps its name.
  // CHECK-NOT: sscc.looping
  // CHECK-LABEL: func.func private @layer(
  // CHECK-LABEL: func.func public @decode(
  // CHECK-SAME: tensor<2x8xf32> {sscc.weight = "layers.0.w"}) ->
  // CHECK-NEXT: call @layer(%arg0, %arg1)
  // CHECK-NOT: scf.for
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %w: !h {sscc.weight = "w"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = arith.addf %h, %w : !h
    return %y : !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %w0: !h {sscc.weight = "layers.0.w"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @layer(%h, %w0) : (!h, !h) -> !h
    return %0 : !h
  }
}

// -----

// CASE: different kernels
// PASSES: kernel-looping
module {
  // CHECK-NOT: sscc.looping
  // CHECK: call @a(
  // CHECK: call @b(
  // CHECK-NOT: call @a
  func.func private @a(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = math.exp %h : !h
    return %y : !h
  }
  func.func private @b(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = math.tanh %h : !h
    return %y : !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @a(%h) : (!h) -> !h
    %1 = func.call @b(%0) : (!h) -> !h
    return %1 : !h
  }
}

// -----

// CASE: a result of the call before the last
// PASSES: kernel-looping
module {
  // A result of call i that call i + 2 reads is neither carried nor anything else.
  // CHECK: sscc.looping = [{entry = "decode", kernel = "layer", layers = 3 : i64, reason = "parameter 'skip' of layer takes results of calls other than the previous one"}]
  // CHECK-LABEL: func.func public @decode(
  // CHECK-NEXT: %[[A:.+]] = call @layer(%arg0, %arg0)
  // CHECK-NEXT: %[[B:.+]] = call @layer(%[[A]], %arg0)
  // CHECK-NEXT: %[[C:.+]] = call @layer(%[[B]], %[[A]])
  // CHECK-NEXT: return %[[C]]
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %s: !h {sscc.input = "skip"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = arith.addf %h, %s : !h
    return %y : !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @layer(%h, %h) : (!h, !h) -> !h
    %1 = func.call @layer(%0, %h) : (!h, !h) -> !h
    %2 = func.call @layer(%1, %0) : (!h, !h) -> !h
    return %2 : !h
  }
}

// -----

// CASE: the caller reads what a layer in the middle makes
// PASSES: kernel-looping
module {
  // CHECK: layers = 3 : i64, reason = "result 0 of call 1 of layer is read outside of the run"
  // CHECK-LABEL: func.func public @decode(
  // CHECK: call @layer(
  // CHECK: call @layer(
  // CHECK: call @layer(
  func.func private @layer(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = math.exp %h : !h
    return %y : !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}) -> (!h {sscc.output = "logits"}, !h {sscc.output = "middle"}) {
    %0 = func.call @layer(%h) : (!h) -> !h
    %1 = func.call @layer(%0) : (!h) -> !h
    %2 = func.call @layer(%1) : (!h) -> !h
    return %2, %1 : !h, !h
  }
}

// -----

// CASE: the caller reads what is not carried
// PASSES: kernel-looping
module {
  // The last layer's second result would have to leave the loop, and no layer takes it.
  // CHECK: layers = 2 : i64, reason = "result 1 of layer is read after the run and is not carried"
  // CHECK-LABEL: func.func public @decode(
  // CHECK: call @layer(
  // CHECK: %[[L:.+]]:2 = call @layer(
  // CHECK-NEXT: return %[[L]]#0, %[[L]]#1
  func.func private @layer(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"}, !h {sscc.output = "norm"}) attributes {sscc.kernel} {
    %y = math.exp %h : !h
    %n = math.tanh %h : !h
    return %y, %n : !h, !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}) -> (!h {sscc.output = "logits"}, !h {sscc.output = "norm"}) {
    %0:2 = func.call @layer(%h) : (!h) -> (!h, !h)
    %1:2 = func.call @layer(%0#0) : (!h) -> (!h, !h)
    return %1#0, %1#1 : !h, !h
  }
}

// -----

// CASE: two layers share a slice of a state
// PASSES: kernel-looping
module {
  // What one of them writes, the other would read.
  // CHECK: reason = "parameter 'cache' of layer: two layers share slice 1 of a state"
  // CHECK-LABEL: func.func public @decode(
  // CHECK: call @layer(
  // CHECK: call @layer(
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %k: !h {sscc.state = "cache"}) -> (!h {sscc.output = "hidden"}, !h {sscc.state = "cache"})
      attributes {sscc.kernel} {
    %y = arith.addf %h, %k : !h
    %k1 = tensor.insert_slice %h into %k[0, 0] [2, 8] [1, 1] : !h into !h
    return %y, %k1 : !h, !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %cache: !c {sscc.state = "cache"}) -> (!h {sscc.output = "logits"}, !c {sscc.state = "cache"}) {
    %k0 = tensor.extract_slice %cache[1, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %0:2 = func.call @layer(%h, %k0) : (!h, !h) -> (!h, !h)
    %cache0 = tensor.insert_slice %0#1 into %cache[1, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    %k1 = tensor.extract_slice %cache0[1, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %1:2 = func.call @layer(%0#0, %k1) : (!h, !h) -> (!h, !h)
    %cache1 = tensor.insert_slice %1#1 into %cache0[1, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    return %1#0, %cache1 : !h, !c
  }
}

// -----

// CASE: a layer reads what another one writes
// PASSES: kernel-looping
module {
  // Iteration i writes slice i + 1, which iteration i + 1 reads.
  // CHECK: reason = "result 1 of layer: two layers share slice 1 of a state"
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %k: !h {sscc.state = "cache"}) -> (!h {sscc.output = "hidden"}, !h {sscc.state = "cache"})
      attributes {sscc.kernel} {
    %y = arith.addf %h, %k : !h
    %k1 = tensor.insert_slice %h into %k[0, 0] [2, 8] [1, 1] : !h into !h
    return %y, %k1 : !h, !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %cache: !c {sscc.state = "cache"}) -> (!h {sscc.output = "logits"}, !c {sscc.state = "cache"}) {
    %k0 = tensor.extract_slice %cache[0, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %0:2 = func.call @layer(%h, %k0) : (!h, !h) -> (!h, !h)
    %cache0 = tensor.insert_slice %0#1 into %cache[1, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    %k1 = tensor.extract_slice %cache0[1, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %1:2 = func.call @layer(%0#0, %k1) : (!h, !h) -> (!h, !h)
    %cache1 = tensor.insert_slice %1#1 into %cache0[2, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    return %1#0, %cache1 : !h, !c
  }
}

// -----

// CASE: a layer reads all of what the run writes
// PASSES: kernel-looping
module {
  // The whole state, as it was before the run: in the loop it would change under its readers.
  // CHECK: reason = "parameter 'all' of layer is a whole state of which the run writes slices"
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %k: !h {sscc.state = "cache"}, %all: !c {sscc.state = "all"})
      -> (!h {sscc.output = "hidden"}, !h {sscc.state = "cache"}) attributes {sscc.kernel} {
    %a = tensor.extract_slice %all[0, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %y = arith.addf %h, %a : !h
    %k1 = tensor.insert_slice %h into %k[0, 0] [2, 8] [1, 1] : !h into !h
    return %y, %k1 : !h, !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %cache: !c {sscc.state = "cache"}) -> (!h {sscc.output = "logits"}, !c {sscc.state = "cache"}) {
    %k0 = tensor.extract_slice %cache[0, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %0:2 = func.call @layer(%h, %k0, %cache) : (!h, !h, !c) -> (!h, !h)
    %cache0 = tensor.insert_slice %0#1 into %cache[0, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    %k1 = tensor.extract_slice %cache0[1, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %1:2 = func.call @layer(%0#0, %k1, %cache) : (!h, !h, !c) -> (!h, !h)
    %cache1 = tensor.insert_slice %1#1 into %cache0[1, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    return %1#0, %cache1 : !h, !c
  }
}

// -----

// CASE: slices that are no progression
// PASSES: kernel-looping
module {
  // CHECK: reason = "parameter 'cache' of layer takes [0, 1, 3], which is not an arithmetic progression"
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %k: !h {sscc.state = "cache"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = arith.addf %h, %k : !h
    return %y : !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %cache: !d {sscc.state = "cache"}) -> (!h {sscc.output = "logits"}) {
    %k0 = tensor.extract_slice %cache[0, 0, 0] [1, 2, 8] [1, 1, 1] : !d to !h
    %k1 = tensor.extract_slice %cache[1, 0, 0] [1, 2, 8] [1, 1, 1] : !d to !h
    %k2 = tensor.extract_slice %cache[3, 0, 0] [1, 2, 8] [1, 1, 1] : !d to !h
    %0 = func.call @layer(%h, %k0) : (!h, !h) -> !h
    %1 = func.call @layer(%0, %k1) : (!h, !h) -> !h
    %2 = func.call @layer(%1, %k2) : (!h, !h) -> !h
    return %2 : !h
  }
}

// -----

// CASE: slices of different states
// PASSES: kernel-looping
module {
  // CHECK: reason = "parameter 'cache' of layer is a slice of different states"
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %k: !h {sscc.state = "cache"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = arith.addf %h, %k : !h
    return %y : !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %one: !c {sscc.state = "one"}, %two: !c {sscc.state = "two"}) -> (!h {sscc.output = "logits"}) {
    %k0 = tensor.extract_slice %one[0, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %k1 = tensor.extract_slice %two[1, 0, 0] [1, 2, 8] [1, 1, 1] : !c to !h
    %0 = func.call @layer(%h, %k0) : (!h, !h) -> !h
    %1 = func.call @layer(%0, %k1) : (!h, !h) -> !h
    return %1 : !h
  }
}

// -----

// CASE: a part of a layer
// PASSES: kernel-looping
module {
  // A slice must be one whole layer of the state.
  // CHECK: reason = "parameter 'row' of layer is not a whole layer of its state"
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %k: tensor<1x8xf32> {sscc.state = "row"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = math.exp %h : !h
    return %y : !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %cache: !c {sscc.state = "cache"}) -> (!h {sscc.output = "logits"}) {
    %k0 = tensor.extract_slice %cache[0, 1, 0] [1, 1, 8] [1, 1, 1] : !c to tensor<1x8xf32>
    %k1 = tensor.extract_slice %cache[1, 1, 0] [1, 1, 8] [1, 1, 1] : !c to tensor<1x8xf32>
    %0 = func.call @layer(%h, %k0) : (!h, tensor<1x8xf32>) -> !h
    %1 = func.call @layer(%0, %k1) : (!h, tensor<1x8xf32>) -> !h
    return %1 : !h
  }
}

// -----

// CASE: inputs that differ from call to call
// PASSES: kernel-looping
module {
  // Inputs of the caller are not stacked: only weights are.
  // CHECK: reason = "parameter 'x' of layer differs from call to call, and is not a slice of one state"
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %x: !h {sscc.input = "x"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = arith.addf %h, %x : !h
    return %y : !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %x0: !h {sscc.input = "x0"}, %x1: !h {sscc.input = "x1"}) -> (!h {sscc.output = "logits"}) {
    %0 = func.call @layer(%h, %x0) : (!h, !h) -> !h
    %1 = func.call @layer(%0, %x1) : (!h, !h) -> !h
    return %1 : !h
  }
}

// -----

// CASE: a result that only some calls store
// PASSES: kernel-looping
module {
  // CHECK: reason = "result 1 of layer is not stored by every call"
  func.func private @layer(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"}, !h {sscc.state = "cache"}) attributes {sscc.kernel} {
    %y = math.exp %h : !h
    %k = math.tanh %h : !h
    return %y, %k : !h, !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %cache: !c {sscc.state = "cache"}) -> (!h {sscc.output = "logits"}, !c {sscc.state = "cache"}) {
    %0:2 = func.call @layer(%h) : (!h) -> (!h, !h)
    %1:2 = func.call @layer(%0#0) : (!h) -> (!h, !h)
    %cache1 = tensor.insert_slice %1#1 into %cache[1, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    return %1#0, %cache1 : !h, !c
  }
}

// -----

// CASE: a result that is stored at a layer of the caller's choice
// PASSES: kernel-looping
module {
  // Which layer it is must be known.
  // CHECK: reason = "result 1 of layer is not a whole layer of its state"
  func.func private @layer(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"}, !h {sscc.state = "cache"}) attributes {sscc.kernel} {
    %y = math.exp %h : !h
    %k = math.tanh %h : !h
    return %y, %k : !h, !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %n: index {sscc.input = "n"}, %cache: !c {sscc.state = "cache"}) -> (!h {sscc.output = "logits"}, !c {sscc.state = "cache"}) {
    %0:2 = func.call @layer(%h) : (!h) -> (!h, !h)
    %1:2 = func.call @layer(%0#0) : (!h) -> (!h, !h)
    %cache0 = tensor.insert_slice %0#1 into %cache[%n, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    %cache1 = tensor.insert_slice %1#1 into %cache0[%n, 0, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    return %1#0, %cache1 : !h, !c
  }
}

// -----

// CASE: a result that is stored at an offset that is not known
// PASSES: kernel-looping
module {
  // Only the layer may vary.
  // CHECK: reason = "result 1 of layer is not a whole layer of its state"
  func.func private @layer(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"}, !h {sscc.state = "cache"}) attributes {sscc.kernel} {
    %y = math.exp %h : !h
    %k = math.tanh %h : !h
    return %y, %k : !h, !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %n: index {sscc.input = "n"}, %cache: !c {sscc.state = "cache"}) -> (!h {sscc.output = "logits"}, !c {sscc.state = "cache"}) {
    %0:2 = func.call @layer(%h) : (!h) -> (!h, !h)
    %1:2 = func.call @layer(%0#0) : (!h) -> (!h, !h)
    %cache0 = tensor.insert_slice %0#1 into %cache[0, %n, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    %cache1 = tensor.insert_slice %1#1 into %cache0[1, %n, 0] [1, 2, 8] [1, 1, 1] : !h into !c
    return %1#0, %cache1 : !h, !c
  }
}

// -----

// CASE: parameters that are computed between the calls
// PASSES: kernel-looping
module {
  // What is made of a state, or of a part of one, is no slice of it.
  // CHECK: reason = "parameter 'x' of layer differs from call to call, and is not a slice of one state"
  func.func private @layer(%h: !h {sscc.input = "hidden"}, %x: !h {sscc.input = "x"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %y = arith.addf %h, %x : !h
    return %y : !h
  }
  func.func public @decode(%h: !h {sscc.input = "h"}, %x: !h {sscc.input = "x"}) -> (!h {sscc.output = "logits"}) {
    %x0 = math.exp %x : !h
    %x1 = math.tanh %x : !h
    %0 = func.call @layer(%h, %x0) : (!h, !h) -> !h
    %1 = func.call @layer(%0, %x1) : (!h, !h) -> !h
    return %1 : !h
  }
}
