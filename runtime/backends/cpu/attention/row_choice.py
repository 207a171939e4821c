"""Selection of rows by a decode step's query: probabilities of candidates, and the highest means over a group.

The candidates of a slot are divided into *chunks* of `CHUNK` from the first one on, so that results do not depend on
the division of work. One pass over a chunk computes, per query head, exponentials relative to the chunk's *peak*, and
their sum. Together with the maximum and the sum of the exact scores of sinks and ring, these give a factor per chunk
and head. A candidate's mean probability is, up to the common factor of the group's size, the sum over heads of factor
times exponential.

Equal logits have equal probabilities, even in different chunks: exponentials are powers of two, and a peak is an
integer exponent, so that the factors of two chunks differ by a power of two, which causes no rounding.

There are two phases: scores in units of (slot, KV head, slice of the candidates), then selection in units of (slot, KV
head). A unit that has scored all slices of a slot and KV head selects at once, while its exponentials are in the cache.
If there are enough slots and heads, slices are not needed, and the two phases are one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sscc.ir.operations import ChooseRows, FetchRows, QueryAttention
from sscc.ir.sizes import align
from sscc.runtime.backends.cpu.attention.combination import (
    NEGATIVE_INFINITY,
    RowSoftmax,
    larger,
    largest_lane,
)
from sscc.runtime.backends.cpu.attention.quantized_keys import HEADS
from sscc.runtime.backends.cpu.attention.scoring import Block, GroupQueries, Scoring
from sscc.runtime.backends.cpu.attention.visibility import Candidates, Ring
from sscc.runtime.backends.cpu.codegen.approximations import LOG2E, exp2_below, exp2_not_positive
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import ATTENTION_UNITS, LINE
from sscc.runtime.backends.cpu.codegen.mlir import F32, I32, I64, PTR, Function, Value, kernel, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Phase, units
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, ScratchPieces, address, row_bytes
from sscc.runtime.backends.cpu.codegen.topk import LOWEST_KEY, choice_bytes, choose, put_all

Choosing = ChooseRows | FetchRows | QueryAttention
CHUNK = 256
"""Number of candidates of a chunk. Their logits stay in the first-level cache until they are exponentials."""
_FLOATS, _KEYS = vector(F32, LANES), vector(I32, LANES)


def chunks_of(rows: int, sink: int) -> int:
    """Return the maximum number of chunks of a slot's candidates, all within `rows`."""
    return max(1, -(-(rows - sink) // CHUNK))


class Choice:
    """Sizes of a selection.

    Args:
        rows: quantized keys of a slot.
        topk: number of chosen rows.

    Attributes:
        key: operand of the rows of sinks and ring.
        ring: kernels that score these rows.
        ranks: True if few candidates are scored too, because the order in which resident rows are fetched depends on
            scores.
        chunks: maximum number of chunks of a slot's candidates; slices: units per slot and KV head that share them.
        queries: number of tokens of a step, of which each slot has `per_slot`.
        pairs: number of pairs of token and KV head.
        together: True if the unit that scores a pair also selects for it, with the intermediate data in its own
            scratch.
        kept: data that scoring a pair keeps for the selection: exponentials, peaks and sums of chunks, for each query
            head, and the state of sinks and ring. In shared scratch it is followed by an i64 for each pair: 1 if the
            scoring unit has also selected.
        scoring_bytes: private scratch of a scoring unit: logits of a chunk, or the scratch for sinks and ring.
        choosing_bytes: private scratch of a selection: factors of chunks, the highest keys of their lanes, then the
            scratch of `choose`.
    """

    def __init__(self, step: Choosing, meta: dict[str, Meta], rows: int, topk: int, features: Features) -> None:
        self.queries, (slots, self.kv_heads, *_) = meta[step.query][0][0], meta[step.key][0]
        self.per_slot = self.queries // slots
        self.step, self.rows, self.topk, self.sink = step, rows, topk, step.sink
        # New rows of other tokens are in the cache alone.
        self.key = step.k_cache if isinstance(step, QueryAttention) and self.per_slot > 1 else step.key
        self.ring = Block.of(meta, self.key, step.query, meta[step.query][0][1] // self.kv_heads, features)
        self.group, self.scoring = self.ring.group, Scoring(step.scale, step.softcap)
        self.ranks = not isinstance(step, ChooseRows) and step.fetch > 0
        self.chunks, self.pairs = chunks_of(rows, step.sink), self.queries * self.kv_heads
        self.slices = max(1, min(-(-ATTENTION_UNITS // self.pairs), self.chunks))
        self.together = self.slices == 1
        self.head_bytes, self.peaks_bytes = self.chunks * CHUNK * 4, -(-self.chunks // LANES) * LINE
        self.kept = ScratchPieces(
            exponentials=self.group * self.head_bytes,
            peaks=self.group * self.peaks_bytes,
            totals=self.group * self.peaks_bytes,
            ring=self.ring.state_bytes,
        )
        self.shared_bytes = 0 if self.together else self.pairs * self.kept.nbytes + align(self.pairs * 8)
        self.scoring_bytes = max(self.group * CHUNK * 4, self.ring.scratch.nbytes)
        self.choosing_bytes = self.group * self.peaks_bytes + self.chunks * LINE + choice_bytes(rows, topk)

    def phases(
        self, score: Callable[[Pair, Value], None], pick: Callable[[Pair], None], scoring_bytes: int,
        picking_bytes: int = 0,
    ) -> tuple[Phase, ...]:  # fmt: skip
        """Return the phases: scores of slices, then selection for pairs that were not scored by a single unit.

        Args:
            score: emits the scores of a slice, given the pair and the number of the slice.
            pick: emits a selection.
            scoring_bytes: private scratch of `score`.
            picking_bytes: private scratch of `pick`, behind that of the selection.
        """
        choosing_bytes = self.choosing_bytes + picking_bytes
        private = max(scoring_bytes, choosing_bytes)

        def score_and_choose(context: Context) -> None:
            f = context.f
            with units(context, self.pairs, self.slices) as (number, part):
                pair = Pair(self, context, number)
                score(pair, part)
                if self.together:
                    pick(pair)
                else:
                    with f.when(part.eq(self.slices - 1)):
                        f.store(f.cast("arith.extui", pair.alone, I64), pair.chosen)
                        with f.when(pair.alone):
                            pick(pair)

        def choose_later(context: Context) -> None:
            with units(context, self.pairs) as (number,):
                pair = Pair(self, context, number)
                with context.f.when(context.f.load(pair.chosen, I64).eq(0)):
                    pick(pair)

        if self.together:
            return (Phase(self.pairs, score_and_choose, private + self.kept.nbytes),)
        first = Phase(self.pairs * self.slices, score_and_choose, private)
        return first, Phase(self.pairs, choose_later, choosing_bytes)


class Pair:
    """Emitter for a token and KV head. In its context, private scratch begins behind the data kept for the pair.

    Attributes:
        ring: the slot's ring, for the token's position.
        first_slice: number of its first slice among all scoring units.
        alone: True if the first slice is among the units of the call (i1); in a call with the last slice, all slices
            are then.
        chosen: pointer to the flag that the scoring unit has already selected.
        chooses: True if there are more candidates than may be chosen (i1); otherwise all are chosen without scores,
            unless rows are resident.
    """

    def __init__(self, choice: Choice, context: Context, number: Value) -> None:
        self.f, self.choice, self.number, nbytes = context.f, choice, number, choice.kept.nbytes
        self.context = replace(context, private=context.private + nbytes) if choice.together else context
        self.at = choice.kept.at(context.private if choice.together else context.shared + number * nbytes)
        self.query, self.kv_head = number // choice.kv_heads, number % choice.kv_heads
        self.slot = self.query // choice.per_slot
        self.seen = Candidates.of(context, choice.step, self.query, choice.rows)
        f, step = context.f, choice.step
        spare = 0 if isinstance(step, FetchRows) else step.spare
        ends = f.constant(step.sink), f.constant(step.sink + step.recent)
        self.ring = Ring.at(f, self.seen.length - 1, *ends, spare)
        self.first_slice = number * choice.slices
        self.alone = self.first_slice >= context.begin
        self.chosen = context.shared + (choice.pairs * nbytes + number * 8)
        self.chooses = self.seen.candidates > (0 if choice.ranks else choice.topk)

    def operand(self, name: str, *indices: Value | int) -> Value:
        """Return an element of an operand for the slot and KV head."""
        return address(self.f, self.context.operands[name], self.slot, self.kv_head, *indices)

    def of_token(self, name: str, *indices: Value | int) -> Value:
        """Return an element of an operand for the token and KV head."""
        return address(self.f, self.context.operands[name], self.query, self.kv_head, *indices)

    def query_head(self, head: int) -> Value:
        """Return the number of a head of the group among all heads."""
        return self.kv_head * self.choice.group + head

    def kept(self, name: str, head: int) -> Value:
        """Return the exponentials, peaks or totals of a head of the group."""
        size = self.choice.head_bytes if name == "exponentials" else self.choice.peaks_bytes
        return self.at[name] + head * size

    # -- scoring

    def first_chunk(self, part: Value) -> Value:
        """Return the first chunk of a slice, which follows the last one of the previous slice."""
        return self.f.ceildiv(self.seen.candidates, CHUNK) * part // self.choice.slices

    def score_chunks(self, part: Value, logits: Callable[[Value, Value], None]) -> None:
        """Compute the exponentials of the candidates of a slice; `logits` writes those of candidates first .. first +
        count - 1 to the start of private scratch, [group][CHUNK] f32, in whole vectors with any padding."""
        f, choice, logits_at = self.f, self.choice, self.context.private
        with f.loop(self.first_chunk(part), self.first_chunk(part + 1)) as chunk:
            start = chunk.index * CHUNK
            count = f.min(self.seen.candidates - start, CHUNK)
            logits(start, count)
            last = count // LANES * LANES
            with f.when(last < count):
                for head in range(choice.group):
                    at = logits_at + head * (CHUNK * 4) + last * 4
                    f.store(f.select(f.first_lanes(count - last), f.load(at, _FLOATS), NEGATIVE_INFINITY), at)
            for first in range(0, choice.group, HEADS):
                take = _exponentials(f, min(choice.group - first, HEADS), choice.head_bytes, choice.peaks_bytes)
                target = self.kept("exponentials", first) + start * 4
                peaks, totals = (self.kept(name, first) + chunk.index * 4 for name in ("peaks", "totals"))
                take(logits_at + first * (CHUNK * 4), count, target, peaks, totals)

    def score_ring(self, new: tuple[Value, Value] | None = None) -> None:
        """Compute the maximum and sum of the exact scores of sinks and ring, all of which hold a position, with the
        kernels of attention; learned sinks are included.

        Args:
            new: the newest row and a pointer to it, if it is not in `key` yet.
        """
        f, step, block, operands = self.f, self.choice.step, self.choice.ring, self.context.operands
        key, query, head = operands[self.choice.key], operands[step.query], self.query_head(0)
        queries, softmax = GroupQueries(f, block, self.context.private), RowSoftmax(f, block, self.at["ring"])
        queries.put(address(f, query, self.query, head), row_bytes(query, 1), query.dtype)
        softmax.clear(values=False)
        if step.sink_logits is not None:
            softmax.take_sinks(address(f, operands[step.sink_logits], head), operands[step.sink_logits].dtype)
        rows, first, ring = step.sink + step.recent, f.address_of(self.operand(self.choice.key)), self.ring
        with f.loop(0, rows, block.rows) as loop:

            def row_at(entry: Value) -> Value:
                row = ring.row_of(f, f.min(loop.index + entry, rows - 1))
                at = row * row_bytes(key) + first
                return at if new is None else f.select(row.eq(new[0]), f.address_of(new[1]), at)

            queries.list_keys(row_at)
            count = f.min(rows - loop.index, block.rows)
            for tile in range(len(block.tiles)):
                softmax.weigh(queries, tile, count, self.choice.scoring)

    # -- choosing

    def choose(self, target: Value, room: int) -> None:
        """Write the chosen positions in ascending order, then -1: [room] i64. Keys overwrite the exponentials of the
        group's first head. The candidates must have been scored if there are more than may be chosen."""
        f, choice, candidates = self.f, self.choice, self.seen.candidates
        few = candidates <= choice.topk
        with f.when(few):
            put_all(f, target, choice.sink, candidates, room)
        with f.when(few.eq(0)):
            tops, chunks = self.put_keys()
            keys, scratch, topk = self.kept("exponentials", 0), tops + choice.chunks * LINE, f.constant(choice.topk)
            choose(f, keys, choice.sink, candidates, topk, room, target, scratch, choice.rows, (tops, chunks))

    def put_keys(self) -> tuple[Value, Value]:
        """Write the mean probabilities, times the group's size, as i32 in the same order, padded with the lowest key to
        a whole vector. The highest key of each lane of a chunk is stored behind the factors of chunks, except for an
        incomplete last chunk. Return the address and the number of these vectors (`tops` of `topk.choose`)."""
        f, choice, candidates = self.f, self.choice, self.seen.candidates
        chunks = f.ceildiv(candidates, CHUNK)
        factors = [self.context.private + head * choice.peaks_bytes for head in range(choice.group)]
        tops = self.context.private + choice.group * choice.peaks_bytes
        for tile, (first, count) in enumerate(choice.ring.tiles):
            state = self.at["ring"] + tile * 2 * LINE
            for head in range(first, first + count):
                peak, total = (f.load(state + part * LINE + (head - first) * 4, F32) for part in range(2))
                _factors(f)(self.kept("peaks", head), self.kept("totals", head), chunks, peak, total, factors[head])
        heads = [self.kept("exponentials", head) for head in range(choice.group)]
        with f.loop(0, chunks) as chunk:
            weights = [f.broadcast(f.load(at + chunk.index * 4, F32), LANES) for at in factors]
            start, lowest = chunk.index * CHUNK, f.constant(LOWEST_KEY, _KEYS)
            with f.loop(start, f.min(start + CHUNK, candidates), LANES, [lowest]) as place:
                mass = f.load(heads[0] + place.index * 4, _FLOATS) * weights[0]
                for source, weight in zip(heads[1:], weights[1:], strict=True):
                    mass = f.fma(f.load(source + place.index * 4, _FLOATS), weight, mass)
                # A probability is not negative, so its bits have the same order. NaN is above all, with either sign.
                key = f.select(f.compare("ne", mass, mass), 0x7FFFFFFF, f.bitcast(mass, _KEYS))
                f.store(key, heads[0] + place.index * 4)
                place.carry(f.max(key, place.state[0]))
            f.store(place.results[0], tops + chunk.index * LINE)
        last = candidates // LANES * LANES
        with f.when(last < candidates):
            key = f.load(heads[0] + last * 4, _KEYS)
            f.store(f.select(f.first_lanes(candidates - last), key, LOWEST_KEY), heads[0] + last * 4)
            f.store(f.constant(LOWEST_KEY, _KEYS), tops + (chunks - 1) * LINE)
        return tops, chunks


@kernel(logits=PTR, count=I64, target=PTR, peaks=PTR, totals=PTR)
def _exponentials(f: Function, heads: int, head_bytes: int, peaks_bytes: int) -> None:
    """Compute exponentials, peaks and sums of a chunk's logits for several heads. The heads are interleaved by vector,
    so that none waits for its own last result."""
    rows = [f["logits"] + head * (CHUNK * 4) for head in range(heads)]
    with f.loop(0, f["count"], LANES, [f.splat(NEGATIVE_INFINITY)] * heads) as loop:
        logits = [f.load(row + loop.index * 4, _FLOATS) for row in rows]
        loop.carry(*(larger(f, value, largest) for value, largest in zip(logits, loop.state, strict=True)))
    largest = [largest_lane(f, value) for value in loop.results]
    peaks = [f.op("math.ceil", [f.select(m.eq(NEGATIVE_INFINITY), 0.0, m)], F32) for m in largest]
    bases = [f.broadcast(peak, LANES) for peak in peaks]
    with f.loop(0, f["count"], LANES, [f.splat(0.0)] * heads) as loop:
        logits = [f.load(row + loop.index * 4, _FLOATS) for row in rows]
        exponentials = [exp2_below(f, value, base) for value, base in zip(logits, bases, strict=True)]
        for head, value in enumerate(exponentials):
            f.store(value, f["target"] + head * head_bytes + loop.index * 4)
        loop.carry(*(total + value for total, value in zip(loop.state, exponentials, strict=True)))
    for head, total in enumerate(loop.results):
        f.store(peaks[head], f["peaks"] + head * peaks_bytes)
        f.store(f.reduce("add", total), f["totals"] + head * peaks_bytes)


@kernel(peaks=PTR, totals=PTR, chunks=I64, ring_peak=F32, ring_total=F32, factors=PTR)
def _factors(f: Function) -> None:
    """Write the factors from the exponentials of each chunk to probabilities: 2 ** (peak - highest) / total."""
    ring_peak = f.broadcast(f["ring_peak"] * LOG2E, LANES)
    with f.loop(0, f["chunks"], LANES, [f.op("math.ceil", [ring_peak], _FLOATS)]) as loop:
        peaks, exists = f.load(f["peaks"] + loop.index * 4, _FLOATS), f.first_lanes(f["chunks"] - loop.index)
        loop.carry(larger(f, f.select(exists, peaks, NEGATIVE_INFINITY), loop.state[0]))
    highest = f.broadcast(largest_lane(f, loop.results[0]), LANES)
    of_ring = exp2_not_positive(f, ring_peak - highest) * f["ring_total"]
    with f.loop(0, f["chunks"], LANES, [f.insert(f.extract(of_ring, 0), f.splat(0.0), 0)]) as loop:
        power = exp2_not_positive(f, f.load(f["peaks"] + loop.index * 4, _FLOATS) - highest)
        f.store(power, f["factors"] + loop.index * 4)
        part, exists = f.load(f["totals"] + loop.index * 4, _FLOATS) * power, f.first_lanes(f["chunks"] - loop.index)
        loop.carry(loop.state[0] + f.select(exists, part, 0.0))
    inverse = f.broadcast(f.constant(1.0, F32) / f.reduce("add", loop.results[0]), LANES)
    with f.loop(0, f["chunks"], LANES) as loop:
        at = f["factors"] + loop.index * 4
        f.store(f.load(at, _FLOATS) * inverse, at)
