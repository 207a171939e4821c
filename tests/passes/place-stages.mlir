// Buffers are whole lines of 64 bytes. A 2 x 64 f32 tensor takes 512 bytes.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
!h = tensor<2x64xf32>
!w = tensor<64x4096xf32>
!y = tensor<2x4096xf32>
!s = tensor<16x64xf32>

// -----

// CASE: a straight run
// PASSES: form-stages,tile-stages,place-stages
module {
  // Whole loads and tiles have two slots, so that one can arrive while the other is read; a stream between stages has one,
  // as nothing comes after. Each begins where the one before ends: 2 x 512, then 512, then 2 tiles of 256 KiB.
  // CHECK-LABEL: func.func private @k(
  // CHECK: "df.load"(%arg0) {df.buffers = [{address = 0 : i64, depth = 2 : i64}], df.stage = "h"}
  // CHECK: call @body.exp({{.*}}) {df.buffers = [{address = 1024 : i64, depth = 1 : i64}], df.pcus = {{[0-9]+}} : i64, df.stage = "exp"}
  // CHECK: scf.for
  // CHECK: "df.load"(%{{.+}}) {df.buffers = [{address = 1536 : i64, depth = 2 : i64}], df.stage = "w"}
  // CHECK: func.call @body.proj.tile.0({{.*}}) {df.pcus = {{[0-9]+}} : i64, df.stage = "proj"}
  // CHECK: } {df.buffers = [{address = 525824 : i64, depth = 1 : i64}], df.tiles}
  func.func private @k(%h: !h {sscc.input = "h"}, %w: !w {sscc.weight = "w"}) -> (!y {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !h
    %f = tensor.empty() : !y
    %z = linalg.fill ins(%zero : f32) outs(%f : !y) -> !y
    %x = linalg.exp ins(%h : !h) outs(%e : !h) -> !h
    %p = linalg.matmul ins(%x, %w : !h, !w) outs(%z : !y) -> !y loc("proj")
    return %p : !y
  }
}

// -----

// CASE: iterations that overlap
// PASSES: form-stages,tile-stages,place-stages
module {
  // Chunks do not wait for each other: streams between stages have two slots as well. A result that is inserted into memory
  // has its buffer, too.
  // CHECK-LABEL: func.func private @k(
  // CHECK: "df.load"(%{{.+}}) {df.buffers = [{address = 0 : i64, depth = 2 : i64}], df.stage = "h"}
  // CHECK: %[[A:.+]] = func.call @body.exp({{.*}}) {df.buffers = [{address = 1024 : i64, depth = 2 : i64}]
  // CHECK: %[[B:.+]] = func.call @body.{{.+}}(%[[A]]) {df.buffers = [{address = 2048 : i64, depth = 2 : i64}], {{.*}} df.stage = "tanh"}
  // CHECK: %[[C:.+]] = func.call @body.{{.+}}(%[[A]], %[[B]]) {df.buffers = [{address = 3072 : i64, depth = 2 : i64}]
  // CHECK: tensor.insert_slice %[[C]]
  // CHECK: tensor.insert_slice %[[B]]
  func.func private @k(%h: !s {sscc.state = "h"}, %g: !s {sscc.state = "g"}, %n: index {sscc.input = "n"}) -> (!s {sscc.state = "h"}, !s {sscc.state = "g"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %e = tensor.empty() : !h
    %l:2 = scf.for %i = %c0 to %n step %c1 iter_args(%x = %h, %y = %g) -> (!s, !s) {
      %o = arith.muli %i, %c2 : index
      %c = tensor.extract_slice %x[%o, 0] [2, 64] [1, 1] : !s to !h
      %a = linalg.exp ins(%c : !h) outs(%e : !h) -> !h
      %b = linalg.tanh ins(%a : !h) outs(%e : !h) -> !h
      %d = linalg.mul ins(%a, %b : !h, !h) outs(%e : !h) -> !h
      %x1 = tensor.insert_slice %d into %x[%o, 0] [2, 64] [1, 1] : !h into !s
      %y1 = tensor.insert_slice %b into %y[%o, 0] [2, 64] [1, 1] : !h into !s
      scf.yield %x1, %y1 : !s, !s
    }
    return %l#0, %l#1 : !s, !s
  }
}

// -----

// CASE: a value that the loop carries on the chip
// PASSES: form-stages,tile-stages,place-stages
module {
  // Its two slots belong to the load before the loop; the stage that makes the next iteration's value puts it there, and
  // needs no buffer of its own. Iterations wait for it, so streams between stages have one slot. What is loaded once has
  // one, what every iteration loads two.
  // CHECK-LABEL: func.func private @k(
  // CHECK: "df.load"(%arg1) {df.buffers = [{address = 0 : i64, depth = 1 : i64}], df.early, df.stage = "cos"}
  // CHECK: "df.load"(%arg0) {df.buffers = [{address = 512 : i64, depth = 2 : i64}], df.early, df.stage = "h"}
  // CHECK: scf.for
  // CHECK: %[[A:.+]] = func.call @body.exp({{.*}}) {df.buffers = [{address = 1536 : i64, depth = 1 : i64}]
  // CHECK: "df.load"(%{{.+}}) {df.buffers = [{address = 2048 : i64, depth = 2 : i64}], df.stage = "w"} : (tensor<64x64xf32>)
  // CHECK: %[[Y:.+]] = func.call @body.proj(%[[A]], {{.*}}) {df.buffers = [{address = -1 : i64, depth = 2 : i64}], df.pcus = {{[0-9]+}} : i64
  // CHECK: scf.yield %[[Y]]
  func.func private @k(%h: !h {sscc.state = "h"}, %c: !h {sscc.input = "cos"}, %w: tensor<3x64x64xf32> {sscc.weight = "w"}) -> (!h {sscc.output = "y"})
      attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c3 = arith.constant 3 : index
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !h
    %z = linalg.fill ins(%zero : f32) outs(%e : !h) -> !h
    %l = scf.for %i = %c0 to %c3 step %c1 iter_args(%x = %h) -> !h {
      %a = linalg.exp ins(%x : !h) outs(%e : !h) -> !h
      %wi = tensor.extract_slice %w[%i, 0, 0] [1, 64, 64] [1, 1, 1] : tensor<3x64x64xf32> to tensor<64x64xf32>
      %p = linalg.matmul ins(%a, %wi : !h, tensor<64x64xf32>) outs(%z : !h) -> !h loc("proj")
      %b = linalg.mul ins(%p, %c : !h, !h) outs(%e : !h) -> !h
      %y = linalg.add ins(%b, %x : !h, !h) outs(%e : !h) -> !h
      scf.yield %y : !h
    } {df.carried = array<i64: 0>}
    return %l : !h
  }
}

// -----

// CASE: results that are updates in memory
// PASSES: form-stages,tile-stages,place-stages
module attributes {kv.geometry = #geometry} {
  // They need no buffer: depth 0. Small streams are rounded up to a line.
  // CHECK-LABEL: func.func private @k(
  // CHECK: "df.load"(%arg1) {df.buffers = [{address = 0 : i64, depth = 2 : i64}], df.stage = "new"}
  // CHECK: "df.load"(%arg2) {df.buffers = [{address = 256 : i64, depth = 2 : i64}], df.stage = "row"}
  // CHECK: "df.load"(%arg3) {df.buffers = [{address = 320 : i64, depth = 2 : i64}], df.stage = "active"}
  // CHECK: call @body.update({{.*}}) {df.buffers = [{address = -1 : i64, depth = 0 : i64}], df.pcus = 1040 : i64, df.stage = "update"}
  func.func private @k(%c: tensor<2x2x4x8xf32> {sscc.state = "cache"}, %n: tensor<2x2x1x8xf32> {sscc.input = "new"}, %r: tensor<2xi64> {sscc.input = "row"}, %a: tensor<2xi1> {sscc.input = "active"})
      -> (tensor<2x2x4x8xf32> {sscc.state = "cache"}) attributes {sscc.kernel} {
    %0 = "kv.update"(%c, %n, %r, %a) : (tensor<2x2x4x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x4x8xf32>
    return %0 : tensor<2x2x4x8xf32>
  }
}

// -----

// CASE: units by work
// PASSES: form-stages,tile-stages,place-stages
module {
  // Of 1040 units every stage has one. The others go by the root of the time that each would take of one, since the product
  // waits for the other stage: 128 elements, 51.2e9 a second, 2.5 ns; 2 * 8192 operations in f32, 3.07e11 a second, 53.4 ns.
  // 1038 * sqrt(2.5) / (sqrt(2.5) + sqrt(53.4)) is 184.6.
  // CHECK-LABEL: func.func private @k(
  // CHECK: call @body.exp({{.*}}df.pcus = 185 : i64, df.stage = "exp"}
  // CHECK: call @body.proj({{.*}}df.pcus = 854 : i64, df.stage = "proj"}
  func.func private @k(%h: !h {sscc.input = "h"}, %w: tensor<64x64xf32> {sscc.weight = "w"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !h
    %z = linalg.fill ins(%zero : f32) outs(%e : !h) -> !h
    %x = linalg.exp ins(%h : !h) outs(%e : !h) -> !h
    %p = linalg.matmul ins(%x, %w : !h, tensor<64x64xf32>) outs(%z : !h) -> !h loc("proj")
    return %p : !h
  }
}
