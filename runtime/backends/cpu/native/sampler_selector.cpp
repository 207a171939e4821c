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

// The widest vectors that the machine has, and that are no wider than `width`.
const Passes& passes_of(int width) {
#if defined(__x86_64__)
    if (width >= 16 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return width16::passes;
    }
    if (width >= 8 && __builtin_cpu_supports("avx2")) {
        return width8::passes;
    }
#endif
    static_cast<void>(width);
    return width4::passes;
}

}  // namespace

Selector::Selector(std::size_t vocabulary, int width) : passes_(passes_of(width)) {
    const auto blocks = (vocabulary + kBlock - 1) / kBlock;
    for (auto of_block : {&maxima_, &sums_}) {
        of_block->resize(blocks);
    }
    for (auto of_token : {&copy_, &values_, &weights_}) {
        of_token->resize(blocks * kBlock);
    }
    bins_.resize(blocks * kBlock);
    tokens_.resize(vocabulary);
    items_.reserve(vocabulary);
}

float Selector::peak(const Row& row) {
    row_ = row;
    most_ = passes_.peak(row.data, row.bf16, row.count, maxima_.data());
    return most_;
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
    passes_.copy(row_.data, row_.bf16, row_.count, copy_.data());
    return {copy_.data(), row_.count};
}

double Selector::normaliser() { return weigh(row_, static_cast<float>(kLog2E)); }

// Weighs the values of a row; returns the sum of the weights.
double Selector::weigh(const Row& row, float scale) {
    return passes_.weigh(row.data, row.bf16, row.count, most_, scale, weights_.data(), sums_.data());
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
    const auto target = share * total;
    // Values that weigh less than this have, all together, no more weight than what may be left out.
    const auto negligible = (1 - share) * total / static_cast<double>(row.count);
    passes_.bin(row.data, row.bf16, row.count, most_, scale, bins_.data());
    const auto each = [&](const auto& use) {  // use(index of a block's first value)
        for (std::size_t block = 0; block < row.blocks(); ++block) {
            if (static_cast<double>(sums_[block]) >= negligible) {
                use(block * kBlock);
            }
        }
    };
    // Neighbours in the row add to sums of their own, because an addition to a sum waits for the one before. The weights
    // of a bin differ by 2 % and those of the last one are 0, so that the sums are exact, in whatever order.
    constexpr std::size_t sides = 4;
    std::array<std::array<double, sides>, kBins> sums{};
    each([&](std::size_t begin) {
        for (auto i = begin; i < begin + kBlock; i += sides) {
            for (std::size_t side = 0; side < sides; ++side) {
                sums[bins_[i + side]][side] += static_cast<double>(weights_[i + side]);
            }
        }
    });
    double reached = 0, within = 0;  // the weight of the bins before the last one, and its own
    std::size_t last = kBins;
    for (std::size_t bin = 0; bin < kBins && (last == kBins || reached + within < target); ++bin) {
        const auto sum = (sums[bin][0] + sums[bin][1]) + (sums[bin][2] + sums[bin][3]);
        if (sum > 0) {
            reached += within;
            within = sum;
            last = bin;
        }
    }
    items_.clear();
    each([&](std::size_t begin) {
        using Eight = std::uint16_t __attribute__((vector_size(16)));
        for (auto i = begin; i < begin + kBlock; i += 8) {
            Eight bins;
            std::memcpy(&bins, bins_.data() + i, sizeof bins);
            const auto found = std::bit_cast<std::array<std::uint64_t, 2>>(bins == static_cast<std::uint16_t>(last));
            for (auto k = i; (found[0] | found[1]) != 0 && k < std::min(i + 8, row.count); ++k) {
                if (bins_[k] == last) {
                    items_.push_back({row[k], static_cast<std::int32_t>(k)});
                }
            }
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
    auto least = static_cast<float>(o.min_p);
    if (static_cast<double>(least) < o.min_p) {
        least = std::nextafter(least, kInfinity);
    }
    return passes_.restrict(row.data, row.bf16, row.count, last.value, std::nextafter(last.value, kInfinity),
                            static_cast<std::size_t>(last.token), least, weights_.data(), sums_.data());
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
