// A layer may read the hidden state of the stage before it, what the embedding makes for all layers or for it, and its
// weights; nothing else.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
!ids = tensor<2x1x1x8xi64>
!h = tensor<2x1x1x8xf32>

// -----

// CASE: another layer's slice
// Of what the embedding makes for every layer each reads its own.
// PASSES: split-layers
// ERROR: split-layers.other-slice origin='layers.1.mlp (model.py:7): ' layer=1 index=2
module attributes {kv.geometry = #geometry} {
  func.func @decode(%ids: !ids {sscc.input = "ids"}, %all: tensor<2x1x3x8xf32> {sscc.weight = "w"}) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    %e = tensor.empty() : tensor<2x1x3x8xf32>
    %t = linalg.add ins(%all, %all : tensor<2x1x3x8xf32>, tensor<2x1x3x8xf32>) outs(%e : tensor<2x1x3x8xf32>) -> tensor<2x1x3x8xf32> loc("embed")
    %f = tensor.insert_slice %h into %t[0, 0, 0, 0] [2, 1, 1, 8] [1, 1, 1, 1] : !h into tensor<2x1x3x8xf32> loc("embed")
    %s0 = tensor.extract_slice %f[0, 0, 0, 0] [2, 1, 1, 8] [1, 1, 1, 1] : tensor<2x1x3x8xf32> to tensor<2x1x8xf32> loc("embed")
    %s2 = tensor.extract_slice %f[0, 0, 2, 0] [2, 1, 1, 8] [1, 1, 1, 1] : tensor<2x1x3x8xf32> to tensor<2x1x8xf32> loc("embed")
    %p0 = tensor.expand_shape %s0 [[0], [1, 2], [3]] output_shape [2, 1, 1, 8] : tensor<2x1x8xf32> into !h loc("layers.0.mlp")
    %p2 = tensor.expand_shape %s2 [[0], [1, 2], [3]] output_shape [2, 1, 1, 8] : tensor<2x1x8xf32> into !h loc("layers.1.mlp"("model.py":7:0))
    %a0 = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.0.attention")
    %b0 = arith.addf %a0, %p0 : !h loc("layers.0.mlp")
    %a1 = "kv.self_attention"(%b0, %b0, %b0) {layer = 1 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.1.attention")
    %b1 = arith.addf %a1, %p2 : !h loc("layers.1.mlp")
    return %b1 : !h
  }
}

// -----

// CASE: skip connection over a layer
// PASSES: split-layers
// ERROR: split-layers.reads-earlier-layer origin='layers.2.mlp: ' stage='layer 2' source=0
module attributes {kv.geometry = #geometry} {
  func.func @decode(%ids: !ids {sscc.input = "ids"}) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    %a0 = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.0.attention")
    %a1 = "kv.self_attention"(%a0, %a0, %a0) {layer = 1 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.1.attention")
    %a2 = "kv.self_attention"(%a1, %a1, %a1) {layer = 2 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.2.attention")
    %h3 = arith.addf %a2, %a0 : !h loc("layers.2.mlp")
    return %h3 : !h
  }
}

// -----

// CASE: the head reads an early layer
// PASSES: split-layers
// ERROR: split-layers.reads-earlier-layer origin='head: ' stage='the head' source=0
module attributes {kv.geometry = #geometry} {
  func.func @decode(%ids: !ids {sscc.input = "ids"}) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    %a0 = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.0.attention")
    %a1 = "kv.self_attention"(%a0, %a0, %a0) {layer = 1 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.1.attention")
    %logits = arith.addf %a1, %a0 : !h loc("head")
    return %logits : !h
  }
}

// -----

// CASE: two values between layers
// The hidden state is one tensor.
// PASSES: split-layers
// ERROR: split-layers.not-one-hidden-state origin='layers.1.attention: ' stage='layer 1' values=2
module attributes {kv.geometry = #geometry} {
  func.func @decode(%ids: !ids {sscc.input = "ids"}) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    %a0 = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.0.attention")
    %b0 = math.exp %a0 : !h loc("layers.0.mlp")
    %a1 = "kv.self_attention"(%a0, %b0, %a0) {layer = 1 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.1.attention")
    return %a1 : !h
  }
}

// -----

// CASE: a layer that reads a later one
// Layers that run in another order than they are numbered.
// PASSES: split-layers
// ERROR: split-layers.reads-later-layer origin='layers.0.mlp: ' layer=0 source=1
module attributes {kv.geometry = #geometry} {
  func.func @decode(%ids: !ids {sscc.input = "ids"}) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    %a0 = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.0.attention")
    %a1 = "kv.self_attention"(%a0, %a0, %a0) {layer = 1 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.1.attention")
    %h2 = math.exp %a1 : !h loc("layers.0.mlp")
    return %h2 : !h
  }
}

// -----

// CASE: attention outside a numbered module
// PASSES: split-layers
// ERROR: split-layers.not-in-a-list origin='block.attention (model.py:9): '
module attributes {kv.geometry = #geometry} {
  func.func @decode(%ids: !ids {sscc.input = "ids"}) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    %a = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("block.attention"("model.py":9:0))
    return %a : !h
  }
}

// -----

// CASE: no attention at all
// PASSES: split-layers
// ERROR: split-layers.no-attention entry=decode
module attributes {kv.geometry = #geometry} {
  func.func @decode(%ids: !ids {sscc.input = "ids"}) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    return %h : !h
  }
}

// -----

// CASE: one module attends twice
// Layers that share a module, weights and all.
// PASSES: split-layers
// ERROR: split-layers.two-attentions origin='layers.0.attention: ' module=layers.0.attention
module attributes {kv.geometry = #geometry} {
  func.func @decode(%ids: !ids {sscc.input = "ids"}) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    %a0 = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.0.attention")
    %a1 = "kv.self_attention"(%a0, %a0, %a0) {layer = 1 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h loc("layers.0.attention")
    return %a1 : !h
  }
}

// -----

// CASE: an argument nobody named
// PASSES: split-layers
// ERROR: function.argument-role index=0 function=decode roles=sscc.weight,sscc.constant,sscc.input,sscc.state,sscc.output
module attributes {kv.geometry = #geometry} {
  func.func @decode(%ids: !ids) -> !h {
    %h = arith.sitofp %ids : !ids to !h loc("embed")
    return %h : !h
  }
}
