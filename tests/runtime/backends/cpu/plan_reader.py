"""Reads the file form of a plan back, as the core in C++ does, so that tests see what it sees."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

from sscc.ir.errors import SsccError
from sscc.runtime.backends.cpu.plan.plan import (
    KINDS,
    MAGIC,
    MODES,
    OPS,
    VERSION,
    Barrier,
    Branch,
    Code,
    Compute,
    Execute,
    Item,
    Meet,
    NativePlan,
    PlanArgument,
    PlanEntry,
    PlanLoop,
    PlanRegion,
    PlanRun,
    count_arguments,
)
from sscc.runtime.support.native_errors import NativeErrors

T = TypeVar("T")
DEPTH = 64
"""Loops and branches that the core takes inside each other, at most."""


def malformed(reason: str) -> SsccError:
    """Return the error of the kind that the core raises."""
    return NativeErrors.PLAN_MALFORMED(place="the file", reason=reason)


def decode_plan(data: bytes) -> NativePlan:
    """Return the plan in a file.

    Raises:
        InputError: the file is truncated, too long, or not a plan. The core checks the values.
    """
    return _Reader(data).plan()


class _Reader:
    def __init__(self, data: bytes) -> None:
        if len(data) % 8:
            raise malformed(f"its size of {len(data)} bytes is not a multiple of the word size")
        self._words: tuple[int, ...] = struct.unpack(f"<{len(data) // 8}q", data)
        self._next = 0

    def plan(self) -> NativePlan:
        if self.word() != MAGIC:
            raise malformed("it does not have the magic number of a plan")
        if (version := self.word()) != VERSION:
            raise malformed(f"it has version {version}, but only version {VERSION} is supported")
        registers, scratch_bytes = self.word(), self.word()
        plan = NativePlan(
            regions=self.items(lambda: PlanRegion(self.name(), self.choice(KINDS), self.word())),
            functions=self.items(self.name),
            labels=self.items(self.name),
            constants=self.items(self.pair),
            runs=self.items(self.run),
            entries=self.items(lambda: PlanEntry(self.name(), self.numbers(), self.numbers(), self.body(0))),
            registers=registers,
            scratch_bytes=scratch_bytes,
        )
        if self._next != len(self._words):
            raise malformed(f"{len(self._words) - self._next} extra words at its end")
        return plan

    def run(self) -> PlanRun:
        function, mode, units, label = self.word(), self.choice(MODES), self.word(), self.word()
        grid, arguments = self.items(self.pair), self.items(self.argument)
        return PlanRun(function, mode, units, grid, arguments, self.numbers(), label)

    def argument(self) -> PlanArgument:
        return PlanArgument(self.word(), self.word(), self.word(), self.items(self.pair))

    def body(self, depth: int) -> tuple[Item, ...]:
        if depth > DEPTH:
            raise malformed(f"loops and branches are nested deeper than {DEPTH} levels")
        return self.items(lambda: self.item(depth))

    def item(self, depth: int) -> Item:
        match self.word():
            case Code.COMPUTE:
                op = self.choice(OPS)
                return Compute(op, self.word(), tuple(self.word() for _ in range(count_arguments(op))))
            case Code.LOOP:
                return PlanLoop(self.word(), self.word(), self.word(), self.body(depth + 1))
            case Code.BRANCH:
                return Branch(self.word(), self.body(depth + 1))
            case Code.EXECUTE:
                return Execute(self.word())
            case Code.BARRIER:
                return Barrier()
            case Code.MEET:
                return Meet(self.word())
            case code:
                raise malformed(f"no item has the code {code}")

    def word(self) -> int:
        if self._next >= len(self._words):
            raise malformed("it is truncated")
        self._next += 1
        return self._words[self._next - 1]

    def choice(self, choices: Sequence[T]) -> T:
        code = self.word()
        if not 0 <= code < len(choices):
            raise malformed(f"{code} stands for none of {', '.join(map(str, choices))}")
        return choices[code]

    def count(self) -> int:
        count = self.word()
        if not 0 <= count <= len(self._words) - self._next:
            raise malformed(f"a list of {count} items is too long")
        return count

    def items(self, read: Callable[[], T]) -> tuple[T, ...]:
        return tuple(read() for _ in range(self.count()))

    def numbers(self) -> tuple[int, ...]:
        return self.items(self.word)

    def pair(self) -> tuple[int, int]:
        return self.word(), self.word()

    def name(self) -> str:
        length = self.word()
        words = -(-length // 8)
        if not 0 <= words <= len(self._words) - self._next:
            raise malformed(f"a name has an invalid length of {length} bytes")
        data = struct.pack(f"<{words}q", *self._words[self._next : self._next + words])
        self._next += words
        try:
            return data[:length].decode()
        except UnicodeDecodeError:
            raise malformed("a name that is not UTF-8") from None
