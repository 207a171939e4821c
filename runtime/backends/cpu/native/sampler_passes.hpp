// The sampler's passes over all values of a row, with the widest vectors that the machine has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sscc::sampling {

constexpr std::size_t kBlock = 64;  // values of a block; the maxima of logits and the sums of weights are by block
constexpr std::size_t kThresholds = 4;

// Every width of vectors gives the same bits. A row is `count` values at `data`, in f32 or bf16; behind the last one it
// goes on with minus infinity to the end of its block, up to where `weights` and `values` are written.
struct Passes {
    // The largest value, NaN where there is one; and the largest of each block.
    float (*peak)(const void* data, bool bf16, std::size_t count, float* maxima);

    // Writes the row in f32.
    void (*copy)(const void* data, bool bf16, std::size_t count, float* values);

    // weights[i] = 2**((row[i] - most) * scale), or 0 below 2**-124; and the sums of blocks. Returns their sum. The
    // weights are not written where `weights` is null.
    double (*weigh)(const void* data, bool bf16, std::size_t count, float most, float scale, float* weights,
                    float* sums);

    // For each of kThresholds thresholds, rising, the sum of the values that are not below it, or how many they are.
    // Only every stride-th block is looked at, and of them those whose bound reaches the first threshold; no value of a
    // block is above its bound.
    void (*reach)(const void* data, bool bf16, std::size_t count, const float* bounds, std::size_t stride, bool counted,
                  const float* thresholds, double* sums);

    // Writes the indices, rising, of values in low <= x < high; returns how many. `bounds` as for reach.
    std::size_t (*between)(const void* data, bool bf16, std::size_t count, const float* bounds, float low, float high,
                           std::int32_t* indices);

    // The sums of blocks of the weights that are not below `least`, in place of those of all. Returns their sum.
    double (*restrict)(const float* weights, std::size_t count, float least, float* sums);
};

// For vectors of 4, 8 and 16 values. The latter two exist on x86-64 only, where they need AVX2 and AVX-512.
namespace width4 {
extern const Passes passes;
}
namespace width8 {
extern const Passes passes;
}
namespace width16 {
extern const Passes passes;
}

}  // namespace sscc::sampling
