"""Products with quantized weights: out[m, n] = sum over k of a[m, k] * b[n, k], for a range of n.

The row a[m, :] is quantized to integers of 16 bits, per group x[k] = round(a[k] / s) with s = max |a[k]| / 32639. Each
integer is split into 256 * high + low with both parts in -128 .. 127. Sums of codes times parts are exact; a group adds

    (256 * sum((code - zero) * high) + sum((code - zero) * low)) * (s * scale)

to a chain of f32 sums in ascending order of the groups. Each operation is rounded; the last addition is fused with its
product. With minimums, zero is 0, and a group then also adds (256 * sum(high) + sum(low)) * s * minimum in the same
way. Scales and minimums of two levels are multiplied first, as the format defines. A product therefore differs from one
with the dequantized weights by the rounding of x, a few 1e-5 of the result's norm. Its bits are the same on every CPU,
for every number of rows, and in every range of n.

If sums of codes times whole integers cannot overflow i32, as in groups of up to 256, the two parts may be summed as one
integer: both sums are then exact in f32, so 256 times one plus the other is the same number rounded once.

With activations of 8 bits (`Features.activation_bits`) x[k] = round(a[k] / s) with s = max |a[k]| / 127 is not split,
and a group adds sum((code - zero) * x) * (s * scale). A product then differs by a few 1e-3 of the result's norm.

Packed rows, in blocks of R = 1, 2, 4 or 8 rows, contain per group: s as f32 [R]; minus the sums of whole integers, or
of each part, as i32 [R] (times the fixed zero, if there are neither zero points nor minimums); minus the sum times s as
f32 [R]; then the parts, in the layout of `RowForm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import lcm

from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import AHEAD_BYTES, QUANTIZED_TILE_ROWS
from sscc.runtime.backends.cpu.codegen.mlir import F32, I16, I32, I64, PTR, Function, Module, Value, vector
from sscc.runtime.backends.cpu.codegen.phases import Operand
from sscc.runtime.backends.cpu.products.panel_reading import BlockHeads, signed_words, stored_codes
from sscc.runtime.backends.cpu.products.product_blocks import (
    Blocks,
    PackedProduct,
    Tile,
    check_operands,
    rounded,
    row_count,
)
from sscc.runtime.backends.cpu.products.quantized_packing import QUAD, QuantizedPanels
from sscc.runtime.backends.cpu.products.quantized_rows import (
    RowForm,
    byte_products,
    joined,
    pack_block,
    sum_pairs,
    sum_words,
)
from sscc.runtime.backends.cpu.products.tiled_quantized_products import TILE_SIZES, TileForm, pack_tiles, tile_kernel

_EXACT_K = 512  # 255 * 128 * 512 < 2**24: the sum of 512 products of a code and a part is exact in f32
_QUADS_AT_ONCE = {"dot": 8, "bytes": 8, "pairs": 4, "plain": 4}
AddBlock = Callable[[Function, Tile, Value, Value, Sequence[Value]], list[Value]]


def quantized_product(
    a: Operand, out: Operand, panels: QuantizedPanels, features: Features, rows: int = 0
) -> PackedProduct:
    """Return the product with quantized weights; see `products.packed_product`."""
    check_operands(a, panels.n, panels.k, out)
    tiles, size = TileForm.of(panels, features), _rows(row_count(a), panels, features, rows)
    based = panels.format.zeros is not None or bool(panels.format.minimums)
    depths = (panels.groups, 1 if based else panels.offset)
    if tiles is not None and size in TILE_SIZES:
        blocks = Blocks(row_count(a), Tile(size, 1), panels.groups * tiles.group_bytes(size))
        name = f"product_{symbol_of(panels)}_{tiles.name}"
        make, pack = tile_kernel(name, tiles, panels, features), partial(pack_tiles, a.dtype, tiles)
        rows_form, registers = f"{a.dtype} {tiles.name} {panels.group}", tiles.registers(size)
        return PackedProduct(
            a, out, panels.panel_bytes, panels.blocks, blocks, name, make, pack, rows_form, depths, registers
        )
    form = RowForm.of(panels, features)
    name = f"product_{symbol_of(panels)}_{form.name}"
    add = partial(_add_block, panels, form, features)
    make = block_kernel(name, lambda rows: panels.block_groups * _group_bytes(form, panels, rows), panels, add)
    pack = partial(pack_block, a.dtype, form, panels)
    blocks = Blocks(row_count(a), Tile(size, 1), panels.groups * form.group_bytes(size, panels.quads))
    rows_form = f"{a.dtype} {form.name} {panels.group}"
    return PackedProduct(a, out, panels.panel_bytes, panels.blocks, blocks, name, make, pack, rows_form, depths)


def symbol_of(panels: QuantizedPanels) -> str:
    """Return the name of the format in symbols."""
    return "".join(c if c.isalnum() else "_" for c in panels.format.name)


def _group_bytes(form: RowForm, panels: QuantizedPanels, rows: int) -> int:
    return form.group_bytes(rows, panels.quads)


def listed_rows(panels: QuantizedPanels, features: Features) -> list[int]:
    """Return the block sizes for listed rows; see `products.listed_rows`."""
    return list(reversed(_sizes(panels, features)))


def _rows(m: int, panels: QuantizedPanels, features: Features, rows: int) -> int:
    """Return the rows of a block of a product of `m` rows, at most `rows` unless that is 0."""
    return next(size for size in _sizes(panels, features) if size <= (rows or m))


def _sizes(panels: QuantizedPanels, features: Features) -> list[int]:
    """Return the possible numbers of rows of a block, in descending order. A block reads one panel at a time, because
    memory is fastest as one stream."""
    form = RowForm.of(panels, features)
    most = QUANTIZED_TILE_ROWS[form.kind] // (1 if features.wide_registers else 4 if form.signed else 2)
    if form.kind == "pairs":
        most //= form.parts
    tiles = () if TileForm.of(panels, features) is None else TILE_SIZES
    return [*tiles, *(rows for rows in (8, 4, 2, 1) if rows <= most)]


def block_kernel(
    name: str, rows_bytes: Callable[[int], int], panels: QuantizedPanels, add: AddBlock
) -> Callable[[Module, Tile, str], Function]:
    """Return the kernel of a tile of one panel, out[rows, 16], which goes over the blocks of the summed dimension
    (`PackedProduct.make`).

    Args:
        name: name of the kernel, without tile and dtype.
        rows_bytes: returns the bytes of a block of the summed dimension in a packed block of a number of rows.
        add: returns the sums, f32 [16] for each row, after a block; its arguments are the function, the tile, pointers
            to the block's packed rows and to its weights, and the previous sums.
    """

    def make(module: Module, tile: Tile, dtype: str) -> Function:
        full_name = f"{name}_{tile.rows}x1_{dtype}"
        if module.has(full_name):
            return module.get(full_name)
        params = [("a", PTR), ("weights", PTR), ("panel_bytes", I64), ("units", I64), ("out", PTR), ("row_bytes", I64)]
        f = module.function(full_name, params)
        with f.loop(0, f["units"], 1, [f.splat(0.0)] * tile.rows) as block:
            a = f["a"] + block.index * rows_bytes(tile.rows)
            weights = f["weights"] + block.index * panels.block_bytes
            block.carry(*add(f, tile, a, weights, block.state))
        for row, value in enumerate(block.results):
            f.store(rounded(f, value, dtype), f["out"] + f["row_bytes"] * row)
        f.returns()
        return f

    return make


# The sums of a tile are in the order of its rows, with one sum per part of each row.


def _step_quads(panels: QuantizedPanels, form: RowForm) -> int:
    """Return the number of quads whose codes are read together: whole lines of all planes, or several lines if they
    divide a group."""
    step = lcm(*(plane.quads for plane in panels.layout.planes))
    while step < _QUADS_AT_ONCE[form.kind] and panels.quads % (2 * step) == 0:
        step *= 2
    return step


def _add_block(
    panels: QuantizedPanels, form: RowForm, features: Features, f: Function, tile: Tile, a: Value, weights: Value,
    state: Sequence[Value],
) -> list[Value]:  # fmt: skip
    """Return the sums of the rows of a tile after a block."""
    heads = BlockHeads(f, panels, weights)
    step, group_bytes = _step_quads(panels, form), _group_bytes(form, panels, tile.rows)
    groups = max(1, step // panels.quads)  # groups that are read together
    kernel = _Kernel(f, panels, form, features, tile, heads)

    def several(first: Value | int, a: Value, sums: Sequence[Value]) -> list[Value]:
        begin = first * panels.quads if isinstance(first, Value) else f.constant(first * panels.quads)
        for number in range(groups):
            quad = begin, number * panels.quads
            sums = kernel.add_group(first, number, quad, a + number * group_bytes, sums)
        return list(sums)

    if panels.block_groups == groups:
        return several(0, a, state)
    with f.loop(0, panels.block_groups, groups, state) as loop:
        loop.carry(*several(loop.index, a + loop.index * group_bytes, loop.state))
    return loop.results


class _Kernel:
    """Computation of the sums of a block, group by group."""

    def __init__(
        self, f: Function, panels: QuantizedPanels, form: RowForm, features: Features, tile: Tile, heads: BlockHeads
    ) -> None:
        self.f, self.panels, self.form, self.features = f, panels, form, features
        self.tile, self.heads = tile, heads

    def add_group(
        self, first: Value | int, number: int, quad: tuple[Value, int], a: Value, state: Sequence[Value]
    ) -> list[Value]:
        """Return the sums of rows, f32, after group `first` + `number` of the block, whose codes begin at a quad."""
        f, form, rows = self.f, self.form, self.tile.rows
        corrections = self._corrections(first, number, a)
        sums = self._quads(quad, a + form.head_bytes * rows, corrections)
        scales = self.heads.scales(first, number)
        added = []
        for row, before in enumerate(state):
            step = f.broadcast(f.load(a + 4 * row, F32), LANES)
            step = step if scales is None else step * scales
            added.append(f.fma(joined(f, sums[form.sums * row : form.sums * (row + 1)]), step, before))
        factors = self.heads.below(first, number)
        return added if factors is None else self._with_minimums(factors, a, added)

    def _corrections(self, first: Value | int, number: int, a: Value) -> Sequence[Value | None]:
        """Return the terms that zero points add to the sums of a group; None where there is none."""
        f, form, rows, panels = self.f, self.form, self.tile.rows, self.panels
        zeros = self.heads.zeros(first, number)
        if zeros is None and (not panels.offset or form.reads_signed(panels)):
            return [None] * (form.sums * rows)
        loads = [f.load(a + 4 * (rows * (1 + part) + row), I32) for row in range(rows) for part in range(form.sums)]
        spread = [f.broadcast(value, LANES) for value in loads]
        if zeros is None:
            return spread
        if panels.flipped and not form.reads_signed(panels):
            zeros = zeros + panels.offset
        return [value * zeros for value in spread]

    def _with_minimums(self, factors: Value, a: Value, sums: Sequence[Value]) -> list[Value]:
        """Return the sums of rows plus a group's minimums times the sums of its numbers."""
        f, rows, added = self.f, len(sums), []
        for row, state in enumerate(sums):
            below = f.load(a + 4 * (rows * (1 + self.form.sums) + row), F32)  # minus the sum of the group
            added.append(f.fma(f.broadcast(below, LANES), factors, state))
        return added

    def _quads(self, quad: tuple[Value, int], a: Value, corrections: Sequence[Value | None]) -> list[Value]:
        """Return the sums over all quads of a group: per row one sum of whole integers, or one per part."""
        zero = self.f.splat(0, LANES, I32)
        if self.form.kind != "dot" or not self.form.whole or self.form.parts == 1:
            return self._all_quads(quad, a, [zero if value is None else value for value in corrections])
        starts = [part for value in corrections for part in (zero, zero if value is None else value)]
        sums = self._all_quads(quad, a, starts)
        return [(high << 8) + low for high, low in zip(sums[::2], sums[1::2], strict=True)]

    def _all_quads(self, quad: tuple[Value, int], a: Value, sums: Sequence[Value]) -> list[Value]:
        """Return the sums after all quads of a group."""
        count, step = self.panels.quads, _step_quads(self.panels, self.form)
        add = {"dot": self._dots, "bytes": self._bytes, "pairs": self._pairs, "plain": self._plain}[self.form.kind]
        if count <= step:
            return add(*quad, count, a, sums)
        begin, static = quad
        whole = count // step
        with self.f.loop(0, whole, 1, sums) as loop:
            at = loop.index * (step * self.form.quad_bytes * self.tile.rows)
            loop.carry(*add(begin + loop.index * step, static, step, a + at, loop.state))
        if count % step == 0:
            return loop.results
        behind = whole * step * self.form.quad_bytes * self.tile.rows
        return add(begin, static + whole * step, count % step, a + behind, loop.results)

    def _codes(self, begin: Value, static: int, count: int) -> list[Value]:
        return stored_codes(
            self.f, self.panels, self.heads.block, begin, static, count, self.features,
            signed=self.form.reads_signed(self.panels), ahead=AHEAD_BYTES,
        )  # fmt: skip

    def _dots(self, begin: Value, static: int, count: int, a: Value, sums: Sequence[Value]) -> list[Value]:
        """Return the sums after some quads, by products of quads of bytes."""
        f, form, rows = self.f, self.form, self.tile.rows
        # With few rows, each sum would wait for its last addition. On Arm a register holds a quarter of a vector, so
        # there are four times as many sums.
        chains = min(count, 2) if rows <= (1 if form.signed else 2) else 1
        current = [*sums, *[f.splat(0, LANES, I32)] * (len(sums) * (chains - 1))]
        for number, codes in enumerate(self._codes(begin, static, count)):
            quad = a + number * (form.quad_bytes * rows)
            for unit in range(form.parts * rows):
                row, part = divmod(unit, form.parts)
                parts = f.broadcast(f.load(quad + 4 * (part * rows + row), I32), LANES)
                at = number % chains * len(sums) + unit
                current[at] = form.sum_quads(f, current[at], codes, parts)
        return [sum(current[i + len(sums) :: len(sums)], current[i]) for i in range(len(sums))]

    def _bytes(self, begin: Value, static: int, count: int, a: Value, sums: Sequence[Value]) -> list[Value]:
        """Return the sums after some quads, by products of pairs of bytes, several of which are summed in words."""
        f, form, rows, current = self.f, self.form, self.tile.rows, list(sums)
        words: list[Value] = []
        for number, codes in enumerate(self._codes(begin, static, count)):
            quad = a + number * (form.quad_bytes * rows)
            for row in range(rows):
                numbers = f.broadcast(f.load(quad + 4 * row, I32), LANES)
                products = byte_products(f, form.bits, codes, numbers)
                if len(words) < rows:
                    words.append(products)
                else:
                    words[row] = words[row] + products
            if (number + 1) % form.quads == 0 or number + 1 == count:
                pairs = zip(current, words, strict=True)
                current = [total + sum_words(f, form.bits, of_row) for total, of_row in pairs]
                words = []
        return current

    def _pairs(self, begin: Value, static: int, count: int, a: Value, sums: Sequence[Value]) -> list[Value]:
        """Return the sums after some quads, by products of pairs of words: elements 0 and 2 of each four, then 1 and
        3."""
        f, form, rows, current = self.f, self.form, self.tile.rows, list(sums)
        words = vector(I16, 2 * LANES)
        for number, codes in enumerate(self._codes(begin, static, count)):
            quad = a + number * (form.quad_bytes * rows)
            halves = signed_words(f, codes)
            for unit in range(form.parts * rows):
                row, part = divmod(unit, form.parts)
                products = []
                for odd, code in enumerate(halves):
                    at = quad + 4 * ((odd * form.parts + part) * rows + row)
                    pair = f.bitcast(f.broadcast(f.load(at, I32), LANES), words)
                    products.append(sum_pairs(f, form.bits, code, pair))
                current[unit] = current[unit] + (products[0] + products[1])
        return current

    def _plain(self, begin: Value, static: int, count: int, a: Value, sums: Sequence[Value]) -> list[Value]:
        """Return the sums after some quads, in f32, where f32 is exact."""
        f, rows = self.f, self.tile.rows
        assert count * QUAD <= _EXACT_K  # `_step_quads` is far below this limit
        current = [f.splat(0.0)] * len(sums)
        for number, codes in enumerate(self._codes(begin, static, count)):
            for byte in range(QUAD):
                code = f.cast("arith.sitofp", (codes >> (8 * byte)) & 255, F32)
                at = a + (number * QUAD + byte) * (4 * self.form.parts * rows)
                for unit in range(self.form.parts * rows):
                    row, part = divmod(unit, self.form.parts)
                    value = f.broadcast(f.load(at + 4 * (part * rows + row), F32), LANES)
                    current[unit] = f.fma(code, value, current[unit])
        exact = [f.cast("arith.fptosi", value, I32) for value in current]
        return [total + more for total, more in zip(sums, exact, strict=True)]
