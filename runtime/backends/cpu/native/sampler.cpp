// runtime/session/sampling.py defines the sampling.
#include "sampler.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "errors.hpp"
#include "floating_point.hpp"

namespace sscc {

using namespace sampling;

namespace {

// A pick that reads at least kWorthWaking values takes longer than the 40 us that threads need to wake up. A pick that is
// not greedy costs about kRounds passes that search for the largest value. Both numbers were measured.
constexpr std::int64_t kWorthWaking = 600'000;
constexpr std::int64_t kRounds = 8;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns a changed logit x as an f32, limited to the largest f32 of its sign; an infinite logit stays infinite.
float changed(float logit, double x) {
    constexpr double most = std::numeric_limits<float>::max();
    return std::isinf(logit) ? logit : static_cast<float>(std::clamp(x, -most, most));
}

// Marks the sampler as busy for a scope: one call at a time.
class Busy {
  public:
    explicit Busy(std::atomic<bool>& flag) : flag_(flag) {
        if (flag.exchange(true)) {
            fail("SAMPLER_BUSY");
        }
    }
    ~Busy() { flag_ = false; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

  private:
    std::atomic<bool>& flag_;
};

}  // namespace

// Philox4x64-10 (Salmon et al., SC 2011), counted as in numpy: four numbers per block, starting with block 1.
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

Sampler::Sampler(std::int64_t slots, std::int64_t vocabulary, std::shared_ptr<Team> team, int width)
    : team_(std::move(team)) {
    if (slots < 1) {
        fail("SAMPLER_SLOTS", {{"slots", slots}});
    }
    if (vocabulary < 1 || vocabulary > std::numeric_limits<std::int32_t>::max()) {
        fail("SAMPLER_VOCABULARY", {{"vocabulary", vocabulary}});
    }
    vocabulary_ = vocabulary;
    slots_.resize(static_cast<std::size_t>(slots));
    active_.resize(slots_.size());
    const auto members = team_ == nullptr ? 1 : std::min<std::int64_t>(team_->size(), slots);
    for (std::int64_t member = 0; member < members; ++member) {
        selectors_.emplace_back(static_cast<std::size_t>(vocabulary), width);
    }
}

void Sampler::check_slot(std::int64_t slot) const {
    if (slot < 0 || slot >= slots()) {
        fail("SAMPLER_NO_SLOT", {{"slot", slot}, {"last", slots() - 1}});
    }
}

void Sampler::check_started(std::int64_t slot) const {
    check_slot(slot);
    if (!slots_[static_cast<std::size_t>(slot)].started) {
        fail("SAMPLER_NOT_STARTED", {{"slot", slot}});
    }
}

bool Sampler::in_vocabulary(std::int64_t token) const { return token >= 0 && token < vocabulary_; }

void Sampler::start(std::int64_t index, SamplingOptions options, std::span<const std::int64_t> prompt,
                    std::optional<std::int64_t> logprobs) {
    const Busy busy(busy_);
    check_slot(index);
    const auto wrong = std::find_if(prompt.begin(), prompt.end(), [&](auto token) { return !in_vocabulary(token); });
    if (wrong != prompt.end()) {
        const auto position = static_cast<std::int64_t>(wrong - prompt.begin());
        fail("PROMPT_TOKEN", {{"token", *wrong}, {"position", position}, {"last", vocabulary_ - 1}});
    }
    for (const auto& [token, addend] : options.logit_bias) {
        if (!in_vocabulary(token)) {
            fail("BIAS_TOKEN", {{"token", token}, {"last", vocabulary_ - 1}});
        }
    }
    if (logprobs && (*logprobs < 0 || *logprobs > vocabulary_)) {
        fail("LOGPROBS", {{"logprobs", *logprobs}, {"vocabulary", vocabulary_}});
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
    if (slot.penalises()) {  // room for later tokens, so that picking rarely allocates
        slot.seen.reserve(std::min(static_cast<std::size_t>(vocabulary_), slot.seen.size() + 1024));
    }
    slot.top = logprobs;
    slot.told = false;
    for (auto told : {&slot.told_last, &slot.told_next}) {
        told->top.reserve(static_cast<std::size_t>(logprobs.value_or(0)));
    }
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

std::optional<std::int64_t> Sampler::pick(const Logits& logits, const bool* active, std::int64_t* tokens,
                                          const Allowed& allowed) {
    const Busy busy(busy_);
    std::copy_n(active, slots(), active_.begin());  // a copy, so that a write to `active` during the call has no effect
    for (std::int64_t slot = 0; slot < slots(); ++slot) {
        if (active_[static_cast<std::size_t>(slot)]) {
            check_started(slot);
        }
    }
    std::atomic<std::size_t> unclaimed{0};
    const auto job = [&](int member) {
        if (static_cast<std::size_t>(member) >= selectors_.size()) {
            return;
        }
        auto& selector = selectors_[static_cast<std::size_t>(member)];
        for (auto at = unclaimed.fetch_add(1); at < slots_.size(); at = unclaimed.fetch_add(1)) {
            if (active_[at]) {
                const auto constrained = allowed.constrained != nullptr && allowed.constrained[at];
                const auto bits = constrained ? allowed.bits + at * Allowed::words(vocabulary_) : nullptr;
                slots_[at].next = choose(selector, row(logits, static_cast<std::int64_t>(at)), slots_[at], bits);
            }
        }
    };
    if (team_pays(allowed)) {
        team_->share(std::ref(job));  // by reference: nothing is allocated
    } else {
        const DefaultFloatingPoint floating_point;
        job(0);
    }
    for (std::size_t at = 0; at < slots_.size(); ++at) {
        if (active_[at] && slots_[at].next == Slot::not_finite) {
            return static_cast<std::int64_t>(at);
        }
        if (active_[at] && slots_[at].next == Slot::nothing_allowed) {
            fail("NOTHING_ALLOWED", {{"slot", number(at)}});
        }
    }
    for (std::size_t at = 0; at < slots_.size(); ++at) {
        auto& slot = slots_[at];
        tokens[at] = active_[at] ? slot.next : -1;
        if (active_[at]) {
            slot.draws += slot.options.temperature != 0 ? 1 : 0;
            if (slot.penalises()) {
                count(slot, slot.next);
            }
            if (slot.top) {
                std::swap(slot.told_last, slot.told_next);
                slot.told = true;
            }
        }
    }
    return std::nullopt;
}

// Returns true if it pays to wake a team's threads.
bool Sampler::team_pays(const Allowed& allowed) const {
    if (selectors_.size() < 2) {
        return false;
    }
    std::int64_t count = 0, rounds = 0;  // time of the picks, in passes that search for the largest logit
    for (std::size_t at = 0; at < slots_.size(); ++at) {
        if (active_[at]) {
            const auto& slot = slots_[at];
            ++count;
            const auto copied = slot.adjusts() || (allowed.constrained != nullptr && allowed.constrained[at]);
            rounds += slot.options.temperature != 0 || copied || slot.top ? kRounds : 1;
        }
    }
    return count > 1 && rounds * vocabulary_ >= kWorthWaking;
}

Row Sampler::row(const Logits& logits, std::int64_t slot) const {
    const auto bytes = std::int64_t{logits.bf16 ? 2 : 4};
    return {static_cast<const std::byte*>(logits.data) + slot * vocabulary_ * bytes, logits.bf16,
            static_cast<std::size_t>(vocabulary_)};
}

// Returns the slot's next token, or a value for the reason why there is none (`Slot`), and writes its logarithms to
// told_next. The slot's sequence is not changed, in case another slot's logits are invalid.
std::int64_t Sampler::choose(Selector& selector, const Row& row, Slot& slot, const std::uint32_t* allowed) const {
    const auto peak = selector.peak(row);
    if (!std::isfinite(peak)) {
        return Slot::not_finite;
    }
    const auto normaliser = slot.top ? tell_top(selector, slot, peak) : 0.0;
    if (slot.adjusts()) {
        adjust(selector, slot);
    }
    const auto forced = allowed == nullptr ? std::nullopt : forbid(selector, slot.adjusts(), allowed);
    if (forced && *forced < 0) {
        return *forced;
    }
    const auto& o = slot.options;
    const auto token = forced               ? *forced
                       : o.temperature == 0 ? selector.first_largest()
                                            : selector.draw(o, uniform(o.seed, slot.draws));
    if (slot.top) {
        slot.told_next.token = token;
        slot.told_next.logprob = static_cast<double>(row[static_cast<std::size_t>(token)]) - normaliser;
    }
    return token;
}

// Continues with a copy of the row to which the penalties and the bias are applied.
void Sampler::adjust(Selector& selector, const Slot& slot) const {
    const auto& o = slot.options;
    const auto logits = selector.copy();
    const double times[2] = {o.repetition_penalty, 1}, over[2] = {1, o.repetition_penalty};
    for (const auto& [token, picked] : slot.seen) {
        auto& logit = logits[static_cast<std::size_t>(token)];
        auto x = static_cast<double>(logit);
        x = x * times[x > 0] / over[x > 0];  // branch-free, because signs are hard to predict
        x -= static_cast<double>(picked) * o.frequency_penalty + (picked != 0 ? o.presence_penalty : 0.0);
        logit = changed(logit, x);
    }
    for (const auto& [token, addend] : o.logit_bias) {
        auto& logit = logits[static_cast<std::size_t>(token)];
        logit = changed(logit, static_cast<double>(logit) + addend);
    }
    selector.peak({logits.data(), false, logits.size()});
}

// Continues with a copy of the row, or the copy that `adjust` made, in which tokens that are not allowed are minus
// infinity. If all allowed tokens are minus infinity too, returns the first of them, or the value for none.
std::optional<std::int64_t> Sampler::forbid(Selector& selector, bool adjusted, const std::uint32_t* allowed) const {
    const auto logits = adjusted ? selector.copied() : selector.copy();
    std::optional<std::int64_t> first;
    for (std::size_t begin = 0; begin < logits.size(); begin += 32) {
        const auto count = std::min<std::size_t>(32, logits.size() - begin);
        auto forbidden = ~allowed[begin / 32];
        if (count < 32) {
            forbidden |= ~0u << count;
        }
        if (forbidden != ~0u && !first) {
            first = number(begin) + std::countr_one(forbidden);
        }
        if (forbidden == ~0u) {
            std::fill_n(logits.begin() + static_cast<std::ptrdiff_t>(begin), count, -kInfinity);
            continue;
        }
        for (; forbidden != 0 && std::countr_zero(forbidden) < static_cast<int>(count); forbidden &= forbidden - 1) {
            logits[begin + static_cast<std::size_t>(std::countr_zero(forbidden))] = -kInfinity;
        }
    }
    if (!first) {
        return Slot::nothing_allowed;
    }
    return std::isfinite(selector.peak({logits.data(), false, logits.size()})) ? std::nullopt : first;
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

// Records the most probable tokens, and returns the logarithm of the sum of all exp(logit).
double Sampler::tell_top(Selector& selector, Slot& slot, float most) const {
    const auto normaliser = static_cast<double>(most) + std::log(selector.normaliser());
    auto& top = slot.told_next.top;
    top.clear();
    if (*slot.top > 0) {
        selector.largest(static_cast<std::size_t>(*slot.top), [&](std::int32_t token, float logit) {
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
    auto& selector = selectors_[0];
    if (!std::isfinite(selector.peak(row(logits, index)))) {
        fail("LOGITS_NOT_FINITE");
    }
    if (slot.adjusts()) {
        adjust(selector, slot);
    }
    if (slot.options.temperature == 0) {
        return {{selector.first_largest(), 1.0f}};
    }
    return selector.kept(slot.options);
}

}  // namespace sscc
