// The sampler's work on one row of logits, with the arrays that it needs; one selector per thread.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sampler_passes.hpp"

namespace sscc {

// The options of a sequence; runtime/session/sampling.py defines their meanings and ranges.
struct SamplingOptions {
    double temperature = 0;  // 0 is greedy
    std::int64_t top_k = 0;  // 0: all
    double top_p = 1;
    double min_p = 0;
    double repetition_penalty = 1;
    double presence_penalty = 0;
    double frequency_penalty = 0;
    std::uint64_t seed = 0;
    std::vector<std::pair<std::int64_t, double>> logit_bias;  // token, addend; in ascending order of tokens
};

namespace sampling {

// A row of `count` values in f32 or bf16.
struct Row {
    const void* data;
    bool bf16;
    std::size_t count;

    float operator[](std::size_t i) const {
        return bf16 ? std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(data)[i]) << 16)
                    : static_cast<const float*>(data)[i];
    }
    std::size_t blocks() const { return (count + kBlock - 1) / kBlock; }
    Row block(std::size_t at) const {
        const auto begin = at * kBlock;
        return {static_cast<const std::byte*>(data) + begin * (bf16 ? 2 : 4), bf16, std::min(kBlock, count - begin)};
    }
};

// Call `peak` first for each row; the other functions work on the row of its last call, whose largest value must be
// finite.
class Selector {
  public:
    // For rows of at most `vocabulary` values, with vectors of at most `width` values. Throws std::bad_alloc.
    Selector(std::size_t vocabulary, int width);

    // Returns the largest value, or NaN if there is one.
    float peak(const Row& row);

    // Returns a copy of the row in f32, which the caller may change.
    std::span<float> copy();

    // Returns the copy if it is the row of the last call of `peak`.
    std::span<float> copied() { return {copy_.data(), row_.count}; }

    std::int64_t first_largest() const;

    // Returns the sum of all exp(x - the largest x).
    double normaliser();

    // Calls use(token, value) for the `count` largest values (among equal ones the first), in the order of tokens.
    template <class Use>
    void largest(std::size_t count, const Use& use) {
        const auto kept = keep_largest(count);
        for (std::size_t i = 0; i < kept.count; ++i) {
            use(tokens_[i], kept[i]);
        }
    }

    // Draws a token, which `uniform` in [0, 1) determines.
    std::int64_t draw(const SamplingOptions& options, double uniform);

    // Returns the tokens, in ascending order, that a draw chooses from, with their weights.
    std::vector<std::pair<std::int64_t, float>> kept(const SamplingOptions& options);

  private:
    struct Item {
        float value;
        std::int32_t token;  // or another index
    };
    using Items = std::vector<Item>;
    static bool comes_first(const Item& a, const Item& b) {
        return a.value != b.value ? a.value > b.value : a.token < b.token;
    }

    // The values that a search works on: the largest keys are summed, or counted. No key of a block exceeds its bound.
    struct Keys {
        Row row;
        const float* bounds;
        bool counted;
    };

    // A threshold, and the sum of the keys that are not below it.
    struct Edge {
        float key;
        double sum;
    };

    // The candidates of a draw: the values that weigh at least `least`, drawn by weight.
    struct Candidates {
        Row row;
        bool listed = false;  // true if tokens_ has the tokens; otherwise value i is for token i
        float least = 0, scale = 0;
        bool weighed = false;  // true if weights_ has the weights; sums_ always has the sums of blocks
        double total = 0;
    };

    using Thresholds = std::array<float, kThresholds>;  // in ascending order
    using Sums = std::array<double, kThresholds>;

    double weigh(const Row& row, float scale, float* weights, float* sums) const;
    Sums reach(const Keys& keys, std::size_t stride, const Thresholds& thresholds) const;
    void narrow(const Keys& keys, std::size_t stride, double target, Edge& low, Edge& high,
                std::optional<std::pair<float, float>> guess) const;
    void search(const Keys& keys, double target, Edge& low, Edge& high) const;
    void collect(const Keys& keys, float low, float high, const Row& values);
    void select(Items::iterator first, Items::iterator nth, Items::iterator end) const;
    Row keep_largest(std::size_t count);
    float cut(double share, const Row& row, double total);
    Candidates candidates(const SamplingOptions& options, bool weighed);
    std::int64_t token(const Candidates& of, std::size_t i) const {
        return of.listed ? tokens_[i] : static_cast<std::int64_t>(i);
    }

    const Passes& passes_;
    Row row_{};
    float most_ = 0;                     // largest value of the row
    std::vector<float> maxima_;          // largest value of each block
    std::vector<float> copy_;            // the row in f32
    std::vector<float> values_;          // the largest values, in the order of tokens
    std::vector<std::int32_t> tokens_;   // tokens of values_
    std::vector<float> weights_, sums_;
    std::vector<std::int32_t> indices_;  // indices of keys between two thresholds
    Items items_;                        // values that are searched for the largest
    bool tied_ = false;                  // true if all of them are equal
};

}  // namespace sampling

}  // namespace sscc
