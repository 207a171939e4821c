// Timeline of a thread's work, in memory that is allocated before it runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sscc {

constexpr std::int32_t kBarrierLabel = -1;
constexpr std::int32_t kMeetingLabel = -2;

struct Event {
    std::int32_t label;  // index into the plan's labels, kBarrierLabel, or kMeetingLabel (wait for other ranks)
    std::int32_t thread;
    std::int64_t start, end;  // ns of the monotonic clock
};

struct Total {
    std::int64_t count = 0, nanoseconds = 0;
};

inline std::int64_t monotonic_nanoseconds() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The trace of one thread: its latest events, and sums over all events.
class Trace {
  public:
    Trace() = default;
    Trace(std::size_t capacity, std::size_t labels) : ring_(capacity), totals_(labels + 2) {}

    void add(std::int32_t label, std::int32_t thread, std::int64_t start) {
        const auto end = monotonic_nanoseconds();
        if (!ring_.empty()) {
            ring_[next_] = {label, thread, start, end};
            next_ = next_ + 1 == ring_.size() ? 0 : next_ + 1;
        }
        auto& total = totals_[static_cast<std::size_t>(label + 2)];
        ++total.count;
        total.nanoseconds += end - start;
    }

    // Returns the events in the order of time.
    std::vector<Event> events() const {
        std::vector<Event> list;
        for (std::size_t i = 0; i < ring_.size(); ++i) {
            const auto& event = ring_[(next_ + i) % ring_.size()];
            if (event.end != 0) {
                list.push_back(event);
            }
        }
        return list;
    }

    // The sums of kMeetingLabel, of kBarrierLabel, then those of the labels; empty if nothing was ever traced.
    const std::vector<Total>& totals() const { return totals_; }

  private:
    std::vector<Event> ring_;
    std::vector<Total> totals_;
    std::size_t next_ = 0;
};

}  // namespace sscc
