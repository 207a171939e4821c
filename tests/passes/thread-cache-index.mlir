// A layer that attends to rows which its own index chooses. B 2, C 4, T 8, one KV head of keys of 3 numbers, 2 positions chosen.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64, dtype = "int8"}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}

// -----

// CASE: a step and a chunk
// PASSES: thread-cache
// CHECK: module attributes
// CHECK-SAME: chosen = {dtype = "int8",
// CHECK-SAME: policy = "index"
// CHECK-SAME: index = {dtype = "model",
// CHECK-SAME: sscc.beside = ["index"]
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: %[[K:arg4]]: tensor<2x1x8x7xi8> {sscc.state = "k_store"}
  // CHECK-SAME: %[[KEYS:arg8]]: tensor<2x1x8x5xf32> {sscc.state = "index_cache.index"}
  // CHECK: %[[CHOICE:.+]]:2 = "kv.choose_by_index"(%arg1, %{{.+}}, %[[KEYS]], %{{.+}}, %{{.+}}, %arg3)
  // CHECK-SAME: block = 1
  // CHECK-SAME: kv.group = "index"
  // CHECK: %[[OUT:.+]]:3 = "kv.attend_chosen"(%arg0, %arg0, %arg0, %[[K]], %{{.+}}, %{{.+}}, %[[CHOICE]]#0)
  // CHECK-SAME: kv.group = "chosen"
  // CHECK: return %[[OUT]]#0, %[[OUT]]#1, %[[OUT]]#2, %[[CHOICE]]#1
  func.func private @decode.layer.0(%h: tensor<2x1x1x3xf32> {sscc.input = "hidden"}, %q: tensor<2x1x2x5xf32> {sscc.weight = "q"},
      %k: tensor<2x1x5xf32> {sscc.weight = "k"}, %w: tensor<2x1x2xf32> {sscc.weight = "w"})
      -> (tensor<2x1x1x3xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %c = "kv.index"(%q, %k, %w) {layer = 0 : i64, block = 1 : i64, local = 0 : i64} : (tensor<2x1x2x5xf32>, tensor<2x1x5xf32>, tensor<2x1x2xf32>) -> tensor<2x1x1x2xi64>
    %o = "kv.chosen_attention"(%h, %h, %h, %c) {layer = 0 : i64, scale = 0.5 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>} : (tensor<2x1x1x3xf32>, tensor<2x1x1x3xf32>, tensor<2x1x1x3xf32>, tensor<2x1x1x2xi64>) -> tensor<2x1x1x3xf32>
    return %o : tensor<2x1x1x3xf32>
  }
  // CHECK-LABEL: func.func private @prefill.layer.0(
  // CHECK-SAME: tensor<1x1x8x7xi8> {sscc.state = "k_scratch"}
  // CHECK-SAME: tensor<1x1x8x5xf32> {sscc.state = "index_scratch.index"}
  // CHECK: "kv.choose_by_index"
  // CHECK: "kv.attend_chosen"
  // CHECK-NOT: @prefill.compress
  func.func private @prefill.layer.0(%h: tensor<1x1x4x3xf32> {sscc.input = "hidden"}, %q: tensor<1x4x2x5xf32> {sscc.weight = "q"},
      %k: tensor<1x4x5xf32> {sscc.weight = "k"}, %w: tensor<1x4x2xf32> {sscc.weight = "w"})
      -> (tensor<1x1x4x3xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "prefill", sscc.layer = 0 : i64} {
    %c = "kv.index"(%q, %k, %w) {layer = 0 : i64, block = 1 : i64, local = 0 : i64} : (tensor<1x4x2x5xf32>, tensor<1x4x5xf32>, tensor<1x4x2xf32>) -> tensor<1x1x4x2xi64>
    %o = "kv.chosen_attention"(%h, %h, %h, %c) {layer = 0 : i64, scale = 0.5 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>} : (tensor<1x1x4x3xf32>, tensor<1x1x4x3xf32>, tensor<1x1x4x3xf32>, tensor<1x1x4x2xi64>) -> tensor<1x1x4x3xf32>
    return %o : tensor<1x1x4x3xf32>
  }
}
