// Meetings (barriers) of the ranks of a program: after a meeting, every rank may read the windows that all have
// written.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "errors.hpp"

namespace sscc {

class Exchange {
  public:
    virtual ~Exchange() = default;
    // Returns when all ranks have made the same number of calls. The first `bytes` of their windows of `turn` can then
    // be read. Calls `idle` regularly while it waits. Throws Error, and the exceptions of `idle`.
    virtual void meet(std::int64_t bytes, int turn, const std::function<void()>& idle) = 0;
};

// Meetings in memory shared by all ranks: threads of one process, or processes that map the same pages. A rank counts
// its meetings in a cache line of its own, and waits until the other ranks have counted as far.
class Meeting : public Exchange {
  public:
    static constexpr std::size_t kLine = 64;
    static constexpr int kMostRanks = 1024;

    enum class Ending : std::uint32_t { kFailed = 1, kStalled, kEnded };

    struct Options {
        int rank = 0, ranks = 1;
        std::chrono::nanoseconds timeout = std::chrono::seconds(6);  // maximum wait for another rank
        std::chrono::nanoseconds spin{0};                            // spinning time before sleep
    };

    // Size of the shared memory in bytes. The memory must be zeroed at the start and aligned to a cache line.
    static std::size_t bytes(int ranks) { return kLine * (static_cast<std::size_t>(ranks) + 1); }

    // Throws Error for a rank out of range, or unaligned memory.
    Meeting(std::byte* memory, const Options& options);

    void meet(std::int64_t bytes, int turn, const std::function<void()>& idle) override;

    // Ends all meetings: every present and later wait throws an Error that says what happened to `rank`. Only the first
    // call has an effect.
    void end(int rank, Ending ending);

  private:
    using Word = std::atomic<std::uint32_t>;

    Word& count(int rank) const { return *reinterpret_cast<Word*>(memory_ + kLine * static_cast<std::size_t>(rank + 1)); }
    Word& sleepers(int rank) const { return *(&count(rank) + 1); }
    Word& ended() const { return *reinterpret_cast<Word*>(memory_); }
    void check() const;
    void await(int rank, std::uint32_t number, const std::function<void()>& idle);

    std::byte* const memory_;
    const Options options_;
};

}  // namespace sscc
