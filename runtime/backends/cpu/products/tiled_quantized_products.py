"""Products of many rows with quantized weights in tile registers (AMX_INT8), bit-identical to `quantized_products`.

A tile register multiplies 16 rows of up to 64 bytes, signed parts of integers, by 16 quads of unsigned codes of 16
outputs, and sums in i32, which is exact. The codes of a block of a panel are unpacked to bytes once for all rows of a
kernel. After each group the sums are stored, scaled and added to those of the previous groups, row by row, with the
operations of `quantized_products` in the same order.

Packed rows, in blocks of R = 16 or 32 rows, contain per group: the heads of `quantized_products`; then the parts in
steps of up to 64 numbers, [steps][2][R][numbers of a step] bytes, the high parts first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import AHEAD_BYTES, LINE
from sscc.runtime.backends.cpu.codegen.mlir import F32, I8, I32, I64, PTR, TILE_ROW, Function, Module, Value, vector
from sscc.runtime.backends.cpu.products.panel_reading import BlockHeads, stored_codes
from sscc.runtime.backends.cpu.products.product_blocks import SIZE, RowPlaces, Tile, rounded
from sscc.runtime.backends.cpu.products.quantized_packing import QUAD, QuantizedPanels
from sscc.runtime.backends.cpu.products.quantized_rows import (
    LARGEST,
    SMALLEST,
    RowForm,
    integers,
    joined,
    largest,
    load,
    split,
)

TILE_SIZES = (2 * LANES, LANES)
"""Numbers of rows of a block, in descending order."""
_TILE = LANES * TILE_ROW
_LARGEST_BLOCK = 1 << 12
"""Maximum number of codes of a block that a kernel unpacks."""
_PARTS = 2
_LANES32 = vector(I32, LANES)
_LANESF = vector(F32, LANES)


@dataclass(frozen=True)
class TileForm:
    """Form of packed integers for tile registers.

    Attributes:
        row: form of sums and heads.
        group: number of elements that share a scale.
    """

    row: RowForm
    group: int

    @classmethod
    def of(cls, panels: QuantizedPanels, features: Features) -> TileForm | None:
        """Return the form for a CPU; None if it has no tile registers, or groups do not fit them."""
        steps = panels.group <= TILE_ROW or panels.group % TILE_ROW == 0
        fits = panels.group % LANES == 0 and steps and panels.format.block <= _LARGEST_BLOCK
        row = RowForm.of(panels, features)
        fits = fits and features.activation_bits == 16
        return cls(row, panels.group) if features.int8_tiles and fits and row.kind == "dot" else None

    @property
    def name(self) -> str:
        return f"tiles{self.row.sums}"

    @property
    def step(self) -> int:
        """Number of elements of a row in a register."""
        return min(self.group, TILE_ROW)

    @property
    def steps(self) -> int:
        return self.group // self.step

    def group_bytes(self, rows: int) -> int:
        """Bytes of a group of a packed block."""
        return rows * (self.row.head_bytes + _PARTS * self.group)

    def registers(self, rows: int) -> tuple[tuple[int, int], ...]:
        """Return the rows and bytes per row of the tile registers that kernels use: sums, with those of the high parts
        first, then one register of rows, then one of codes."""
        sums = ((LANES, TILE_ROW),) * (_PARTS * (rows // LANES))
        return (*sums, (LANES, self.step), (self.step // QUAD, TILE_ROW))


def pack_tiles(dtype: str, form: TileForm, module: Module, rows: int, places: RowPlaces) -> Function:
    """Return the private function that packs rows first .. first + rows - 1 in the form that kernels read."""
    name = f"product_quantize_{dtype}_{form.name}_{form.group}_{rows}{places.name}"
    if module.has(name):
        return module.get(name)
    params = [("a", PTR), *places.params, ("first", I64), ("groups", I64), ("zero", I64), ("out", PTR)]
    f = module.function(name, params)
    zero = f.cast("arith.trunci", f["zero"], I32)
    with f.loop(0, rows) as row:
        source = places.address(f, f["a"], f["first"] + row.index)
        with f.loop(0, f["groups"]) as group:
            start = source + group.index * (form.group * SIZE[dtype])
            head = f["out"] + group.index * form.group_bytes(rows)
            _pack_group(f, form, dtype, start, head, rows, row.index, zero)
    f.returns()
    return f


def _pack_group(
    f: Function, form: TileForm, dtype: str, start: Value, head: Value, rows: int, row: Value, zero: Value
) -> None:
    most = f.extract(largest(f, [start], dtype, form.group), 0)
    factor = f.broadcast(f.select(most > SMALLEST, f.like(LARGEST[16], most) / most, 0.0), LANES)
    numbers = head + rows * form.row.head_bytes + row * form.step
    zeros = [f.splat(0, LANES, I32)] * _PARTS
    with f.loop(0, form.steps, 1, zeros) as step:
        sums = list(step.state)
        for first in range(0, form.step, LANES):
            values = f.widen(load(f, start, dtype, step.index * form.step + first, LANES, LANES))
            for part, number in enumerate(split(f, integers(f, values * factor))):
                where = numbers + (step.index * (_PARTS * rows * form.step) + (part * rows * form.step + first))
                f.store(f.cast("arith.trunci", number, I8), where)
                sums[part] = sums[part] + number
        step.carry(*sums)
    each = [0 - f.reduce("add", added) for added in step.results]
    if form.row.whole:
        each = [(each[0] << 8) + each[1]]
    size = most * (1.0 / LARGEST[16])
    place = head + row * 4
    f.store(size, place)
    for at, total in enumerate(each):
        f.store(total * zero, place + 4 * rows * (1 + at))
    f.store(joined(f, each) * size, place + 4 * rows * (1 + form.row.sums))


def tile_kernel(
    name: str, form: TileForm, panels: QuantizedPanels, features: Features
) -> Callable[[Module, Tile, str], Function]:
    """Return the kernel of a tile; see `quantized_products.block_kernel`."""

    def make(module: Module, tile: Tile, dtype: str) -> Function:
        full_name = f"{name}_{tile.rows}x1_{dtype}"
        if module.has(full_name):
            return module.get(full_name)
        params = [("a", PTR), ("weights", PTR), ("panel_bytes", I64), ("units", I64), ("out", PTR), ("row_bytes", I64)]
        f = module.function(full_name, params)
        _Kernel(f, form, panels, features, tile.rows).emit(dtype)
        f.returns()
        return f

    return make


class _Kernel:
    """Computation of a tile of one panel, out[rows, 16]."""

    def __init__(self, f: Function, form: TileForm, panels: QuantizedPanels, features: Features, rows: int) -> None:
        self.f, self.form, self.panels, self.features, self.rows = f, form, panels, features, rows
        self.halves = rows // LANES
        self.codes = f.stack(panels.format.block // QUAD * LINE)
        self.sums = f.stack(_PARTS * self.halves * _TILE)
        self.state = f.stack(rows * LINE)

    def emit(self, dtype: str) -> None:
        f, panels = self.f, self.panels
        with f.loop(0, self.rows) as row:
            f.store(f.splat(0.0), self.state + row.index * LINE)
        with f.loop(0, f["units"]) as block:
            weights = f["weights"] + block.index * panels.block_bytes
            self._unpack(weights)
            heads = BlockHeads(f, panels, weights)
            a = f["a"] + block.index * (panels.block_groups * self.form.group_bytes(self.rows))
            with f.loop(0, panels.block_groups) as group:
                here = a + group.index * self.form.group_bytes(self.rows)
                self._multiply(here + self.rows * self.form.row.head_bytes, group.index)
                self._add(here, heads, group.index)
        with f.loop(0, self.rows) as row:
            value = f.load(self.state + row.index * LINE, _LANESF)
            f.store(rounded(f, value, dtype), f["out"] + f["row_bytes"] * row.index)

    def _unpack(self, weights: Value) -> None:
        """Write the codes of a block as lines of unsigned bytes [16][4]."""
        f, panels = self.f, self.panels
        step = max(plane.quads for plane in panels.layout.planes)
        count = panels.format.block // QUAD
        with f.loop(0, count // step) as line:
            for number, codes in enumerate(self._codes(weights, line.index * step, 0, step)):
                f.store(codes, self.codes + (line.index * (step * LINE) + number * LINE))
        if count % step:
            whole = count // step * step
            for number, codes in enumerate(self._codes(weights, f.constant(whole), 0, count % step)):
                f.store(codes, self.codes + (whole + number) * LINE)

    def _codes(self, weights: Value, begin: Value, static: int, count: int) -> list[Value]:
        return stored_codes(self.f, self.panels, weights, begin, static, count, self.features, ahead=AHEAD_BYTES)

    def _multiply(self, numbers: Value, group: Value) -> None:
        """Write the sums of a group, i32 [2][rows][16]."""
        f, form, halves = self.f, self.form, self.halves
        registers = form.registers(self.rows)
        left, right = len(registers) - 2, len(registers) - 1
        for register in range(_PARTS * halves):
            f.zero_tile(register)
        for step in range(form.steps):
            quads = group * (self.panels.quads * LINE) + step * (form.step // QUAD * LINE)
            f.load_tile(right, self.codes + quads, *registers[right])
            for part in range(_PARTS):
                for half in range(halves):
                    at = (step * _PARTS + part) * self.rows + half * LANES
                    f.load_tile(left, numbers + at * form.step, *registers[left])
                    f.dot_bytes(part * halves + half, left, right)
        for register in range(_PARTS * halves):
            f.store_tile(register, self.sums + register * _TILE, LANES)

    def _add(self, a: Value, heads: BlockHeads, group: Value) -> None:
        """Add the sums of a group to those of the previous groups."""
        f, panels, rows, form = self.f, self.panels, self.rows, self.form.row
        scales, factors, zeros = heads.scales(group, 0), heads.below(group, 0), heads.zeros(group, 0)
        if zeros is not None and panels.flipped:
            zeros = zeros + panels.offset
        with f.loop(0, rows) as row:
            head, place = a + row.index * 4, row.index * LINE
            high, low = (f.load(self.sums + (part * rows * LINE) + place, _LANES32) for part in range(_PARTS))
            parts = [(high << 8) + low] if form.whole else [high, low]
            if zeros is not None or panels.offset:
                spread = [f.broadcast(f.load(head + 4 * rows * (1 + n), I32), LANES) for n in range(form.sums)]
                parts = [
                    part + (value if zeros is None else value * zeros)
                    for part, value in zip(parts, spread, strict=True)
                ]
            step = f.broadcast(f.load(head, F32), LANES)
            step = step if scales is None else step * scales
            total = f.fma(joined(f, parts), step, f.load(self.state + place, _LANESF))
            if factors is not None:
                below = f.broadcast(f.load(head + 4 * rows * (1 + form.sums), F32), LANES)
                total = f.fma(below, factors, total)
            f.store(total, self.state + place)
