// Hidden states are 2 x 8.
#ij = affine_map<(i, j) -> (i, j)>
#i = affine_map<(i, j) -> (i)>
#j = affine_map<(i, j) -> (j)>
#abcd = affine_map<(a, b, c, d) -> (a, b, c, d)>
#acd = affine_map<(a, b, c, d) -> (a, c, d)>
!h = tensor<2x8xf32>
!w = tensor<8x8xf32>
!r = tensor<2xf32>
!q = tensor<1x2x2x4xf32>
!half = tensor<1x2x2x2xf32>

// -----

// CASE: a norm
// PASSES: form-stages
module {
  // Squares, their sum, the root and both products are one stage, named after the module of the sum. What is
  // element-wise inside has become one operation before the sum and one after it.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[Y:.+]] = call @body.norm(%arg0, %arg1) {df.stage = "norm"} : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  // CHECK-NEXT: return %[[Y]]
  // CHECK-LABEL: func.func private @body.norm(
  // CHECK-SAME: %[[H:arg0]]: tensor<2x8xf32> {sscc.input = "x0"}, %[[W:arg1]]: tensor<8xf32> {sscc.input = "x1"}) -> (tensor<2x8xf32> {sscc.output = "y0"}) attributes {df.body}
  // CHECK: %[[S:.+]] = linalg.generic {{.*}}"reduction"]} ins(%[[H]] : tensor<2x8xf32>)
  // CHECK: arith.mulf
  // CHECK: arith.addf
  // CHECK: %[[Y:.+]] = linalg.generic {{.*}} ins(%[[H]], %[[S]], %[[W]] :
  // CHECK: math.rsqrt
  // CHECK: arith.mulf
  // CHECK: arith.mulf
  // CHECK-NOT: linalg.generic
  // CHECK: return %[[Y]]
  func.func private @k(%h: !h {sscc.input = "h"}, %w: tensor<8xf32> {sscc.weight = "w"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !h
    %r = tensor.empty() : !r
    %z = linalg.fill ins(%zero : f32) outs(%r : !r) -> !r
    %sq = linalg.square ins(%h : !h) outs(%e : !h) -> !h loc("layers.0.norm")
    %sum = linalg.generic {indexing_maps = [#ij, #i], iterator_types = ["parallel", "reduction"]} ins(%sq : !h) outs(%z : !r) {
    ^bb0(%a: f32, %b: f32):
      %0 = arith.addf %b, %a : f32
      linalg.yield %0 : f32
    } -> !r loc("layers.0.norm")
    %n = linalg.generic {indexing_maps = [#ij, #i, #ij], iterator_types = ["parallel", "parallel"]} ins(%h, %sum : !h, !r) outs(%e : !h) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %0 = math.rsqrt %b : f32
      %1 = arith.mulf %a, %0 : f32
      linalg.yield %1 : f32
    } -> !h loc("layers.0.other")
    %y = linalg.generic {indexing_maps = [#ij, #j, #ij], iterator_types = ["parallel", "parallel"]} ins(%n, %w : !h, tensor<8xf32>) outs(%e : !h) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %0 = arith.mulf %a, %b : f32
      linalg.yield %0 : f32
    } -> !h loc("layers.0.other")
    return %y : !h
  }
}

// -----

// CASE: a product and its rotary embedding
// PASSES: form-stages
module {
  // Heads are made of the product's result, then rotated; all of that follows the product. The product makes heads to
  // begin with; slices and the transposition are views inside the body.
  // CHECK-LABEL: func.func private @k(
  // CHECK: call @body.q_proj(%{{[a-z0-9]+}}, %arg1, %arg2, %arg3) {df.stage = "q_proj"}
  // CHECK-NOT: call
  // CHECK-LABEL: func.func private @body.q_proj(
  // CHECK: %[[W:.+]] = tensor.expand_shape %arg1 {{.*}} into tensor<8x2x4xf32>
  // CHECK: %[[P:.+]] = linalg.generic {{.*}}"reduction"]} ins(%{{.+}}, %[[W]] :
  // CHECK: %[[T:.+]] = linalg.generic {{.*}} ins(%[[P]] :
  // CHECK: %[[LO:.+]] = tensor.extract_slice %[[T]][0, 0, 0, 0] [1, 2, 2, 2]
  // CHECK: %[[HI:.+]] = tensor.extract_slice %[[T]][0, 0, 0, 2] [1, 2, 2, 2]
  // CHECK: %[[N:.+]] = linalg.generic {{.*}} ins(%[[HI]] :
  // CHECK: arith.negf
  // CHECK: %[[C:.+]] = tensor.concat dim(3) %[[N]], %[[LO]]
  // CHECK: %[[Y:.+]] = linalg.generic {{.*}} ins(%[[T]], %arg2, %[[C]], %arg3 :
  // CHECK-NOT: linalg.generic
  // CHECK: return %[[Y]]
  func.func private @k(%h: !h {sscc.input = "h"}, %w: !w {sscc.weight = "w"}, %cos: tensor<1x2x4xf32> {sscc.input = "cos"}, %sin: tensor<1x2x4xf32> {sscc.input = "sin"})
      -> (!q {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !h
    %z = linalg.fill ins(%zero : f32) outs(%e : !h) -> !h
    %p = linalg.matmul ins(%h, %w : !h, !w) outs(%z : !h) -> !h loc("layers.0.attention.q_proj")
    %x = tensor.expand_shape %p [[0, 1], [2, 3]] output_shape [1, 2, 2, 4] : !h into tensor<1x2x2x4xf32>
    %f = tensor.empty() : !q
    %t = linalg.transpose ins(%x : tensor<1x2x2x4xf32>) outs(%f : !q) permutation = [0, 2, 1, 3]
    %lo = tensor.extract_slice %t[0, 0, 0, 0] [1, 2, 2, 2] [1, 1, 1, 1] : !q to !half
    %hi = tensor.extract_slice %t[0, 0, 0, 2] [1, 2, 2, 2] [1, 1, 1, 1] : !q to !half
    %g = tensor.empty() : !half
    %n = linalg.negf ins(%hi : !half) outs(%g : !half) -> !half
    %c = tensor.concat dim(3) %n, %lo : (!half, !half) -> !q
    %a = linalg.generic {indexing_maps = [#abcd, #acd, #abcd], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
        ins(%t, %cos : !q, tensor<1x2x4xf32>) outs(%f : !q) {
    ^bb0(%u: f32, %v: f32, %o: f32):
      %0 = arith.mulf %u, %v : f32
      linalg.yield %0 : f32
    } -> !q
    %b = linalg.generic {indexing_maps = [#abcd, #acd, #abcd], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
        ins(%c, %sin : !q, tensor<1x2x4xf32>) outs(%f : !q) {
    ^bb0(%u: f32, %v: f32, %o: f32):
      %0 = arith.mulf %u, %v : f32
      linalg.yield %0 : f32
    } -> !q
    %y = linalg.add ins(%a, %b : !q, !q) outs(%f : !q) -> !q
    return %y : !q
  }
}

// -----

// CASE: gate and up
// PASSES: form-stages
module {
  // Two products, and what joins them; the next product reads their stage, and takes the residual.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[M:.+]] = call @"body.gate_proj+up_proj"(%arg0, %arg1, %arg2) {df.stage = "gate_proj+up_proj"}
  // CHECK: %[[Y:.+]] = call @body.down_proj(%[[M]], %arg3, %arg0) {df.stage = "down_proj"}
  // CHECK-NEXT: return %[[Y]]
  // CHECK-LABEL: func.func private @"body.gate_proj+up_proj"(
  // CHECK-COUNT-2: "reduction"]}
  // CHECK: math.exp
  // CHECK-LABEL: func.func private @body.down_proj(
  // CHECK: "reduction"]}
  // CHECK: linalg.generic {{.*}} ins(%arg2, %{{.+}} :
  func.func private @k(%h: !h {sscc.input = "h"}, %wg: !w {sscc.weight = "wg"}, %wu: !w {sscc.weight = "wu"}, %wd: !w {sscc.weight = "wd"}) -> (!h {sscc.output = "y"})
      attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !h
    %z = linalg.fill ins(%zero : f32) outs(%e : !h) -> !h
    %g = linalg.matmul ins(%h, %wg : !h, !w) outs(%z : !h) -> !h loc("layers.0.mlp.gate_proj")
    %s = linalg.exp ins(%g : !h) outs(%e : !h) -> !h loc("layers.0.mlp.act")
    %u = linalg.matmul ins(%h, %wu : !h, !w) outs(%z : !h) -> !h loc("layers.0.mlp.up_proj")
    %m = linalg.mul ins(%s, %u : !h, !h) outs(%e : !h) -> !h loc("layers.0.mlp")
    %d = linalg.matmul ins(%m, %wd : !h, !w) outs(%z : !h) -> !h loc("layers.0.mlp.down_proj")
    %y = linalg.add ins(%h, %d : !h, !h) outs(%e : !h) -> !h loc("layers.0")
    return %y : !h
  }
}

// -----

// CASE: a weight that is cast
// PASSES: form-stages
module {
  // The cast is done on the tiles of the weight: it joins the product, and so does the transposition before it.
  // CHECK-LABEL: func.func private @k(
  // CHECK: call @body.proj(%arg1, %arg0) {df.stage = "proj"} : (tensor<8x8xbf16>, tensor<2x8xf32>) -> tensor<2x8xf32>
  // CHECK-NOT: call
  // CHECK-LABEL: func.func private @body.proj(
  // CHECK: arith.extf
  func.func private @k(%h: !h {sscc.input = "h"}, %w: tensor<8x8xbf16> {sscc.weight = "w"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !h
    %z = linalg.fill ins(%zero : f32) outs(%e : !h) -> !h
    %f = tensor.empty() : !w
    %c = linalg.generic {indexing_maps = [#ij, #ij], iterator_types = ["parallel", "parallel"]} ins(%w : tensor<8x8xbf16>) outs(%f : !w) {
    ^bb0(%a: bf16, %o: f32):
      %0 = arith.extf %a : bf16 to f32
      linalg.yield %0 : f32
    } -> !w
    %t = linalg.transpose ins(%c : !w) outs(%f : !w) permutation = [1, 0]
    %y = linalg.matmul ins(%h, %t : !h, !w) outs(%z : !h) -> !h loc("layers.0.proj")
    return %y : !h
  }
}

// -----

// CASE: equal bodies
// PASSES: form-stages
module {
  // Two kernels, one body: names and locations do not matter. Another operation under the same name is another body.
  // CHECK-LABEL: func.func private @one(
  // CHECK: call @body.norm(%arg0) {df.stage = "norm"}
  // CHECK-LABEL: func.func private @two(
  // CHECK: %[[A:.+]] = call @body.norm(%arg0) {df.stage = "final"}
  // CHECK: return %[[A]]
  // CHECK-LABEL: func.func private @three(
  // CHECK: call @body.norm.1(%arg0) {df.stage = "norm"}
  // CHECK: func.func private @body.norm(
  // CHECK: func.func private @body.norm.1(
  // CHECK-NOT: @body.final
  func.func private @one(%h: !h {sscc.input = "h"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %e = tensor.empty() : !h
    %y = linalg.exp ins(%h : !h) outs(%e : !h) -> !h loc("layers.0.norm")
    return %y : !h
  }
  func.func private @two(%x: !h {sscc.input = "x"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %empty = tensor.empty() : !h
    %r = linalg.exp ins(%x : !h) outs(%empty : !h) -> !h loc("model.final")
    return %r : !h
  }
  func.func private @three(%h: !h {sscc.input = "h"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %e = tensor.empty() : !h
    %y = linalg.tanh ins(%h : !h) outs(%e : !h) -> !h loc("layers.0.norm")
    return %y : !h
  }
}

// -----

// CASE: stages of a loop and of a branch
// PASSES: form-stages
// LOCATIONS
module {
  // A block's operations become its own stages; a stage is called where the last of its operations stood.
  // CHECK-LABEL: func.func private @k(
  // CHECK: scf.for
  // CHECK: func.call @body.exp(%{{.+}}) {df.stage = "exp"} {{.*}} loc("layers.0"("model.py":4:0))
  // CHECK: scf.if
  // CHECK: func.call @body.tanh(
  // CHECK: else
  // CHECK-NEXT: scf.yield
  func.func private @k(%h: !h {sscc.input = "h"}, %n: index {sscc.input = "n"}, %b: i1 {sscc.input = "b"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %e = tensor.empty() : !h
    %l = scf.for %i = %c0 to %n step %c1 iter_args(%x = %h) -> !h {
      %y = linalg.negf ins(%x : !h) outs(%e : !h) -> !h loc("layers.0"("model.py":3:0))
      %z = linalg.exp ins(%y : !h) outs(%e : !h) -> !h loc("layers.0"("model.py":4:0))
      scf.yield %z : !h
    }
    %r = scf.if %b -> !h {
      %y = linalg.tanh ins(%l : !h) outs(%e : !h) -> !h
      scf.yield %y : !h
    } else {
      scf.yield %l : !h
    }
    return %r : !h
  }
}

// -----

// CASE: every operation by itself
// PASSES: form-stages{fuse=false}
module {
  // As -O0 wants it; views stay in the kernel.
  // CHECK-LABEL: func.func private @k(
  // CHECK: linalg.generic
  // CHECK: %[[P:.+]] = call @body.proj(%arg0, %{{.+}}) {df.stage = "proj"}
  // CHECK: %[[E:.+]] = call @body.exp(%[[P]])
  // CHECK: %[[Y:.+]] = call @body.addf(%[[E]], %arg0)
  // CHECK: return %[[Y]]
  func.func private @k(%h: !h {sscc.input = "h"}, %w: !w {sscc.weight = "w"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !h
    %z = linalg.fill ins(%zero : f32) outs(%e : !h) -> !h
    %f = tensor.empty() : !w
    %t = linalg.transpose ins(%w : !w) outs(%f : !w) permutation = [1, 0]
    %p = linalg.matmul ins(%h, %t : !h, !w) outs(%z : !h) -> !h loc("proj")
    %x = linalg.exp ins(%p : !h) outs(%e : !h) -> !h
    %y = linalg.add ins(%x, %h : !h, !h) outs(%e : !h) -> !h
    return %y : !h
  }
}

// -----

// CASE: a transposition that becomes a copy
// PASSES: form-stages
module {
  // Joining two axes that lie crosswise in memory needs them rearranged first, no strides say that: the transposition
  // becomes a stage, marked as more than a view. It feeds a product, so it is one of its own; the product sums over both.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[C:.+]] = call @body.heads(%arg0) {df.stage = "heads"} : (tensor<2x4x8xf32>) -> tensor<4x2x8xf32>
  // CHECK: call @body.proj(%[[C]], %arg1) {df.stage = "proj"} : (tensor<4x2x8xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
  // CHECK-LABEL: func.func private @body.heads(
  // CHECK: linalg.generic {{.*}} attrs = {{.*}}{df.moved}
  // CHECK-LABEL: func.func private @body.proj(
  // CHECK: linalg.generic {{.*}}"reduction", "reduction"]} ins(%arg0, %{{.+}} : tensor<4x2x8xf32>, tensor<2x8x8xf32>)
  func.func private @k(%h: tensor<2x4x8xf32> {sscc.input = "h"}, %w: tensor<16x8xf32> {sscc.weight = "w"}) -> (tensor<4x8xf32> {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<4x8xf32>
    %z = linalg.fill ins(%zero : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
    %f = tensor.empty() : tensor<4x2x8xf32>
    %t = linalg.transpose ins(%h : tensor<2x4x8xf32>) outs(%f : tensor<4x2x8xf32>) permutation = [1, 0, 2] loc("layers.0.heads")
    %c = tensor.collapse_shape %t [[0], [1, 2]] : tensor<4x2x8xf32> into tensor<4x16xf32>
    %y = linalg.matmul ins(%c, %w : tensor<4x16xf32>, tensor<16x8xf32>) outs(%z : tensor<4x8xf32>) -> tensor<4x8xf32> loc("layers.0.proj")
    return %y : tensor<4x8xf32>
  }
}

// -----

// CASE: a reshape of a slice that no strides express
// PASSES: form-stages
module {
  // The rows of the slice lie apart in memory: it becomes a copy, which the one that reads it takes along.
  // CHECK-LABEL: func.func private @k(
  // CHECK: call @body.exp(
  func.func private @k(%h: tensor<2x8xf32> {sscc.input = "h"}) -> (tensor<8xf32> {sscc.output = "y"}) attributes {sscc.kernel} {
    %s = tensor.extract_slice %h[0, 2] [2, 4] [1, 1] : tensor<2x8xf32> to tensor<2x4xf32>
    %c = tensor.collapse_shape %s [[0, 1]] : tensor<2x4xf32> into tensor<8xf32> loc("layers.0")
    %e = tensor.empty() : tensor<8xf32>
    %y = linalg.exp ins(%c : tensor<8xf32>) outs(%e : tensor<8xf32>) -> tensor<8xf32>
    return %y : tensor<8xf32>
  }
}

// -----

// CASE: a copy inside a stage
// PASSES: form-stages
module {
  // Between element-wise operations, the rearrangement is how the stage reads.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[Y:.+]] = call @body.tanh(%arg0) {df.stage = "tanh"} : (tensor<2x4x8xf32>) -> tensor<4x16xf32>
  // CHECK-NEXT: return %[[Y]]
  // CHECK-LABEL: func.func private @body.tanh(
  // CHECK: linalg.generic {{.*}} ins(%arg0 : tensor<2x4x8xf32>) outs(%{{.+}} : tensor<4x2x8xf32>)
  // CHECK: math.exp
  // CHECK: math.tanh
  // CHECK-NOT: linalg.generic
  // CHECK: tensor.collapse_shape
  func.func private @k(%h: tensor<2x4x8xf32> {sscc.input = "h"}) -> (tensor<4x16xf32> {sscc.output = "y"}) attributes {sscc.kernel} {
    %e = tensor.empty() : tensor<2x4x8xf32>
    %f = tensor.empty() : tensor<4x2x8xf32>
    %g = tensor.empty() : tensor<4x16xf32>
    %x = linalg.exp ins(%h : tensor<2x4x8xf32>) outs(%e : tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
    %t = linalg.transpose ins(%x : tensor<2x4x8xf32>) outs(%f : tensor<4x2x8xf32>) permutation = [1, 0, 2]
    %c = tensor.collapse_shape %t [[0], [1, 2]] : tensor<4x2x8xf32> into tensor<4x16xf32>
    %y = linalg.tanh ins(%c : tensor<4x16xf32>) outs(%g : tensor<4x16xf32>) -> tensor<4x16xf32>
    return %y : tensor<4x16xf32>
  }
}

// -----

// CASE: halves of pairs are reshaped outside
// PASSES: form-stages
module {
  // Fusion would reshape what the body reads, for the concatenation; every second number of a stream has no dense
  // place that a body could reshape. The table is dense, and stays as it is.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[S:.+]] = tensor.extract_slice %{{.+}}[0, 1] [4, 4] [1, 2]
  // CHECK: %[[X:.+]] = tensor.expand_shape %[[S]] {{\[}}[0], [1, 2]] output_shape [4, 4, 1]
  // CHECK-NEXT: call @body.concat(%arg1, %[[X]]) {df.stage = "concat"} : (tensor<4x4xf32>, tensor<4x4x1xf32>) -> tensor<4x4x2xf32>
  // CHECK-LABEL: func.func private @body.concat(
  // CHECK-SAME: tensor<4x4xf32> {sscc.input = "x0"}, %arg1: tensor<4x4x1xf32> {sscc.input = "x1"})
  // CHECK: tensor.expand_shape %arg0
  // CHECK-NOT: tensor.expand_shape
  func.func private @k(%h: tensor<4x8xf32> {sscc.input = "h"}, %t: tensor<4x4xf32> {sscc.input = "t"}) -> (tensor<4x8xf32> {sscc.output = "w"}, tensor<4x8xf32> {sscc.output = "y"}) attributes {sscc.kernel} {
    %e = tensor.empty() : tensor<4x8xf32>
    %f = tensor.empty() : tensor<4x4xf32>
    %w = linalg.exp ins(%h : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
    %o = tensor.extract_slice %w[0, 1] [4, 4] [1, 2] : tensor<4x8xf32> to tensor<4x4xf32>
    %a = linalg.mul ins(%t, %o : tensor<4x4xf32>, tensor<4x4xf32>) outs(%f : tensor<4x4xf32>) -> tensor<4x4xf32>
    %b = linalg.sub ins(%t, %o : tensor<4x4xf32>, tensor<4x4xf32>) outs(%f : tensor<4x4xf32>) -> tensor<4x4xf32>
    %c = tensor.expand_shape %a [[0], [1, 2]] output_shape [4, 4, 1] : tensor<4x4xf32> into tensor<4x4x1xf32>
    %d = tensor.expand_shape %b [[0], [1, 2]] output_shape [4, 4, 1] : tensor<4x4xf32> into tensor<4x4x1xf32>
    %g = tensor.concat dim(2) %c, %d : (tensor<4x4x1xf32>, tensor<4x4x1xf32>) -> tensor<4x4x2xf32>
    %y = tensor.collapse_shape %g [[0], [1, 2]] : tensor<4x4x2xf32> into tensor<4x8xf32>
    return %w, %y : tensor<4x8xf32>, tensor<4x8xf32>
  }
}

// -----

// CASE: a cache is read and updated
// PASSES: form-stages
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
module attributes {kv.geometry = #geometry} {
  // Attention keeps its eleven operands: the caches to read are streams, the same caches to update lie in memory.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[R:.+]]:3 = call @body.decode_attention(%arg0, %arg3, %arg4, %arg1, %arg2, %arg1, %arg2, %arg5, %arg5, %arg6, %arg7) {df.stage = "decode_attention"}
  // CHECK-NEXT: return %[[R]]#0, %[[R]]#1, %[[R]]#2
  // CHECK-LABEL: func.func private @body.decode_attention(
  // CHECK: "kv.decode_attention"(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %arg7, %arg8, %arg9, %arg10)
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %k: tensor<2x2x4x8xf32> {sscc.state = "k_cache"}, %v: tensor<2x2x4x8xf32> {sscc.state = "v_cache"},
      %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x8xf32> {sscc.input = "vn"}, %p: tensor<2xi64> {sscc.input = "p"}, %a: tensor<2xi1> {sscc.input = "a"}, %n: index {sscc.input = "n"})
      -> (tensor<2x4x1x8xf32> {sscc.output = "o"}, tensor<2x2x4x8xf32> {sscc.state = "k_cache"}, tensor<2x2x4x8xf32> {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %r:3 = "kv.decode_attention"(%q, %kn, %vn, %k, %v, %k, %v, %p, %p, %a, %n) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64} : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x8xf32>,
      tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>)
    return %r#0, %r#1, %r#2 : tensor<2x4x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>
  }
}

// -----

// CASE: the end of a prompt
// PASSES: form-stages
module attributes {kv.geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}} {
  // Scores are written as far as the prompt goes: they are no stream, but a part of the stage that selects. Rows go where
  // they are to be, without one.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[P:.+]] = call @body.select(%arg1, %arg2, %arg0, %arg4, %arg5) {df.stage = "select"}
  // CHECK-NEXT: %[[R:.+]] = call @body.kept_positions(%arg4, %arg5, %[[P]])
  // CHECK-NEXT: %[[K:.+]] = call @body.gather(%arg0, %[[R]], %arg3)
  // CHECK-NEXT: return %[[K]], %[[P]]
  // CHECK-LABEL: func.func private @body.select(
  // CHECK-NEXT: "kv.observation_scores"
  // CHECK-NEXT: "kv.pool"
  // CHECK-NEXT: "kv.select"
  // CHECK-NEXT: return
  func.func private @k(%k: tensor<1x2x8x8xf32> {sscc.state = "k_scratch"}, %s: tensor<1x4x1x8xf32> {sscc.state = "observed"}, %l: tensor<1x4x1x1xf32> {sscc.state = "log_sum_exp"},
      %kc: tensor<1x2x4x8xf32> {sscc.state = "k_cache"}, %n: index {sscc.input = "length"}, %topk: index {sscc.input = "topk"})
      -> (tensor<1x2x4x8xf32> {sscc.state = "k_cache"}, tensor<2x1xi64> {sscc.state = "selected"}) attributes {sscc.kernel} {
    %scores = "kv.observation_scores"(%s, %l, %k, %n) {scale = 0.5 : f64} : (tensor<1x4x1x8xf32>, tensor<1x4x1x1xf32>, tensor<1x2x8x8xf32>, index) -> tensor<2x8xf32>
    %pooled = "kv.pool"(%scores, %n) : (tensor<2x8xf32>, index) -> tensor<2x8xf32>
    %picked = "kv.select"(%pooled, %n, %topk) : (tensor<2x8xf32>, index, index) -> tensor<2x1xi64>
    %rows = "kv.kept_positions"(%n, %topk, %picked) : (index, index, tensor<2x1xi64>) -> tensor<2x4xi64>
    %k1 = "kv.gather"(%k, %rows, %kc) : (tensor<1x2x8x8xf32>, tensor<2x4xi64>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
    return %k1, %picked : tensor<1x2x4x8xf32>, tensor<2x1xi64>
  }
}
