// Conversion of quantized weights between the layout of checkpoints and panels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sscc {

// Bits of consecutive codes in a block of a stored part (sscc.ir.weight_formats.fields.Run), from code `first` on.
struct CodeRun {
    std::int32_t part, at, count, bits, side, low, shift, base, first;
};

// Bits of a scale, minimum or zero point in a block of a stored part, and their place in a block of a panel: the first
// byte of lane 0, bytes to the next lane, lowest bit.
struct HeadPiece {
    std::int32_t part, byte, level, bits, shift, to, step, low;
};

struct BitPlane {
    std::int32_t offset, width, shift, quads;  // width 0: five ternary digits per byte
};

struct PanelTables {
    std::vector<std::int32_t> part_bytes;  // bytes of a block of each part
    std::size_t block_bytes;               // bytes of a block of a panel
    std::vector<CodeRun> codes;
    std::vector<HeadPiece> heads;
    std::vector<BitPlane> planes;
    std::size_t block;  // bytes of the codes of a block
    bool flipped;       // true if 128 is added to the codes
    std::size_t unit;   // a line is [4 / unit][16][unit]
};

void pack_panels(const PanelTables& tables, const std::vector<const std::uint8_t*>& parts, std::size_t rows,
                 std::size_t blocks, std::uint8_t* panels);

void unpack_panels(const PanelTables& tables, const std::uint8_t* panels, std::size_t rows, std::size_t blocks,
                   const std::vector<std::uint8_t*>& parts);

}  // namespace sscc
