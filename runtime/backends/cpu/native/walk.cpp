// Execution of an entry's code by a thread: control, runs and barriers.
#include <algorithm>
#include <ctime>
#include <span>
#include <string>

#include "core.hpp"
#include "errors.hpp"
#include "scalar.hpp"

namespace sscc {

namespace {

__extension__ using Wide = __int128;  // can hold every sum within a plan's bounds

constexpr std::chrono::nanoseconds kPollEvery = std::chrono::milliseconds(20);
constexpr std::int64_t kNoteBytes = 64;       // NOTE_BYTES of plan.py
constexpr std::uint32_t kTicks = 256;  // iterations and firings between two checks for an early end

// The time of a clock that is cheap to read, with a resolution of a few milliseconds.
std::chrono::nanoseconds coarse_clock() {
#if defined(CLOCK_MONOTONIC_COARSE)
    timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
#else
    return std::chrono::steady_clock::now().time_since_epoch();
#endif
}

}  // namespace

void Core::walk(Member& member, const Entry& entry) {
    const auto code = entry.code.data();
    const auto registers = member.registers;
    for (std::uint32_t next = 0;;) {
        const auto& i = code[next++];
        switch (i.op) {
            case Op::kLoopInit:
                registers[i.target] = registers[i.x];
                registers[i.target + 1] = registers[i.y];
                break;
            case Op::kLoopNext:
                if (!goes_on(member)) {
                    return;
                }
                if (registers[i.x] < registers[i.x + 1]) {
                    registers[i.target] = registers[i.x]++;
                } else {
                    next = i.jump;
                }
                break;
            case Op::kJump:
                next = i.jump;
                break;
            case Op::kBranch:
                next = registers[i.x] != 0 ? next : i.jump;
                break;
            case Op::kExecute:
                if (!execute(member, i.x)) {
                    return;
                }
                break;
            case Op::kBarrier:
                if (!barrier(member)) {
                    return;
                }
                break;
            case Op::kMeet:
                if (!meet(member, plan_.meetings[i.x])) {
                    return;
                }
                break;
            case Op::kEnd:
                return;
            default:
                registers[i.target] = evaluate(i, registers);
        }
    }
}

bool Core::barrier(Member& member) {
    if (!tracing_) [[likely]] {
        return team_->barrier();
    }
    const auto start = monotonic_nanoseconds();
    const bool open = team_->barrier();
    member.trace.add(kBarrierLabel, member.thread, start);
    return open;
}

// A meeting of all ranks with all their threads. Afterwards the inbox holds the contents of their windows, and the next
// data are written to the other windows, so that no rank overwrites data that another still reads: there is another
// meeting before these windows are used again.
bool Core::meet(Member& member, std::int64_t bytes) {
    const auto start = tracing_ ? monotonic_nanoseconds() : 0;
    if (!team_->barrier()) {
        return false;
    }
    if (member.thread == 0) {
        windows_.exchange->meet(bytes, turn_, [this] { poll(); });
        turn_ = 1 - turn_;
    }
    if (!team_->barrier()) {
        return false;
    }
    place_windows(member);
    if (tracing_) {
        member.trace.add(kMeetingLabel, member.thread, start);
    }
    return true;
}

// Returns false if the walk has to end.
bool Core::execute(Member& member, std::uint32_t index) {
    const auto& run = plan_.runs[index];
    if (member.thread == 0) {
        poll();
    }
    if (!tracing_) [[likely]] {
        fire(member, run);
    } else {
        const auto start = monotonic_nanoseconds();
        fire(member, run);
        member.trace.add(static_cast<std::int32_t>(run.label), member.thread, start);
    }
    if (hooked_.empty() || !hooked_[index]) [[likely]] {
        return true;
    }
    if (!team_->barrier()) {
        return false;
    }
    if (member.thread == 0) {
        hook_(index);
    }
    return team_->barrier();
}

// Clears the notes at the start of a function's scratch about data that it keeps between calls (plan.py, PlanRun).
void Core::forget(Member& member) const {
    const auto bytes = std::min(plan_.scratch_bytes, kNoteBytes);
    std::fill_n(member.scratch, bytes, std::byte{0});
}

// Executes this thread's part of a run.
void Core::fire(Member& member, const Run& run) {
    std::int64_t begin = 0, end = run.total;
    if (run.mode == Mode::kSplit) {
        begin = run.total * member.thread / team_->size();
        end = run.total * (member.thread + 1) / team_->size();
    } else if (run.mode == Mode::kSerial && member.thread != 0) {
        end = 0;
    }
    const auto grid = std::span(plan_.grid).subspan(run.grid.begin, run.grid.end - run.grid.begin);
    if (begin < end) {
        if (run.mode == Mode::kSplit) {
            forget(member);
        }
        if (grid.empty()) {
            call(member, run, begin, end);
        } else {
            fire_grid(member, run, begin, end, grid);
        }
    }
    for (const auto& axis : grid) {  // same on all threads, regardless of their parts
        member.registers[axis.reg] = 0;
    }
}

// Executes units [begin, end) of all firings together, firing by firing.
void Core::fire_grid(Member& member, const Run& run, std::int64_t begin, std::int64_t end,
                     std::span<const GridAxis> grid) {
    const auto first = begin / run.units;
    auto rest = first;
    for (auto axis = grid.rbegin(); axis != grid.rend(); ++axis) {
        member.registers[axis->reg] = rest % axis->trips;
        rest /= axis->trips;
    }
    for (auto unit = first * run.units; unit < end && goes_on(member); unit += run.units) {
        call(member, run, std::max(begin - unit, std::int64_t{0}), std::min(end - unit, run.units));
        for (auto axis = grid.rbegin(); axis != grid.rend(); ++axis) {
            if (++member.registers[axis->reg] < axis->trips) {
                break;
            }
            member.registers[axis->reg] = 0;
        }
    }
}

void Core::call(Member& member, const Run& run, std::int64_t begin, std::int64_t end) {
    if (run.mode != Mode::kSplit) {  // a firing may read the output of an earlier one
        forget(member);
    }
    auto pointer = member.arguments;
    for (auto i = run.arguments.begin; i < run.arguments.end; ++i) {
        const auto& argument = plan_.arguments[i];
        Wide offset = argument.offset;
        for (auto t = argument.terms.begin; t < argument.terms.end; ++t) {
            offset += static_cast<Wide>(member.registers[plan_.terms[t].reg]) * plan_.terms[t].coefficient;
        }
        if (offset < 0 || offset > argument.last) [[unlikely]] {
            out_of_region(run, argument);
        }
        *pointer++ = member.bases[argument.region] + static_cast<std::int64_t>(offset);
    }
    auto scalar = member.scalars;
    for (auto i = run.scalars.begin; i < run.scalars.end; ++i) {
        *scalar++ = member.registers[plan_.scalars[i]];
    }
    kernels_[run.function](member.arguments, member.scalars, begin, end, member.scratch);
    if (member.scalars[-1] != 0) [[unlikely]] {
        fail("INDEX_OUT_OF_RANGE", {{"stage", plan_.labels[run.label]}});
    }
}

void Core::out_of_region(const Run& run, const Argument& argument) const {
    const auto place = static_cast<std::size_t>(&argument - plan_.arguments.data()) - run.arguments.begin;
    const auto& region = plan_.regions[argument.region];
    fail("OUT_OF_REGION", {{"stage", plan_.labels[run.label]},
                           {"argument", number(place)},
                           {"bytes", region.bytes - argument.last},
                           {"region", region.name},
                           {"region_bytes", region.bytes}});
}

// Returns true to continue the walk. Every kTicks calls thread 0 polls, which may throw, and each thread checks for a
// failure of another one.
bool Core::goes_on(Member& member) {
    if (++member.ticks % kTicks != 0) [[likely]] {
        return true;
    }
    if (member.thread == 0) {
        poll();
    }
    return !team_->aborted();
}

void Core::poll() {
    if (!poll_) {
        return;
    }
    if (const auto now = coarse_clock(); now >= next_poll_) [[unlikely]] {
        next_poll_ = now + kPollEvery;
        poll_();
    }
}

void Core::postpone_poll() { next_poll_ = coarse_clock() + kPollEvery; }

}  // namespace sscc
