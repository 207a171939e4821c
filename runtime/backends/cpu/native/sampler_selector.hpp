// What the sampler does with one row of logits, and the arrays that it needs for that: a thread has one of its own.
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

// The options of a sequence; runtime/session/sampling.py says what each means and what its range is.
struct SamplingOptions {
    double temperature = 0;  // 0 is greedy
    std::int64_t top_k = 0;  // 0: all
    double top_p = 1;
    double min_p = 0;
    double repetition_penalty = 1;
    double presence_penalty = 0;
    double frequency_penalty = 0;
    std::uint64_t seed = 0;
    std::vector<std::pair<std::int64_t, double>> logit_bias;  // token, addend; tokens rise
};

namespace sampling {

// `count` values in f32 or bf16.
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

// `peak` comes first, for each row anew; the other functions are for the row that it was called with last, and for one
// whose largest value is finite.
class Selector {
  public:
    // For rows of at most `vocabulary` values, with vectors of at most `width` values. Throws std::bad_alloc.
    Selector(std::size_t vocabulary, int width);

    // The largest value, or NaN where there is one.
    float peak(const Row& row);

    // A copy of the row in f32, for the caller to change.
    std::span<float> copy();

    // The copy, where the row that `peak` was called with last is one.
    std::span<float> copied() { return {copy_.data(), row_.count}; }

    std::int64_t first_largest() const;

    // The sum of all exp(x - the largest x).
    double normaliser();

    // Calls use(token, value) for the `count` largest values (of equal ones the first), in the order of tokens.
    template <class Use>
    void largest(std::size_t count, const Use& use) {
        const auto kept = keep_largest(count);
        for (std::size_t i = 0; i < kept.count; ++i) {
            use(tokens_[i], kept[i]);
        }
    }

    // Draws a token; `uniform`, in [0, 1), decides which.
    std::int64_t draw(const SamplingOptions& options, double uniform);

    // The tokens, rising, that a draw chooses from, with their weights.
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

    // What a search is in: the largest keys are added up, or counted. No key of a block is above its bound.
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

    // What a draw chooses from: the values that weigh at least `least`, by their weights.
    struct Candidates {
        Row row;
        bool listed = false;  // whether tokens_ has the tokens; otherwise value i is that of token i
        float least = 0, scale = 0;
        bool weighed = false;  // whether the weights are in weights_; the sums of blocks always are in sums_
        double total = 0;
    };

    using Thresholds = std::array<float, kThresholds>;  // rising
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
    float most_ = 0;                     // the largest value of the row
    std::vector<float> maxima_;          // of its blocks
    std::vector<float> copy_;            // in f32
    std::vector<float> values_;          // the largest values, in the order of tokens
    std::vector<std::int32_t> tokens_;   // of values_
    std::vector<float> weights_, sums_;
    std::vector<std::int32_t> indices_;  // of keys between two thresholds
    Items items_;                        // among which the largest are looked for
    bool tied_ = false;                  // whether all of them are equal
};

}  // namespace sampling

}  // namespace sscc
