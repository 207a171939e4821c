"""Entries in which the weights of several layers become one stacked argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_mlir import ir

from sscc.ir.builders import STORED, Argument, arguments_of, extract_slice


class EntrySignature:
    """The arguments of an entry while some of them are replaced by stacks."""

    def __init__(self, entry: Any) -> None:
        self.entry = entry
        self.arguments = arguments_of(entry)
        self.attributes = list(entry.attributes["arg_attrs"])
        self.stacked: dict[str, ir.Value] = {}
        self.known: dict[ir.Value, Argument] = dict(zip(entry.arguments, self.arguments, strict=True))

    def argument(self, value: ir.Value) -> Argument:
        return self.known[value]

    def is_stored(self, value: ir.Value) -> bool:
        return isinstance(value.owner, ir.Block) and self.argument(value).role in STORED

    def stack(self, argument: Argument) -> ir.Value:
        """Return the value of a stacked argument, which is added to the entry if it is new."""
        if argument.name not in self.stacked:
            value = self.entry.entry_block.add_argument(argument.type, self.entry.location)
            self.arguments.append(argument)
            self.attributes.append(argument.attributes())
            self.stacked[argument.name] = value
            self.known[value] = argument
        return self.stacked[argument.name]

    def take_from_stacks(self, stacks: dict[tuple[str, ...], Argument]) -> None:
        """Replace a weight that is also used by itself with a slice of its stack, so that it is stored once."""
        layers = {name: (names, index) for names in stacks for index, name in enumerate(names)}
        for argument, value in list(zip(self.arguments, self.entry.arguments, strict=True)):
            if argument.name in layers and any(True for _ in value.uses) and argument.name not in self.stacked:
                names, index = layers[argument.name]
                stack = self.stack(stacks[names])
                with ir.InsertionPoint.at_block_begin(self.entry.entry_block), self.entry.location:
                    shape = list(stack.type.shape)
                    part = extract_slice(stack, [index] + [0] * (len(shape) - 1), [1, *shape[1:]], drop=1)
                value.replace_all_uses_with(part)

    def finish(self) -> None:
        """Remove unused weights, and update the function's type."""
        block = self.entry.entry_block
        for index in reversed(range(len(self.arguments))):
            if self.arguments[index].role in STORED and not any(True for _ in block.arguments[index].uses):
                block.erase_argument(index)
                del self.arguments[index], self.attributes[index]
        type_ = ir.FunctionType.get([a.type for a in self.arguments], list(self.entry.type.results))
        self.entry.attributes["function_type"] = ir.TypeAttr.get(type_)
        self.entry.attributes["arg_attrs"] = ir.ArrayAttr.get(self.attributes)


def stack_name(names: Sequence[str]) -> str:
    """Return the name of stacked weights: `model.layers.0-31.mlp.up_proj.weight` for those of 32 layers."""
    columns = list(zip(*(name.split(".") for name in names), strict=False))
    return ".".join(column[0] if len(set(column)) == 1 else _numbers(column) for column in columns)


def _numbers(column: Sequence[str]) -> str:
    if not all(part.isdigit() for part in column):
        return ",".join(column)
    numbers = [int(part) for part in column]
    step = numbers[1] - numbers[0]
    if step < 1 or numbers != list(range(numbers[0], numbers[-1] + 1, step)):
        return ",".join(column)
    return f"{numbers[0]}-{numbers[-1]}" + (f":{step}" if step > 1 else "")
