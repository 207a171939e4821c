// What the sampler does with one row of logits, and the arrays that it needs for that: a thread has one of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "sampler_passes.hpp"

namespace sscc {

// The options of a sequence; runtime/sampling.py says what each means and what its range is.
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

// Allocates from the beginning of a cache line on, because a load of a wide vector that crosses one costs twice.
template <class T>
struct Aligned {
    using value_type = T;
    static constexpr std::align_val_t kLine{64};

    Aligned() = default;
    template <class Other>
    Aligned(const Aligned<Other>&) {}
    T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
    void deallocate(T* at, std::size_t) { ::operator delete(at, kLine); }
    bool operator==(const Aligned&) const = default;
};
template <class T>
using Array = std::vector<T, Aligned<T>>;

// Rows are of `vocabulary` values and have maxima; `most` is a row's largest value, and finite.
class Selector {
  public:
    // Throws std::bad_alloc.
    Selector(const Passes& passes, std::int64_t vocabulary);

    // `copy` gives a copy of a row in f32, for the caller to change. `copied` then gives that copy, of `count` values,
    // as a row, with its largest value.
    std::span<float> copy(const Row& row);
    std::pair<Row, float> copied(std::int64_t count);

    std::int64_t first_largest(const Row& row, float most) const;

    // The sum of all exp(x - most).
    double normaliser(const Row& row, float most);

    // Calls use(token, value) for the `count` largest values (of equal ones the first), in the order of tokens.
    template <class Use>
    void largest(const Row& row, std::int64_t count, float most, const Use& use) {
        const auto found = keep_largest(row, count, most);
        for (std::int64_t i = 0; i < found; ++i) {
            use(tokens_[static_cast<std::size_t>(i)], values_[static_cast<std::size_t>(i)]);
        }
    }

    // Draws a token; `uniform`, in [0, 1), decides which.
    std::int64_t draw(const SamplingOptions& options, const Row& row, float most, double uniform);

    // The tokens, rising, that a draw chooses from, with their weights.
    std::vector<std::pair<std::int64_t, float>> kept(const SamplingOptions& options, const Row& row, float most);

  private:
    // What a draw chooses from. The sums of its blocks are in sums_; this is what the weights of a block follow from.
    struct Candidates {
        Row row;
        const std::int32_t* tokens;  // null where the candidates are the whole row
        float most, scale;
        double total = 0;
        Values values{};      // the values whose weights are in weights_; null where none are there
        float least = 0;      // values below it are left out,
        float least_weight = 0;  // and values with a smaller weight
    };

    Values padded(const Row& row);
    std::int64_t keep_largest(const Row& row, std::int64_t count, float most);
    Values gather(const Row& row, float least);
    Candidates candidates(const SamplingOptions& options, const Row& row, float most);
    void restrict(Candidates& of, const SamplingOptions& options);
    std::int64_t locate(const Candidates& of, double target) const;
    void block_weights(const Candidates& of, std::int64_t block, float* weights) const;

    const Passes* passes_;
    Array<float> row_, row_maxima_;  // a row in f32, padded
    Array<float> values_;            // the largest values, in the order of tokens, padded
    Array<std::int32_t> tokens_;     // the tokens of values_
    Array<float> weights_, sums_;    // weights of candidates, and their sums by block
    Array<std::int32_t> indices_;
};

}  // namespace sampling

}  // namespace sscc
