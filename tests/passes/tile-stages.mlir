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
  func.func private @k(%h: !h {sscc.input = "h"}, %w: !w {sscc.weight = "w"}, %r: !y {sscc.state = "r"}, %b: !y {sscc.input = "b"}) -> (!y {sscc.output = "y"})
      attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !y
    %z = linalg.fill ins(%zero : f32) outs(%e : !y) -> !y
    %x = linalg.exp ins(%b : !y) outs(%e : !y) -> !y
    %x2 = linalg.mul ins(%x, %x : !y, !y) outs(%e : !y) -> !y
    %p = linalg.matmul ins(%h, %w : !h, !w) outs(%z : !y) -> !y loc("proj")
    %a = linalg.add ins(%p, %r : !y, !y) outs(%e : !y) -> !y
    %s = linalg.add ins(%a, %stage : !y, !y) outs(%e : !y) -> !y
    %stage = linalg.tanh ins(%x2 : !y) outs(%e : !y) -> !y
    return %s : !y
  }
}
