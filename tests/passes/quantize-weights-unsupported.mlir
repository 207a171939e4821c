// What quantize-weights refuses.

// -----

// CASE: another number of bits
// PASSES: quantize-weights{bits=3}
// ERROR: weight-format.bits bits=3 choices=8,4
module {
}

// -----

// CASE: an odd group
// PASSES: quantize-weights{group=33}
// ERROR: weight-format.group group=33
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
