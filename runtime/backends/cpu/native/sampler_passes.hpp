// The sampler's passes over a row of logits, and over the weights of its tokens: the same bits on every machine.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace sscc::sampling {

constexpr int kBlock = 64;  // values that have a maximum and a sum of weights of their own

// `count` values in f32 or bf16; `maxima` of its blocks may be null. `padded`: f32, and those behind the last one that
// fill up its block are minus infinity.
struct Row {
    const void* data;
    bool bf16;
    bool padded;
    std::int64_t count;
    const float* maxima;

    float operator[](std::int64_t i) const {
        return bf16 ? std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(data)[i]) << 16)
                    : static_cast<const float*>(data)[i];
    }
};

// A padded row. With `maxima`, passes leave out blocks that cannot matter.
struct Values {
    const float* values;
    std::int64_t count;
    const float* maxima;
};

struct Reached {
    double weight;
    std::int64_t count;
};

struct Passes {
    // The largest value, NaN where one is; and the largest of each block.
    float (*peak)(const Row& row, float* maxima);

    // Writes the row, padded.
    void (*copy)(const Row& row, float* values);

    // weights[i] = 2**((row[i] - most) * scale), 0 below 2**-124; sums of blocks. Returns the total. Weights fill whole
    // blocks, and are not written where `weights` is null; where `values` is not, the row is, padded.
    double (*weigh)(const Row& row, float most, float scale, float* values, float* weights, float* sums);

    // How many values reach each of two thresholds, low <= high, and their weights together (null: 1 each).
    void (*reach)(const Values& of, const float* weights, float low, float high, Reached* at_low, Reached* at_high);

    // Indices, rising, of values in low <= x < high; at most `room`. Returns how many.
    int (*between)(const Values& of, float low, float high, std::int32_t* indices, int room);

    // Sums of blocks of the weights that are not below `least_weight`, of values that are not below `least`. Returns
    // the total.
    double (*keep)(const Values& of, const float* weights, float least, float least_weight, float* sums);
};

// With vectors of 4, 8 or 16 floats: the widest ones that this CPU has, and that are no wider than `width`, or 4.
const Passes& passes(int width);

inline std::size_t blocks_of(std::int64_t count) { return static_cast<std::size_t>((count + kBlock - 1) / kBlock); }

// Fills up the last block.
void pad(float* values, std::int64_t count);

}  // namespace sscc::sampling
