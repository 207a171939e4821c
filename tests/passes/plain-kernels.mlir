#geometry = {sink = 0 : i64, recent = 2 : i64, topk = 2 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
#facts = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}

// -----

// CASE: an update without its attention is a kernel of its own
// PASSES: outline-kernels{granularity=layer},fuse-compressed-attention,form-stages,tile-stages,place-stages
module attributes {kv.geometry = #geometry, sscc.program = #facts} {
  // CHECK-LABEL: func.func public @main(
  // CHECK: %[[R:.+]] = call @row.0(
  // CHECK: call @update.1({{.*}}%[[R]]
  // CHECK: func.func private @row.0({{.+}} attributes {sscc.kernel, sscc.plain} {
  // CHECK-NOT: df.load
  // CHECK: call @body.row({{.+}}) {df.stage = "row"}
  func.func private @layer(%k: tensor<2x2x4x8xf32> {sscc.state = "k"}, %n: tensor<2x2x1x8xf32> {sscc.input = "n"}, %p: tensor<2xi64> {sscc.input = "p"}, %a: tensor<2xi1> {sscc.input = "a"}, %c: index {sscc.input = "c"})
      -> (tensor<2x2x4x8xf32> {sscc.state = "k"}) {
    %r = "kv.row"(%p, %p, %c) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %u = "kv.update"(%k, %n, %r, %a) : (tensor<2x2x4x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x4x8xf32>
    return %u : tensor<2x2x4x8xf32>
  }
  func.func public @main(%k: tensor<2x2x4x8xf32> {sscc.state = "k"}, %n: tensor<2x2x1x8xf32> {sscc.input = "n"}, %p: tensor<2xi64> {sscc.input = "p"}, %a: tensor<2xi1> {sscc.input = "a"}, %c: index {sscc.input = "c"})
      -> (tensor<2x2x4x8xf32> {sscc.state = "k"}) {
    %u = func.call @layer(%k, %n, %p, %a, %c) : (tensor<2x2x4x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x2x4x8xf32>
    return %u : tensor<2x2x4x8xf32>
  }
}

// -----

// CASE: a fused operation whose update is read again is not in a pipeline with its reader
// PASSES: outline-kernels{granularity=layer},fuse-compressed-attention,form-stages,tile-stages,place-stages
module attributes {kv.geometry = #geometry, sscc.program = #facts} {
  // CHECK-LABEL: func.func public @main(
  // CHECK: call @decode_attention.0(
  // CHECK: call @tanh.1(
  // CHECK: func.func private @decode_attention.0({{.+}} attributes {sscc.kernel, sscc.plain} {
  func.func private @layer(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %n: tensor<2x2x1x8xf32> {sscc.input = "n"},
      %k: tensor<2x2x4x8xf32> {sscc.state = "k"}, %v: tensor<2x2x4x8xf32> {sscc.state = "v"},
      %p: tensor<2xi64> {sscc.input = "p"}, %a: tensor<2xi1> {sscc.input = "a"}, %c: index {sscc.input = "c"})
      -> (tensor<2x4x1x8xf32> {sscc.output = "o"}, tensor<2x2x4x8xf32> {sscc.state = "k"},
          tensor<2x2x4x8xf32> {sscc.state = "v"}, tensor<2x2x4x8xf32> {sscc.output = "t"}) {
    %o:3 = "kv.decode_attention"(%q, %n, %n, %k, %v, %k, %v, %p, %p, %a, %c) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, scale = 0.5 : f64}
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>,
         tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>)
    %e = tensor.empty() : tensor<2x2x4x8xf32>
    %t = linalg.tanh ins(%o#1 : tensor<2x2x4x8xf32>) outs(%e : tensor<2x2x4x8xf32>) -> tensor<2x2x4x8xf32>
    return %o#0, %o#1, %o#2, %t : tensor<2x4x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>
  }
  func.func public @main(%q: tensor<2x4x1x8xf32> {sscc.input = "q"}, %n: tensor<2x2x1x8xf32> {sscc.input = "n"},
      %k: tensor<2x2x4x8xf32> {sscc.state = "k"}, %v: tensor<2x2x4x8xf32> {sscc.state = "v"},
      %p: tensor<2xi64> {sscc.input = "p"}, %a: tensor<2xi1> {sscc.input = "a"}, %c: index {sscc.input = "c"})
      -> (tensor<2x4x1x8xf32> {sscc.output = "o"}, tensor<2x2x4x8xf32> {sscc.state = "k"},
          tensor<2x2x4x8xf32> {sscc.state = "v"}, tensor<2x2x4x8xf32> {sscc.output = "t"}) {
    %o:4 = func.call @layer(%q, %n, %k, %v, %p, %a, %c)
      : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<2x4x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>)
    return %o#0, %o#1, %o#2, %o#3 : tensor<2x4x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>
  }
}

// -----

// CASE: a loop in which nothing needs order is a kernel of stages, whatever stands beside it
// PASSES: outline-kernels{granularity=layer},fuse-compressed-attention,form-stages,tile-stages,place-stages
module attributes {kv.geometry = #geometry, sscc.program = #facts} {
  // CHECK-LABEL: func.func public @main(
  // CHECK: call @layer.loop.0(
  // CHECK: %[[R:.+]] = call @row.0(
  // CHECK: call @update.1({{.*}}%[[R]]
  // CHECK: func.func private @layer.loop.0(
  // CHECK: sscc.weight = "w"
  // CHECK-SAME: attributes {sscc.kernel} {
  // CHECK: scf.for
  // CHECK: df.load
  // CHECK: func.func private @row.0({{.+}} attributes {sscc.kernel, sscc.plain} {
  func.func private @layer(%h: tensor<4x1x8xf32> {sscc.state = "h"}, %w: tensor<8x8xf32> {sscc.weight = "w"}, %lo: index {sscc.input = "lo"}, %hi: index {sscc.input = "hi"},
      %k: tensor<2x2x4x8xf32> {sscc.state = "k"}, %n: tensor<2x2x1x8xf32> {sscc.input = "n"}, %p: tensor<2xi64> {sscc.input = "p"}, %a: tensor<2xi1> {sscc.input = "a"}, %c: index {sscc.input = "c"})
      -> (tensor<4x1x8xf32> {sscc.state = "h"}, tensor<2x2x4x8xf32> {sscc.state = "k"}) {
    %one = arith.constant 1 : index
    %done = scf.for %i = %lo to %hi step %one iter_args(%x = %h) -> (tensor<4x1x8xf32>) {
      %s = tensor.extract_slice %x[%i, 0, 0] [1, 1, 8] [1, 1, 1] : tensor<4x1x8xf32> to tensor<1x8xf32>
      %zero = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<1x8xf32>
      %z = linalg.fill ins(%zero : f32) outs(%e : tensor<1x8xf32>) -> tensor<1x8xf32>
      %y = linalg.matmul ins(%s, %w : tensor<1x8xf32>, tensor<8x8xf32>) outs(%z : tensor<1x8xf32>) -> tensor<1x8xf32>
      %new = tensor.insert_slice %y into %x[%i, 0, 0] [1, 1, 8] [1, 1, 1] : tensor<1x8xf32> into tensor<4x1x8xf32>
      scf.yield %new : tensor<4x1x8xf32>
    }
    %r = "kv.row"(%p, %p, %c) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
    %u = "kv.update"(%k, %n, %r, %a) : (tensor<2x2x4x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x4x8xf32>
    return %done, %u : tensor<4x1x8xf32>, tensor<2x2x4x8xf32>
  }
  func.func public @main(%h: tensor<4x1x8xf32> {sscc.state = "h"}, %w: tensor<8x8xf32> {sscc.weight = "w"}, %lo: index {sscc.input = "lo"}, %hi: index {sscc.input = "hi"},
      %k: tensor<2x2x4x8xf32> {sscc.state = "k"}, %n: tensor<2x2x1x8xf32> {sscc.input = "n"}, %p: tensor<2xi64> {sscc.input = "p"}, %a: tensor<2xi1> {sscc.input = "a"}, %c: index {sscc.input = "c"})
      -> (tensor<4x1x8xf32> {sscc.state = "h"}, tensor<2x2x4x8xf32> {sscc.state = "k"}) {
    %u:2 = func.call @layer(%h, %w, %lo, %hi, %k, %n, %p, %a, %c)
      : (tensor<4x1x8xf32>, tensor<8x8xf32>, index, index, tensor<2x2x4x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>, index)
      -> (tensor<4x1x8xf32>, tensor<2x2x4x8xf32>)
    return %u#0, %u#1 : tensor<4x1x8xf32>, tensor<2x2x4x8xf32>
  }
}
