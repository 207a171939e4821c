"""Decode step whose query selects the rows that it attends to (`QueryAttention`), and its parts as separate steps.

The fused step consists of the phases of the selection (`row_choice`), then those of `DecodeAttention` over sinks, ring
and an index in shared scratch. The unit of a slot's first slice also scores sinks and ring, and writes the new row and
its quantized key, which no unit of this step reads; with several tokens of a slot another phase writes them first.
Work depends on the slot's length; a slot with no more candidates than it may choose scores none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sscc.ir.choices import PLAIN_BITS
from sscc.ir.operations import ChooseRows, DecodeAttention, FetchRows, QuantizedKeyScores, QueryAttention, SelectedRows
from sscc.ir.opspec import executes
from sscc.ir.sizes import align, dense_strides
from sscc.runtime.backends.cpu.attention.decode_attention import lower_decode_attention
from sscc.runtime.backends.cpu.attention.quantized_keys import QuantizedKeyRows, encode_key, encode_query, score_rows
from sscc.runtime.backends.cpu.attention.resident_rows import ResidentRows
from sscc.runtime.backends.cpu.attention.row_choice import CHUNK, Choice, Pair, chunks_of
from sscc.runtime.backends.cpu.attention.scoring import Block, GroupQueries, Scoring
from sscc.runtime.backends.cpu.attention.visibility import Candidates
from sscc.runtime.backends.cpu.codegen.approximations import LOG2E, tanh
from sscc.runtime.backends.cpu.codegen.encoded_rows import put_row
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import LINE, STREAMED_LINES
from sscc.runtime.backends.cpu.codegen.mlir import F32, Value, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand, Phase, units
from sscc.runtime.backends.cpu.codegen.row_copies import (
    Meta,
    ScratchPieces,
    address,
    check_rows,
    row_bytes,
)

_CHOSEN = "%chosen"
"""Name of the operand in shared scratch with the chosen positions."""
_FLOATS = vector(F32, LANES)


# ------------------------------------------------------------------------------------------------------------ scores


class _Scorer:
    """Scores of candidates by their quantized keys: from codes or, for 16 bits, by attention's products with keys.

    Args:
        group: query heads per KV head.
        unit: factor of the logits.

    Attributes:
        keys: kernels for keys that are not quantized. A key's sum has one order, independent of its place in a
            block and of the other keys; queries are neither rotated nor rounded.
    """

    def __init__(
        self, step: QuantizedKeyScores | QueryAttention, operands: dict[str, Meta], group: int, features: Features,
        unit: float,
    ) -> None:  # fmt: skip
        self.step, self.group, scoring = step, group, Scoring(step.scale, step.softcap)
        self.capped = scoring.softcap is not None
        self.left = scoring.left * unit
        self.scale = scoring.inner if self.capped else self.left
        plain = step.bits == PLAIN_BITS
        self.keys = Block.of(operands, step.codes, step.query, group, features) if plain else None
        if not plain:
            self.rows = QuantizedKeyRows(operands[step.query][0][3], step.bits, features.int8_dot)

    def pieces(self, logits: int) -> ScratchPieces:
        """Return the private scratch of a scoring unit; `logits` is the size of a chunk's logits and other data
        there."""
        if self.keys:
            return ScratchPieces(logits=logits, keys=self.keys.scratch.nbytes)
        return ScratchPieces(
            logits=logits,
            queries=self.group * self.rows.query_bytes,
            query=self.rows.query_scratch_bytes,
            staging=self.rows.staging_bytes,
        )

    def put_queries(self, context: Context, token: Value, kv_head: Value, at: dict[str, Value]) -> None:
        """Store the group's queries in the form that `score` reads."""
        f, query = context.f, context.operands[self.step.query]
        first, stride = address(f, query, token, kv_head * self.group), row_bytes(query, 1)
        if self.keys:
            GroupQueries(f, self.keys, at["keys"]).put(first, stride, query.dtype)
            return
        with f.loop(0, self.group) as head:
            here, target = first + head.index * stride, at["queries"] + head.index * self.rows.query_bytes
            encode_query(f, self.rows, query.dtype)(here, self.scale, at["query"], target)

    def score(
        self, context: Context, slot: Value, kv_head: Value, first: Value, count: Value, at: dict[str, Value],
        ahead: tuple[Value, int] | None = None,
    ) -> None:  # fmt: skip
        """Write the logits of rows first .. first + count - 1 for the queries of `put_queries`: [group][CHUNK]."""
        f, codes, logits = context.f, context.operands[self.step.codes], at["logits"]
        if self.keys:
            queries, keys = GroupQueries(f, self.keys, at["keys"]), address(f, codes, slot, kv_head, first)
            queries.score(keys, row_bytes(codes), count, self.scale, logits, CHUNK * 4)
        else:
            rows = (codes, context.operands[self.step.scales], (slot, kv_head, first), count)
            score_rows(f, self.rows, *rows, at["queries"], self.group, at["staging"], logits, CHUNK * 4, ahead)
        if self.capped:
            for head in range(self.group):
                with f.loop(0, count, LANES) as place:
                    here = logits + head * (CHUNK * 4) + place.index * 4
                    f.store(tanh(f, f.load(here, _FLOATS)) * self.left, here)


@executes(QuantizedKeyScores)
def lower_quantized_key_scores(step: QuantizedKeyScores, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `QuantizedKeyScores` to one phase in units of (token, KV head, chunk of candidates).

    A position beyond the quantized keys is reported.
    """
    check_rows(step, operands)
    (queries, heads, _, _), (slots, kv_heads, limit, _) = operands[step.query][0], operands[step.codes][0]
    group, chunks = heads // kv_heads, chunks_of(limit, step.sink)
    scorer = _Scorer(step, operands, group, features, 1.0)
    private = scorer.pieces(group * CHUNK * 4)

    def score(context: Context) -> None:
        f, scores, at = context.f, context.operands[step.scores], private.at(context.private)
        with units(context, queries, kv_heads, chunks) as (query, kv_head, chunk):
            first = chunk * CHUNK
            count = f.min(Candidates.of(context, step, query, limit).candidates - first, CHUNK)
            with f.when(count > 0):
                scorer.put_queries(context, query, kv_head, at)
                scorer.score(context, query // (queries // slots), kv_head, first + step.sink, count, at)
                for head in range(group):
                    target = address(f, scores, query, kv_head * group + head, first + step.sink)
                    with f.loop(0, count, LANES) as place:
                        logits = f.load(at["logits"] + head * (CHUNK * 4) + place.index * 4, _FLOATS)
                        f.store_masked(logits, target + place.index * 4, f.first_lanes(count - place.index))

    return Lowered((Phase(queries * kv_heads * chunks, score, private.nbytes),))


# -------------------------------------------------------------------------------------------------------- the choice


@executes(ChooseRows)
def lower_choose_rows(step: ChooseRows, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `ChooseRows`; `row_choice` describes the phases. A position beyond the scores is reported."""
    check_rows(step, operands, step.selected)
    room = operands[step.selected][0][2]
    choice = Choice(step, operands, operands[step.scores][0][2], room, features)

    def pick(pair: Pair) -> None:
        pair.choose(pair.of_token(step.selected), room)

    return Lowered(choice.phases(_given_scores(step), pick, choice.scoring_bytes), choice.shared_bytes)


@executes(FetchRows)
def lower_fetch_rows(step: FetchRows, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `FetchRows`, like `lower_choose_rows`, with the resident set in place of the choice.

    An invalid place of a resident row is reported too.
    """
    check_rows(step, operands, step.resident, step.places)
    choice = Choice(step, operands, operands[step.scores][0][2], operands[step.resident][0][2], features)
    rows = ResidentRows(step, choice)
    phases = choice.phases(_given_scores(step), rows.keep, choice.scoring_bytes, rows.scratch.nbytes)
    return Lowered(phases, choice.shared_bytes)


def _given_scores(step: ChooseRows | FetchRows) -> Callable[[Pair, Value], None]:
    """Return an emitter of the exponentials of the step's scores, and of those of sinks and ring."""

    def score(pair: Pair, part: Value) -> None:
        f, scores = pair.f, pair.context.operands[step.scores]

        def logits(first: Value, count: Value) -> None:
            for head in range(pair.choice.group):
                source = address(f, scores, pair.query, pair.query_head(head), first + step.sink)
                target = pair.context.private + head * (CHUNK * 4)
                with f.loop(0, count, LANES) as place:
                    natural = f.load_masked(source + place.index * 4, f.first_lanes(count - place.index), _FLOATS)
                    f.store(natural * LOG2E, target + place.index * 4)

        with f.when(pair.chooses):
            with f.when(part.eq(0)):
                pair.score_ring()
            pair.score_chunks(part, logits)

    return score


# ----------------------------------------------------------------------------------------------------- all in one


@executes(QueryAttention)
def lower_query_attention(step: QueryAttention, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `QueryAttention` (see the module docstring). A position of an active slot beyond the stores is reported."""
    check_rows(step, operands, *([step.resident, step.places] if step.fetch else []))
    choice = Choice(step, operands, operands[step.codes][0][2], step.topk, features)
    scorer = _Scorer(step, operands, choice.group, features, LOG2E)
    near = ResidentRows(step, choice) if step.fetch else None
    private, several = scorer.pieces(choice.scoring_bytes), choice.per_slot > 1
    shape = (choice.queries, choice.kv_heads, step.topk)
    chosen: Meta = (shape, dense_strides(shape), "i64")
    chosen_bytes = 0 if near else align(choice.pairs * step.topk * 8)
    attention = _attention(step, operands | {_CHOSEN: chosen}, features)

    def chosen_in(context: Context) -> Operand:
        return Operand(context.shared + choice.shared_bytes, *chosen)

    def score(pair: Pair, part: Value) -> None:
        f, context, at = pair.f, pair.context, private.at(pair.context.private)

        def logits(first: Value, count: Value) -> None:
            ahead = _stream(pair, part, first // CHUNK)
            scorer.score(context, pair.slot, pair.kv_head, first + step.sink, count, at, ahead)

        new = None if several else (pair.ring.row, pair.operand(step.k_cache, pair.ring.row))
        if new is not None:
            with f.when(part.eq(0) & (pair.seen.length > 0)):
                _write_new(pair, step, scorer)
        with f.when(pair.chooses):
            with f.when(part.eq(0)):
                pair.score_ring(new)
            with f.when(part.eq(0) | pair.alone.eq(0)):
                scorer.put_queries(context, pair.query, pair.kv_head, at)
            pair.score_chunks(part, logits)

    def pick(pair: Pair) -> None:
        pair.choose(address(pair.f, chosen_in(pair.context), pair.query, pair.kv_head), step.topk)

    def write(context: Context) -> None:
        with units(context, choice.pairs) as (number,):
            pair = Pair(choice, context, number)
            with context.f.when(pair.seen.length > 0):
                _write_new(pair, step, scorer)

    def attend(phase: Phase) -> Phase:
        def emit(context: Context) -> None:
            operands = context.operands | {_CHOSEN: chosen_in(context)}
            shared = context.shared + (choice.shared_bytes + chosen_bytes)
            phase.emit(replace(context, operands=operands, shared=shared))

        return replace(phase, emit=emit)

    picking = near.scratch.nbytes if near else 0
    choosing = choice.phases(score, near.keep if near else pick, private.nbytes, picking)
    writing = (Phase(choice.pairs, write),) if several else ()
    phases = (*writing, *choosing, *(attend(phase) for phase in attention.phases))
    return Lowered(phases, choice.shared_bytes + chosen_bytes + attention.shared_bytes)


def _attention(step: QueryAttention, operands: dict[str, Meta], features: Features) -> Lowered:
    """Return the attention over the rows of the cache, followed by the chosen or resident rows."""
    behind = (SelectedRows(step.k_store, step.v_store, _CHOSEN),) if step.topk else ()
    if step.fetch:
        behind = (SelectedRows(step.k_resident, step.v_resident, step.places),)
    inner = DecodeAttention(
        query=step.query, new_key=step.new_key, new_value=step.new_value, key=step.key, value=step.value,
        k_cache=step.k_cache, v_cache=step.v_cache, position=step.position, base="", active=step.active, topk="",
        out=step.out, scale=step.scale, sink=step.sink, recent=step.recent, softcap=step.softcap,
        sink_logits=step.sink_logits, spare=step.spare,
    )  # fmt: skip
    return lower_decode_attention(inner, operands, features, behind)


def _stream(pair: Pair, part: Value, chunk: Value) -> tuple[Value, int] | None:
    """Return the prefetch during the scoring of a chunk of a slice: the slice's part of the stream, chunk by chunk, or
    the start of that part if it is large."""
    choice, stream = pair.choice, pair.context.stream
    if stream is None:
        return None
    share, rounds = stream.nbytes // (choice.pairs * choice.slices), CHUNK // (2 * LANES)
    lines = min(-(-share // (-(-choice.chunks // choice.slices) * rounds * LINE)), STREAMED_LINES)
    place = chunk - pair.first_chunk(part)
    return stream.pointer + (pair.first_slice + part) * share + place * (rounds * lines * LINE), lines


def _write_new(pair: Pair, step: QueryAttention, scorer: _Scorer) -> None:
    """Write the new row to the store, its quantized key, and its key to the ring, where it is scored. Attention writes
    the key and value of the ring."""
    f, operands, position = pair.f, pair.context.operands, pair.seen.length - 1
    source, place = (pair.query, pair.kv_head), (pair.slot, pair.kv_head)
    targets = [(step.new_key, step.k_store, position)]
    if step.v_store:
        targets.append((step.new_value, step.v_store, position))
    targets.append((step.new_key, step.k_cache, pair.ring.row))
    if scorer.keys:
        targets.append((step.new_key, step.codes, position))
    for new, rows, row in targets:
        put_row(f, operands[new], source, operands[rows], (*place, row))
    if not scorer.keys:
        codes, scale = (pair.operand(name, position) for name in (step.codes, step.scales))
        key = operands[step.new_key]
        encode_key(f, key.dtype, key.shape[3], step.bits)(address(f, key, *source), codes, scale)
