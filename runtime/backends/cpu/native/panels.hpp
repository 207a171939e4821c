// Quantized weights from the layout of checkpoints to panels, and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sscc {

// Some bits of a number of a block, and where they go in a block of a panel.
struct Piece {
    std::int32_t part, byte, level, bits, shift, base;  // of the stored part; base 3: `level` is a digit
    std::int32_t to, step, low;  // code number; or the first byte of lane 0, bytes to the next lane, lowest bit
};

struct BitPlane {
    std::int32_t offset, width, shift, quads;  // width 0: five ternary digits a byte
};

struct PanelTables {
    std::vector<std::int32_t> part_bytes;  // of a block
    std::size_t block_bytes;               // of a block of a panel
    std::vector<Piece> codes, heads;
    std::vector<BitPlane> planes;
    std::size_t block;  // codes
    bool flipped;       // codes have 128 added
    bool by_quad;       // lines are [4][16] instead of [16][4]
};

void pack_panels(const PanelTables& tables, const std::vector<const std::uint8_t*>& parts, std::size_t rows,
                 std::size_t blocks, std::uint8_t* panels);

void unpack_panels(const PanelTables& tables, const std::uint8_t* panels, std::size_t rows, std::size_t blocks,
                   const std::vector<std::uint8_t*>& parts);

}  // namespace sscc
