"""The end of a prompt: scores, pooling, selection, and the rows of the cache; and gathers of rows by an index.

`Compress` takes three phases, all bounded by the prompt's length: scores, one pass over the keys, in units of (KV head,
slice of positions); pooling and top-K, in units of KV heads; copies, in units of (KV head, block of rows).
"""

from __future__ import annotations

from collections.abc import Sequence

from sscc.ir.errors import InputError
from sscc.ir.schedule import Compress, GatherRows
from sscc.runtime.backends.cpu.encoded_rows import check_encoded, encode_row
from sscc.runtime.backends.cpu.features import Features
from sscc.runtime.backends.cpu.figures import ROW_BLOCK
from sscc.runtime.backends.cpu.indices import report_index
from sscc.runtime.backends.cpu.mlir import I64, Function, Value
from sscc.runtime.backends.cpu.observation_scores import Scorer, holds
from sscc.runtime.backends.cpu.phases import Context, Lowered, Operand, Phase
from sscc.runtime.backends.cpu.row_copies import Meta, address, check_operands, copy_row, zero_row
from sscc.runtime.backends.cpu.selection import check_pool, choice_bytes, choose, key_bytes, pooled_scores, store_keys


def lower_compress(step: Compress, operands: dict[str, Meta], features: Features) -> Lowered:
    """Three phases, or one where nothing is selected. See `Compress` for shapes and meaning.

    Shared scratch: a score and a key per KV head and row of the prompt, [Hkv, T] f32 and i32. Does nothing where the
    length is not 1 .. T (the reference interpreter refuses that). Raises InputError for operands that do not fit.
    """
    selected = [step.selected] if step.selected else []
    check_operands(step.kind, operands, (step.observed, step.log_sum_exp, step.key, step.value, *selected))
    for source, cache in ((step.key, step.k_cache), (step.value, step.v_cache)):
        if cache in operands and operands[cache][2] == "i8":
            check_encoded(step.kind, cache, operands[cache], operands[source][0][-1])
        else:
            check_operands(step.kind, operands, (cache,))
    check_pool(step.kind, step.pool, step.pool_mode)
    (_, kv_heads, limit, _), cache_rows = operands[step.key][0], operands[step.k_cache][0][2]
    topk = operands[step.selected][0][1] if step.selected else 0
    ring = step.sink + step.recent
    if step.sink < 0 or step.recent < 1 or step.sink > limit or cache_rows not in (ring, ring + topk):
        raise InputError(
            f"{step.kind} fills {cache_rows} rows with sink {step.sink} + recent {step.recent} + topk {topk} "
            f"from {limit} rows"
        )
    copy = _copy_phase(step, operands, kv_heads, limit, cache_rows)
    if not topk:
        return Lowered((copy,))
    scorer = Scorer.of(step, operands, features)
    row = key_bytes(limit)

    def score(context: Context) -> None:
        wanted = context.scalars[step.length] - step.recent > step.sink
        scorer.emit_scores(context, lambda head: context.shared + head * row, wanted)

    def choose_rows(context: Context) -> None:
        f, length = context.f, context.scalars[step.length]
        with f.when(holds(f, length, limit)), f.loop(context.begin, context.end) as head:
            scores, keys = (context.shared + head.index * row + part * kv_heads * row for part in range(2))
            end = f.max(length - step.recent, step.sink)
            with f.loop(step.sink, end, 16) as place:
                found = pooled_scores(f, scores, place.index, length, step.pool, step.pool_mode)
                mask = f.first_lanes(end - place.index)
                store_keys(f, found, mask, keys + (place.index - step.sink) * 4)
            target = address(f, context.operands[step.selected], head.index)
            wanted = context.scalars[step.topk]
            choose(f, keys, step.sink, end - step.sink, wanted, topk, target, context.private, limit)

    phases = (
        Phase(scorer.units, score, private_bytes=scorer.scratch.nbytes),
        Phase(kv_heads, choose_rows, choice_bytes(limit, topk)),
        copy,
    )
    return Lowered(phases, 2 * kv_heads * row)


def _copy_phase(step: Compress, operands: dict[str, Meta], kv_heads: int, limit: int, cache_rows: int) -> Phase:
    blocks, ring = -(-cache_rows // ROW_BLOCK), step.sink + step.recent

    def copy(context: Context) -> None:
        f, length = context.f, context.scalars[step.length]
        places = {name: context.operands[name] for name in (step.key, step.value, step.k_cache, step.v_cache)}
        with f.when(holds(f, length, limit)), f.loop(context.begin, context.end) as unit:
            head, first = unit.index // blocks, unit.index % blocks * ROW_BLOCK
            last = f.min(first + ROW_BLOCK, cache_rows)

            def move(row: Value, position: Value) -> None:
                for source, target in ((step.key, step.k_cache), (step.value, step.v_cache)):
                    copy_or_zero(f, places[source], places[target], (0, head), position, row)

            with f.loop(f.min(first, ring), f.min(last, ring)) as row:
                move(row.index, _kept_position(f, row.index, length, step.sink, step.recent))
            if cache_rows > ring:
                selected = address(f, context.operands[step.selected], head)
                with f.loop(f.max(first, ring), f.max(last, ring)) as row:
                    move(row.index, f.load(selected + (row.index - ring) * 8, I64))

    return Phase(kv_heads * blocks, copy)


def _kept_position(f: Function, row: Value, length: Value, sink: int, recent: int) -> Value:
    """The position that stands in a sink or ring row after a prompt; -1 for an empty ring row."""
    turns = (sink + recent) // recent + 1  # so that what is divided is not negative
    back = (length - 1 - row + turns * recent) % recent
    position = length - 1 - back
    return f.select(row < sink, row, f.select(position >= sink, position, -1))


def copy_or_zero(
    f: Function, source: Operand, target: Operand, outer: Sequence[Value | int], position: Value, row: Value
) -> None:
    """Row `position` of the source to row `row` of the target, which may be one of encoded rows; zeros where the source
    has no such row."""
    count = source.shape[-1]
    there = address(f, target, *outer, row)
    exists = (position >= 0) & (position < source.shape[-2])
    with f.when(exists):
        here = address(f, source, *outer, position)
        if target.dtype == "i8":
            encode_row(f, here, source.dtype, there, count)
        else:
            copy_row(f, here, source.dtype, there, target.dtype, count)
    with f.when((position < 0) | (position >= source.shape[-2])):
        zero_row(f, there, target.dtype, target.shape[-1])


def lower_gather_rows(step: GatherRows, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase in units of (KV head, block of rows). See `GatherRows`.

    An index beyond the source is reported. Raises InputError for operands that do not fit.
    """
    check_operands(step.kind, operands, (step.source, step.out))
    _, heads, count, _ = operands[step.out][0]
    blocks = -(-count // ROW_BLOCK)

    def gather(context: Context) -> None:
        f = context.f
        source, index, out = (context.operands[name] for name in (step.source, step.index, step.out))
        with f.loop(context.begin, context.end) as unit:
            head, first = unit.index // blocks, unit.index % blocks * ROW_BLOCK
            with f.loop(first, f.min(first + ROW_BLOCK, count)) as row:
                position = f.load(address(f, index, head, row.index), I64)
                report_index(f, position >= source.shape[2])
                copy_or_zero(f, source, out, (0, head), position, row.index)

    return Lowered((Phase(heads * blocks, gather),))
