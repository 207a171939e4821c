// The sampler's passes over all values of a row, with the widest vectors of the machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sscc::sampling {

constexpr std::size_t kBlock = 64;  // values of a block; maxima of logits and sums of weights are kept per block
constexpr std::size_t kThresholds = 4;

// Every vector width gives the same bits. A row is `count` values at `data`, in f32 or bf16; it is treated as padded
// with minus infinity to the end of its last block, up to which `weights` and `values` are written.
struct Passes {
    // Returns the largest value, or NaN if there is one; writes the largest value of each block.
    float (*peak)(const void* data, bool bf16, std::size_t count, float* maxima);

    // Writes the row in f32.
    void (*copy)(const void* data, bool bf16, std::size_t count, float* values);

    // Writes weights[i] = 2**((row[i] - most) * scale), or 0 below 2**-124, unless `weights` is null; and the sums of
    // blocks. Returns their sum.
    double (*weigh)(const void* data, bool bf16, std::size_t count, float most, float scale, float* weights,
                    float* sums);

    // For each of kThresholds thresholds, in ascending order, computes the sum, or the number, of the values that are
    // not below it. Only every stride-th block is read, and only if its bound reaches the first threshold; no value of
    // a block exceeds its bound.
    void (*reach)(const void* data, bool bf16, std::size_t count, const float* bounds, std::size_t stride, bool counted,
                  const float* thresholds, double* sums);

    // Writes the indices, in ascending order, of values in low <= x < high; returns their number. `bounds` as for
    // reach.
    std::size_t (*between)(const void* data, bool bf16, std::size_t count, const float* bounds, float low, float high,
                           std::int32_t* indices);

    // Replaces the sums of blocks by sums of the weights that are not below `least`. Returns their sum.
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
