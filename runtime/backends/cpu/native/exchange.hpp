// Where ranks of one program meet: what each has put into its window, all may read after a meeting.
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
    // Returns when all ranks have called it as often as this one: the first `bytes` of their windows of `turn` can then
    // be read. `idle` is called now and then while it waits. Throws Error, and what `idle` throws.
    virtual void meet(std::int64_t bytes, int turn, const std::function<void()>& idle) = 0;
};

// Meets in memory that all ranks see: threads of one process, or processes that map the same pages. A rank counts its
// meetings on a cache line of its own, and waits until the others have counted as far.
class Meeting : public Exchange {
  public:
    static constexpr std::size_t kLine = 64;
    static constexpr int kMostRanks = 1024;

    enum class Ending : std::uint32_t { kFailed = 1, kStalled, kEnded };

    struct Options {
        int rank = 0, ranks = 1;
        std::chrono::nanoseconds timeout = std::chrono::seconds(6);  // that a rank waits for another one
        std::chrono::nanoseconds spin{0};                            // before it sleeps
    };

    // Bytes of the memory that it needs, zeroed at the start and aligned to a cache line.
    static std::size_t bytes(int ranks) { return kLine * (static_cast<std::size_t>(ranks) + 1); }

    // Throws Error for a rank that there is not, or memory that is not aligned.
    Meeting(std::byte* memory, const Options& options);

    void meet(std::int64_t bytes, int turn, const std::function<void()>& idle) override;

    // Ends all meetings: whoever waits, or comes later, throws Error, which says what became of `rank`. The first
    // call counts.
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
