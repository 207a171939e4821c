#geometry = {sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg", max_context = 8 : i64}
!h = !torch.vtensor<[2,3],f32>

// -----

// CASE: an element-wise operator
// PASSES: lower-torch
// LOCATIONS
module attributes {kv.geometry = #geometry} {
  // Types become builtin tensors; names and roles of arguments, and the location of each operation, stay.
  // CHECK-LABEL: func.func @decode(
  // CHECK-SAME: %arg0: tensor<2x3xf32> {sscc.input = "x"}
  // CHECK: linalg.generic
  // CHECK: math.tanh %{{.+}} : f32 loc("model.act"("model.py":7:0))
  func.func @decode(%x: !h {sscc.input = "x"}) -> !h {
    %0 = torch.aten.tanh %x : !h -> !h loc("model.act"("model.py":7:0))
    return %0 : !h
  }
}

// -----

// CASE: our attention stays whole
// PASSES: lower-torch
module attributes {kv.geometry = #geometry} {
  // The bridge between torch's tensors and builtin ones disappears around it.
  // CHECK-LABEL: func.func @decode(
  // CHECK-NEXT: %[[A:.+]] = "kv.self_attention"(%arg0, %arg0, %arg0) {layer = 0 : i64, scale = 2.500000e-01 : f64}
  // CHECK-NEXT: return %[[A]]
  func.func @decode(%x: !torch.vtensor<[1,2,3,4],f32> {sscc.input = "x"}) -> !torch.vtensor<[1,2,3,4],f32> {
    %q = torch_c.to_builtin_tensor %x : !torch.vtensor<[1,2,3,4],f32> -> tensor<1x2x3x4xf32>
    %a = "kv.self_attention"(%q, %q, %q) {layer = 0 : i64, scale = 0.25 : f64}
      : (tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>) -> tensor<1x2x3x4xf32>
    %r = torch_c.from_builtin_tensor %a : tensor<1x2x3x4xf32> -> !torch.vtensor<[1,2,3,4],f32>
    return %r : !torch.vtensor<[1,2,3,4],f32>
  }
}

// -----

// CASE: an embedding without assertions
// PASSES: lower-torch
module attributes {kv.geometry = #geometry} {
  // That a token is inside the vocabulary is checked once, at entry.
  // CHECK-LABEL: func.func @decode(
  // CHECK: tensor.extract
  // CHECK-NOT: cf.assert
  func.func @decode(%w: !torch.vtensor<[9,4],f32> {sscc.weight = "w"}, %ids: !torch.vtensor<[2,1],si64> {sscc.input = "ids"}) -> !torch.vtensor<[2,1,4],f32> {
    %none = torch.constant.int -1
    %false = torch.constant.bool false
    %0 = torch.aten.embedding %w, %ids, %none, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
    return %0 : !torch.vtensor<[2,1,4],f32>
  }
}

// -----

// CASE: equal work of two layers stays twice
// PASSES: lower-torch
module attributes {kv.geometry = #geometry} {
  // Merging them would make one layer read what another computed.
  // CHECK: math.tanh
  // CHECK: math.tanh
  // CHECK: return
  func.func @decode(%x: !h {sscc.input = "x"}) -> (!h, !h) {
    %0 = torch.aten.tanh %x : !h -> !h loc("layers.0")
    %1 = torch.aten.tanh %x : !h -> !h loc("layers.1")
    return %0, %1 : !h, !h
  }
}

// -----

// CASE: an assignment to every second column leaves what was there
// PASSES: lower-torch
module attributes {kv.geometry = #geometry} {
  // Columns 1, 3 and 5 of the result are the source's 0, 1 and 2; the others are those of the tensor assigned to, which
  // is read again afterwards. An insertion would update it in place.
  // CHECK-LABEL: func.func @decode(
  // CHECK-SAME: %[[X:.+]]: tensor<2x6xf32>{{.+}}, %[[Y:.+]]: tensor<2x3xf32>
  // CHECK-NOT: tensor.insert_slice
  // CHECK: %[[WHOLE:.+]] = linalg.generic {{.+}} ins(%[[X]] : tensor<2x6xf32>)
  // CHECK: %[[ROW:.+]] = linalg.index 0
  // CHECK: %[[COLUMN:.+]] = linalg.index 1
  // CHECK: %[[PAST:.+]] = arith.subi %[[COLUMN]], %c1
  // CHECK: %[[NUMBER:.+]] = arith.floordivsi %[[PAST]], %c2
  // CHECK: arith.cmpi sge, %[[NUMBER]], %c0
  // CHECK: arith.cmpi sle, %[[NUMBER]], %c2
  // CHECK: arith.remsi %[[PAST]], %c2
  // CHECK: %[[NEW:.+]] = tensor.extract %[[Y]][%[[ROW]], %{{.+}}]
  // CHECK: arith.select %{{.+}}, %[[NEW]], %{{.+}} : f32
  // CHECK: linalg.generic {{.+}} ins(%[[WHOLE]], %[[X]] :
  func.func @decode(%x: !torch.vtensor<[2,6],f32> {sscc.input = "x"}, %y: !h {sscc.input = "y"}) -> !torch.vtensor<[2,6],f32> {
    %one = torch.constant.int 1
    %two = torch.constant.int 2
    %end = torch.constant.int 9223372036854775807
    %0 = torch.aten.slice_scatter %x, %y, %one, %one, %end, %two : !torch.vtensor<[2,6],f32>, !h, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,6],f32>
    %1 = torch.aten.add.Tensor %0, %x, %one : !torch.vtensor<[2,6],f32>, !torch.vtensor<[2,6],f32>, !torch.int -> !torch.vtensor<[2,6],f32>
    return %1 : !torch.vtensor<[2,6],f32>
  }
}

// -----

// CASE: a product reads operands as they are stored
// PASSES: lower-torch
module attributes {kv.geometry = #geometry} {
  // What was widened for a product of f32 is read as it is; sum and bias are f32, rounded once.
  // CHECK-LABEL: func.func @decode(
  // CHECK-NOT: tensor<2x4xf32>
  // CHECK: %[[T:.+]] = linalg.transpose ins(%arg1 : tensor<3x4xbf16>)
  // CHECK: linalg.matmul ins(%arg0, %[[T]] : tensor<2x4xbf16>, tensor<4x3xbf16>) outs(%{{.+}} : tensor<2x3xf32>)
  // CHECK: arith.addf
  // CHECK: arith.truncf
  func.func @decode(%x: !torch.vtensor<[2,4],bf16> {sscc.input = "x"}, %w: !torch.vtensor<[3,4],bf16> {sscc.weight = "w"}, %b: !torch.vtensor<[3],bf16> {sscc.weight = "b"}) -> !torch.vtensor<[2,3],bf16> {
    %zero = torch.constant.int 0
    %one = torch.constant.int 1
    %f32 = torch.constant.int 6
    %bf16 = torch.constant.int 15
    %order = torch.prim.ListConstruct %one, %zero : (!torch.int, !torch.int) -> !torch.list<int>
    %t = torch.aten.permute %w, %order : !torch.vtensor<[3,4],bf16>, !torch.list<int> -> !torch.vtensor<[4,3],bf16>
    %a = torch.prims.convert_element_type %x, %f32 : !torch.vtensor<[2,4],bf16>, !torch.int -> !torch.vtensor<[2,4],f32>
    %m = torch.prims.convert_element_type %t, %f32 : !torch.vtensor<[4,3],bf16>, !torch.int -> !torch.vtensor<[4,3],f32>
    %c = torch.prims.convert_element_type %b, %f32 : !torch.vtensor<[3],bf16>, !torch.int -> !torch.vtensor<[3],f32>
    %p = torch.aten.mm %a, %m : !torch.vtensor<[2,4],f32>, !torch.vtensor<[4,3],f32> -> !torch.vtensor<[2,3],f32>
    %s = torch.aten.add.Tensor %p, %c, %one : !torch.vtensor<[2,3],f32>, !torch.vtensor<[3],f32>, !torch.int -> !torch.vtensor<[2,3],f32>
    %r = torch.prims.convert_element_type %s, %bf16 : !torch.vtensor<[2,3],f32>, !torch.int -> !torch.vtensor<[2,3],bf16>
    return %r : !torch.vtensor<[2,3],bf16>
  }
}

// -----

// CASE: a product of one widened operand stays
// PASSES: lower-torch
module attributes {kv.geometry = #geometry} {
  // A router, say, whose inputs are f32.
  // CHECK-LABEL: func.func @decode(
  // CHECK: arith.extf
  // CHECK: linalg.matmul ins(%arg0, %{{.+}} : tensor<2x4xf32>, tensor<4x3xf32>)
  func.func @decode(%x: !torch.vtensor<[2,4],f32> {sscc.input = "x"}, %w: !torch.vtensor<[4,3],bf16> {sscc.weight = "w"}) -> !torch.vtensor<[2,3],f32> {
    %f32 = torch.constant.int 6
    %m = torch.prims.convert_element_type %w, %f32 : !torch.vtensor<[4,3],bf16>, !torch.int -> !torch.vtensor<[4,3],f32>
    %p = torch.aten.mm %x, %m : !torch.vtensor<[2,4],f32>, !torch.vtensor<[4,3],f32> -> !torch.vtensor<[2,3],f32>
    return %p : !torch.vtensor<[2,3],f32>
  }
}
