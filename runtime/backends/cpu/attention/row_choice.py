"""The rows that a decode step's query chooses: probabilities of candidates, and the largest means over a group.

The candidates of a slot are cut into *chunks* of `CHUNK` from the first one on, so that nothing depends on who computes
them. Of a chunk, one pass leaves exponentials below its *peak*, and their sum, per query head. With the maximum and the
sum of the exact scores of sinks and ring these give a factor per chunk and head; a candidate's mean probability is, but
for the group's size, which all have in common, the sum over heads of factor times exponential.

Equal logits have equal probabilities, whatever chunks they are in: exponentials are powers of two, and a peak is a
whole exponent, so that factors of two chunks differ by a power of two, which rounds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sscc.ir.operations import ChooseRows, FetchRows, LandmarkScores, QueryAttention
from sscc.ir.sizes import align
from sscc.runtime.backends.cpu.attention import decode_attention_block as block_kernels
from sscc.runtime.backends.cpu.attention.decode_attention_block import NEGATIVE_INFINITY, Block, Result, larger
from sscc.runtime.backends.cpu.attention.decode_attention_chunks import Rows
from sscc.runtime.backends.cpu.attention.landmark_scores import HEADS
from sscc.runtime.backends.cpu.attention.score_transform import Scoring
from sscc.runtime.backends.cpu.attention.selection import LOWEST_KEY, choice_bytes, choose
from sscc.runtime.backends.cpu.codegen.approximations import LOG2E, exp2_below, exp2_not_positive
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import ATTENTION_UNITS, LINE
from sscc.runtime.backends.cpu.codegen.indices import report_index
from sscc.runtime.backends.cpu.codegen.mlir import F32, I8, I32, I64, PTR, Function, Module, Value, vector
from sscc.runtime.backends.cpu.codegen.phases import Context
from sscc.runtime.backends.cpu.codegen.row_copies import SIZES, Meta, ScratchPieces, address, row_stride

Choosing = ChooseRows | FetchRows | QueryAttention
CHUNK = 256
"""Candidates of a chunk. Their logits stay in the first-level cache until they are exponentials."""
_FLOATS, _KEYS = vector(F32, LANES), vector(I32, LANES)


@dataclass(frozen=True)
class Slot:
    """A slot at a step: how many positions it holds (0 where it is not active), and how many are candidates."""

    length: Value
    candidates: Value


@dataclass(frozen=True)
class Choice:
    """The sizes of a choice.

    Attributes:
        rows: that a slot has landmarks for.
        ring: how rows of sinks and ring are scored; `values` in it mean nothing.
        ranks: whether candidates are scored however few they are.
    """

    slots: int
    kv_heads: int
    rows: int
    sink: int
    recent: int
    topk: int
    ring: Block
    ranks: bool = False

    @classmethod
    def of(
        cls, step: Choosing, meta: dict[str, Meta], rows: int, topk: int, features: Features
    ) -> Choice:
        (slots, heads, _, depth), _, query = meta[step.query]
        (_, kv_heads, _, width), _, key = meta[step.key]
        side = Rows.of(depth, (width,), key, features.bf16_dot and query == key == "bf16")
        ring = Block(side, side, heads // kv_heads, features)
        ranks = not isinstance(step, ChooseRows) and step.fetch > 0
        return cls(slots, kv_heads, rows, step.sink, step.recent, topk, ring, ranks)

    @property
    def group(self) -> int:
        return self.ring.group

    @property
    def chunks(self) -> int:
        """Of the candidates of a slot, at most."""
        return chunks_of(self.rows, self.sink)

    @property
    def slices(self) -> int:
        """Units per slot and KV head that share the chunks."""
        units_per_head = -(-ATTENTION_UNITS // self.pairs)
        return max(1, min(units_per_head, self.chunks))

    @property
    def pairs(self) -> int:
        """Of slots and KV heads."""
        return self.slots * self.kv_heads

    @property
    def units(self) -> int:
        return self.pairs * self.slices

    @property
    def together(self) -> bool:
        """Whether a unit scores a slot and KV head and chooses for it too, with what is between in its own scratch."""
        return self.slices == 1

    @property
    def kept(self) -> ScratchPieces:
        """What scoring a slot and KV head leaves for choosing: exponentials, and peaks and sums of chunks, of each
        query head, and the state of sinks and ring."""
        return ScratchPieces(
            exponentials=self.group * self.head_bytes,
            peaks=self.group * self.peaks_bytes,
            totals=self.group * self.peaks_bytes,
            ring=len(self.ring.tiles) * 2 * LINE,
        )

    @property
    def shared_bytes(self) -> int:
        """Of all that is kept in shared scratch, and behind it an i64 for each slot and KV head: whether who has scored
        it has chosen for it."""
        return 0 if self.together else self.pairs * self.kept.nbytes + align(self.pairs * 8)

    @property
    def head_bytes(self) -> int:
        """Of the exponentials of a head."""
        return self.chunks * CHUNK * 4

    @property
    def peaks_bytes(self) -> int:
        """Of the peaks of a head's chunks."""
        return -(-self.chunks // LANES) * LINE

    @property
    def scoring_bytes(self) -> int:
        """Private scratch of a unit that scores: the logits of a chunk, or what scoring sinks and ring takes."""
        return max(self.group * CHUNK * 4, self.ring.scratch_bytes)

    @property
    def choosing_bytes(self) -> int:
        """Private scratch of `choose_rows`: factors of chunks, the highest keys of their lanes, then what the choice
        takes."""
        return self.group * self.peaks_bytes + self.chunks * LINE + choice_bytes(self.rows, self.topk)

    def slot(self, context: Context, step: Choosing | LandmarkScores, slot: Value) -> Slot:
        return slot_of(context, step, slot, self.rows)

    def chooses(self, slot: Slot) -> Value:
        """Whether a slot has more candidates than it may choose (i1); otherwise it chooses all, unseen. Where rows are
        resident, whether it has any: which it fetches first is a choice too."""
        return slot.candidates > (0 if self.ranks else self.topk)


def chunks_of(rows: int, sink: int) -> int:
    """Chunks of the candidates of a slot, at most, of which none is behind `rows`."""
    return max(1, -(-(rows - sink) // CHUNK))


def slot_of(context: Context, step: Choosing | LandmarkScores, slot: Value, rows: int) -> Slot:
    """A slot's numbers. An active one is reported, and holds nothing, where `rows` do not hold its candidates, nor, in
    the fused step, its position."""
    f = context.f
    position = f.load(address(f, context.operands[step.position], slot), I64)
    active = f.load(address(f, context.operands[step.active], slot), I8).ne(0)
    fused = isinstance(step, QueryAttention)
    exists = (position < rows) & (position >= 0) if fused else position < rows + step.recent
    report_index(f, active & exists.eq(0))
    length = f.select(active & exists, f.max(position + 1, 0), 0)
    return Slot(length, f.max(length - (step.sink + step.recent), 0))


@dataclass(frozen=True)
class Unit:
    """Slot and KV head under construction.

    Attributes:
        pair: their number.
        at: where the parts of `Choice.kept` are.
    """

    choice: Choice
    context: Context
    pair: Value
    slot: Value
    kv_head: Value
    at: dict[str, Value]

    @classmethod
    def of(cls, choice: Choice, context: Context, pair: Value) -> Unit:
        """`pair` numbers slots and KV heads. In the context of the unit, private scratch begins behind what is kept."""
        nbytes = choice.kept.nbytes
        kept = context.private if choice.together else context.shared + pair * nbytes
        inner = replace(context, private=context.private + nbytes) if choice.together else context
        return cls(choice, inner, pair, pair // choice.kv_heads, pair % choice.kv_heads, choice.kept.at(kept))

    def number(self, part: Value) -> Value:
        """The number of a slice of the pair among all units that score."""
        return self.pair * self.choice.slices + part

    @property
    def alone(self) -> Value:
        """Whether the pair's first slice is among the units of the call (i1): of a call with the last one, all are."""
        return self.pair * self.choice.slices >= self.context.begin

    @property
    def chosen(self) -> Value:
        """Where it stands whether who has scored the pair has chosen for it."""
        return self.context.shared + (self.choice.pairs * self.choice.kept.nbytes + self.pair * 8)

    def query_head(self, head: int) -> Value:
        """The number of a head of the group among all heads."""
        return self.kv_head * self.choice.group + head

    def kept(self, name: str, head: int) -> Value:
        """Exponentials, peaks or totals of a head of the group."""
        size = self.choice.head_bytes if name == "exponentials" else self.choice.peaks_bytes
        return self.at[name] + head * size


# ----------------------------------------------------------------------------------------------------- scoring


def chunks_of_slice(f: Function, choice: Choice, candidates: Value, part: Value) -> tuple[Value, Value]:
    """The first chunk of a slice and the one behind its last."""
    chunks = f.ceildiv(candidates, CHUNK)
    return chunks * part // choice.slices, chunks * (part + 1) // choice.slices


def take_chunk(unit: Unit, number: Value, count: Value, logits: Value) -> None:
    """Exponentials, maximum and sum of a chunk's `count` logits, [group][CHUNK] f32 in private scratch, up to a whole
    vector of any value."""
    f, choice = unit.context.f, unit.choice
    last = count // LANES * LANES
    with f.when(last < count):
        for head in range(choice.group):
            at = logits + head * (CHUNK * 4) + last * 4
            f.store(f.select(f.first_lanes(count - last), f.load(at, _FLOATS), NEGATIVE_INFINITY), at)
    for first in range(0, choice.group, HEADS):
        kernel = _chunk_kernel(f.module, min(choice.group - first, HEADS), choice.head_bytes, choice.peaks_bytes)
        target = unit.kept("exponentials", first) + number * (CHUNK * 4)
        peaks, totals = (unit.kept(name, first) + number * 4 for name in ("peaks", "totals"))
        f.call(kernel, logits + first * (CHUNK * 4), count, target, peaks, totals)


def _chunk_kernel(module: Module, heads: int, head_bytes: int, peaks_bytes: int) -> Function:
    """`take_chunk` for some heads. They take turns vector by vector, so that none waits for its own last result."""
    name = f"query_exponentials_{heads}_{head_bytes}_{peaks_bytes}"
    if module.has(name):
        return module.get(name)
    f = module.function(name, [("logits", PTR), ("count", I64), *((n, PTR) for n in ("target", "peaks", "totals"))])
    rows = [f["logits"] + head * (CHUNK * 4) for head in range(heads)]
    with f.loop(0, f["count"], LANES, [f.splat(NEGATIVE_INFINITY)] * heads) as loop:
        logits = [f.load(row + loop.index * 4, _FLOATS) for row in rows]
        loop.carry(*(larger(f, value, largest) for value, largest in zip(logits, loop.state, strict=True)))
    largest = [_largest_lane(f, value) for value in loop.results]
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
    f.returns()
    return f


def _largest_lane(f: Function, value: Value) -> Value:
    lanes = LANES
    while lanes > 1:
        lanes //= 2
        value = larger(f, f.shuffle(value, value, range(lanes)), f.shuffle(value, value, range(lanes, 2 * lanes)))
    return f.extract(value, 0)


def score_ring(unit: Unit, step: Choosing, new: tuple[Value, Value] | None = None) -> None:
    """Maximum and sum of the exact scores of sinks and ring, all of which hold a position, by the kernels of attention;
    of learned sinks, too.

    Args:
        new: the number of a row and a pointer to it, where it stands elsewhere than in `key`.
    """
    f, choice, context, block = unit.context.f, unit.choice, unit.context, unit.choice.ring
    key, query = context.operands[step.key], context.operands[step.query]
    scratch, result = block_kernels.Scratch(block, context.private), Result(block, unit.at["ring"])
    first_query = address(f, query, unit.slot, unit.query_head(0))
    block_kernels.put_queries(f, block, first_query, query.strides[1] * SIZES[query.dtype], query.dtype, scratch)
    for tile in range(len(block.tiles)):
        f.store(f.splat(NEGATIVE_INFINITY), result.state(tile))
        f.store(f.splat(0.0), result.state(tile) + LINE)
    if step.sink_logits is not None:
        sinks = context.operands[step.sink_logits]
        block_kernels.take_sinks(f, block, result, address(f, sinks, unit.query_head(0)), sinks.dtype)
    rows, first = choice.sink + choice.recent, f.address_of(address(f, key, unit.slot, unit.kv_head))
    stride = row_stride((key.shape, key.strides, key.dtype))
    with f.loop(0, rows, block.rows) as loop:
        with f.loop(0, block.rows) as entry:
            row = f.min(loop.index + entry.index, rows - 1)
            at = row * stride + first
            if new is not None:
                at = f.select(row.eq(new[0]), f.address_of(new[1]), at)
            f.store(at, scratch.keys + entry.index * 8)
        count = f.min(rows - loop.index, block.rows)
        for tile in range(len(block.tiles)):
            block_kernels.scores(f, block, tile, count, scratch)
            block_kernels.weights(f, block, tile, count, Scoring.of(step), scratch, result)


# ---------------------------------------------------------------------------------------------------- choosing


def choose_rows(unit: Unit, candidates: Value, target: Value, room: int) -> None:
    """The chosen positions, ascending, then -1: [room] i64. Keys overwrite the exponentials of the group's first head.

    What has more candidates than it may choose must have been scored.
    """
    f, choice = unit.context.f, unit.choice
    few = candidates <= choice.topk
    with f.when(few):
        with f.loop(0, candidates) as row:
            f.store(row.index + choice.sink, target + row.index * 8)
        with f.loop(candidates, room) as rest:
            f.store(f.constant(-1), target + rest.index * 8)
    with f.when(few.eq(0)):
        tops, chunks = store_keys(unit, candidates)
        keys, scratch, topk = unit.kept("exponentials", 0), tops + choice.chunks * LINE, f.constant(choice.topk)
        choose(f, keys, choice.sink, candidates, topk, room, target, scratch, choice.rows, (tops, chunks))


def store_keys(unit: Unit, candidates: Value) -> tuple[Value, Value]:
    """Mean probabilities, times the group's size, as i32 in the same order; lowest up to a whole vector. The highest of
    each lane of a chunk, but for a last chunk that is no whole number of vectors, are behind the factors of chunks:
    gives where, and how many vectors (`tops` of `selection.choose`)."""
    f, choice, chunks = unit.context.f, unit.choice, unit.context.f.ceildiv(candidates, CHUNK)
    factors = [unit.context.private + head * choice.peaks_bytes for head in range(choice.group)]
    tops = unit.context.private + choice.group * choice.peaks_bytes
    kernel = _factors_kernel(f.module)
    for tile, (first, count) in enumerate(choice.ring.tiles):
        state = unit.at["ring"] + tile * 2 * LINE
        for number in range(first, first + count):
            peak, total = (f.load(state + part * LINE + (number - first) * 4, F32) for part in range(2))
            peaks, totals = unit.kept("peaks", number), unit.kept("totals", number)
            f.call(kernel, peaks, totals, chunks, peak, total, factors[number])
    heads = [unit.kept("exponentials", head) for head in range(choice.group)]
    with f.loop(0, chunks) as chunk:
        weights = [f.broadcast(f.load(at + chunk.index * 4, F32), LANES) for at in factors]
        start = chunk.index * CHUNK
        lowest = f.constant(LOWEST_KEY, _KEYS)
        with f.loop(start, f.min(start + CHUNK, candidates), LANES, [lowest]) as place:
            mass = f.load(heads[0] + place.index * 4, _FLOATS) * weights[0]
            for source, weight in zip(heads[1:], weights[1:], strict=True):
                mass = f.fma(f.load(source + place.index * 4, _FLOATS), weight, mass)
            # A mass is not negative, so its bits are in its order. NaN is above all, whatever its sign.
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


def _factors_kernel(module: Module) -> Function:
    """What the exponentials of each chunk are multiplied by to become probabilities: 2 ** (peak - highest) / total."""
    name = "query_factors"
    if module.has(name):
        return module.get(name)
    pointers, ring = [("peaks", PTR), ("totals", PTR), ("chunks", I64)], [("ring_peak", F32), ("ring_total", F32)]
    f = module.function(name, [*pointers, *ring, ("factors", PTR)])
    ring_peak = f.broadcast(f["ring_peak"] * LOG2E, LANES)
    with f.loop(0, f["chunks"], LANES, [f.op("math.ceil", [ring_peak], _FLOATS)]) as loop:
        peaks, exists = f.load(f["peaks"] + loop.index * 4, _FLOATS), f.first_lanes(f["chunks"] - loop.index)
        loop.carry(larger(f, f.select(exists, peaks, NEGATIVE_INFINITY), loop.state[0]))
    highest = f.broadcast(_largest_lane(f, loop.results[0]), LANES)
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
    f.returns()
    return f
