"""Slots of a pipeline's buffers: their places in memory, and the slot that each firing uses.

A schedule numbers the slots of a buffer across all iterations, and `depth` is the number that the modelled machine
keeps. Memory is not scarce on a CPU: a buffer has a slot for each write of an iteration (together a *generation*), and
enough generations for the largest distance between writer and reader. An example with two slots per iteration, whose
reader is two iterations behind its writer (lag 0 and lag 4)::

    generation      0                 1                 2
    slot        | 0  ·  1 |       | 2  ·  3 |       | 4  ·  5 |

    iteration 0     read              .                 filled
    iteration 1     filled            read              .
    iteration 2     .                 filled            read

A port's generation in an iteration is (iteration + lag / slots per iteration) mod generations, held in a register if
there are several. Within a generation the slot follows from the firing's place in the grid.
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
    """Slot that a port uses.

    Attributes:
        number: number of the slot in its generation; in the buffer if `ahead` is None.
        ahead: distance in iterations from the current generation to the slot's generation; None if the slot is the same
            in all iterations.
        moves: slots by which a step along each axis of the grid advances; empty if all firings share a slot.
    """

    number: int = 0
    ahead: int | None = None
    moves: tuple[int, ...] = ()


@dataclass(frozen=True)
class Slots:
    """Memory of a buffer: `generations` times `per_iteration` slots.

    Attributes:
        offset: offset of the first slot in bytes, in the workspace or, if `private`, in each thread's private memory.
        slot_bytes: size of a slot.
        per_iteration: number of slots that an iteration fills.
        generations: number of generations.
        private: True if each thread has its own copy.
        written_ahead: distance in iterations to the latest generation that an iteration fills; None if only stages
            outside the loop fill slots.
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
        """Return the distance in iterations from the current generation to the generation of a port."""
        return port.lag // self.per_iteration

    def place(self, stage: ResolvedStage, port: BufferPort, iterations: int | None, pipeline: str) -> SlotPlace:
        """Return the slot that a port of a stage uses.

        Args:
            iterations: number of the pipeline's iterations; None if it is known only at run time.
            pipeline: name of the pipeline for errors.

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
        """Check that an epilogue reads a slot that the last iterations have not overwritten."""
        if self.written_ahead is None or port.per > 1:
            return
        if iterations is None:
            raise NativeSlotErrors.UNKNOWN_LENGTH(**where)
        if self.ahead(port) <= iterations - 1 + self.written_ahead - self.generations:
            raise NativeSlotErrors.OVERWRITTEN(**where)


def _moves(grid: Sequence[int]) -> tuple[int, ...]:
    """Return the row-major strides of a grid."""
    moves: list[int] = []
    step = 1
    for extent in reversed(grid):
        moves.insert(0, step)
        step *= extent
    return tuple(moves)


def slots_of(ports: Iterable[tuple[ResolvedStage, BufferPort, bool]], offset: int, slot_bytes: int,
             *, private: bool) -> Slots:  # fmt: skip
    """Return the slots of a buffer.

    Args:
        ports: all ports of the buffer, each with its stage and True if it fills the buffer.
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
