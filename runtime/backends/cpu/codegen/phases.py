"""Native code for a step of a body: phases, whose independent units are divided among the threads.

A step is lowered to one or more phases, which run one after the other with a barrier between them. A phase has `units`
pieces of work of about the same size, numbered 0 .. units - 1. A generated function computes any range [begin, end) of
them. The result of a unit must not depend on that range, so that the number of threads never changes a bit.
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
    """A parameter, local or window in generated code: element (i0, i1, ..) is at ``pointer + size * sum(i * stride)``,
    with strides in elements.

    `dtype` is the schedule's: f32, bf16, i64, i1 (one byte, 0 or 1), i8.
    """

    pointer: Value
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Stream:
    """The data that the next stage reads from memory, from the first byte to the last. A phase that is limited by
    arithmetic may prefetch it, each unit a part proportional to its share of the phase."""

    pointer: Value
    nbytes: int


@dataclass(frozen=True)
class Context:
    """The arguments of a phase's emitter.

    Attributes:
        f: function to emit into; the caller ends it.
        operands: operands by the names that the step uses.
        scalars: scalar parameters of the body, i64, by name.
        begin, end: range of units to compute.
        private: scratch of this thread, 64-byte aligned, undefined at the start of a call.
        shared: scratch that all threads see, 64-byte aligned, kept between the phases of a step.
        stream: data that may be prefetched.
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
        units: number of pieces of work; 1 is serial.
        emit: function that emits the code for units [begin, end).
        private_bytes: scratch that a thread needs.
    """

    units: int
    emit: Callable[[Context], None]
    private_bytes: int = 0


@dataclass(frozen=True)
class Lowered:
    """A step as phases, with the scratch that they share."""

    phases: Sequence[Phase]
    shared_bytes: int = 0


@contextmanager
def units(context: Context, *extents: int) -> Iterator[list[Value]]:
    """Open a loop over the context's units, which number the places of a grid. Yields the indices of a place, outermost
    first."""
    with context.f.loop(context.begin, context.end) as loop:
        outer, inner = loop.index, []
        for extent in reversed(extents[1:]):
            outer, index = outer // extent, outer % extent
            inner.append(index)
        yield [outer, *reversed(inner)]


def row_phase(places: Sequence[int], rows: int, emit: Callable[[Context, list[Value], Value], None]) -> Phase:
    """A phase over the rows of each place of a grid, in units of (place, `ROW_BLOCK` rows).

    Args:
        emit: emits the code for a row, given the indices of its place and its number.
    """
    blocks = -(-rows // ROW_BLOCK)

    def emit_units(context: Context) -> None:
        f = context.f
        with units(context, *places, blocks) as (*place, block):
            first = block * ROW_BLOCK
            with f.loop(first, f.min(first + ROW_BLOCK, rows)) as row:
                emit(context, place, row.index)

    return Phase(prod(places) * blocks, emit_units)
