#include "exchange.hpp"

#include <algorithm>
#include <ctime>
#include <limits>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "relax.hpp"

namespace sscc {

namespace {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

constexpr std::chrono::nanoseconds kNap = std::chrono::milliseconds(20);  // maximum time between two checks

// Sleeps until the word changes and its writer wakes this thread, at most for kNap. Words may be in shared memory.
void nap(std::atomic<std::uint32_t>& word, std::uint32_t old) {
#if defined(__linux__)
    timespec most{0, static_cast<long>(kNap.count())};
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, old, &most, nullptr, 0);
#else
    if (word.load() == old) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
#endif
}

void wake(std::atomic<std::uint32_t>& word) {
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr,
            nullptr, 0);
#endif
}

}  // namespace

Meeting::Meeting(std::byte* memory, const Options& options) : memory_(memory), options_(options) {
    if (options.ranks < 1 || options.ranks > kMostRanks || options.rank < 0 || options.rank >= options.ranks) {
        fail("RANK", {{"rank", options.rank}, {"ranks", options.ranks}, {"most", kMostRanks}});
    }
    if (memory == nullptr || reinterpret_cast<std::uintptr_t>(memory) % kLine != 0) {
        fail("MEETING_ADDRESS");
    }
}

void Meeting::meet(std::int64_t, int, const std::function<void()>& idle) {
    check();
    auto& own = count(options_.rank);
    const auto number = own.load(std::memory_order_relaxed) + 1;
    own.store(number);
    if (sleepers(options_.rank).load() != 0) {
        wake(own);
    }
    for (int rank = 0; rank < options_.ranks; ++rank) {
        await(rank, number, idle);
    }
}

// Waits until a rank has counted to `number`. The rank can be ahead by one at most, because it needs this rank for the
// next meeting.
void Meeting::await(int rank, std::uint32_t number, const std::function<void()>& idle) {
    auto& word = count(rank);
    const auto there = [&](std::uint32_t seen) { return static_cast<std::int32_t>(seen - number) >= 0; };
    if (there(word.load(std::memory_order_acquire))) {
        return;
    }
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < options_.spin) {
        for (int i = 0; i < 32; ++i) {
            if (there(word.load(std::memory_order_acquire))) {
                return;
            }
            relax();
        }
    }
    std::chrono::nanoseconds waited{0};
    for (auto last = std::chrono::steady_clock::now();;) {
        sleepers(rank).fetch_add(1);
        const auto seen = word.load();
        if (!there(seen)) {
            nap(word, seen);
        }
        sleepers(rank).fetch_sub(1);
        if (there(word.load(std::memory_order_acquire))) {
            return;
        }
        check();
        idle();
        const auto now = std::chrono::steady_clock::now();
        waited += std::min<std::chrono::nanoseconds>(now - last, 5 * kNap);  // bounded, in case the process was suspended
        last = now;
        if (waited > options_.timeout) {
            end(rank, Ending::kStalled);
            check();
        }
    }
}

void Meeting::end(int rank, Ending ending) {
    std::uint32_t expected = 0;
    ended().compare_exchange_strong(expected, (static_cast<std::uint32_t>(rank) << 8) | static_cast<std::uint32_t>(ending));
    for (int other = 0; other < options_.ranks; ++other) {
        wake(count(other));
    }
}

void Meeting::check() const {
    const auto word = ended().load(std::memory_order_acquire);
    if (word == 0) [[likely]] {
        return;
    }
    const auto rank = static_cast<std::int64_t>(word >> 8);
    switch (static_cast<Ending>(word & 0xff)) {
        case Ending::kStalled:
            fail("RANK_STALLED", {{"rank", rank}});
        case Ending::kEnded:
            fail("RANK_ENDED", {{"rank", rank}});
        default:
            fail("RANK_FAILED", {{"rank", rank}});
    }
}

}  // namespace sscc
