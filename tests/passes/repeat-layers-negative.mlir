#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}

// -----

// CASE: every layer was captured
// PASSES: repeat-layers
module attributes {kv.geometry = #geometry} {
  // CHECK: @decode.layer.0(
  // CHECK-NOT: @decode.layer.1(
  // CHECK: @decode.layer.2(
  func.func private @decode.layer.0(tensor<8xf32> {sscc.input = "hidden"}) attributes {sscc.entry = "decode"}
  func.func private @decode.layer.2(tensor<8xf32> {sscc.input = "hidden"}) attributes {sscc.entry = "decode"}
}

// -----

// CASE: layers that only look alike
// The constant depends on the layer: the driver captures every layer then.
// PASSES: repeat-layers
// ERROR: repeat-layers.other-programs first=0 layer=2 entry=decode
module attributes {kv.geometry = #geometry, sscc.kinds = {first = array<i64: 0, 0, 0>, path = "layers"}} {
  func.func private @decode.layer.0(%h: f32 {sscc.input = "hidden"}) -> f32 attributes {sscc.entry = "decode"} {
    %c = arith.constant 0.5 : f32
    %r = arith.mulf %h, %c : f32
    return %r : f32
  }
  func.func private @decode.layer.2(%h: f32 {sscc.input = "hidden"}) -> f32 attributes {sscc.entry = "decode"} {
    %c = arith.constant 0.25 : f32
    %r = arith.mulf %h, %c : f32
    return %r : f32
  }
  func.func private @prefill.layer.0(f32 {sscc.input = "hidden"}) attributes {sscc.entry = "prefill"}
  func.func private @prefill.layer.2(f32 {sscc.input = "hidden"}) attributes {sscc.entry = "prefill"}
}

// -----

// CASE: a note nobody wrote
// PASSES: repeat-layers
// ERROR: InputError: the module's sscc.kinds is damaged: {first = 3 : i64, path = "layers"}
module attributes {kv.geometry = #geometry, sscc.kinds = {first = 3 : i64, path = "layers"}} {
}

// -----

// CASE: a kind that begins nowhere
// PASSES: repeat-layers
// ERROR: level.first-layer attribute=sscc.kinds layers=0,0,1
module attributes {kv.geometry = #geometry, sscc.kinds = {first = array<i64: 0, 0, 1>, path = "layers"}} {
}
