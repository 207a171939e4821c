#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
!h = tensor<2x1x1x8xf32>

// -----

// CASE: one kind
// PASSES: repeat-layers
// LOCATIONS
module attributes {kv.geometry = #geometry, sscc.kinds = {first = array<i64: 0, 0, 0>, path = "model.layers"}} {
  // Layers 0 and 2 were captured; layer 1 is layer 0 with its own weight, number and locations. A weight of no layer
  // keeps its name. The note about kinds is gone.
  // CHECK-NOT: sscc.kinds
  // CHECK-LABEL: func.func private @decode.layer.1(
  // CHECK-SAME: {sscc.input = "hidden"}
  // CHECK-SAME: {sscc.weight = "model.layers.1.w"}
  // CHECK-SAME: {sscc.weight = "model.shared"}
  // CHECK-SAME: sscc.layer = 1 : i64
  // CHECK: "kv.self_attention"({{.*}}) {layer = 1 : i64, {{.*}} loc("model.layers.1.attention"("model.py":5:0))
  // CHECK: arith.mulf {{.*}} loc("model.layers.1"("model.py":6:0))
  // CHECK: } loc("model.layers.1")
  func.func private @decode.layer.0(%h: !h {sscc.input = "hidden"}, %w: !h {sscc.weight = "model.layers.0.w"}, %s: !h {sscc.weight = "model.shared"})
      -> (!h {sscc.output = "hidden"}) attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %a = "kv.self_attention"(%h, %h, %w) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("model.layers.0.attention"("model.py":5:0))
    %r = arith.mulf %a, %s : !h loc("model.layers.0"("model.py":6:0))
    return %r : !h
  } loc("model.layers.0")
  func.func private @decode.layer.2(%h: !h {sscc.input = "hidden"}, %w: !h {sscc.weight = "model.layers.2.w"}, %s: !h {sscc.weight = "model.shared"})
      -> (!h {sscc.output = "hidden"}) attributes {sscc.entry = "decode", sscc.layer = 2 : i64} {
    %a = "kv.self_attention"(%h, %h, %w) {layer = 2 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("model.layers.2.attention"("model.py":5:0))
    %r = arith.mulf %a, %s : !h loc("model.layers.2"("model.py":6:0))
    return %r : !h
  } loc("model.layers.2")
  func.func private @prefill.layer.0(!h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.entry = "prefill", sscc.layer = 0 : i64}
  func.func private @prefill.layer.2(!h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"}) attributes {sscc.entry = "prefill", sscc.layer = 2 : i64}
}

// -----

// CASE: two kinds
// PASSES: repeat-layers
module attributes {kv.geometry = #geometry, sscc.kinds = {first = array<i64: 0, 1, 1, 1, 0, 0>, path = "layers"}} {
  // Captured are 0, 1, 3 and 5: first and last of each kind. Each of the others repeats the first of its own kind.
  // CHECK-DAG: @decode.layer.2(tensor<2x1x1x8xf32> {sscc.input = "hidden"}, tensor<3xf32> {sscc.weight = "layers.2.b"})
  // CHECK-DAG: @decode.layer.4(tensor<2x1x1x8xf32> {sscc.input = "hidden"}, tensor<5xf32> {sscc.weight = "layers.4.a"})
  // CHECK-DAG: @prefill.layer.2(tensor<2x1x1x8xf32> {sscc.input = "hidden"}, tensor<3xf32> {sscc.weight = "layers.2.b"})
  // CHECK-DAG: @prefill.layer.4(tensor<2x1x1x8xf32> {sscc.input = "hidden"}, tensor<5xf32> {sscc.weight = "layers.4.a"})
  func.func private @decode.layer.0(!h {sscc.input = "hidden"}, tensor<5xf32> {sscc.weight = "layers.0.a"}) attributes {sscc.entry = "decode"}
  func.func private @decode.layer.1(!h {sscc.input = "hidden"}, tensor<3xf32> {sscc.weight = "layers.1.b"}) attributes {sscc.entry = "decode"}
  func.func private @decode.layer.3(!h {sscc.input = "hidden"}, tensor<3xf32> {sscc.weight = "layers.3.b"}) attributes {sscc.entry = "decode"}
  func.func private @decode.layer.5(!h {sscc.input = "hidden"}, tensor<5xf32> {sscc.weight = "layers.5.a"}) attributes {sscc.entry = "decode"}
  func.func private @prefill.layer.0(!h {sscc.input = "hidden"}, tensor<5xf32> {sscc.weight = "layers.0.a"}) attributes {sscc.entry = "prefill"}
  func.func private @prefill.layer.1(!h {sscc.input = "hidden"}, tensor<3xf32> {sscc.weight = "layers.1.b"}) attributes {sscc.entry = "prefill"}
  func.func private @prefill.layer.3(!h {sscc.input = "hidden"}, tensor<3xf32> {sscc.weight = "layers.3.b"}) attributes {sscc.entry = "prefill"}
  func.func private @prefill.layer.5(!h {sscc.input = "hidden"}, tensor<5xf32> {sscc.weight = "layers.5.a"}) attributes {sscc.entry = "prefill"}
}
