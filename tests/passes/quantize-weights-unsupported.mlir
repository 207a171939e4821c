// What quantize-weights refuses.

// -----

// CASE: another number of bits
// PASSES: quantize-weights{bits=3}
// ERROR: UsageError: weights of 3 bits are not known, there are 8 and 4
module {
}

// -----

// CASE: an odd group
// PASSES: quantize-weights{group=33}
// ERROR: UsageError: a group of 33 weights is not possible, it must be an even number
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
