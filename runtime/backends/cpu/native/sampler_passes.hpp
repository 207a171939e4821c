// The sampler's passes over a row of logits, and over the weights of its tokens: the same bits on every machine.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace sscc::sampling {

constexpr int kBlock = 64;  // values of a block; each block has a maximum and a sum of weights of its own

// `count` values in f32 or bf16; `maxima`, of its blocks, may be null. `padded`: the values are f32, and minus infinity
// follows the last one up to the end of its block.
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
    // Returns the largest value, or NaN where there is one, and writes the largest value of each block.
    float (*peak)(const Row& row, float* maxima);

    // Writes the row, padded.
    void (*copy)(const Row& row, float* values);

    // weights[i] = 2**((row[i] - most) * scale), or 0 below 2**-124; sums[b] is the sum of block b. Returns the total.
    // Weights fill whole blocks. They are not written where `weights` is null. The row is written to `values`, padded,
    // unless that is null.
    double (*weigh)(const Row& row, float most, float scale, float* values, float* weights, float* sums);

    // The number of values that reach each of two thresholds, low <= high, and the sum of their weights (null: 1 each).
    void (*reach)(const Values& of, const float* weights, float low, float high, Reached* at_low, Reached* at_high);

    // Indices, rising, of values in low <= x < high; at most `room`. Returns how many.
    int (*between)(const Values& of, float low, float high, std::int32_t* indices, int room);

    // sums[b] is the sum of the weights in block b that are at least `least_weight` and belong to values of at least
    // `least`. Returns the total.
    double (*keep)(const Values& of, const float* weights, float least, float least_weight, float* sums);
};

// The passes with vectors of 4, 8 or 16 floats: the widest that this CPU has, and no wider than `width`; at least 4.
const Passes& passes(int width);

inline std::size_t blocks_of(std::int64_t count) { return static_cast<std::size_t>((count + kBlock - 1) / kBlock); }

// Writes minus infinity behind the last value, up to the end of its block.
void pad(float* values, std::int64_t count);

}  // namespace sscc::sampling
