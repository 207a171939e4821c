// Layers that keep other rows than the geometry says are groups. B 2, C 4, D 8; caches have 1 + 1 + 2 rows, the context 6 tokens.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 3 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}
!h = tensor<2x4x1x8xf32>
!k = tensor<2x2x1x8xf32>

// -----

// CASE: a sliding window
// A ring of as many rows as the window has, and nothing else; a window that covers the context is none.
// PASSES: thread-cache
// CHECK: module attributes
// CHECK-SAME: kv.groups = {window5 = {
// CHECK-SAME: recent = 5 : i64, rows = "compact", sink = 0 : i64, topk = 0 : i64, window = 5 : i64}}
// CHECK-SAME: sscc.layers = {window5 = array<i64: 0, 2>}
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: tensor<2x4x5x8xf32> {sscc.state = "k_cache"}
  // CHECK-NEXT: %[[TOPK:.+]] = arith.constant 0 : index
  // CHECK-NEXT: "kv.row"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %[[TOPK]]) {kv.group = "window5"}
  // CHECK: "kv.validity"({{.*}}, %[[TOPK]]) {kv.group = "window5"} : {{.*}} -> tensor<2x5xi1>
  // CHECK-LABEL: func.func private @decode.layer.1(
  // CHECK-SAME: tensor<2x4x4x8xf32> {sscc.state = "k_cache"}
  // CHECK-NEXT: %[[TOPK:.+]] = arith.constant 1 : index
  // CHECK-NEXT: "kv.row"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %[[TOPK]]) :
  // CHECK-LABEL: func.func private @decode.layer.2(
  // CHECK-SAME: tensor<2x4x5x8xf32> {sscc.state = "k_cache"}
  func.func private @decode.layer.0(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %a = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64, window = 5 : i64} : (!h, !h, !h) -> !h
    return %a : !h
  }
  func.func private @decode.layer.1(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 1 : i64} {
    %a = "kv.self_attention"(%h, %h, %h) {layer = 1 : i64, scale = 0.25 : f64, window = 6 : i64} : (!h, !h, !h) -> !h
    return %a : !h
  }
  func.func private @decode.layer.2(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 2 : i64} {
    %a = "kv.self_attention"(%h, %h, %h) {layer = 2 : i64, scale = 0.25 : f64, window = 5 : i64} : (!h, !h, !h) -> !h
    return %a : !h
  }
}

// -----

// CASE: layers with other KV heads
// PASSES: thread-cache
// CHECK: module attributes
// CHECK-SAME: kv.groups = {group_2 = {
// CHECK-SAME: sscc.layers = {group_2 = array<i64: 1>}
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: tensor<2x4x4x8xf32> {sscc.state = "k_cache"}
  // CHECK-LABEL: func.func private @decode.layer.1(
  // CHECK-SAME: tensor<2x2x4x8xf32> {sscc.state = "k_cache"}
  // CHECK: "kv.cached_attention"({{.*}}) {kv.group = "group_2",
  func.func private @decode.layer.0(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %a = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.0")
    return %a : !h
  }
  func.func private @decode.layer.1(%h: !h {sscc.input = "hidden"}, %k: !k {sscc.weight = "k"}) -> (!h {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 1 : i64} {
    %a = "kv.self_attention"(%h, %k, %k) {layer = 1 : i64, scale = 0.25 : f64} : (!h, !k, !k) -> !h loc("layers.1")
    return %a : !h
  }
}
