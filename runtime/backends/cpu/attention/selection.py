"""Selection at the end of a prompt, a step each: scores of positions, pooling and top-K."""

from __future__ import annotations

from sscc.ir.operations import ObservationScores, Pool, Select
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.attention.observation_scores import Scorer, holds, slice_range, slices_of
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.mlir import F32, I32, I64, PTR, Function, Module, Value, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Phase
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, address, check_strides

SCORES = vector(F32, 16)
KEYS = vector(I32, 16)
LOWEST_KEY = -(1 << 31)
"""Of no score."""
GROUPED = 8
"""Keys that are chosen for each vector of groups: groups are at least twice as many as the chosen keys."""
BOUND_BITS = 16
"""Of the bound's bits, those that are looked for: two keys in a hundred more would survive with fewer by one."""

# ------------------------------------------------------------------------------------------------------ scores


@executes(ObservationScores)
def lower_observation_scores(step: ObservationScores, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase in units of (KV head, slice of positions); one more before it where the log-sum-exp is not given.

    See `ObservationScores`. Shared scratch: peaks and totals of the slices, where the log-sum-exp is computed. Does
    nothing where the length is not 1 .. T. Raises InputError for operands that do not fit.
    """
    names = (step.observed, step.key, step.scores, *([step.log_sum_exp] if step.log_sum_exp else []))
    check_strides(step.kind, operands, names)
    scorer = Scorer.of(step, operands, features)
    phases = [Phase(scorer.units, scorer.emit_scores, private_bytes=scorer.scratch.nbytes)]
    if not step.log_sum_exp:
        phases.insert(0, Phase(scorer.units, scorer.emit_partial_sums, private_bytes=scorer.scratch.nbytes))
    return Lowered(tuple(phases), 0 if step.log_sum_exp else scorer.partial_bytes)


# ----------------------------------------------------------------------------------------------------- pooling


@executes(Pool)
def lower_pool(step: Pool, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase in units of (KV head, slice of positions). See `Pool`; writes pooled[:, :length] only.

    Does nothing where the length is not 1 .. T. Raises InputError for operands that do not fit.
    """
    check_strides(step.kind, operands, (step.scores, step.pooled))
    kv_heads, limit = operands[step.scores][0]
    slices = slices_of(limit)

    def pool(context: Context) -> None:
        f, length = context.f, context.scalars[step.length]
        with f.when(holds(length, limit)), f.loop(context.begin, context.end) as unit:
            head, part = unit.index // slices, unit.index % slices
            first, last = slice_range(f, part, slices, length)
            scores, pooled = (address(f, context.operands[name], head) for name in (step.scores, step.pooled))
            with f.loop(first, last, 16) as place:
                window_scores = pooled_scores(f, scores, place.index, length, step.width, step.mode)
                f.store_masked(window_scores, pooled + place.index * 4, f.first_lanes(last - place.index))

    return Lowered((Phase(kv_heads * slices, pool),))


def pooled_scores(f: Function, scores: Value, place: Value, length: Value, width: int, mode: str) -> Value:
    """Pooled scores of positions place .. place + 15, from f32 scores [length]; any value from `length` on."""
    first = f.broadcast(f.cast("arith.trunci", place - width // 2, I32), 16) + f.lanes()
    end = f.broadcast(f.cast("arith.trunci", length, I32), 16)
    with f.loop(0, width, 1, [f.splat(0.0 if mode == "avg" else float("-inf"))]) as tap:
        position = first + f.broadcast(f.cast("arith.trunci", tap.index, I32), 16)
        inside = (position >= 0) & (position < end)
        value = f.load_masked(scores + (place + tap.index - width // 2) * 4, inside, SCORES)
        if mode == "avg":
            tap.carry(tap.state[0] + value)
        else:
            tap.carry(f.max(tap.state[0], f.select(inside, value, float("-inf"))))
    return tap.results[0] / float(width) if mode == "avg" else tap.results[0]


# --------------------------------------------------------------------------------------------------- selection


@executes(Select)
def lower_select(step: Select, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase in units of KV heads. See `Select`; NaN ranks above all scores, as in the reference interpreter.

    Shared scratch: an i32 per score. Does nothing where the length is not 1 .. T. Raises InputError for operands
    that do not fit.
    """
    check_strides(step.kind, operands, (step.scores, step.selected))
    (kv_heads, limit), (_, room) = operands[step.scores][0], operands[step.selected][0]
    row = key_bytes(limit)

    def select(context: Context) -> None:
        f, length = context.f, context.scalars[step.length]
        with f.when(holds(length, limit)), f.loop(context.begin, context.end) as head:
            scores = address(f, context.operands[step.scores], head.index)
            keys = context.shared + head.index * row
            end = f.max(length - step.recent, step.sink)
            with f.loop(step.sink, end, 16) as place:
                mask = f.first_lanes(end - place.index)
                candidate_scores = f.load_masked(scores + place.index * 4, mask, SCORES)
                store_keys(f, candidate_scores, mask, keys + (place.index - step.sink) * 4)
            target = address(f, context.operands[step.selected], head.index)
            topk = context.scalars[step.topk]
            scored = f.select(length > topk + (step.sink + step.recent), end - step.sink, 0)
            choose(f, keys, step.sink, scored, topk, room, target, context.private, limit)

    return Lowered((Phase(kv_heads, select, choice_bytes(limit, room)),), kv_heads * row)


def key_bytes(rows: int) -> int:
    """Scratch for the keys of `rows` scores, whole vectors."""
    return -(-rows // 16) * 64


def store_keys(f: Function, scores: Value, mask: Value, target: Value) -> None:
    """16 scores as i32 in the same order, NaN above all and -0 equal to 0; lanes off the mask get the lowest key."""
    bits = f.bitcast(scores + 0.0, KEYS)
    sign = f.op("arith.shrsi", [bits, f.constant(31, KEYS)], KEYS)
    keys = bits ^ (sign & 0x7FFFFFFF)
    keys = f.select(f.compare("ne", scores, scores), 0x7FFFFFFF, keys)
    f.store(f.select(mask, keys, LOWEST_KEY), target)


def choice_bytes(rows: int, room: int) -> int:
    """Private scratch of `choose` from the keys of `rows` scores: groups' highest keys, survivors and their places."""
    return 2 * key_bytes(rows + 16) + _highest_bytes(rows, room)


def _highest_bytes(rows: int, room: int) -> int:
    """Of the highest keys of groups: as many vectors as `_choose_kernel` makes of whole groups, and one that is not."""
    vectors = key_bytes(rows) // 64
    return (min(vectors, 2 * max(1, -(-room // GROUPED)) + 1) + 1) * 64


def choose(
    f: Function,
    keys: Value,
    first: int,
    candidates: Value,
    topk: Value,
    room: int,
    target: Value,
    scratch: Value,
    rows: int,
    tops: tuple[Value, Value] | None = None,
) -> None:
    """The positions of the `topk` highest keys, the earlier one of equals, ascending; then -1. [room] i64.

    `keys` are of positions first .. first + candidates - 1, up to a whole vector the lowest; at most of `rows`.
    `scratch` is `choice_bytes` of private scratch.

    Args:
        tops: where there are vectors of 16 whose lanes are the highest keys of groups that have none in common, and
            how many; what has made the keys had them in registers.
    """
    count = f.min(f.min(candidates, f.max(topk, 0)), room)
    survivors, places, highest = (scratch + part * key_bytes(rows + 16) for part in range(3))
    pointer, number = tops or (keys, f.constant(0))
    with f.when(count > 0):
        scratches = survivors, places, highest
        f.call(_choose_kernel(f.module), keys, first, candidates, count, target, *scratches, pointer, number)
    with f.loop(count, room) as rest:
        f.store(f.constant(-1), target + rest.index * 8)


def _choose_kernel(module: Module) -> Function:
    """The `count` highest of some keys, 1 .. candidates.

    The highest keys of groups, of which there are at least as many as keys are chosen, bound the lowest key that is:
    the count-th highest of them. Few keys are not below the bound, and it costs a pass over all keys to find it, or one
    over `tops` where these are groups enough, and one to apply it. Among those that survive, the lowest chosen key is
    found exactly.
    """
    name = "select_highest"
    if module.has(name):
        return module.get(name)
    params = [("keys", PTR), ("first", I64), ("candidates", I64), ("count", I64)]
    pointers = ("target", "survivors", "places", "highest", "tops")
    f = module.function(name, [*params, *((n, PTR) for n in pointers), ("top_vectors", I64)])
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
    f.returns()
    return f


def _lowest_chosen(f: Function, keys: Value, number: Value, count: Value, bits: int) -> Value:
    """The count-th highest key, or where `bits` are not all 32, these of its highest bits, the others zero: found bit
    by bit, counting keys that are not below a guess. An i64."""
    with f.loop(0, bits, 1, [f.constant(LOWEST_KEY)]) as bit:
        guess = bit.state[0] + (f.constant(1 << 31) >> bit.index)
        enough = _count_from(f, keys, number, guess) >= count
        bit.carry(f.select(enough, guess, bit.state[0]))
    return bit.results[0]


def _keep_from(f: Function, bound: Value) -> Value:
    """Copies the keys from `bound` on and their places, in order, and the lowest key up to a whole vector."""
    # No candidate has the lowest key, which stands behind the last one.
    limit = f.broadcast(f.cast("arith.trunci", f.max(bound, LOWEST_KEY + 1), I32), 16)
    with f.loop(0, f["candidates"], 16, [f.constant(0), f.lanes()]) as group:
        survivors, places = group.state
        kept = f.load(f["keys"] + group.index * 4, KEYS) >= limit
        f.store(f.compress(places, kept), f["places"] + survivors * 4)
        group.carry(survivors + f.count(kept), places + 16)
    survivors = group.results[0]
    # Few are left, so that this costs less than to move keys in every round above.
    with f.loop(0, survivors) as number:
        place = f.cast("arith.extui", f.load(f["places"] + number.index * 4, I32), I64)
        f.store(f.load(f["keys"] + place * 4, I32), f["survivors"] + number.index * 4)
    f.store(f.constant(LOWEST_KEY, KEYS), f["survivors"] + survivors * 4)
    return survivors


def _write_chosen(f: Function, survivors: Value, threshold: Value) -> None:
    """Writes the positions of the survivors above the threshold, and of as many of those on it as are still chosen."""
    limit = f.broadcast(f.cast("arith.trunci", threshold, I32), 16)
    ties = f["count"] - _count_from(f, f["survivors"], survivors, threshold + 1)
    first = f.broadcast(f["first"], 16)
    # Places of chosen survivors take the places of those that were read, then go out as positions.
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
    """How many keys are not below `lowest`, an i64 above the lowest i32."""
    # One above the highest i32 stands for none; compared as "above lowest - 1", which fits.
    limit = f.broadcast(f.cast("arith.trunci", lowest - 1, I32), 16)
    with f.loop(0, candidates, 16, [f.constant(0)]) as place:
        place.carry(place.state[0] + f.count(f.load(keys + place.index * 4, KEYS) > limit))
    return place.results[0]
