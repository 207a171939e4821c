// Compiled without contraction (-ffp-contract=off), with vectors that every machine has and without functions of the C
// library whose rounding is its own, so that every machine gives the same bits.
#include "sampler_selector.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

namespace sscc::sampling {

namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr std::size_t kWidth = 4;
using Floats = float __attribute__((vector_size(4 * kWidth)));
using Ints = std::int32_t __attribute__((vector_size(4 * kWidth)));
using Words = std::uint32_t __attribute__((vector_size(4 * kWidth)));
using Block = std::array<Floats, kBlock / kWidth>;
using Scalars = std::array<float, kBlock>;

Block load(const float* from) {
    Block x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

// The values of one block; minus infinity behind the row's last one.
Block load(const Row& row, std::size_t block) {
    const auto begin = block * kBlock, found = std::min(kBlock, row.count - begin);
    if (!row.bf16 && found == kBlock) {
        return load(static_cast<const float*>(row.data) + begin);
    }
    std::array<std::uint16_t, kBlock> halves;
    if (row.bf16 && found == kBlock) {
        std::memcpy(&halves, static_cast<const std::uint16_t*>(row.data) + begin, sizeof halves);
        std::array<std::uint32_t, kBlock> words;
        std::transform(halves.begin(), halves.end(), words.begin(), [](std::uint32_t half) { return half << 16; });
        return std::bit_cast<Block>(words);
    }
    Scalars x;
    x.fill(-kInfinity);
    for (std::size_t i = 0; i < found; ++i) {
        x[i] = row[begin + i];
    }
    return std::bit_cast<Block>(x);
}

void store(float* to, const Block& x) { std::memcpy(to, &x, sizeof x); }

bool any(Words mask) { return (mask[0] | mask[1] | mask[2] | mask[3]) != 0; }

// Joins a block's values in the order of 16 lanes: value i with i + 16 and so on, then lane i with i + 8, with i + 4 ..
template <class Join>
float fold(Block x, const Join& join) {
    for (std::size_t i = 4; i < x.size(); ++i) {
        x[i % 4] = join(x[i % 4], x[i]);
    }
    const auto four = join(join(x[0], x[2]), join(x[1], x[3]));
    return join(join(four[0], four[2]), join(four[1], four[3]));
}

constexpr auto larger = [](auto a, auto b) { return a > b ? a : b; };

// 2**x, with a relative error of 2e-7 and exactly 1 at 0, for x <= 0; or 0 for x below -124 and for NaN.
Floats power_of_two(Floats x) {
    constexpr float magic = 12582912.0f;  // 1.5 * 2**23: adding it rounds to an integer, in the lowest bits
    const Floats shifted = x + magic, fraction = x - (shifted - magic);  // -1/2 .. 1/2
    Floats p = 0.0013264727f * fraction + 0.009671513f;
    for (const auto factor : {0.055507336f, 0.24022242f, 0.693147f, 1.0f}) {
        p = p * fraction + factor;
    }
    const Words bits = std::bit_cast<Words>(p) + (std::bit_cast<Words>(shifted) << 23);
    return std::bit_cast<Floats>(bits & std::bit_cast<Words>(x >= -124.0f));
}

}  // namespace

Selector::Selector(std::size_t vocabulary) {
    const auto blocks = (vocabulary + kBlock - 1) / kBlock;
    for (auto of_block : {&maxima_, &sums_}) {
        of_block->resize(blocks);
    }
    for (auto of_token : {&copy_, &values_, &weights_}) {
        of_token->resize(blocks * kBlock);
    }
    tokens_.resize(vocabulary);
    items_.reserve(vocabulary);
}

float Selector::peak(const Row& row) {
    row_ = row;
    most_ = -kInfinity;
    Words nan{};
    for (std::size_t block = 0; block < row.blocks(); ++block) {
        const auto values = load(row, block);
        for (const auto& x : values) {
            nan |= std::bit_cast<Words>(x != x);
        }
        maxima_[block] = fold(values, larger);
        most_ = larger(maxima_[block], most_);
    }
    return any(nan) ? std::numeric_limits<float>::quiet_NaN() : most_;
}

std::int64_t Selector::first_largest() const {
    const auto block = std::find(maxima_.begin(), maxima_.end(), most_) - maxima_.begin();
    auto token = static_cast<std::size_t>(block) * kBlock;
    while (row_[token] != most_) {
        ++token;
    }
    return static_cast<std::int64_t>(token);
}

std::span<float> Selector::copy() {
    for (std::size_t block = 0; block < row_.blocks(); ++block) {
        store(copy_.data() + block * kBlock, load(row_, block));
    }
    return {copy_.data(), row_.count};
}

double Selector::normaliser() { return weigh(row_, static_cast<float>(kLog2E)); }

// Weighs the values of a row; returns the sum of the weights.
double Selector::weigh(const Row& row, float scale) {
    double total = 0;
    for (std::size_t block = 0; block < row.blocks(); ++block) {
        auto values = load(row, block);
        for (auto& x : values) {
            x = power_of_two((x - most_) * scale);
        }
        store(weights_.data() + block * kBlock, values);
        sums_[block] = fold(values, std::plus<>());
        total += static_cast<double>(sums_[block]);
    }
    return total;
}

// Puts the `count` largest values into values_ and their tokens into tokens_, in the order of tokens.
Row Selector::keep_largest(std::size_t count) {
    auto least = -kInfinity;
    if (count <= row_.blocks()) {  // `count` blocks have a maximum of at least the count-th largest maximum
        const auto first = values_.begin(), nth = first + static_cast<std::ptrdiff_t>(count - 1);
        std::nth_element(first, nth, std::copy_n(maxima_.begin(), row_.blocks(), first), std::greater<>());
        least = *nth;
    }
    items_.clear();
    for (std::size_t block = 0; block < row_.blocks(); ++block) {
        if (maxima_[block] >= least) {
            for (auto i = block * kBlock; i < std::min((block + 1) * kBlock, row_.count); ++i) {
                if (row_[i] >= least) {
                    items_.push_back({row_[i], static_cast<std::int32_t>(i)});
                }
            }
        }
    }
    if (items_.size() > count) {
        const auto nth = items_.begin() + static_cast<std::ptrdiff_t>(count);
        std::nth_element(items_.begin(), nth, items_.end(), comes_first);
        items_.erase(nth, items_.end());
        std::sort(items_.begin(), items_.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
    }
    for (std::size_t i = 0; i < items_.size(); ++i) {
        values_[i] = items_[i].value;
        tokens_[i] = items_[i].token;
    }
    return {values_.data(), false, items_.size()};
}

// The last of the fewest values that weigh `share` of the total, the largest ones and of equal ones the first. Their
// weights are added up in bins (a weight halves over 32 of them); in the bin where the share is reached, each value is
// looked at.
Selector::Item Selector::last_of(double share, const Row& row, float scale, double total) {
    constexpr int bins = 4096;
    const auto target = share * total;
    // Values that weigh less than this have, all together, no more weight than what may be left out.
    const auto negligible = (1 - share) * total / static_cast<double>(row.count);
    const auto each = [&](const auto& use) {  // use(index, bin)
        for (std::size_t block = 0; block < row.blocks(); ++block) {
            if (static_cast<double>(sums_[block]) >= negligible) {
                const auto values = load(row, block);
                std::array<Ints, kBlock / kWidth> vectors;
                for (std::size_t i = 0; i < values.size(); ++i) {
                    const Floats at = (most_ - values[i]) * scale * 32, last = bins - 1.0f - Floats{};
                    vectors[i] = __builtin_convertvector(at < last ? at : last, Ints);  // NaN becomes the last bin
                }
                const auto of = std::bit_cast<std::array<int, kBlock>>(vectors);
                for (auto i = block * kBlock; i < std::min((block + 1) * kBlock, row.count); ++i) {
                    use(i, of[i % kBlock]);
                }
            }
        }
    };
    std::array<double, bins> sums{};
    each([&](std::size_t i, int bin) { sums[static_cast<std::size_t>(bin)] += static_cast<double>(weights_[i]); });
    double reached = 0;
    int last = -1;
    for (int bin = 0; bin < bins && (last < 0 || reached + sums[static_cast<std::size_t>(last)] < target); ++bin) {
        if (sums[static_cast<std::size_t>(bin)] > 0) {
            reached += last < 0 ? 0 : sums[static_cast<std::size_t>(last)];
            last = bin;
        }
    }
    items_.clear();
    each([&](std::size_t i, int bin) {
        if (bin == last) {
            items_.push_back({row[i], static_cast<std::int32_t>(i)});
        }
    });
    auto first = items_.begin(), end = items_.end();
    while (end - first > 1) {
        const auto middle = first + (end - first) / 2;
        std::nth_element(first, middle, end, comes_first);
        const auto more = std::accumulate(first, middle, reached, [&](double sum, const Item& item) {
            return sum + static_cast<double>(weights_[static_cast<std::size_t>(item.token)]);
        });
        if (more >= target) {
            end = middle;
        } else {
            reached = more;
            first = middle;
        }
    }
    return *first;
}

// Sets the weights to 0 that top_p and min_p leave out; returns the sum of the others.
double Selector::restrict(const SamplingOptions& o, const Row& row, float scale, double total) {
    const auto last = o.top_p < 1 ? last_of(o.top_p, row, scale, total) : Item{-kInfinity, 0};
    const auto last_token = static_cast<std::size_t>(last.token);
    const auto above = std::nextafter(last.value, kInfinity);
    auto least = static_cast<float>(o.min_p);
    if (static_cast<double>(least) < o.min_p) {
        least = std::nextafter(least, kInfinity);
    }
    double left = 0;
    for (std::size_t block = 0; block < row.blocks(); ++block) {
        const auto values = load(row, block);
        const auto at = weights_.data() + block * kBlock;
        auto weights = load(at);
        const auto lowest = block * kBlock <= last_token ? last.value : above;
        for (std::size_t i = 0; i < weights.size(); ++i) {
            const auto kept = (values[i] >= lowest) & (weights[i] >= least);
            weights[i] = std::bit_cast<Floats>(std::bit_cast<Words>(weights[i]) & std::bit_cast<Words>(kept));
        }
        store(at, weights);
        if (block == last_token / kBlock) {
            for (auto i = last_token % kBlock + 1; i < kBlock; ++i) {
                at[i] = std::bit_cast<Scalars>(values)[i] == last.value ? 0 : at[i];
            }
            weights = load(at);
        }
        sums_[block] = fold(weights, std::plus<>());
        left += static_cast<double>(sums_[block]);
    }
    return left;
}

Selector::Candidates Selector::candidates(const SamplingOptions& o) {
    const auto listed = o.top_k > 0 && static_cast<std::size_t>(o.top_k) < row_.count;
    const auto row = listed ? keep_largest(static_cast<std::size_t>(o.top_k)) : row_;
    const auto scale = static_cast<float>(std::min(kLog2E / o.temperature, double{std::numeric_limits<float>::max()}));
    const auto total = weigh(row, scale);
    return {row.count, listed, o.top_p < 1 || o.min_p > 0 ? restrict(o, row, scale, total) : total};
}

// The first candidate at which the running sum of the weights exceeds `uniform` of their total; where it never does,
// the last candidate that has a weight.
std::int64_t Selector::draw(const SamplingOptions& o, double uniform) {
    const auto of = candidates(o);
    const auto target = uniform * of.total;
    double sum = 0, before = 0;  // running sums at the end and at the beginning of the latest block that has a weight
    std::size_t chosen = 0;
    for (std::size_t block = 0; block * kBlock < of.count && !(sum > target); ++block) {
        if (sums_[block] > 0) {
            chosen = block;
            before = sum;
            sum += static_cast<double>(sums_[block]);
        }
    }
    auto last = chosen * kBlock;
    for (auto i = last; i < (chosen + 1) * kBlock && !(sum > target && before > target); ++i) {
        if (weights_[i] > 0) {
            last = i;
            before += static_cast<double>(weights_[i]);
        }
    }
    return token(of, last);
}

std::vector<std::pair<std::int64_t, float>> Selector::kept(const SamplingOptions& o) {
    const auto of = candidates(o);
    std::vector<std::pair<std::int64_t, float>> list;
    for (std::size_t i = 0; i < of.count; ++i) {
        if (weights_[i] > 0) {
            list.emplace_back(token(of, i), weights_[i]);
        }
    }
    return list;
}

}  // namespace sscc::sampling
