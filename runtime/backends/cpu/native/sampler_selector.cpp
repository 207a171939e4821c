#include "sampler_selector.hpp"

#include <algorithm>
#include <functional>
#include <limits>

#include "sampler_cut.hpp"

namespace sscc::sampling {

namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The smallest f32 that is not below x.
float rounded_up(double x) {
    const auto nearest = static_cast<float>(x);
    return static_cast<double>(nearest) < x ? above(nearest) : nearest;
}

Row row_of(const Values& of) { return {of.values, false, true, of.count, of.maxima}; }

// One block of a row.
Row part(const Row& row, std::int64_t block) {
    const auto begin = block * kBlock, bytes = std::int64_t{row.bf16 ? 2 : 4};
    const auto data = static_cast<const std::byte*>(row.data) + begin * bytes;
    return {data, row.bf16, row.padded, std::min<std::int64_t>(kBlock, row.count - begin), nullptr};
}

}  // namespace

Selector::Selector(const Passes& passes, std::int64_t vocabulary) : passes_(&passes) {
    const auto blocks = blocks_of(vocabulary), room = blocks * kBlock;
    for (auto of_block : {&row_maxima_, &sums_}) {
        of_block->resize(blocks);
    }
    for (auto of_token : {&row_, &values_, &weights_}) {
        of_token->resize(room);
    }
    tokens_.resize(room);
    indices_.resize(room);
}

std::span<float> Selector::copy(const Row& row) {
    passes_->copy(row, row_.data());
    return {row_.data(), static_cast<std::size_t>(row.count)};
}

std::pair<Row, float> Selector::copied(std::int64_t count) {
    Row row{row_.data(), false, true, count, row_maxima_.data()};
    const auto most = passes_->peak(row, row_maxima_.data());
    return {row, most};
}

std::int64_t Selector::first_largest(const Row& row, float most) const {
    const auto blocks = row.maxima;
    auto token = (std::find(blocks, blocks + blocks_of(row.count), most) - blocks) * kBlock;
    while (row[token] != most) {
        ++token;
    }
    return token;
}

double Selector::normaliser(const Row& row, float most) {
    return passes_->weigh(row, most, static_cast<float>(kLog2E), nullptr, nullptr, sums_.data());
}

// The row itself where it is padded, else a copy in row_.
Values Selector::padded(const Row& row) {
    if (row.padded) {
        return {static_cast<const float*>(row.data), row.count, row.maxima};
    }
    passes_->copy(row, row_.data());
    return {row_.data(), row.count, row.maxima};
}

// Puts the values that reach `least` into values_, and their tokens into tokens_.
Values Selector::gather(const Row& row, float least) {
    std::int64_t found = 0;
    float block[kBlock];
    for (std::int64_t begin = 0; begin < row.count; begin += kBlock) {
        if (row.maxima[begin / kBlock] >= least) {
            const auto of = part(row, begin / kBlock);
            passes_->copy(of, block);
            for (std::int64_t i = 0; i < of.count; ++i) {
                values_[static_cast<std::size_t>(found)] = block[i];
                tokens_[static_cast<std::size_t>(found)] = static_cast<std::int32_t>(begin + i);
                found += static_cast<int>(block[i] >= least);
            }
        }
    }
    pad(values_.data(), found);
    return {values_.data(), found, nullptr};
}

// Puts the `count` largest values of a row into values_, padded, and their tokens into tokens_, in the order of tokens.
// Returns how many there are.
std::int64_t Selector::keep_largest(const Row& row, std::int64_t count, float most) {
    const auto blocks = static_cast<std::int64_t>(blocks_of(row.count));
    const auto whole = count > blocks;
    Values from{};
    if (whole) {
        from = padded(row);
    } else {  // `count` blocks have a maximum of at least the count-th largest maximum, so as many values reach that
        const auto first = weights_.begin(), nth = first + (count - 1);
        std::copy_n(row.maxima, blocks, first);
        std::nth_element(first, nth, first + blocks, std::greater<>());
        from = gather(row, *nth);
    }
    auto kept = Cut{-kInfinity, from.count, false};
    if (from.count > count) {
        kept = cut(*passes_, from, nullptr, static_cast<double>(from.count), static_cast<double>(count), most);
    }
    const auto reached =
        passes_->between(from, kept.value, kInfinity, indices_.data(), static_cast<int>(indices_.size()));
    auto ties = kept.ties;
    std::int64_t found = 0;
    for (int i = 0; i < reached; ++i) {
        const auto at = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
        const auto x = from.values[at];
        const auto tied = x == kept.value;
        values_[static_cast<std::size_t>(found)] = x;
        tokens_[static_cast<std::size_t>(found)] = whole ? static_cast<std::int32_t>(at) : tokens_[at];
        found += static_cast<int>(!tied) | static_cast<int>(ties > 0);
        ties -= static_cast<int>(tied);
    }
    pad(values_.data(), found);
    return found;
}

Selector::Candidates Selector::candidates(const SamplingOptions& o, const Row& row, float most) {
    const auto scale = static_cast<float>(std::min(kLog2E / o.temperature, double{std::numeric_limits<float>::max()}));
    Candidates of{row, nullptr, most, scale};
    if (o.top_k > 0 && o.top_k < row.count) {
        of.row = row_of({values_.data(), keep_largest(row, o.top_k, most), nullptr});
        of.tokens = tokens_.data();
    }
    if (o.top_p < 1 || o.min_p > 0) {
        restrict(of, o);
    } else {
        of.total = passes_->weigh(of.row, most, scale, nullptr, nullptr, sums_.data());
    }
    return of;
}

// Restricts the candidates by top_p and min_p.
void Selector::restrict(Candidates& of, const SamplingOptions& o) {
    const auto& row = of.row;
    const auto copies = !row.padded;
    of.values = {copies ? row_.data() : static_cast<const float*>(row.data), row.count, row.maxima};
    const auto total =
        passes_->weigh(row, of.most, of.scale, copies ? row_.data() : nullptr, weights_.data(), sums_.data());
    of.least = -kInfinity;
    of.least_weight = rounded_up(o.min_p);
    if (o.top_p < 1) {
        const auto likely = cut(*passes_, of.values, weights_.data(), total, o.top_p * total, of.most);
        of.least = likely.value;
        if (likely.splits) {
            const auto found = passes_->between(of.values, likely.value, above(likely.value), indices_.data(),
                                                static_cast<int>(indices_.size()));
            for (auto i = likely.ties; i < found; ++i) {
                weights_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])] = 0;
            }
        }
    }
    of.total = passes_->keep(of.values, weights_.data(), of.least, of.least_weight, sums_.data());
}

std::int64_t Selector::draw(const SamplingOptions& o, const Row& row, float most, double uniform) {
    const auto of = candidates(o, row, most);
    const auto at = locate(of, uniform * of.total);
    return of.tokens == nullptr ? at : of.tokens[at];
}

std::vector<std::pair<std::int64_t, float>> Selector::kept(const SamplingOptions& o, const Row& row, float most) {
    const auto of = candidates(o, row, most);
    std::vector<std::pair<std::int64_t, float>> list;
    float weights[kBlock];
    for (std::int64_t i = 0; i < of.row.count; ++i) {
        if (i % kBlock == 0) {
            block_weights(of, i / kBlock, weights);
        }
        if (const auto weight = weights[i % kBlock]; weight > 0) {
            list.emplace_back(of.tokens == nullptr ? i : of.tokens[i], weight);
        }
    }
    return list;
}

// The weights of one block; 0 for values that are left out.
void Selector::block_weights(const Candidates& of, std::int64_t block, float* weights) const {
    float sum;
    if (of.values.values == nullptr) {
        passes_->weigh(part(of.row, block), of.most, of.scale, nullptr, weights, &sum);
        return;
    }
    const auto begin = block * kBlock;
    for (std::int64_t i = 0; i < kBlock; ++i) {
        const auto weight = weights_[static_cast<std::size_t>(begin + i)];
        weights[i] = of.values.values[begin + i] >= of.least && weight >= of.least_weight ? weight : 0;
    }
}

// The first candidate at which the running sum of the weights exceeds `target`; where it never does, the last candidate
// that has a weight.
std::int64_t Selector::locate(const Candidates& of, double target) const {
    const auto blocks = static_cast<std::int64_t>(blocks_of(of.row.count));
    double sum = 0, before = 0;  // running sums at the end and at the beginning of the latest block that has a weight
    std::int64_t chosen = 0;
    for (std::int64_t block = 0; block < blocks && !(sum > target); ++block) {
        if (sums_[static_cast<std::size_t>(block)] > 0) {
            chosen = block;
            before = sum;
            sum += static_cast<double>(sums_[static_cast<std::size_t>(block)]);
        }
    }
    float weights[kBlock];
    block_weights(of, chosen, weights);
    const auto begin = chosen * kBlock, end = std::min(begin + kBlock, of.row.count);
    auto last = begin;
    for (auto i = begin; i < end && !(sum > target && before > target); ++i) {
        if (const auto weight = weights[i - begin]; weight > 0) {
            last = i;
            before += static_cast<double>(weight);
        }
    }
    return last;
}

}  // namespace sscc::sampling
