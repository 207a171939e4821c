"""How a step of a body becomes native code: phases, each of independent units that the threads divide among them.

A step is lowered to one or more phases, run one after the other with a barrier between. A phase has `units` pieces of
work of about the same size, numbered 0 .. units - 1. A generated function computes any range [begin, end) of them; the
result of a unit must not depend on the range that it was called in, so that the number of threads never changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from sscc.runtime.backends.cpu.codegen.figures import ROW_BLOCK
from sscc.runtime.backends.cpu.codegen.mlir import Function, Value


@dataclass(frozen=True)
class Operand:
    """A parameter, local or window as generated code sees it: element (i0, i1, ..) lies at
    ``pointer + size * sum(i * stride)``, strides in elements.

    `dtype` is the schedule's: f32, bf16, i64, i1 (one byte, 0 or 1), i8.
    """

    pointer: Value
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Stream:
    """What the next stage reads from memory, from the first byte to the last. A phase that waits for arithmetic may ask
    for it meanwhile, each of its units for as large a part as the unit is of the phase."""

    pointer: Value
    nbytes: int


@dataclass(frozen=True)
class Context:
    """What a phase's emitter gets.

    Attributes:
        f: the function to emit into; the caller ends it.
        operands: by the names that the step uses.
        scalars: scalar parameters of the body, i64, by name.
        begin, end: the units to compute.
        private: scratch of this thread, 64-byte aligned, undefined at the start of a call.
        shared: scratch that all threads see, 64-byte aligned, kept between the phases of a step.
        stream: what may be asked for.
    """

    f: Function
    operands: dict[str, Operand]
    scalars: dict[str, Value]
    begin: Value
    end: Value
    private: Value
    shared: Value
    stream: Stream | None = None


@dataclass(frozen=True)
class Phase:
    """One phase of a step.

    Attributes:
        units: pieces of work; 1 is serial.
        emit: emits the code for units [begin, end).
        private_bytes: scratch that a thread needs.
    """

    units: int
    emit: Callable[[Context], None]
    private_bytes: int = 0


@dataclass(frozen=True)
class Lowered:
    """A step as phases, and the scratch that they share."""

    phases: Sequence[Phase]
    shared_bytes: int = 0


@contextmanager
def units(context: Context, *extents: int) -> Iterator[list[Value]]:
    """A loop over the context's units, which number the places of a grid: the indices of a place, outermost first."""
    with context.f.loop(context.begin, context.end) as loop:
        outer, inner = loop.index, []
        for extent in reversed(extents[1:]):
            outer, index = outer // extent, outer % extent
            inner.append(index)
        yield [outer, *reversed(inner)]


def row_phase(places: Sequence[int], rows: int, emit: Callable[[Context, list[Value], Value], None]) -> Phase:
    """A phase over the rows of each place of a grid, in units of (place, `ROW_BLOCK` rows).

    Args:
        emit: emits what is done for a row, given the indices of its place and its number.
    """
    blocks = -(-rows // ROW_BLOCK)

    def emit_units(context: Context) -> None:
        f = context.f
        with units(context, *places, blocks) as (*place, block):
            first = block * ROW_BLOCK
            with f.loop(first, f.min(first + ROW_BLOCK, rows)) as row:
                emit(context, place, row.index)

    return Phase(prod(places) * blocks, emit_units)
