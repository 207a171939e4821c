#include "sampler_selector.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace sscc::sampling {

namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLeastWeight = 0x1p-124f;
constexpr double kFew = 512;  // maximum number of values between two thresholds that are listed individually

// Floats as integers with the same order; -0 is directly below 0.
std::int64_t order(float x) {
    const auto bits = std::bit_cast<std::int32_t>(x);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}

float in_order(std::int64_t at) {
    const auto bits = static_cast<std::int32_t>(at);
    return std::bit_cast<float>(bits < 0 ? bits ^ 0x7fffffff : bits);
}

float above(float x) { return in_order(order(x + 0.0f) + 1); }

// Returns the widest vectors of the machine that are no wider than `width`.
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
    tokens_.resize(vocabulary);
    indices_.resize(blocks * kBlock);
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

double Selector::normaliser() { return weigh(row_, static_cast<float>(kLog2E), nullptr, sums_.data()); }

double Selector::weigh(const Row& row, float scale, float* weights, float* sums) const {
    return passes_.weigh(row.data, row.bf16, row.count, most_, scale, weights, sums);
}

Selector::Sums Selector::reach(const Keys& keys, std::size_t stride, const Thresholds& thresholds) const {
    Sums sums;
    passes_.reach(keys.row.data, keys.row.bf16, keys.row.count, keys.bounds, stride, keys.counted, thresholds.data(),
                  sums.data());
    return sums;
}

// Moves the edges together until few keys, or only equal ones, are between them, while the sum of the keys is below
// `target` at one edge and not at the other. All sums are over every stride-th block. With a guess of the edges, the
// first thresholds are the guess and points as far again on both sides. Then every other pass divides the interval
// evenly in the order of floats, which converges quickly for any keys; the remaining passes try points near the target
// that would be exact for evenly distributed keys.
void Selector::narrow(const Keys& keys, std::size_t stride, double target, Edge& low, Edge& high,
                      std::optional<std::pair<float, float>> guess) const {
    for (int pass = 0;; ++pass) {
        const auto first = order(low.key), span = order(high.key) - first;
        const auto inside = (low.sum - high.sum) / (keys.counted ? 1 : static_cast<double>(low.key));
        if (span <= 1 || inside * static_cast<double>(stride) <= kFew) {
            return;
        }
        const auto step = guess ? guess->second - guess->first : (high.key - low.key) / 16;
        const auto share = static_cast<float>((target - high.sum) / (low.sum - high.sum));
        const auto from = guess ? guess->first - step : high.key - share * (high.key - low.key) - 1.5f * step;
        const auto linear = std::isfinite(step) && (guess || pass % 2 != 0);
        Thresholds thresholds;
        for (std::size_t i = 0; i < kThresholds; ++i) {
            const auto at = linear ? order(from + static_cast<float>(i) * step)
                                   : first + span * static_cast<std::int64_t>(i + 1) / std::int64_t{kThresholds + 1};
            thresholds[i] = in_order(std::clamp(at, first + 1, first + span - 1));
        }
        guess.reset();
        const auto sums = reach(keys, stride, thresholds);
        for (std::size_t i = 0; i < kThresholds; ++i) {
            if (sums[i] < target) {
                high = {thresholds[i], sums[i]};
                break;
            }
            low = {thresholds[i], sums[i]};
        }
    }
}

// Moves the edges together around the last of the fewest largest keys whose sum reaches `target`. A sample of the
// blocks, which costs little, gives the starting interval.
void Selector::search(const Keys& keys, double target, Edge& low, Edge& high) const {
    constexpr std::size_t stride = 16;
    if (keys.row.blocks() < 4 * stride) {
        return narrow(keys, 1, target, low, high, {});
    }
    const auto sums = reach(keys, stride, {low.key, high.key, high.key, high.key});
    Edge sampled_low{low.key, sums[0]}, sampled_high{high.key, 0};
    narrow(keys, stride, target / low.sum * sums[0], sampled_low, sampled_high, {});
    narrow(keys, 1, target, low, high, std::pair(sampled_low.key, sampled_high.key));
}

// Writes the `count` largest values to values_ and their tokens to tokens_, in the order of tokens.
Row Selector::keep_largest(std::size_t count) {
    const Keys keys{row_, maxima_.data(), true};
    Edge low{-kInfinity, static_cast<double>(row_.count)}, high{above(most_), 0};
    if (count <= row_.blocks()) {  // `count` blocks have a maximum that is at least the count-th largest maximum
        const auto first = values_.begin(), nth = first + static_cast<std::ptrdiff_t>(count - 1);
        std::nth_element(first, nth, std::copy_n(maxima_.begin(), row_.blocks(), first), std::greater<>());
        low.key = *nth;
    } else if (count < row_.count) {
        search(keys, static_cast<double>(count), low, high);
    }
    collect(keys, low.key, high.key, row_);
    auto last = Item{-kInfinity, std::numeric_limits<std::int32_t>::max()};
    if (const auto missing = count - static_cast<std::size_t>(high.sum); missing < items_.size()) {
        const auto nth = items_.begin() + static_cast<std::ptrdiff_t>(missing - 1);
        select(items_.begin(), nth, items_.end());
        last = *nth;
    }
    const auto found = passes_.between(row_.data, row_.bf16, row_.count, maxima_.data(), low.key, kInfinity,
                                       indices_.data());
    std::size_t kept = 0;
    for (std::size_t i = 0; i < found; ++i) {
        const Item item{row_[static_cast<std::size_t>(indices_[i])], indices_[i]};
        values_[kept] = item.value;
        tokens_[kept] = item.token;
        kept += (item.value > last.value) | ((item.value == last.value) & (item.token <= last.token));
    }
    return {values_.data(), false, kept};
}

// Writes the `values` of keys in low <= x < high to items_, in order.
void Selector::collect(const Keys& keys, float low, float high, const Row& values) {
    const auto found = passes_.between(keys.row.data, keys.row.bf16, keys.row.count, keys.bounds, low, high,
                                       indices_.data());
    items_.resize(found);
    for (std::size_t i = 0; i < found; ++i) {
        items_[i] = {values[static_cast<std::size_t>(indices_[i])], indices_[i]};
    }
    tied_ = std::all_of(items_.begin(), items_.end(), [&](const Item& item) { return item.value == items_[0].value; });
}

// Like std::nth_element. If all values are equal, they are in order already.
void Selector::select(Items::iterator first, Items::iterator nth, Items::iterator end) const {
    if (!tied_) {
        std::nth_element(first, nth, end, comes_first);
    }
}

// Removes all but the fewest values whose weights reach `share` of the total: the largest values, and among equal ones
// the first. A removed value has a weight below the returned bound, or its weight is set to 0.
float Selector::cut(double share, const Row& row, double total) {
    const auto target = share * total;
    // Values that weigh less than this have together at most the weight that may be removed.
    const auto negligible = (1 - share) * total / static_cast<double>(row.count);
    Edge low{std::max(static_cast<float>(negligible), kLeastWeight), total}, high{above(1), 0};
    const Keys keys{{weights_.data(), false, row.count}, sums_.data(), false};
    search(keys, target, low, high);
    // A larger value may weigh less than a smaller one, because both are rounded.
    constexpr float rounding = 2e-6f;
    const auto least = low.key * (1 - rounding), most = high.key * (1 + rounding);
    collect(keys, least, most, row);
    const auto weight = [&](const Item& item) { return weights_[static_cast<std::size_t>(item.token)]; };
    auto reached = high.sum;
    for (const auto& item : items_) {
        reached -= weight(item) >= high.key ? static_cast<double>(weight(item)) : 0.0;
    }
    auto first = items_.begin(), end = items_.end();
    while (end - first > 1) {
        const auto middle = first + (end - first) / 2;
        select(first, middle, end);
        const auto more = std::accumulate(first, middle, reached, [&](double sum, const Item& item) {
            return sum + static_cast<double>(weight(item));
        });
        if (more >= target) {
            end = middle;
        } else {
            reached = more;
            first = middle;
        }
    }
    for (auto item = end; item < items_.end(); ++item) {
        weights_[static_cast<std::size_t>(item->token)] = 0;
    }
    return least;
}

// Writes the weights if `weighed`, or if candidates depend on them.
Selector::Candidates Selector::candidates(const SamplingOptions& o, bool weighed) {
    const auto restricts = o.top_p < 1 || o.min_p > 0;
    Candidates of{row_};
    of.listed = o.top_k > 0 && static_cast<std::size_t>(o.top_k) < row_.count;
    if (of.listed) {
        of.row = keep_largest(static_cast<std::size_t>(o.top_k));
    }
    of.weighed = weighed || restricts;
    of.scale = static_cast<float>(std::min(kLog2E / o.temperature, double{std::numeric_limits<float>::max()}));
    of.total = weigh(of.row, of.scale, of.weighed ? weights_.data() : nullptr, sums_.data());
    of.least = o.top_p < 1 ? cut(o.top_p, of.row, of.total) : kLeastWeight;
    if (restricts) {
        const auto least = static_cast<float>(o.min_p);
        of.least = std::max(of.least, static_cast<double>(least) < o.min_p ? above(least) : least);
        of.total = passes_.restrict(weights_.data(), of.row.count, of.least, sums_.data());
    }
    return of;
}

// Returns the first candidate at which the running sum of the weights exceeds `uniform` of their total; if none does,
// the last candidate with a weight.
std::int64_t Selector::draw(const SamplingOptions& o, double uniform) {
    const auto of = candidates(o, false);
    const auto target = uniform * of.total;
    double sum = 0, before = 0;  // running sums at the end and at the start of the latest block with a weight
    std::size_t chosen = 0;
    for (std::size_t block = 0; block < of.row.blocks() && !(sum > target); ++block) {
        if (sums_[block] > 0) {
            chosen = block;
            before = sum;
            sum += static_cast<double>(sums_[block]);
        }
    }
    const auto begin = chosen * kBlock;
    if (!of.weighed) {
        weigh(of.row.block(chosen), of.scale, weights_.data() + begin, &sums_[chosen]);
    }
    auto last = begin;
    for (auto i = begin; i < begin + kBlock && !(sum > target && before > target); ++i) {
        if (weights_[i] >= of.least) {
            last = i;
            before += static_cast<double>(weights_[i]);
        }
    }
    return token(of, last);
}

std::vector<std::pair<std::int64_t, float>> Selector::kept(const SamplingOptions& o) {
    const auto of = candidates(o, true);
    std::vector<std::pair<std::int64_t, float>> list;
    for (std::size_t i = 0; i < of.row.count; ++i) {
        if (weights_[i] >= of.least) {
            list.emplace_back(token(of, i), weights_[i]);
        }
    }
    return list;
}

}  // namespace sscc::sampling
