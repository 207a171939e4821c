"""Buffers: the stages that fill and read each slot, how often, and completeness of slots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from sscc.ir.choices import MAIN, ON_CHIP
from sscc.ir.schedule import DTYPE_BYTES, Stage
from sscc.runtime.validator.failure import Limits, ProofKind
from sscc.runtime.validator.firing_counts import End, Streams
from sscc.runtime.validator.linear import Linear
from sscc.runtime.validator.pipelines import PipelineView, PortFacts, StageFacts, grid_terms, linear_offset
from sscc.runtime.validator.regions import Region, covered, injective, overlap


class StreamProofErrors(ProofKind):
    """Buffers whose slots are not filled once and read, each completely."""

    BUFFER_FORM = "depth and sizes of buffer {buffer!r} must be at least 1, got {depth} and [{shape}]"
    BUFFER_PLACE = (
        "buffer {buffer!r} of {dtype} is in {tier} at {address}; it must be on chip or in {main}, at a multiple of its "
        "elements' size"
    )
    NEVER_FILLED = "no stage fills it"
    NEVER_READ = "no stage reads it"
    FILLED_IN_PART = (
        "stage {stage!r} fires {firings:.0f} times in {iterations} iterations and fills a slot in {per:.0f}: the last "
        "one stays incomplete"
    )
    READ_IN_PART = (
        "stage {stage!r} fires {firings:.0f} times in {iterations} iterations and reads a slot in {per:.0f}: the last "
        "one stays incomplete"
    )
    RATES = "slots per iteration differ: {rates}"
    FILLED_TWICE = "slot {slot:.0f} is filled by stage {one!r} and by stage {other!r}"
    SLOT_UNREAD = "slot {slot:.0f}, which stage {stage!r} fills, is never read"
    SLOT_UNFILLED = "stage {stage!r} reads slot {slot:.0f} ({iterations} iterations), which no stage fills"
    READ_BEFORE_FILLED = "stage {stage!r} reads a slot before stage {writer!r}, which fires {turn}, fills it"
    READ_ITERATION_BEFORE = "stage {stage!r} reads a slot that stage {writer!r} fills in a later iteration"
    PLACE_IN_USE = "stage {stage!r} fills a place again before stage {user!r}, which fires {turn}, has used it"
    WAIT_MISSING = "it uses buffer {buffer!r} but does not wait for it"
    WAIT_IDLE = "it waits for buffer {buffer!r}, which none of its ports uses"
    PORTS_APART = "its ports on buffer {buffer!r} fill slots at different times"
    BODY_INCOMPLETE = "body {body!r} does not write every element of it"
    SLOT_ACROSS_ITERATIONS = (
        "buffer {buffer!r}: a slot takes {per} firings, which is not a multiple of the {trips} of an iteration"
    )
    SLOT_TOO_LONG = (
        "buffer {buffer!r}: a slot takes {several} of {iterations} iterations, but only {followed} are checked"
    )
    SLOT_NO_BLOCK = "{per} firings per slot are not a block of its grid [{grid}]"
    PLACE_VARIES = "its place in a slot of {buffer!r} is {low} .. {high}: other elements are never written"
    PLACE_MOVES = (
        "its place in a slot of {buffer!r} depends on t{axis}, which does not vary within one slot: each slot gets "
        "only one part"
    )
    WRITTEN_TWICE = "the {per} firings of a slot write elements of {buffer!r} more than once"
    WRITTEN_IN_PART = "the {per} firings of a slot write {written} of the {elements} elements of {buffer!r}"


_CASES = 8  # numbers of iterations to try if it is not constant; slots are linear in it
_ITERATIONS = 4096  # iterations to check one by one if a slot is filled over several


def check_rates(view: PipelineView) -> None:
    """Check that every slot has one producer, every slot that is read is produced, and no slot stays incomplete."""
    for buffer in view.pipeline.buffers:
        if buffer.depth < 1 or any(size < 1 for size in buffer.shape):
            raise StreamProofErrors.BUFFER_FORM(
                where=view.where, buffer=buffer.name, depth=buffer.depth, shape=buffer.shape
            )
        if buffer.tier not in (ON_CHIP, MAIN) or buffer.address % DTYPE_BYTES[buffer.dtype]:
            raise StreamProofErrors.BUFFER_PLACE(
                where=view.where, buffer=buffer.name, dtype=buffer.dtype, tier=buffer.tier.upper(),
                address=buffer.address, main=MAIN.upper(),
            )  # fmt: skip
    for iterations in _cases(view):
        streams = Streams(view, iterations)
        for name in view.buffers:
            _check_slots(view, streams, name, iterations)


def _cases(view: PipelineView) -> list[int]:
    if view.iterations is not None:
        return [view.iterations] if view.iterations else []
    return list(range(1, int(min(view.most_iterations, _CASES)) + 1))


def _check_slots(view: PipelineView, streams: Streams, buffer: str, iterations: int) -> None:
    writers, readers = streams.writers[buffer], streams.readers[buffer]
    where = f"{view.where}, buffer {buffer!r}"
    for ends, never, in_part in (
        (writers, StreamProofErrors.NEVER_FILLED, StreamProofErrors.FILLED_IN_PART),
        (readers, StreamProofErrors.NEVER_READ, StreamProofErrors.READ_IN_PART),
    ):
        if not ends:
            raise never(where=where)
        for end in ends:
            if streams.firings[end.stage] % end.per:
                raise in_part(
                    where=where, stage=_name(streams, end), firings=streams.firings[end.stage], iterations=iterations,
                    per=end.per,
                )  # fmt: skip
    _check_equal_rates(streams, buffer, where)
    filled = sorted((*end.slots(streams.firings[end.stage]), _name(streams, end)) for end in writers)
    for (_, high, one), (low, _, other) in pairwise(filled):
        if low < high:
            raise StreamProofErrors.FILLED_TWICE(where=where, slot=low, one=one, other=other)
    used = sorted(end.slots(streams.firings[end.stage]) for end in readers)
    for begin, stop, writer in filled:
        lost = _first_gap(begin, stop, used)
        if lost is not None:
            raise StreamProofErrors.SLOT_UNREAD(where=where, slot=lost, stage=writer)
    _check_order(streams, buffer, where)
    for end in readers:
        low, high = end.slots(streams.firings[end.stage])
        missing = _first_gap(low, high, [(begin, stop) for begin, stop, _ in filled])
        if missing is not None:
            raise StreamProofErrors.SLOT_UNFILLED(
                where=where, stage=_name(streams, end), slot=missing, iterations=iterations
            )
        _check_kept(streams, end, where)


_TURN = {"first": 0, "each": 1, "last": 2}


def _check_order(streams: Streams, buffer: str, where: str) -> None:
    """Check that "first" stages, all iterations one after another, and "last" stages could run in this order: no firing
    needs a later one, neither for a slot to be filled nor for a place to be free."""
    everything = [*streams.writers[buffer], *streams.readers[buffer]]
    for end in everything:
        stage, low, high = _span(streams, end)
        for other in everything:
            later, begin, stop = _span(streams, other)
            after = _TURN[later.when] > _TURN[stage.when]
            if not end.writes and other.writes and low < stop and begin < high:
                moves = stage.when == later.when == "each" and streams.iterations > 1 and high - low > 1
                ahead = moves and end.lag > other.lag
                if ahead:
                    raise StreamProofErrors.READ_ITERATION_BEFORE(where=where, stage=stage.name, writer=later.name)
                if after:
                    raise StreamProofErrors.READ_BEFORE_FILLED(
                        where=where, stage=stage.name, writer=later.name, turn=_SPOKEN[later.when]
                    )
            if end.writes and after and _shares_place(low, high, begin, stop, streams.depth(buffer)):
                raise StreamProofErrors.PLACE_IN_USE(
                    where=where, stage=stage.name, user=later.name, turn=_SPOKEN[later.when]
                )


_SPOKEN = {"first": "first", "each": "in each iteration", "last": "last"}


def _span(streams: Streams, end: End) -> tuple[Stage, float, float]:
    return streams.stages[end.stage], *end.slots(streams.firings[end.stage])


def _check_kept(streams: Streams, reader: End, where: str) -> None:
    """Check that a slot that one stage fills or reads through iterations is complete in the iteration in which it is
    read first."""
    stage, low, high = _span(streams, reader)
    for writer in streams.writers[reader.buffer]:
        other, begin, stop = _span(streams, writer)
        slot = max(low, begin)
        kept = min(high - low, stop - begin) == 1 and slot < min(high, stop)
        ahead = (writer.done(slot) - 1) // other.trips > (slot - low) * reader.per // stage.trips
        if kept and ahead and stage.when == "each":
            raise StreamProofErrors.READ_ITERATION_BEFORE(where=where, stage=stage.name, writer=other.name)


def _shares_place(low: float, high: float, begin: float, stop: float, depth: int) -> bool:
    """Return True if one of slots low .. high - 1 has the same place as an earlier one of begin .. stop - 1."""
    widest = high - 1 - begin
    return widest >= depth and widest // depth * depth >= low - stop + 1


def _first_gap(low: float, high: float, spans: Sequence[tuple[float, float]]) -> float | None:
    """Return the first of ``low .. high - 1`` that is in no span [begin, stop); spans are sorted."""
    for begin, stop in spans:
        low = stop if begin <= low < stop else low
    return low if low < high else None


def _name(streams: Streams, end: End) -> str:
    return streams.stages[end.stage].name


def _check_equal_rates(streams: Streams, buffer: str, where: str) -> None:
    """Check that stages that fire in each iteration fill and read the same number of slots; one that keeps a slot reads
    no new ones."""
    rates = {}
    for end in (*streams.writers[buffer], *streams.readers[buffer]):
        stage = streams.stages[end.stage]
        if stage.when == "each" and end.per < streams.firings[end.stage]:
            rates[f"stage {stage.name!r} {'fills' if end.writes else 'reads'} {stage.trips} / {end.per:.0f}"] = (
                stage.trips / end.per
            )
    if len(set(rates.values())) > 1:
        raise StreamProofErrors.RATES(where=where, rates=list(rates))


def check_waits(view: PipelineView) -> None:
    """Check that every stage waits for exactly the buffers that it uses."""
    for facts in view.stages:
        touched = {port.name for port in facts.ports if not port.memory}
        missing, idle = sorted(touched - set(facts.stage.waits)), sorted(set(facts.stage.waits) - touched)
        if missing:
            raise StreamProofErrors.WAIT_MISSING(where=facts.where, buffer=missing[0])
        if idle:
            raise StreamProofErrors.WAIT_IDLE(where=facts.where, buffer=idle[0])


def check_covers(view: PipelineView, limits: Limits) -> None:
    """Check that the firings that fill a slot write every element of it exactly once."""
    for facts in view.stages:
        for name in dict.fromkeys(port.name for port in facts.ports if not port.memory and port.writes):
            ports = [port for port in facts.ports if port.name == name and port.writes]
            if len({(port.port.per, port.port.lag) for port in ports}) > 1:
                raise StreamProofErrors.PORTS_APART(where=facts.where, buffer=name)
            for port in ports:
                if not port.use.complete:
                    raise StreamProofErrors.BODY_INCOMPLETE(where=port.where, body=facts.stage.body)
            _check_cover(view, facts, ports, limits)


def _check_cover(view: PipelineView, facts: StageFacts, ports: Sequence[PortFacts], limits: Limits) -> None:
    per, trips = ports[0].port.per, facts.trips
    if per <= trips:
        tiles = _tiles_of_slot(facts, per)
        index = Linear(0, ((view.pipeline.index, 1),)) if facts.stage.when == "each" else None
        pieces = [_piece(view, facts, port, tiles, index) for port in ports]
        _check_pieces(view, ports[0], pieces, limits)
        return
    several, left = divmod(per, trips)
    if left:
        raise StreamProofErrors.SLOT_ACROSS_ITERATIONS(
            where=facts.where, buffer=ports[0].name, per=per, trips=trips
        )
    assert view.iterations is not None  # one iteration would leave the slot incomplete (check_rates)
    followed = min(view.iterations, _ITERATIONS)
    if followed < min(view.iterations, 2 * several):
        raise StreamProofErrors.SLOT_TOO_LONG(
            where=facts.where, buffer=ports[0].name, several=several, iterations=view.iterations, followed=_ITERATIONS
        )
    for begin in range(0, followed - several + 1, several):
        indices = [view.lower.plus(Linear(begin + n)) for n in range(several)]
        pieces = [_piece(view, facts, port, facts.stage.grid, index) for port in ports for index in indices]
        _check_pieces(view, ports[0], pieces, limits)


def _tiles_of_slot(facts: StageFacts, per: int) -> tuple[int, ...]:
    """Return the number of values of each index of the grid that fall on one slot: the firings of a slot are a block of
    the grid."""
    sizes: list[int] = []
    left = per
    for size in reversed(facts.stage.grid):
        inner = min(left, size)
        if left % inner or size % inner:
            raise StreamProofErrors.SLOT_NO_BLOCK(where=facts.where, per=per, grid=facts.stage.grid)
        sizes.insert(0, inner)
        left //= inner
    if left != 1:
        raise StreamProofErrors.SLOT_NO_BLOCK(where=facts.where, per=per, grid=facts.stage.grid)
    return tuple(sizes)


def _piece(
    view: PipelineView, facts: StageFacts, port: PortFacts, tiles: Sequence[int], index: Linear | None
) -> tuple[int, list[tuple[int, int]]]:
    """Return the part of a slot that a port writes: offset, and (stride, size) of the view and of the firings.

    With `index` None, or a variable, it is the same for every iteration.
    """
    scope = view.everywhere(facts.stage)
    if index is not None and index.terms != ((view.pipeline.index, 1),):
        scope = view.at(index).child()
        for axis, size in enumerate(facts.stage.grid):
            scope.variable(f"t{axis}", (0, size - 1))
    value = linear_offset(port.port.view.offset, port.port.view.terms, scope, port.where)
    rest, factors = grid_terms(value, facts.stage)
    low, high = scope.range_of(rest)
    if low != high:
        raise StreamProofErrors.PLACE_VARIES(where=port.where, buffer=port.name, low=low, high=high)
    for axis, (size, tile, factor) in enumerate(zip(facts.stage.grid, tiles, factors, strict=True)):
        if tile < size and factor:
            raise StreamProofErrors.PLACE_MOVES(where=port.where, buffer=port.name, axis=axis)
    return int(low), [*port.pairs, *zip(factors, tiles, strict=True)]


def _check_pieces(
    view: PipelineView,
    port: PortFacts,
    pieces: Sequence[tuple[int, list[tuple[int, int]]]],
    limits: Limits,
) -> None:
    elements = prod(view.buffers[port.name].shape)
    regions = [Region.of(offset, pairs) for offset, pairs in pieces]
    if len(regions) == 1 and injective(pieces[0][1]) and regions[0].fills(elements):
        return
    twice = not all(injective(pairs) for _, pairs in pieces) or any(
        overlap(a.dims, b.dims, b.offset - a.offset) is not False
        for number, a in enumerate(regions)
        for b in regions[number + 1 :]
    )
    if twice:
        raise StreamProofErrors.WRITTEN_TWICE(where=port.where, per=port.port.per, buffer=port.name)
    written = sum(region.points for region in regions)
    if written != elements or covered(regions, Region.of(0, [(1, elements)]), limits.painted) is not True:
        raise StreamProofErrors.WRITTEN_IN_PART(
            where=port.where, per=port.port.per, written=written, elements=elements, buffer=port.name
        )
