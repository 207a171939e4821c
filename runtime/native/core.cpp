#include "core.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <set>
#include <utility>

#include "errors.hpp"
#include "scalar.hpp"

namespace sscc {

namespace {

__extension__ using Wide = __int128;  // holds every sum that a plan's bounds allow

constexpr std::chrono::nanoseconds kPollEvery = std::chrono::milliseconds(20);
constexpr std::uint32_t kTicks = 256;  // iterations and firings between two looks at the world

// Cheap, and exact to a few milliseconds.
std::chrono::nanoseconds coarse_clock() {
#if defined(CLOCK_MONOTONIC_COARSE)
    timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
#else
    return std::chrono::steady_clock::now().time_since_epoch();
#endif
}

std::string quoted(const std::string& name) { return "'" + name + "'"; }

}  // namespace

// Marks the core as busy for a scope.
class Core::Busy {
  public:
    explicit Busy(const Core& core) : core_(core) {
        if (core_.busy_.exchange(true)) {
            throw UsageError("the native core is running an entry");
        }
    }
    ~Busy() { core_.busy_ = false; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

  private:
    const Core& core_;
};

Core::Core(Plan plan, std::vector<Kernel> kernels, const std::vector<External>& externals, const TeamOptions& options,
           Poll poll)
    : plan_(std::move(plan)), kernels_(std::move(kernels)), poll_(std::move(poll)), team_(options) {
    if (kernels_.size() != plan_.functions.size()) {
        throw InputError("the plan names " + std::to_string(plan_.functions.size()) + " functions, and there are " +
                         std::to_string(kernels_.size()));
    }
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
        if (kernels_[i] == nullptr) {
            throw InputError("function " + quoted(plan_.functions[i]) + " has no address");
        }
    }
    members_.resize(static_cast<std::size_t>(team_.size()));
    members_[0].bases.resize(plan_.regions.size());
    place_shared(externals);
    for (std::size_t t = 0; t < members_.size(); ++t) {
        members_[t].bases = members_[0].bases;
        place_private(members_[t], static_cast<int>(t));
    }
}

void Core::place_shared(const std::vector<External>& externals) {
    auto& bases = members_[0].bases;
    std::set<std::string> given;
    for (const auto& external : externals) {
        const auto index = region_index(external.name);
        const auto& region = plan_.regions[index];
        if (region.kind != RegionKind::kExternal || !given.insert(external.name).second) {
            throw InputError("region " + quoted(external.name) + " was given, but is not external or was given before");
        }
        if (external.bytes < region.bytes || (external.address == nullptr && region.bytes > 0)) {
            throw InputError("region " + quoted(external.name) + " was given with " + std::to_string(external.bytes) +
                             " bytes; the plan needs " + std::to_string(region.bytes));
        }
        bases[index] = external.address;
    }
    Layout layout;
    std::vector<std::size_t> offsets(bases.size());
    for (std::size_t i = 0; i < bases.size(); ++i) {
        const auto& region = plan_.regions[i];
        if (region.kind == RegionKind::kArena) {
            offsets[i] = layout.place(static_cast<std::size_t>(region.bytes));
        } else if (region.kind == RegionKind::kExternal && !given.contains(region.name)) {
            throw InputError("region " + quoted(region.name) + " is external and was not given");
        }
    }
    arena_ = Block(layout.bytes());
    for (std::size_t i = 0; i < bases.size(); ++i) {
        if (plan_.regions[i].kind == RegionKind::kArena) {
            bases[i] = arena_.data() + offsets[i];
        }
    }
}

void Core::place_private(Member& member, int thread) const {
    Layout layout;
    const auto registers = layout.place(plan_.registers.size() * sizeof(std::int64_t));
    const auto arguments = layout.place(plan_.most_arguments * sizeof(void*));
    const auto scalars = layout.place(plan_.most_scalars * sizeof(std::int64_t));
    const auto scratch = layout.place(static_cast<std::size_t>(plan_.scratch_bytes));
    std::vector<std::size_t> offsets(plan_.regions.size());
    for (std::size_t i = 0; i < offsets.size(); ++i) {
        if (plan_.regions[i].kind == RegionKind::kPrivate) {
            offsets[i] = layout.place(static_cast<std::size_t>(plan_.regions[i].bytes));
        }
    }
    member.block = Block(layout.bytes());
    const auto base = member.block.data();
    member.thread = thread;
    member.registers = reinterpret_cast<std::int64_t*>(base + registers);
    member.arguments = reinterpret_cast<void**>(base + arguments);
    member.scalars = reinterpret_cast<std::int64_t*>(base + scalars);
    member.scratch = base + scratch;
    for (std::size_t i = 0; i < offsets.size(); ++i) {
        if (plan_.regions[i].kind == RegionKind::kPrivate) {
            member.bases[i] = base + offsets[i];
        }
    }
}

const Entry& Core::entry(const std::string& name) const {
    for (const auto& entry : plan_.entries) {
        if (entry.name == name) {
            return entry;
        }
    }
    throw InputError("the plan has no entry " + quoted(name));
}

std::size_t Core::region_index(const std::string& name) const {
    for (std::size_t i = 0; i < plan_.regions.size(); ++i) {
        if (plan_.regions[i].name == name) {
            return i;
        }
    }
    throw InputError("the plan has no region " + quoted(name));
}

// -- execution

std::vector<std::int64_t> Core::run(const std::string& name, std::span<const std::int64_t> scalars) {
    const Busy busy(*this);
    const auto& chosen = entry(name);
    if (scalars.size() != chosen.inputs.size()) {
        throw InputError("entry " + quoted(name) + " takes " + std::to_string(chosen.inputs.size()) +
                         " scalars, and there are " + std::to_string(scalars.size()));
    }
    next_poll_ = coarse_clock() + kPollEvery;
    team_.run([&](int thread) {
        auto& member = members_[static_cast<std::size_t>(thread)];
        std::copy(plan_.registers.begin(), plan_.registers.end(), member.registers);
        for (std::size_t i = 0; i < scalars.size(); ++i) {
            member.registers[chosen.inputs[i]] = scalars[i];
        }
        walk(member, chosen);
    });
    std::vector<std::int64_t> outputs;
    for (const auto output : chosen.outputs) {
        outputs.push_back(members_[0].registers[output]);
    }
    return outputs;
}

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
            case Op::kEnd:
                return;
            default:
                registers[i.target] = evaluate(i, registers);
        }
    }
}

bool Core::barrier(Member& member) {
    if (!tracing_) [[likely]] {
        return team_.barrier();
    }
    const auto start = monotonic_nanoseconds();
    const bool open = team_.barrier();
    member.trace.add(kBarrierLabel, member.thread, start);
    return open;
}

// False where the walk has to end.
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
    if (!team_.barrier()) {
        return false;
    }
    if (member.thread == 0) {
        hook_(index);
    }
    return team_.barrier();
}

// This thread's part of a run.
void Core::fire(Member& member, const Run& run) {
    std::int64_t begin = 0, end = run.total;
    if (run.mode == Mode::kSplit) {
        begin = run.total * member.thread / team_.size();
        end = run.total * (member.thread + 1) / team_.size();
    } else if (run.mode == Mode::kSerial && member.thread != 0) {
        end = 0;
    }
    const auto grid = std::span(plan_.grid).subspan(run.grid.begin, run.grid.end - run.grid.begin);
    if (begin < end) {
        if (grid.empty()) {
            call(member, run, begin, end);
        } else {
            fire_grid(member, run, begin, end, grid);
        }
    }
    for (const auto& axis : grid) {  // the same on all threads, whatever their parts were
        member.registers[axis.reg] = 0;
    }
}

// Units [begin, end) of all firings together, firing by firing.
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
}

void Core::out_of_region(const Run& run, const Argument& argument) const {
    const auto place = static_cast<std::size_t>(&argument - plan_.arguments.data()) - run.arguments.begin;
    const auto& region = plan_.regions[argument.region];
    throw InputError("stage " + quoted(plan_.labels[run.label]) + ": argument " + std::to_string(place) + " of " +
                     std::to_string(region.bytes - argument.last) + " bytes leaves region " + quoted(region.name) +
                     " of " + std::to_string(region.bytes) + " bytes");
}

// Every now and then: whether another thread has failed, or somebody wants an end.
bool Core::goes_on(Member& member) {
    if (++member.ticks % kTicks != 0) [[likely]] {
        return true;
    }
    if (member.thread == 0) {
        poll();
    }
    return !team_.aborted();
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

// -- memory, tracing, hooks

Span Core::region(const std::string& name, int thread) const {
    if (thread < 0 || thread >= team_.size()) {
        throw InputError("there is no thread " + std::to_string(thread));
    }
    const auto index = region_index(name);
    return {members_[static_cast<std::size_t>(thread)].bases[index], plan_.regions[index].bytes};
}

void Core::reset(const std::optional<std::vector<std::string>>& names) {
    const Busy busy(*this);
    std::vector<std::size_t> chosen;
    if (names) {
        for (const auto& name : *names) {
            chosen.push_back(region_index(name));
            if (plan_.regions[chosen.back()].kind == RegionKind::kExternal) {
                throw InputError("region " + quoted(name) + " is external");
            }
        }
    } else {
        for (std::size_t i = 0; i < plan_.regions.size(); ++i) {
            if (plan_.regions[i].kind != RegionKind::kExternal) {
                chosen.push_back(i);
            }
        }
    }
    for (const auto index : chosen) {
        const bool shared = plan_.regions[index].kind == RegionKind::kArena;
        for (std::size_t t = 0; t < (shared ? 1 : members_.size()); ++t) {
            std::memset(members_[t].bases[index], 0, static_cast<std::size_t>(plan_.regions[index].bytes));
        }
    }
}

std::vector<std::int64_t> Core::registers() const {
    const auto declared = static_cast<std::ptrdiff_t>(plan_.declared_registers);
    return {members_[0].registers, members_[0].registers + declared};
}

void Core::trace(bool on, std::size_t capacity) {
    const Busy busy(*this);
    if (on) {
        for (auto& member : members_) {
            member.trace = Trace(capacity, plan_.labels.size());
        }
    }
    tracing_ = on;
}

std::vector<Event> Core::events() const {
    const Busy busy(*this);
    std::vector<Event> all;
    for (const auto& member : members_) {
        const auto events = member.trace.events();
        all.insert(all.end(), events.begin(), events.end());
    }
    std::stable_sort(all.begin(), all.end(), [](const Event& a, const Event& b) { return a.start < b.start; });
    return all;
}

const std::vector<Total>& Core::totals(int thread) const {
    const Busy busy(*this);
    return members_.at(static_cast<std::size_t>(thread)).trace.totals();
}

void Core::set_hook(const std::vector<std::string>& labels, Hook hook) {
    const Busy busy(*this);
    for (const auto& label : labels) {
        if (std::find(plan_.labels.begin(), plan_.labels.end(), label) == plan_.labels.end()) {
            throw InputError("the plan has no stage " + quoted(label));
        }
    }
    std::vector<char> hooked;
    if (hook) {
        for (const auto& run : plan_.runs) {
            const auto& label = plan_.labels[run.label];
            hooked.push_back(labels.empty() || std::find(labels.begin(), labels.end(), label) != labels.end());
        }
    }
    hooked_ = std::move(hooked);
    hook_ = std::move(hook);
}

}  // namespace sscc
