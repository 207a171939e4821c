// Weights that stay as they are.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}

// -----

// CASE: groups that do not fit
// PASSES: quantize-weights{weights=int8:48}
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // 64 is no multiple of 48.
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: %arg1: tensor<64x9xf32> {sscc.weight = "w"}
  // CHECK-NOT: i8
  func.func private @decode.layer.0(%h: tensor<2x64xf32> {sscc.input = "hidden"}, %w: tensor<64x9xf32> {sscc.weight = "w"})
      -> (tensor<2x9xf32> {sscc.output = "hidden"}) {
    %zero = arith.constant 0.0 : f32
    %s = tensor.empty() : tensor<2x9xf32>
    %z = linalg.fill ins(%zero : f32) outs(%s : tensor<2x9xf32>) -> tensor<2x9xf32>
    %p = linalg.matmul ins(%h, %w : tensor<2x64xf32>, tensor<64x9xf32>) outs(%z : tensor<2x9xf32>) -> tensor<2x9xf32>
    return %p : tensor<2x9xf32>
  }
}

// -----

// CASE: other readers
// PASSES: quantize-weights
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // A weight that is added as well; one that is the first operand; one that is read along both of its axes; an input
  // and a constant, which are no weights; and a table that is transposed for something else.
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: %arg1: tensor<64x64xf32> {sscc.weight = "added"}
  // CHECK-SAME: %arg2: tensor<64x64xf32> {sscc.weight = "first"}
  // CHECK-SAME: %arg3: tensor<64x64xf32> {sscc.weight = "both"}
  // CHECK-SAME: %arg4: tensor<64x64xf32> {sscc.constant = "constant"}
  // CHECK-SAME: %arg5: tensor<64x64xf32> {sscc.weight = "turned"}
  // CHECK-NOT: i8
  func.func private @decode.layer.0(%h: tensor<64x64xf32> {sscc.input = "hidden"}, %a: tensor<64x64xf32> {sscc.weight = "added"},
      %f: tensor<64x64xf32> {sscc.weight = "first"}, %b: tensor<64x64xf32> {sscc.weight = "both"},
      %c: tensor<64x64xf32> {sscc.constant = "constant"}, %u: tensor<64x64xf32> {sscc.weight = "turned"}) -> (tensor<64x64xf32> {sscc.output = "hidden"}) {
    %zero = arith.constant 0.0 : f32
    %s = tensor.empty() : tensor<64x64xf32>
    %z = linalg.fill ins(%zero : f32) outs(%s : tensor<64x64xf32>) -> tensor<64x64xf32>
    %0 = linalg.matmul ins(%h, %a : tensor<64x64xf32>, tensor<64x64xf32>) outs(%z : tensor<64x64xf32>) -> tensor<64x64xf32>
    %1 = linalg.add ins(%0, %a : tensor<64x64xf32>, tensor<64x64xf32>) outs(%s : tensor<64x64xf32>) -> tensor<64x64xf32>
    %2 = linalg.matmul ins(%f, %1 : tensor<64x64xf32>, tensor<64x64xf32>) outs(%z : tensor<64x64xf32>) -> tensor<64x64xf32>
    %t = linalg.transpose ins(%b : tensor<64x64xf32>) outs(%s : tensor<64x64xf32>) permutation = [1, 0]
    %3 = linalg.matmul ins(%2, %b : tensor<64x64xf32>, tensor<64x64xf32>) outs(%z : tensor<64x64xf32>) -> tensor<64x64xf32>
    %4 = linalg.matmul ins(%3, %t : tensor<64x64xf32>, tensor<64x64xf32>) outs(%z : tensor<64x64xf32>) -> tensor<64x64xf32>
    %5 = linalg.matmul ins(%4, %c : tensor<64x64xf32>, tensor<64x64xf32>) outs(%z : tensor<64x64xf32>) -> tensor<64x64xf32>
    %v = linalg.transpose ins(%u : tensor<64x64xf32>) outs(%s : tensor<64x64xf32>) permutation = [1, 0]
    %6 = linalg.matmul ins(%5, %v : tensor<64x64xf32>, tensor<64x64xf32>) outs(%z : tensor<64x64xf32>) -> tensor<64x64xf32>
    %7 = linalg.add ins(%6, %v : tensor<64x64xf32>, tensor<64x64xf32>) outs(%s : tensor<64x64xf32>) -> tensor<64x64xf32>
    return %7 : tensor<64x64xf32>
  }
}

// -----

// CASE: a second time
// PASSES: quantize-weights,quantize-weights
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // Codes are the operand of no product.
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: %arg1: tensor<9x64xi8> {sscc.encoding = "int8:32/values/transposed", sscc.sources = ["w"], sscc.weight = "w.values"}
  // CHECK-SAME: %arg2: tensor<9x4xi8>
  // CHECK-NOT: %arg3
  func.func private @decode.layer.0(%h: tensor<2x64xf32> {sscc.input = "hidden"}, %w: tensor<64x9xf32> {sscc.weight = "w"})
      -> (tensor<2x9xf32> {sscc.output = "hidden"}) {
    %zero = arith.constant 0.0 : f32
    %s = tensor.empty() : tensor<2x9xf32>
    %z = linalg.fill ins(%zero : f32) outs(%s : tensor<2x9xf32>) -> tensor<2x9xf32>
    %p = linalg.matmul ins(%h, %w : tensor<2x64xf32>, tensor<64x9xf32>) outs(%z : tensor<2x9xf32>) -> tensor<2x9xf32>
    return %p : tensor<2x9xf32>
  }
}
