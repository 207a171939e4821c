// The decode cache is one stacked tensor, and every layer has one attention operator.
#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 3 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 6 : i64}
#program = {batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 2 : i64, vocab_size = 9 : i64, config = "{}", digest = "", eos = "[]"}
!h = tensor<2x4x1x8xf32>
!k = tensor<2x2x1x8xf32>

// -----

// CASE: two attention operators in a layer
// PASSES: thread-cache
// ERROR: thread-cache.two-operators origin='layers.0: ' function=decode.layer.0 operators=kv.self_attention,kv.self_attention
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  func.func private @decode.layer.0(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %a = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h
    %b = "kv.self_attention"(%a, %a, %a) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !h, !h) -> !h
    return %b : !h
  } loc("layers.0")
}

// -----

// CASE: layers with other query heads
// Groups are told apart by K and V, and the kept queries by the group.
// PASSES: thread-cache
// ERROR: thread-cache.other-queries origin='layers.1: ' heads=2 width=8 other_heads=4 other_width=8
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  func.func private @decode.layer.0(%h: !h {sscc.input = "hidden"}, %k: !k {sscc.weight = "k"}) -> (!h {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %a = "kv.self_attention"(%h, %k, %k) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !k, !k) -> !h loc("layers.0")
    return %a : !h
  }
  func.func private @decode.layer.1(%k: !k {sscc.input = "hidden"}) -> (!k {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 1 : i64} {
    %a = "kv.self_attention"(%k, %k, %k) {layer = 1 : i64, scale = 0.25 : f64} : (!k, !k, !k) -> !k loc("layers.1")
    return %a : !k
  }
}

// -----

// CASE: a module without geometry
// PASSES: thread-cache
// ERROR: level.no-facts attributes=sscc.program,kv.geometry
module {
  func.func private @decode.layer.0(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    return %h : !h
  }
}

// -----

// CASE: a layer that shares K and V, but not the window
// PASSES: thread-cache
// ERROR: thread-cache.shared-other-window origin='layers.1: ' layer=1 source=0 window='a sliding window of 3 positions'
// ERROR: other_window='all positions'
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  func.func private @decode.layer.0(%h: !h {sscc.input = "hidden"}, %k: !k {sscc.weight = "k"}) -> (!h {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
    %a = "kv.self_attention"(%h, %k, %k) {layer = 0 : i64, scale = 0.25 : f64} : (!h, !k, !k) -> !h loc("layers.0")
    return %a : !h
  }
  func.func private @decode.layer.1(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 1 : i64} {
    %a = "kv.shared_attention"(%h) {layer = 1 : i64, shares = 0 : i64, scale = 0.25 : f64, window = 3 : i64} : (!h) -> !h loc("layers.1")
    return %a : !h
  }
}

// -----

// CASE: a layer that shares the K and V of one that has none
// PASSES: thread-cache
// ERROR: thread-cache.source-keeps-nothing origin='layers.1: ' layer=1 source=1
module attributes {kv.geometry = #geometry, sscc.program = #program} {
  func.func private @decode.layer.1(%h: !h {sscc.input = "hidden"}) -> (!h {sscc.output = "hidden"})
      attributes {sscc.entry = "decode", sscc.layer = 1 : i64} {
    %a = "kv.shared_attention"(%h) {layer = 1 : i64, shares = 1 : i64, scale = 0.25 : f64} : (!h) -> !h loc("layers.1")
    return %a : !h
  }
}
