#include "panels.hpp"

#include <algorithm>
#include <cstring>

namespace sscc {

namespace {

constexpr std::size_t kLanes = 16, kQuad = 4, kLine = 64, kDigits = 5;
constexpr std::uint8_t kPowers[kDigits] = {1, 3, 9, 27, 81};
constexpr std::uint8_t kWeights[kDigits] = {81, 27, 9, 3, 1};
constexpr std::uint32_t kEachByte = 0x01010101;

std::size_t index(std::int32_t number) { return static_cast<std::size_t>(number); }

std::uint32_t mask_of(std::int32_t bits) { return (1u << bits) - 1; }

// The byte of five ternary digits, the first of which is the most significant.
std::uint8_t ternary_byte(unsigned number) { return static_cast<std::uint8_t>((number * 256 + 242) / 243); }

std::uint8_t digit_of(std::uint8_t byte, std::size_t digit) {
    return static_cast<std::uint8_t>(static_cast<std::uint8_t>(byte * kPowers[digit]) * 3 >> 8);
}

// Calls visit(byte of the part, level, code) for each code of a run; `level` counts the codes of a byte.
template <class Visit>
void each_code(const CodeRun& run, Visit visit) {
    const std::size_t side = index(run.side), count = index(run.count);
    const std::size_t levels = run.base == 3 ? kDigits : index((8 - run.low) / run.bits);
    for (std::size_t row = 0; row * side < count; ++row) {
        const std::size_t byte = index(run.at) + row / levels * side, code = index(run.first) + row * side;
        const std::size_t columns = std::min(side, count - row * side);
        for (std::size_t column = 0; column < columns; ++column) {
            visit(byte + column, row % levels, code + column);
        }
    }
}

void read_run(const CodeRun& run, const std::uint8_t* block, std::uint8_t* codes) {
    const std::size_t side = index(run.side), count = index(run.count);
    const std::uint32_t mask = mask_of(run.bits);
    if (run.base == 3) {
        each_code(run, [&](std::size_t byte, std::size_t level, std::size_t code) {
            codes[code] |= static_cast<std::uint8_t>(digit_of(block[byte], level) << run.shift);
        });
        return;
    }
    if (side == 1) {
        each_code(run, [&](std::size_t byte, std::size_t level, std::size_t code) {
            const auto bits = (block[byte] >> (index(run.low) + level * index(run.bits))) & mask;
            codes[code] |= static_cast<std::uint8_t>(bits << run.shift);
        });
        return;
    }
    const std::size_t levels = index((8 - run.low) / run.bits);
    for (std::size_t row = 0; row * side < count; ++row) {  // a loop over neighboring bytes, which the compiler widens
        const std::uint8_t* from = block + index(run.at) + row / levels * side;
        std::uint8_t* to = codes + index(run.first) + row * side;
        const auto low = index(run.low) + row % levels * index(run.bits);
        const std::size_t columns = std::min(side, count - row * side);
        for (std::size_t column = 0; column < columns; ++column) {
            to[column] |= static_cast<std::uint8_t>(((from[column] >> low) & mask) << run.shift);
        }
    }
}

// The place in a line of one of four neighboring bytes of an output.
std::size_t place_of(const PanelTables& tables, std::size_t lane, std::size_t column) {
    return (column / tables.unit * kLanes + lane) * tables.unit + column % tables.unit;
}

void add_quad(const PanelTables& tables, std::uint8_t* line, std::size_t lane, std::uint32_t quad) {
    if (tables.unit == kQuad) {
        std::uint32_t word;
        std::memcpy(&word, line + lane * kQuad, kQuad);
        word += quad;
        std::memcpy(line + lane * kQuad, &word, kQuad);
        return;
    }
    for (std::size_t column = 0; column < kQuad; ++column) {
        line[place_of(tables, lane, column)] = static_cast<std::uint8_t>(quad >> (8 * column));
    }
}

std::uint32_t quad_at(const PanelTables& tables, const std::uint8_t* line, std::size_t lane) {
    std::uint32_t word = 0;
    if (tables.unit == kQuad) {
        std::memcpy(&word, line + lane * kQuad, kQuad);
        return word;
    }
    for (std::size_t column = 0; column < kQuad; ++column) {
        word |= static_cast<std::uint32_t>(line[place_of(tables, lane, column)]) << (8 * column);
    }
    return word;
}

// `codes` has whole quads, zeros behind the block.
void place_codes(const PanelTables& tables, const std::uint8_t* codes, std::size_t lane, std::uint8_t* block) {
    for (const auto& plane : tables.planes) {
        const std::size_t quads = index(plane.quads);
        const std::uint32_t mask = mask_of(plane.width) * kEachByte;
        for (std::size_t quad = 0; quad * kQuad < tables.block; ++quad) {
            const std::size_t level = quad % quads;
            std::uint32_t four;
            std::memcpy(&four, codes + quad * kQuad, kQuad);
            four = plane.width == 0 ? four * kWeights[level]
                                    : ((four >> plane.shift) & mask) << (index(plane.width) * level);
            add_quad(tables, block + index(plane.offset) + quad / quads * kLine, lane, four);
        }
        if (plane.width != 0) {
            continue;
        }
        const std::size_t lines = (tables.block + kQuad * quads - 1) / (kQuad * quads);
        for (std::size_t line = 0; line < lines; ++line) {
            std::uint8_t* bytes = block + index(plane.offset) + line * kLine + lane * kQuad;
            std::transform(bytes, bytes + kQuad, bytes, ternary_byte);
        }
    }
}

void read_codes(const PanelTables& tables, const std::uint8_t* block, std::size_t lane, std::uint8_t* codes) {
    for (std::size_t quad = 0; quad * kQuad < tables.block; ++quad) {
        std::uint32_t four = 0;
        for (const auto& plane : tables.planes) {
            const std::size_t quads = index(plane.quads), level = quad % quads;
            const std::uint8_t* line = block + index(plane.offset) + quad / quads * kLine;
            if (plane.width == 0) {
                for (std::size_t column = 0; column < kQuad; ++column) {
                    four |= static_cast<std::uint32_t>(digit_of(line[lane * kQuad + column], level)) << (8 * column);
                }
                continue;
            }
            const std::uint32_t mask = mask_of(plane.width) * kEachByte;
            four |= ((quad_at(tables, line, lane) >> (index(plane.width) * level)) & mask) << plane.shift;
        }
        std::memcpy(codes + quad * kQuad, &four, kQuad);
    }
}

// The inverse of read_run, into bytes that were zeros.
void write_run(const CodeRun& run, const std::uint8_t* codes, std::uint8_t* block) {
    each_code(run, [&](std::size_t byte, std::size_t level, std::size_t code) {
        const auto bits = (codes[code] >> run.shift) & mask_of(run.bits);
        const auto place = run.base == 3 ? bits * kWeights[level]
                                         : bits << (index(run.low) + level * index(run.bits));
        block[byte] = static_cast<std::uint8_t>(block[byte] + place);
    });
    if (run.base == 3) {
        const std::size_t levels = kDigits * index(run.side);
        const std::size_t bytes = (index(run.count) + levels - 1) / levels * index(run.side);
        std::transform(block + run.at, block + index(run.at) + bytes, block + run.at, ternary_byte);
    }
}

}  // namespace

void pack_panels(const PanelTables& tables, const std::vector<const std::uint8_t*>& parts, std::size_t rows,
                 std::size_t blocks, std::uint8_t* panels) {
    const std::size_t padded = (tables.block + kQuad - 1) / kQuad * kQuad;
    std::vector<std::uint8_t> codes(padded);
    for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t lane = row % kLanes;
        for (std::size_t number = 0; number < blocks; ++number) {
            auto* block = panels + (row / kLanes * blocks + number) * tables.block_bytes;
            const auto stored = [&](std::int32_t part) {
                return parts[index(part)] + (row * blocks + number) * index(tables.part_bytes[index(part)]);
            };
            std::fill(codes.begin(), codes.end(), std::uint8_t{0});
            for (const auto& run : tables.codes) {
                read_run(run, stored(run.part), codes.data());
            }
            if (tables.flipped) {
                for (std::size_t code = 0; code < tables.block; ++code) {
                    codes[code] ^= 128;
                }
            }
            place_codes(tables, codes.data(), lane, block);
            for (const auto& piece : tables.heads) {
                const auto bits = (stored(piece.part)[piece.byte] >> piece.level) & mask_of(piece.bits);
                auto& byte = block[index(piece.to) + lane * index(piece.step)];
                byte = static_cast<std::uint8_t>(byte | (bits << piece.low));
            }
        }
    }
}

void unpack_panels(const PanelTables& tables, const std::uint8_t* panels, std::size_t rows, std::size_t blocks,
                   const std::vector<std::uint8_t*>& parts) {
    std::vector<std::uint8_t> codes((tables.block + kQuad - 1) / kQuad * kQuad);
    for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t lane = row % kLanes;
        for (std::size_t number = 0; number < blocks; ++number) {
            const auto* block = panels + (row / kLanes * blocks + number) * tables.block_bytes;
            const auto stored = [&](std::int32_t part) {
                return parts[index(part)] + (row * blocks + number) * index(tables.part_bytes[index(part)]);
            };
            read_codes(tables, block, lane, codes.data());
            if (tables.flipped) {
                std::transform(codes.begin(), codes.end(), codes.begin(),
                               [](std::uint8_t code) { return static_cast<std::uint8_t>(code ^ 128); });
            }
            for (const auto& run : tables.codes) {
                write_run(run, codes.data(), stored(run.part));
            }
            for (const auto& piece : tables.heads) {
                const auto bits = (block[index(piece.to) + lane * index(piece.step)] >> piece.low) & mask_of(piece.bits);
                auto& byte = stored(piece.part)[piece.byte];
                byte = static_cast<std::uint8_t>(byte | (bits << piece.level));
            }
        }
    }
}

}  // namespace sscc
