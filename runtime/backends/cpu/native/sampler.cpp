// The definition of what is picked is in runtime/sampling.py.
#include "sampler.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "errors.hpp"
#include "floating_point.hpp"

namespace sscc {

using namespace sampling;

namespace {

// A pick that reads at least so many values (a row counts once for each pass over it) takes longer than threads need to
// wake up, which is some 40 us. The number was measured with the widest vectors.
constexpr std::int64_t kWorthWaking = 600'000;

// A logit after a change to x: x as an f32, or the largest f32 of its sign where x is beyond; an infinite logit stays.
float changed(float logit, double x) {
    constexpr double most = std::numeric_limits<float>::max();
    return std::isinf(logit) ? logit : static_cast<float>(std::clamp(x, -most, most));
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

// Marks the sampler as busy for a scope, because it can only do one call at a time.
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

}  // namespace

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

int Sampler::Slot::rounds() const {
    const auto restricts = options.top_p < 1 || options.min_p > 0 || options.top_k > 0;
    return 1 + (options.temperature != 0 ? 3 : 0) + (options.temperature != 0 && restricts ? 6 : 0) +
           (adjusts() ? 2 : 0) + (top ? 4 : 0);
}

Sampler::Sampler(std::int64_t slots, std::int64_t vocabulary, std::shared_ptr<Team> team, int width)
    : passes_(&passes(width)), team_(std::move(team)) {
    if (slots < 1) {
        throw UsageError("a sampler of " + std::to_string(slots) + " slots");
    }
    if (vocabulary < 1 || vocabulary > std::numeric_limits<std::int32_t>::max() - kBlock) {
        throw UsageError("a sampler of " + std::to_string(vocabulary) + " tokens");
    }
    vocabulary_ = vocabulary;
    blocks_ = static_cast<std::int64_t>(blocks_of(vocabulary));
    slots_.resize(static_cast<std::size_t>(slots));
    active_.resize(slots_.size());
    peaks_.resize(slots_.size());
    maxima_.resize(slots_.size() * blocks_of(vocabulary));
    const auto members = team_ == nullptr ? 1 : std::min<std::int64_t>(team_->size(), slots);
    for (std::int64_t member = 0; member < members; ++member) {
        selectors_.emplace_back(*passes_, vocabulary);
    }
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
    if (slot.penalises()) {  // room for tokens to come, so that picking rarely allocates
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

// One call of pick(): its members claim slots, first to find their largest logits, then to pick.
class Sampler::Pick {
  public:
    Pick(Sampler& sampler, const Logits& logits, std::int64_t* tokens)
        : sampler_(sampler),
          logits_(logits),
          active_(sampler.active_.data()),
          tokens_(tokens),
          missing_(static_cast<std::int32_t>(std::count(active_, active_ + sampler.slots(), 1))) {}

    // The work of one member of the team.
    void work(Selector& selector) {
        for (auto slot = claim(peaks_); slot >= 0; slot = claim(peaks_)) {
            sampler_.peaks_[static_cast<std::size_t>(slot)] = sampler_.find_peak(logits_, slot);
            missing_.fetch_sub(1);
            missing_.notify_all();
        }
        for (auto missing = missing_.load(); missing != 0; missing = missing_.load()) {
            missing_.wait(missing);
        }
        if (bad()) {
            return;
        }
        for (auto slot = claim(picks_); slot >= 0; slot = claim(picks_)) {
            tokens_[slot] = sampler_.pick_one(selector, logits_, slot);
        }
    }

    // The first slot whose largest logit is not finite; to be called once all of them were found.
    std::optional<std::int64_t> bad() const {
        for (std::int64_t slot = 0; slot < sampler_.slots(); ++slot) {
            if (active_[slot] && !std::isfinite(sampler_.peaks_[static_cast<std::size_t>(slot)])) {
                return slot;
            }
        }
        return std::nullopt;
    }

  private:
    // An active slot that nobody has claimed; -1 where there is none.
    std::int64_t claim(std::atomic<std::int64_t>& next) const {
        for (;;) {
            const auto slot = next.fetch_add(1, std::memory_order_relaxed);
            if (slot >= sampler_.slots()) {
                return -1;
            }
            if (active_[slot]) {
                return slot;
            }
        }
    }

    Sampler& sampler_;
    const Logits& logits_;
    const char* active_;
    std::int64_t* tokens_;
    std::atomic<std::int64_t> peaks_{0}, picks_{0};
    std::atomic<std::int32_t> missing_;  // slots whose peak is not found yet
};

std::optional<std::int64_t> Sampler::pick(const Logits& logits, const bool* active, std::int64_t* tokens) {
    const Busy busy(busy_);
    std::copy_n(active, slots(), active_.begin());  // a copy, so that a write to `active` during the call does no harm
    for (std::int64_t slot = 0; slot < slots(); ++slot) {
        if (active_[static_cast<std::size_t>(slot)]) {
            check_started(slot);
        }
    }
    Pick pick(*this, logits, tokens);
    const auto job = [&](int member) {
        if (static_cast<std::size_t>(member) < selectors_.size()) {
            pick.work(selectors_[static_cast<std::size_t>(member)]);
        }
    };
    if (team_pays()) {
        team_->share(std::ref(job));  // by reference: nothing is allocated
    } else {
        const DefaultFloatingPoint floating_point;
        job(0);
    }
    const auto bad = pick.bad();
    for (std::int64_t slot = 0; slot < slots() && !bad; ++slot) {
        tokens[slot] = active_[static_cast<std::size_t>(slot)] ? tokens[slot] : -1;
    }
    return bad;
}

// Whether the work is worth a team whose threads may sleep.
bool Sampler::team_pays() const {
    if (selectors_.size() < 2) {
        return false;
    }
    std::int64_t count = 0, rounds = 0;  // the time of the picks, in passes of the kind that finds the largest logit
    for (std::int64_t slot = 0; slot < slots(); ++slot) {
        if (active_[static_cast<std::size_t>(slot)]) {
            ++count;
            rounds += slots_[static_cast<std::size_t>(slot)].rounds();
        }
    }
    return count > 1 && rounds * vocabulary_ >= kWorthWaking;
}

Row Sampler::row(const Logits& logits, std::int64_t slot) const {
    const auto bytes = std::int64_t{logits.bf16 ? 2 : 4};
    const auto data = static_cast<const std::byte*>(logits.data) + slot * vocabulary_ * bytes;
    return {data, logits.bf16, !logits.bf16 && vocabulary_ % kBlock == 0, vocabulary_, maxima(slot)};
}

float Sampler::find_peak(const Logits& logits, std::int64_t slot) {
    return passes_->peak(row(logits, slot), maxima(slot));
}

std::int64_t Sampler::pick_one(Selector& selector, const Logits& logits, std::int64_t index) {
    auto& slot = slots_[static_cast<std::size_t>(index)];
    const auto raw = row(logits, index);
    const auto peak = peaks_[static_cast<std::size_t>(index)];
    const auto normaliser = slot.top ? tell_top(selector, slot, raw, peak) : 0.0;
    const auto [row, most] = slot.adjusts() ? adjusted(selector, slot, raw) : std::pair(raw, peak);
    const auto& o = slot.options;
    const auto token = o.temperature == 0 ? selector.first_largest(row, most)
                                          : selector.draw(o, row, most, uniform(o.seed, slot.draws++));
    if (slot.top) {
        slot.told_last.token = token;
        slot.told_last.logprob = static_cast<double>(raw[token]) - normaliser;
        slot.told = true;
    }
    if (slot.penalises()) {
        count(slot, token);
    }
    return token;
}

// The row with penalties and bias, and its largest value.
std::pair<Row, float> Sampler::adjusted(Selector& selector, const Slot& slot, const Row& row) const {
    const auto& o = slot.options;
    const auto logits = selector.copy(row);
    const double times[2] = {o.repetition_penalty, 1}, over[2] = {1, o.repetition_penalty};
    for (const auto& [token, picked] : slot.seen) {
        auto& logit = logits[static_cast<std::size_t>(token)];
        auto x = static_cast<double>(logit);
        x = x * times[x > 0] / over[x > 0];  // without a branch, because signs are hard to predict
        x -= static_cast<double>(picked) * o.frequency_penalty + (picked != 0 ? o.presence_penalty : 0.0);
        logit = changed(logit, x);
    }
    for (const auto& [token, addend] : o.logit_bias) {
        auto& logit = logits[static_cast<std::size_t>(token)];
        logit = changed(logit, static_cast<double>(logit) + addend);
    }
    return selector.copied(row.count);
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

// Notes the likeliest tokens, and returns the logarithm of the sum of all exp(logit).
double Sampler::tell_top(Selector& selector, Slot& slot, const Row& row, float most) const {
    const auto normaliser = static_cast<double>(most) + logarithm(selector.normaliser(row, most));
    auto& top = slot.told_last.top;
    top.clear();
    if (*slot.top > 0) {
        selector.largest(row, *slot.top, most, [&](std::int32_t token, float logit) {
            if (std::isfinite(logit)) {
                top.emplace_back(token, static_cast<double>(logit) - normaliser);
            }
        });
        std::sort(top.begin(), top.end(), [](const auto& a, const auto& b) {
            return a.second != b.second ? a.second > b.second : a.first < b.first;
        });
    }
    return normaliser;
}

std::vector<std::pair<std::int64_t, float>> Sampler::kept(std::int64_t index, const Logits& logits) {
    const Busy busy(busy_);
    check_started(index);
    const DefaultFloatingPoint floating_point;
    const auto& slot = slots_[static_cast<std::size_t>(index)];
    const auto peak = find_peak(logits, index);
    if (!std::isfinite(peak)) {
        throw InputError("the largest logit is not finite");
    }
    auto& selector = selectors_[0];
    const auto raw = row(logits, index);
    const auto [row, most] = slot.adjusts() ? adjusted(selector, slot, raw) : std::pair(raw, peak);
    if (slot.options.temperature == 0) {
        return {{selector.first_largest(row, most), 1.0f}};
    }
    return selector.kept(slot.options, row, most);
}

}  // namespace sscc
