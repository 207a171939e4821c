// Runs the sampler without Python, so that it can be compiled with sanitizers.
//
//     driver sampler fuzz SEED COUNT       random logits, sequences and calls; prints a checksum of what was picked,
//                                          which is the same on every machine
//     driver sampler threads SEED COUNT    threads with a sampler each, and threads that share one
//     driver sampler team SEED COUNT       samplers that share a team of threads, which others use too
//
// Prints what it did; anything other than exit status 0 is a bug of the sampler.
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "errors.hpp"
#include "sampler.hpp"
#include "team.hpp"

namespace sampler_driver {

using sscc::Sampler;
using Token = std::int64_t;

class Random {
  public:
    explicit Random(std::uint64_t seed) : engine_(seed) {}
    Token below(Token count) { return static_cast<Token>(engine_() % static_cast<std::uint64_t>(count)); }
    double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
    template <class T, std::size_t count>
    T one(const T (&of)[count]) {
        return of[static_cast<std::size_t>(below(static_cast<Token>(count)))];
    }

  private:
    std::mt19937_64 engine_;
};

// On the heap to the byte, so that what is read beyond it is seen.
struct Rows {
    std::unique_ptr<float[]> f32;
    std::unique_ptr<std::uint16_t[]> bf16;
    sscc::Logits logits() const { return bf16 ? sscc::Logits{bf16.get(), true} : sscc::Logits{f32.get(), false}; }
};

Rows random_rows(Random& random, Token count, bool damaged) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const auto kind = random.below(6);
    const float spread = random.one({0.0f, 1.0f, 20.0f, 1e38f});
    Rows rows{std::make_unique<float[]>(static_cast<std::size_t>(count)), nullptr};
    for (Token i = 0; i < count; ++i) {
        auto x = static_cast<float>(random.uniform() - 0.5) * spread;
        x = kind == 0 ? std::floor(x) : kind == 1 && i % 3 != 0 ? -infinity : x;
        rows.f32[static_cast<std::size_t>(i)] = x;
    }
    if (damaged) {
        rows.f32[static_cast<std::size_t>(random.below(count))] = random.one({std::nanf(""), infinity});
    }
    if (random.below(2) == 0) {
        rows.bf16 = std::make_unique<std::uint16_t[]>(static_cast<std::size_t>(count));
        for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
            rows.bf16[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(rows.f32[i]) >> 16);
        }
    }
    return rows;
}

sscc::SamplingOptions random_options(Random& random, Token vocabulary) {
    sscc::SamplingOptions options;
    options.temperature = random.one({0.0, 5e-324, 0.7, 1.0, 30.0, 1e308});
    options.top_k = random.one({Token{0}, Token{1}, Token{3}, vocabulary / 2, vocabulary, Token{1} << 62});
    options.top_p = random.one({1.0, 1e-300, 0.5, 0.9, 1 - 1e-16});
    options.min_p = random.one({0.0, 5e-324, 0.1, 1.0});
    options.repetition_penalty = random.one({1.0, 1.2, 1e-308, 1e308});
    options.presence_penalty = random.one({0.0, -2.0, 2.0});
    options.frequency_penalty = random.one({0.0, -2.0, 2.0});
    options.seed = static_cast<std::uint64_t>(random.below(1 << 30));
    for (Token token = random.below(3); token < vocabulary; token += 1 + random.below(vocabulary)) {
        options.logit_bias.emplace_back(token, random.one({-100.0, 0.5, 100.0}));
    }
    return options;
}

std::vector<Token> random_tokens(Random& random, Token vocabulary) {
    std::vector<Token> tokens(static_cast<std::size_t>(random.below(20)));
    for (auto& token : tokens) {
        token = random.below(vocabulary + (random.below(50) == 0 ? 1 : 0));
    }
    return tokens;
}

void require(bool holds, const char* what) {
    if (!holds) {
        throw std::runtime_error(what);
    }
}

struct Tally {
    int picks = 0, refused = 0;
    std::uint64_t checksum = 0;
    void add(std::uint64_t word) { checksum = (checksum ^ word) * 0x9e3779b97f4a7c15u + (checksum >> 29); }
};

bool same(const sscc::TokenLogprobs* a, const sscc::TokenLogprobs* b) {
    return a == nullptr || b == nullptr ? a == b
                                        : a->token == b->token && a->logprob == b->logprob && a->top == b->top;
}

// One sampler's life.
void live(Random& random, Tally& tally) {
    const Token slots = 1 + random.below(4);
    const Token vocabulary = random.one({Token{1}, Token{2}, Token{63}, Token{64}, Token{65}, Token{129}, Token{700},
                                         Token{3000}});
    Sampler sampler(slots, vocabulary);
    const auto active = std::make_unique<bool[]>(static_cast<std::size_t>(slots));
    const auto accepted = [&](const auto& call) {
        try {
            call();
            return true;
        } catch (const sscc::Error&) {
            ++tally.refused;
            return false;
        }
    };
    for (int step = 0; step < 12; ++step) {
        const auto slot = random.below(slots + (random.below(20) == 0 ? 1 : 0));
        if (random.below(4) == 0) {
            accepted([&] { sampler.stop(slot); });
        }
        if (random.below(2) == 0 || step == 0) {
            const auto options = random_options(random, vocabulary);
            const auto prompt = random_tokens(random, vocabulary);
            const auto top = random.below(2) == 0 ? std::optional<Token>() : random.below(vocabulary + 2);
            if (accepted([&] { sampler.start(slot, options, prompt, top); })) {
                active[static_cast<std::size_t>(slot)] = true;
            }
        }
        if (random.below(3) == 0) {
            active[static_cast<std::size_t>(random.below(slots))] ^= true;
        }
        const auto rows = random_rows(random, slots * vocabulary, random.below(10) == 0);
        const auto tokens = std::make_unique<Token[]>(static_cast<std::size_t>(slots));
        std::optional<Token> bad;
        if (!accepted([&] { bad = sampler.pick(rows.logits(), active.get(), tokens.get()); }) || bad) {
            continue;
        }
        for (Token s = 0; s < slots; ++s) {
            const auto token = tokens[static_cast<std::size_t>(s)];
            require(active[static_cast<std::size_t>(s)] ? token >= 0 && token < vocabulary : token == -1,
                    "a token is out of range");
            ++tally.picks;
            tally.add(static_cast<std::uint64_t>(token));
            if (const auto told = sampler.logprobs(s); told != nullptr) {  // in f32: logarithms are the C library's
                tally.add(std::bit_cast<std::uint32_t>(static_cast<float>(told->logprob)));
            }
        }
    }
}

int fuzz(std::uint64_t seed, int count) {
    Random random(seed);
    Tally tally;
    for (int i = 0; i < count; ++i) {
        live(random, tally);
    }
    std::printf("%d picks, %d refused, %016llx\n", tally.picks, tally.refused,
                static_cast<unsigned long long>(tally.checksum));
    return 0;
}

int threads(std::uint64_t seed, int count) {
    Random random(seed);
    constexpr Token slots = 2, vocabulary = 1000;
    const auto rows = random_rows(random, slots * vocabulary, false);
    const bool active[slots] = {true, true};
    sscc::SamplingOptions options;
    options.temperature = 1;
    options.top_p = 0.9;
    options.repetition_penalty = 1.1;
    const auto begin = [&](Sampler& sampler) {
        for (Token slot = 0; slot < slots; ++slot) {
            sampler.start(slot, options, {}, 3);
        }
    };
    Sampler shared(slots, vocabulary);
    begin(shared);
    std::atomic<int> done{0}, refused{0};
    std::vector<std::uint64_t> sums(4);
    std::vector<std::thread> team;
    for (auto& sum : sums) {
        team.emplace_back([&] {
            Sampler own(slots, vocabulary);
            begin(own);
            Token tokens[slots];
            for (int i = 0; i < count; ++i) {
                own.pick(rows.logits(), active, tokens);
                sum = sum * 31 + static_cast<std::uint64_t>(tokens[0] * vocabulary + tokens[1]);
                try {
                    shared.pick(rows.logits(), active, tokens);
                    ++done;
                } catch (const sscc::Error&) {
                    ++refused;
                }
            }
        });
    }
    for (auto& thread : team) {
        thread.join();
    }
    for (const auto sum : sums) {
        require(sum == sums[0], "equal samplers in other threads pick other tokens");
    }
    require(done + refused == 4 * count && done > 0, "calls are missing");
    std::printf("%d picks\n", 4 * count);
    return 0;
}

// A sampler with the team and one without it, with the same sequences, get the same logits again and again.
void pick_alike(const std::shared_ptr<sscc::Team>& team, std::uint64_t seed, int count, std::atomic<int>& picks) {
    Random random(seed);
    const Token slots = 2 + random.below(5), vocabulary = random.one({Token{20000}, Token{33001}});
    std::array<Sampler, 2> samplers{Sampler(slots, vocabulary, team), Sampler(slots, vocabulary)};
    const auto active = std::make_unique<bool[]>(static_cast<std::size_t>(slots));
    for (Token slot = 0; slot < slots; ++slot) {
        const auto options = random_options(random, vocabulary);
        for (auto& sampler : samplers) {
            sampler.start(slot, options, {}, slot);
        }
    }
    std::vector<Token> tokens[2];
    for (int i = 0; i < count; ++i) {
        const auto rows = random_rows(random, slots * vocabulary, random.below(8) == 0);
        std::optional<Token> bad[2];
        for (Token slot = 0; slot < slots; ++slot) {
            active[static_cast<std::size_t>(slot)] = random.below(4) != 0;
        }
        for (std::size_t s = 0; s < 2; ++s) {
            tokens[s].assign(static_cast<std::size_t>(slots), -1);
            bad[s] = samplers[s].pick(rows.logits(), active.get(), tokens[s].data());
        }
        require(bad[0] == bad[1] && tokens[0] == tokens[1], "a team picks other tokens");
        for (Token slot = 0; slot < slots; ++slot) {
            require(same(samplers[0].logprobs(slot), samplers[1].logprobs(slot)), "a team tells other logprobs");
        }
        ++picks;
    }
}

int team(std::uint64_t seed, int count) {
    const auto shared = std::make_shared<sscc::Team>(sscc::TeamOptions{3});
    std::atomic<int> picks{0}, jobs{0}, parts{0}, thrown{0}, caught{0};
    std::atomic<bool> done{false};
    std::thread other([&] {
        while (!done || caught == 0) {
            shared->run([&](int) { ++jobs; });
            try {
                shared->share([&](int member) {
                    if (++parts % 4 == 0) {
                        ++thrown;
                        throw member;
                    }
                });
            } catch (int) {
                ++caught;
            }
            std::this_thread::yield();
        }
    });
    pick_alike(shared, seed, count, picks);
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&, i] { pick_alike(shared, seed + 1 + static_cast<std::uint64_t>(i), count, picks); });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    done = true;
    other.join();
    require(jobs > 0 && jobs % 3 == 0, "a member of the team missed a job");
    require(parts >= jobs / 3 && parts <= jobs, "a shared job was done by too few or too many");
    require(caught == thrown, "an exception was lost");
    std::printf("%d picks\n", picks.load());
    return 0;
}

int main(int count, char** arguments) {
    try {
        if (count == 3) {
            const std::string command = arguments[0];
            const auto seed = std::strtoull(arguments[1], nullptr, 10);
            return (command == "threads" ? threads : command == "team" ? team : fuzz)(seed, std::atoi(arguments[2]));
        }
        std::fprintf(stderr, "usage: driver sampler fuzz|threads|team SEED COUNT\n");
    } catch (const std::exception& error) {
        std::printf("error: %s\n", error.what());
    }
    return 1;
}

}  // namespace sampler_driver
