// What quantize-weights refuses.

// -----

// CASE: a format that does not exist
// PASSES: quantize-weights{weights=int3}
// ERROR: group-format.unknown text=int3
module {
}

// -----

// CASE: an odd group
// PASSES: quantize-weights{weights=int8:33}
// ERROR: group-format.group group=33
module {
}

// -----

// CASE: a module with entries
// PASSES: quantize-weights
// ERROR: quantize-weights.after-entries
module {
  func.func private @decode.layer.0(%h: tensor<2x8xf32> {sscc.input = "hidden"}) -> (tensor<2x8xf32> {sscc.output = "hidden"}) {
    return %h : tensor<2x8xf32>
  }
  func.func public @decode(%h: tensor<2x8xf32> {sscc.input = "hidden"}) -> (tensor<2x8xf32> {sscc.output = "logits"}) {
    %0 = func.call @decode.layer.0(%h) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    return %0 : tensor<2x8xf32>
  }
}
