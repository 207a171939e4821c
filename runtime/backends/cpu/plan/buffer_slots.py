"""Where the slots of a pipeline's buffers lie in memory, and which of them a firing uses.

A schedule numbers the slots of a buffer through all iterations, and says with `depth` how many the modelled machine
keeps. Memory is not scarce here: a buffer has a slot for everything that one iteration fills, a *generation*, and as
many generations as iterations reach into each other. A buffer of two slots an iteration, whose reader is two iterations
behind its writer (lag 0 and lag 4)::

    generation      0                 1                 2
    slot        | 0  ·  1 |       | 2  ·  3 |       | 4  ·  5 |

    iteration 0     read              .                 filled
    iteration 1     filled            read              .
    iteration 2     .                 filled            read

A port's generation in an iteration is (iteration + lag / slots per iteration) mod generations: a register where there
are several. Within a generation the slot follows from the firing's place in the grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sscc.runtime.backends.cpu.codegen.refusal import NoNativeStage
from sscc.runtime.backends.cpu.plan.stages import BufferPort, ResolvedStage


class NativeSlotErrors(NoNativeStage):
    LAG = "a buffer's lag of {lag} slots is not a whole number of iterations"
    PART_OF_RUN = "a buffer's slot serves {firings} firings, several iterations but not all"
    PART_OF_ITERATION = "a buffer's slot takes {firings} of {trips} firings"
    UNKNOWN_LENGTH = "it reads a slot by number after a loop of unknown length"
    OVERWRITTEN = "it reads a slot that later iterations have overwritten"


@dataclass(frozen=True)
class SlotPlace:
    """The slot that a port uses.

    Attributes:
        number: counted from the buffer's first one, or in the generation of an iteration.
        ahead: by how many iterations its generation is ahead of the iteration's own; None where the slot is always the
            same one.
        moves: per axis of the grid, by how many slots a firing moves on; empty where the firings share one.
    """

    number: int = 0
    ahead: int | None = None
    moves: tuple[int, ...] = ()


@dataclass(frozen=True)
class Slots:
    """A buffer's memory: `generations` times `per_iteration` slots.

    Attributes:
        offset: of the first slot, in bytes: in the workspace, or where they are `private` in what each thread has.
        written_ahead: how many iterations ahead of its own the latest slot is that an iteration fills; None where only
            stages that fire once fill any.
    """

    offset: int
    slot_bytes: int
    per_iteration: int
    generations: int
    private: bool
    written_ahead: int | None

    @property
    def nbytes(self) -> int:
        return self.slot_bytes * self.per_iteration * self.generations

    def ahead(self, port: BufferPort) -> int:
        """By how many iterations the slots of a port are ahead of the iteration's own."""
        return port.lag // self.per_iteration

    def place(self, stage: ResolvedStage, port: BufferPort, iterations: int | None, pipeline: str) -> SlotPlace:
        """The slot that a port of a stage uses in a firing.

        Args:
            iterations: of the pipeline; None where that is only known when it runs.
            pipeline: the pipeline as an error names it.

        Raises:
            InputError: no generation holds the slot (`NoNativeStage`).
        """
        trips, where = stage.stage.trips, {"stage": stage.stage.name, "pipeline": pipeline}
        if stage.stage.when == "last":
            self._check_left(port, iterations, where)
        if (stage.stage.when != "each" or iterations == 1) and (trips == 1 or port.per >= trips):
            return SlotPlace(port.lag % (self.per_iteration * self.generations))
        if port.lag % self.per_iteration:
            raise NativeSlotErrors.LAG(**where, lag=port.lag)
        whole_run = port.per > trips
        if whole_run and (iterations is None or port.per < trips * iterations):
            raise NativeSlotErrors.PART_OF_RUN(**where, firings=port.per)
        if 1 < port.per < trips:
            raise NativeSlotErrors.PART_OF_ITERATION(**where, firings=port.per, trips=trips)
        moves = _moves(stage.stage.grid) if port.per < trips else ()
        return SlotPlace(0, None if whole_run or self.generations == 1 else self.ahead(port), moves)

    def _check_left(self, port: BufferPort, iterations: int | None, where: dict[str, str]) -> None:
        """An epilogue reads what the last iterations left."""
        if self.written_ahead is None or port.per > 1:
            return
        if iterations is None:
            raise NativeSlotErrors.UNKNOWN_LENGTH(**where)
        if self.ahead(port) <= iterations - 1 + self.written_ahead - self.generations:
            raise NativeSlotErrors.OVERWRITTEN(**where)


def _moves(grid: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of a grid."""
    moves: list[int] = []
    step = 1
    for extent in reversed(grid):
        moves.insert(0, step)
        step *= extent
    return tuple(moves)


def slots_of(ports: Iterable[tuple[ResolvedStage, BufferPort, bool]], offset: int, slot_bytes: int,
             *, private: bool) -> Slots:  # fmt: skip
    """The slots of a buffer.

    Args:
        ports: all that use it, with their stages, and whether they fill it.
    """
    per_iteration = 1
    lags, filled = [], []
    for stage, port, fills in ports:
        if stage.stage.when != "each":
            continue
        lags.append(port.lag)
        if fills:
            filled.append(port.lag)
        if port.per < stage.stage.trips:
            per_iteration = max(per_iteration, stage.stage.trips // port.per)
    reach = max(lags) - min(lags) if lags else 0
    ahead = max(filled) // per_iteration if filled else None
    return Slots(offset, slot_bytes, per_iteration, -(-reach // per_iteration) + 1, private, ahead)
