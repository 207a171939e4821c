"""Compilation of operations to closures: an operation is read once, and its closure runs on the values of a frame many
times.

A function's values are in the slots of a frame. A value is a tensor that is never written to: an operation that changes
it creates a new one, so views are safe. A slot is emptied after the last operation that reads it, so that a long chain
of cache updates does not hold every version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch_mlir import ir

from sscc.compiler.interpret.types import Types
from sscc.ir.errors import CheckError, ErrorKind, UnsupportedError
from sscc.ir.locations import origin_of
from sscc.ir.opspec import Op, spec_of
from sscc.ir.rewriting import outer_values


class UndefinedKind(ErrorKind):
    """Base of the kinds of errors for operations that have no result on their operands. `undefined` raises them."""

    def __init__(self, message: str) -> None:
        super().__init__(CheckError, "{origin}'{op}' " + message)


class NotEvaluatedKind(ErrorKind):
    """Base of the kinds of errors for operations that the evaluator does not know. `refuse` raises them."""

    def __init__(self, message: str) -> None:
        super().__init__(UnsupportedError, "{origin}'{op}' " + message)


class NotEvaluatedErrors(NotEvaluatedKind):
    UNKNOWN_OPERATION = "is an operation that cannot be evaluated"

Frame = list[Any]  # slot -> Tensor, None for an empty slot
Fire = Callable[[Frame], None]
Handler = Callable[[ir.Operation, "Builder"], Fire]
Compute = Callable[..., torch.Tensor]  # operands -> the result
Several = Callable[..., Sequence[torch.Tensor]]  # operands -> results


class _Undefined(Exception):
    """An operation was run on operands for which it has no result."""

    def __init__(self, kind: UndefinedKind, fields: Mapping[str, Any]) -> None:
        super().__init__()
        self.kind, self.fields = kind, fields


def undefined(kind: UndefinedKind, **fields: Any) -> NoReturn:
    """End the evaluation with a CheckError of `kind`. `RunnableBlock` adds the running operation and its location."""
    raise _Undefined(kind, fields)


def refuse(op: ir.Operation, kind: NotEvaluatedKind, **fields: Any) -> NoReturn:
    """Raise UnsupportedError of `kind` about `op`."""
    raise kind(origin=origin_of(op), op=str(op.name), **fields)


@dataclass(frozen=True)
class _Step:
    fire: Fire
    released: tuple[int, ...]
    name: str
    location: ir.Location


@dataclass(frozen=True)
class RunnableBlock:
    """A block's operations, ready to run on a frame that holds its arguments."""

    steps: tuple[_Step, ...]
    returned: tuple[int, ...]
    cleared: tuple[int, ...]

    def __call__(self, frame: Frame) -> list[torch.Tensor]:
        """Run the operations and return the operands of the terminator. Raises CheckError, see `undefined`."""
        for step in self.steps:
            try:
                step.fire(frame)
            except _Undefined as error:
                raise error.kind(origin=origin_of(step), op=step.name, **error.fields) from None
            for slot in step.released:
                frame[slot] = None
        values = [frame[slot] for slot in self.returned]
        for slot in self.cleared:
            frame[slot] = None
        return values


@dataclass(frozen=True)
class RunnableFunction:
    """A func.func, ready to be called."""

    arguments: tuple[int, ...]
    body: RunnableBlock
    slots: int

    def __call__(self, *values: torch.Tensor) -> list[torch.Tensor]:
        frame: Frame = [None] * self.slots
        for slot, value in zip(self.arguments, values, strict=True):
            frame[slot] = value
        return self.body(frame)


class Builder:
    """Compiles the operations of one function to closures.

    Attributes:
        loops: slots with the indices of the enclosing linalg operation, one per dimension; () outside of one.
    """

    def __init__(
        self,
        types: Types,
        operations: Mapping[str, Handler],
        functions: Callable[[str], RunnableFunction],
    ) -> None:
        self.types = types
        self.loops: tuple[int, ...] = ()
        self.function = functions
        self._operations = operations
        self._slots: dict[ir.Value, int] = {}
        self._count = 0

    def build(self, function: Any) -> RunnableFunction:
        """Return the function, ready to be called. Raises UnsupportedError for an unknown operation."""
        arguments = self.slots(function.arguments)
        body = self.block(function.entry_block)
        return RunnableFunction(arguments, body, self._count)

    def slot(self, value: ir.Value) -> int:
        if value not in self._slots:
            self._slots[value] = self.fresh()
        return self._slots[value]

    def slots(self, values: Iterable[ir.Value]) -> tuple[int, ...]:
        return tuple(self.slot(value) for value in values)

    def fresh(self) -> int:
        """Return a slot that belongs to no value of the IR."""
        self._count += 1
        return self._count - 1

    def block(
        self, block: ir.Block, *, returned: Sequence[ir.Value] | None = None, without: Sequence[ir.Operation] = ()
    ) -> RunnableBlock:
        """Return the operations of `block` except the terminator and those in `without`.

        Args:
            returned: values that the block returns instead of its terminator's operands.
        """
        *body, terminator = [op.operation for op in block.operations]
        body = [op for op in body if op not in without]
        outputs = self.slots(terminator.operands if returned is None else returned)
        own = set(self.slots([*block.arguments, *(result for op in body for result in op.results)]))
        released = self._released(body, own - set(outputs))
        steps = [
            _Step(self._fire(op), tuple(slots), str(op.name), op.location)
            for op, slots in zip(body, released, strict=True)
        ]
        return RunnableBlock(tuple(steps), outputs, tuple(own & set(outputs)))

    def _released(self, body: Sequence[ir.Operation], candidates: set[int]) -> list[list[int]]:
        """Return, for each operation, the slots among `candidates` that no later operation reads."""
        last: dict[int, int] = {}
        for index, op in enumerate(body):
            for value in (*op.results, *outer_values(op)):
                last[self.slot(value)] = index
        released: list[list[int]] = [[] for _ in body]
        for slot in candidates & last.keys():
            released[last[slot]].append(slot)
        return released

    def _fire(self, op: ir.Operation) -> Fire:
        handler = self._operations.get(op.name)
        if handler is None:
            refuse(op, NotEvaluatedErrors.UNKNOWN_OPERATION)
        return handler(op, self)


def single(prepare: Callable[[ir.Operation, Builder], Compute]) -> Handler:
    """Return the handler of an operation with one result; `prepare` returns the function of its operands' values."""

    def handler(op: ir.Operation, builder: Builder) -> Fire:
        compute = prepare(op, builder)
        operands, result = builder.slots(op.operands), builder.slot(op.results[0])

        def fire(frame: Frame) -> None:
            frame[result] = compute(*[frame[slot] for slot in operands])

        return fire

    return handler


def several(prepare: Callable[[ir.Operation, Builder], Several]) -> Handler:
    """Return the handler of an operation with any number of results, otherwise as `single`."""

    def handler(op: ir.Operation, builder: Builder) -> Fire:
        compute = prepare(op, builder)
        operands, results = builder.slots(op.operands), builder.slots(op.results)

        def fire(frame: Frame) -> None:
            values = compute(*[frame[slot] for slot in operands])
            for slot, value in zip(results, values, strict=True):
                frame[slot] = value

        return fire

    return handler


def handler_of(record: type[Op], prepare: Callable[[ir.Operation, Builder], Any]) -> Handler:
    """Return the handler of an operation of the algorithm, `single` or `several` by its results."""
    return single(prepare) if len(spec_of(record).results) == 1 else several(prepare)
