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

// The byte that stores five ternary digits, the first of which is the most significant.
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

// Bits of eight neighboring bytes, each at its place in its byte.
constexpr std::size_t kWord = 8;
constexpr std::uint64_t kEachOfEight = 0x0101010101010101;

// Adds the bits of a run to codes. Stores of bytes may alias the run, so its fields are copied first.
void read_run(const CodeRun& run, const std::uint8_t* block, std::uint8_t* codes) {
    const std::size_t side = index(run.side), count = index(run.count);
    const std::uint32_t mask = mask_of(run.bits);
    const auto shift = run.shift;
    if (run.base == 3) {
        each_code(run, [&](std::size_t byte, std::size_t level, std::size_t code) {
            codes[code] |= static_cast<std::uint8_t>(digit_of(block[byte], level) << shift);
        });
        return;
    }
    const auto low = index(run.low), bits = index(run.bits), levels = (8 - low) / bits;
    const std::uint8_t* from = block + index(run.at);
    std::uint8_t* to = codes + index(run.first);
    if (side == 1 && levels == 2 && count % 2 == 0) {  // two neighboring codes in a byte
        for (std::size_t byte = 0; byte < count / 2; ++byte) {
            const std::uint32_t both = from[byte] >> low;
            to[2 * byte] |= static_cast<std::uint8_t>((both & mask) << shift);
            to[2 * byte + 1] |= static_cast<std::uint8_t>((both >> bits & mask) << shift);
        }
        return;
    }
    if (side == 1 && levels == 1 && shift == 0) {
        for (std::size_t byte = 0; byte < count; ++byte) {
            to[byte] |= static_cast<std::uint8_t>(from[byte] >> low & mask);
        }
        return;
    }
    if (side % kWord != 0 || count % side != 0) {
        each_code(run, [&](std::size_t byte, std::size_t level, std::size_t code) {
            const auto taken = (block[byte] >> (low + level * bits)) & mask;
            codes[code] |= static_cast<std::uint8_t>(taken << shift);
        });
        return;
    }
    const std::uint64_t each = mask * kEachOfEight;
    for (std::size_t row = 0; row < count / side; ++row) {
        const auto lowest = low + row % levels * bits;
        const std::uint8_t* line = from + row / levels * side;
        for (std::size_t column = 0; column < side; column += kWord, to += kWord) {
            std::uint64_t word, before;
            std::memcpy(&word, line + column, kWord);
            std::memcpy(&before, to, kWord);
            before |= (word >> lowest & each) << shift;
            std::memcpy(to, &before, kWord);
        }
    }
}

// The place of one of four neighboring bytes of an output in a line.
std::size_t place_of(const PanelTables& tables, std::size_t lane, std::size_t column) {
    return (column / tables.unit * kLanes + lane) * tables.unit + column % tables.unit;
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

// `codes` holds the codes of 16 outputs, `padded` bytes each: whole quads, with zeros behind the block.
template <std::size_t unit>
void place_floats(const std::uint8_t* codes, std::size_t padded, std::uint8_t* lines) {
    for (std::size_t number = 0; number < padded / unit; ++number) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            std::memcpy(lines + (number * kLanes + lane) * unit, codes + lane * padded + number * unit, unit);
        }
    }
}

template <std::size_t quads>
void place_bits(const BitPlane& plane, const std::uint8_t* codes, std::size_t padded, std::uint8_t* lines) {
    const std::uint32_t mask = mask_of(plane.width) * kEachByte;
    const auto shift = plane.shift;
    const auto width = index(plane.width);
    const std::size_t count = padded / kQuad;
    for (std::size_t first = 0; first < count; first += quads, lines += kLine) {
        const std::size_t levels = std::min(quads, count - first);
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const std::uint8_t* from = codes + lane * padded + first * kQuad;
            std::uint32_t word = 0;
            for (std::size_t level = 0; level < levels; ++level) {
                std::uint32_t four;
                std::memcpy(&four, from + level * kQuad, kQuad);
                word |= ((four >> shift) & mask) << (width * level);
            }
            std::memcpy(lines + lane * kQuad, &word, kQuad);
        }
    }
}

void place_digits(const std::uint8_t* codes, std::size_t padded, std::uint8_t* lines) {
    const std::size_t count = padded / kQuad;
    for (std::size_t first = 0; first < count; first += kDigits, lines += kLine) {
        for (std::size_t byte = 0; byte < kLine; ++byte) {
            const std::uint8_t* from = codes + byte / kQuad * padded + first * kQuad + byte % kQuad;
            unsigned number = 0;
            for (std::size_t digit = 0; digit < std::min(kDigits, count - first); ++digit) {
                number += from[digit * kQuad] * kWeights[digit];
            }
            lines[byte] = ternary_byte(number);
        }
    }
}

// Writes the planes of a block of a panel.
void place_codes(const PanelTables& tables, const std::uint8_t* codes, std::size_t padded, std::uint8_t* block) {
    for (const auto& plane : tables.planes) {
        std::uint8_t* lines = block + index(plane.offset);
        if (tables.unit < kQuad) {
            tables.unit == 1 ? place_floats<1>(codes, padded, lines) : place_floats<2>(codes, padded, lines);
            continue;
        }
        switch (plane.width) {
            case 0: place_digits(codes, padded, lines); break;
            case 1: place_bits<8>(plane, codes, padded, lines); break;
            case 2: place_bits<4>(plane, codes, padded, lines); break;
            case 4: place_bits<2>(plane, codes, padded, lines); break;
            default: place_bits<1>(plane, codes, padded, lines); break;
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

// The inverse of read_run, into zeroed bytes.
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
    std::vector<std::uint8_t> codes(padded * kLanes);
    const std::size_t heads = index(tables.planes.front().offset);
    for (std::size_t place = 0; place < (rows + kLanes - 1) / kLanes * blocks; ++place) {
        const std::size_t first = place / blocks * kLanes, number = place % blocks;
        auto* block = panels + place * tables.block_bytes;
        std::fill(codes.begin(), codes.end(), std::uint8_t{0});
        std::fill(block, block + heads, std::uint8_t{0});
        for (std::size_t lane = 0; lane < std::min(kLanes, rows - first); ++lane) {
            const auto stored = [&](std::int32_t part) {
                return parts[index(part)] + ((first + lane) * blocks + number) * index(tables.part_bytes[index(part)]);
            };
            std::uint8_t* own = codes.data() + lane * padded;
            for (const auto& run : tables.codes) {
                read_run(run, stored(run.part), own);
            }
            if (tables.flipped) {
                for (std::size_t code = 0; code < tables.block; ++code) {
                    own[code] ^= 128;
                }
            }
            for (const auto& piece : tables.heads) {
                const auto bits = (stored(piece.part)[piece.byte] >> piece.level) & mask_of(piece.bits);
                auto& byte = block[index(piece.to) + lane * index(piece.step)];
                byte = static_cast<std::uint8_t>(byte | (bits << piece.low));
            }
        }
        place_codes(tables, codes.data(), padded, block);
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
