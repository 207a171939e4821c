// The native interpreter: a plan, its memory, and the threads that execute it.
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

// A generated function. It computes units [begin, end) of one firing.
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

// Exchange of data between ranks: for each of two turns, the windows of all ranks, one after another.
struct Windows {
    std::byte* address = nullptr;
    int rank = 0, ranks = 1;
    std::shared_ptr<Exchange> exchange;
};

// Not reentrant: a call during the execution of an entry, from any thread, throws Error.
class Core {
  public:
    // Called by thread 0 after a run, while the other threads wait. An exception from it ends the entry.
    using Hook = std::function<void(std::uint32_t run)>;
    // Called by thread 0 about every 20 ms during the execution of an entry. An exception from it ends the entry.
    using Poll = std::function<void()>;

    // Throws Error if kernels or externals do not match the plan; std::bad_alloc; and the exceptions of Team.
    // `windows`: required if the plan has window regions, whose sizes the plan defines.
    // `guarded`: surrounds every region with inaccessible pages, and copies external regions for that. For tests.
    Core(Plan plan, std::vector<Kernel> kernels, const std::vector<External>& externals, const TeamOptions& options,
         Poll poll = {}, Windows windows = {}, bool guarded = false);

    const Plan& plan() const { return plan_; }
    int threads() const { return team_->size(); }

    // The threads of the core. Other callers may use them between two entries; an entry waits until they are done.
    std::shared_ptr<Team> team() const { return team_; }

    // Executes an entry and returns its outputs. Throws Error for an unknown entry, a wrong number of scalars, a
    // division by 0, and a pointer outside of its region; memory then keeps what was written before the error.
    std::vector<std::int64_t> run(const std::string& entry, std::span<const std::int64_t> scalars);

    // The address of a region; for a private region, of the copy of `thread`. Throws Error for an unknown name or
    // thread.
    Span region(const std::string& name, int thread = 0) const;

    // Bytes of the arena and of the private memory of all threads.
    std::size_t allocated_bytes() const;

    // Zeroes the arena and the private regions: all, or the named ones. Throws Error for an unknown or external region.
    void reset(const std::optional<std::vector<std::string>>& names);

    // Registers of thread 0, without those of loops; within a hook, their current values.
    std::vector<std::int64_t> registers() const;

    // Starts a new trace with room for `capacity` events per thread; or stops tracing.
    void trace(bool on, std::size_t capacity);
    std::vector<Event> events() const;
    const std::vector<Total>& totals(int thread) const;

    // Sets a hook that is called after every run with one of these labels (empty: all runs); an empty function removes
    // it. Throws Error for a label that the plan does not have.
    void set_hook(const std::vector<std::string>& labels, Hook hook);

  private:
    // State of one thread. The pointers are into `pieces`. Threads share no cache line.
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

    // The parts of `run` that a thread executes (walk.cpp); they return false if the walk has to end.
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
    int turn_ = 0;  // the turn of the windows that this rank writes
    Pieces arena_;
    std::vector<Member> members_;
    Hook hook_;
    std::vector<char> hooked_;  // per run, whether the hook is called after it; empty without a hook
    bool tracing_ = false;
    mutable std::atomic<bool> busy_ = false;
    std::shared_ptr<Team> team_;
};

}  // namespace sscc
