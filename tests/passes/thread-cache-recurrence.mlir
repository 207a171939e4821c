// A layer with a recurrence keeps its state. B 2, C 4, 1 head, keys of 3 numbers, values of 5.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64, dtype = "int8"}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}

// -----

// CASE: a step
// PASSES: thread-cache
// CHECK: module attributes
// CHECK-SAME: kv.groups = {recurrence = {dtype = "model",
// CHECK-SAME: sscc.layers = {recurrence = array<i64: 0>}
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: %[[STATE:arg3]]: tensor<2x1x3x5xf32> {sscc.state = "recurrent_cache"}
  // CHECK-SAME: %[[ACTIVE:arg4]]: tensor<2xi1> {sscc.input = "active"}
  // CHECK: %[[OUT:.+]]:2 = "kv.recurrent_step"(%arg1, %arg1, %arg0, %arg2, %[[STATE]], %[[ACTIVE]])
  // CHECK: return %[[OUT]]#0, %[[OUT]]#1
  func.func private @decode.layer.0(%h: tensor<2x1x1x5xf32> {sscc.input = "hidden"}, %k: tensor<2x1x1x3xf32> {sscc.weight = "k"},
      %d: tensor<2x1x1x1xf32> {sscc.weight = "d"})
      -> (tensor<2x1x1x5xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %y = "kv.recurrence"(%k, %k, %h, %d) {layer = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (tensor<2x1x1x3xf32>, tensor<2x1x1x3xf32>, tensor<2x1x1x5xf32>, tensor<2x1x1x1xf32>) -> tensor<2x1x1x5xf32>
    return %y : tensor<2x1x1x5xf32>
  }
}

// -----

// CASE: a chunk
// The prompt in progress has a state of its own, which the end of the prompt copies into the slot.
// PASSES: thread-cache
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // CHECK-LABEL: func.func private @prefill.layer.0(
  // CHECK-SAME: %[[STATE:arg4]]: tensor<1x1x3x5xf32> {sscc.state = "recurrent_scratch"}
  // CHECK-SAME: %[[START:arg5]]: index {sscc.input = "start"}, %[[LENGTH:arg6]]: index {sscc.input = "length"}
  // CHECK: "kv.recurrent_chunk"(%arg1, %arg1, %arg0, %arg2, %[[STATE]], %[[START]], %[[LENGTH]], %arg3)
  // CHECK-LABEL: func.func private @prefill.compress.0(
  // CHECK: tensor.insert_slice %arg0 into %arg1[%arg2, 0, 0, 0] [1, 1, 3, 5] [1, 1, 1, 1]
  func.func private @prefill.layer.0(%h: tensor<1x4x1x5xf32> {sscc.input = "hidden"}, %k: tensor<1x4x1x3xf32> {sscc.weight = "k"},
      %d: tensor<1x4x1x1xf32> {sscc.weight = "d"}, %b: tensor<1x4x1xf32> {sscc.weight = "b"})
      -> (tensor<1x4x1x5xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "prefill", sscc.layer = 0 : i64} {
    %y = "kv.recurrence"(%k, %k, %h, %d, %b) {layer = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1>} : (tensor<1x4x1x3xf32>, tensor<1x4x1x3xf32>, tensor<1x4x1x5xf32>, tensor<1x4x1x1xf32>, tensor<1x4x1xf32>) -> tensor<1x4x1x5xf32>
    return %y : tensor<1x4x1x5xf32>
  }
}

// -----

// CASE: a layer without a state
// It stays as it is, in a group that keeps nothing.
// PASSES: thread-cache
// CHECK: sscc.layers = {stateless = array<i64: 0>}
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // CHECK: func.func private @decode.layer.0(%arg0: tensor<2x1x5xf32> {sscc.input = "hidden"})
  func.func private @decode.layer.0(%h: tensor<2x1x5xf32> {sscc.input = "hidden"}) -> (tensor<2x1x5xf32> {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    return %h : tensor<2x1x5xf32>
  }
}
