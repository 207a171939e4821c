// The pass shard on layers of one function: sums are completed before anything that is not linear reads them, and what
// is reduced in another way than by a sum stays whole.

#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>
#two = affine_map<(m, n) -> (m, n)>

// -----

// CASE: two products, the second of which sums over what the first was cut along
// PASSES: shard{ranks=2}
// Each rank has half of the rows of up and of the columns of down.
// CHECK: shard.grid @ranks(shape = 2)
// CHECK: tensor<4x4xf32> {sscc.cut = "0:8/2", sscc.weight = "up"}
// CHECK-SAME: tensor<4x4xf32> {sscc.cut = "1:8/2", sscc.weight = "down"}
// CHECK: math.tanh
// CHECK-SAME: tensor<1x4xf32>
// CHECK: [[sum:%.*]] = shard.all_reduce
// CHECK: arith.addf {{%.*}}, [[sum]]
// CHECK-NOT: shard.all_reduce
module attributes {sscc.level = "graph"} {
  func.func private @decode.layer.0(%x: tensor<1x4xf32> {sscc.input = "hidden"},
      %up: tensor<8x4xf32> {sscc.weight = "up"}, %down: tensor<4x8xf32> {sscc.weight = "down"})
      -> (tensor<1x4xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %zero = arith.constant 0.0 : f32
    %e0 = tensor.empty() : tensor<1x8xf32>
    %z0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<1x8xf32>) -> tensor<1x8xf32>
    %a = linalg.matmul indexing_maps = [#mk, #nk, #mn]
        ins(%x, %up : tensor<1x4xf32>, tensor<8x4xf32>) outs(%z0 : tensor<1x8xf32>) -> tensor<1x8xf32>
    %b = math.tanh %a : tensor<1x8xf32>
    %e1 = tensor.empty() : tensor<1x4xf32>
    %z1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<1x4xf32>) -> tensor<1x4xf32>
    %c = linalg.matmul indexing_maps = [#mk, #nk, #mn]
        ins(%b, %down : tensor<1x8xf32>, tensor<4x8xf32>) outs(%z1 : tensor<1x4xf32>) -> tensor<1x4xf32>
    %d = arith.addf %x, %c : tensor<1x4xf32>
    return %d : tensor<1x4xf32>
  }
}

// -----

// CASE: of two sums that are multiplied one is complete
// PASSES: shard{ranks=2 sums=model}
// A product of two sums is not the sum of the products of their parts, but of the products of one with the other's parts.
// CHECK: [[one:%.*]] = shard.all_reduce
// CHECK: [[products:%.*]] = linalg.generic
// CHECK-SAME: ins([[one]],
// CHECK: arith.mulf
// CHECK: shard.all_reduce [[products]]
// CHECK-NOT: shard.all_reduce
module attributes {sscc.level = "graph"} {
  func.func private @decode.layer.0(%x: tensor<1x4xf32> {sscc.input = "hidden"},
      %up: tensor<8x4xf32> {sscc.weight = "up"}, %down: tensor<4x8xf32> {sscc.weight = "down"},
      %gate: tensor<4x8xf32> {sscc.weight = "gate"})
      -> (tensor<1x4xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %zero = arith.constant 0.0 : f32
    %e0 = tensor.empty() : tensor<1x8xf32>
    %z0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<1x8xf32>) -> tensor<1x8xf32>
    %a = linalg.matmul indexing_maps = [#mk, #nk, #mn]
        ins(%x, %up : tensor<1x4xf32>, tensor<8x4xf32>) outs(%z0 : tensor<1x8xf32>) -> tensor<1x8xf32>
    %b = math.tanh %a : tensor<1x8xf32>
    %e1 = tensor.empty() : tensor<1x4xf32>
    %z1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<1x4xf32>) -> tensor<1x4xf32>
    %c = linalg.matmul indexing_maps = [#mk, #nk, #mn]
        ins(%b, %down : tensor<1x8xf32>, tensor<4x8xf32>) outs(%z1 : tensor<1x4xf32>) -> tensor<1x4xf32>
    %g = linalg.matmul indexing_maps = [#mk, #nk, #mn]
        ins(%b, %gate : tensor<1x8xf32>, tensor<4x8xf32>) outs(%z1 : tensor<1x4xf32>) -> tensor<1x4xf32>
    %d = linalg.generic {indexing_maps = [#two, #two, #two], iterator_types = ["parallel", "parallel"]}
        ins(%c, %g : tensor<1x4xf32>, tensor<1x4xf32>) outs(%e1 : tensor<1x4xf32>) {
    ^bb0(%l: f32, %r: f32, %out: f32):
      %v = arith.mulf %l, %r : f32
      linalg.yield %v : f32
    } -> tensor<1x4xf32>
    return %d : tensor<1x4xf32>
  }
}

// -----

// CASE: parts of sums that are added are added up once
// PASSES: shard{ranks=2 sums=model}
// CHECK: [[parts:%.*]] = linalg.generic
// CHECK: arith.addf
// CHECK: [[sum:%.*]] = shard.all_reduce [[parts]]
// CHECK: return [[sum]]
// CHECK-NOT: shard.all_reduce
module attributes {sscc.level = "graph"} {
  func.func private @decode.layer.0(%x: tensor<1x4xf32> {sscc.input = "hidden"},
      %up: tensor<8x4xf32> {sscc.weight = "up"}, %down: tensor<4x8xf32> {sscc.weight = "down"},
      %gate: tensor<4x8xf32> {sscc.weight = "gate"})
      -> (tensor<1x4xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %zero = arith.constant 0.0 : f32
    %e0 = tensor.empty() : tensor<1x8xf32>
    %z0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<1x8xf32>) -> tensor<1x8xf32>
    %a = linalg.matmul indexing_maps = [#mk, #nk, #mn]
        ins(%x, %up : tensor<1x4xf32>, tensor<8x4xf32>) outs(%z0 : tensor<1x8xf32>) -> tensor<1x8xf32>
    %b = math.tanh %a : tensor<1x8xf32>
    %e1 = tensor.empty() : tensor<1x4xf32>
    %z1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<1x4xf32>) -> tensor<1x4xf32>
    %c = linalg.matmul indexing_maps = [#mk, #nk, #mn]
        ins(%b, %down : tensor<1x8xf32>, tensor<4x8xf32>) outs(%z1 : tensor<1x4xf32>) -> tensor<1x4xf32>
    %g = linalg.matmul indexing_maps = [#mk, #nk, #mn]
        ins(%b, %gate : tensor<1x8xf32>, tensor<4x8xf32>) outs(%z1 : tensor<1x4xf32>) -> tensor<1x4xf32>
    %d = linalg.generic {indexing_maps = [#two, #two, #two], iterator_types = ["parallel", "parallel"]}
        ins(%c, %g : tensor<1x4xf32>, tensor<1x4xf32>) outs(%e1 : tensor<1x4xf32>) {
    ^bb0(%l: f32, %r: f32, %out: f32):
      %v = arith.addf %l, %r : f32
      linalg.yield %v : f32
    } -> tensor<1x4xf32>
    return %d : tensor<1x4xf32>
  }
}

// -----

// CASE: a sum that is added and read besides is added up at once
// PASSES: shard{ranks=2 sums=model}
// What is not linear reads the sum, so the addition has the sum of the other alone.
// CHECK: [[one:%.*]] = shard.all_reduce
// CHECK: math.tanh [[one]]
module attributes {sscc.level = "graph"} {
  func.func private @decode.layer.0(%x: tensor<1x4xf32> {sscc.input = "hidden"},
      %up: tensor<8x4xf32> {sscc.weight = "up"}, %down: tensor<4x8xf32> {sscc.weight = "down"})
      -> (tensor<1x4xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %zero = arith.constant 0.0 : f32
    %e0 = tensor.empty() : tensor<1x8xf32>
    %z0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<1x8xf32>) -> tensor<1x8xf32>
    %a = linalg.matmul indexing_maps = [#mk, #nk, #mn]
        ins(%x, %up : tensor<1x4xf32>, tensor<8x4xf32>) outs(%z0 : tensor<1x8xf32>) -> tensor<1x8xf32>
    %e1 = tensor.empty() : tensor<1x4xf32>
    %z1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<1x4xf32>) -> tensor<1x4xf32>
    %c = linalg.matmul indexing_maps = [#mk, #nk, #mn]
        ins(%a, %down : tensor<1x8xf32>, tensor<4x8xf32>) outs(%z1 : tensor<1x4xf32>) -> tensor<1x4xf32>
    %t = math.tanh %c : tensor<1x4xf32>
    %d = linalg.generic {indexing_maps = [#two, #two, #two], iterator_types = ["parallel", "parallel"]}
        ins(%t, %c : tensor<1x4xf32>, tensor<1x4xf32>) outs(%e1 : tensor<1x4xf32>) {
    ^bb0(%l: f32, %r: f32, %out: f32):
      %v = arith.addf %l, %r : f32
      linalg.yield %v : f32
    } -> tensor<1x4xf32>
    return %d : tensor<1x4xf32>
  }
}

// -----

// CASE: a maximum over an axis keeps it whole
// PASSES: shard{ranks=2}
// up and down are cut; the weight whose products a maximum is taken of is not.
// CHECK: tensor<4x4xf32> {sscc.cut = "0:8/2", sscc.weight = "up"}
// CHECK-SAME: tensor<8x4xf32> {sscc.weight = "most"}
// CHECK: arith.maximumf
module attributes {sscc.level = "graph"} {
  func.func private @decode.layer.0(%x: tensor<1x4xf32> {sscc.input = "hidden"},
      %up: tensor<8x4xf32> {sscc.weight = "up"}, %down: tensor<4x8xf32> {sscc.weight = "down"},
      %most: tensor<8x4xf32> {sscc.weight = "most"})
      -> (tensor<1x4xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %zero = arith.constant 0.0 : f32
    %e0 = tensor.empty() : tensor<1x8xf32>
    %z0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<1x8xf32>) -> tensor<1x8xf32>
    %a = linalg.matmul indexing_maps = [#mk, #nk, #mn]
        ins(%x, %up : tensor<1x4xf32>, tensor<8x4xf32>) outs(%z0 : tensor<1x8xf32>) -> tensor<1x8xf32>
    %e1 = tensor.empty() : tensor<1x4xf32>
    %z1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<1x4xf32>) -> tensor<1x4xf32>
    %c = linalg.matmul indexing_maps = [#mk, #nk, #mn]
        ins(%a, %down : tensor<1x8xf32>, tensor<4x8xf32>) outs(%z1 : tensor<1x4xf32>) -> tensor<1x4xf32>
    %m = linalg.matmul indexing_maps = [#mk, #nk, #mn]
        ins(%x, %most : tensor<1x4xf32>, tensor<8x4xf32>) outs(%z0 : tensor<1x8xf32>) -> tensor<1x8xf32>
    %low = arith.constant 0xFF800000 : f32
    %e2 = tensor.empty() : tensor<1xf32>
    %z2 = linalg.fill ins(%low : f32) outs(%e2 : tensor<1xf32>) -> tensor<1xf32>
    %top = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m)>],
        iterator_types = ["parallel", "reduction"]} ins(%m : tensor<1x8xf32>) outs(%z2 : tensor<1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %p = arith.maximumf %in, %out : f32
      linalg.yield %p : f32
    } -> tensor<1xf32>
    %d = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m)>,
        affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
        ins(%c, %top : tensor<1x4xf32>, tensor<1xf32>) outs(%e1 : tensor<1x4xf32>) {
    ^bb0(%in: f32, %by: f32, %out: f32):
      %q = arith.mulf %in, %by : f32
      linalg.yield %q : f32
    } -> tensor<1x4xf32>
    return %d : tensor<1x4xf32>
  }
}
