"""The plan of native execution: control flow and function calls of a thread team, as data for the C++ core
(native/plan.cpp).

Registers hold 64-bit integers. Every thread has its own registers and executes the same control flow, so threads agree
on it without communication; only runs (`PlanRun`) are divided among threads, by units. A `Barrier` must separate a run
that writes memory from a run that reads it.

The file form is a sequence of little-endian 64-bit words. A name is its length in bytes, then UTF-8 padded with zeros
to whole words; a list is its length, then its items.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Union, get_args

from sscc.ir.errors import ErrorKind, InternalError
from sscc.runtime.support.scalars import SCALAR_OPS

Kind = Literal["external", "arena", "private", "outbox", "inbox"]
Mode = Literal["split", "replicated", "serial"]

MAGIC = int.from_bytes(b"sscc-pln", "little")
VERSION = 2
MEMORY = "memory"
"""Name of the region with the program's tensors, except weights and constants, at the schedule's addresses."""
NOTE_BYTES = 64
"""Size in bytes of the notes at the start of scratch memory, in which a function records the data that it keeps
there."""
KINDS: tuple[Kind, ...] = get_args(Kind)
MODES: tuple[Mode, ...] = get_args(Mode)
OPS = tuple("add sub mul floordiv ceildiv mod min max eq ne lt le gt ge and or select lookup".split())
"""Scalar operations; the position in this tuple is the number in the file form."""


class NativePlanErrors(ErrorKind):
    BEYOND_64_BITS = InternalError, "a plan holds a number that does not fit in 64 bits: {cause}"
    NOT_READABLE = InternalError, "a plan cannot be read: {cause}"
    OPERATION = InternalError, "a plan cannot compute {op!r} of {arguments} arguments"


class Code(IntEnum):
    """First word of an item in the file form."""

    COMPUTE = 0
    LOOP = 1
    BRANCH = 2
    EXECUTE = 3
    BARRIER = 4
    MEET = 5


@dataclass(frozen=True)
class PlanRegion:
    """Memory that arguments point into.

    Attributes:
        kind: external memory is provided at load time and only read; the arena is allocated by the core and shared by
            all threads; private memory exists once per thread. Arena and private regions are zeroed at the start, and
            64-byte aligned. In a program of several ranks, the outbox is the window that a rank publishes at the next
            `Meet`, and the inbox consists of the windows that all ranks published at the latest one, in order of rank.
    """

    name: str
    kind: Kind
    nbytes: int


@dataclass(frozen=True)
class PlanArgument:
    """A pointer: base of the region + offset + sum(register * coefficient), in bytes.

    The `extent` bytes from the pointer on must lie in the region, which is checked for every pointer.
    """

    region: int
    offset: int
    extent: int
    terms: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class PlanRun:
    """One phase of one stage: a function that is called for every firing of the grid.

    A function is ``void f(void** arguments, const int64_t* scalars, int64_t begin, int64_t end, void* scratch)``. The
    calls of a run with mode "split", whose firings do not read each other's results, keep the contents of scratch
    memory. Its first `NOTE_BYTES` are zero in a thread's first call, and in each call of other modes; a function may
    record there which data it keeps. All other bytes are then undefined.

    Attributes:
        function: index into the plan's functions.
        mode: "split": thread t of T computes the units from total * t // T up to total * (t + 1) // T, in as few calls
            as firings allow; "replicated": every thread computes all units; "serial": thread 0 computes all units.
        units: units of a firing.
        grid: (register, trips), row-major; () is one firing. The registers hold the firing's indices during its calls,
            and are 0 after the run.
        scalars: registers whose values are passed to the function.
        label: index into the plan's labels.
    """

    function: int
    mode: Mode
    units: int
    grid: tuple[tuple[int, int], ...]
    arguments: tuple[PlanArgument, ...]
    scalars: tuple[int, ...]
    label: int


@dataclass(frozen=True)
class Compute:
    """``target = op(arguments)``, a scalar operation on registers (runtime/support/scalars.py).

    The arguments of a lookup are the index, the first register of the table, and the number of its registers.
    """

    op: str
    target: int
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class PlanLoop:
    """``for register in range(lower, upper)``; the bounds are registers, read once."""

    register: int
    lower: int
    upper: int
    body: tuple[Item, ...]


@dataclass(frozen=True)
class Branch:
    """The body is executed if the register is not 0."""

    register: int
    body: tuple[Item, ...]


@dataclass(frozen=True)
class Execute:
    """Execution of a run, by its index."""

    run: int


@dataclass(frozen=True)
class Barrier:
    """A barrier of all threads."""


@dataclass(frozen=True)
class Meet:
    """A meeting of all ranks with all their threads. Afterwards the first `nbytes` of their outboxes are in the inbox,
    and each rank uses its other outbox until the next meeting."""

    nbytes: int


Item = Union[Compute, PlanLoop, Branch, Execute, Barrier, Meet]


@dataclass(frozen=True)
class PlanEntry:
    """An entry that a caller can run.

    Attributes:
        inputs: registers that are set to the caller's scalars.
        outputs: registers whose values are returned.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    body: tuple[Item, ...]


@dataclass(frozen=True)
class NativePlan:
    """All data that the core needs, except addresses.

    Attributes:
        functions: names of the generated functions.
        labels: names of stages, for timing and hooks.
        constants: (register, value); all other registers are 0 at the start of an entry.
        registers: number of registers.
        scratch_bytes: size of a thread's scratch memory, sufficient for every function.
    """

    regions: tuple[PlanRegion, ...]
    functions: tuple[str, ...]
    labels: tuple[str, ...]
    runs: tuple[PlanRun, ...]
    constants: tuple[tuple[int, int], ...]
    registers: int
    scratch_bytes: int
    entries: tuple[PlanEntry, ...]

    def encode(self) -> bytes:
        """Return the file form. Raises InternalError for a number that is no 64-bit integer, or an unknown
        operation."""
        writer = _Writer()
        writer.plan(self)
        try:
            return struct.pack(f"<{len(writer.words)}q", *writer.words)
        except struct.error as error:
            raise NativePlanErrors.BEYOND_64_BITS(cause=str(error)) from None


def decode_plan(data: bytes) -> NativePlan:
    """Return the plan from its file form (`NativePlan.encode`). Raises InternalError for invalid bytes."""
    reader = _Reader(data)
    try:
        return reader.plan()
    except (StopIteration, IndexError, ValueError, UnicodeDecodeError) as error:
        raise NativePlanErrors.NOT_READABLE(cause=repr(error)) from None


def count_arguments(op: str) -> int:
    """Return the number of arguments of an operation in a `Compute`."""
    return 3 if op == "lookup" else SCALAR_OPS[op][0]


class _Writer:
    def __init__(self) -> None:
        self.words: list[int] = []

    def plan(self, plan: NativePlan) -> None:
        self.words += [MAGIC, VERSION, plan.registers, plan.scratch_bytes]
        self.count(plan.regions)
        for region in plan.regions:
            self.name(region.name)
            self.words += [KINDS.index(region.kind), region.nbytes]
        for names in (plan.functions, plan.labels):
            self.count(names)
            for name in names:
                self.name(name)
        self.pairs(plan.constants)
        self.count(plan.runs)
        for run in plan.runs:
            self.run(run)
        self.count(plan.entries)
        for entry in plan.entries:
            self.name(entry.name)
            self.numbers(entry.inputs)
            self.numbers(entry.outputs)
            self.body(entry.body)

    def run(self, run: PlanRun) -> None:
        self.words += [run.function, MODES.index(run.mode), run.units, run.label]
        self.pairs(run.grid)
        self.count(run.arguments)
        for argument in run.arguments:
            self.words += [argument.region, argument.offset, argument.extent]
            self.pairs(argument.terms)
        self.numbers(run.scalars)

    def body(self, items: Sequence[Item]) -> None:
        self.count(items)
        for item in items:
            match item:
                case Compute():
                    self.compute(item)
                case PlanLoop():
                    self.words += [Code.LOOP, item.register, item.lower, item.upper]
                    self.body(item.body)
                case Branch():
                    self.words += [Code.BRANCH, item.register]
                    self.body(item.body)
                case Execute():
                    self.words += [Code.EXECUTE, item.run]
                case Barrier():
                    self.words.append(Code.BARRIER)
                case Meet():
                    self.words += [Code.MEET, item.nbytes]

    def compute(self, item: Compute) -> None:
        if item.op not in OPS or len(item.arguments) != count_arguments(item.op):
            raise NativePlanErrors.OPERATION(op=item.op, arguments=len(item.arguments))
        self.words += [Code.COMPUTE, OPS.index(item.op), item.target, *item.arguments]

    def count(self, items: Sequence[object]) -> None:
        self.words.append(len(items))

    def numbers(self, numbers: Sequence[int]) -> None:
        self.count(numbers)
        self.words += numbers

    def pairs(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.count(pairs)
        for pair in pairs:
            self.words += pair

    def name(self, name: str) -> None:
        data = name.encode()
        padded = data + bytes(-len(data) % 8)
        self.words.append(len(data))
        self.words += struct.unpack(f"<{len(padded) // 8}q", padded)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._words: Iterator[int] = iter(struct.unpack(f"<{len(data) // 8}q", data))

    def word(self) -> int:
        return next(self._words)

    def plan(self) -> NativePlan:
        if (self.word(), self.word()) != (MAGIC, VERSION):
            raise ValueError("not a plan of this version")
        registers, scratch = self.word(), self.word()
        regions = tuple(PlanRegion(self.name(), KINDS[self.word()], self.word()) for _ in range(self.word()))
        functions, labels = (tuple(self.name() for _ in range(self.word())) for _ in range(2))
        constants = self.pairs()
        runs = tuple(self.run() for _ in range(self.word()))
        entries = tuple(
            PlanEntry(self.name(), self.numbers(), self.numbers(), self.body()) for _ in range(self.word())
        )
        return NativePlan(regions, functions, labels, runs, constants, registers, scratch, entries)

    def run(self) -> PlanRun:
        function, mode, units, label = (self.word() for _ in range(4))
        grid = self.pairs()
        arguments = tuple(
            PlanArgument(self.word(), self.word(), self.word(), self.pairs()) for _ in range(self.word())
        )
        return PlanRun(function, MODES[mode], units, grid, arguments, self.numbers(), label)

    def body(self) -> tuple[Item, ...]:
        return tuple(self.item() for _ in range(self.word()))

    def item(self) -> Item:
        match Code(self.word()):
            case Code.COMPUTE:
                op, target = OPS[self.word()], self.word()
                return Compute(op, target, tuple(self.word() for _ in range(count_arguments(op))))
            case Code.LOOP:
                return PlanLoop(self.word(), self.word(), self.word(), self.body())
            case Code.BRANCH:
                return Branch(self.word(), self.body())
            case Code.EXECUTE:
                return Execute(self.word())
            case Code.BARRIER:
                return Barrier()
            case Code.MEET:
                return Meet(self.word())

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.word() for _ in range(self.word()))

    def pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple((self.word(), self.word()) for _ in range(self.word()))

    def name(self) -> str:
        size = self.word()
        words = [self.word() for _ in range(-(-size // 8))]
        return struct.pack(f"<{len(words)}q", *words)[:size].decode()
