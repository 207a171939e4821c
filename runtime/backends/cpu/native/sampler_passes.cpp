// Compiled without contraction (-ffp-contract=off), with a fixed number of partial sums and without the C library's
// functions, so that every machine gives the same bits.
#include "sampler_passes.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sscc::sampling {

namespace {

constexpr int kLanes = 16;  // partial sums
constexpr float kLeastExponent = -124.0f;

template <class Element>
constexpr Element kLeast = 0xff80;  // minus infinity in bf16
template <>
constexpr float kLeast<float> = -std::numeric_limits<float>::infinity();

namespace narrow {
#define SSCC_WIDTH 4
#define SSCC_TARGET
#include "sampler_passes.inc"
#undef SSCC_WIDTH
#undef SSCC_TARGET
}  // namespace narrow

#if defined(__x86_64__)
namespace avx2 {
#define SSCC_WIDTH 8
#define SSCC_TARGET __attribute__((target("avx2")))
#include "sampler_passes.inc"
#undef SSCC_WIDTH
#undef SSCC_TARGET
}  // namespace avx2

namespace avx512 {
#define SSCC_WIDTH 16
#define SSCC_TARGET __attribute__((target("avx2,avx512f,avx512dq,avx512bw,avx512vl")))
#include "sampler_passes.inc"
#undef SSCC_WIDTH
#undef SSCC_TARGET
}  // namespace avx512
#endif

}  // namespace

const Passes& passes(int width) {
#if defined(__x86_64__)
    if (width >= 16 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        return avx512::kPasses;
    }
    if (width >= 8 && __builtin_cpu_supports("avx2")) {
        return avx2::kPasses;
    }
#endif
    static_cast<void>(width);
    return narrow::kPasses;
}

void pad(float* values, std::int64_t count) {
    const auto end = static_cast<std::int64_t>(blocks_of(count)) * kBlock;
    std::fill(values + count, values + end, kLeast<float>);
}

}  // namespace sscc::sampling
