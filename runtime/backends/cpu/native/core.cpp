#include "core.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "errors.hpp"

namespace sscc {

// Marks the core as busy for a scope.
class Core::Busy {
  public:
    explicit Busy(const Core& core) : core_(core) {
        if (core_.busy_.exchange(true)) {
            fail("CORE_BUSY");
        }
    }
    ~Busy() { core_.busy_ = false; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

  private:
    const Core& core_;
};

Core::Core(Plan plan, std::vector<Kernel> kernels, const std::vector<External>& externals, const TeamOptions& options,
           Poll poll, Windows windows, bool guarded)
    : plan_(std::move(plan)),
      kernels_(std::move(kernels)),
      poll_(std::move(poll)),
      windows_(std::move(windows)),
      guarded_(guarded),
      arena_(guarded),
      team_(std::make_shared<Team>(options)) {
    if (kernels_.size() != plan_.functions.size()) {
        fail("FUNCTION_COUNT", {{"functions", number(plan_.functions.size())}, {"addresses", number(kernels_.size())}});
    }
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
        if (kernels_[i] == nullptr) {
            fail("NO_ADDRESS", {{"function", plan_.functions[i]}});
        }
    }
    check_windows();
    members_.resize(static_cast<std::size_t>(team_->size()));
    members_[0].bases.resize(plan_.regions.size());
    place_shared(externals);
    for (std::size_t t = 0; t < members_.size(); ++t) {
        members_[t].bases = members_[0].bases;
        place_private(members_[t], static_cast<int>(t));
        place_windows(members_[t]);
    }
}

void Core::place_shared(const std::vector<External>& externals) {
    auto& bases = members_[0].bases;
    std::set<std::string> given;
    for (const auto& external : externals) {
        const auto index = region_index(external.name);
        const auto& region = plan_.regions[index];
        if (region.kind != RegionKind::kExternal || !given.insert(external.name).second) {
            fail("REGION_NOT_EXTERNAL", {{"region", external.name}});
        }
        if (external.bytes < region.bytes || (external.address == nullptr && region.bytes > 0)) {
            fail("REGION_BYTES", {{"region", external.name}, {"bytes", external.bytes}, {"needed", region.bytes}});
        }
        bases[index] = external.address;
    }
    std::vector<std::size_t> pieces(bases.size());
    for (std::size_t i = 0; i < bases.size(); ++i) {
        const auto& region = plan_.regions[i];
        if (region.kind == RegionKind::kArena || (guarded_ && !is_exchanged(region.kind))) {
            pieces[i] = arena_.place(static_cast<std::size_t>(region.bytes));
        }
        if (region.kind == RegionKind::kExternal && !given.contains(region.name)) {
            fail("REGION_MISSING", {{"region", region.name}});
        }
    }
    arena_.allocate();
    for (std::size_t i = 0; i < bases.size(); ++i) {
        const auto& region = plan_.regions[i];
        if (region.kind == RegionKind::kExternal && guarded_) {
            std::memcpy(arena_.at(pieces[i]), bases[i], static_cast<std::size_t>(region.bytes));
        }
        if (region.kind == RegionKind::kArena || (guarded_ && !is_exchanged(region.kind))) {
            bases[i] = arena_.at(pieces[i]);
        }
    }
}

void Core::place_private(Member& member, int thread) const {
    member.pieces = Pieces(guarded_);
    auto& pieces = member.pieces;
    const auto registers = pieces.place(plan_.registers.size() * sizeof(std::int64_t));
    const auto arguments = pieces.place(plan_.most_arguments * sizeof(void*));
    const auto scalars = pieces.place((plan_.most_scalars + 1) * sizeof(std::int64_t));
    const auto scratch = pieces.place(static_cast<std::size_t>(plan_.scratch_bytes));
    std::vector<std::size_t> offsets(plan_.regions.size());
    for (std::size_t i = 0; i < offsets.size(); ++i) {
        if (plan_.regions[i].kind == RegionKind::kPrivate) {
            offsets[i] = pieces.place(static_cast<std::size_t>(plan_.regions[i].bytes));
        }
    }
    pieces.allocate();
    member.thread = thread;
    member.registers = reinterpret_cast<std::int64_t*>(pieces.at(registers));
    member.arguments = reinterpret_cast<void**>(pieces.at(arguments));
    member.scalars = reinterpret_cast<std::int64_t*>(pieces.at(scalars)) + 1;  // behind the error word
    member.scratch = pieces.at(scratch);
    for (std::size_t i = 0; i < offsets.size(); ++i) {
        if (plan_.regions[i].kind == RegionKind::kPrivate) {
            member.bases[i] = pieces.at(offsets[i]);
        }
    }
}

void Core::check_windows() const {
    std::int64_t window = 0, windows = 0;
    for (const auto& region : plan_.regions) {
        window += region.kind == RegionKind::kOutbox ? region.bytes : 0;
        windows += region.kind == RegionKind::kInbox ? region.bytes : 0;
    }
    if (windows != window * windows_.ranks) {
        fail("WINDOW_BYTES", {{"windows", windows}, {"window", window}, {"ranks", windows_.ranks}});
    }
    if (window > 0 && (windows_.address == nullptr || windows_.exchange == nullptr || windows_.rank < 0 ||
                       windows_.rank >= windows_.ranks)) {
        fail("NO_WINDOWS");
    }
}

// The window that this rank writes next, and the windows that were written before the latest meeting.
void Core::place_windows(Member& member) const {
    for (std::size_t i = 0; i < plan_.regions.size(); ++i) {
        const auto& region = plan_.regions[i];
        if (region.kind == RegionKind::kOutbox) {
            member.bases[i] = windows_.address + (turn_ * windows_.ranks + windows_.rank) * region.bytes;
        } else if (region.kind == RegionKind::kInbox) {
            member.bases[i] = windows_.address + (1 - turn_) * region.bytes;
        }
    }
}

const Entry& Core::entry(const std::string& name) const {
    for (const auto& entry : plan_.entries) {
        if (entry.name == name) {
            return entry;
        }
    }
    fail("NO_ENTRY", {{"entry", name}});
}

std::size_t Core::region_index(const std::string& name) const {
    for (std::size_t i = 0; i < plan_.regions.size(); ++i) {
        if (plan_.regions[i].name == name) {
            return i;
        }
    }
    fail("NO_REGION", {{"region", name}});
}

// -- execution

std::vector<std::int64_t> Core::run(const std::string& name, std::span<const std::int64_t> scalars) {
    const Busy busy(*this);
    const auto& chosen = entry(name);
    if (scalars.size() != chosen.inputs.size()) {
        fail("SCALAR_COUNT",
             {{"entry", name}, {"inputs", number(chosen.inputs.size())}, {"scalars", number(scalars.size())}});
    }
    postpone_poll();
    const auto job = [&](int thread) {
        auto& member = members_[static_cast<std::size_t>(thread)];
        std::copy(plan_.registers.begin(), plan_.registers.end(), member.registers);
        member.scalars[-1] = 0;
        for (std::size_t i = 0; i < scalars.size(); ++i) {
            member.registers[chosen.inputs[i]] = scalars[i];
        }
        walk(member, chosen);
    };
    team_->run(std::ref(job));  // by reference: nothing is allocated
    std::vector<std::int64_t> outputs;
    for (const auto output : chosen.outputs) {
        outputs.push_back(members_[0].registers[output]);
    }
    return outputs;
}

// -- memory, tracing, hooks

Span Core::region(const std::string& name, int thread) const {
    if (thread < 0 || thread >= team_->size()) {
        fail("NO_THREAD", {{"thread", thread}, {"threads", team_->size()}});
    }
    const auto index = region_index(name);
    return {members_[static_cast<std::size_t>(thread)].bases[index], plan_.regions[index].bytes};
}

std::size_t Core::allocated_bytes() const {
    std::size_t bytes = arena_.mapped();
    for (const auto& member : members_) {
        bytes += member.pieces.mapped();
    }
    return bytes;
}

void Core::reset(const std::optional<std::vector<std::string>>& names) {
    const Busy busy(*this);
    std::vector<std::size_t> chosen;
    if (names) {
        for (const auto& name : *names) {
            chosen.push_back(region_index(name));
            const auto kind = plan_.regions[chosen.back()].kind;
            if (kind == RegionKind::kExternal || is_exchanged(kind)) {
                fail("REGION_IS_EXTERNAL", {{"region", name}});
            }
        }
    } else {
        for (std::size_t i = 0; i < plan_.regions.size(); ++i) {
            if (const auto kind = plan_.regions[i].kind; kind != RegionKind::kExternal && !is_exchanged(kind)) {
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
            fail("NO_STAGE", {{"stage", label}});
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
