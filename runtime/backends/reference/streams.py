"""When a stage of a pipeline may fire: arithmetic on firings and slots, without tensors.

A stage touches a buffer through *uses*. In firing f, counted from 0 through all its iterations, a use is at slot
f // per + lag. With n firings in all (prod(grid) for each iteration, or for a single one with when="first" or "last"),
it visits the slots lag .. lag + (n - 1) // per in order, and has finished slot s after firing number
min((s - lag + 1) * per, n). So one counter per stage gives the state of every slot:

* slot s is *complete* when the use that fills it has fired on it `per` times;
* a place is *free* for slot s when every use that visits an earlier slot of that place (a slot number that differs by
  a multiple of depth) has finished that slot: readers, and also other stages that fill it.

A reader may fire while its slot is complete; a producer may begin a slot while its place is free, and may continue a
slot that it has begun. A slot that will still be read is never overwritten, because the overwriting stage must first
see its place free. At most one use may fill a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

from sscc.ir.errors import ErrorKind, InputError, SsccError


class ReferenceStreamErrors(ErrorKind):
    """Obstacles, as fields of the errors of a pipeline."""

    NOT_FILLED = InputError, (
        "slot {slot} of buffer {buffer!r} (place {place}), to which stage {stage!r} has written {filled} of {needed} "
        "times"
    )
    NEVER_FILLED = InputError, "slot {slot} of buffer {buffer!r} (place {place}), which no stage fills"
    STILL_USED = InputError, (
        "place {place} of buffer {buffer!r} for slot {slot}, while stage {stage!r} still has to use slot {held} there"
    )
    FREE = InputError, "place {place} of buffer {buffer!r} for slot {slot}"


@dataclass(frozen=True)
class BufferUse:
    """The sequence of slots of a buffer that a stage visits."""

    stage: int
    buffer: str
    depth: int
    writes: bool
    per: int
    lag: int
    waited: bool


@dataclass(frozen=True)
class Walk:
    """A use, with the total number of firings of its stage."""

    stage: int
    per: int
    lag: int
    total: int

    @property
    def last(self) -> int:
        """Return the last slot of the use; the first one is `lag`."""
        return self.lag + (self.total - 1) // self.per

    def current(self, fired: Sequence[int]) -> int:
        """Return the first slot that the use has not finished, unless all firings are done."""
        return self.lag + fired[self.stage] // self.per


class Reading:
    """A use that reads: it may fire while its slot is complete."""

    def __init__(self, use: BufferUse, walk: Walk, producers: Sequence[Walk]) -> None:
        self.use = use
        self._walk = walk
        self._producers = producers

    def bound(self, fired: Sequence[int]) -> int:
        """Return the total number of firings that the stage may have made by now, given the number `fired` of each
        stage. If the stage has made as many already, it has to wait."""
        slot = self._walk.current(fired)
        for producer in self._producers:
            if producer.lag <= slot <= producer.last:
                return (producer.current(fired) - self._walk.lag) * self._walk.per
        return fired[self._walk.stage]

    def obstacle(self, fired: Sequence[int], names: Sequence[str]) -> SsccError:
        """Return the state of the slot that it waits for."""
        slot = self._walk.current(fired)
        what: dict[str, Any] = {"slot": slot, "buffer": self.use.buffer, "place": slot % self.use.depth}
        for producer in self._producers:
            if producer.lag <= slot <= producer.last:
                filled = max(fired[producer.stage] - (slot - producer.lag) * producer.per, 0)
                stage = names[producer.stage]
                return ReferenceStreamErrors.NOT_FILLED(**what, stage=stage, filled=filled, needed=producer.per)
        return ReferenceStreamErrors.NEVER_FILLED(**what)


class Writing:
    """A use that fills slots: it may begin a slot while its place is free."""

    def __init__(self, use: BufferUse, walk: Walk, others: Sequence[Walk]) -> None:
        self.use = use
        self._walk = walk
        self._others = others

    def bound(self, fired: Sequence[int]) -> int:
        """See `Reading.bound`."""
        slot = self._walk.current(fired)
        end = self._walk.last + 1
        for other in self._others:
            if fired[other.stage] < other.total:
                if self._held(other, slot, fired) is not None:
                    return fired[self._walk.stage]
                end = min(end, max(other.current(fired) + self.use.depth, slot + 1))
        return (end - self._walk.lag) * self._walk.per

    def obstacle(self, fired: Sequence[int], names: Sequence[str]) -> SsccError:
        """See `Reading.obstacle`."""
        slot = self._walk.current(fired)
        what: dict[str, Any] = {"slot": slot, "buffer": self.use.buffer, "place": slot % self.use.depth}
        for other in self._others:
            held = self._held(other, slot, fired)
            if held is not None:
                return ReferenceStreamErrors.STILL_USED(**what, held=held, stage=names[other.stage])
        return ReferenceStreamErrors.FREE(**what)

    def _held(self, other: Walk, slot: int, fired: Sequence[int]) -> int | None:
        """Return the newest earlier slot of the same place that `other` has not finished."""
        newest = slot - self.use.depth
        if newest > other.last:
            newest = other.last - (other.last - slot) % self.use.depth
        return newest if fired[other.stage] < other.total and newest >= other.current(fired) else None


Condition = Union[Reading, Writing]


class FilledTwice(Exception):
    """A slot with two producers."""

    def __init__(self, buffer: str, slot: int, stages: tuple[int, int]) -> None:
        super().__init__()
        self.buffer, self.slot, self.stages = buffer, slot, stages


def conditions(uses: Sequence[BufferUse], totals: Sequence[int]) -> list[list[Condition]]:
    """Return the conditions for each stage to fire, given the total firings of each; the condition to report comes
    first.

    Raises FilledTwice if two uses fill one slot.
    """
    uses = sorted(uses, key=lambda use: not use.waited)
    walks = {use: Walk(use.stage, use.per, use.lag, totals[use.stage]) for use in uses}
    conditions_of_stages: list[list[Condition]] = [[] for _ in totals]
    for use, walk in walks.items():
        same = [(other, w) for other, w in walks.items() if other.buffer == use.buffer]
        if use.writes:
            _check_alone(use, walk, [(other, w) for other, w in same if other.writes and other != use])
            conditions_of_stages[use.stage].append(Writing(use, walk, [w for other, w in same if other != use]))
        else:
            conditions_of_stages[use.stage].append(Reading(use, walk, [w for other, w in same if other.writes]))
    return conditions_of_stages


def _check_alone(use: BufferUse, walk: Walk, others: Sequence[tuple[BufferUse, Walk]]) -> None:
    for other, met in others:
        slot = max(walk.lag, met.lag)
        if slot <= min(walk.last, met.last):
            raise FilledTwice(use.buffer, slot, (use.stage, other.stage))
