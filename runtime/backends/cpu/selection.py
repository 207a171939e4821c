"""Selection at the end of a prompt, a step each: scores of positions, pooling and top-K."""

from __future__ import annotations

from sscc.ir.errors import InputError
from sscc.ir.schedule import ObservationScores, Pool, Select
from sscc.runtime.backends.cpu.features import Features
from sscc.runtime.backends.cpu.mlir import F32, I16, I32, I64, Function, Value, vector
from sscc.runtime.backends.cpu.observation_scores import Scorer, holds, slice_range, slices_of
from sscc.runtime.backends.cpu.phases import Context, Lowered, Phase
from sscc.runtime.backends.cpu.row_copies import Meta, address, check_operands

SCORES = vector(F32, 16)
KEYS = vector(I32, 16)
_LOWEST_KEY = -(1 << 31)
"""Of no score."""

# ------------------------------------------------------------------------------------------------------ scores


def lower_observation_scores(step: ObservationScores, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase in units of (KV head, slice of positions); one more before it where the log-sum-exp is not given.

    See `ObservationScores`. Shared scratch: peaks and totals of the slices, where the log-sum-exp is computed. Does
    nothing where the length is not 1 .. T. Raises InputError for operands that do not fit.
    """
    names = (step.observed, step.key, step.scores, *([step.log_sum_exp] if step.log_sum_exp else []))
    check_operands(step.kind, operands, names)
    scorer = Scorer.of(step, operands, features)
    phases = [Phase(scorer.units, scorer.emit_scores, private_bytes=scorer.scratch.nbytes)]
    if not step.log_sum_exp:
        phases.insert(0, Phase(scorer.units, scorer.emit_partial_sums, private_bytes=scorer.scratch.nbytes))
    return Lowered(tuple(phases), 0 if step.log_sum_exp else scorer.partial_bytes)


# ----------------------------------------------------------------------------------------------------- pooling


def check_pool(kind: str, width: int, mode: str) -> None:
    """Raises InputError for a mode that does not exist and for a width that is not odd."""
    if mode not in ("avg", "max") or width < 1 or width % 2 == 0:
        raise InputError(f"{kind} pools with mode {mode!r} and width {width}; modes are avg and max, widths odd")


def lower_pool(step: Pool, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase in units of (KV head, slice of positions). See `Pool`; writes pooled[:, :length] only.

    Does nothing where the length is not 1 .. T. Raises InputError for operands that do not fit.
    """
    check_operands(step.kind, operands, (step.scores, step.pooled))
    check_pool(step.kind, step.width, step.mode)
    kv_heads, limit = operands[step.scores][0]
    slices = slices_of(limit)

    def pool(context: Context) -> None:
        f, length = context.f, context.scalars[step.length]
        with f.when(holds(f, length, limit)), f.loop(context.begin, context.end) as unit:
            head, part = unit.index // slices, unit.index % slices
            first, last = slice_range(f, part, slices, length)
            scores, pooled = (address(f, context.operands[name], head) for name in (step.scores, step.pooled))
            with f.loop(first, last, 16) as place:
                found = pooled_scores(f, scores, place.index, length, step.width, step.mode)
                f.store_masked(found, pooled + place.index * 4, f.first_lanes(last - place.index))

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


def lower_select(step: Select, operands: dict[str, Meta], features: Features) -> Lowered:
    """One phase in units of KV heads. See `Select`; NaN ranks above all scores, as in the reference interpreter.

    Shared scratch: an i32 per score. Does nothing where the length is not 1 .. T. Raises InputError for operands
    that do not fit.
    """
    check_operands(step.kind, operands, (step.scores, step.selected))
    if step.sink < 0 or step.recent < 0:
        raise InputError(f"{step.kind} takes a sink and a recent that are not negative, not {step.sink}, {step.recent}")
    (kv_heads, limit), (_, room) = operands[step.scores][0], operands[step.selected][0]
    row = key_bytes(limit)

    def select(context: Context) -> None:
        f, length = context.f, context.scalars[step.length]
        with f.when(holds(f, length, limit)), f.loop(context.begin, context.end) as head:
            scores = address(f, context.operands[step.scores], head.index)
            keys = context.shared + head.index * row
            end = f.max(length - step.recent, step.sink)
            with f.loop(step.sink, end, 16) as place:
                mask = f.first_lanes(end - place.index)
                found = f.load_masked(scores + place.index * 4, mask, SCORES)
                store_keys(f, found, mask, keys + (place.index - step.sink) * 4)
            target = address(f, context.operands[step.selected], head.index)
            choose(f, keys, step.sink, end - step.sink, context.scalars[step.topk], room, target)

    return Lowered((Phase(kv_heads, select),), kv_heads * row)


def key_bytes(rows: int) -> int:
    """Scratch for the keys of `rows` scores, whole vectors."""
    return -(-rows // 16) * 64


def store_keys(f: Function, scores: Value, mask: Value, target: Value) -> None:
    """16 scores as i32 in the same order, NaN above all and -0 equal to 0; lanes off the mask get the lowest key."""
    bits = f.bitcast(scores + 0.0, KEYS)
    sign = f.op("arith.shrsi", [bits, f.constant(31, KEYS)], KEYS)
    keys = bits ^ (sign & 0x7FFFFFFF)
    keys = f.select(f.compare("ne", scores, scores), 0x7FFFFFFF, keys)
    f.store(f.select(mask, keys, _LOWEST_KEY), target)


def choose(f: Function, keys: Value, first: int, candidates: Value, topk: Value, room: int, target: Value) -> None:
    """The positions of the `topk` highest keys, the earlier one of equals, ascending; then -1. [room] i64.

    `keys` are of positions first .. first + candidates - 1, up to a whole vector the lowest. The lowest key that is
    chosen is found bit by bit, counting keys that are not below a guess: a pass over the keys for each bit.
    """
    count = f.min(candidates, f.min(f.max(topk, 0), room))
    with f.loop(0, 32, 1, [f.constant(_LOWEST_KEY)]) as bit:
        guess = bit.state[0] + (f.constant(1 << 31) >> bit.index)
        enough = _count_from(f, keys, candidates, guess) >= count
        bit.carry(f.select(enough, guess, bit.state[0]))
    threshold = bit.results[0]
    ties = count - _count_from(f, keys, candidates, threshold + 1)
    limit = f.broadcast(f.cast("arith.trunci", threshold, I32), 16)
    with f.loop(0, f.select(count > 0, candidates, 0), 16, [f.constant(0), ties]) as group:
        some = f.bitcast(f.load(keys + group.index * 4, KEYS) >= limit, I16).ne(0)
        with f.loop(0, f.select(some, 16, f.constant(0)), 1, group.state) as lane:
            written, left = lane.state
            place = group.index + lane.index
            key = f.cast("arith.extsi", f.load(keys + place * 4, I32), I64)
            tie = key.eq(threshold) & (left > 0)
            taken = (key > threshold) | tie
            with f.when(taken):
                f.store(place + first, target + written * 8)
            lane.carry(written + f.cast("arith.extui", taken, I64), left - f.cast("arith.extui", tie, I64))
        group.carry(*lane.results)
    with f.loop(count, room) as rest:
        f.store(f.constant(-1), target + rest.index * 8)


def _count_from(f: Function, keys: Value, candidates: Value, lowest: Value) -> Value:
    """How many keys are not below `lowest`, an i64 above the lowest i32."""
    # One above the highest i32 stands for none; compared as "above lowest - 1", which fits.
    limit = f.broadcast(f.cast("arith.trunci", lowest - 1, I32), 16)
    with f.loop(0, candidates, 16, [f.constant(0, KEYS)]) as place:
        above = f.load(keys + place.index * 4, KEYS) > limit
        place.carry(place.state[0] + f.cast("arith.extui", above, I32))
    return f.cast("arith.extui", f.reduce("add", place.results[0]), I64)
