// A load brings a tensor, or a tile of one, into a stream of the same type.
!t = tensor<2x8xf32>

// -----

// CASE: accepted
// The stream has the source's type; what people call it is an attribute.
// CHECK: %[[TILE:.+]] = tensor.extract_slice
// CHECK-NEXT: "df.load"(%[[TILE]]) {df.stage = "w"} : (tensor<2x4xf32>) -> tensor<2x4xf32>
func.func @f(%t: !t, %i: index) -> tensor<2x4xf32> {
  %0 = tensor.extract_slice %t[0, %i] [2, 4] [1, 1] : !t to tensor<2x4xf32>
  %1 = "df.load"(%0) {df.stage = "w"} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}

// -----

// CASE: another shape
// A load moves; it does not reshape.
// ERROR: InputError: 'df.load' stream is tensor<16xf32>, expected source's type tensor<2x8xf32>
func.func @f(%t: !t) -> tensor<16xf32> {
  %0 = "df.load"(%t) {df.stage = "w"} : (!t) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// -----

// CASE: another element type
// Nor does it round.
// ERROR: InputError: 'df.load' stream is tensor<2x8xbf16>, expected source's type tensor<2x8xf32>
func.func @f(%t: !t) -> tensor<2x8xbf16> {
  %0 = "df.load"(%t) {df.stage = "w"} : (!t) -> tensor<2x8xbf16>
  return %0 : tensor<2x8xbf16>
}

// -----

// CASE: a scalar
// Streams carry tensors.
// ERROR: InputError: expected base type 'builtin.tensor' but got 'builtin.index'
func.func @f(%i: index) -> index {
  %0 = "df.load"(%i) {df.stage = "w"} : (index) -> index
  return %0 : index
}

// -----

// CASE: two operands
// One source each.
// ERROR: InputError: op expects exactly 1 operands, but got 2
func.func @f(%t: !t) -> !t {
  %0 = "df.load"(%t, %t) {df.stage = "w"} : (!t, !t) -> !t
  return %0 : !t
}

// -----

// CASE: another operation of the dialect
// There is no store: what is updated in memory is a result of the stage that does it.
// ERROR: InputError: unregistered operation 'df.store' found in dialect ('df') that does not allow unknown operations
func.func @f(%t: !t) -> !t {
  %0 = "df.store"(%t) : (!t) -> !t
  return %0 : !t
}
