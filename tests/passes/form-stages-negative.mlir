// What does not join.
#ij = affine_map<(i, j) -> (i, j)>
#i = affine_map<(i, j) -> (i)>
!h = tensor<2x8xf32>
!w = tensor<8x8xf32>
!r = tensor<2xf32>

// -----

// CASE: a norm of a product
// PASSES: form-stages
module {
  // It needs all of the product's result along the axis that cuts the weight, so it is a stage behind it. What comes
  // after the norm's sum is part of the norm, though it reads the product too: that has two readers, both of them there.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[P:.+]] = call @body.o_proj(%arg0, %arg1) {df.stage = "o_proj"}
  // CHECK: %[[Y:.+]] = call @body.post_norm(%[[P]]) {df.stage = "post_norm"}
  // CHECK-NEXT: return %[[Y]]
  func.func private @k(%h: !h {sscc.input = "h"}, %w: !w {sscc.weight = "w"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !h
    %r = tensor.empty() : !r
    %z = linalg.fill ins(%zero : f32) outs(%e : !h) -> !h
    %s = linalg.fill ins(%zero : f32) outs(%r : !r) -> !r
    %p = linalg.matmul ins(%h, %w : !h, !w) outs(%z : !h) -> !h loc("layers.0.o_proj")
    %sum = linalg.generic {indexing_maps = [#ij, #i], iterator_types = ["parallel", "reduction"]} ins(%p : !h) outs(%s : !r) {
    ^bb0(%a: f32, %b: f32):
      %0 = arith.mulf %a, %a : f32
      %1 = arith.addf %b, %0 : f32
      linalg.yield %1 : f32
    } -> !r loc("layers.0.post_norm")
    %y = linalg.generic {indexing_maps = [#ij, #i, #ij], iterator_types = ["parallel", "parallel"]} ins(%p, %sum : !h, !r) outs(%e : !h) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %0 = math.rsqrt %b : f32
      %1 = arith.mulf %a, %0 : f32
      linalg.yield %1 : f32
    } -> !h loc("layers.0.post_norm")
    return %y : !h
  }
}

// -----

// CASE: a maximum of a product
// PASSES: form-stages
module {
  // The same, where nothing else reads the product.
  // CHECK-LABEL: func.func private @k(
  // CHECK: call @body.scores(
  // CHECK: call @body.most(
  func.func private @k(%h: !h {sscc.input = "h"}, %w: !w {sscc.weight = "w"}) -> (!r {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !h
    %r = tensor.empty() : !r
    %z = linalg.fill ins(%zero : f32) outs(%e : !h) -> !h
    %s = linalg.fill ins(%zero : f32) outs(%r : !r) -> !r
    %p = linalg.matmul ins(%h, %w : !h, !w) outs(%z : !h) -> !h loc("scores")
    %m = linalg.generic {indexing_maps = [#ij, #i], iterator_types = ["parallel", "reduction"]} ins(%p : !h) outs(%s : !r) {
    ^bb0(%a: f32, %b: f32):
      %0 = arith.maximumf %a, %b : f32
      linalg.yield %0 : f32
    } -> !r loc("most")
    return %m : !r
  }
}

// -----

// CASE: two readers
// PASSES: form-stages
module {
  // What two stages read is made once, by a stage of its own; so is what a stage and the caller read.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[A:.+]] = call @body.norm(%arg0)
  // CHECK: %[[Q:.+]] = call @body.q_proj(%[[A]], %arg1)
  // CHECK: %[[K:.+]] = call @body.{{.+}}(%[[A]], %arg2) {df.stage = "k_proj"}
  // CHECK: %[[S:.+]] = call @body.tanh(%[[K]])
  // CHECK: return %[[Q]], %[[K]], %[[S]]
  func.func private @k(%h: !h {sscc.input = "h"}, %wq: !w {sscc.weight = "wq"}, %wk: !w {sscc.weight = "wk"})
      -> (!h {sscc.output = "q"}, !h {sscc.output = "k"}, !h {sscc.output = "s"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !h
    %z = linalg.fill ins(%zero : f32) outs(%e : !h) -> !h
    %a = linalg.exp ins(%h : !h) outs(%e : !h) -> !h loc("layers.0.norm")
    %q = linalg.matmul ins(%a, %wq : !h, !w) outs(%z : !h) -> !h loc("layers.0.q_proj")
    %k = linalg.matmul ins(%a, %wk : !h, !w) outs(%z : !h) -> !h loc("layers.0.k_proj")
    %s = linalg.tanh ins(%k : !h) outs(%e : !h) -> !h
    return %q, %k, %s : !h, !h, !h
  }
}

// -----

// CASE: what a product reads
// PASSES: form-stages
module {
  // It would be computed again for every tile of the weight. Through a view, it is the same.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[A:.+]] = call @body.exp(%arg0)
  // CHECK: call @body.proj(%[[A]], %arg1)
  func.func private @k(%h: !h {sscc.input = "h"}, %w: !w {sscc.weight = "w"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !h
    %f = tensor.empty() : tensor<8x2xf32>
    %z = linalg.fill ins(%zero : f32) outs(%e : !h) -> !h
    %g = tensor.empty() : tensor<8x2xf32>
    %t = linalg.transpose ins(%h : !h) outs(%f : tensor<8x2xf32>) permutation = [1, 0]
    %a = linalg.exp ins(%t : tensor<8x2xf32>) outs(%g : tensor<8x2xf32>) -> tensor<8x2xf32>
    %u = linalg.transpose ins(%a : tensor<8x2xf32>) outs(%e : !h) permutation = [1, 0]
    %y = linalg.matmul ins(%u, %w : !h, !w) outs(%z : !h) -> !h loc("layers.0.proj")
    return %y : !h
  }
}

// -----

// CASE: two products in a row
// PASSES: form-stages
module {
  // The second one needs all of the first one's result.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[A:.+]] = call @body.up(%arg0, %arg1)
  // CHECK: call @body.{{.+}}(%[[A]], %arg2) {df.stage = "down"}
  func.func private @k(%h: !h {sscc.input = "h"}, %wu: !w {sscc.weight = "wu"}, %wd: !w {sscc.weight = "wd"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !h
    %z = linalg.fill ins(%zero : f32) outs(%e : !h) -> !h
    %a = linalg.matmul ins(%h, %wu : !h, !w) outs(%z : !h) -> !h loc("layers.0.up")
    %y = linalg.matmul ins(%a, %wd : !h, !w) outs(%z : !h) -> !h loc("layers.0.down")
    return %y : !h
  }
}

// -----

// CASE: an operation of the cache
// PASSES: form-stages
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
module attributes {kv.geometry = #geometry} {
  // Neither what feeds it joins it, nor what follows.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[Q:.+]] = call @body.exp(%arg0)
  // CHECK: %[[O:.+]] = call @body.cached_attention(%[[Q]], %arg1, %arg2)
  // CHECK: call @body.tanh(%[[O]])
  func.func private @k(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %k: tensor<2x2x4x8xf32> {sscc.state = "k"}, %m: tensor<2x4xi1> {sscc.input = "m"})
      -> (tensor<2x4x1x8xf32> {sscc.output = "o"}) attributes {sscc.kernel} {
    %e = tensor.empty() : tensor<2x4x1x8xf32>
    %s = linalg.exp ins(%q : tensor<2x4x1x8xf32>) outs(%e : tensor<2x4x1x8xf32>) -> tensor<2x4x1x8xf32>
    %o = "kv.cached_attention"(%s, %k, %k, %m) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.5 : f64} : (tensor<2x4x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>, tensor<2x4xi1>) -> tensor<2x4x1x8xf32>
    %y = linalg.tanh ins(%o : tensor<2x4x1x8xf32>) outs(%e : tensor<2x4x1x8xf32>) -> tensor<2x4x1x8xf32>
    return %y : tensor<2x4x1x8xf32>
  }
}

// -----

// CASE: a reader in a loop
// PASSES: form-stages
module {
  // A stage of the block around a loop is not pulled into it.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[A:.+]] = call @body.exp(%arg0)
  // CHECK: scf.for
  // CHECK: call @body.{{.+}}(%[[A]], %{{.+}})
  func.func private @k(%h: !h {sscc.input = "h"}, %n: index {sscc.input = "n"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %e = tensor.empty() : !h
    %a = linalg.exp ins(%h : !h) outs(%e : !h) -> !h
    %l = scf.for %i = %c0 to %n step %c1 iter_args(%x = %h) -> !h {
      %y = linalg.add ins(%a, %x : !h, !h) outs(%e : !h) -> !h
      scf.yield %y : !h
    }
    return %l : !h
  }
}

// -----

// CASE: what is no kernel
// PASSES: form-stages
module {
  // CHECK-NOT: df.stage
  // CHECK: math.exp
  func.func private @part(%h: !h {sscc.input = "h"}) -> (!h {sscc.output = "y"}) {
    %e = tensor.empty() : !h
    %a = linalg.exp ins(%h : !h) outs(%e : !h) -> !h
    return %a : !h
  }
}

// -----

// CASE: reshapes of what a stage reads
// PASSES: form-stages
module {
  // One that only this stage reads, of what lies densely, is done inside. Of a part of a row, it stays outside: the stage
  // gets the window. So does one that two stages read.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[S:.+]] = tensor.extract_slice %arg1[0, 2] [2, 4]
  // CHECK-NEXT: %[[X:.+]] = tensor.expand_shape %[[S]]
  // CHECK: %[[T:.+]] = tensor.expand_shape %arg2
  // CHECK: %[[A:.+]] = call @body.{{.+}}(%arg0, %[[X]], %[[T]]) {{.*}} : (tensor<2x8xf32>, tensor<2x2x2xf32>, tensor<2x2x2xf32>)
  // CHECK: %[[B:.+]] = call @body.{{.+}}(%[[A]], %[[T]])
  // CHECK: return %[[A]], %[[B]]
  // CHECK: tensor.expand_shape %arg0
  func.func private @k(%h: !h {sscc.input = "h"}, %g: !h {sscc.input = "g"}, %t: tensor<2x4xf32> {sscc.input = "t"})
      -> (tensor<2x2x2x2xf32> {sscc.output = "a"}, tensor<2x2x2x2xf32> {sscc.output = "b"}) attributes {sscc.kernel} {
    %e = tensor.empty() : tensor<2x2x2x2xf32>
    %f = tensor.expand_shape %h [[0], [1, 2, 3]] output_shape [2, 2, 2, 2] : !h into tensor<2x2x2x2xf32>
    %s = tensor.extract_slice %g[0, 2] [2, 4] [1, 1] : !h to tensor<2x4xf32>
    %x = tensor.expand_shape %s [[0], [1, 2]] output_shape [2, 2, 2] : tensor<2x4xf32> into tensor<2x2x2xf32>
    %y = tensor.expand_shape %t [[0], [1, 2]] output_shape [2, 2, 2] : tensor<2x4xf32> into tensor<2x2x2xf32>
    %a = linalg.generic {indexing_maps = [affine_map<(i, j, k, l) -> (i, j, k, l)>, affine_map<(i, j, k, l) -> (i, j, k)>, affine_map<(i, j, k, l) -> (j, k, l)>,
        affine_map<(i, j, k, l) -> (i, j, k, l)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
        ins(%f, %x, %y : tensor<2x2x2x2xf32>, tensor<2x2x2xf32>, tensor<2x2x2xf32>) outs(%e : tensor<2x2x2x2xf32>) {
    ^bb0(%p: f32, %q: f32, %r: f32, %o: f32):
      %0 = arith.addf %p, %q : f32
      %1 = arith.mulf %0, %r : f32
      linalg.yield %1 : f32
    } -> tensor<2x2x2x2xf32>
    %b = linalg.generic {indexing_maps = [affine_map<(i, j, k, l) -> (i, j, k, l)>, affine_map<(i, j, k, l) -> (j, k, l)>,
        affine_map<(i, j, k, l) -> (i, j, k, l)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
        ins(%a, %y : tensor<2x2x2x2xf32>, tensor<2x2x2xf32>) outs(%e : tensor<2x2x2x2xf32>) {
    ^bb0(%p: f32, %r: f32, %o: f32):
      %0 = arith.subf %p, %r : f32
      linalg.yield %0 : f32
    } -> tensor<2x2x2x2xf32>
    return %a, %b : tensor<2x2x2x2xf32>, tensor<2x2x2x2xf32>
  }
}

// -----

// CASE: scores that are pooled for another length
// PASSES: form-stages
module attributes {kv.geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}} {
  // More of them is read than one stage by itself has written: they are streams.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[S:.+]] = call @body.observation_scores(
  // CHECK-NEXT: %[[P:.+]] = call @body.pool(%[[S]], %arg5)
  // CHECK-NEXT: call @body.select(%[[P]], %arg4, %arg5)
  func.func private @k(%k: tensor<1x2x8x8xf32> {sscc.state = "k_scratch"}, %s: tensor<1x4x1x8xf32> {sscc.state = "observed"}, %l: tensor<1x4x1x1xf32> {sscc.state = "log_sum_exp"},
      %kc: tensor<1x2x4x8xf32> {sscc.state = "k_cache"}, %n: index {sscc.input = "length"}, %topk: index {sscc.input = "topk"})
      -> (tensor<2x1xi64> {sscc.state = "selected"}) attributes {sscc.kernel} {
    %scores = "kv.observation_scores"(%s, %l, %k, %n) {scale = 0.5 : f64} : (tensor<1x4x1x8xf32>, tensor<1x4x1x1xf32>, tensor<1x2x8x8xf32>, index) -> tensor<2x8xf32>
    %pooled = "kv.pool"(%scores, %topk) : (tensor<2x8xf32>, index) -> tensor<2x8xf32>
    %picked = "kv.select"(%pooled, %n, %topk) : (tensor<2x8xf32>, index, index) -> tensor<2x1xi64>
    return %picked : tensor<2x1xi64>
  }
}

// -----

// CASE: scores that are read by others too
// PASSES: form-stages
module attributes {kv.geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}} {
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[P:.+]] = call @body.pool(
  // CHECK-NEXT: %[[I:.+]] = call @body.select(%[[P]], %arg4, %arg5)
  // CHECK-NEXT: return %[[I]], %[[P]]
  // CHECK-LABEL: func.func private @body.pool(
  // CHECK-NEXT: "kv.observation_scores"
  // CHECK-NEXT: "kv.pool"
  func.func private @k(%k: tensor<1x2x8x8xf32> {sscc.state = "k_scratch"}, %s: tensor<1x4x1x8xf32> {sscc.state = "observed"}, %l: tensor<1x4x1x1xf32> {sscc.state = "log_sum_exp"},
      %kc: tensor<1x2x4x8xf32> {sscc.state = "k_cache"}, %n: index {sscc.input = "length"}, %topk: index {sscc.input = "topk"})
      -> (tensor<2x1xi64> {sscc.state = "selected"}, tensor<2x8xf32> {sscc.output = "pooled"}) attributes {sscc.kernel} {
    %scores = "kv.observation_scores"(%s, %l, %k, %n) {scale = 0.5 : f64} : (tensor<1x4x1x8xf32>, tensor<1x4x1x1xf32>, tensor<1x2x8x8xf32>, index) -> tensor<2x8xf32>
    %pooled = "kv.pool"(%scores, %n) : (tensor<2x8xf32>, index) -> tensor<2x8xf32>
    %picked = "kv.select"(%pooled, %n, %topk) : (tensor<2x8xf32>, index, index) -> tensor<2x1xi64>
    return %picked, %pooled : tensor<2x1xi64>, tensor<2x8xf32>
  }
}
