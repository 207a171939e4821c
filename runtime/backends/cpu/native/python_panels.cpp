// Packing of quantized weights; types and documentation in runtime/_native.pyi.
#include "python_panels.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "errors.hpp"
#include "panels.hpp"

namespace nb = nanobind;

namespace sscc {

namespace {

template <class T, int dimensions>
using Array = nb::ndarray<T, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;
using Table = Array<const std::int32_t, 2>;
using Sizes = Array<const std::int32_t, 1>;

void check(bool fits) {
    if (!fits) {
        fail("PANEL_SHAPES");
    }
}

constexpr std::size_t kPieceFields = 9, kPlaneFields = 4, kPanelRows = 16;

PanelTables tables_of(const Sizes& sizes, const Table& pieces, const Table& planes, std::size_t kind) {
    check(sizes.shape(0) >= 2 && pieces.shape(1) == kPieceFields && planes.shape(1) == kPlaneFields);
    PanelTables tables;
    tables.block = kind / 4;
    tables.flipped = kind % 4 == 1;
    tables.by_quad = kind % 4 == 2;
    const std::size_t parts = sizes.shape(0) - 1;
    tables.part_bytes.assign(sizes.data(), sizes.data() + parts);
    tables.block_bytes = static_cast<std::size_t>(sizes(parts));
    for (std::size_t row = 0; row < pieces.shape(0); ++row) {
        const Piece piece{pieces(row, 0), pieces(row, 1), pieces(row, 2), pieces(row, 3), pieces(row, 4),
                          pieces(row, 5), pieces(row, 6), pieces(row, 7), pieces(row, 8)};
        check(piece.part >= 0 && static_cast<std::size_t>(piece.part) < parts && piece.byte >= 0 &&
              piece.byte < tables.part_bytes[static_cast<std::size_t>(piece.part)]);
        const bool code = piece.step == 0;
        const std::size_t last = static_cast<std::size_t>(piece.to + (code ? 0 : piece.step * 15));
        check(piece.to >= 0 && last < (code ? tables.block : tables.block_bytes));
        (code ? tables.codes : tables.heads).push_back(piece);
    }
    for (std::size_t row = 0; row < planes.shape(0); ++row) {
        tables.planes.push_back({planes(row, 0), planes(row, 1), planes(row, 2), planes(row, 3)});
        const auto& plane = tables.planes.back();
        check(plane.quads > 0 && plane.offset >= 0);
        const std::size_t per_line = 4 * static_cast<std::size_t>(plane.quads);
        const std::size_t lines = (tables.block + per_line - 1) / per_line;
        check(static_cast<std::size_t>(plane.offset) + lines * 64 <= tables.block_bytes);
    }
    return tables;
}

template <class Part>
std::size_t blocks_of(const PanelTables& tables, const std::vector<Array<Part, 2>>& parts, std::size_t rows,
                      std::size_t panel_count, std::size_t blocks, std::size_t block_bytes) {
    check(parts.size() == tables.part_bytes.size() && block_bytes == tables.block_bytes);
    check(panel_count == (rows + kPanelRows - 1) / kPanelRows);
    for (std::size_t part = 0; part < parts.size(); ++part) {
        check(parts[part].shape(0) == rows &&
              parts[part].shape(1) == blocks * static_cast<std::size_t>(tables.part_bytes[part]));
    }
    return blocks;
}

}  // namespace

void add_panels(nb::module_& m) {
    m.def(
        "pack_panels",
        [](const std::vector<Array<const std::uint8_t, 2>>& parts, const Array<std::uint8_t, 3>& panels,
           std::size_t rows, const Sizes& sizes, const Table& pieces, const Table& planes, std::size_t kind) {
            const auto tables = tables_of(sizes, pieces, planes, kind);
            const auto blocks =
                blocks_of(tables, parts, rows, panels.shape(0), panels.shape(1), panels.shape(2));
            std::vector<const std::uint8_t*> pointers;
            for (const auto& part : parts) {
                pointers.push_back(part.data());
            }
            nb::gil_scoped_release released;
            pack_panels(tables, pointers, rows, blocks, panels.data());
        },
        nb::arg("parts"), nb::arg("panels"), nb::arg("rows"), nb::arg("sizes"), nb::arg("pieces"), nb::arg("planes"),
        nb::arg("kind"));
    m.def(
        "unpack_panels",
        [](const Array<const std::uint8_t, 3>& panels, const std::vector<Array<std::uint8_t, 2>>& parts,
           std::size_t rows, const Sizes& sizes, const Table& pieces, const Table& planes, std::size_t kind) {
            const auto tables = tables_of(sizes, pieces, planes, kind);
            const auto blocks =
                blocks_of(tables, parts, rows, panels.shape(0), panels.shape(1), panels.shape(2));
            std::vector<std::uint8_t*> pointers;
            for (const auto& part : parts) {
                pointers.push_back(part.data());
            }
            nb::gil_scoped_release released;
            unpack_panels(tables, panels.data(), rows, blocks, pointers);
        },
        nb::arg("panels"), nb::arg("parts"), nb::arg("rows"), nb::arg("sizes"), nb::arg("pieces"), nb::arg("planes"),
        nb::arg("kind"));
}

}  // namespace sscc
