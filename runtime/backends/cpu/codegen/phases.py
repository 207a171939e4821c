"""Native code for a step of a body: phases, whose independent units are divided among the threads.

A step is lowered to one or more phases, which run one after the other with a barrier between them. A phase has `units`
pieces of work of about the same size, numbered 0 .. units - 1. A generated function computes any range [begin, end) of
them. The result of a unit must not depend on that range, so that the number of threads never changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
