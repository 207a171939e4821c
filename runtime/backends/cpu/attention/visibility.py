"""Visibility of rows: the rows that a query sees, and the part of them that a unit processes.

In a decode step, a slot's position determines the visible rows: the first rows of a cache whose last rows are a ring. A
query of a prompt sees positions up to its own, within a window if there is one; kernels mask the others of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sscc.ir.geometry import Span
from sscc.ir.operations import ChooseRows, DecodeAttention, FetchRows, QuantizedKeyScores, QueryAttention
from sscc.runtime.backends.cpu.attention.panels import FLOATS, PLACES, Tiling
from sscc.runtime.backends.cpu.attention.row_source import Unit
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.figures import GRAIN, LINE, SLICES
from sscc.runtime.backends.cpu.codegen.indices import report_index
from sscc.runtime.backends.cpu.codegen.mlir import I32, I64, PTR, Function, Value, kernel
from sscc.runtime.backends.cpu.codegen.phases import Context, units
from sscc.runtime.backends.cpu.codegen.row_copies import load_element

EVERY_POSITION = Span()


@dataclass(frozen=True)
class Ring:
    """The ring of a slot's cache at a decode step.

    Visible rows are numbered as if there were no spare rows: position p has number base + (p - base) mod (B - base). So
    the order of a query's sums does not depend on the number of spare rows.

    Attributes:
        row: row that the step writes.
        number: number of that row among the visible ones.
        end: number of visible rows when all are in use.
        turned: rows from which a ring with spare rows begins, its size, and the number of visible rows in it; None
            without spare rows.
    """

    row: Value
    number: Value
    end: Value
    turned: tuple[Value, Value, Value] | None = None

    @classmethod
    def of(cls, unit: Unit, step: DecodeAttention) -> Ring:
        """Return the ring of a unit's slot."""
        f, operands = unit.context.f, unit.context.operands
        position = load_element(f, operands[step.position], unit.query)
        most = (unit.context.scalars[step.topk] if step.topk else f.constant(0)) + step.sink
        base = most
        if step.base:
            base = f.min(f.max(load_element(f, operands[step.base], unit.query), step.sink), most)
        return cls.at(f, position, base, most + step.recent, step.spare)

    @classmethod
    def at(cls, f: Function, position: Value, base: Value, end: Value, spare: int) -> Ring:
        """Return the ring that begins at row `base`, for the query at a position."""
        visible, ahead = end - base, f.max(position - base, 0)
        number = f.select(position < base, position, ahead % visible + base)
        if not spare:
            return cls(number, number, end)
        row = f.select(position < base, position, ahead % (visible + spare) + base)
        first = f.select(position < base, end, base)  # before the ring is reached, rows are their numbers
        return cls(row, number, end, (first, visible + spare, visible))

    def row_of(self, f: Function, number: Value) -> Value:
        """Return the row of a visible row's number, or with lanes of several."""
        if self.turned is None:
            return number
        first, ring, visible = (f.like(value, number) for value in self.turned)
        older = number > f.like(self.number, number)
        row = number + f.like(self.row - self.number, number) - f.select(older, visible, 0)
        return f.select(number < first, number, f.select(row < first, row + ring, row))


def visible_rows(unit: Unit, step: DecodeAttention, end: Value) -> tuple[Value, Value]:
    """Return the first number and the count of the visible rows before `end` that the unit takes."""
    f, operands = unit.context.f, unit.context.operands
    position = load_element(f, operands[step.position], unit.query)
    active = load_element(f, operands[step.active], unit.query).ne(0)
    report_index(f, active & (position < 0))
    total = f.min(f.select(active, f.max(position + 1, 0), 0), end)
    if step.window_stride is not None:  # a query sees its chunk of the ring
        total = f.min(total, f.max(position, 0) % step.window_stride + 1)
    return share_of(unit, total)


def share_of(unit: Unit, total: Value) -> tuple[Value, Value]:
    """Return the first row and the number of rows of the unit's split of `total`."""
    f = unit.context.f
    share = f.ceildiv(f.ceildiv(total, unit.splits), LANES) * LANES
    first = f.min(unit.split * share, total)
    return first, f.min(share, total - first)


@dataclass(frozen=True)
class Candidates:
    """Candidates of a token whose query chooses rows: the number of positions up to its own (0 if it is not active),
    and the number of candidates among them, which are neither sinks nor in the ring."""

    length: Value
    candidates: Value

    @classmethod
    def of(
        cls,
        context: Context,
        step: ChooseRows | FetchRows | QuantizedKeyScores | QueryAttention,
        query: Value,
        rows: int,
    ) -> Candidates:
        """Return the candidates of a token. An active one is reported, and its slot holds no positions, if its
        candidates or, in the fused step, its position exceed `rows`."""
        f, operands = context.f, context.operands
        position = load_element(f, operands[step.position], query)
        active = load_element(f, operands[step.active], query).ne(0)
        fused = isinstance(step, QueryAttention)
        exists = (position < rows) & (position >= 0) if fused else position < rows + step.recent
        report_index(f, active & exists.eq(0))
        length = f.select(active & exists, f.max(position + 1, 0), 0)
        return cls(length, f.max(length - (step.sink + step.recent), 0))


# ------------------------------------------------------------------------------------------------- panels of queries


def last_unseen(position: Value, window: Span) -> Value:
    """Return the last position before the window of the query at `position`; negative if there is none."""
    fixed = position - position % window.stride if window.chunked else position
    return fixed + (window.stride - window.size - 1)


def holds(length: Value, rows: int) -> Value:
    """Return True if a prompt's length fits `rows` rows, 1 .. rows (i1)."""
    return (length >= 1) & (length <= rows)


def slices_of(rows: int) -> int:
    """Return the number of units per KV head over the positions of a prompt of up to `rows`."""
    return min(SLICES, -(-rows // GRAIN))


@contextmanager
def prompt_slices(context: Context, kv_heads: int, rows: int, length: Value, end: Value) -> Iterator[list[Value]]:
    """Open a loop over the context's units, each a slice of positions [0, end) in multiples of the granularity. Yields
    the KV head, the number of the slice, its first position and its end. There are no units if the prompt's length does
    not fit `rows`."""
    f, slices = context.f, slices_of(rows)
    with f.when(holds(length, rows)), units(context, kv_heads, slices) as (head, part):
        grains = f.ceildiv(end, GRAIN)
        first, last = ((grains * number // slices) * GRAIN for number in (part, part + 1))
        yield [head, part, first, f.min(last, end)]


@kernel(scores=PTR, first=I64, count=I64, positions=PTR)
def panel_mask(f: Function, tiles: Tiling, window: Span) -> None:
    """Set scores[key][row] = -inf where the query at positions[row] does not see position first + key: a later position
    or, with a window, one before it."""
    positions = [f.load(f["positions"] + v * LINE, PLACES) for v in range(tiles.vectors)]
    unseen = [last_unseen(position, window) for position in positions] if window else []
    with f.loop(0, f["count"]) as key:
        place = f.broadcast(f.cast("arith.trunci", f["first"] + key.index, I32), LANES)
        row = f["scores"] + key.index * tiles.row_bytes
        for v in range(tiles.vectors):
            scores = f.load(row + v * LINE, FLOATS)
            hidden = place > positions[v]
            if window:
                hidden = hidden | (unseen[v] >= place)
            f.store(f.select(hidden, float("-inf"), scores), row + v * LINE)
