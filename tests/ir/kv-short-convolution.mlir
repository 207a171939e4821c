// A convolution as captured, before its state is threaded through. B 2, H 6 channels, S 5, 3 taps.
#geometry = {sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg",
             max_context = 20 : i64}
!x = tensor<2x6x5xf32>
!w = tensor<6x1x3xf32>
!b = tensor<6xf32>

// -----

// CASE: accepted
// With a bias or without.
// CHECK: "kv.short_convolution"({{.*}}){{.*}} : (tensor<2x6x5xf32>, tensor<6x1x3xf32>) -> tensor<2x6x5xf32>
// CHECK: "kv.short_convolution"({{.*}}){{.*}} : (tensor<2x6x5xf32>, tensor<6x1x3xf32>, tensor<6xf32>) -> tensor<2x6x5xf32>
module attributes {kv.geometry = #geometry} {
  func.func @f(%x: !x, %w: !w, %b: !b) -> !x {
    %0 = "kv.short_convolution"(%x, %w) {layer = 1 : i64} : (!x, !w) -> !x
    %1 = "kv.short_convolution"(%0, %w, %b) {layer = 1 : i64} : (!x, !w, !b) -> !x
    return %1 : !x
  }
}

// -----

// CASE: channels
// A filter for each channel.
// ERROR: InputError: 'kv.short_convolution' weight is tensor<5x1x3xf32>: dimension 0 (H) is 5, expected 6
module attributes {kv.geometry = #geometry} {
  func.func @f(%x: !x, %w: tensor<5x1x3xf32>) -> !x {
    %0 = "kv.short_convolution"(%x, %w) {layer = 1 : i64} : (!x, tensor<5x1x3xf32>) -> !x
    return %0 : !x
  }
}

// -----

// CASE: filters over channels
// A channel is convolved with its own filter alone.
// ERROR: InputError: 'kv.short_convolution' weight is tensor<6x2x3xf32>: dimension 1 (1) is 2, expected 1
module attributes {kv.geometry = #geometry} {
  func.func @f(%x: !x, %w: tensor<6x2x3xf32>) -> !x {
    %0 = "kv.short_convolution"(%x, %w) {layer = 1 : i64} : (!x, tensor<6x2x3xf32>) -> !x
    return %0 : !x
  }
}

// -----

// CASE: tokens
// A result for each token.
// ERROR: InputError: 'kv.short_convolution' out is tensor<2x6x4xf32>: dimension 2 (S) is 4, expected 5
module attributes {kv.geometry = #geometry} {
  func.func @f(%x: !x, %w: !w) -> tensor<2x6x4xf32> {
    %0 = "kv.short_convolution"(%x, %w) {layer = 1 : i64} : (!x, !w) -> tensor<2x6x4xf32>
    return %0 : tensor<2x6x4xf32>
  }
}
