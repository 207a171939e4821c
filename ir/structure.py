"""Structural equality of functions: their computation, without names and locations."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from torch_mlir import ir


def structure(function: Any, without: Set[str] = frozenset()) -> str:
    """Return the function's type and body as text, with values numbered by their order inside the function.

    Two functions have equal structures exactly if they compute the same, operation by operation.

    Args:
        function: a func.func.
        without: attributes of operations to leave out.
    """
    numbers: dict[ir.Value, int] = {}
    lines = [str(function.type)]
    _describe(function.operation, numbers, lines, without, _Texts())
    return "\n".join(lines)


def describe(op: ir.Operation, operands: Mapping[ir.Value, str]) -> str:
    """Return the computation of an operation as text. Operations with equal texts compute the same.

    Args:
        operands: text that stands for each value that it reads from outside.
    """
    numbers: dict[ir.Value, Any] = dict(operands)
    texts = _Texts()
    lines = [_line(op, numbers, frozenset(), texts)]
    _describe(op, numbers, lines, frozenset(), texts)
    return "\n".join(lines)


class _Texts(dict[Any, str]):
    """A cache of attributes and types as text: most of them occur many times in a function."""

    def __missing__(self, item: Any) -> str:
        text = self[item] = str(item)
        return text


def _line(op: ir.Operation, numbers: Mapping[ir.Value, Any], without: Set[str], texts: _Texts) -> str:
    operands = [numbers[value] for value in op.operands]
    attributes = [f"{name}={texts[value]}" for name, value in sorted(op.attributes.items()) if name not in without]
    return f"{op.name} {operands} {attributes} {[texts[result.type] for result in op.results]}"


def _describe(
    op: ir.Operation, numbers: dict[ir.Value, Any], lines: list[str], without: Set[str], texts: _Texts
) -> None:
    for region in op.regions:
        for block in region.blocks:
            for argument in block.arguments:
                numbers[argument] = len(numbers)
            for inner in block.operations:
                operation = inner.operation
                lines.append(_line(operation, numbers, without, texts))
                for result in operation.results:
                    numbers[result] = len(numbers)
                if operation.regions:
                    _describe(operation, numbers, lines, without, texts)
