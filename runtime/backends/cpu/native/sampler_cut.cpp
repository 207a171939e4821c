#include "sampler_cut.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

namespace sscc::sampling {

namespace {

constexpr int kSampled = 256;  // the first two thresholds are taken from a sample of so many values
constexpr int kSorted = 128;   // once at most so many values are between the thresholds, they are sorted

// Integers in the same order as the floats that they stand for; that of -0 is directly below that of 0.
std::int64_t key(float x) {
    const auto bits = std::bit_cast<std::int32_t>(x);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}

float value(std::int64_t key) {
    const auto bits = static_cast<std::int32_t>(key);
    return std::bit_cast<float>(bits < 0 ? bits ^ 0x7fffffff : bits);
}

// A sort key that falls as x rises, so that sorting by it puts the largest value first. Adding 0 turns -0 into 0, so
// that both have the same key.
std::uint32_t falling(float x) {
    return static_cast<std::uint32_t>(std::int64_t{std::numeric_limits<std::int32_t>::max()} - key(x + 0.0f));
}

// A value's sort key (`falling`) and its index in the row. The sort is stable: of equal values, the first comes first.
struct Item {
    std::uint32_t order;
    std::int32_t index;
};

// A stable radix sort by `order`, a byte at a time. A sort by comparisons would be slower, because the processor
// mispredicts about every other comparison.
void sort(Item* items, int count, Item* other) {
    constexpr int bits = 8, size = 1 << bits;
    std::uint32_t varies = 0;
    for (int i = 1; i < count; ++i) {
        varies |= items[i].order ^ items[0].order;
    }
    const auto sorted = items;
    for (int shift = 0; shift < 32; shift += bits) {
        const auto digit = [shift](const Item& item) { return item.order >> shift & (size - 1); };
        if ((varies >> shift & (size - 1)) == 0) {  // equal in all items, as the lower half of values that were bf16 is
            continue;
        }
        std::uint16_t starts[size] = {};
        for (int i = 0; i < count; ++i) {
            ++starts[digit(items[i])];
        }
        int start = 0;
        for (auto& of_digit : starts) {
            start += std::exchange(of_digit, static_cast<std::uint16_t>(start));
        }
        for (int i = 0; i < count; ++i) {
            other[starts[digit(items[i])]++] = items[i];
        }
        std::swap(items, other);
    }
    if (items != sorted) {
        std::copy_n(items, count, sorted);
    }
}

// A threshold, given as its key, and the number and weight of the values that reach it.
struct Edge {
    std::int64_t key;
    Reached reached;
};

// The search for the cut: it lies between two thresholds, which each pass over the row brings closer together.
struct Search {
    const Passes& passes;
    const Values& of;
    const float* weights;
    double target;
    Edge low, high;

    std::int64_t inside() const { return low.reached.count - high.reached.count; }
    bool ends() const { return inside() <= kSorted || high.key - low.key <= 1; }
    double weight(std::int64_t i) const { return weights == nullptr ? 1.0 : static_cast<double>(weights[i]); }

    void narrow();
    std::pair<std::int64_t, std::int64_t> sampled(double share) const;
    std::pair<std::int64_t, std::int64_t> thresholds(int pass, bool stuck) const;
    Cut all_of_one() const;
    Cut among_few() const;
};

// Keys of two thresholds between which the cut probably is: some values above and below the cut of a sample of the row.
std::pair<std::int64_t, std::int64_t> Search::sampled(double share) const {
    constexpr int margin = kSampled / 16;
    Item sample[kSampled], other[kSampled];
    const auto count = static_cast<int>(std::min<std::int64_t>(kSampled, of.count));
    const auto stride = of.count / count;
    double total = 0;
    for (int i = 0; i < count; ++i) {
        const auto at = i * stride;
        sample[i] = {falling(of.values[at]), static_cast<std::int32_t>(at)};
        total += weight(at);
    }
    sort(sample, count, other);
    int at = 0;
    auto reached = weight(sample[0].index);
    while (at + 1 < count && reached < share * total) {
        reached += weight(sample[++at].index);
    }
    return {key(of.values[sample[std::min(at + margin, count - 1)].index]),
            key(of.values[sample[std::max(at - margin, 0)].index]) + 1};
}

// Keys of the two thresholds to try next. `stuck`: the last two left nearly as many values between them as before.
std::pair<std::int64_t, std::int64_t> Search::thresholds(int pass, bool stuck) const {
    const auto share = (target - high.reached.weight) / (low.reached.weight - high.reached.weight);
    if (pass == 0) {
        return sampled(share);
    }
    std::int32_t any = 0;
    if (stuck && passes.between(of, value(low.key), value(high.key), &any, 1) == 1) {
        const auto at = key(of.values[any]);  // many values may be equal to this one: try it alone
        return {at, at + 1};
    }
    if (pass % 4 != 0) {  // every fourth pass halves the range of keys instead, so that the search ends for any values
        const auto from = static_cast<double>(value(low.key)), to = static_cast<double>(value(high.key));
        const auto middle = to - share * (to - from), margin = (to - from) / 10;
        if (std::isfinite(margin)) {
            return {key(static_cast<float>(std::max(middle - margin, from))),
                    key(static_cast<float>(std::min(middle + margin, to)))};
        }
    }
    const auto middle = low.key + (high.key - low.key) / 2;
    return {middle, middle};
}

void Search::narrow() {
    bool stuck = false;
    for (int pass = 0; !ends(); ++pass) {
        auto [lower, upper] = thresholds(pass, stuck);
        lower = std::clamp(lower, low.key + 1, high.key - 1);
        upper = std::clamp(upper, lower, high.key - 1);
        Edge at_lower{lower, {}}, at_upper{upper, {}};
        passes.reach(of, weights, value(lower), value(upper), &at_lower.reached, &at_upper.reached);
        const auto inside_before = inside();
        if (at_upper.reached.weight >= target) {
            low = at_upper;
        } else if (at_lower.reached.weight >= target) {
            low = at_lower;
            high = at_upper;
        } else {
            high = at_lower;
        }
        stuck = pass % 4 != 3 && inside() > inside_before / 4 * 3;
    }
}

Cut Search::all_of_one() const {
    const auto count = static_cast<double>(inside());
    const auto each = (low.reached.weight - high.reached.weight) / count;
    const auto missing = target - high.reached.weight;
    const auto ties = static_cast<std::int64_t>(std::clamp(std::ceil(missing / each), 1.0, count));
    return {value(low.key), ties, ties < inside()};
}

Cut Search::among_few() const {
    std::int32_t indices[kSorted];
    const auto found = passes.between(of, value(low.key), value(high.key), indices, kSorted);
    if (found == 0) {  // sums are rounded, so the target may lie where there is no value
        return {value(low.key), of.count, false};
    }
    Item items[kSorted], other[kSorted];
    for (int i = 0; i < found; ++i) {
        items[i] = {falling(of.values[indices[i]]), indices[i]};
    }
    sort(items, found, other);
    int last = 0;
    auto reached = high.reached.weight + weight(items[0].index);
    while (last + 1 < found && reached < target) {
        reached += weight(items[++last].index);
    }
    int first = last;
    while (first > 0 && items[first - 1].order == items[last].order) {
        --first;
    }
    const auto splits = last + 1 < found && items[last + 1].order == items[last].order;
    return {of.values[items[last].index], last - first + 1, splits};
}

}  // namespace

Cut cut(const Passes& passes, const Values& of, const float* weights, double total, double target, float most) {
    const Edge low{key(-std::numeric_limits<float>::infinity()), {total, of.count}}, high{key(most + 0.0f) + 1, {0, 0}};
    if (!(total >= target)) {
        return {value(low.key), of.count, false};
    }
    Search search{passes, of, weights, target, low, high};
    search.narrow();
    return search.inside() > kSorted ? search.all_of_one() : search.among_few();
}

float above(float x) { return value(key(x + 0.0f) + 1); }

}  // namespace sscc::sampling
