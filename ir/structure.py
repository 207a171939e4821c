"""Structural equality of functions: what they compute, names and locations left out."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from torch_mlir import ir


def structure(function: Any, without: Set[str] = frozenset()) -> str:
    """The function's type and body as text, with values numbered by their order inside the function.

    Two functions compute the same, operation by operation, exactly when their structures are equal.

    Args:
        function: a func.func.
        without: attributes of operations to leave out.
    """
    numbers: dict[ir.Value, int] = {}
    lines = [str(function.type)]
    _describe(function.operation, numbers, lines, without)
    return "\n".join(lines)


def describe(op: ir.Operation, operands: Mapping[ir.Value, str]) -> str:
    """What an operation computes, as text: two operations of equal text compute the same.

    Args:
        operands: what stands for each of the values from outside that it reads.
    """
    numbers: dict[ir.Value, Any] = dict(operands)
    lines = [_line(op, numbers, frozenset())]
    _describe(op, numbers, lines, frozenset())
    return "\n".join(lines)


def _line(op: ir.Operation, numbers: Mapping[ir.Value, Any], without: Set[str]) -> str:
    operands = [numbers[value] for value in op.operands]
    attributes = [f"{name}={op.attributes[name]}" for name in sorted(op.attributes) if name not in without]
    return f"{op.name} {operands} {attributes} {[str(result.type) for result in op.results]}"


def _describe(op: ir.Operation, numbers: dict[ir.Value, Any], lines: list[str], without: Set[str]) -> None:
    for region in op.regions:
        for block in region.blocks:
            for argument in block.arguments:
                numbers[argument] = len(numbers)
            for inner in block.operations:
                operation = inner.operation
                lines.append(_line(operation, numbers, without))
                for result in operation.results:
                    numbers[result] = len(numbers)
                _describe(operation, numbers, lines, without)
