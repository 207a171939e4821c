"""A decode step whose query chooses the rows that it attends to (`QueryAttention`), and its parts alone.

The fused step has the phases of `DecodeAttention`, over sinks, ring and an index in shared scratch, behind two more:

1. in units of (slot, KV head, slice of the candidates): logits by landmarks and their exponentials. The unit of the
   first slice scores sinks and ring, too, and writes the new row and its landmark, which no unit of this step reads;
2. in units of (slot, KV head): factors, mean probabilities, and the choice.

Who has scored all slices of a slot and KV head chooses at once, while its exponentials are in the cache. Where there
are slots and heads enough to need no slices, the two are one phase.

Work is bounded by the slot's length; a slot that has no more candidates than it may choose scores none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sscc.ir.choices import PLAIN_BITS
from sscc.ir.operations import ChooseRows, DecodeAttention, FetchRows, LandmarkScores, QueryAttention, SelectedRows
from sscc.ir.opspec import executes
from sscc.ir.sizes import align, dense_strides
from sscc.runtime.backends.cpu.attention.decode_attention import lower_decode_attention
from sscc.runtime.backends.cpu.attention.key_scores import KeyRows, put_queries, score_keys
from sscc.runtime.backends.cpu.attention.landmark_scores import Ahead, LandmarkSource, score_rows, staging_bytes
from sscc.runtime.backends.cpu.attention.landmarks import LandmarkRows, encode_landmark, encode_query
from sscc.runtime.backends.cpu.attention.resident_rows import ResidentRows, keep_rows
from sscc.runtime.backends.cpu.attention.row_choice import (
    CHUNK,
    Choice,
    Slot,
    Unit,
    choose_rows,
    chunks_of,
    chunks_of_slice,
    score_ring,
    slot_of,
    take_chunk,
)
from sscc.runtime.backends.cpu.attention.score_transform import Scoring
from sscc.runtime.backends.cpu.codegen.approximations import LOG2E, tanh
from sscc.runtime.backends.cpu.codegen.encoded_rows import write_row
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import LINE, STREAMED_LINES
from sscc.runtime.backends.cpu.codegen.mlir import F32, I64, Function, Value, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand, Phase
from sscc.runtime.backends.cpu.codegen.row_copies import SIZES, Meta, ScratchPieces, address, check_strides, row_stride

_CHOSEN = "%chosen"
"""Operands that attention reads from shared scratch: the chosen positions, and the positions that a slot holds."""


# ------------------------------------------------------------------------------------------------------ scores


@executes(LandmarkScores)
def lower_landmark_scores(step: LandmarkScores, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase in units of (slot, KV head, chunk of candidates). See `LandmarkScores`.

    A position beyond the landmarks is reported. Raises InputError where a row is not contiguous.
    """
    check_strides(step.kind, operands, (step.query, step.scores, step.position))
    slots, heads, _, _ = operands[step.query][0]
    _, kv_heads, limit, _ = operands[step.codes][0]
    group = heads // kv_heads
    rows = _landmark_rows(step, operands, group, features)
    chunks = chunks_of(limit, step.sink)
    scale, cap = _logit_scale(step, 1.0)
    private = _scoring_scratch(rows, group, group * CHUNK * 4)

    def score(context: Context) -> None:
        f, scores = context.f, context.operands[step.scores]
        at = private.at(context.private)
        with f.loop(context.begin, context.end) as loop:
            pair, first = loop.index // chunks, loop.index % chunks * CHUNK
            slot, kv_head = pair // kv_heads, pair % kv_heads
            count = f.min(slot_of(context, step, slot, limit).candidates - first, CHUNK)
            with f.when(count > 0):
                _encode_queries(context, step, rows, group, slot, kv_head, at, scale)
                _score(context, step, rows, group, slot, kv_head, first + step.sink, count, at, scale)
                cap(f, group, count, at["logits"])
                for head in range(group):
                    target = address(f, scores, slot, kv_head * group + head, first + step.sink)
                    with f.loop(0, count, LANES) as place:
                        logits = f.load(at["logits"] + head * (CHUNK * 4) + place.index * 4, vector(F32, LANES))
                        f.store_masked(logits, target + place.index * 4, f.first_lanes(count - place.index))

    return Lowered((Phase(slots * kv_heads * chunks, score, private.nbytes),))


def _landmark_rows(
    step: LandmarkScores | QueryAttention, operands: dict[str, Meta], group: int, features: Features
) -> LandmarkRows | KeyRows:
    """Raises InputError where a row is not contiguous."""
    if step.bits == PLAIN_BITS:
        return KeyRows.of(step.kind, step.codes, operands, step.query, group, features)
    check_strides(step.kind, operands, (step.codes,))
    return LandmarkRows(operands[step.query][0][3], step.bits, features.int8_dot)


def _scoring_scratch(rows: LandmarkRows | KeyRows, group: int, logits: int) -> ScratchPieces:
    """Private scratch of a unit that scores; `logits` bytes for a chunk's, and for what else goes there."""
    if isinstance(rows, KeyRows):
        return ScratchPieces(logits=logits, keys=rows.scratch_bytes)
    return ScratchPieces(
        logits=logits,
        queries=group * rows.query_bytes,
        query=rows.query_scratch_bytes,
        staging=staging_bytes(rows),
    )


def _logit_scale(
    step: LandmarkScores | QueryAttention, unit: float
) -> tuple[float, Callable[[Function, int, Value, Value], None]]:
    """What products are scaled by, and what then makes logits in units of 1 / `unit` of them: emits it, by group, count
    and place of what `_score` left."""
    scoring = Scoring.of(step)
    if scoring.softcap is None:
        return scoring.left * unit, lambda f, group, count, logits: None

    def cap(f: Function, group: int, count: Value, logits: Value) -> None:
        for head in range(group):
            with f.loop(0, count, LANES) as place:
                at = logits + head * (CHUNK * 4) + place.index * 4
                f.store(tanh(f, f.load(at, vector(F32, LANES))) * (scoring.left * unit), at)

    return scoring.inner, cap


def _encode_queries(
    context: Context,
    step: LandmarkScores | QueryAttention,
    rows: LandmarkRows | KeyRows,
    group: int,
    slot: Value,
    kv_head: Value,
    at: dict[str, Value],
    scale: float,
) -> None:
    """The group's queries in codes; logits are in units of `scale`, the attention's for natural ones."""
    f, query = context.f, context.operands[step.query]
    first, stride = address(f, query, slot, kv_head * group), query.strides[1] * SIZES[query.dtype]
    if isinstance(rows, KeyRows):
        put_queries(f, rows, first, stride, query.dtype, at["keys"])
        return
    with f.loop(0, group) as head:
        here, target = first + head.index * stride, at["queries"] + head.index * rows.query_bytes
        encode_query(f, rows, here, query.dtype, scale, at["query"], target)


def _score(
    context: Context,
    step: LandmarkScores | QueryAttention,
    rows: LandmarkRows | KeyRows,
    group: int,
    slot: Value,
    kv_head: Value,
    first: Value,
    count: Value,
    at: dict[str, Value],
    scale: float,
    ahead: Ahead | None = None,
) -> None:
    """Logits of the rows first .. first + count - 1 by the queries that `_encode_queries` left: [group][CHUNK]."""
    f, codes = context.f, context.operands[step.codes]
    if isinstance(rows, KeyRows):
        stride = row_stride((codes.shape, codes.strides, codes.dtype))
        keys = address(f, codes, slot, kv_head, first)
        score_keys(f, rows, keys, stride, count, scale, at["keys"], at["logits"], CHUNK * 4)
        return
    source = _source(context, step, slot, kv_head).from_row(first)
    score_rows(f, rows, source, count, at["queries"], group, at["staging"], at["logits"], CHUNK * 4, ahead)


def _source(context: Context, step: LandmarkScores | QueryAttention, slot: Value, kv_head: Value) -> LandmarkSource:
    f, codes, scales = context.f, context.operands[step.codes], context.operands[step.scales]
    strides = (row_stride((o.shape, o.strides, o.dtype)) for o in (codes, scales))
    pointers = (address(f, o, slot, kv_head) for o in (codes, scales))
    return LandmarkSource(next(pointers), next(strides), next(pointers), next(strides))


# -------------------------------------------------------------------------------------------------- the choice


@executes(ChooseRows)
def lower_choose_rows(step: ChooseRows, operands: dict[str, Meta], features: Features) -> Lowered:
    """Two phases: exponentials in units of (slot, KV head, slice), the choice in units of (slot, KV head).

    See `ChooseRows`. A position beyond the scores is reported. Raises InputError where a row is not contiguous.
    """
    check_strides(step.kind, operands, (step.query, step.scores, step.position, step.selected, step.key))
    room = operands[step.selected][0][2]
    choice = Choice.of(step, operands, operands[step.scores][0][2], room, features)

    def pick(unit: Unit, slot: Slot) -> None:
        selected = address(unit.context.f, unit.context.operands[step.selected], unit.slot, unit.kv_head)
        choose_rows(unit, slot.candidates, selected, room)

    phases = _phases(choice, step, _given_scores(choice, step), pick, choice.scoring_bytes)
    return Lowered(phases, choice.shared_bytes)


def _given_scores(choice: Choice, step: ChooseRows | FetchRows) -> Callable[[Unit, Slot, Value], None]:
    """Emits exponentials of the scores that the step is given, and those of sinks and ring."""

    def logits(unit: Unit, first: Value, count: Value) -> None:
        f, scores = unit.context.f, unit.context.operands[step.scores]
        for head in range(choice.group):
            source = address(f, scores, unit.slot, unit.query_head(head), first + step.sink)
            target = unit.context.private + head * (CHUNK * 4)
            with f.loop(0, count, LANES) as place:
                mask = f.first_lanes(count - place.index)
                natural_logits = f.load_masked(source + place.index * 4, mask, vector(F32, LANES))
                f.store(natural_logits * LOG2E, target + place.index * 4)

    def score(unit: Unit, slot: Slot, part: Value) -> None:
        f = unit.context.f
        with f.when(choice.chooses(slot)):
            with f.when(part.eq(0)):
                score_ring(unit, step)
            _score_chunks(unit, slot, part, lambda first, count: logits(unit, first, count))

    return score


@executes(FetchRows)
def lower_fetch_rows(step: FetchRows, operands: dict[str, Meta], features: Features) -> Lowered:
    """As `lower_choose_rows`, with the resident set in the place of the choice. See `FetchRows`.

    A place that is none of a resident row is reported too.
    """
    check_strides(step.kind, operands, (step.query, step.scores, step.position, step.key))
    choice = Choice.of(step, operands, operands[step.scores][0][2], operands[step.resident][0][2], features)
    rows = ResidentRows.of(step, operands, choice)

    def pick(unit: Unit, slot: Slot) -> None:
        keep_rows(unit, rows, step, slot, unit.context.private + choice.choosing_bytes)

    phases = _phases(choice, step, _given_scores(choice, step), pick, choice.scoring_bytes, rows.scratch.nbytes)
    return Lowered(phases, choice.shared_bytes)


def _phases(
    choice: Choice,
    step: ChooseRows | FetchRows | QueryAttention,
    score: Callable[[Unit, Slot, Value], None],
    pick: Callable[[Unit, Slot], None],
    scoring_bytes: int,
    picking_bytes: int = 0,
) -> tuple[Phase, ...]:
    """Scores in units of (slot, KV head, slice), then choices in units of (slot, KV head) for those that nobody has
    scored alone; one phase where each of these has one slice.

    Args:
        score: emits the scores of a slice, by unit, slot and number of the slice.
        pick: emits a choice, by unit and slot.
        scoring_bytes: private scratch of `score`.
        picking_bytes: private scratch of `pick` behind that of the choice.
    """
    choosing_bytes = choice.choosing_bytes + picking_bytes
    private = max(scoring_bytes, choosing_bytes)

    def emit(context: Context, slices: int, work: Callable[[Unit, Slot, Value], None]) -> None:
        with context.f.loop(context.begin, context.end) as loop:
            unit = Unit.of(choice, context, loop.index // slices)
            work(unit, choice.slot(context, step, unit.slot), loop.index % slices)

    def score_and_choose(unit: Unit, slot: Slot, part: Value) -> None:
        f = unit.context.f
        score(unit, slot, part)
        if choice.together:
            pick(unit, slot)
            return
        with f.when(part.eq(choice.slices - 1)):
            f.store(f.cast("arith.extui", unit.alone, I64), unit.chosen)
            with f.when(unit.alone):
                pick(unit, slot)

    def choose(unit: Unit, slot: Slot, _: Value) -> None:
        f = unit.context.f
        with f.when(f.load(unit.chosen, I64).eq(0)):
            pick(unit, slot)

    if choice.together:
        private += choice.kept.nbytes
        return (Phase(choice.pairs, lambda context: emit(context, 1, score_and_choose), private),)
    return (
        Phase(choice.units, lambda context: emit(context, choice.slices, score_and_choose), private),
        Phase(choice.pairs, lambda context: emit(context, 1, choose), choosing_bytes),
    )


def _score_chunks(unit: Unit, slot: Slot, part: Value, logits: Callable[[Value, Value], None]) -> None:
    """Exponentials of the candidates of a slice; `logits` writes those of candidates first .. first + count - 1 to the
    start of private scratch, [group][CHUNK]."""
    f = unit.context.f
    first, end = chunks_of_slice(f, unit.choice, slot.candidates, part)
    with f.loop(first, end) as chunk:
        start = chunk.index * CHUNK
        count = f.min(slot.candidates - start, CHUNK)
        logits(start, count)
        take_chunk(unit, chunk.index, count, unit.context.private)


def _stream(unit: Unit, slot: Slot, part: Value, chunk: Value) -> Ahead | None:
    """What is asked for while a chunk of a slice is scored: the slice's part of the stream, chunk by chunk, or of a
    large one its beginning."""
    f, choice, stream = unit.context.f, unit.choice, unit.context.stream
    if stream is None:
        return None
    share, rounds = stream.nbytes // choice.units, CHUNK // (2 * LANES)
    lines = min(-(-share // (-(-choice.chunks // choice.slices) * rounds * LINE)), STREAMED_LINES)
    place = chunk - chunks_of_slice(f, choice, slot.candidates, part)[0]
    return Ahead(stream.pointer + unit.number(part) * share + place * (rounds * lines * LINE), lines)


# -------------------------------------------------------------------------------------------------- all in one


@executes(QueryAttention)
def lower_query_attention(step: QueryAttention, operands: dict[str, Meta], features: Features) -> Lowered:
    """See the top of this file. A position of an active slot beyond the store is reported.

    Raises InputError for operands that do not fit.
    """
    rows, choice = _sizes(step, operands, features)
    near = ResidentRows.of(step, operands, choice) if step.fetch else None
    inner, behind, extra, own = _attention(step, choice)
    known = operands | {name: meta for name, (meta, _) in extra.items()}
    attention = lower_decode_attention(inner, known, features, behind)
    private, (scale, cap) = _scoring_scratch(rows, choice.group, choice.scoring_bytes), _logit_scale(step, LOG2E)

    def operand_of(context: Context, name: str) -> Operand:
        meta, place = extra[name]
        return Operand(context.shared + (choice.shared_bytes + place), *meta)

    def score(unit: Unit, slot: Slot, part: Value) -> None:
        f, context, at = unit.context.f, unit.context, private.at(unit.context.private)

        def logits(first: Value, count: Value) -> None:
            place, ahead = (unit.slot, unit.kv_head), _stream(unit, slot, part, first // CHUNK)
            _score(context, step, rows, choice.group, *place, first + step.sink, count, at, scale, ahead)
            cap(f, choice.group, count, at["logits"])

        new = _new_row(unit, step, slot)
        with f.when(part.eq(0) & (slot.length > 0)):
            _write_new(unit, step, rows, slot, new)
        with f.when(choice.chooses(slot)):
            with f.when(part.eq(0)):
                score_ring(unit, step, new)
            with f.when(part.eq(0) | unit.alone.eq(0)):
                _encode_queries(context, step, rows, choice.group, unit.slot, unit.kv_head, at, scale)
            _score_chunks(unit, slot, part, logits)

    def pick(unit: Unit, slot: Slot) -> None:
        f, context = unit.context.f, unit.context
        if near is None:
            chosen = address(f, operand_of(context, _CHOSEN), unit.slot, unit.kv_head)
            choose_rows(unit, slot.candidates, chosen, step.topk)
        else:
            keep_rows(unit, near, step, slot, context.private + choice.choosing_bytes)

    def attend(phase: Phase) -> Phase:
        def emit(context: Context) -> None:
            operands = {**context.operands, **{name: operand_of(context, name) for name in extra}}
            phase.emit(replace(context, operands=operands, shared=context.shared + (choice.shared_bytes + own)))

        return replace(phase, emit=emit)

    picking = near.scratch.nbytes if near else 0
    choosing = _phases(choice, step, score, pick, private.nbytes, picking)
    phases = (*choosing, *(attend(phase) for phase in attention.phases))
    return Lowered(phases, choice.shared_bytes + own + attention.shared_bytes)


def _sizes(
    step: QueryAttention, operands: dict[str, Meta], features: Features
) -> tuple[LandmarkRows | KeyRows, Choice]:
    values = (step.new_value, step.v_store) if step.v_store else ()
    rows = (step.query, step.new_key, step.key, step.k_store, *values)
    check_strides(step.kind, operands, (*rows, step.position))
    choice = Choice.of(step, operands, operands[step.codes][0][2], step.topk, features)
    return _landmark_rows(step, operands, choice.group, features), choice


def _attention(
    step: QueryAttention, choice: Choice
) -> tuple[DecodeAttention, tuple[SelectedRows, ...], dict[str, tuple[Meta, int]], int]:
    """Return the attention over what is chosen, the chosen rows, which are behind those of the cache, its operands in
    shared scratch with their places there, and their bytes."""
    shape = (choice.slots, choice.kv_heads, step.topk)
    chosen: Meta = (shape, dense_strides(shape), "i64")
    extra, chosen_bytes = {_CHOSEN: (chosen, 0)}, align(choice.slots * choice.kv_heads * step.topk * 8)
    behind = (SelectedRows(step.k_store, step.v_store, _CHOSEN),) if step.topk else ()
    if step.fetch:
        extra, chosen_bytes = {}, 0
        behind = (SelectedRows(step.k_resident, step.v_resident, step.places),)
    inner = DecodeAttention(
        query=step.query, new_key=step.new_key, new_value=step.new_value, key=step.key, value=step.value,
        k_cache=step.k_cache, v_cache=step.v_cache, position=step.position, base="", active=step.active, topk="",
        out=step.out, scale=step.scale, sink=step.sink, recent=step.recent, softcap=step.softcap,
        sink_logits=step.sink_logits,
    )  # fmt: skip
    return inner, behind, extra, chosen_bytes


def _new_row(unit: Unit, step: QueryAttention, slot: Slot) -> tuple[Value, Value]:
    """The row of the ring that the step writes: its number, and where it stands in the cache."""
    f, position = unit.context.f, slot.length - 1
    row = f.select(position < step.sink, position, f.max(position - step.sink, 0) % step.recent + step.sink)
    return row, address(f, unit.context.operands[step.k_cache], unit.slot, unit.kv_head, row)


def _write_new(
    unit: Unit, step: QueryAttention, rows: LandmarkRows | KeyRows, slot: Slot, ring_row: tuple[Value, Value]
) -> None:
    """Writes the new row to the store, its landmark, and its key to the ring, where it is scored; attention writes both
    sides of the ring."""
    f, operands, place = unit.context.f, unit.context.operands, (unit.slot, unit.kv_head)
    position = slot.length - 1

    def there(name: str) -> Value:
        return address(f, operands[name], *place, position)

    key = operands[step.new_key]
    new_key = address(f, key, *place)
    targets = [(new_key, key, step.k_store, there(step.k_store))]
    if step.v_store:
        value = operands[step.new_value]
        targets.append((address(f, value, *place), value, step.v_store, there(step.v_store)))
    targets.append((new_key, key, step.k_cache, ring_row[1]))
    if isinstance(rows, KeyRows):
        targets.append((new_key, key, step.codes, there(step.codes)))
    for source, operand, name, target in targets:
        write_row(f, source, operand.dtype, target, operands[name].dtype, operand.shape[3], operands[name].shape[3])
    if isinstance(rows, LandmarkRows):
        encode_landmark(f, new_key, key.dtype, there(step.codes), there(step.scales), rows.dim, rows.bits)
