// A layer with a short convolution keeps its last inputs in a ring. B 2, C 4, 6 channels, 3 taps.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64, dtype = "int8"}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}
!w = tensor<6x1x3xf32>

// -----

// CASE: a step
// The rows of the ring are read in the order of their positions, then the input replaces the oldest one. All of it is one stage.
// PASSES: thread-cache
// CHECK: module attributes
// CHECK-SAME: kv.groups = {convolution = {dtype = "model",
// CHECK-SAME: recent = 2 : i64, rows = "compact", sink = 0 : i64, topk = 0 : i64, window = 2 : i64}}
// CHECK-SAME: sscc.layers = {convolution = array<i64: 0>}
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: %[[RING:arg2]]: tensor<2x1x2x6xf32> {sscc.state = "inputs_cache"}
  // CHECK: tensor.extract_slice %[[RING]][0, 0, 0, 0] [2, 1, 1, 6] [1, 1, 1, 1] {df.together}
  // CHECK: tensor.extract_slice %[[RING]][0, 0, 1, 0] [2, 1, 1, 6] [1, 1, 1, 1] {df.together}
  // CHECK: linalg.generic
  // CHECK: arith.remsi
  // CHECK: arith.select
  // CHECK: arith.mulf
  // CHECK: %[[ROW:.+]] = "kv.row"({{.*}}) {df.together, kv.group = "convolution"}
  // CHECK: "kv.update"(%[[RING]], %{{[a-z0-9_]+}}, %[[ROW]], %{{[a-z0-9]+}}) {df.together, kv.group = "convolution"} : (tensor<2x1x2x6xf32>,
  func.func private @decode.layer.0(%h: tensor<2x6x1xf32> {sscc.input = "hidden"}, %w: !w {sscc.weight = "w"})
      -> (tensor<2x6x1xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %y = "kv.short_convolution"(%h, %w) {layer = 0 : i64} : (tensor<2x6x1xf32>, !w) -> tensor<2x6x1xf32>
    return %y : tensor<2x6x1xf32>
  }
}

// -----

// CASE: a chunk
// It is convolved behind the inputs before it, zeros at the first, and leaves its last ones; the end puts these into the ring.
// PASSES: thread-cache
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // CHECK-LABEL: func.func private @prefill.layer.0(
  // CHECK-SAME: %[[BEFORE:arg2]]: tensor<1x1x2x6xf32> {sscc.state = "inputs_scratch"}
  // CHECK: linalg.generic {{.*}} ins(%[[BEFORE]] :
  // CHECK: %[[INPUTS:.+]] = tensor.concat dim(2) {{.*}} -> tensor<1x1x6x6xf32>
  // CHECK: "kv.gather"(%[[INPUTS]], %{{[a-z0-9]+}}, %[[BEFORE]]) {df.together, kv.group = "convolution"}
  // CHECK-LABEL: func.func private @prefill.compress.0(
  // CHECK-SAME: %[[LEFT:arg0]]: tensor<1x1x2x6xf32> {sscc.state = "inputs_scratch"}, %[[RING:arg1]]: tensor<2x1x2x6xf32> {sscc.state = "inputs_cache"}
  // CHECK: %[[INDEX:[0-9]+]] = linalg.generic
  // CHECK: arith.remsi
  // CHECK: "kv.gather"(%[[LEFT]], %[[INDEX]], %{{[a-z0-9_]+}}) {kv.group = "convolution"}
  // CHECK: tensor.insert_slice %{{[a-z0-9]+}} into %[[RING]]
  func.func private @prefill.layer.0(%h: tensor<1x6x4xf32> {sscc.input = "hidden"}, %w: !w {sscc.weight = "w"})
      -> (tensor<1x6x4xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "prefill", sscc.layer = 0 : i64} {
    %y = "kv.short_convolution"(%h, %w) {layer = 0 : i64} : (tensor<1x6x4xf32>, !w) -> tensor<1x6x4xf32>
    return %y : tensor<1x6x4xf32>
  }
}

// -----

// CASE: beside attention
// The layer has the states of both, those of the convolution by the name of its group, and a function for the end of each.
// PASSES: thread-cache
// CHECK: module attributes
// CHECK-SAME: sscc.beside = ["convolution"]
// CHECK-SAME: sscc.layers = {convolution = array<i64: 0>}
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // CHECK-LABEL: func.func private @prefill.compress.0(
  // CHECK: "kv.select"({{[^)]*}}) :
  // CHECK: "kv.gather"({{[^)]*}}) :
  // CHECK-LABEL: func.func private @prefill.layer.0(
  // CHECK-SAME: {sscc.state = "k_scratch"}
  // CHECK-SAME: {sscc.state = "inputs_scratch.convolution"}
  // CHECK: "kv.gather"({{[^)]*}}) {df.together, kv.group = "convolution"}
  // CHECK: "kv.causal_attention"({{[^)]*}}) {scale
  // CHECK-LABEL: func.func private @prefill.compress.0.convolution(
  // CHECK-SAME: {sscc.state = "inputs_scratch.convolution"}
  // CHECK-SAME: {sscc.state = "inputs_cache.convolution"}
  // CHECK: "kv.gather"({{[^)]*}}) {kv.group = "convolution"}
  func.func private @prefill.layer.0(%h: tensor<1x1x4x6xf32> {sscc.input = "hidden"}, %w: !w {sscc.weight = "w"})
      -> (tensor<1x1x4x6xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "prefill", sscc.layer = 0 : i64} {
    %x = tensor.collapse_shape %h [[0, 1], [2], [3]] : tensor<1x1x4x6xf32> into tensor<1x4x6xf32>
    %e = tensor.empty() : tensor<1x6x4xf32>
    %t = linalg.transpose ins(%x : tensor<1x4x6xf32>) outs(%e : tensor<1x6x4xf32>) permutation = [0, 2, 1]
    %y = "kv.short_convolution"(%t, %w) {layer = 0 : i64} : (tensor<1x6x4xf32>, !w) -> tensor<1x6x4xf32>
    %f = tensor.empty() : tensor<1x4x6xf32>
    %b = linalg.transpose ins(%y : tensor<1x6x4xf32>) outs(%f : tensor<1x4x6xf32>) permutation = [0, 2, 1]
    %q = tensor.expand_shape %b [[0, 1], [2], [3]] output_shape [1, 1, 4, 6] : tensor<1x4x6xf32> into tensor<1x1x4x6xf32>
    %o = "kv.self_attention"(%q, %h, %h) {layer = 0 : i64, scale = 0.25 : f64}
      : (tensor<1x1x4x6xf32>, tensor<1x1x4x6xf32>, tensor<1x1x4x6xf32>) -> tensor<1x1x4x6xf32>
    return %o : tensor<1x1x4x6xf32>
  }
}
