"""The largest numbers of each row, which routers use to choose experts."""

from __future__ import annotations

from sscc.ir.operations import TopK
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.attention.selection import KEYS, LOWEST_KEY, key_bytes, store_keys
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.mlir import F32, I16, I32, I64, Function, Value, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand, Phase
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, address, check_strides

_BEHIND = (1 << 31) - 1
"""An index after every other one."""


@executes(TopK)
def lower_topk(step: TopK, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `TopK` to one phase with units of rows. Raises InputError if a row is not contiguous."""
    check_strides(step.kind, operands, (step.source, step.indices))
    (rows, count), (_, chosen) = operands[step.source][0], operands[step.indices][0]

    def choose(context: Context) -> None:
        f, keys = context.f, context.private
        source, indices = (context.operands[name] for name in (step.source, step.indices))
        with f.loop(context.begin, context.end) as row:
            _store_keys(f, address(f, source, row.index), source.dtype, keys, count)
            with f.loop(0, chosen) as rank:
                place = _take_first(f, keys, count)
                f.store(place, address(f, indices, row.index, rank.index))
                if step.values:
                    target = address(f, context.operands[step.values], row.index, rank.index)
                    _copy_number(f, address(f, source, row.index, place), target, source)

    return Lowered((Phase(rows, choose, private_bytes=key_bytes(count)),))


def _store_keys(f: Function, row: Value, dtype: str, keys: Value, count: int) -> None:
    """Write the numbers of a row as integers in the same order, padded with the lowest key to a whole vector."""
    stored, size = (F32, 4) if dtype == "f32" else (I16, 2)
    with f.loop(0, count, LANES) as at:
        mask = f.first_lanes(count - at.index)
        numbers = f.widen(f.load_masked(row + at.index * size, mask, vector(stored, LANES)))
        store_keys(f, numbers, mask, keys + at.index * 4)


def _take_first(f: Function, keys: Value, count: int) -> Value:
    """Return the index of the highest key, the first one of equals, and replace it by the lowest key: i64."""
    state = [f.splat(LOWEST_KEY, LANES, I32), f.splat(_BEHIND, LANES, I32)]
    with f.loop(0, count, LANES, state) as at:
        best, places = at.state
        loaded = f.load(keys + at.index * 4, KEYS)
        here = f.broadcast(f.cast("arith.trunci", at.index, I32), LANES) + f.lanes(LANES)
        higher = loaded > best
        at.carry(f.select(higher, loaded, best), f.select(higher, here, places))
    best, places = at.results
    highest = f.broadcast(f.reduce("maxsi", best), LANES)
    place = f.cast("arith.extsi", f.reduce("minsi", f.select(best.eq(highest), places, _BEHIND)), I64)
    f.store(f.constant(LOWEST_KEY, I32), keys + place * 4)
    return place


def _copy_number(f: Function, source: Value, target: Value, operand: Operand) -> None:
    f.store(f.load(source, F32 if operand.dtype == "f32" else I16), target)
