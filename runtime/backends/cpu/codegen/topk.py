"""Selection of the highest few of many numbers: of a row's numbers, for expert routers, and of sort keys, for the rows
of attention.

Sort keys are i32 in the order of the scores; NaN ranks above all numbers.
"""

from __future__ import annotations

from sscc.ir.operations import TopK
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.mlir import F32, I16, I32, I64, PTR, Function, Value, kernel, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand, Phase
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, address, check_rows

KEYS = vector(I32, 16)
LOWEST_KEY = -(1 << 31)
"""Of no score."""
GROUPED = 8
"""Number of chosen keys per vector of groups: there are at least twice as many groups as chosen keys."""
BOUND_BITS = 16
"""Number of bits of the bound that are searched. With one bit less, 2 % more keys would pass it."""
_BEHIND = (1 << 31) - 1
"""An index greater than every valid one."""


def key_bytes(rows: int) -> int:
    """Return the bytes of scratch for the keys of `rows` scores, in whole vectors."""
    return -(-rows // 16) * 64


def store_keys(f: Function, scores: Value, mask: Value, target: Value) -> None:
    """Store 16 scores as i32 in the same order, with NaN above all and -0 equal to 0; lanes outside of the mask get the
    lowest key."""
    bits = f.bitcast(scores + 0.0, KEYS)
    sign = f.op("arith.shrsi", [bits, f.constant(31, KEYS)], KEYS)
    keys = bits ^ (sign & 0x7FFFFFFF)
    keys = f.select(f.compare("ne", scores, scores), 0x7FFFFFFF, keys)
    f.store(f.select(mask, keys, LOWEST_KEY), target)


def choice_bytes(rows: int, room: int) -> int:
    """Return the bytes of private scratch of `choose` for the keys of `rows` scores: highest keys of groups, surviving
    keys and their places."""
    return 2 * key_bytes(rows + 16) + _highest_bytes(rows, room)


def _highest_bytes(rows: int, room: int) -> int:
    """Return the bytes for the highest keys of groups: the vectors of whole groups in `_choose`, and one incomplete
    vector."""
    vectors = key_bytes(rows) // 64
    return (min(vectors, 2 * max(1, -(-room // GROUPED)) + 1) + 1) * 64


def choose(
    f: Function, keys: Value, first: int, candidates: Value, topk: Value, room: int, target: Value, scratch: Value,
    rows: int, tops: tuple[Value, Value] | None = None,
) -> None:  # fmt: skip
    """Write the positions of the `topk` highest keys in ascending order, then -1: [room] i64. Of equal keys the earlier
    one is chosen.

    `keys` belong to positions first .. first + candidates - 1, padded with the lowest key to a whole vector; there are
    at most `rows`. `scratch` is private scratch of `choice_bytes`.

    Args:
        tops: pointer to vectors of 16 lanes with the highest keys of disjoint groups, and the number of vectors; None
            if the producer of the keys has not recorded them.
    """
    count = f.min(f.min(candidates, f.max(topk, 0)), room)
    survivors, places, highest = (scratch + part * key_bytes(rows + 16) for part in range(3))
    pointer, number = tops or (keys, f.constant(0))
    with f.when(count > 0):
        _choose(f)(keys, first, candidates, count, target, survivors, places, highest, pointer, number)
    end_list(f, target, count, room)


def put_all(f: Function, target: Value, first: int, count: Value, room: int) -> None:
    """Write all of `count` positions from `first` on, then -1: [room] i64."""
    with f.loop(0, count) as row:
        f.store(row.index + first, target + row.index * 8)
    end_list(f, target, count, room)


def end_list(f: Function, target: Value, count: Value, room: int) -> None:
    with f.loop(count, room) as rest:
        f.store(f.constant(-1), target + rest.index * 8)


@kernel(
    keys=PTR, first=I64, candidates=I64, count=I64, target=PTR, survivors=PTR, places=PTR, highest=PTR, tops=PTR,
    top_vectors=I64,
)  # fmt: skip
def _choose(f: Function) -> None:
    """Write the positions of the `count` highest keys, 1 .. candidates.

    Let there be at least `count` groups of keys. The count-th highest of the groups' maximums is a lower bound of the
    chosen keys, and few keys reach it. Finding the bound costs a pass over all keys, or over `tops` if these are enough
    groups; applying it costs another pass. The lowest chosen key is then found exactly among the surviving keys.
    """
    enough = f["top_vectors"] * 16 >= f["count"] * 2
    source = f.select(enough, f["tops"], f["keys"])
    vectors = f.select(enough, f["top_vectors"], f.ceildiv(f["candidates"], 16))
    group = f.max(vectors // f.ceildiv(f["count"], GROUPED), 1)
    with f.loop(0, vectors, group) as loop:
        with f.loop(loop.index, f.min(loop.index + group, vectors), 1, [f.constant(LOWEST_KEY, KEYS)]) as part:
            part.carry(f.max(part.state[0], f.load(source + part.index * 64, KEYS)))
        f.store(part.results[0], f["highest"] + loop.index // group * 64)
    bound = _lowest_chosen(f, f["highest"], f.ceildiv(vectors, group) * 16, f["count"], BOUND_BITS)
    survivors = _keep_from(f, bound)
    threshold = _lowest_chosen(f, f["survivors"], survivors, f["count"], 32)
    _write_chosen(f, survivors, threshold)


def _lowest_chosen(f: Function, keys: Value, number: Value, count: Value, bits: int) -> Value:
    """Return the count-th highest key, as an i64, or its highest `bits` bits with zeros below. It is found bit by bit,
    by counting the keys that are at or above a guess."""
    with f.loop(0, bits, 1, [f.constant(LOWEST_KEY)]) as bit:
        guess = bit.state[0] + (f.constant(1 << 31) >> bit.index)
        enough = _count_from(f, keys, number, guess) >= count
        bit.carry(f.select(enough, guess, bit.state[0]))
    return bit.results[0]


def _keep_from(f: Function, bound: Value) -> Value:
    """Copy the keys at or above the bound and their places, in order, padded with the lowest key to a whole vector."""
    # No candidate has the lowest key, which is the padding.
    limit = f.broadcast(f.cast("arith.trunci", f.max(bound, LOWEST_KEY + 1), I32), 16)
    with f.loop(0, f["candidates"], 16, [f.constant(0), f.lanes()]) as group:
        survivors, places = group.state
        kept = f.load(f["keys"] + group.index * 4, KEYS) >= limit
        f.store(f.compress(places, kept), f["places"] + survivors * 4)
        group.carry(survivors + f.count(kept), places + 16)
    survivors = group.results[0]
    # Few keys survive, so this costs less than moving keys in every iteration above.
    with f.loop(0, survivors) as number:
        place = f.cast("arith.extui", f.load(f["places"] + number.index * 4, I32), I64)
        f.store(f.load(f["keys"] + place * 4, I32), f["survivors"] + number.index * 4)
    f.store(f.constant(LOWEST_KEY, KEYS), f["survivors"] + survivors * 4)
    return survivors


def _write_chosen(f: Function, survivors: Value, threshold: Value) -> None:
    """Write the positions of the survivors above the threshold, and of the first survivors equal to it, up to the
    chosen number."""
    limit = f.broadcast(f.cast("arith.trunci", threshold, I32), 16)
    ties = f["count"] - _count_from(f, f["survivors"], survivors, threshold + 1)
    first = f.broadcast(f["first"], 16)
    # The places of chosen survivors overwrite places that were already read; then they are written as positions.
    with f.loop(0, survivors, 16, [f.constant(0), ties]) as group:
        written, left = group.state
        keys, places = (f.load(f[name] + group.index * 4, KEYS) for name in ("survivors", "places"))
        on = f.cast("arith.extui", keys.eq(limit), I32)
        earlier = on  # becomes the number of ties up to a lane
        for distance in (1, 2, 4, 8):
            lanes = [16 + lane - distance if lane >= distance else 0 for lane in range(16)]
            earlier = earlier + f.shuffle(f.constant(0, KEYS), earlier, lanes)
        taken = (keys > limit) | (keys.eq(limit) & (earlier <= f.broadcast(f.cast("arith.trunci", left, I32), 16)))
        f.store(f.compress(places, taken), f["places"] + written * 4)
        ties_here = f.cast("arith.extui", f.extract(earlier, 15), I64)
        group.carry(written + f.count(taken), f.max(left - ties_here, 0))
    with f.loop(0, f["count"], 16) as group:
        position = f.cast("arith.extui", f.load(f["places"] + group.index * 4, KEYS), I64) + first
        f.store_masked(position, f["target"] + group.index * 8, f.first_lanes(f["count"] - group.index))


def _count_from(f: Function, keys: Value, candidates: Value, lowest: Value) -> Value:
    """Return the number of keys at or above `lowest`, an i64 greater than the lowest i32."""
    # `lowest` may exceed the highest i32 by one; comparing with "above lowest - 1" avoids the overflow.
    limit = f.broadcast(f.cast("arith.trunci", lowest - 1, I32), 16)
    with f.loop(0, candidates, 16, [f.constant(0)]) as place:
        place.carry(place.state[0] + f.count(f.load(keys + place.index * 4, KEYS) > limit))
    return place.results[0]


# ---------------------------------------------------------------------------------------------------- rows of routers


@executes(TopK)
def lower_topk(step: TopK, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `TopK` to one phase in units of rows."""
    check_rows(step, operands, step.indices)
    (rows, count), (_, chosen) = operands[step.source][0], operands[step.indices][0]

    def choose_experts(context: Context) -> None:
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

    return Lowered((Phase(rows, choose_experts, private_bytes=key_bytes(count)),))


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
