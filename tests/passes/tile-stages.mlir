// Kernels on their way from operations to tiles. Numbers of tiles follow from the default machine: 1.6 TB/s of HBM, 62.5 ns
// a firing.
#geometry = {sink = 4 : i64, recent = 508 : i64, topk = 512 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 2048 : i64}
#ij = affine_map<(i, j) -> (i, j)>
#i = affine_map<(i, j) -> (i)>
!h = tensor<2x64xf32>
!w = tensor<64x4096xf32>
!y = tensor<2x4096xf32>
!c = tensor<1x8x1024x128xf32>
!q = tensor<1x16x1x128xf32>
!n = tensor<1x8x1x128xf32>

// -----

// CASE: a product with what follows it
// PASSES: form-stages,tile-stages
module {
  // 1 MiB of weights takes 0.66 us, so 4 tiles along the axis that cuts them. The hidden state, needed whole by every
  // tile, is loaded before. The residual comes from memory too, and is cut and loaded with the weights; what an earlier
  // stage made is on the chip, and is only cut.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[B:.+]] = call @body.exp(%{{.+}}) {df.stage = "exp"} : (tensor<2x4096xf32>)
  // CHECK: %[[H:.+]] = "df.load"(%arg0) {df.stage = "h"} : (tensor<2x64xf32>)
  // CHECK: %[[E:.+]] = tensor.empty() : tensor<2x4096xf32>
  // CHECK: %[[Y:.+]] = scf.for %[[T:.+]] = %c0{{.*}} to %c4{{.*}} step %c1{{.*}} iter_args(%[[ACC:.+]] = %[[E]])
  // CHECK: %[[WT:.+]] = tensor.extract_slice %arg1[0, %{{.+}}] [64, 1024]
  // CHECK-NEXT: %[[WS:.+]] = "df.load"(%[[WT]]) {df.stage = "w"} : (tensor<64x1024xf32>)
  // CHECK: %[[RT:.+]] = tensor.extract_slice %arg2[0, %{{.+}}] [2, 1024]
  // CHECK-NEXT: %[[RS:.+]] = "df.load"(%[[RT]]) {df.stage = "r"} : (tensor<2x1024xf32>)
  // CHECK: %[[BT:.+]] = tensor.extract_slice %[[B]][0, %{{.+}}] [2, 1024]
  // CHECK-NEXT: %[[YT:.+]] = func.call @body.proj.tile.0(%[[H]], %[[WS]], %[[RS]], %[[BT]]) {df.stage = "proj"}
  // CHECK: %[[NEXT:.+]] = tensor.insert_slice %[[YT]] into %[[ACC]][0, %{{.+}}] [2, 1024]
  // CHECK-NEXT: scf.yield %[[NEXT]]
  // CHECK-NEXT: } {df.tiles}
  // CHECK-NEXT: return %[[Y]]
  //
  // The body on whole values is gone.
  // CHECK-NOT: func.func private @body.proj(
  // CHECK: func.func private @body.proj.tile.0(
  // CHECK-SAME: tensor<2x64xf32>
  // CHECK-SAME: tensor<64x1024xf32>
  // CHECK-SAME: tensor<2x1024xf32>
  // CHECK-SAME: -> (tensor<2x1024xf32> {sscc.output = "y0"}) attributes {df.body}
  func.func private @k(%h: !h {sscc.input = "h"}, %w: !w {sscc.weight = "w"}, %r: !y {sscc.state = "r"}, %b: !y {sscc.input = "b"}) -> (!y {sscc.output = "y"}, !y {sscc.output = "x"})
      attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !y
    %z = linalg.fill ins(%zero : f32) outs(%e : !y) -> !y
    %x = linalg.exp ins(%b : !y) outs(%e : !y) -> !y
    %p = linalg.matmul ins(%h, %w : !h, !w) outs(%z : !y) -> !y loc("proj")
    %a = linalg.add ins(%p, %r : !y, !y) outs(%e : !y) -> !y
    %s = linalg.add ins(%a, %x : !y, !y) outs(%e : !y) -> !y
    return %s, %x : !y, !y
  }
}

// -----

// CASE: the axis that cuts the most bytes
// PASSES: form-stages,tile-stages
module {
  // Here the activations are the larger operand: tiles of rows, and the weight is loaded once.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[W:.+]] = "df.load"(%arg1) {df.stage = "w"} : (tensor<64x8xf32>)
  // CHECK: scf.for %[[T:.+]] = %c0{{.*}} to %c4
  // CHECK: tensor.extract_slice %arg0[%{{.+}}, 0] [1024, 64]
  // CHECK-NEXT: %[[H:.+]] = "df.load"
  // CHECK-NEXT: func.call @body.proj.tile.0(%[[H]], %[[W]])
  // CHECK: tensor.insert_slice %{{.+}}[%{{.+}}, 0] [1024, 8]
  func.func private @k(%h: tensor<4096x64xf32> {sscc.input = "h"}, %w: tensor<64x8xf32> {sscc.weight = "w"}) -> (tensor<4096x8xf32> {sscc.output = "y"})
      attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<4096x8xf32>
    %z = linalg.fill ins(%zero : f32) outs(%e : tensor<4096x8xf32>) -> tensor<4096x8xf32>
    %p = linalg.matmul ins(%h, %w : tensor<4096x64xf32>, tensor<64x8xf32>) outs(%z : tensor<4096x8xf32>) -> tensor<4096x8xf32> loc("proj")
    return %p : tensor<4096x8xf32>
  }
}

// -----

// CASE: a weight as it lies in memory
// PASSES: form-stages,tile-stages
module {
  // Rows of the transposed weight are what the tiles cut; bf16 halves the bytes, so there are two tiles. The cast is done
  // on a tile.
  // CHECK-LABEL: func.func private @k(
  // CHECK: scf.for %[[T:.+]] = %c0{{.*}} to %c2
  // CHECK: tensor.extract_slice %arg1[%{{.+}}, 0] [2048, 64] [1, 1] : tensor<4096x64xbf16>
  // CHECK: tensor.insert_slice %{{.+}}[0, %{{.+}}] [2, 2048]
  // CHECK-LABEL: func.func private @body.proj.tile.0(
  // CHECK-SAME: tensor<2048x64xbf16>
  // CHECK: arith.extf
  func.func private @k(%h: !h {sscc.input = "h"}, %w: tensor<4096x64xbf16> {sscc.weight = "w"}) -> (!y {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !y
    %z = linalg.fill ins(%zero : f32) outs(%e : !y) -> !y
    %f = tensor.empty() : tensor<4096x64xf32>
    %c = linalg.generic {indexing_maps = [#ij, #ij], iterator_types = ["parallel", "parallel"]} ins(%w : tensor<4096x64xbf16>) outs(%f : tensor<4096x64xf32>) {
    ^bb0(%a: bf16, %o: f32):
      %0 = arith.extf %a : bf16 to f32
      linalg.yield %0 : f32
    } -> tensor<4096x64xf32>
    %g = tensor.empty() : !w
    %t = linalg.transpose ins(%c : tensor<4096x64xf32>) outs(%g : !w) permutation = [1, 0]
    %p = linalg.matmul ins(%h, %t : !h, !w) outs(%z : !y) -> !y loc("proj")
    return %p : !y
  }
}

// -----

// CASE: the number of tiles divides the axis
// PASSES: form-stages,tile-stages
module {
  // 6.5 tiles would be best of 4 MiB. 16384 columns make 8; of 7 * 2341 columns, 7 do.
  // CHECK-LABEL: func.func private @k(
  // CHECK: scf.for {{.*}} to %c8
  // CHECK: [64, 2048]
  // CHECK: scf.for {{.*}} to %c7
  // CHECK: [64, 2341]
  func.func private @k(%h: !h {sscc.input = "h"}, %w: tensor<64x16384xf32> {sscc.weight = "w"}, %v: tensor<64x16387xf32> {sscc.weight = "v"})
      -> (tensor<2x16384xf32> {sscc.output = "y"}, tensor<2x16387xf32> {sscc.output = "z"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<2x16384xf32>
    %z = linalg.fill ins(%zero : f32) outs(%e : tensor<2x16384xf32>) -> tensor<2x16384xf32>
    %p = linalg.matmul ins(%h, %w : !h, tensor<64x16384xf32>) outs(%z : tensor<2x16384xf32>) -> tensor<2x16384xf32> loc("one")
    %f = tensor.empty() : tensor<2x16387xf32>
    %x = linalg.fill ins(%zero : f32) outs(%f : tensor<2x16387xf32>) -> tensor<2x16387xf32>
    %q = linalg.matmul ins(%h, %v : !h, tensor<64x16387xf32>) outs(%x : tensor<2x16387xf32>) -> tensor<2x16387xf32> loc("two")
    return %p, %q : tensor<2x16384xf32>, tensor<2x16387xf32>
  }
}

// -----

// CASE: what two stages read
// PASSES: form-stages,tile-stages
module {
  // The hidden state, and a weight that two products share, are loaded whole, once. What only one reads is tiled; two
  // stages of one kind share the body of their tiles.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[H:.+]] = "df.load"(%arg0) {df.stage = "h"}
  // CHECK: %[[W:.+]] = "df.load"(%arg1) {df.stage = "w"} : (tensor<64x4096xf32>)
  // CHECK: call @body.one(%[[H]], %[[W]])
  // CHECK-NOT: "df.load"(%arg0)
  // CHECK-NOT: "df.load"(%arg1)
  // CHECK: call @body.{{.+}}(%[[H]], %[[W]]) {df.stage = "two"}
  // CHECK: scf.for
  // CHECK: func.call @body.[[TILE:.+tile[.0-9]+]](
  // CHECK: scf.for
  // CHECK: func.call @body.[[TILE]](
  // CHECK-NOT: call
  // CHECK: return
  func.func private @k(%h: !h {sscc.input = "h"}, %w: !w {sscc.weight = "w"}, %u: !w {sscc.weight = "u"}, %v: !w {sscc.weight = "v"})
      -> (!y {sscc.output = "a"}, !y {sscc.output = "b"}, !y {sscc.output = "c"}, !y {sscc.output = "d"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !y
    %z = linalg.fill ins(%zero : f32) outs(%e : !y) -> !y
    %a = linalg.matmul ins(%h, %w : !h, !w) outs(%z : !y) -> !y loc("one")
    %p = linalg.matmul ins(%h, %w : !h, !w) outs(%z : !y) -> !y loc("two")
    %b = linalg.exp ins(%p : !y) outs(%e : !y) -> !y
    %c = linalg.matmul ins(%h, %u : !h, !w) outs(%z : !y) -> !y loc("three")
    %d = linalg.matmul ins(%h, %v : !h, !w) outs(%z : !y) -> !y loc("four")
    return %a, %b, %c, %d : !y, !y, !y, !y
  }
}

// -----

// CASE: attention over KV heads
// PASSES: form-stages,tile-stages
module attributes {kv.geometry = #geometry} {
  // Heads are independent of each other: a tile is one KV head with its group of queries. The rows to attend to come as
  // streams; the caches to update are reached in memory, a head's slice of what the tiles before have left.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[P:.+]] = "df.load"(%arg5) {df.stage = "position"}
  // CHECK: %[[R:.+]]:3 = scf.for %[[T:.+]] = %c0{{.*}} to %c8{{.*}} iter_args(%[[O:.+]] = %{{.+}}, %[[K:.+]] = %arg1, %[[V:.+]] = %arg2)
  // CHECK: %[[QT:.+]] = tensor.extract_slice %{{.+}}[0, %{{.+}}, 0, 0] [1, 2, 1, 128]
  // CHECK: %[[KT:.+]] = tensor.extract_slice %arg1[0, %{{.+}}, 0, 0] [1, 1, 1024, 128]
  // CHECK-NEXT: %[[KS:.+]] = "df.load"(%[[KT]]) {df.stage = "k_cache"}
  // CHECK: %[[VS:.+]] = "df.load"(%{{.+}}) {df.stage = "v_cache"}
  // CHECK: %[[KU:.+]] = tensor.extract_slice %[[K]][0, %{{.+}}, 0, 0] [1, 1, 1024, 128]
  // CHECK: %[[VU:.+]] = tensor.extract_slice %[[V]][0, %{{.+}}, 0, 0] [1, 1, 1024, 128]
  // CHECK: %[[A:.+]]:3 = func.call @body.decode_attention.tile.0(%{{.+}}, %{{.+}}, %{{.+}}, %[[KS]], %[[VS]], %[[KU]], %[[VU]], %[[P]], %[[P]],
  // CHECK: tensor.insert_slice %[[A]]#0 into %[[O]][0, %{{.+}}, 0, 0] [1, 2, 1, 128]
  // CHECK: tensor.insert_slice %[[A]]#1 into %[[K]][0, %{{.+}}, 0, 0] [1, 1, 1024, 128]
  // CHECK: tensor.insert_slice %[[A]]#2 into %[[V]][0, %{{.+}}, 0, 0] [1, 1, 1024, 128]
  // CHECK: return %[[R]]#0, %[[R]]#1, %[[R]]#2
  func.func private @k(%q: !q {sscc.input = "q"}, %k: !c {sscc.state = "k_cache"}, %v: !c {sscc.state = "v_cache"}, %kn: !n {sscc.input = "kn"}, %vn: !n {sscc.input = "vn"},
      %p: tensor<1xi64> {sscc.input = "position"}, %a: tensor<1xi1> {sscc.input = "a"}, %n: index {sscc.input = "n"})
      -> (!q {sscc.output = "o"}, !c {sscc.state = "k_cache"}, !c {sscc.state = "v_cache"}) attributes {sscc.kernel} {
    %r:3 = "kv.decode_attention"(%q, %kn, %vn, %k, %v, %k, %v, %p, %p, %a, %n) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (!q, !n, !n, !c, !c, !c, !c, tensor<1xi64>, tensor<1xi64>, tensor<1xi1>, index) -> (!q, !c, !c)
    return %r#0, %r#1, %r#2 : !q, !c, !c
  }
}

// -----

// CASE: a loop of known length
// PASSES: form-stages,tile-stages
module {
  // Stages in a loop are a pipeline. What every iteration loads is loaded once, before it, and so is the view of it; what
  // the loop carries on the chip is loaded before the first iteration. A layer's own weight is loaded by every iteration.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[CV:.+]] = tensor.extract_slice %arg1[0, 0] [2, 64]
  // CHECK-NEXT: %[[C:.+]] = "df.load"(%[[CV]]) {df.early, df.stage = "cos"}
  // CHECK: %[[H:.+]] = "df.load"(%arg0) {df.early, df.stage = "h"}
  // CHECK: %[[L:.+]] = scf.for %[[I:.+]] = %c0{{.*}} to %c3{{.*}} iter_args(%[[X:.+]] = %[[H]]) -> (tensor<2x64xf32>)
  // CHECK-NOT: df.early
  // CHECK: %[[W:.+]] = "df.load"(%{{.+}}) {df.stage = "w"} : (tensor<2x64xf32>)
  // CHECK: func.call @body.{{.+}}(%[[X]], %[[C]], %[[W]])
  // CHECK: } {df.carried = array<i64: 0>, df.pipelined}
  // CHECK: return %[[L]]
  func.func private @k(%h: !h {sscc.state = "h"}, %c: tensor<4x64xf32> {sscc.input = "cos"}, %w: tensor<3x2x64xf32> {sscc.weight = "w"}) -> (!h {sscc.output = "y"})
      attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c3 = arith.constant 3 : index
    %e = tensor.empty() : !h
    %l = scf.for %i = %c0 to %c3 step %c1 iter_args(%x = %h) -> !h {
      %cs = tensor.extract_slice %c[0, 0] [2, 64] [1, 1] : tensor<4x64xf32> to !h
      %ce = linalg.exp ins(%x : !h) outs(%e : !h) -> !h
      %a = linalg.add ins(%ce, %cs : !h, !h) outs(%e : !h) -> !h
      %wi = tensor.extract_slice %w[%i, 0, 0] [1, 2, 64] [1, 1, 1] : tensor<3x2x64xf32> to !h
      %y = linalg.mul ins(%a, %wi : !h, !h) outs(%e : !h) -> !h
      scf.yield %y : !h
    } {df.carried = array<i64: 0>}
    return %l : !h
  }
}

// -----

// CASE: a loop around a loop
// PASSES: form-stages,tile-stages
module {
  // Chunks of a prompt: the inner loop is the pipeline, its length depends on the prompt, so nothing is loaded early. The
  // outer one is control. What the loops carry stays in memory: a chunk of it is loaded, and stored by the insertion.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: df.early
  // CHECK: scf.for
  // CHECK: scf.for
  // CHECK-NEXT: %[[P:.+]] = arith.muli
  // CHECK-NEXT: %[[C:.+]] = tensor.extract_slice %[[X:arg[0-9]+]][%[[P]], 0]
  // CHECK-NEXT: %{{.+}} = "df.load"(%[[C]]) {df.stage = "h"}
  // CHECK: tensor.insert_slice %{{.+}} into %[[X]][%[[P]], 0]
  // CHECK: } {df.pipelined}
  // CHECK-NOT: df.pipelined
  // CHECK: return
  func.func private @k(%h: tensor<16x64xf32> {sscc.state = "h"}, %n: index {sscc.input = "n"}) -> (tensor<16x64xf32> {sscc.output = "y"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %c3 = arith.constant 3 : index
    %e = tensor.empty() : !h
    %l = scf.for %i = %c0 to %c3 step %c1 iter_args(%x = %h) -> tensor<16x64xf32> {
      %m = scf.for %j = %c0 to %n step %c1 iter_args(%y = %x) -> tensor<16x64xf32> {
        %o = arith.muli %j, %c2 : index
        %c = tensor.extract_slice %y[%o, 0] [2, 64] [1, 1] : tensor<16x64xf32> to !h
        %s = linalg.exp ins(%c : !h) outs(%e : !h) -> !h
        %y1 = tensor.insert_slice %s into %y[%o, 0] [2, 64] [1, 1] : !h into tensor<16x64xf32>
        scf.yield %y1 : tensor<16x64xf32>
      }
      scf.yield %m : tensor<16x64xf32>
    }
    return %l : tensor<16x64xf32>
  }
}
