#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 0 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}

// -----

// CASE: a table without a token axis
// The table has the same shape in both captures, so nothing tells which axis holds tokens.
// PASSES: build-entries
// ERROR: build-entries.no-token-axis tensor=table.0 prefill=1,8 decode=1,8
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  func.func private @prefill.embed(tensor<1x4xi64> {sscc.input = "ids"}) -> (tensor<1x4x8xf32> {sscc.output = "hidden"}, tensor<1x8xf32> {sscc.output = "table.0"})
  func.func private @decode.embed(tensor<2x1xi64> {sscc.input = "ids"}) -> (tensor<2x1x8xf32> {sscc.output = "hidden"}, tensor<1x8xf32> {sscc.output = "table.0"})
}

// -----

// CASE: a table with two token axes
// PASSES: build-entries
// ERROR: build-entries.no-token-axis tensor=table.0 prefill=4,4 decode=1,1
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  func.func private @prefill.embed(tensor<1x4xi64> {sscc.input = "ids"}) -> (tensor<1x4x8xf32> {sscc.output = "hidden"}, tensor<4x4xf32> {sscc.output = "table.0"})
  func.func private @decode.embed(tensor<2x1xi64> {sscc.input = "ids"}) -> (tensor<2x1x8xf32> {sscc.output = "hidden"}, tensor<1x1xf32> {sscc.output = "table.0"})
}
