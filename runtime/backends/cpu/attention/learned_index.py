"""Choices by a learned index, and attention to the rows that it chooses.

Both begin with a phase that writes the rows of new tokens, since tokens of a chunk attend to each other's rows.
`ChooseByIndex` is computed token by token then: scores of all positions that the token may choose from, chunk by chunk
as sort keys, then the choice. Where there are few tokens, several units share the chunks of one, and another phase
chooses. `AttendChosen` is the attention of a decode step (`decode_attention`) for each token,
over rows that lie anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sscc.ir.operations import AttendChosen, ChooseByIndex
from sscc.ir.opspec import executes
from sscc.ir.schedule import DTYPE_BYTES
from sscc.ir.sizes import align
from sscc.runtime.backends.cpu.attention.decode_attention import (
    Attention,
    Part,
    RowSource,
    Unit,
    UnitRows,
    attend,
    with_merge,
    write_result,
    zero_row,
)
from sscc.runtime.backends.cpu.attention.key_scores import KeyRows, put_queries, score_keys
from sscc.runtime.backends.cpu.attention.selection import LOWEST_KEY, choice_bytes, choose, key_bytes, store_keys
from sscc.runtime.backends.cpu.codegen.encoded_rows import write_row
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import ADDRESSES, ATTENTION_UNITS
from sscc.runtime.backends.cpu.codegen.indices import report_index
from sscc.runtime.backends.cpu.codegen.mlir import F32, I64, Function, Value, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand, Phase
from sscc.runtime.backends.cpu.codegen.row_copies import SIZES, Meta, ScratchPieces, address, check_strides, row_stride

CHUNK = 256
"""Positions that are scored together. Their scores by all heads stay in the second-level cache."""
HIGHEST_KEY = 0x7FFFFFFF
_FLOATS = vector(F32, LANES)


@dataclass(frozen=True)
class _Choice:
    """The sizes of a choice.

    Attributes:
        tokens: of all slots; choices: of each token.
        heads, positions: Hi and T.
        topk: positions of a choice.
        keys: the rows that are scored.
    """

    step: ChooseByIndex
    slots: int
    per_slot: int
    choices: int
    heads: int
    positions: int
    topk: int
    keys: KeyRows

    @classmethod
    def of(cls, step: ChooseByIndex, meta: dict[str, Meta], features: Features) -> _Choice:
        (slots, tokens, heads, _), (_, _, positions, _) = meta[step.query][0], meta[step.keys][0]
        _, choices, _, topk = meta[step.chosen][0]
        keys = KeyRows.of(step.kind, step.keys, meta, step.query, heads, features)
        return cls(step, slots, tokens, choices, heads, positions, topk, keys)

    @property
    def tokens(self) -> int:
        return self.slots * self.per_slot

    @property
    def slices(self) -> int:
        """Units that share the positions of a token."""
        chunks = -(-self.positions // CHUNK)
        return max(1, min(-(-ATTENTION_UNITS // self.tokens), chunks))

    @property
    def row_bytes(self) -> int:
        """Bytes of the sort keys of one choice."""
        return key_bytes(-(-self.positions // CHUNK) * CHUNK)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the sort keys of a token's choices."""
        return self.choices * self.row_bytes

    @property
    def blocks(self) -> int:
        return -(-self.positions // self.step.block)

    @property
    def scoring(self) -> ScratchPieces:
        return ScratchPieces(logits=self.heads * CHUNK * 4, keys=self.keys.scratch_bytes)

    @property
    def choosing(self) -> ScratchPieces:
        own = self.step.block > 1
        room = self.topk // self.step.block
        return ScratchPieces(
            blocks=key_bytes(self.blocks) if own else 0,
            picked=room * 8 if own else 0,
            choice=choice_bytes(self.blocks, room),
        )


@executes(ChooseByIndex)
def lower_choose_by_index(step: ChooseByIndex, operands: dict[str, Meta], features: Features) -> Lowered:
    """See the top of this file. A position beyond the keys that may be read is reported.

    Raises InputError where a row is not contiguous.
    """
    names = (step.query, step.new_key, step.keys, step.position, step.chosen, *([step.weight] if step.weight else []))
    check_strides(step.kind, operands, names)
    choice = _Choice.of(step, operands, features)
    slices, kept = choice.slices, align(choice.kept_bytes)
    scoring, choosing = choice.scoring, choice.choosing
    writing = _writing(step, operands, [(step.new_key, step.keys)])

    def score(context: Context) -> None:
        f = context.f
        with f.loop(context.begin, context.end) as loop:
            token, part = loop.index // slices, loop.index % slices
            count = _seen(context, choice, token)
            if slices == 1:
                keys, private = context.private, context.private + kept
            else:
                keys, private = context.shared + token * kept, context.private
            with f.when(count > choice.topk):
                _score(context, choice, token, count, part, keys, scoring.at(private))
            if slices == 1:
                _choose(context, choice, token, count, keys, choosing.at(private))

    def pick(context: Context) -> None:
        with context.f.loop(context.begin, context.end) as loop:
            count = _seen(context, choice, loop.index)
            keys = context.shared + loop.index * kept
            _choose(context, choice, loop.index, count, keys, choosing.at(context.private))

    if slices == 1:
        own = Phase(choice.tokens, score, kept + max(scoring.nbytes, choosing.nbytes))
        return Lowered([writing, own])
    scores, picks = Phase(choice.tokens * slices, score, scoring.nbytes), Phase(choice.tokens, pick, choosing.nbytes)
    return Lowered([writing, scores, picks], choice.tokens * kept)


def _writing(
    step: ChooseByIndex | AttendChosen, operands: Mapping[str, Meta], sides: Sequence[tuple[str, str]]
) -> Phase:
    """Return the phase that writes new rows to stores, in units of (token, KV head). A position beyond the rows is
    reported."""
    (slots, heads, tokens, _), rows = operands[sides[0][0]][0], operands[sides[0][1]][0][2]

    def emit(context: Context) -> None:
        f = context.f
        with f.loop(context.begin, context.end) as loop:
            token, head = loop.index // heads, loop.index % heads
            slot, number = token // tokens, token % tokens
            position = f.load(address(f, context.operands[step.position], slot, number), I64)
            report_index(f, position >= rows)
            with f.when((position >= 0) & (position < rows)):
                for new, store in sides:
                    source, target = context.operands[new], context.operands[store]
                    to = address(f, target, slot, head, position)
                    sizes = source.shape[3], target.shape[3]
                    write_row(f, address(f, source, slot, head, number), source.dtype, to, target.dtype, *sizes)

    return Phase(slots * tokens * heads, emit)


def _place(choice: _Choice, token: Value) -> tuple[Value, Value]:
    """Return the slot of a token, and its number there."""
    return token // choice.per_slot, token % choice.per_slot


def _seen(context: Context, choice: _Choice, token: Value) -> Value:
    """Return the number of positions that a token chooses from."""
    f, step = context.f, choice.step
    position = f.load(address(f, context.operands[step.position], *_place(choice, token)), I64)
    most = f.min(context.scalars[step.start] + choice.per_slot, choice.positions)
    report_index(f, position >= most)
    return f.select(position < most, f.max(position + 1, 0), 0)


def _score(
    context: Context, choice: _Choice, token: Value, count: Value, part: Value, keys: Value, at: dict[str, Value]
) -> None:
    """Store the sort keys of a slice of the positions that a token chooses from, [Hc][row_bytes], the lowest one up to
    a whole chunk."""
    f, step = context.f, choice.step
    query, rows = context.operands[step.query], context.operands[step.keys]
    slot, number = _place(choice, token)
    first_query, stride = address(f, query, slot, number), query.strides[2] * SIZES[query.dtype]
    put_queries(f, choice.keys, first_query, stride, query.dtype, at["keys"])
    of_row = row_stride((rows.shape, rows.strides, rows.dtype))
    chunks = f.ceildiv(count, CHUNK)
    with f.loop(chunks * part // choice.slices, chunks * (part + 1) // choice.slices) as chunk:
        first = chunk.index * CHUNK
        some = f.min(count - first, CHUNK)
        start = address(f, rows, slot, 0, first)
        score_keys(f, choice.keys, start, of_row, some, 1.0, at["keys"], at["logits"], CHUNK * 4)
        with f.loop(0, CHUNK, LANES) as place:
            exists = f.first_lanes(some - place.index)
            for number_of, scores in enumerate(_of_choices(context, choice, slot, number, at["logits"], place.index)):
                target = keys + number_of * choice.row_bytes + (first + place.index) * 4
                store_keys(f, scores, exists, target)


def _of_choices(
    context: Context, choice: _Choice, slot: Value, number: Value, logits: Value, place: Value
) -> list[Value]:
    """Return the scores of 16 positions for each choice of a token, of the products [Hi][CHUNK] with its queries."""
    f, step = context.f, choice.step

    def products(head: int | Value) -> Value:
        return f.load(logits + head * (CHUNK * 4) + place * 4, _FLOATS)

    if not step.weight:
        return [products(head) for head in range(choice.heads)]
    weights = address(f, context.operands[step.weight], slot, number)
    with f.loop(0, choice.heads, 1, [f.splat(0.0)]) as head:
        weight = f.broadcast(f.load(weights + head.index * 4, F32), LANES)
        head.carry(f.fma(f.max(products(head.index), 0.0), weight, head.state[0]))
    return list(head.results)


def _choose(
    context: Context, choice: _Choice, token: Value, count: Value, keys: Value, at: dict[str, Value]
) -> None:
    """Write the choices of a token, all positions where they are not more than it may choose."""
    f, step = context.f, choice.step
    slot, number = _place(choice, token)
    chosen = context.operands[step.chosen]
    for one in range(choice.choices):
        target = address(f, chosen, slot, one, number)
        few = count <= choice.topk
        with f.when(few):
            with f.loop(0, count) as row:
                f.store(row.index, target + row.index * 8)
            _fill(f, target, count, choice.topk)
        with f.when(few.eq(0)):
            own = keys + one * choice.row_bytes
            if step.block == 1:
                topk = f.constant(choice.topk)
                choose(f, own, 0, count, topk, choice.topk, target, at["choice"], choice.positions)
            else:
                _choose_blocks(f, choice, count, own, target, at)


def _choose_blocks(
    f: Function, choice: _Choice, count: Value, keys: Value, target: Value, at: dict[str, Value]
) -> None:
    """Write the positions of the best blocks."""
    block, room = choice.step.block, choice.topk // choice.step.block
    blocks = f.ceildiv(count, block)
    with f.loop(blocks // LANES * LANES, -(-choice.blocks // LANES) * LANES) as place:
        f.store(f.constant(LOWEST_KEY, "i32"), at["blocks"] + place.index * 4)
    with f.loop(0, blocks) as number:
        first = number.index * block
        with f.loop(first, f.min(first + block, count), 1, [f.constant(LOWEST_KEY, "i32")]) as row:
            row.carry(f.max(row.state[0], f.load(keys + row.index * 4, "i32")))
        local = number.index >= blocks - choice.step.local
        best = f.select(local, f.constant(HIGHEST_KEY, "i32"), row.results[0])
        f.store(best, at["blocks"] + number.index * 4)
    choose(f, at["blocks"], 0, blocks, f.constant(room), room, at["picked"], at["choice"], choice.blocks)
    with f.loop(0, room, 1, [f.constant(0)]) as picked:
        (written,) = picked.state
        best = f.load(at["picked"] + picked.index * 8, I64)
        first = f.max(best, 0) * block
        some = f.select(best < 0, 0, f.min(count - first, block))
        with f.loop(0, some) as row:
            f.store(first + row.index, target + (written + row.index) * 8)
        picked.carry(written + some)
    _fill(f, target, picked.results[0], choice.topk)


def _fill(f: Function, target: Value, first: Value, end: int) -> None:
    with f.loop(first, end) as rest:
        f.store(f.constant(-1), target + rest.index * 8)


# --------------------------------------------------------------------------------------------------- attention


@dataclass(frozen=True)
class _TokenAttention(Attention):
    """Sizes of an attention whose slots are tokens, `per_slot` of each slot of the rows."""

    per_slot: int = 1

    @property
    def splits(self) -> int:
        return 1 if self.per_slot > 1 else super().splits


@dataclass(frozen=True)
class _TokenUnit(Unit):
    """A unit of a token.

    Attributes:
        per_slot: tokens of a slot.
        rows: operands that all tokens of a slot have in common.
        chosen: the operand of chosen rows, which has `choices` of each token.
    """

    per_slot: int = 1
    rows: frozenset[str] = frozenset()
    chosen: str = ""
    choices: int = 1

    def at(self, operand: str | Operand, head: Value | None = None) -> Value:
        """See `Unit`."""
        o = self.context.operands[operand] if isinstance(operand, str) else operand
        slot, token = self.slot // self.per_slot, self.slot % self.per_slot
        head = self.head if head is None else head
        if operand == self.chosen:
            head = head * self.choices // self.attention.kv_heads
        index = slot * o.strides[0] + head * o.strides[1]
        if operand not in self.rows:
            index = index + token * o.strides[2]
        return o.pointer + index * DTYPE_BYTES[o.dtype]

    def row_bytes(self, operand: str) -> int:
        """See `Unit`."""
        o = self.context.operands[operand]
        return o.strides[3 if operand == self.chosen else 2] * DTYPE_BYTES[o.dtype]


@executes(AttendChosen)
def lower_attend_chosen(step: AttendChosen, meta: Mapping[str, Meta], features: Features) -> Lowered:
    """In units of (token, KV head, split of its rows). A chosen position beyond the rows is reported.

    Raises InputError where a row is not contiguous.
    """
    (_, choices, tokens, topk), _, _ = meta[step.chosen]
    sides = [(step.new_key, step.k_store), *([(step.new_value, step.v_store)] if step.v_store else [])]
    check_strides(step.kind, meta, (step.chosen, step.position, *(new for new, _ in sides)))
    part = Part(step.k_store, step.v_store or step.k_store, step.chosen, 0, topk)
    plain = _TokenAttention.of(step, [part], meta, features)
    attention = replace(plain, slots=plain.slots * tokens, rows=topk, per_slot=tokens)

    def emit(context: Context) -> None:
        f = context.f
        with f.loop(context.begin, context.end) as loop:
            unit = replace(
                _TokenUnit.of(attention, context, loop.index),
                per_slot=tokens, rows=frozenset({part.key, part.value}), chosen=step.chosen, choices=choices,
            )  # fmt: skip
            attend(unit, step, _rows(unit, part, topk))
            if attention.splits == 1:
                write_result(unit, context.operands[step.out])

    attending = with_merge(attention, step.out, emit)
    return Lowered([_writing(step, meta, sides), *attending.phases], attending.shared_bytes)


def _rows(unit: _TokenUnit, part: Part, topk: int) -> UnitRows:
    """Return the rows of a unit: its share of those that are chosen, which stand before the first -1."""
    f = unit.context.f
    chosen = unit.at(part.index)
    with f.loop(0, topk, LANES, [f.constant(0)]) as loop:
        exists = f.first_lanes(topk - loop.index)
        positions = f.load_masked(chosen + loop.index * 8, exists, vector(I64, LANES))
        loop.carry(loop.state[0] + f.count((positions >= 0) & exists))
    (total,) = loop.results
    share = f.ceildiv(f.ceildiv(total, unit.attention.splits), LANES) * LANES
    first = f.min(unit.split * share, total)
    count = f.min(share, total - first)
    zeros = zero_row(unit)
    keys, values = (RowSource.of(unit, part, name, zeros) for name in (part.key, part.value))

    def at(source: RowSource, number: Value) -> Value:
        return source.row(number, number < f.like(first + count, number))

    return UnitRows(
        first,
        count,
        lambda number: at(keys, number),
        lambda number: at(values, number),
        lambda number: [],
        ADDRESSES,
        f.constant(0),
        f.constant(0),
    )
