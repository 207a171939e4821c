// B 2; weights [9, 64], so that two groups of 32 share a row.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}

// -----

// CASE: a transposed weight in 8 bits
// PASSES: quantize-weights
// LOCATIONS
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // Values and scales follow the arguments that stay; the weight's own argument is gone.
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: %[[H:arg0]]: tensor<2x64xf32> {sscc.input = "hidden"}
  // CHECK-SAME: %[[N:arg1]]: tensor<9xf32> {sscc.weight = "norm"}
  // CHECK-SAME: %[[V:arg2]]: tensor<9x64xi8> {sscc.encoding = "int8:32/values", sscc.sources = ["w"], sscc.weight = "w.values"}
  // CHECK-SAME: %[[S:arg3]]: tensor<9x4xi8> {sscc.encoding = "int8:32/scales", sscc.sources = ["w"], sscc.weight = "w.scales"}
  // CHECK-SAME: {sscc.output = "hidden"}
  //
  // The numbers of the weight have the place and the location of its reader.
  // CHECK: %[[VS:.+]] = tensor.expand_shape %[[V]] {{\[\[}}0, 1], [2]] output_shape [1, 9, 64]
  // CHECK-SAME: loc("layers.0.proj"("model.py":3:0))
  // CHECK: %[[SS:.+]] = tensor.expand_shape %[[S]] {{\[\[}}0, 1], [2]] output_shape [1, 9, 4]
  // CHECK: %[[D:.+]] = "kv.dequantize"(%[[VS]], %[[SS]]) {format = "int8:32", {{.*}} : (tensor<1x9x64xi8>, tensor<1x9x4xi8>) -> tensor<1x9x64xf32>
  // CHECK: %[[W:.+]] = tensor.collapse_shape %[[D]] {{\[\[}}0, 1], [2]] : tensor<1x9x64xf32> into tensor<9x64xf32>
  // CHECK: %[[T:.+]] = linalg.transpose ins(%[[W]] : tensor<9x64xf32>)
  // CHECK: linalg.matmul ins(%[[H]], %[[T]] :
  // CHECK: linalg.add ins(%{{.+}}, %[[N]] :
  func.func private @decode.layer.0(%h: tensor<2x64xf32> {sscc.input = "hidden"}, %w: tensor<9x64xf32> {sscc.weight = "w"},
      %n: tensor<9xf32> {sscc.weight = "norm"}) -> (tensor<9xf32> {sscc.output = "hidden"}) {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<64x9xf32>
    %t = linalg.transpose ins(%w : tensor<9x64xf32>) outs(%e : tensor<64x9xf32>) permutation = [1, 0] loc("layers.0.proj"("model.py":3:0))
    %s = tensor.empty() : tensor<2x9xf32>
    %z = linalg.fill ins(%zero : f32) outs(%s : tensor<2x9xf32>) -> tensor<2x9xf32>
    %p = linalg.matmul ins(%h, %t : tensor<2x64xf32>, tensor<64x9xf32>) outs(%z : tensor<2x9xf32>) -> tensor<2x9xf32>
    %r = tensor.extract_slice %p[0, 0] [1, 9] [1, 1] : tensor<2x9xf32> to tensor<9xf32>
    %o = tensor.empty() : tensor<9xf32>
    %y = linalg.add ins(%r, %n : tensor<9xf32>, tensor<9xf32>) outs(%o : tensor<9xf32>) -> tensor<9xf32>
    return %y : tensor<9xf32>
  }
}

// -----

// CASE: a weight that is read as it lies
// PASSES: quantize-weights{weights=int8:16}
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // It is stored with the summed axis last all the same, and turned again. Rows of 9 are no obstacle: the groups are
  // along the 64.
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: %[[V:arg1]]: tensor<9x64xi8> {sscc.encoding = "int8:16/values/transposed", sscc.sources = ["w"], sscc.weight = "w.values"}
  // CHECK-SAME: %[[S:arg2]]: tensor<9x8xi8> {sscc.encoding = "int8:16/scales/transposed", sscc.sources = ["w"], sscc.weight = "w.scales"}
  // CHECK: %[[W:.+]] = tensor.collapse_shape {{.*}} : tensor<1x9x64xf32> into tensor<9x64xf32>
  // CHECK: %[[T:.+]] = linalg.transpose ins(%[[W]] : tensor<9x64xf32>) outs(%{{.+}} : tensor<64x9xf32>) permutation = [1, 0]
  // CHECK: linalg.matmul ins(%arg0, %[[T]] :
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

// CASE: 4 bits with zero points, in bf16
// PASSES: quantize-weights{weights=int4:zero-point}
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // Two codes in a byte, and zero points that are codes, too. Numbers have the dtype of the weight.
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: %[[V:arg1]]: tensor<9x32xi8> {sscc.encoding = "int4:32:zero-point/values"
  // CHECK-SAME: %[[S:arg2]]: tensor<9x4xi8> {sscc.encoding = "int4:32:zero-point/scales"
  // CHECK-SAME: %[[Z:arg3]]: tensor<9x2xi8> {sscc.encoding = "int4:32:zero-point/zeros", sscc.sources = ["w"], sscc.weight = "w.zeros"}
  // CHECK: "kv.dequantize"(%{{.+}}, %{{.+}}, %{{.+}}) {format = "int4:32:zero-point", {{.*}} : (tensor<1x9x32xi8>, tensor<1x9x4xi8>, tensor<1x9x2xi8>) -> tensor<1x9x64xbf16>
  // CHECK: tensor.collapse_shape {{.*}} : tensor<1x9x64xbf16> into tensor<9x64xbf16>
  func.func private @decode.layer.0(%h: tensor<2x64xbf16> {sscc.input = "hidden"}, %w: tensor<9x64xbf16> {sscc.weight = "w"})
      -> (tensor<2x9xf32> {sscc.output = "hidden"}) {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<64x9xbf16>
    %t = linalg.transpose ins(%w : tensor<9x64xbf16>) outs(%e : tensor<64x9xbf16>) permutation = [1, 0]
    %s = tensor.empty() : tensor<2x9xf32>
    %z = linalg.fill ins(%zero : f32) outs(%s : tensor<2x9xf32>) -> tensor<2x9xf32>
    %p = linalg.matmul ins(%h, %t : tensor<2x64xbf16>, tensor<64x9xbf16>) outs(%z : tensor<2x9xf32>) -> tensor<2x9xf32>
    return %p : tensor<2x9xf32>
  }
}

// -----

// CASE: two products of one weight
// PASSES: quantize-weights
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // They share one dequantization, and the weight is stored once.
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: %arg1: tensor<9x64xi8>
  // CHECK-SAME: %arg2: tensor<9x4xi8>
  // CHECK-NOT: %arg3
  // CHECK: kv.dequantize
  // CHECK: linalg.matmul
  // CHECK-NOT: kv.dequantize
  // CHECK: linalg.matmul
  func.func private @decode.layer.0(%h: tensor<2x64xf32> {sscc.input = "hidden"}, %w: tensor<9x64xf32> {sscc.weight = "w"})
      -> (tensor<2x9xf32> {sscc.output = "a"}, tensor<2x9xf32> {sscc.output = "b"}) {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<64x9xf32>
    %t = linalg.transpose ins(%w : tensor<9x64xf32>) outs(%e : tensor<64x9xf32>) permutation = [1, 0]
    %s = tensor.empty() : tensor<2x9xf32>
    %z = linalg.fill ins(%zero : f32) outs(%s : tensor<2x9xf32>) -> tensor<2x9xf32>
    %p = linalg.matmul ins(%h, %t : tensor<2x64xf32>, tensor<64x9xf32>) outs(%z : tensor<2x9xf32>) -> tensor<2x9xf32>
    %u = linalg.transpose ins(%w : tensor<9x64xf32>) outs(%e : tensor<64x9xf32>) permutation = [1, 0]
    %g = math.exp %h : tensor<2x64xf32>
    %q = linalg.matmul ins(%g, %u : tensor<2x64xf32>, tensor<64x9xf32>) outs(%z : tensor<2x9xf32>) -> tensor<2x9xf32>
    return %p, %q : tensor<2x9xf32>, tensor<2x9xf32>
  }
}

// -----

// CASE: an embedding, and a head that is tied to it
// PASSES: quantize-weights
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // The one looks up rows and keeps its numbers; the other gets a quantized copy of the same tensor.
  // CHECK-LABEL: func.func private @decode.embed(
  // CHECK-SAME: %arg0: tensor<9x64xf32> {sscc.weight = "embed"}
  // CHECK: tensor.extract %arg0
  // CHECK-LABEL: func.func private @decode.head(
  // CHECK-SAME: %arg1: tensor<9x64xi8> {sscc.encoding = "int8:32/values", sscc.sources = ["embed"], sscc.weight = "embed.values"}
  // CHECK-NOT: sscc.weight = "embed"}
  func.func private @decode.embed(%w: tensor<9x64xf32> {sscc.weight = "embed"}, %ids: tensor<2xi64> {sscc.input = "ids"})
      -> (tensor<2x64xf32> {sscc.output = "hidden"}) {
    %e = tensor.empty() : tensor<2x64xf32>
    %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%ids : tensor<2xi64>) outs(%e : tensor<2x64xf32>) {
    ^bb0(%id: i64, %o: f32):
      %row = arith.index_cast %id : i64 to index
      %column = linalg.index 1 : index
      %x = tensor.extract %w[%row, %column] : tensor<9x64xf32>
      linalg.yield %x : f32
    } -> tensor<2x64xf32>
    return %y : tensor<2x64xf32>
  }
  func.func private @decode.head(%h: tensor<2x64xf32> {sscc.input = "hidden"}, %w: tensor<9x64xf32> {sscc.weight = "embed"})
      -> (tensor<2x9xf32> {sscc.output = "logits"}) {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<64x9xf32>
    %t = linalg.transpose ins(%w : tensor<9x64xf32>) outs(%e : tensor<64x9xf32>) permutation = [1, 0]
    %s = tensor.empty() : tensor<2x9xf32>
    %z = linalg.fill ins(%zero : f32) outs(%s : tensor<2x9xf32>) -> tensor<2x9xf32>
    %p = linalg.matmul ins(%h, %t : tensor<2x64xf32>, tensor<64x9xf32>) outs(%z : tensor<2x9xf32>) -> tensor<2x9xf32>
    return %p : tensor<2x9xf32>
  }
}

// -----

// CASE: tables and stacks as a checkpoint stores them
// PASSES: quantize-weights{weights=keep}
module attributes {kv.geometry = #geometry, sscc.program = #program, sscc.stored = {embed = "Q8_0/blocks", experts = "Q4_K/blocks"}} {
  // Rows of a stored table are looked up, and the matrices of experts are one part each. What the checkpoint stores as
  // numbers stays so.
  // CHECK-LABEL: func.func private @decode.embed(
  // CHECK-SAME: %[[IDS:arg0]]: tensor<2x1xi64>
  // CHECK-SAME: %[[T:arg1]]: tensor<9x68xi8> {sscc.encoding = "Q8_0/blocks", sscc.sources = ["embed"], sscc.weight = "embed.blocks"}
  // CHECK: %[[I:.+]] = tensor.collapse_shape %[[IDS]] {{\[\[}}0, 1]] : tensor<2x1xi64> into tensor<2xi64>
  // CHECK: %[[R:.+]] = "kv.look_up"(%[[I]], %[[T]]) {format = "Q8_0", {{.*}} : (tensor<2xi64>, tensor<9x68xi8>) -> tensor<2x64xf32>
  // CHECK: tensor.expand_shape %[[R]] {{\[\[}}0, 1], [2]] output_shape [2, 1, 64]
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: %arg2: tensor<256x9xf32> {sscc.weight = "plain"}
  // CHECK-SAME: %[[E:arg3]]: tensor<4x9x144xi8> {sscc.encoding = "Q4_K/blocks", sscc.sources = ["experts"], sscc.weight = "experts.blocks"}
  // CHECK: %[[N:.+]] = "kv.dequantize"(%[[E]]) {format = "Q4_K", {{.*}} : (tensor<4x9x144xi8>) -> tensor<4x9x256xf32>
  // CHECK: "kv.expert_product"(%{{.+}}, %[[N]], %{{.+}})
  func.func private @decode.embed(%w: tensor<9x64xf32> {sscc.weight = "embed"}, %ids: tensor<2x1xi64> {sscc.input = "ids"})
      -> (tensor<2x1x64xf32> {sscc.output = "hidden"}) {
    %e = tensor.empty() : tensor<2x1x64xf32>
    %y = linalg.generic {indexing_maps = [affine_map<(i, s, j) -> (i, s)>, affine_map<(i, s, j) -> (i, s, j)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%ids : tensor<2x1xi64>) outs(%e : tensor<2x1x64xf32>) {
    ^bb0(%id: i64, %o: f32):
      %row = arith.index_cast %id : i64 to index
      %column = linalg.index 2 : index
      %x = tensor.extract %w[%row, %column] : tensor<9x64xf32>
      linalg.yield %x : f32
    } -> tensor<2x1x64xf32>
    return %y : tensor<2x1x64xf32>
  }
  func.func private @decode.layer.0(%h: tensor<2x1x256xf32> {sscc.input = "hidden"}, %chosen: tensor<2x2xi64> {sscc.input = "chosen"},
      %w: tensor<4x9x256xf32> {sscc.weight = "experts"}, %p: tensor<256x9xf32> {sscc.weight = "plain"})
      -> (tensor<2x2x9xf32> {sscc.output = "a"}, tensor<2x9xf32> {sscc.output = "b"}) {
    %zero = arith.constant 0.0 : f32
    %y = "kv.expert_product"(%h, %w, %chosen) : (tensor<2x1x256xf32>, tensor<4x9x256xf32>, tensor<2x2xi64>) -> tensor<2x2x9xf32>
    %x = tensor.collapse_shape %h [[0, 1], [2]] : tensor<2x1x256xf32> into tensor<2x256xf32>
    %s = tensor.empty() : tensor<2x9xf32>
    %z = linalg.fill ins(%zero : f32) outs(%s : tensor<2x9xf32>) -> tensor<2x9xf32>
    %m = linalg.matmul ins(%x, %p : tensor<2x256xf32>, tensor<256x9xf32>) outs(%z : tensor<2x9xf32>) -> tensor<2x9xf32>
    return %y, %m : tensor<2x2x9xf32>, tensor<2x9xf32>
  }
}

// -----

// CASE: it becomes part of the product's stage
// PASSES: form-stages
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // This is what quantize-weights{weights=int4} leaves. One stage, whose body reads codes and scales, computes numbers, and multiplies: the product stays a product.
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK: call @body.proj(%arg1, %arg2, %arg0) {df.stage = "proj"} : (tensor<9x32xi8>, tensor<9x4xi8>, tensor<2x64xf32>) -> tensor<2x9xf32>
  // CHECK-NEXT: return
  // CHECK-LABEL: func.func private @body.proj(
  // CHECK: %[[D:.+]] = "kv.dequantize"
  // CHECK: %[[W:.+]] = tensor.collapse_shape %[[D]]
  // CHECK: linalg.generic {{.*}}iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg2, %[[W]] : tensor<2x64xf32>, tensor<9x64xf32>)
  // CHECK-NEXT: ^bb0
  // CHECK-NEXT: arith.mulf
  // CHECK-NEXT: arith.addf
  // CHECK-NEXT: linalg.yield
  func.func private @decode.layer.0(%h: tensor<2x64xf32> {sscc.input = "hidden"},
      %values: tensor<9x32xi8> {sscc.encoding = "int4:32/values", sscc.sources = ["w"], sscc.weight = "w.values"},
      %scales: tensor<9x4xi8> {sscc.encoding = "int4:32/scales", sscc.sources = ["w"], sscc.weight = "w.scales"})
      -> (tensor<2x9xf32> {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %v = tensor.expand_shape %values [[0, 1], [2]] output_shape [1, 9, 32] : tensor<9x32xi8> into tensor<1x9x32xi8>
    %c = tensor.expand_shape %scales [[0, 1], [2]] output_shape [1, 9, 4] : tensor<9x4xi8> into tensor<1x9x4xi8>
    %numbers = "kv.dequantize"(%v, %c) {format = "int4:32", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x9x32xi8>, tensor<1x9x4xi8>) -> tensor<1x9x64xf32>
    %w = tensor.collapse_shape %numbers [[0, 1], [2]] : tensor<1x9x64xf32> into tensor<9x64xf32>
    %e = tensor.empty() : tensor<64x9xf32>
    %t = linalg.transpose ins(%w : tensor<9x64xf32>) outs(%e : tensor<64x9xf32>) permutation = [1, 0]
    %s = tensor.empty() : tensor<2x9xf32>
    %z = linalg.fill ins(%zero : f32) outs(%s : tensor<2x9xf32>) -> tensor<2x9xf32>
    %p = linalg.matmul ins(%h, %t : tensor<2x64xf32>, tensor<64x9xf32>) outs(%z : tensor<2x9xf32>) -> tensor<2x9xf32> loc("layers.0.proj"("model.py":3:0))
    return %p : tensor<2x9xf32>
  }
}

// -----

// CASE: its tiles are tiles of codes and scales
// PASSES: form-stages,tile-stages
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // What is loaded, tile by tile, is what is stored; no tensor of 65536 x 64 numbers exists.
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-NOT: tensor<65536x64xf32>
  // CHECK: scf.for
  // CHECK: tensor.extract_slice %arg1{{.*}} : tensor<65536x32xi8> to tensor<[[N:[0-9]+]]x32xi8>
  // CHECK: "df.load"({{.*}}) {df.stage = "w.values"}
  // CHECK: tensor.extract_slice %arg2{{.*}} : tensor<65536x4xi8> to tensor<[[N]]x4xi8>
  // CHECK: "df.load"({{.*}}) {df.stage = "w.scales"}
  // CHECK: func.call @body.proj.tile.0
  // CHECK: df.tiles
  // CHECK-LABEL: func.func private @body.proj.tile.0(
  // CHECK: "kv.dequantize"{{.*}} : (tensor<1x[[N]]x32xi8>, tensor<1x[[N]]x4xi8>) -> tensor<1x[[N]]x64xf32>
  func.func private @decode.layer.0(%h: tensor<2x64xf32> {sscc.input = "hidden"},
      %values: tensor<65536x32xi8> {sscc.encoding = "int4:32/values", sscc.sources = ["w"], sscc.weight = "w.values"},
      %scales: tensor<65536x4xi8> {sscc.encoding = "int4:32/scales", sscc.sources = ["w"], sscc.weight = "w.scales"})
      -> (tensor<2x65536xf32> {sscc.output = "hidden"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %v = tensor.expand_shape %values [[0, 1], [2]] output_shape [1, 65536, 32] : tensor<65536x32xi8> into tensor<1x65536x32xi8>
    %c = tensor.expand_shape %scales [[0, 1], [2]] output_shape [1, 65536, 4] : tensor<65536x4xi8> into tensor<1x65536x4xi8>
    %numbers = "kv.dequantize"(%v, %c) {format = "int4:32", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x65536x32xi8>, tensor<1x65536x4xi8>) -> tensor<1x65536x64xf32>
    %w = tensor.collapse_shape %numbers [[0, 1], [2]] : tensor<1x65536x64xf32> into tensor<65536x64xf32>
    %e = tensor.empty() : tensor<64x65536xf32>
    %t = linalg.transpose ins(%w : tensor<65536x64xf32>) outs(%e : tensor<64x65536xf32>) permutation = [1, 0]
    %s = tensor.empty() : tensor<2x65536xf32>
    %z = linalg.fill ins(%zero : f32) outs(%s : tensor<2x65536xf32>) -> tensor<2x65536xf32>
    %p = linalg.matmul ins(%h, %t : tensor<2x64xf32>, tensor<64x65536xf32>) outs(%z : tensor<2x65536xf32>) -> tensor<2x65536xf32> loc("layers.0.proj"("model.py":3:0))
    return %p : tensor<2x65536xf32>
  }
}
