// The sampler's passes over all values of a row, with the widest vectors that the machine has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sscc::sampling {

constexpr std::size_t kBlock = 64;  // values of a block; the maxima of logits and the sums of weights are by block
constexpr std::size_t kBins = 4096;

// Every width of vectors gives the same bits. A row is `count` values at `data`, in f32 or bf16; behind the last one it
// goes on with minus infinity to the end of its block, up to where `weights`, `bins` and the others are written.
struct Passes {
    // The largest value, NaN where there is one; and the largest of each block.
    float (*peak)(const void* data, bool bf16, std::size_t count, float* maxima);

    // Writes the row in f32.
    void (*copy)(const void* data, bool bf16, std::size_t count, float* values);

    // weights[i] = 2**((row[i] - most) * scale), or 0 below 2**-124; and the sums of blocks. Returns their sum.
    double (*weigh)(const void* data, bool bf16, std::size_t count, float most, float scale, float* weights,
                    float* sums);

    // bins[i] = 32 * (most - row[i]) * scale, rounded down; what is beyond is in the last of the kBins.
    void (*bin)(const void* data, bool bf16, std::size_t count, float most, float scale, std::uint16_t* bins);

    // Sets the weights to 0 that are below `least`, or of values below `lowest`, or of those equal to it behind the
    // index `last`; and writes the sums of blocks. `above` is the next f32 above `lowest`. Returns the sum of all sums.
    double (*restrict)(const void* data, bool bf16, std::size_t count, float lowest, float above, std::size_t last,
                       float least, float* weights, float* sums);
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
