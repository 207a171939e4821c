// The definition of what is picked is in runtime/sampling.py. Compiled without contraction (-ffp-contract=off), with a
// fixed number of partial sums and without the C library's functions, so that every machine picks the same.
#include "sampler.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <tuple>

#include "errors.hpp"

namespace sscc {

namespace sampling {

constexpr int kBlock = 64;  // values that have a maximum and a sum of weights of their own
constexpr int kLanes = 16;  // partial sums
constexpr float kLeastExponent = -124.0f;
constexpr double kLog2E = 1.4426950408889634;

// f32 values in whole blocks; `maxima` of its blocks may be null.
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
    float (*peak_f32)(const float* row, std::int64_t n, float* maxima);
    float (*peak_bf16)(const std::uint16_t* row, std::int64_t n, float* maxima);
    double (*weigh)(const Values& of, float most, float scale, float* weights, float* sums);
    void (*reach)(const Values& of, const float* weights, float low, float high, Reached* at_low, Reached* at_high);
    int (*between)(const Values& of, float low, float high, std::int32_t* indices, int room);
    double (*keep)(const Values& of, float least, float least_weight, float* weights, float* sums);
};

namespace {

namespace narrow {
#define SSCC_WIDTH 4
#define SSCC_TARGET
#include "sampler_passes.inc"
#undef SSCC_WIDTH
#undef SSCC_TARGET
}  // namespace narrow

#if defined(__x86_64__)
namespace avx2 {
#define SSCC_WIDTH 8
#define SSCC_TARGET __attribute__((target("avx2")))
#include "sampler_passes.inc"
#undef SSCC_WIDTH
#undef SSCC_TARGET
}  // namespace avx2
#endif

const Passes& passes(bool wide) {
#if defined(__x86_64__)
    if (wide && __builtin_cpu_supports("avx2")) {
        return avx2::kPasses;
    }
#endif
    static_cast<void>(wide);
    return narrow::kPasses;
}

float widen(std::uint16_t bf16) { return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16); }

// Floats in their order as integers; -0 directly below 0.
std::int64_t key(float x) {
    const auto bits = std::bit_cast<std::int32_t>(x);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}

float value(std::int64_t key) {
    const auto bits = static_cast<std::int32_t>(key);
    return std::bit_cast<float>(bits < 0 ? bits ^ 0x7fffffff : bits);
}

// What a logit becomes: x in f32, the largest f32 of its sign beyond; minus infinity stays.
float changed(float logit, double x) {
    constexpr double most = std::numeric_limits<float>::max();
    return std::isinf(logit) ? logit : static_cast<float>(std::clamp(x, -most, most));
}

// The next f32 above x.
float above(float x) { return value(key(x + 0.0f) + 1); }

// The smallest f32 that is not below x.
float rounded_up(double x) {
    const auto nearest = static_cast<float>(x);
    return static_cast<double>(nearest) < x ? above(nearest) : nearest;
}

// The natural logarithm of x >= 1, to 1e-15.
double logarithm(double x) {
    int exponent = 0;
    auto m = std::frexp(x, &exponent);  // 0.5 .. 1
    if (m < 0.70710678118654752) {
        m *= 2;
        --exponent;
    }
    const auto s = (m - 1) / (m + 1), square = s * s;  // log m = 2 artanh s
    double series = 0;
    for (int power = 23; power >= 1; power -= 2) {
        series = series * square + 1.0 / power;
    }
    return exponent * 0.69314718055994531 + 2 * s * series;
}

// One call at a time.
class Busy {
  public:
    explicit Busy(std::atomic<bool>& flag) : flag_(flag) {
        if (flag.exchange(true)) {
            throw UsageError("the sampler is in use by another thread");
        }
    }
    ~Busy() { flag_ = false; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

  private:
    std::atomic<bool>& flag_;
};

std::size_t blocks_of(std::int64_t count) { return static_cast<std::size_t>((count + kBlock - 1) / kBlock); }

// Keys of two thresholds between which the cut probably is: around that of a sample.
std::pair<std::int64_t, std::int64_t> guess(const Values& of, const float* weights, double share) {
    constexpr int room = 256, margin = room / 16;
    std::pair<float, float> sample[room];
    const auto sampled = static_cast<int>(std::min<std::int64_t>(room, of.count));
    const auto stride = of.count / sampled;
    double weight = 0;
    for (int i = 0; i < sampled; ++i) {
        const auto at = i * stride;
        sample[i] = {of.values[at], weights == nullptr ? 1.0f : weights[at]};
        weight += static_cast<double>(sample[i].second);
    }
    std::sort(sample, sample + sampled, [](const auto& a, const auto& b) { return a.first > b.first; });
    int at = 0;
    auto reached = static_cast<double>(sample[0].second);
    while (at + 1 < sampled && reached < share * weight) {
        reached += static_cast<double>(sample[++at].second);
    }
    return {key(sample[std::min(at + margin, sampled - 1)].first), key(sample[std::max(at - margin, 0)].first) + 1};
}

// Fills up the last block.
void pad(float* values, std::int64_t count) {
    const auto end = static_cast<std::int64_t>(blocks_of(count)) * kBlock;
    std::fill(values + count, values + end, -std::numeric_limits<float>::infinity());
}

}  // namespace

}  // namespace sampling

using namespace sampling;

// Philox4x64-10 (Salmon et al., SC 2011), counted as numpy does: four numbers a block, the first block is 1.
double uniform(std::uint64_t seed, std::uint64_t index) {
    __extension__ using Wide = unsigned __int128;
    std::uint64_t c[4] = {index / 4 + 1, 0, 0, 0};
    std::uint64_t key0 = seed, key1 = 0;
    for (int round = 0; round < 10; ++round) {
        const auto a = static_cast<Wide>(0xd2e7470ee14c6c93u) * c[0], b = static_cast<Wide>(0xca5a826395121157u) * c[2];
        const std::uint64_t next[4] = {static_cast<std::uint64_t>(b >> 64) ^ c[1] ^ key0, static_cast<std::uint64_t>(b),
                                       static_cast<std::uint64_t>(a >> 64) ^ c[3] ^ key1, static_cast<std::uint64_t>(a)};
        std::copy_n(next, 4, c);
        key0 += 0x9e3779b97f4a7c15u;
        key1 += 0xbb67ae8584caa73bu;
    }
    return static_cast<double>(c[index % 4] >> 11) * 0x1p-53;
}

bool Sampler::Slot::penalises() const {
    return options.repetition_penalty != 1 || options.presence_penalty != 0 || options.frequency_penalty != 0;
}

Sampler::Sampler(std::int64_t slots, std::int64_t vocabulary, bool wide) : passes_(&passes(wide)) {
    if (slots < 1) {
        throw UsageError("a sampler of " + std::to_string(slots) + " slots");
    }
    if (vocabulary < 1 || vocabulary > std::numeric_limits<std::int32_t>::max() - kBlock) {
        throw UsageError("a sampler of " + std::to_string(vocabulary) + " tokens");
    }
    const auto blocks = blocks_of(vocabulary), room = blocks * kBlock;
    vocabulary_ = vocabulary;
    blocks_ = static_cast<std::int64_t>(blocks);
    slots_.resize(static_cast<std::size_t>(slots));
    peaks_.resize(slots_.size());
    maxima_.resize(slots_.size() * blocks);
    for (auto of_block : {&row_maxima_, &sums_}) {
        of_block->resize(blocks);
    }
    for (auto of_token : {&row_, &values_, &weights_}) {
        of_token->resize(room);
    }
    tokens_.resize(room);
    indices_.resize(room);
}

void Sampler::check_slot(std::int64_t slot) const {
    if (slot < 0 || slot >= slots()) {
        throw UsageError("slot " + std::to_string(slot) + " does not exist, the sampler has slots 0 .. " +
                         std::to_string(slots() - 1));
    }
}

void Sampler::check_started(std::int64_t slot) const {
    check_slot(slot);
    if (!slots_[static_cast<std::size_t>(slot)].started) {
        throw UsageError("slot " + std::to_string(slot) + " is to pick a token, but no sequence was started in it");
    }
}

void Sampler::check_token(std::int64_t token, const char* of) const {
    if (token < 0 || token >= vocabulary_) {
        throw UsageError("token " + std::to_string(token) + " of " + of + " is out of range, the vocabulary is 0 .. " +
                         std::to_string(vocabulary_ - 1));
    }
}

void Sampler::start(std::int64_t index, SamplingOptions options, std::span<const std::int64_t> prompt,
                    std::optional<std::int64_t> logprobs) {
    const Busy busy(busy_);
    check_slot(index);
    for (const auto token : prompt) {
        check_token(token, "the prompt");
    }
    for (const auto& [token, addend] : options.logit_bias) {
        check_token(token, "the logit bias");
    }
    if (logprobs && (*logprobs < 0 || *logprobs > vocabulary_)) {
        throw UsageError("logprobs is " + std::to_string(*logprobs) + ", it must be between 0 and the vocabulary's " +
                         std::to_string(vocabulary_));
    }
    auto& slot = slots_[static_cast<std::size_t>(index)];
    slot.started = false;
    slot.options = std::move(options);
    slot.draws = 0;
    slot.seen.clear();
    if (slot.options.repetition_penalty != 1) {
        std::vector<std::int64_t> once(prompt.begin(), prompt.end());
        std::sort(once.begin(), once.end());
        once.erase(std::unique(once.begin(), once.end()), once.end());
        slot.seen.reserve(once.size());
        for (const auto token : once) {
            slot.seen.push_back({static_cast<std::int32_t>(token), 0});
        }
    }
    if (slot.penalises()) {  // so that picking rarely allocates
        slot.seen.reserve(std::min(static_cast<std::size_t>(vocabulary_), slot.seen.size() + 1024));
    }
    slot.top = logprobs;
    slot.told = false;
    slot.told_last.top.reserve(static_cast<std::size_t>(logprobs.value_or(0)));
    slot.started = true;
}

void Sampler::stop(std::int64_t slot) {
    const Busy busy(busy_);
    check_slot(slot);
    slots_[static_cast<std::size_t>(slot)].started = false;
}

const TokenLogprobs* Sampler::logprobs(std::int64_t index) const {
    const Busy busy(busy_);
    check_slot(index);
    const auto& slot = slots_[static_cast<std::size_t>(index)];
    return slot.started && slot.told ? &slot.told_last : nullptr;
}

std::optional<std::int64_t> Sampler::pick(const Logits& logits, const bool* active, std::int64_t* tokens) {
    const Busy busy(busy_);
    for (std::int64_t slot = 0; slot < slots(); ++slot) {
        if (active[slot]) {
            check_started(slot);
        }
    }
    for (std::int64_t slot = 0; slot < slots(); ++slot) {
        if (active[slot] && !std::isfinite(peaks_[static_cast<std::size_t>(slot)] = peak(logits, slot))) {
            return slot;
        }
    }
    for (std::int64_t slot = 0; slot < slots(); ++slot) {
        tokens[slot] = active[slot] ? pick_one(logits, slot, peaks_[static_cast<std::size_t>(slot)]) : -1;
    }
    return std::nullopt;
}

float Sampler::peak(const Logits& logits, std::int64_t slot) {
    const auto at = slot * vocabulary_;
    return logits.bf16 ? passes_->peak_bf16(static_cast<const std::uint16_t*>(logits.data) + at, vocabulary_, maxima(slot))
                       : passes_->peak_f32(static_cast<const float*>(logits.data) + at, vocabulary_, maxima(slot));
}

float Sampler::logit(const Logits& logits, std::int64_t slot, std::int64_t token) const {
    const auto at = slot * vocabulary_ + token;
    return logits.bf16 ? widen(static_cast<const std::uint16_t*>(logits.data)[at])
                       : static_cast<const float*>(logits.data)[at];
}

std::int64_t Sampler::pick_one(const Logits& logits, std::int64_t index, float most) {
    auto& slot = slots_[static_cast<std::size_t>(index)];
    std::int64_t token;
    if (slot.options.temperature == 0 && !slot.adjusts() && !slot.top) {
        token = first_largest(logits, index, most);
    } else {
        Values row{widened(logits, index), vocabulary_, maxima(index)};
        const auto normaliser = slot.top ? tell_top(slot, row, most) : 0.0;
        if (slot.adjusts()) {
            most = adjust(slot);
            row = {row_.data(), vocabulary_, row_maxima_.data()};
        }
        token = slot.options.temperature != 0 ? draw(slot, row, most)
                : slot.adjusts()              ? std::find(row.values, row.values + vocabulary_, most) - row.values
                                              : first_largest(logits, index, most);
        if (slot.top) {
            slot.told_last.token = token;
            slot.told_last.logprob = static_cast<double>(logit(logits, index, token)) - normaliser;
            slot.told = true;
        }
    }
    if (slot.penalises()) {
        count(slot, token);
    }
    return token;
}

std::int64_t Sampler::first_largest(const Logits& logits, std::int64_t index, float most) const {
    const auto blocks = maxima(index);
    auto token = (std::find(blocks, blocks + blocks_, most) - blocks) * kBlock;
    while (logit(logits, index, token) != most) {
        ++token;
    }
    return token;
}

// The row in f32 in whole blocks; in row_ where it is not so already, or is to be adjusted.
const float* Sampler::widened(const Logits& logits, std::int64_t index) {
    const auto at = index * vocabulary_;
    if (logits.bf16) {
        const auto from = static_cast<const std::uint16_t*>(logits.data) + at;
        std::transform(from, from + vocabulary_, row_.data(), widen);
    } else {
        const auto from = static_cast<const float*>(logits.data) + at;
        if (vocabulary_ % kBlock == 0 && !slots_[static_cast<std::size_t>(index)].adjusts()) {
            return from;
        }
        std::copy_n(from, vocabulary_, row_.data());
    }
    pad(row_.data(), vocabulary_);
    return row_.data();
}

// Penalties and bias on row_; its largest value.
float Sampler::adjust(const Slot& slot) {
    const auto& o = slot.options;
    const double times[2] = {o.repetition_penalty, 1}, over[2] = {1, o.repetition_penalty};
    for (const auto& [token, picked] : slot.seen) {
        auto& logit = row_[static_cast<std::size_t>(token)];
        auto x = static_cast<double>(logit);
        x = x * times[x > 0] / over[x > 0];  // no branch: signs are hard to predict
        x -= static_cast<double>(picked) * o.frequency_penalty + (picked != 0 ? o.presence_penalty : 0.0);
        logit = changed(logit, x);
    }
    for (const auto& [token, addend] : o.logit_bias) {
        auto& logit = row_[static_cast<std::size_t>(token)];
        logit = changed(logit, static_cast<double>(logit) + addend);
    }
    return passes_->peak_f32(row_.data(), vocabulary_, row_maxima_.data());
}

void Sampler::count(Slot& slot, std::int64_t token) const {
    const auto before = [](const Seen& seen, std::int64_t other) { return seen.token < other; };
    const auto at = std::lower_bound(slot.seen.begin(), slot.seen.end(), token, before);
    if (at != slot.seen.end() && at->token == token) {
        ++at->picked;
    } else {
        slot.seen.insert(at, {static_cast<std::int32_t>(token), 1});
    }
}

// Sets the likeliest tokens; the logarithm of the sum of all exp(logit).
double Sampler::tell_top(Slot& slot, const Values& row, float most) {
    const auto normaliser =
        static_cast<double>(most) + logarithm(passes_->weigh(row, most, static_cast<float>(kLog2E), weights_.data(), sums_.data()));
    auto& top = slot.told_last.top;
    top.clear();
    if (*slot.top > 0) {
        const auto kept = keep_top(row, *slot.top, most);
        for (std::int64_t i = 0; i < kept.count; ++i) {
            const auto x = static_cast<double>(kept.values[i]);
            if (std::isfinite(x)) {
                top.emplace_back(tokens_[static_cast<std::size_t>(i)], x - normaliser);
            }
        }
        std::sort(top.begin(), top.end(), [](const auto& a, const auto& b) {
            return a.second != b.second ? a.second > b.second : a.first < b.first;
        });
    }
    return normaliser;
}

// Sets weights_ and sums_ to those of the tokens that a draw chooses from.
Sampler::Weighed Sampler::weigh(const SamplingOptions& o, const Values& row, float most) {
    const auto restricted = o.top_k > 0 && o.top_k < vocabulary_;
    const auto of = restricted ? keep_top(row, o.top_k, most) : row;
    const auto scale = static_cast<float>(std::min(kLog2E / o.temperature, double{std::numeric_limits<float>::max()}));
    auto total = passes_->weigh(of, most, scale, weights_.data(), sums_.data());
    auto least = -std::numeric_limits<float>::infinity();
    if (o.top_p < 1) {
        const auto likely = cut(of, weights_.data(), total, o.top_p * total, most);
        split_ties(of, likely);
        least = likely.value;
    }
    if (o.top_p < 1 || o.min_p > 0) {
        total = passes_->keep(of, least, rounded_up(o.min_p), weights_.data(), sums_.data());
    }
    return {restricted ? tokens_.data() : nullptr, of.count, total};
}

std::int64_t Sampler::draw(Slot& slot, const Values& row, float most) {
    const auto& o = slot.options;
    const auto of = weigh(o, row, most);
    const auto at = locate(of.count, uniform(o.seed, slot.draws++) * of.total);
    return of.tokens == nullptr ? at : of.tokens[at];
}

std::vector<std::pair<std::int64_t, float>> Sampler::kept(std::int64_t index, const Logits& logits) {
    const Busy busy(busy_);
    check_started(index);
    const auto& slot = slots_[static_cast<std::size_t>(index)];
    auto most = peak(logits, index);
    if (!std::isfinite(most)) {
        throw InputError("the largest logit is not finite");
    }
    Values row{widened(logits, index), vocabulary_, maxima(index)};
    if (slot.adjusts()) {
        most = adjust(slot);
        row = {row_.data(), vocabulary_, row_maxima_.data()};
    }
    std::vector<std::pair<std::int64_t, float>> list;
    if (slot.options.temperature == 0) {
        list.emplace_back(std::find(row.values, row.values + vocabulary_, most) - row.values, 1.0f);
        return list;
    }
    const auto of = weigh(slot.options, row, most);
    for (std::int64_t i = 0; i < of.count; ++i) {
        const auto weight = weights_[static_cast<std::size_t>(i)];
        if (weight > 0 && sums_[static_cast<std::size_t>(i / kBlock)] > 0) {
            list.emplace_back(of.tokens == nullptr ? i : of.tokens[i], weight);
        }
    }
    return list;
}

// The `count` largest of a row, by token: into values_ and tokens_.
Values Sampler::keep_top(const Values& row, std::int64_t count, float most) {
    std::int64_t found = 0;
    if (count <= blocks_) {
        // As many blocks have a value that reaches the count-th largest of their maxima.
        const auto first = weights_.begin(), nth = first + (count - 1);
        std::copy_n(row.maxima, blocks_, first);
        std::nth_element(first, nth, first + blocks_, std::greater<>());
        const auto least = *nth;
        for (std::int64_t block = 0; block < blocks_; ++block) {
            if (row.maxima[block] >= least) {
                const auto end = std::min((block + 1) * kBlock, vocabulary_);
                for (auto token = block * kBlock; token < end; ++token) {
                    values_[static_cast<std::size_t>(found)] = row.values[token];
                    tokens_[static_cast<std::size_t>(found)] = static_cast<std::int32_t>(token);
                    found += static_cast<int>(row.values[token] >= least);
                }
            }
        }
        pad(values_.data(), found);
    }
    const auto whole = found == 0;
    const Values from = whole ? row : Values{values_.data(), found, nullptr};
    auto kept = Cut{-std::numeric_limits<float>::infinity(), from.count, false};
    if (from.count > count) {
        kept = cut(from, nullptr, static_cast<double>(from.count), static_cast<double>(count), most);
    }
    const auto reached = passes_->between(from, kept.value, std::numeric_limits<float>::infinity(), indices_.data(),
                                          static_cast<int>(indices_.size()));
    auto ties = kept.ties;
    found = 0;
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
    return {values_.data(), found, nullptr};
}

// Zeroes the weights of values that are equal to the cut's, but not among the first.
void Sampler::split_ties(const Values& of, const Cut& cut) {
    if (cut.splits) {
        const auto found = passes_->between(of, cut.value, above(cut.value), indices_.data(), static_cast<int>(indices_.size()));
        for (auto i = cut.ties; i < found; ++i) {
            weights_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])] = 0;
        }
    }
}

// Where the largest values, of equal ones the first, together have the weight `target` out of `total`. The cut is
// between two thresholds that come closer with each pass, until few values are between them: those are sorted.
// `weights` may be null (1 each); `most` is the largest value.
Sampler::Cut Sampler::cut(const Values& of, const float* weights, double total, double target, float most) const {
    constexpr int sorted = 128;
    struct Edge {
        std::int64_t key;  // of the threshold
        Reached reached;
    };
    Edge low{key(-std::numeric_limits<float>::infinity()), {total, of.count}}, high{key(most + 0.0f) + 1, {0, 0}};
    const auto inside = [&] { return low.reached.count - high.reached.count; };
    if (!(total >= target)) {
        return {value(low.key), of.count, false};
    }
    bool stuck = false;
    for (int pass = 0; inside() > sorted && high.key - low.key > 1; ++pass) {
        const auto share = (target - high.reached.weight) / (low.reached.weight - high.reached.weight);
        auto lower = low.key + (high.key - low.key) / 2, upper = lower;
        std::int32_t any = 0;
        if (pass == 0) {
            std::tie(lower, upper) = guess(of, weights, share);
        } else if (stuck && passes_->between(of, value(low.key), value(high.key), &any, 1) == 1) {
            lower = key(of.values[any]);  // perhaps many are equal to it
            upper = lower + 1;
        } else if (pass % 4 != 0) {  // every fourth halves the keys, which ends whatever the values are
            const auto from = static_cast<double>(value(low.key)), to = static_cast<double>(value(high.key));
            const auto middle = to - share * (to - from), margin = (to - from) / 10;
            if (std::isfinite(margin)) {
                lower = key(static_cast<float>(std::max(middle - margin, from)));
                upper = key(static_cast<float>(std::min(middle + margin, to)));
            }
        }
        lower = std::clamp(lower, low.key + 1, high.key - 1);
        upper = std::clamp(upper, lower, high.key - 1);
        Edge at_lower{lower, {}}, at_upper{upper, {}};
        passes_->reach(of, weights, value(lower), value(upper), &at_lower.reached, &at_upper.reached);
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
    const auto missing = target - high.reached.weight;
    if (inside() > sorted) {  // all of one value
        const auto count = static_cast<double>(inside());
        const auto each = (low.reached.weight - high.reached.weight) / count;
        const auto ties = static_cast<std::int64_t>(std::clamp(std::ceil(missing / each), 1.0, count));
        return {value(low.key), ties, ties < inside()};
    }
    std::int32_t indices[sorted];
    const auto found = passes_->between(of, value(low.key), value(high.key), indices, sorted);
    if (found == 0) {  // rounding put the target where no value is
        return {value(low.key), of.count, false};
    }
    std::sort(indices, indices + found, [&](std::int32_t a, std::int32_t b) {
        return of.values[a] != of.values[b] ? of.values[a] > of.values[b] : a < b;
    });
    int last = 0;
    auto reached = high.reached.weight + (weights == nullptr ? 1.0 : static_cast<double>(weights[indices[0]]));
    while (last + 1 < found && reached < target) {
        ++last;
        reached += weights == nullptr ? 1.0 : static_cast<double>(weights[indices[last]]);
    }
    const auto x = of.values[indices[last]];
    int first = last;
    while (first > 0 && of.values[indices[first - 1]] == x) {
        --first;
    }
    return {x, last - first + 1, last + 1 < found && of.values[indices[last + 1]] == x};
}

// The first candidate at which the weights, summed up, exceed `target`; the last with a weight where none does.
std::int64_t Sampler::locate(std::int64_t count, double target) const {
    const auto blocks = static_cast<std::int64_t>(blocks_of(count));
    double sum = 0, before = 0;  // up to the end and to the beginning of the latest block that has a weight
    std::int64_t chosen = 0;
    for (std::int64_t block = 0; block < blocks && !(sum > target); ++block) {
        if (sums_[static_cast<std::size_t>(block)] > 0) {
            chosen = block;
            before = sum;
            sum += static_cast<double>(sums_[static_cast<std::size_t>(block)]);
        }
    }
    const auto end = std::min((chosen + 1) * kBlock, count);
    auto last = chosen * kBlock;
    for (auto i = last; i < end && !(sum > target && before > target); ++i) {
        if (const auto weight = weights_[static_cast<std::size_t>(i)]; weight > 0) {
            last = i;
            before += static_cast<double>(weight);
        }
    }
    return last;
}

}  // namespace sscc
