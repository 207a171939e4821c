#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}

// -----

// CASE: embedding and head
// PASSES: thread-cache
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // What is not a layer is left as it is.
  // CHECK: func.func private @decode.embed(%arg0: tensor<2x1xi64> {sscc.input = "ids"}) -> (tensor<2x1xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "decode"}
  // CHECK-NEXT: %[[H:.+]] = arith.sitofp %arg0
  // CHECK-NEXT: return %[[H]]
  // CHECK-NEXT: }
  // CHECK-NEXT: }
  func.func private @decode.embed(%ids: tensor<2x1xi64> {sscc.input = "ids"}) -> (tensor<2x1xf32> {sscc.output = "hidden"})
      attributes {sscc.entry = "decode"} {
    %h = arith.sitofp %ids : tensor<2x1xi64> to tensor<2x1xf32>
    return %h : tensor<2x1xf32>
  }
}
