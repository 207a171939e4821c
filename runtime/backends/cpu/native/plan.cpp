#include "plan.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "errors.hpp"

namespace sscc {

namespace {

constexpr std::int64_t kMagic = 0x6e6c702d63637373;  // "sscc-pln"
constexpr std::int64_t kVersion = 2;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 46;  // largest region, coefficient and total
constexpr std::int64_t kMostRegisters = 1 << 20;
constexpr std::int64_t kMostItems = 1 << 24;  // longest list
constexpr std::int64_t kMostOfRun = 1 << 10;  // maximum number of arguments, scalars, axes or terms of a run
constexpr int kDepth = 64;
constexpr std::int64_t kScalarOps = static_cast<std::int64_t>(Op::kLookup) + 1;

enum Item { kItemCompute, kItemLoop, kItemBranch, kItemExecute, kItemBarrier, kItemMeet, kItems };

class Parser {
  public:
    explicit Parser(std::span<const std::byte> data) : data_(data) {}

    Plan parse() {
        if (data_.size() % sizeof(std::int64_t) != 0) {
            malformed("its size of " + std::to_string(data_.size()) + " bytes is not a multiple of the word size");
        }
        if (word() != kMagic) {
            malformed("it does not have the magic number of a plan");
        }
        if (const auto version = word(); version != kVersion) {
            malformed("it has version " + std::to_string(version) + ", but only version " + std::to_string(kVersion) +
                      " is supported");
        }
        plan_.declared_registers = static_cast<std::uint32_t>(within(0, kMostRegisters, "the number of registers"));
        plan_.registers.resize(plan_.declared_registers + 2 * (kDepth + 1));
        plan_.scratch_bytes = within(0, kMostBytes, "scratch_bytes");
        regions();
        plan_.functions = names("function");
        plan_.labels = names("label");
        constants();
        runs();
        entries();
        place_.clear();
        if (next_ != data_.size()) {
            malformed(std::to_string((data_.size() - next_) / sizeof(std::int64_t)) + " extra words at its end");
        }
        return std::move(plan_);
    }

  private:
    // -- words

    [[noreturn]] void malformed(const std::string& reason) const {
        fail("PLAN_MALFORMED", {{"place", place_.empty() ? "the file" : place_}, {"reason", reason}});
    }

    std::int64_t left() const { return static_cast<std::int64_t>((data_.size() - next_) / sizeof(std::int64_t)); }

    std::int64_t word() {
        if (left() == 0) {
            malformed("it is truncated");
        }
        std::array<std::byte, 8> bytes;
        std::memcpy(bytes.data(), data_.data() + next_, bytes.size());
        next_ += bytes.size();
        if constexpr (std::endian::native == std::endian::big) {
            std::reverse(bytes.begin(), bytes.end());
        }
        return std::bit_cast<std::int64_t>(bytes);
    }

    std::int64_t within(std::int64_t low, std::int64_t high, const char* what) {
        const auto value = word();
        if (value < low || value > high) {
            malformed(std::string(what) + " is " + std::to_string(value) + ", outside of " + std::to_string(low) +
                      " .. " + std::to_string(high));
        }
        return value;
    }

    std::uint32_t index(std::size_t count, const char* what) {
        const auto value = word();
        if (value < 0 || value >= static_cast<std::int64_t>(count)) {
            malformed(std::string(what) + " " + std::to_string(value) + " is out of range, there are " +
                      std::to_string(count));
        }
        return static_cast<std::uint32_t>(value);
    }

    std::uint32_t reg() { return index(plan_.declared_registers, "register"); }

    // The length of a list; each item takes at least one word.
    std::int64_t count(const char* what, std::int64_t most = kMostItems) {
        const auto value = word();
        if (value < 0 || value > most || value > left()) {
            malformed("a list of " + std::to_string(value) + " " + what + " is too long");
        }
        return value;
    }

    std::string name() {
        const auto length = word();
        if (length < 0 || length > left() * 8) {
            malformed("a name has an invalid length of " + std::to_string(length) + " bytes");
        }
        std::string text(reinterpret_cast<const char*>(data_.data() + next_), static_cast<std::size_t>(length));
        next_ += (static_cast<std::size_t>(length) + 7) / 8 * 8;
        return text;
    }

    std::vector<std::string> names(const char* what) {
        std::vector<std::string> list;
        for (auto n = count(what); n > 0; --n) {
            list.push_back(name());
        }
        return list;
    }

    std::vector<std::uint32_t> registers() {
        std::vector<std::uint32_t> list;
        for (auto n = count("registers", kMostOfRun); n > 0; --n) {
            list.push_back(reg());
        }
        return list;
    }

    // -- parts of the plan

    void regions() {
        std::set<std::string> seen;
        for (auto n = count("regions"); n > 0; --n) {
            place_ = "region " + std::to_string(plan_.regions.size());
            Region region;
            region.name = name();
            region.kind = static_cast<RegionKind>(within(0, 4, "the kind"));
            region.bytes = within(0, kMostBytes, "the size");
            if (!seen.insert(region.name).second) {
                malformed("duplicate name '" + region.name + "'");
            }
            const auto same = [&](const Region& other) { return other.kind == region.kind; };
            if (is_exchanged(region.kind) && std::any_of(plan_.regions.begin(), plan_.regions.end(), same)) {
                malformed("duplicate region of windows");
            }
            plan_.regions.push_back(std::move(region));
        }
        place_.clear();
    }

    void constants() {
        place_ = "constants";
        for (auto n = count("constants"); n > 0; --n) {
            const auto target = reg();
            plan_.registers[target] = word();
        }
        place_.clear();
    }

    void runs() {
        for (auto n = count("runs"); n > 0; --n) {
            place_ = "run " + std::to_string(plan_.runs.size());
            run();
        }
        place_.clear();
    }

    void run() {
        Run run;
        run.function = index(plan_.functions.size(), "function");
        run.mode = static_cast<Mode>(within(0, 2, "the mode"));
        run.units = within(0, kMostBytes, "the number of units");
        run.label = index(plan_.labels.size(), "label");
        run.grid.begin = size(plan_.grid);
        run.total = run.units;
        for (auto n = count("axes", kMostOfRun); n > 0; --n) {
            const auto axis = reg();
            const auto trips = within(0, kMostBytes, "an axis' trips");
            if (__builtin_mul_overflow(run.total, trips, &run.total) || run.total > kMostBytes) {
                malformed("the number of units overflows");
            }
            plan_.grid.push_back({axis, trips});
        }
        run.grid.end = size(plan_.grid);
        run.arguments = arguments();
        run.scalars.begin = size(plan_.scalars);
        const auto scalars = registers();
        plan_.scalars.insert(plan_.scalars.end(), scalars.begin(), scalars.end());
        run.scalars.end = size(plan_.scalars);
        plan_.most_arguments = std::max<std::size_t>(plan_.most_arguments, run.arguments.end - run.arguments.begin);
        plan_.most_scalars = std::max(plan_.most_scalars, scalars.size());
        plan_.runs.push_back(run);
    }

    Range arguments() {
        Range range{size(plan_.arguments), 0};
        for (auto n = count("arguments", kMostOfRun); n > 0; --n) {
            Argument argument;
            argument.region = index(plan_.regions.size(), "region");
            const auto& region = plan_.regions[argument.region];
            argument.offset = within(-kMostBytes, kMostBytes, "an argument's offset");
            argument.last = region.bytes - within(0, region.bytes, "an argument's extent");
            argument.terms.begin = size(plan_.terms);
            for (auto m = count("terms", kMostOfRun); m > 0; --m) {
                const auto factor = reg();
                plan_.terms.push_back({factor, within(-kMostBytes, kMostBytes, "a coefficient")});
            }
            argument.terms.end = size(plan_.terms);
            const bool fixed = argument.terms.begin == argument.terms.end;
            if (fixed && (argument.offset < 0 || argument.offset > argument.last)) {
                malformed("argument " + std::to_string(size(plan_.arguments) - range.begin) + " exceeds region '" +
                     region.name + "'");
            }
            plan_.arguments.push_back(argument);
        }
        range.end = size(plan_.arguments);
        return range;
    }

    void entries() {
        std::set<std::string> seen;
        for (auto n = count("entries"); n > 0; --n) {
            Entry entry;
            place_ = "entry " + std::to_string(plan_.entries.size());
            entry.name = name();
            place_ = "entry '" + entry.name + "'";
            if (!seen.insert(entry.name).second) {
                malformed("duplicate name");
            }
            entry.inputs = registers();
            entry.outputs = registers();
            body(entry.code, 0);
            entry.code.push_back({.op = Op::kEnd});
            plan_.entries.push_back(std::move(entry));
        }
    }

    // -- code

    void body(std::vector<Instruction>& code, int depth) {
        if (depth > kDepth) {
            malformed("loops and branches are nested deeper than " + std::to_string(kDepth) + " levels");
        }
        for (auto n = count("items"); n > 0; --n) {
            switch (index(kItems, "item")) {
                case kItemCompute:
                    compute(code);
                    break;
                case kItemLoop:
                    loop(code, depth);
                    break;
                case kItemBranch: {
                    const auto at = code.size();
                    code.push_back({.op = Op::kBranch, .x = reg()});
                    body(code, depth + 1);
                    code[at].jump = size(code);
                    break;
                }
                case kItemExecute:
                    code.push_back({.op = Op::kExecute, .x = index(plan_.runs.size(), "run")});
                    break;
                case kItemBarrier:
                    code.push_back({.op = Op::kBarrier});
                    break;
                case kItemMeet:
                    meeting(code);
                    break;
            }
        }
    }

    void compute(std::vector<Instruction>& code) {
        Instruction made{.op = static_cast<Op>(within(0, kScalarOps - 1, "a scalar operation"))};
        made.target = reg();
        made.x = reg();
        made.y = reg();
        if (made.op == Op::kSelect) {
            made.z = reg();
        } else if (made.op == Op::kLookup) {  // its table is the registers from y on
            made.z = static_cast<std::uint32_t>(within(1, plan_.declared_registers - made.y, "a table's size"));
        }
        code.push_back(made);
    }

    // Requires windows, of this rank and of all ranks.
    void meeting(std::vector<Instruction>& code) {
        std::int64_t window = -1, windows = -1;
        for (const auto& region : plan_.regions) {
            window = region.kind == RegionKind::kOutbox ? region.bytes : window;
            windows = region.kind == RegionKind::kInbox ? region.bytes : windows;
        }
        if (window < 1 || windows < window || windows % window != 0) {
            malformed("a meeting without windows");
        }
        code.push_back({.op = Op::kMeet, .x = size(plan_.meetings)});
        plan_.meetings.push_back(within(0, window, "the size of a meeting"));
    }

    void loop(std::vector<Instruction>& code, int depth) {
        // Nested loops have registers of their own; loops at the same depth share them.
        const auto counter = plan_.declared_registers + 2 * static_cast<std::uint32_t>(depth);
        const auto target = reg(), lower = reg(), upper = reg();
        code.push_back({.op = Op::kLoopInit, .target = counter, .x = lower, .y = upper});
        const auto head = code.size();
        code.push_back({.op = Op::kLoopNext, .target = target, .x = counter});
        body(code, depth + 1);
        code.push_back({.op = Op::kJump, .jump = static_cast<std::uint32_t>(head)});
        code[head].jump = size(code);
    }

    template <typename T>
    static std::uint32_t size(const std::vector<T>& list) {
        return static_cast<std::uint32_t>(list.size());
    }

    std::span<const std::byte> data_;
    std::size_t next_ = 0;
    std::string place_;
    Plan plan_;
};

}  // namespace

Plan parse_plan(std::span<const std::byte> data) { return Parser(data).parse(); }

}  // namespace sscc
