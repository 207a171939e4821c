#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
!h = !torch.vtensor<[2,3],f32>

// -----

// CASE: an operator without a lowering
// PASSES: lower-torch
// ERROR: lower-torch.no-lowering origin='model.act (model.py:7): ' operator=torch.aten.erfinv
module attributes {kv.geometry = #geometry} {
  func.func @decode(%x: !h {sscc.input = "x"}) -> !h {
    %0 = torch.aten.erfinv %x : !h -> !h loc("model.act"("model.py":7:0))
    return %0 : !h
  }
}

// -----

// CASE: an operator that torch-mlir does not know
// PASSES: lower-torch
// ERROR: lower-torch.no-lowering origin='model.act (model.py:7): ' operator=torch.mine.mystery
module attributes {kv.geometry = #geometry} {
  func.func @decode(%x: !h {sscc.input = "x"}) -> !h {
    %0 = torch.operator "torch.mine.mystery"(%x) : (!h) -> !h loc("model.act"("model.py":7:0))
    return %0 : !h
  }
}
