"""Selection by a learned index (`ChooseByIndex`) of the rows that `AttendChosen` attends to (`decode_attention`).

New keys are written first, since tokens of a chunk attend to each other's rows. Then, token by token, all positions
that the token may choose are scored, chunk by chunk as sort keys, and the highest are chosen. If there are few tokens,
several units share the chunks of a token, and another phase chooses.
"""

from __future__ import annotations

from sscc.ir.operations import ChooseByIndex
from sscc.ir.opspec import executes
from sscc.ir.sizes import align
from sscc.runtime.backends.cpu.attention.row_source import writing_phase
from sscc.runtime.backends.cpu.attention.scoring import Block, GroupQueries
from sscc.runtime.backends.cpu.codegen import topk
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import ATTENTION_UNITS
from sscc.runtime.backends.cpu.codegen.indices import report_index
from sscc.runtime.backends.cpu.codegen.mlir import F32, I32, I64, Value, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Phase, units
from sscc.runtime.backends.cpu.codegen.row_copies import (
    Meta,
    ScratchPieces,
    address,
    check_rows,
    load_element,
    row_bytes,
)

CHUNK = 256
"""Number of positions that are scored together. Their scores by all heads fit the second-level cache."""
HIGHEST_KEY = 0x7FFFFFFF


@executes(ChooseByIndex)
def lower_choose_by_index(step: ChooseByIndex, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `ChooseByIndex` (see the module docstring). A position beyond the readable keys is reported."""
    check_rows(step, operands, step.chosen)
    choice = _Choice(step, operands, features)
    tokens, slices, kept = choice.queries * choice.tokens, choice.slices, align(choice.choices * choice.key_bytes)
    scoring, choosing = choice.scoring, choice.choosing
    writing = writing_phase(step.position, [(step.new_key, step.keys)], operands)

    def score(context: Context) -> None:
        with units(context, tokens, slices) as (number, part):
            token = _Token(choice, context, number)
            if slices == 1:
                keys, private = context.private, context.private + kept
            else:
                keys, private = context.shared + number * kept, context.private
            with context.f.when(token.count > choice.topk):
                token.score(part, keys, scoring.at(private))
            if slices == 1:
                token.choose(keys, choosing.at(private))

    def pick(context: Context) -> None:
        with units(context, tokens) as (number,):
            _Token(choice, context, number).choose(context.shared + number * kept, choosing.at(context.private))

    if slices == 1:
        return Lowered([writing, Phase(tokens, score, kept + max(scoring.nbytes, choosing.nbytes))])
    scores, picks = Phase(tokens * slices, score, scoring.nbytes), Phase(tokens, pick, choosing.nbytes)
    return Lowered([writing, scores, picks], tokens * kept)


class _Choice:
    """Sizes of a selection.

    Attributes:
        queries, tokens: tokens of a step, of which each slot has `per_slot`, and tokens of each in a chunk.
        choices: selections of each token.
        slices: units that share the positions of a token.
        key_bytes: bytes of the sort keys of one selection.
    """
    def __init__(self, step: ChooseByIndex, meta: dict[str, Meta], features: Features) -> None:
        (self.queries, self.tokens, self.heads, _), (slots, _, self.positions, _) = (
            meta[name][0] for name in (step.query, step.keys)
        )
        self.per_slot = self.queries // slots
        _, self.choices, _, self.topk = meta[step.chosen][0]
        self.step, self.keys = step, Block.of(meta, step.keys, step.query, self.heads, features)
        chunks = -(-self.positions // CHUNK)
        self.slices = max(1, min(-(-ATTENTION_UNITS // (self.queries * self.tokens)), chunks))
        self.key_bytes = topk.key_bytes(chunks * CHUNK)
        self.blocks, self.room = -(-self.positions // step.block), self.topk // step.block
        self.scoring = ScratchPieces(logits=self.heads * CHUNK * 4, keys=self.keys.scratch.nbytes)
        own = step.block > 1
        self.choosing = ScratchPieces(
            blocks=topk.key_bytes(self.blocks) if own else 0,
            picked=self.room * 8 if own else 0,
            choice=topk.choice_bytes(self.blocks, self.room),
        )


class _Token:
    """Emitter of the selection for one token; it may choose from the first `count` positions."""

    def __init__(self, choice: _Choice, context: Context, number: Value) -> None:
        self.f, self.choice, self.step, self.context = context.f, choice, choice.step, context
        self.query, self.token = number // choice.tokens, number % choice.tokens
        self.slot = self.query // choice.per_slot
        f, step = self.f, self.step
        position = load_element(f, context.operands[step.position], self.query, self.token)
        most = f.min(context.scalars[step.start] + choice.tokens, choice.positions)
        report_index(f, position >= most)
        self.count = f.select(position < most, f.max(position + 1, 0), 0)

    def score(self, part: Value, keys: Value, at: dict[str, Value]) -> None:
        """Store the sort keys of a slice of the positions that the token may choose, [Hc][key_bytes], padded with the
        lowest key to a whole chunk."""
        f, choice, step = self.f, self.choice, self.step
        query, rows = self.context.operands[step.query], self.context.operands[step.keys]
        queries = GroupQueries(f, choice.keys, at["keys"])
        queries.put(address(f, query, self.query, self.token), row_bytes(query), query.dtype)
        chunks = f.ceildiv(self.count, CHUNK)
        with f.loop(chunks * part // choice.slices, chunks * (part + 1) // choice.slices) as chunk:
            first = chunk.index * CHUNK
            some = f.min(self.count - first, CHUNK)
            start = address(f, rows, self.slot, 0, first)
            queries.score(start, row_bytes(rows), some, 1.0, at["logits"], CHUNK * 4)
            with f.loop(0, CHUNK, LANES) as place:
                exists = f.first_lanes(some - place.index)
                for number, scores in enumerate(self._scores(at["logits"], place.index)):
                    topk.store_keys(f, scores, exists, keys + number * choice.key_bytes + (first + place.index) * 4)

    def _scores(self, logits: Value, place: Value) -> list[Value]:
        """Return the scores of 16 positions for each selection, from the products [Hi][CHUNK] with the token's
        queries."""
        f, heads = self.f, self.choice.heads

        def products(head: int | Value) -> Value:
            return f.load(logits + head * (CHUNK * 4) + place * 4, vector(F32, LANES))

        if not self.step.weight:
            return [products(head) for head in range(heads)]
        weights = address(f, self.context.operands[self.step.weight], self.query, self.token)
        with f.loop(0, heads, 1, [f.splat(0.0)]) as head:
            weight = f.broadcast(f.load(weights + head.index * 4, F32), LANES)
            head.carry(f.fma(f.max(products(head.index), 0.0), weight, head.state[0]))
        return list(head.results)

    def choose(self, keys: Value, at: dict[str, Value]) -> None:
        """Write the token's choices: all positions if they are not more than it may choose."""
        f, choice = self.f, self.choice
        for one in range(choice.choices):
            target = address(f, self.context.operands[self.step.chosen], self.query, one, self.token)
            few = self.count <= choice.topk
            with f.when(few):
                topk.put_all(f, target, 0, self.count, choice.topk)
            with f.when(few.eq(0)):
                own, room = keys + one * choice.key_bytes, choice.topk
                if self.step.block > 1:
                    self._choose_blocks(own, target, at)
                else:
                    topk.choose(f, own, 0, self.count, f.constant(room), room, target, at["choice"], choice.positions)

    def _choose_blocks(self, keys: Value, target: Value, at: dict[str, Value]) -> None:
        """Write the positions of the best blocks."""
        f, choice, block, room = self.f, self.choice, self.step.block, self.choice.room
        blocks, lowest = f.ceildiv(self.count, block), f.constant(topk.LOWEST_KEY, I32)
        with f.loop(blocks // LANES * LANES, -(-choice.blocks // LANES) * LANES) as place:
            f.store(lowest, at["blocks"] + place.index * 4)
        with f.loop(0, blocks) as number:
            first = number.index * block
            with f.loop(first, f.min(first + block, self.count), 1, [lowest]) as row:
                row.carry(f.max(row.state[0], f.load(keys + row.index * 4, I32)))
            local = number.index >= blocks - self.step.local
            best = f.select(local, f.constant(HIGHEST_KEY, I32), row.results[0])
            f.store(best, at["blocks"] + number.index * 4)
        topk.choose(f, at["blocks"], 0, blocks, f.constant(room), room, at["picked"], at["choice"], choice.blocks)
        with f.loop(0, room, 1, [f.constant(0)]) as picked:
            (written,) = picked.state
            best = f.load(at["picked"] + picked.index * 8, I64)
            first = f.max(best, 0) * block
            some = f.select(best < 0, 0, f.min(self.count - first, block))
            with f.loop(0, some) as row:
                f.store(first + row.index, target + (written + row.index) * 8)
            picked.carry(written + some)
        topk.end_list(f, target, picked.results[0], choice.topk)
