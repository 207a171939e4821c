// Python bindings of panels.hpp; types and documentation in runtime/support/_native.pyi.
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

constexpr std::size_t kRunFields = 9, kHeadFields = 8, kPlaneFields = 4, kPanelRows = 16, kLine = 64;

struct Layout {
    Sizes sizes;
    Table runs, heads, planes;
    std::size_t kind;
};

std::size_t part_of(const PanelTables& tables, std::int32_t part) {
    check(part >= 0 && static_cast<std::size_t>(part) < tables.part_bytes.size());
    return static_cast<std::size_t>(part);
}

void check_run(const PanelTables& tables, const CodeRun& run) {
    const auto bytes = tables.part_bytes[part_of(tables, run.part)];
    check(run.at >= 0 && run.count > 0 && run.side > 0 && run.low >= 0 && run.first >= 0 && run.shift >= 0);
    check(run.bits > 0 && run.low + run.bits <= 8 && run.shift + run.bits <= 8 && (run.base == 2 || run.base == 3));
    const auto levels = run.base == 3 ? 5 : (8 - run.low) / run.bits;
    const auto rows = (run.count + run.side - 1) / run.side;
    check(run.at + (rows + levels - 1) / levels * run.side <= bytes);
    check(static_cast<std::size_t>(run.first) + static_cast<std::size_t>(run.count) <= tables.block);
}

void check_head(const PanelTables& tables, const HeadPiece& piece) {
    check(piece.byte >= 0 && piece.byte < tables.part_bytes[part_of(tables, piece.part)]);
    check(piece.level >= 0 && piece.bits > 0 && piece.level + piece.bits <= 8);
    check(piece.low >= 0 && piece.low + piece.bits <= 8 && piece.to >= 0 && piece.step > 0);
    check(static_cast<std::size_t>(piece.to + piece.step * 15) < tables.block_bytes);
}

void check_plane(const PanelTables& tables, const BitPlane& plane) {
    check(plane.quads > 0 && plane.offset >= 0 && plane.width >= 0 && plane.shift >= 0 && plane.quads <= 8);
    check(plane.width == 0 ? plane.quads <= 5 : plane.width * plane.quads <= 8);
    const std::size_t per_line = 4 * static_cast<std::size_t>(plane.quads);
    const std::size_t lines = (tables.block + per_line - 1) / per_line;
    check(static_cast<std::size_t>(plane.offset) + lines * kLine <= tables.block_bytes);
}

PanelTables tables_of(const Layout& layout) {
    const auto& [sizes, runs, heads, planes, kind] = layout;
    check(sizes.shape(0) >= 2 && runs.shape(1) == kRunFields && heads.shape(1) == kHeadFields);
    check(planes.shape(1) == kPlaneFields && kind >= 4);
    PanelTables tables;
    tables.block = kind / 4;
    tables.flipped = kind % 4 == 1;
    tables.unit = kind % 4 < 2 ? 4 : kind % 4 - 1;
    const std::size_t parts = sizes.shape(0) - 1;
    tables.part_bytes.assign(sizes.data(), sizes.data() + parts);
    check(sizes(parts) > 0);
    tables.block_bytes = static_cast<std::size_t>(sizes(parts));
    for (std::size_t row = 0; row < runs.shape(0); ++row) {
        tables.codes.push_back({runs(row, 0), runs(row, 1), runs(row, 2), runs(row, 3), runs(row, 4), runs(row, 5),
                                runs(row, 6), runs(row, 7), runs(row, 8)});
        check_run(tables, tables.codes.back());
    }
    for (std::size_t row = 0; row < heads.shape(0); ++row) {
        tables.heads.push_back({heads(row, 0), heads(row, 1), heads(row, 2), heads(row, 3), heads(row, 4),
                                heads(row, 5), heads(row, 6), heads(row, 7)});
        check_head(tables, tables.heads.back());
    }
    for (std::size_t row = 0; row < planes.shape(0); ++row) {
        tables.planes.push_back({planes(row, 0), planes(row, 1), planes(row, 2), planes(row, 3)});
        check_plane(tables, tables.planes.back());
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
           std::size_t rows, const Sizes& sizes, const Table& runs, const Table& heads, const Table& planes,
           std::size_t kind) {
            const auto tables = tables_of({sizes, runs, heads, planes, kind});
            const auto blocks =
                blocks_of(tables, parts, rows, panels.shape(0), panels.shape(1), panels.shape(2));
            std::vector<const std::uint8_t*> pointers;
            for (const auto& part : parts) {
                pointers.push_back(part.data());
            }
            nb::gil_scoped_release released;
            pack_panels(tables, pointers, rows, blocks, panels.data());
        },
        nb::arg("parts"), nb::arg("panels"), nb::arg("rows"), nb::arg("sizes"), nb::arg("runs"), nb::arg("heads"), nb::arg("planes"),
        nb::arg("kind"));
    m.def(
        "unpack_panels",
        [](const Array<const std::uint8_t, 3>& panels, const std::vector<Array<std::uint8_t, 2>>& parts,
           std::size_t rows, const Sizes& sizes, const Table& runs, const Table& heads, const Table& planes,
           std::size_t kind) {
            const auto tables = tables_of({sizes, runs, heads, planes, kind});
            const auto blocks =
                blocks_of(tables, parts, rows, panels.shape(0), panels.shape(1), panels.shape(2));
            std::vector<std::uint8_t*> pointers;
            for (const auto& part : parts) {
                pointers.push_back(part.data());
            }
            nb::gil_scoped_release released;
            unpack_panels(tables, panels.data(), rows, blocks, pointers);
        },
        nb::arg("panels"), nb::arg("parts"), nb::arg("rows"), nb::arg("sizes"), nb::arg("runs"), nb::arg("heads"), nb::arg("planes"),
        nb::arg("kind"));
}

}  // namespace sscc
