#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}

// -----

// CASE: views move nothing
// PASSES: outline-kernels
module attributes {kv.geometry = #geometry} {
  // Reshapes, slices and transposes stay in the entry: they are windows, not kernels.
  // CHECK-LABEL: func.func public @decode(
  // CHECK: tensor.expand_shape
  // CHECK: tensor.extract_slice
  // CHECK: linalg.transpose
  // CHECK: tensor.insert_slice
  // CHECK: tensor.collapse_shape
  // CHECK-NOT: call
  // CHECK-NOT: sscc.kernel
  func.func public @decode(%h: tensor<4x8xf32> {sscc.input = "hidden"}) -> (tensor<8x4xf32> {sscc.output = "logits"}) {
    %0 = tensor.expand_shape %h [[0, 1], [2]] output_shape [1, 4, 8] : tensor<4x8xf32> into tensor<1x4x8xf32>
    %1 = tensor.extract_slice %0[0, 0, 0] [1, 2, 8] [1, 1, 1] : tensor<1x4x8xf32> to tensor<1x2x8xf32>
    %e = tensor.empty() : tensor<1x8x2xf32>
    %2 = linalg.transpose ins(%1 : tensor<1x2x8xf32>) outs(%e : tensor<1x8x2xf32>) permutation = [0, 2, 1]
    %s = tensor.empty() : tensor<1x8x4xf32>
    %3 = tensor.insert_slice %2 into %s[0, 0, 0] [1, 8, 2] [1, 1, 1] : tensor<1x8x2xf32> into tensor<1x8x4xf32>
    %4 = tensor.collapse_shape %3 [[0, 1], [2]] : tensor<1x8x4xf32> into tensor<8x4xf32>
    return %4 : tensor<8x4xf32>
  }
}

// -----

// CASE: nothing unused is left
// PASSES: outline-kernels
module attributes {kv.geometry = #geometry} {
  // The fill moved into the kernel, and nobody reads the slice or the sum.
  // CHECK-LABEL: func.func public @decode(
  // CHECK-NEXT: %[[Y:.+]] = call @matmul.0(%arg0, %arg1)
  // CHECK-NEXT: return %[[Y]]
  func.func public @decode(%h: tensor<2x8xf32> {sscc.input = "hidden"}, %w: tensor<8x9xf32> {sscc.weight = "w"}, %n: index {sscc.input = "length"})
      -> (tensor<2x9xf32> {sscc.output = "logits"}) {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<2x9xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<2x9xf32>) -> tensor<2x9xf32>
    %s = tensor.extract_slice %h[0, 0] [1, 8] [1, 1] : tensor<2x8xf32> to tensor<1x8xf32>
    %i = arith.addi %n, %n : index
    %y = linalg.matmul ins(%h, %w : tensor<2x8xf32>, tensor<8x9xf32>) outs(%f : tensor<2x9xf32>) -> tensor<2x9xf32>
    return %y : tensor<2x9xf32>
  }
}
