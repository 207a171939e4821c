// Stages that fire once, on whole values, and operands that are no streams.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
#ij = affine_map<(i, j) -> (i, j)>
#i = affine_map<(i, j) -> (i)>
#none = affine_map<(i, j) -> ()>
#j = affine_map<(i, j) -> (j)>
!h = tensor<2x64xf32>
!y = tensor<2x4096xf32>

// -----

// CASE: a weight that is small
// PASSES: form-stages,tile-stages
module {
  // 16 KiB are there before a second firing would be: one tile.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: scf.for
  // CHECK: %[[H:.+]] = "df.load"(%arg0)
  // CHECK: %[[W:.+]] = "df.load"(%arg1)
  // CHECK: call @body.proj(%[[H]], %[[W]])
  func.func private @k(%h: !h {sscc.input = "h"}, %w: tensor<64x64xf32> {sscc.weight = "w"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : !h
    %z = linalg.fill ins(%zero : f32) outs(%e : !h) -> !h
    %p = linalg.matmul ins(%h, %w : !h, tensor<64x64xf32>) outs(%z : !h) -> !h loc("proj")
    return %p : !h
  }
}

// -----

// CASE: a sum of everything
// PASSES: form-stages,tile-stages
module {
  // The result has no axis to cut.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: scf.for
  // CHECK: %[[H:.+]] = "df.load"(%arg0) {df.stage = "h"} : (tensor<4096x4096xf32>)
  // CHECK: call @body.total(%[[H]])
  func.func private @k(%h: tensor<4096x4096xf32> {sscc.input = "h"}) -> (tensor<f32> {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<f32>
    %z = linalg.fill ins(%zero : f32) outs(%e : tensor<f32>) -> tensor<f32>
    %s = linalg.generic {indexing_maps = [#ij, #none], iterator_types = ["reduction", "reduction"]} ins(%h : tensor<4096x4096xf32>) outs(%z : tensor<f32>) {
    ^bb0(%a: f32, %b: f32):
      %0 = arith.addf %b, %a : f32
      linalg.yield %0 : f32
    } -> tensor<f32> loc("total")
    return %s : tensor<f32>
  }
}

// -----

// CASE: the axis that a sum runs along
// PASSES: form-stages,tile-stages
module {
  // A norm of one long row: the only axis that cuts it is the one that its sum needs whole.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: scf.for
  // CHECK: "df.load"(%arg0) {df.stage = "h"} : (tensor<1x1048576xf32>)
  // CHECK: call @body.norm(
  func.func private @k(%h: tensor<1x1048576xf32> {sscc.input = "h"}) -> (tensor<1x1048576xf32> {sscc.output = "y"}) attributes {sscc.kernel} {
    %zero = arith.constant 0.0 : f32
    %r = tensor.empty() : tensor<1xf32>
    %e = tensor.empty() : tensor<1x1048576xf32>
    %z = linalg.fill ins(%zero : f32) outs(%r : tensor<1xf32>) -> tensor<1xf32>
    %s = linalg.generic {indexing_maps = [#ij, #i], iterator_types = ["parallel", "reduction"]} ins(%h : tensor<1x1048576xf32>) outs(%z : tensor<1xf32>) {
    ^bb0(%a: f32, %b: f32):
      %0 = arith.addf %b, %a : f32
      linalg.yield %0 : f32
    } -> tensor<1xf32> loc("norm")
    %n = linalg.generic {indexing_maps = [#ij, #i, #ij], iterator_types = ["parallel", "parallel"]} ins(%h, %s : tensor<1x1048576xf32>, tensor<1xf32>) outs(%e : tensor<1x1048576xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %0 = arith.divf %a, %b : f32
      linalg.yield %0 : f32
    } -> tensor<1x1048576xf32> loc("norm")
    return %n : tensor<1x1048576xf32>
  }
}

// -----

// CASE: a table
// PASSES: form-stages,tile-stages
module {
  // Rows of it are fetched by what the ids say, from memory: no stream, and no tile.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[I:.+]] = "df.load"(%arg1) {df.stage = "ids"}
  // CHECK-NOT: "df.load"(%arg0)
  // CHECK: call @body.embed(%[[I]], %arg0)
  func.func private @k(%t: tensor<50000x64xf32> {sscc.weight = "table"}, %ids: tensor<2xi64> {sscc.input = "ids"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %e = tensor.empty() : !h
    %y = linalg.generic {indexing_maps = [#i, #ij], iterator_types = ["parallel", "parallel"]} ins(%ids : tensor<2xi64>) outs(%e : !h) {
    ^bb0(%id: i64, %o: f32):
      %row = arith.index_cast %id : i64 to index
      %column = linalg.index 1 : index
      %0 = tensor.extract %t[%row, %column] : tensor<50000x64xf32>
      linalg.yield %0 : f32
    } -> !h loc("embed")
    return %y : !h
  }
}

// -----

// CASE: what is updated in place
// PASSES: form-stages,tile-stages
module attributes {kv.geometry = #geometry} {
  // The cache is reached in memory; the new row is a stream.
  // CHECK-LABEL: func.func private @k(
  // CHECK-DAG: %[[N:.+]] = "df.load"(%arg1) {df.stage = "new"}
  // CHECK-DAG: %[[R:.+]] = "df.load"(%arg2) {df.stage = "row"}
  // CHECK-DAG: %[[A:.+]] = "df.load"(%arg3) {df.stage = "active"}
  // CHECK-NOT: "df.load"(%arg0)
  // CHECK: call @body.update(%arg0, %[[N]], %[[R]], %[[A]])
  func.func private @k(%c: tensor<2x2x4x8xf32> {sscc.state = "cache"}, %n: tensor<2x2x1x8xf32> {sscc.input = "new"}, %r: tensor<2xi64> {sscc.input = "row"}, %a: tensor<2xi1> {sscc.input = "active"})
      -> (tensor<2x2x4x8xf32> {sscc.state = "cache"}) attributes {sscc.kernel} {
    %0 = "kv.update"(%c, %n, %r, %a) : (tensor<2x2x4x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x4x8xf32>
    return %0 : tensor<2x2x4x8xf32>
  }
}

// -----

// CASE: scratch that is fetched from
// PASSES: form-stages,tile-stages
module attributes {kv.geometry = #geometry} {
  // Compression gathers the rows that it selects; it needs no other, so the scratch is no stream.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[I:.+]] = "df.load"(%arg1) {df.stage = "index"}
  // CHECK-NOT: df.load
  // CHECK: call @body.gather(%arg0, %[[I]], %arg2)
  // CHECK-NOT: df.load
  // CHECK: return
  func.func private @k(%k: tensor<1x2x8x8xf32> {sscc.state = "k_scratch"}, %i: tensor<2x4xi64> {sscc.state = "index"}, %kc: tensor<1x2x4x8xf32> {sscc.state = "k_cache"})
      -> (tensor<1x2x4x8xf32> {sscc.state = "k_cache"}) attributes {sscc.kernel} {
    %r = "kv.gather"(%k, %i, %kc) : (tensor<1x2x8x8xf32>, tensor<2x4xi64>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
    return %r : tensor<1x2x4x8xf32>
  }
}

// -----

// CASE: what an earlier stage made
// PASSES: form-stages,tile-stages
module {
  // Streams between stages are on the chip: nothing of them is loaded, and nothing cut that needs no memory.
  // CHECK-LABEL: func.func private @k(
  // CHECK: %[[B:.+]] = "df.load"(%arg0)
  // CHECK-NEXT: %[[X:.+]] = call @body.exp(%[[B]])
  // CHECK-NEXT: %[[Y:.+]] = call @body.tanh(%[[X]])
  // CHECK-NEXT: return %[[X]], %[[Y]]
  func.func private @k(%b: tensor<16x64xf32> {sscc.input = "b"}) -> (tensor<16x64xf32> {sscc.output = "x"}, tensor<16x64xf32> {sscc.output = "y"}) attributes {sscc.kernel} {
    %e = tensor.empty() : tensor<16x64xf32>
    %x = linalg.exp ins(%b : tensor<16x64xf32>) outs(%e : tensor<16x64xf32>) -> tensor<16x64xf32>
    %y = linalg.tanh ins(%x : tensor<16x64xf32>) outs(%e : tensor<16x64xf32>) -> tensor<16x64xf32>
    return %x, %y : tensor<16x64xf32>, tensor<16x64xf32>
  }
}

// -----

// CASE: a loop of a length that the prompt decides
// PASSES: form-stages,tile-stages
module {
  // It may run not at all, so its loads stay inside, and what it carries is not loaded before.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: df.early
  // CHECK: scf.for {{.*}} iter_args(%{{.+}} = %arg0)
  // CHECK-NEXT: %[[C:.+]] = "df.load"(%arg1) {df.stage = "c"}
  // CHECK: df.pipelined
  func.func private @k(%h: !h {sscc.state = "h"}, %c: !h {sscc.input = "c"}, %n: index {sscc.input = "n"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %e = tensor.empty() : !h
    %l = scf.for %i = %c0 to %n step %c1 iter_args(%x = %h) -> !h {
      %y = linalg.add ins(%x, %c : !h, !h) outs(%e : !h) -> !h
      scf.yield %y : !h
    } {df.carried = array<i64: 0>}
    return %l : !h
  }
}

// -----

// CASE: control inside a loop
// PASSES: form-stages,tile-stages
module {
  // A branch inside makes a loop control around pipelines, not a pipeline.
  // CHECK-LABEL: func.func private @k(
  // CHECK-NOT: df.pipelined
  // CHECK: return
  func.func private @k(%h: !h {sscc.state = "h"}, %n: index {sscc.input = "n"}, %b: i1 {sscc.input = "b"}) -> (!h {sscc.output = "y"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %e = tensor.empty() : !h
    %l = scf.for %i = %c0 to %n step %c1 iter_args(%x = %h) -> !h {
      %y = linalg.exp ins(%x : !h) outs(%e : !h) -> !h
      %z = scf.if %b -> !h {
        %t = linalg.tanh ins(%y : !h) outs(%e : !h) -> !h
        scf.yield %t : !h
      } else {
        scf.yield %y : !h
      }
      scf.yield %z : !h
    }
    return %l : !h
  }
}
