// A team of threads that all execute the same job at the same time. The calling thread is member 0.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace sscc {

struct TeamOptions {
    int threads = 1;
    // True if each worker stays on a CPU of its own, and the caller starts on one. Unset, it is true if there are as
    // many threads as CPUs: with fewer threads, the teams of two processes would share CPUs. Ignored if there are fewer
    // CPUs than threads.
    std::optional<bool> pin = std::nullopt;
    std::chrono::nanoseconds spin = std::chrono::microseconds(50);  // time before a waiting thread sleeps
};

// Threads are started once and sleep between jobs. A team runs one job at a time, which any thread may submit. A team
// belongs to the process that made it: a child made by fork() has none of its threads.
class Team {
  public:
    static constexpr int kMostThreads = 1024;

    // Throws Error for fewer than 1 or too many threads, and std::system_error if they cannot be started.
    explicit Team(const TeamOptions& options);
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;
    ~Team();

    int size() const { return size_; }

    // Calls job(member) on every thread, with the default floating-point environment, and returns when all are done. If
    // members throw, rethrows the exception of the lowest one; the team stays usable. Waits for the end of another
    // thread's job; a job must not call this. Throws Error in a child of the team's process.
    void run(const std::function<void(int)>& job);

    // Calls job(member) on this thread, and on each thread that joins before this one is done. Returns when all that
    // joined are done; it does not wait for a thread that sleeps or whose CPU is busy. If the team runs another job or
    // belongs to another process, only this thread calls the job. Otherwise like `run`; the job must not call
    // `barrier`.
    void share(const std::function<void(int)>& job);

    // Within a job of `run`: returns true once all members have made the same number of calls. Returns false if a
    // member has thrown; the job should then end.
    bool barrier();

    // Returns true if a member has thrown; for long work without barriers.
    bool aborted() const { return aborted_.load(std::memory_order_relaxed); }

  private:
    using Word = std::atomic<std::uint32_t>;
    class Taken;

    static void run_alone(const std::function<void(int)>& job);
    void begin(const std::function<void(int)>& job, std::uint32_t unfinished, bool shared);
    void rethrow();
    bool enters(std::uint32_t started);
    void stop();
    void work(int member);
    void perform(int member);
    std::uint32_t await_change(const Word& word, std::uint32_t old) const;

    const int size_;
    const long process_;
    std::chrono::nanoseconds spin_;
    std::vector<int> cpus_;  // one per member; empty for no affinity
    std::unique_ptr<std::vector<std::thread>> workers_;
    const std::function<void(int)>* job_ = nullptr;  // of the current run
    std::atomic<bool> stopping_ = false;
    std::vector<std::exception_ptr> thrown_;  // by member

    // Each on a cache line of its own: the caller writes the first two, all members write the others.
    alignas(64) std::atomic<bool> taken_ = false;      // true while a thread runs a job
    alignas(64) Word started_ = 0;                     // changes when a job begins; odd for a shared job
    alignas(64) std::atomic<std::uint64_t> door_ = 0;  // upper half: a shared job's started_; lower: joined; 0: closed
    alignas(64) Word unfinished_ = 0;  // workers that have not finished the job; for a shared job, those that have
    alignas(64) Word arrived_ = 0;     // members that wait at the barrier
    alignas(64) Word phase_ = 0;       // changes when a barrier opens, and when a member has thrown
    alignas(64) std::atomic<bool> aborted_ = false;
};

}  // namespace sscc
