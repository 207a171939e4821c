#include "panels.hpp"

#include <algorithm>
#include <cstring>

namespace sscc {

namespace {

constexpr std::size_t kLanes = 16, kQuad = 4, kLine = 64, kDigits = 5;
constexpr std::uint8_t kPowers[kDigits] = {1, 3, 9, 27, 81};
constexpr std::uint8_t kWeights[kDigits] = {81, 27, 9, 3, 1};

std::uint8_t bits_of(const Piece& piece, std::uint8_t byte) {
    if (piece.base == 3) {
        const auto digits = static_cast<std::uint8_t>(byte * kPowers[piece.level]);
        return static_cast<std::uint8_t>(((digits * 3) >> 8) << piece.shift);
    }
    return static_cast<std::uint8_t>(((byte >> piece.level) & ((1 << piece.bits) - 1)) << piece.shift);
}

// The byte of five ternary digits of which the first is the most significant.
std::uint8_t ternary_byte(unsigned number) { return static_cast<std::uint8_t>((number * 256 + 242) / 243); }

// Where a code of an output lies in a line.
std::size_t in_line(const PanelTables& tables, std::size_t lane, std::size_t column) {
    return tables.by_quad ? column * kLanes + lane : lane * kQuad + column;
}

void place_codes(const PanelTables& tables, const std::uint8_t* codes, std::size_t lane, std::uint8_t* block) {
    for (const auto& plane : tables.planes) {
        const auto quads = static_cast<std::size_t>(plane.quads);
        for (std::size_t quad = 0; quad * kQuad < tables.block; ++quad) {
            auto* line = block + plane.offset + quad / quads * kLine;
            const std::size_t level = quad % quads, count = std::min(kQuad, tables.block - quad * kQuad);
            for (std::size_t column = 0; column < count; ++column) {
                const std::uint8_t code = codes[quad * kQuad + column];
                auto& byte = line[in_line(tables, lane, column)];
                if (plane.width == 0) {
                    byte = static_cast<std::uint8_t>(byte + code * kWeights[level]);
                } else {
                    const auto taken = (code >> plane.shift) & ((1 << plane.width) - 1);
                    byte = static_cast<std::uint8_t>(byte | (taken << (plane.width * static_cast<int>(level))));
                }
            }
        }
        if (plane.width != 0) {
            continue;
        }
        const std::size_t lines = (tables.block + kQuad * quads - 1) / (kQuad * quads);
        for (std::size_t line = 0; line < lines; ++line) {
            for (std::size_t column = 0; column < kQuad; ++column) {
                auto& byte = block[plane.offset + line * kLine + in_line(tables, lane, column)];
                byte = ternary_byte(byte);
            }
        }
    }
}

std::uint8_t code_at(const PanelTables& tables, const std::uint8_t* block, std::size_t lane, std::size_t number) {
    const std::size_t quad = number / kQuad, column = number % kQuad;
    unsigned code = 0;
    for (const auto& plane : tables.planes) {
        const auto quads = static_cast<std::size_t>(plane.quads);
        const auto level = static_cast<int>(quad % quads);
        const std::uint8_t byte = block[plane.offset + quad / quads * kLine + in_line(tables, lane, column)];
        if (plane.width == 0) {
            code |= static_cast<unsigned>(static_cast<std::uint8_t>(byte * kPowers[level]) * 3) >> 8;
        } else {
            code |= ((byte >> (plane.width * level)) & ((1u << plane.width) - 1)) << plane.shift;
        }
    }
    return static_cast<std::uint8_t>(code);
}

void store_bits(const Piece& piece, std::uint8_t number, std::uint8_t* byte) {
    const unsigned taken = (number >> piece.shift) & ((1u << piece.bits) - 1);
    if (piece.base == 3) {
        *byte = static_cast<std::uint8_t>(*byte + taken * kWeights[piece.level]);
    } else {
        *byte = static_cast<std::uint8_t>(*byte | (taken << piece.level));
    }
}

}  // namespace

void pack_panels(const PanelTables& tables, const std::vector<const std::uint8_t*>& parts, std::size_t rows,
                 std::size_t blocks, std::uint8_t* panels) {
    std::vector<std::uint8_t> codes(tables.block);
    const std::uint8_t flip = tables.flipped ? 128 : 0;
    for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t lane = row % kLanes;
        for (std::size_t number = 0; number < blocks; ++number) {
            auto* block = panels + (row / kLanes * blocks + number) * tables.block_bytes;
            const auto stored = [&](const Piece& piece) {
                const auto part = static_cast<std::size_t>(piece.part);
                return parts[part][(row * blocks + number) * static_cast<std::size_t>(tables.part_bytes[part]) +
                                   static_cast<std::size_t>(piece.byte)];
            };
            std::fill(codes.begin(), codes.end(), std::uint8_t{0});
            for (const auto& piece : tables.codes) {
                codes[static_cast<std::size_t>(piece.to)] |= bits_of(piece, stored(piece));
            }
            for (auto& code : codes) {
                code ^= flip;
            }
            place_codes(tables, codes.data(), lane, block);
            for (const auto& piece : tables.heads) {
                const auto taken = bits_of(piece, stored(piece)) >> piece.shift << piece.low;
                auto& byte = block[static_cast<std::size_t>(piece.to) + lane * static_cast<std::size_t>(piece.step)];
                byte = static_cast<std::uint8_t>(byte | taken);
            }
        }
    }
}

void unpack_panels(const PanelTables& tables, const std::uint8_t* panels, std::size_t rows, std::size_t blocks,
                   const std::vector<std::uint8_t*>& parts) {
    const std::uint8_t flip = tables.flipped ? 128 : 0;
    for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t lane = row % kLanes;
        for (std::size_t number = 0; number < blocks; ++number) {
            const auto* block = panels + (row / kLanes * blocks + number) * tables.block_bytes;
            const auto stored = [&](const Piece& piece) {
                const auto part = static_cast<std::size_t>(piece.part);
                return &parts[part][(row * blocks + number) * static_cast<std::size_t>(tables.part_bytes[part]) +
                                    static_cast<std::size_t>(piece.byte)];
            };
            bool ternary = false;
            for (const auto& piece : tables.codes) {
                const auto code = code_at(tables, block, lane, static_cast<std::size_t>(piece.to));
                store_bits(piece, static_cast<std::uint8_t>(code ^ flip), stored(piece));
                ternary = ternary || piece.base == 3;
            }
            if (ternary) {  // each byte once, at its first digit
                for (const auto& piece : tables.codes) {
                    if (piece.level == 0) {
                        *stored(piece) = ternary_byte(*stored(piece));
                    }
                }
            }
            for (const auto& piece : tables.heads) {
                const auto byte = block[static_cast<std::size_t>(piece.to) + lane * static_cast<std::size_t>(piece.step)];
                const auto number_bits = static_cast<unsigned>(byte >> piece.low) << piece.shift;
                store_bits(piece, static_cast<std::uint8_t>(number_bits), stored(piece));
            }
        }
    }
}

}  // namespace sscc
