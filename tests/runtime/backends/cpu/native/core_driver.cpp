// Runs plans without Python, so that the core can be compiled with sanitizers. Reads a plan from a file.
//
//     driver core run FILE THREADS REPEATS ENTRY SCALARS..   prints per repeat the outputs, then regions as words, and
//                                                          how often a hook was called
//     driver core stop FILE THREADS REPEATS ENTRY SCALARS..  likewise, but every entry is ended by its first poll
//     driver core fuzz FILE THREADS COUNT SEED               damages the plan COUNT times and runs what still is one
//
// Prints "error: .." for what the core refuses. Any other end is a bug of the core.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core.hpp"
#include "errors.hpp"

namespace core_driver {

using sscc::Core;
using Bytes = std::vector<std::byte>;
using Word = std::int64_t;

struct Stop {};

// -- kernels, by name

Word* words(void* pointer) { return static_cast<Word*>(pointer); }

void nothing(void**, const Word*, Word, Word, void*) {}

// y[u] = x[last - u] + scalar: what other threads wrote before the barrier.
void mirror(void** arguments, const Word* scalars, Word begin, Word end, void* scratch) {
    auto copy = words(scratch);
    for (Word u = begin; u < end; ++u) {
        copy[0] = words(arguments[0])[scalars[0] - u];
        words(arguments[1])[u] = copy[0] + scalars[1];
    }
}

// x[0 .. units) += 1, one word a firing.
void count(void** arguments, const Word*, Word begin, Word end, void*) { words(arguments[0])[0] += end - begin; }

sscc::Kernel kernel(const std::string& name) {
    return name == "mirror" ? mirror : name == "count" ? count : nothing;
}

// -- plans

Bytes read(const char* path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        throw std::runtime_error(std::string("cannot read ") + path);
    }
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto data = reinterpret_cast<const std::byte*>(text.data());
    return {data, data + text.size()};
}

void print(const char* name, const Word* begin, const Word* end) {
    std::printf("%s", name);
    for (; begin != end; ++begin) {
        std::printf(" %lld", static_cast<long long>(*begin));
    }
    std::printf("\n");
}

void run_once(Core& core, const std::string& entry, const std::vector<Word>& scalars) {
    try {
        const auto outputs = core.run(entry, scalars);
        print("outputs", outputs.data(), outputs.data() + outputs.size());
    } catch (const sscc::Error& error) {
        std::printf("error: %s", error.kind());
        for (const auto& [name, value] : error.fields()) {
            const auto* number = std::get_if<std::int64_t>(&value);
            std::printf(" %s=%s", name, number ? std::to_string(*number).c_str() : std::get<std::string>(value).c_str());
        }
        std::printf("\n");
    } catch (const Stop&) {
        std::printf("stopped\n");
    }
}

int run(const Bytes& data, int threads, int repeats, const std::string& entry, const std::vector<Word>& scalars,
        bool stop) {
    auto plan = sscc::parse_plan(data);
    std::vector<sscc::Kernel> kernels;
    for (const auto& name : plan.functions) {
        kernels.push_back(kernel(name));
    }
    const auto regions = plan.regions;
    const auto poll = [stop] {
        if (stop) {
            throw Stop();
        }
    };
    Core core(std::move(plan), std::move(kernels), {}, {.threads = threads}, poll);
    core.trace(true, 16);
    Word hooks = 0;
    core.set_hook({}, [&](std::uint32_t) { ++hooks; });
    for (int i = 0; i < repeats; ++i) {
        run_once(core, entry, scalars);
    }
    for (const auto& region : regions) {
        const auto span = core.region(region.name);
        const auto begin = reinterpret_cast<const Word*>(span.address);
        print(region.name.c_str(), begin, begin + span.bytes / 8);
    }
    print("hooks", &hooks, &hooks + 1);
    return 0;
}

// -- fuzzing

class Fuzzer {
  public:
    Fuzzer(Bytes good, std::uint64_t seed) : good_(std::move(good)), random_(seed) {}

    Bytes damaged() {
        auto data = good_;
        for (auto n = 1 + below(3); n > 0; --n) {
            damage(data);
        }
        return data;
    }

    Word number() {
        constexpr Word most = std::numeric_limits<Word>::max(), least = std::numeric_limits<Word>::min();
        constexpr Word interesting[] = {-1, 0, 1, 2, 7, 64, 1 << 20, Word{1} << 31, Word{1} << 46, most, least};
        return below(2) == 0 ? static_cast<Word>(below(8)) : interesting[below(std::size(interesting))];
    }

  private:
    std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_()) % count; }

    void damage(Bytes& data) {
        const auto words = data.size() / sizeof(Word);
        if (words == 0) {
            return;
        }
        const auto at = static_cast<std::ptrdiff_t>(below(words) * sizeof(Word));
        switch (below(16)) {
            case 0:
                data.resize(below(data.size()));
                break;
            case 1:
                data.erase(data.begin() + at, data.begin() + at + static_cast<std::ptrdiff_t>(sizeof(Word)));
                break;
            case 2: {
                const Bytes copy(data.begin() + at, data.end());
                data.insert(data.begin() + at, copy.begin(), copy.end());
                break;
            }
            case 3:
                for (auto& byte : data) {
                    byte = static_cast<std::byte>(below(256));
                }
                break;
            case 4:
            case 5:
                data[below(data.size())] ^= static_cast<std::byte>(1u << below(8));
                break;
            default: {
                const auto value = number();
                std::memcpy(data.data() + at, &value, sizeof value);
            }
        }
    }

    Bytes good_;
    std::mt19937_64 random_;
};

// Whether the data was a plan.
bool try_plan(const Bytes& data, int threads, Fuzzer& fuzzer) {
    auto plan = sscc::parse_plan(data);
    std::vector<Bytes> memory;
    std::vector<sscc::External> externals;
    for (const auto& region : plan.regions) {
        if (region.kind == sscc::RegionKind::kExternal) {
            memory.emplace_back(static_cast<std::size_t>(std::min(region.bytes, Word{1} << 20)));
            externals.push_back({region.name, memory.back().data(), static_cast<Word>(memory.back().size())});
        }
    }
    const auto entries = plan.entries;
    const std::vector<sscc::Kernel> kernels(plan.functions.size(), nothing);
    Core core(std::move(plan), kernels, externals, {.threads = threads}, [] { throw Stop(); });
    for (const auto& entry : entries) {
        std::vector<Word> scalars;
        for (std::size_t i = 0; i < entry.inputs.size(); ++i) {
            scalars.push_back(fuzzer.number());
        }
        try {
            core.run(entry.name, scalars);
        } catch (const sscc::Error&) {
        } catch (const Stop&) {
        }
    }
    return true;
}

int fuzz(Bytes good, int threads, int count, std::uint64_t seed) {
    Fuzzer fuzzer(std::move(good), seed);
    int plans = 0, refused = 0;
    for (int i = 0; i < count; ++i) {
        try {
            plans += try_plan(fuzzer.damaged(), threads, fuzzer);
        } catch (const sscc::Error&) {
            ++refused;
        } catch (const std::bad_alloc&) {
            ++refused;
        }
    }
    std::printf("%d plans, %d refused\n", plans, refused);
    return 0;
}

int main(int count, char** arguments) {
    try {
        if (count >= 5) {
            const std::string command = arguments[0];
            const auto data = read(arguments[1]);
            const int threads = std::atoi(arguments[2]), repeats = std::atoi(arguments[3]);
            if (command == "fuzz") {
                return fuzz(data, threads, repeats, std::strtoull(arguments[4], nullptr, 10));
            }
            std::vector<Word> scalars;
            for (int i = 5; i < count; ++i) {
                scalars.push_back(std::atoll(arguments[i]));
            }
            return run(data, threads, repeats, arguments[4], scalars, command == "stop");
        }
        std::fprintf(stderr, "usage: driver core run|stop|fuzz FILE THREADS COUNT ENTRY|SEED [SCALARS]\n");
    } catch (const std::exception& error) {
        std::printf("error: %s\n", error.what());
    }
    return 1;
}

}  // namespace core_driver
