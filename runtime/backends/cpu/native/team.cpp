#include "team.hpp"

#include <csignal>
#include <string>
#include <utility>

#include <pthread.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include "errors.hpp"
#include "floating_point.hpp"
#include "machine.hpp"
#include "relax.hpp"

namespace sscc {

namespace {

// Blocks all signals in threads that are started in its scope, so that other threads of the process handle them.
class SignalsBlocked {
  public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &saved_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  private:
    sigset_t saved_;
};

#if defined(__linux__)

std::vector<int> allowed_cpus() {
    cpu_set_t mask;
    std::vector<int> cpus;
    if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            if (CPU_ISSET(cpu, &mask)) {
                cpus.push_back(cpu);
            }
        }
    }
    return cpus;
}

// Asks the system to keep the calling thread on a CPU. The system may refuse; the thread then runs anywhere.
void stay_on(int cpu) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(cpu, &mask);
    sched_setaffinity(0, sizeof mask, &mask);
}

// Moves the calling thread to a CPU, but lets the system move it again.
void move_to(int cpu) {
    cpu_set_t mask;
    if (sched_getcpu() != cpu && sched_getaffinity(0, sizeof mask, &mask) == 0) {
        stay_on(cpu);
        sched_setaffinity(0, sizeof mask, &mask);
    }
}

#else

std::vector<int> allowed_cpus() { return {}; }

void stay_on(int) {}

void move_to(int) {}

#endif

int checked(int threads) {
    if (threads < 1 || threads > Team::kMostThreads) {
        fail("THREADS", {{"threads", threads}, {"most", Team::kMostThreads}});
    }
    return threads;
}

}  // namespace

Team::Team(const TeamOptions& options)
    : size_(checked(options.threads)), process_(getpid()), spin_(options.spin), thrown_(options.threads) {
    if (size_ > usable_threads()) {
        spin_ = std::chrono::nanoseconds(0);  // a spinning thread may occupy the CPU of the thread that it waits for
    } else if (auto cpus = allowed_cpus(); size_ <= static_cast<int>(cpus.size())) {
        if (options.pin.value_or(size_ == static_cast<int>(cpus.size()))) {
            cpus_ = std::move(cpus);
        }
    }
    workers_ = std::make_unique<std::vector<std::thread>>();
    workers_->reserve(static_cast<std::size_t>(size_ - 1));
    const SignalsBlocked blocked;
    try {
        for (int member = 1; member < size_; ++member) {
            workers_->emplace_back([this, member] { work(member); });
        }
    } catch (...) {
        stop();
        throw;
    }
}

Team::~Team() {
    if (getpid() != process_) {
        static_cast<void>(workers_.release());  // a child made by fork() has none of these threads to join
        return;
    }
    stop();
}

void Team::stop() {
    stopping_ = true;
    started_.fetch_add(2);
    started_.notify_all();
    for (auto& worker : *workers_) {
        worker.join();
    }
}

void Team::work(int member) {
    if (!cpus_.empty()) {
        stay_on(cpus_[static_cast<std::size_t>(member)]);
    }
    for (std::uint32_t seen = 0;;) {
        seen = await_change(started_, seen);
        if (stopping_) {
            return;
        }
        if (seen % 2 == 0) {
            perform(member);
            if (unfinished_.fetch_sub(1) == 1) {
                unfinished_.notify_all();
            }
        } else if (enters(seen)) {
            perform(member);
            unfinished_.fetch_add(1);
            unfinished_.notify_all();
        }
    }
}

void Team::perform(int member) {
    const DefaultFloatingPoint floating_point;
    try {
        (*job_)(member);
    } catch (...) {
        thrown_[static_cast<std::size_t>(member)] = std::current_exception();
        aborted_.store(true);
        phase_.fetch_add(1);
        phase_.notify_all();
    }
}

// Releases the team at the end of a scope.
class Team::Taken {
  public:
    explicit Taken(Team& team) : team_(team) {}
    ~Taken() {
        team_.taken_.store(false, std::memory_order_release);
        team_.taken_.notify_one();
    }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;

  private:
    Team& team_;
};

void Team::run(const std::function<void(int)>& job) {
    if (size_ == 1) {
        run_alone(job);
        return;
    }
    if (getpid() != process_) {
        fail("FORKED");
    }
    while (taken_.exchange(true, std::memory_order_acquire)) {
        taken_.wait(true, std::memory_order_relaxed);
    }
    const Taken taken(*this);
    begin(job, static_cast<std::uint32_t>(size_ - 1), false);
    perform(0);
    for (auto left = unfinished_.load(std::memory_order_acquire); left != 0;) {
        left = await_change(unfinished_, left);
    }
    rethrow();
}

void Team::share(const std::function<void(int)>& job) {
    if (size_ == 1 || getpid() != process_ || taken_.exchange(true, std::memory_order_acquire)) {
        run_alone(job);
        return;
    }
    const Taken taken(*this);
    begin(job, 0, true);
    perform(0);
    const auto came = static_cast<std::uint32_t>(door_.exchange(0));
    for (auto left = unfinished_.load(std::memory_order_acquire); left != came;) {
        left = await_change(unfinished_, left);
    }
    rethrow();
}

void Team::run_alone(const std::function<void(int)>& job) {
    const DefaultFloatingPoint floating_point;
    job(0);
}

void Team::begin(const std::function<void(int)>& job, std::uint32_t unfinished, bool shared) {
    if (!cpus_.empty()) {
        move_to(cpus_[0]);
    }
    job_ = &job;
    unfinished_.store(unfinished, std::memory_order_relaxed);
    const auto started = ((started_.load(std::memory_order_relaxed) | 1) + 1) | (shared ? 1u : 0u);
    if (shared) {
        door_.store(std::uint64_t{started} << 32);
    }
    started_.store(started);
    started_.notify_all();
}

// Returns true if a worker joins the shared job that woke it up. The job may have ended meanwhile, and other jobs may
// have begun.
bool Team::enters(std::uint32_t started) {
    for (auto door = door_.load(); door >> 32 == started;) {
        if (door_.compare_exchange_weak(door, door + 1)) {
            return true;
        }
    }
    return false;
}

// Throws the exception of the member with the lowest number, if any threw.
void Team::rethrow() {
    if (aborted_.load(std::memory_order_relaxed)) {
        aborted_.store(false, std::memory_order_relaxed);
        arrived_.store(0, std::memory_order_relaxed);
        std::exception_ptr first;
        for (auto& thrown : thrown_) {
            const auto exception = std::exchange(thrown, nullptr);
            first = first ? first : exception;
        }
        std::rethrow_exception(first);
    }
}

bool Team::barrier() {
    if (size_ == 1) {
        return true;
    }
    // A member that throws sets the flag and then changes the phase. A member that reads the phase first, and does not
    // see the flag yet, will therefore see the phase change.
    const auto phase = phase_.load(std::memory_order_acquire);
    if (aborted()) {
        return false;
    }
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(size_)) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.fetch_add(1);
        phase_.notify_all();
    } else {
        await_change(phase_, phase);
    }
    return !aborted();
}

std::uint32_t Team::await_change(const Word& word, std::uint32_t old) const {
    constexpr int kPauses = 32;  // iterations between two reads of the clock
    if (spin_.count() > 0) {
        std::chrono::steady_clock::time_point end;
        do {
            for (int i = 0; i < kPauses; ++i) {
                if (const auto now = word.load(std::memory_order_acquire); now != old) {
                    return now;
                }
                relax();
            }
            if (end == std::chrono::steady_clock::time_point()) {
                end = std::chrono::steady_clock::now() + spin_;
            }
        } while (std::chrono::steady_clock::now() < end);
    }
    word.wait(old, std::memory_order_acquire);
    return word.load(std::memory_order_acquire);
}

}  // namespace sscc
