// Picks the next token of each slot from its logits; runtime/session/sampling.py defines the result.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sampler_selector.hpp"
#include "team.hpp"

namespace sscc {

// Natural logarithms of probabilities under the model's own distribution, for one picked token.
struct TokenLogprobs {
    std::int64_t token = 0;
    double logprob = 0;
    std::vector<std::pair<std::int64_t, double>> top;  // the most probable tokens, in descending order
};

// C-contiguous logits [slots, vocabulary] in f32 or bf16.
struct Logits {
    const void* data;
    bool bf16;
};

// The tokens that each constrained slot may pick. Bit t % 32 of word t / 32 of a slot's row of `words` is for token t.
struct Allowed {
    const std::uint32_t* bits = nullptr;  // [slots, words(vocabulary)]
    const bool* constrained = nullptr;    // [slots]

    static std::size_t words(std::int64_t vocabulary) { return (static_cast<std::size_t>(vocabulary) + 31) / 32; }
};

// Returns number `index`, in [0, 1), of the sequence of numpy's Generator(Philox(key=seed)).random().
double uniform(std::uint64_t seed, std::uint64_t index);

// Not reentrant: a call during another call, from any thread, throws Error.
class Sampler {
  public:
    // `team` divides the slots of a large pick among its threads; without a team, or while it is busy, the calling
    // thread picks alone. Throws Error for fewer than 1 slot and for a vocabulary that is empty or does not fit in 31
    // bits; std::bad_alloc. Vectors have at most `width` values; the width does not change results.
    Sampler(std::int64_t slots, std::int64_t vocabulary, std::shared_ptr<Team> team = nullptr, int width = 16);

    // Begins a sequence in a slot, replacing the previous one. `logprobs`: number of most probable tokens to report per
    // token. Throws Error for a slot, a token or a count out of range.
    void start(std::int64_t slot, SamplingOptions options, std::span<const std::int64_t> prompt,
               std::optional<std::int64_t> logprobs);

    // Ends the slot's sequence, if any. Throws Error for a slot out of range.
    void stop(std::int64_t slot);

    // Picks a token for each active slot; -1 for the others. If the largest logit of an active slot is NaN or infinite,
    // returns the first such slot, and nothing is picked. Throws Error for an active slot without a sequence, and for a
    // constrained slot that may pick no token. `active` and `tokens` have an element per slot. Without `allowed` no
    // slot is constrained.
    std::optional<std::int64_t> pick(const Logits& logits, const bool* active, std::int64_t* tokens,
                                     const Allowed& allowed = {});

    // The logarithms for the slot's last token; null without a token, or if they were not requested. Valid until the
    // next call of another function. Throws Error for a slot out of range.
    const TokenLogprobs* logprobs(std::int64_t slot) const;

    // The tokens, in ascending order, from which the slot's next draw chooses, with their weights (the most probable
    // has 1); for a greedy slot its one token. Throws Error for logits that are not finite, and for a slot without a
    // sequence.
    std::vector<std::pair<std::int64_t, float>> kept(std::int64_t slot, const Logits& logits);

    std::int64_t slots() const { return static_cast<std::int64_t>(slots_.size()); }
    std::int64_t vocabulary() const { return vocabulary_; }

  private:
    struct Seen {
        std::int32_t token;
        std::int64_t picked;  // number of times it was picked; 0 for a token that only the prompt has
    };

    struct Slot {
        bool started = false;
        SamplingOptions options;
        std::uint64_t draws = 0;
        std::vector<Seen> seen;  // by token; empty without penalties
        std::optional<std::int64_t> top;
        bool told = false;
        TokenLogprobs told_last, told_next;
        std::int64_t next = 0;  // the token of the current pick, or one of the values below

        static constexpr std::int64_t not_finite = -1, nothing_allowed = -2;

        bool penalises() const;
        bool adjusts() const { return penalises() || !options.logit_bias.empty(); }
    };

    void check_slot(std::int64_t slot) const;
    void check_started(std::int64_t slot) const;
    bool in_vocabulary(std::int64_t token) const;
    bool team_pays(const Allowed& allowed) const;
    sampling::Row row(const Logits& logits, std::int64_t slot) const;
    std::int64_t choose(sampling::Selector& selector, const sampling::Row& row, Slot& slot,
                        const std::uint32_t* allowed) const;
    void adjust(sampling::Selector& selector, const Slot& slot) const;
    std::optional<std::int64_t> forbid(sampling::Selector& selector, bool adjusted, const std::uint32_t* allowed) const;
    void count(Slot& slot, std::int64_t token) const;
    double tell_top(sampling::Selector& selector, Slot& slot, float most) const;

    std::int64_t vocabulary_ = 0;
    std::shared_ptr<Team> team_;
    std::vector<Slot> slots_;
    std::vector<char> active_;                   // by slot: true if the current pick is for it
    std::vector<sampling::Selector> selectors_;  // one per member of the team that may get work
    mutable std::atomic<bool> busy_{false};
};

}  // namespace sscc
