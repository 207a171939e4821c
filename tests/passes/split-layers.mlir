// Two layers of one head: the smallest decoder that has everything a split looks at.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
!ids = tensor<2x1x1x8xi64>
!h = tensor<2x1x1x8xf32>

// -----

// CASE: embedding, layers and head
// PASSES: split-layers
module attributes {kv.geometry = #geometry} {
  // The embedding gives the hidden state and the table that layers read.
  // CHECK-LABEL: func.func private @decode.embed(
  // CHECK-SAME: %[[IDS:[a-z0-9]+]]: tensor<2x1x1x8xi64> {sscc.input = "ids"}, %[[POSITIONS:[a-z0-9]+]]: tensor<2x1x1x8xi64> {sscc.input = "positions"})
  // CHECK-SAME: -> (tensor<2x1x1x8xf32> {sscc.output = "hidden"}, tensor<2x1x1x8xf32> {sscc.output = "table.0"}) attributes {sscc.entry = "decode"}
  // CHECK-NEXT: %[[H:.+]] = arith.sitofp %[[IDS]]
  // CHECK-NEXT: %[[COS:.+]] = arith.sitofp %[[POSITIONS]]
  // CHECK-NEXT: return %[[H]], %[[COS]]
  //
  // A layer takes the hidden state, the table and its own weight, and no other layer's.
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: {sscc.input = "hidden"}
  // CHECK-SAME: {sscc.input = "table.0"}
  // CHECK-SAME: {sscc.weight = "layers.0.w"}) -> (tensor<2x1x1x8xf32> {sscc.output = "hidden"})
  // CHECK-SAME: attributes {sscc.entry = "decode", sscc.layer = 0 : i64}
  // CHECK: "kv.self_attention"
  // CHECK: return
  //
  // CHECK-LABEL: func.func private @decode.layer.1(
  // CHECK-SAME: {sscc.weight = "layers.1.w"})
  // CHECK-SAME: sscc.layer = 1 : i64
  // CHECK: "kv.self_attention"
  // CHECK: return
  //
  // The head has no number; its result is the logits.
  // CHECK-LABEL: func.func private @decode.head(
  // CHECK-SAME: {sscc.input = "hidden"}, %{{.+}}: tensor<2x1x1x8xf32> {sscc.weight = "norm.w"}) -> (tensor<2x1x1x8xf32> {sscc.output = "logits"}) attributes {sscc.entry = "decode"}
  // CHECK-NEXT: arith.mulf
  //
  // The captured function is gone.
  // CHECK-NOT: @decode(
  func.func @decode(%w1: !h {sscc.weight = "layers.1.w"}, %w0: !h {sscc.weight = "layers.0.w"}, %wn: !h {sscc.weight = "norm.w"},
                    %ids: !ids {sscc.input = "ids"}, %positions: !ids {sscc.input = "positions"}) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    %cos = arith.sitofp %positions : !ids to !h loc("rotary")
    %q0 = arith.mulf %h, %cos : !h loc("layers.0.attention")
    %a0 = "kv.self_attention"(%q0, %q0, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.0.attention")
    %h1 = arith.mulf %a0, %w0 : !h loc("layers.0.mlp")
    %q1 = arith.mulf %h1, %cos : !h loc("layers.1.attention")
    %a1 = "kv.self_attention"(%q1, %q1, %h1) {layer = 1 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.1.attention")
    %h2 = arith.mulf %a1, %w1 : !h loc("layers.1.mlp")
    %logits = arith.mulf %h2, %wn : !h loc("norm")
    return %logits : !h
  }
}

// -----

// CASE: a table for each layer
// Layers that read tables that are computed alike read one, so that they can be equal.
// PASSES: split-layers
module attributes {kv.geometry = #geometry} {
  // CHECK-LABEL: func.func private @decode.embed(
  // CHECK-SAME: -> (tensor<2x1x1x8xf32> {sscc.output = "hidden"}, tensor<2x1x1x8xf32> {sscc.output = "table.0"}) attributes
  // CHECK: math.cos
  // CHECK-NOT: math.cos
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK: %[[Q0:.+]] = arith.mulf %arg0, %arg1
  // CHECK-LABEL: func.func private @decode.layer.1(
  // CHECK: %[[Q1:.+]] = arith.mulf %arg0, %arg1
  func.func @decode(%ids: !ids {sscc.input = "ids"}, %positions: !ids {sscc.input = "positions"}) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    %p0 = arith.sitofp %positions : !ids to !h loc("model")
    %cos0 = math.cos %p0 : !h loc("model")
    %q0 = arith.mulf %h, %cos0 : !h loc("layers.0.attention")
    %a0 = "kv.self_attention"(%q0, %q0, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.0.attention")
    %p1 = arith.sitofp %positions : !ids to !h loc("model")
    %cos1 = math.cos %p1 : !h loc("model")
    %q1 = arith.mulf %a0, %cos1 : !h loc("layers.1.attention")
    %a1 = "kv.self_attention"(%q1, %q1, %a0) {layer = 1 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.1.attention")
    %logits = arith.mulf %a1, %a1 : !h loc("norm")
    return %logits : !h
  }
}

// -----

// CASE: work without a layer's name
// PASSES: split-layers
// LOCATIONS
module attributes {kv.geometry = #geometry} {
  // What layers share is computed by the embedding when it depends on no layer.
  // CHECK-LABEL: func.func private @decode.embed(
  // CHECK: math.cos
  //
  // The stack that holds the layers may work between two of them: that belongs to the layer before.
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK: "kv.self_attention"
  // CHECK: math.exp {{.*}} loc("model"("model.py":20:0))
  // CHECK: } loc("model.layers.0")
  //
  // After the last layer it belongs to the head.
  // CHECK-LABEL: func.func private @decode.layer.1(
  // CHECK: "kv.self_attention"
  // CHECK-NOT: math.
  // CHECK: } loc("model.layers.1")
  // CHECK-LABEL: func.func private @decode.head(
  // CHECK: math.tanh {{.*}} loc("model"("model.py":30:0))
  func.func @decode(%ids: !ids {sscc.input = "ids"}, %positions: !ids {sscc.input = "positions"}) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("model"("model.py":10:0))
    %p = arith.sitofp %positions : !ids to !h loc("model"("model.py":11:0))
    %cos = math.cos %p : !h loc("model"("model.py":12:0))
    %a0 = "kv.self_attention"(%h, %cos, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("model.layers.0.attention")
    %h1 = math.exp %a0 : !h loc("model"("model.py":20:0))
    %a1 = "kv.self_attention"(%h1, %cos, %h1) {layer = 1 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("model.layers.1.attention")
    %logits = math.tanh %a1 : !h loc("model"("model.py":30:0))
    return %logits : !h
  }
}

// -----

// CASE: constants follow their users
// PASSES: split-layers
module attributes {kv.geometry = #geometry} {
  // One constant of the captured function: the layer and the head get a copy each, nothing crosses.
  // CHECK-LABEL: func.func private @decode.embed(
  // CHECK-NOT: arith.constant
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK: %[[ONE:.+]] = arith.constant dense<1.000000e+00>
  // CHECK-NEXT: arith.addf %{{.+}}, %[[ONE]]
  // CHECK-LABEL: func.func private @decode.head(
  // CHECK: %[[ONE:.+]] = arith.constant dense<1.000000e+00>
  // CHECK-NEXT: arith.mulf %{{.+}}, %[[ONE]]
  func.func @decode(%ids: !ids {sscc.input = "ids"}) -> !h {
    %one = arith.constant dense<1.0> : !h
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    %x = arith.addf %h, %one : !h loc("layers.0.norm")
    %a = "kv.self_attention"(%x, %x, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.0.attention")
    %logits = arith.mulf %a, %one : !h loc("head")
    return %logits : !h
  }
}

// -----

// CASE: what only the head reads
// PASSES: split-layers
module attributes {kv.geometry = #geometry} {
  // Index arithmetic on the last position depends on no layer, but nobody before the head needs it.
  // CHECK-LABEL: func.func private @prefill.embed(
  // CHECK-NOT: sscc.input = "last"
  // CHECK-LABEL: func.func private @prefill.head(
  // CHECK-SAME: {sscc.input = "last"}
  // CHECK: arith.addi
  // CHECK: arith.sitofp
  func.func @prefill(%ids: !ids {sscc.input = "ids"}, %last: !ids {sscc.input = "last"}) -> !h {
    %i = arith.addi %last, %last : !ids loc("model")
    %f = arith.sitofp %i : !ids to !h loc("model")
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    %a = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.0.attention")
    %logits = arith.mulf %a, %f : !h loc("head")
    return %logits : !h
  }
}

// -----

// CASE: layer 1 is not the beginning of layer 10
// PASSES: split-layers
module attributes {kv.geometry = #geometry} {
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK: math.exp
  // CHECK-LABEL: func.func private @decode.layer.1(
  // CHECK: math.tanh
  func.func @decode(%ids: !ids {sscc.input = "ids"}) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    %a0 = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.1.attention")
    %h1 = math.exp %a0 : !h loc("layers.1.mlp")
    %a1 = "kv.self_attention"(%h1, %h1, %h1) {layer = 1 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.10.attention")
    %h2 = math.tanh %a1 : !h loc("layers.10.mlp")
    %logits = math.exp %h2 : !h loc("head")
    return %logits : !h
  }
}

// -----

// CASE: one layer inside a stack of stacks
// PASSES: split-layers
// LOCATIONS
module attributes {kv.geometry = #geometry} {
  // With a single attention operator the last number names the layer.
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK: } loc("groups.3.layers.7")
  func.func @decode(%ids: !ids {sscc.input = "ids"}) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    %a = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("groups.3.layers.7.attention")
    %logits = math.exp %a : !h loc("head")
    return %logits : !h
  }
}

// -----

// CASE: what a later layer reads of the embedding, and K and V of an earlier one
// The embedding's value goes to all layers, like a table. Layer 2 reads nothing of layer 0 but says whose K and V it shares.
// PASSES: split-layers
module attributes {kv.geometry = #geometry} {
  // CHECK-LABEL: func.func private @decode.embed(
  // CHECK-SAME: -> (tensor<2x1x1x8xf32> {sscc.output = "hidden"}, tensor<2x1x1x8xf32> {sscc.output = "table.0"})
  //
  // CHECK-LABEL: func.func private @decode.layer.0(
  // CHECK-SAME: {sscc.input = "hidden"}, %{{.+}}: tensor<2x1x1x8xf32> {sscc.input = "table.0"})
  // CHECK: "kv.self_attention"
  //
  // CHECK-LABEL: func.func private @decode.layer.1(
  // CHECK-SAME: %[[H1:[a-z0-9]+]]: tensor<2x1x1x8xf32> {sscc.input = "hidden"}, %[[FIRST:[a-z0-9]+]]: tensor<2x1x1x8xf32> {sscc.input = "table.0"})
  // CHECK: %[[A1:.+]] = "kv.self_attention"(%[[H1]], %[[H1]], %[[H1]])
  // CHECK: arith.addf %[[A1]], %[[FIRST]]
  //
  // CHECK-LABEL: func.func private @decode.layer.2(
  // CHECK-SAME: %[[H2:[a-z0-9]+]]: tensor<2x1x1x8xf32> {sscc.input = "hidden"}, %{{.+}}: tensor<2x1x1x8xf32> {sscc.input = "table.0"})
  // CHECK-NEXT: "kv.shared_attention"(%[[H2]]) {layer = 2 : i64, scale = 2.500000e-01 : f64, shares = 0 : i64, window = 3 : i64}
  func.func @decode(%ids: !ids {sscc.input = "ids"}) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    %k = math.tanh %h : !h loc("layers.0.attention")
    %a0 = "kv.self_attention"(%h, %k, %h) {layer = 0 : i64, scale = 0.25 : f64, window = 3 : i64} : (!h, !h, !h) -> !h loc("layers.0.attention")
    %a1 = "kv.self_attention"(%a0, %a0, %a0) {layer = 1 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.1.attention")
    %h2 = arith.addf %a1, %h : !h loc("layers.1.mlp")
    %a2 = "kv.self_attention"(%h2, %k, %h) {layer = 2 : i64, scale = 0.25 : f64, window = 3 : i64} : (!h, !h, !h) -> !h loc("layers.2.attention")
    return %a2 : !h
  }
}
