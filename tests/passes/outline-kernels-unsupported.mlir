// Options that the pass does not know.

// -----

// CASE: another granularity
// PASSES: outline-kernels{granularity=loop}
// ERROR: outline-kernels.unknown-granularity granularity=loop choices=operation,layer
module {
  func.func public @decode(%h: tensor<2x8xf32> {sscc.input = "hidden"}) -> (tensor<2x8xf32> {sscc.output = "logits"}) {
    return %h : tensor<2x8xf32>
  }
}

// -----

// CASE: another option
// PASSES: outline-kernels{size=layer}
// ERROR: pass-pipeline.unknown-option name=outline-kernels option=size=layer options=granularity
module {
  func.func public @decode(%h: tensor<2x8xf32> {sscc.input = "hidden"}) -> (tensor<2x8xf32> {sscc.output = "logits"}) {
    return %h : tensor<2x8xf32>
  }
}
