// The native interpreter: a plan, the memory that it names, and the threads that walk it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exchange.hpp"
#include "memory.hpp"
#include "plan.hpp"
#include "team.hpp"
#include "trace.hpp"

namespace sscc {

// A generated function, which computes units [begin, end) of one firing.
using Kernel = void (*)(void** arguments, const std::int64_t* scalars, std::int64_t begin, std::int64_t end,
                        void* scratch);

struct External {
    std::string name;
    std::byte* address;
    std::int64_t bytes;
};

struct Span {
    std::byte* address;
    std::int64_t bytes;
};

// Where ranks exchange what they have: for each of two turns a window of every rank, one after another.
struct Windows {
    std::byte* address = nullptr;
    int rank = 0, ranks = 1;
    std::shared_ptr<Exchange> exchange;
};

// Not to be called from several threads at once: what comes while an entry runs is refused with an Error.
class Core {
  public:
    // Called after a run by thread 0, while the other threads wait; what it throws ends the entry.
    using Hook = std::function<void(std::uint32_t run)>;
    // Called by thread 0 every 20 ms or so while an entry runs; what it throws ends the entry.
    using Poll = std::function<void()>;

    // Throws Error where kernels or externals are not what the plan names, std::bad_alloc, and what Team throws.
    // `windows`: needed where the plan has regions of windows; their sizes are the plan's.
    // `guarded`: every region has pages around it that cannot be touched; external ones are copied for that. For tests.
    Core(Plan plan, std::vector<Kernel> kernels, const std::vector<External>& externals, const TeamOptions& options,
         Poll poll = {}, Windows windows = {}, bool guarded = false);

    const Plan& plan() const { return plan_; }
    int threads() const { return team_->size(); }

    // Its threads. Others may use them between two entries; an entry waits until such work is done.
    std::shared_ptr<Team> team() const { return team_; }

    // Executes an entry and returns its outputs. Throws Error for an unknown entry, a wrong number of scalars, a
    // division by 0 and a pointer out of its region; after that, memory holds whatever was written until then.
    std::vector<std::int64_t> run(const std::string& entry, std::span<const std::int64_t> scalars);

    // Where a region is; of a private one, the copy of `thread`. Throws Error for an unknown name or thread.
    Span region(const std::string& name, int thread = 0) const;

    // Bytes of the arena and of what every thread has for itself.
    std::size_t allocated_bytes() const;

    // Zeroes arena and private regions: all of them, or those named. Throws Error for an unknown one or another.
    void reset(const std::optional<std::vector<std::string>>& names);

    // Registers of thread 0, without those of loops; within a hook, their present values.
    std::vector<std::int64_t> registers() const;

    // Switches tracing on, forgetting what was traced, with room for `capacity` events per thread; or off.
    void trace(bool on, std::size_t capacity);
    std::vector<Event> events() const;
    const std::vector<Total>& totals(int thread) const;

    // A hook after every run of these labels (empty: of all); an empty function takes it away. Throws Error for
    // a label that the plan does not have.
    void set_hook(const std::vector<std::string>& labels, Hook hook);

  private:
    // What a thread has for itself. The pointers are into `pieces`. No cache line is shared with another thread.
    struct alignas(64) Member {
        int thread = 0;
        std::uint32_t ticks = 0;
        std::int64_t* registers = nullptr;
        void** arguments = nullptr;
        std::int64_t* scalars = nullptr;
        std::byte* scratch = nullptr;
        std::vector<std::byte*> bases;  // by region
        Trace trace;
        Pieces pieces;
    };
    class Busy;

    void place_shared(const std::vector<External>& externals);
    void place_private(Member& member, int thread) const;
    void check_windows() const;
    void place_windows(Member& member) const;
    const Entry& entry(const std::string& name) const;
    std::size_t region_index(const std::string& name) const;

    // What a thread does within `run` (walk.cpp); false: the walk has to end.
    void walk(Member& member, const Entry& entry);
    bool barrier(Member& member);
    bool meet(Member& member, std::int64_t bytes);
    bool execute(Member& member, std::uint32_t index);
    void forget(Member& member) const;
    void fire(Member& member, const Run& run);
    void fire_grid(Member& member, const Run& run, std::int64_t begin, std::int64_t end,
                   std::span<const GridAxis> grid);
    void call(Member& member, const Run& run, std::int64_t begin, std::int64_t end);
    [[noreturn]] void out_of_region(const Run& run, const Argument& argument) const;
    bool goes_on(Member& member);
    void poll();
    void postpone_poll();

    const Plan plan_;
    const std::vector<Kernel> kernels_;
    const Poll poll_;
    std::chrono::nanoseconds next_poll_{0};
    const Windows windows_;
    const bool guarded_;
    int turn_ = 0;  // of the windows that this rank writes
    Pieces arena_;
    std::vector<Member> members_;
    Hook hook_;
    std::vector<char> hooked_;  // for each run, whether the hook is called after it; empty where there is no hook
    bool tracing_ = false;
    mutable std::atomic<bool> busy_ = false;
    std::shared_ptr<Team> team_;
};

}  // namespace sscc
