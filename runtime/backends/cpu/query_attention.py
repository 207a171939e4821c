"""A decode step whose query chooses the rows that it attends to (`QueryAttention`), and its parts alone.

The fused step has the phases of `DecodeAttention`, over sinks, ring and an index in shared scratch, behind two more:

1. in units of (slot, KV head, slice of the candidates): logits by landmarks and their exponentials. The unit of the
   first slice scores sinks and ring, too, and writes the new row and its landmark, which no unit of this step reads;
2. in units of (slot, KV head): factors, mean probabilities, and the choice.

Work is bounded by the slot's length; a slot that has no more candidates than it may choose scores none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sscc.ir.errors import InputError
from sscc.ir.schedule import ChooseRows, DecodeAttention, LandmarkScores, MoreRows, QueryAttention
from sscc.ir.sizes import align, dense_strides
from sscc.runtime.backends.cpu.decode_attention import check_rows, lower_decode_attention
from sscc.runtime.backends.cpu.features import LANES, Features
from sscc.runtime.backends.cpu.landmark_scores import LandmarkSource, score_rows, staging_bytes
from sscc.runtime.backends.cpu.landmarks import LandmarkRows, check_landmarks, encode_landmark, encode_query
from sscc.runtime.backends.cpu.mlir import F32, Value, vector
from sscc.runtime.backends.cpu.phases import Context, Lowered, Operand, Phase
from sscc.runtime.backends.cpu.row_choice import (
    CHUNK,
    Choice,
    Unit,
    check_ring,
    choose_rows,
    chunks_of,
    chunks_of_slice,
    score_ring,
    slot_of,
    take_chunk,
)
from sscc.runtime.backends.cpu.row_copies import Meta, ScratchPieces, address, check_operands, copy_row, row_stride

_CHOSEN, _LENGTH = "%chosen", "%length"
"""Operands that attention reads from shared scratch: the chosen positions, and the positions that a slot holds."""


# ------------------------------------------------------------------------------------------------------ scores


def lower_landmark_scores(step: LandmarkScores, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase in units of (slot, KV head, chunk of candidates). See `LandmarkScores`.

    A position beyond the landmarks is reported. Raises InputError for operands that do not fit.
    """
    check_operands(step.kind, operands, (step.query, step.scores, step.position))
    check_ring(step)
    (slots, heads, _, dim), _, _ = operands[step.query]
    check_landmarks(step.kind, operands, step.codes, step.scales, dim, step.bits)
    _, kv_heads, limit, _ = operands[step.codes][0]
    if heads % kv_heads:
        raise InputError(f"{step.kind}: {heads} query heads do not divide into groups of {kv_heads} KV heads")
    group, rows = heads // kv_heads, LandmarkRows(dim, step.bits, features.int8_dot)
    chunks = chunks_of(limit, step.sink)
    private = _scoring_scratch(rows, group, group * CHUNK * 4)

    def score(context: Context) -> None:
        f, scores = context.f, context.operands[step.scores]
        at = private.at(context.private)
        with f.loop(context.begin, context.end) as loop:
            pair, first = loop.index // chunks, loop.index % chunks * CHUNK
            slot, kv_head = pair // kv_heads, pair % kv_heads
            count = f.min(slot_of(context, step, slot, limit).candidates - first, CHUNK)
            with f.when(count > 0):
                _encode_queries(context, step, rows, group, slot, kv_head, at)
                source = _source(context, step, slot, kv_head).from_row(first + step.sink)
                score_rows(f, rows, source, count, at["queries"], group, at["staging"], at["logits"], CHUNK * 4)
                for head in range(group):
                    target = address(f, scores, slot, kv_head * group + head, first + step.sink)
                    with f.loop(0, count, LANES) as place:
                        found = f.load(at["logits"] + head * (CHUNK * 4) + place.index * 4, vector(F32, LANES))
                        f.store_masked(found, target + place.index * 4, f.first_lanes(count - place.index))

    return Lowered((Phase(slots * kv_heads * chunks, score, private.nbytes),))


def _scoring_scratch(rows: LandmarkRows, group: int, logits: int) -> ScratchPieces:
    """Private scratch of a unit that scores; `logits` bytes for a chunk's, and for what else goes there."""
    return ScratchPieces(
        logits=logits,
        queries=group * rows.query_bytes,
        query=rows.query_scratch_bytes,
        staging=staging_bytes(rows),
    )


def _encode_queries(
    context: Context,
    step: LandmarkScores | QueryAttention,
    rows: LandmarkRows,
    group: int,
    slot: Value,
    kv_head: Value,
    at: dict[str, Value],
) -> None:
    f, query = context.f, context.operands[step.query]
    for head in range(group):
        here, there = address(f, query, slot, kv_head * group + head), at["queries"] + head * rows.query_bytes
        encode_query(f, rows, here, query.dtype, step.scale, at["query"], there)


def _source(context: Context, step: LandmarkScores | QueryAttention, slot: Value, kv_head: Value) -> LandmarkSource:
    f, codes, scales = context.f, context.operands[step.codes], context.operands[step.scales]
    strides = (row_stride((o.shape, o.strides, o.dtype)) for o in (codes, scales))
    pointers = (address(f, o, slot, kv_head) for o in (codes, scales))
    return LandmarkSource(next(pointers), next(strides), next(pointers), next(strides))


# -------------------------------------------------------------------------------------------------- the choice


def lower_choose_rows(step: ChooseRows, operands: dict[str, Meta], features: Features) -> Lowered:
    """Two phases: exponentials in units of (slot, KV head, slice), the choice in units of (slot, KV head).

    See `ChooseRows`. A position beyond the scores is reported. Raises InputError for operands that do not fit.
    """
    check_operands(step.kind, operands, (step.query, step.scores, step.position, step.selected))
    check_rows(step.kind, step.key, operands[step.key], operands[step.query][0][3])
    room = operands[step.selected][0][2]
    choice = Choice.of(step, operands, operands[step.scores][0][2], room, features)

    def score(context: Context) -> None:
        f, scores = context.f, context.operands[step.scores]

        def logits(unit: Unit, first: Value, count: Value) -> None:
            for head in range(choice.group):
                source = address(f, scores, unit.slot, unit.query_head(head), first + step.sink)
                target = context.private + head * (CHUNK * 4)
                with f.loop(0, count, LANES) as place:
                    mask = f.first_lanes(count - place.index)
                    found = f.load_masked(source + place.index * 4, mask, vector(F32, LANES))
                    f.store(found, target + place.index * 4)

        _score_slices(choice, step, context, logits, lambda unit, part: None)

    def pick(context: Context) -> None:
        f, selected = context.f, context.operands[step.selected]
        with f.loop(context.begin, context.end) as loop:
            unit = Unit(choice, context, loop.index // choice.kv_heads, loop.index % choice.kv_heads)
            candidates = choice.slot(context, step, unit.slot).candidates
            choose_rows(unit, candidates, address(f, selected, unit.slot, unit.kv_head), room)

    phases = (
        Phase(choice.units, score, choice.scoring_bytes),
        Phase(choice.slots * choice.kv_heads, pick, choice.choosing_bytes),
    )
    return Lowered(phases, choice.shared.nbytes)


def _score_slices(
    choice: Choice,
    step: ChooseRows | QueryAttention,
    context: Context,
    logits: Callable[[Unit, Value, Value], None],
    begin: Callable[[Unit, Value], tuple[Value, Value] | None],
    prepare: Callable[[Unit], None] = lambda unit: None,
) -> None:
    """The first phase of a choice.

    Args:
        logits: writes those of candidates first .. first + count - 1 to the start of private scratch, [group][CHUNK].
        begin: emits what comes first, by unit and number of the slice; returns the new row of the ring as `score_ring`
            takes it.
        prepare: emits what `logits` needs, before a unit's first chunk.
    """
    f = context.f
    with f.loop(context.begin, context.end) as loop:
        pair, part = loop.index // choice.slices, loop.index % choice.slices
        unit = Unit(choice, context, pair // choice.kv_heads, pair % choice.kv_heads)
        slot = choice.slot(context, step, unit.slot)
        new = begin(unit, part)
        with f.when(choice.chooses(slot)):
            with f.when(part.eq(0)):
                score_ring(unit, step, new)
            first, end = chunks_of_slice(f, choice, slot.candidates, part)
            with f.when(first < end):
                prepare(unit)
            with f.loop(first, end) as chunk:
                start = chunk.index * CHUNK
                count = f.min(slot.candidates - start, CHUNK)
                logits(unit, start, count)
                take_chunk(unit, chunk.index, count, context.private)


# -------------------------------------------------------------------------------------------------- all in one


def lower_query_attention(step: QueryAttention, operands: dict[str, Meta], features: Features) -> Lowered:
    """See the top of this file. A position of an active slot beyond the store is reported.

    Raises InputError for operands that do not fit.
    """
    rows, choice = _sizes(step, operands, features)
    inner, extra, shared = _attention(step, operands, choice)
    known = operands | {name: meta for name, (meta, _) in extra.items()}
    attention = lower_decode_attention(inner, known, features)
    offset = choice.shared.nbytes
    private = _scoring_scratch(rows, choice.group, choice.scoring_bytes)

    def operand_of(context: Context, name: str) -> Operand:
        meta, place = extra[name]
        return Operand(context.shared + (offset + place), *meta)

    def score(context: Context) -> None:
        at = private.at(context.private)

        def logits(unit: Unit, first: Value, count: Value) -> None:
            source = _source(context, step, unit.slot, unit.kv_head).from_row(first + step.sink)
            score_rows(
                context.f, rows, source, count, at["queries"], choice.group, at["staging"], at["logits"], CHUNK * 4
            )

        _score_slices(
            choice, step, context, logits,
            lambda unit, part: _write_new(unit, step, rows, part),
            lambda unit: _encode_queries(context, step, rows, choice.group, unit.slot, unit.kv_head, at),
        )  # fmt: skip

    def pick(context: Context) -> None:
        f, chosen, length = context.f, operand_of(context, _CHOSEN), operand_of(context, _LENGTH)
        with f.loop(context.begin, context.end) as loop:
            unit = Unit(choice, context, loop.index // choice.kv_heads, loop.index % choice.kv_heads)
            slot = choice.slot(context, step, unit.slot)
            choose_rows(unit, slot.candidates, address(f, chosen, unit.slot, unit.kv_head), step.topk)
            with f.when(unit.kv_head.eq(0)):
                f.store(slot.length, address(f, length, unit.slot))

    def attend(phase: Phase) -> Phase:
        def emit(context: Context) -> None:
            known = {**context.operands, **{name: operand_of(context, name) for name in extra}}
            phase.emit(replace(context, operands=known, shared=context.shared + (offset + shared)))

        return replace(phase, emit=emit)

    phases = (
        Phase(choice.units, score, private.nbytes),
        Phase(choice.slots * choice.kv_heads, pick, choice.choosing_bytes),
        *(attend(phase) for phase in attention.phases),
    )
    return Lowered(phases, offset + shared + attention.shared_bytes)


def _sizes(step: QueryAttention, operands: dict[str, Meta], features: Features) -> tuple[LandmarkRows, Choice]:
    check_operands(step.kind, operands, (step.query, step.new_key, step.new_value, step.position))
    for name in (step.key, step.k_store, step.v_store):
        check_rows(step.kind, name, operands[name])
    dim = operands[step.query][0][3]
    check_landmarks(step.kind, operands, step.codes, step.scales, dim, step.bits)
    if step.topk < 0:
        raise InputError(f"{step.kind} chooses {step.topk} rows")
    choice = Choice.of(step, operands, operands[step.codes][0][2], step.topk, features)
    if step.sink + step.recent != operands[step.key][0][2]:
        held = operands[step.key][0][2]
        raise InputError(f"{step.kind} has sink {step.sink} and recent {step.recent} in a cache of {held} rows")
    return LandmarkRows(dim, step.bits, features.int8_dot), choice


def _attention(
    step: QueryAttention, operands: dict[str, Meta], choice: Choice
) -> tuple[DecodeAttention, dict[str, tuple[Meta, int]], int]:
    """The attention over what is chosen, its operands in shared scratch with their places there, and their bytes."""
    shape = (choice.slots, choice.kv_heads, step.topk)
    chosen: Meta = (shape, dense_strides(shape), "i64")
    length: Meta = ((choice.slots,), (1,), "i64")
    chosen_bytes = align(choice.slots * choice.kv_heads * step.topk * 8)
    extra = {_CHOSEN: (chosen, 0), _LENGTH: (length, chosen_bytes)}
    segments = (MoreRows(step.k_store, step.v_store, _CHOSEN),) if step.topk else ()
    inner = DecodeAttention(
        step.query, step.new_key, step.new_value, step.key, step.value, step.k_cache, step.v_cache, step.position,
        _LENGTH, step.active, step.out, step.scale, step.sink, step.recent, segments,
    )  # fmt: skip
    return inner, extra, chosen_bytes + align(choice.slots * 8)


def _write_new(unit: Unit, step: QueryAttention, rows: LandmarkRows, part: Value) -> tuple[Value, Value]:
    """The unit of the first slice writes the new row to the store and to the cache, and its landmark. Returns the new
    row of the ring: its number, and where it stands in the cache."""
    f, context, place = unit.context.f, unit.context, (unit.slot, unit.kv_head)
    position = unit.choice.slot(context, step, unit.slot).length - 1
    row = f.select(position < step.sink, position, f.max(position - step.sink, 0) % step.recent + step.sink)
    operands = context.operands
    with f.when(part.eq(0) & (position >= 0)):
        for new, targets in ((step.new_key, (step.k_store, step.k_cache)), (step.new_value, (step.v_store,))):
            source = operands[new]
            for target, at in zip(targets, (position, row), strict=False):
                here, there = address(f, source, *place), address(f, operands[target], *place, at)
                copy_row(f, here, source.dtype, there, operands[target].dtype, source.shape[3])
        key, (codes, scale) = operands[step.new_key], (
            address(f, operands[name], *place, position) for name in (step.codes, step.scales)
        )
        encode_landmark(f, address(f, key, *place), key.dtype, codes, scale, rows.dim, rows.bits)
    return row, address(f, operands[step.k_cache], *place, row)
