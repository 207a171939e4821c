// The plan of native execution in memory; runtime/backends/cpu/plan/plan.py explains it and defines the file form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sscc {

enum class RegionKind { kExternal, kArena, kPrivate, kOutbox, kInbox };

// Returns true for the window of this rank and the windows of all ranks, which are in the memory of the exchange.
inline bool is_exchanged(RegionKind kind) { return kind == RegionKind::kOutbox || kind == RegionKind::kInbox; }

struct Region {
    std::string name;
    RegionKind kind;
    std::int64_t bytes;
};

// A part of one of the plan's flat lists, which hold the items of all runs one after another.
struct Range {
    std::uint32_t begin, end;
};

struct Term {
    std::uint32_t reg;
    std::int64_t coefficient;
};

struct Argument {
    std::uint32_t region;
    Range terms;
    std::int64_t offset;
    std::int64_t last;  // largest offset at which the extent still lies in the region
};

struct GridAxis {
    std::uint32_t reg;
    std::int64_t trips;
};

enum class Mode { kSplit, kReplicated, kSerial };

struct Run {
    std::uint32_t function, label;
    Mode mode;
    Range grid, arguments, scalars;
    std::int64_t units;  // units of one firing
    std::int64_t total;  // units of all firings
};

// The scalar operations come first, in the order of plan.py.
enum class Op : std::uint32_t {
    kAdd,
    kSub,
    kMul,
    kFloorDiv,
    kCeilDiv,
    kMod,
    kMin,
    kMax,
    kEq,
    kNe,
    kLt,
    kLe,
    kGt,
    kGe,
    kAnd,
    kOr,
    kSelect,
    kLookup,    // each: target = op(x, y, z)
    kLoopInit,  // target = x, target + 1 = y: counter and end of a loop, in registers of the loop
    kLoopNext,  // jumps if counter x has reached its end; otherwise target = counter, and the counter is incremented
    kJump,      // jumps
    kBranch,    // jumps if x is 0
    kExecute,   // executes run x
    kBarrier,
    kMeet,  // meeting of the ranks, after meetings[x] bytes of their windows were written
    kEnd,
};

struct Instruction {
    Op op;
    std::uint32_t target = 0, x = 0, y = 0, z = 0;
    std::uint32_t jump = 0;  // index into the entry's code
};

struct Entry {
    std::string name;
    std::vector<std::uint32_t> inputs, outputs;
    std::vector<Instruction> code;  // ends with kEnd
};

struct Plan {
    std::vector<Region> regions;
    std::vector<std::string> functions, labels;
    std::vector<Run> runs;
    std::vector<Entry> entries;
    std::vector<std::int64_t> registers;  // values at the start of an entry, including registers of loops
    std::uint32_t declared_registers = 0;  // number of registers in the plan; those of loops follow
    std::int64_t scratch_bytes = 0;
    std::size_t most_arguments = 0, most_scalars = 0;  // maximums over all runs

    // The flat lists that Ranges refer to.
    std::vector<Term> terms;
    std::vector<Argument> arguments;
    std::vector<GridAxis> grid;
    std::vector<std::uint32_t> scalars;
    std::vector<std::int64_t> meetings;
};

// Reads the file form. Throws Error, with the place, unless every index, count, size and nesting is valid. The returned
// plan can be executed with any scalars; only divisions, sums and pointers are checked at run time.
Plan parse_plan(std::span<const std::byte> data);

}  // namespace sscc
