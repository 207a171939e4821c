// Reshapes that no strides express, of what cannot become a copy.

// -----

// CASE: a reshape of a slice
// PASSES: form-stages
// ERROR: UnsupportedError: loc("layers.0"): 'tensor.collapse_shape' of a strided view that is no transposition
module {
  func.func private @k(%h: tensor<2x8xf32> {sscc.input = "h"}) -> (tensor<8xf32> {sscc.output = "y"}) attributes {sscc.kernel} {
    %s = tensor.extract_slice %h[0, 2] [2, 4] [1, 1] : tensor<2x8xf32> to tensor<2x4xf32>
    %c = tensor.collapse_shape %s [[0, 1]] : tensor<2x4xf32> into tensor<8xf32> loc("layers.0")
    %e = tensor.empty() : tensor<8xf32>
    %y = linalg.exp ins(%c : tensor<8xf32>) outs(%e : tensor<8xf32>) -> tensor<8xf32>
    return %y : tensor<8xf32>
  }
}
