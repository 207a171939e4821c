"""Modules of one entry, changed at random: an operand, an extra reader, an operation left out or replaced."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import func, linalg, tensor

from sscc.ir.builders import Argument, arguments_of, results_of
from sscc.ir.rewriting import functions, is_rematerialised

FLOATS = ("f32", "bf16")


class Edits:
    """Random changes to the operations of one function of a module. Every change leaves a module that verifies, or
    raises ir.MLIRError later; what it computes is another matter.

    Args:
        function: whose operations change; what is read additionally is returned as further outputs.
    """

    def __init__(self, function: Any, draw: random.Random) -> None:
        self.function, self.draw = function, draw

    def change(self) -> str:
        """One change, in words; "" where the drawn kind has no place here."""
        kinds = (self.other_operand, self.other_operand, self.extra_reader, self.left_out, self.replaced, self.moved)
        return self.draw.choice(kinds)()

    @property
    def _block(self) -> Any:
        return self.function.entry_block

    @property
    def _ops(self) -> list[ir.Operation]:
        """The operations that may change: no constants, not the return."""
        ops = [op.operation for op in self._block.operations][:-1]
        return [op for op in ops if not is_rematerialised(op) and op.results]

    def _before(self, op: ir.Operation, type_: ir.Type) -> list[ir.Value]:
        """Values of a type that are defined before `op`."""
        values = [value for value in self._block.arguments if value.type == type_]
        for other in self._block.operations:
            if other.operation == op:
                break
            values += [value for value in other.operation.results if value.type == type_]
        return values

    def other_operand(self) -> str:
        """An operation reads another value of the same type."""
        op = self.draw.choice(self._ops)
        index = self.draw.randrange(len(op.operands))
        others = [value for value in self._before(op, op.operands[index].type) if value != op.operands[index]]
        if not others or is_rematerialised_value(op.operands[index]):
            return ""
        op.operands[index] = self.draw.choice(others)
        return f"operand {index} of {op.name}"

    def extra_reader(self) -> str:
        """A value is also read by an operation whose result is returned."""
        op = self.draw.choice(self._ops)
        values = [value for value in op.results if _is_float(value)]
        if not values:
            return ""
        value = self.draw.choice(values)
        later = [other.operation for other in self._block.operations if op.is_before_in_block(other.operation)]
        with ir.InsertionPoint(self.draw.choice(later)), op.location:
            read = _unary(value)
        self._return([read])
        return f"{op.name} has another reader"

    def left_out(self) -> str:
        """Replace an operation's result in its readers by one of its operands, or another value of the type."""
        op = self.draw.choice(self._ops)
        result = self.draw.choice(list(op.results))
        others = self._before(op, result.type)
        if not others:
            return ""
        own = [value for value in op.operands if value.type == result.type]
        result.replace_all_uses_with(self.draw.choice(own or others))
        self._sweep()
        return f"{op.name} left out"

    def replaced(self) -> str:
        """Something element-wise stands between an operation and what reads it."""
        op = self.draw.choice(self._ops)
        values = [value for value in op.results if _is_float(value)]
        if not values:
            return ""
        value = self.draw.choice(values)
        after = [other.operation for other in self._block.operations if op.is_before_in_block(other.operation)]
        with ir.InsertionPoint(after[0]), op.location:
            changed = _unary(value)
        value.replace_all_uses_except(changed, [changed.owner.operation])
        return f"{op.name} changed element by element"

    def moved(self) -> str:
        """An operation stands later, where its readers allow it."""
        op = self.draw.choice(self._ops)
        later = [other.operation for other in self._block.operations if op.is_before_in_block(other.operation)]
        readers = {use.owner.operation for result in op.results for use in result.uses}
        limit = next((index for index, other in enumerate(later) if other in readers), len(later) - 1)
        if limit < 1:
            return ""
        op.move_before(later[self.draw.randint(1, limit)])
        return f"{op.name} later"

    def _return(self, values: Sequence[ir.Value]) -> None:
        """Returns `values` too, as outputs."""
        terminator = list(self._block.operations)[-1].operation
        returned = [*terminator.operands, *values]
        known = results_of(self.function)
        names = [f"extra{len(known) + index}" for index in range(len(values))]
        with ir.InsertionPoint(terminator), terminator.location:
            func.ReturnOp(returned)
        terminator.erase()
        inputs = [argument.type for argument in self._block.arguments]
        type_ = ir.FunctionType.get(inputs, [value.type for value in returned])
        self.function.attributes["function_type"] = ir.TypeAttr.get(type_)
        added = [Argument("output", name, value.type) for name, value in zip(names, values, strict=True)]
        described = [argument.attributes() for argument in (*known, *added)]
        self.function.attributes["res_attrs"] = ir.ArrayAttr.get(described)

    def _sweep(self) -> None:
        """Erases what nobody reads any more."""
        for op in reversed(self._ops):
            if not any(True for result in op.results for _ in result.uses):
                op.erase()


def is_rematerialised_value(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and is_rematerialised(value.owner.operation)


def _is_float(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and str(value.type.element_type) in FLOATS


def _unary(value: ir.Value) -> ir.Value:
    """Insert tanh of a tensor at the current insertion point. It is bounded, so that a chain stays finite."""
    empty = tensor.EmptyOp(list(value.type.shape), value.type.element_type).result
    result: ir.Value = linalg.tanh(value, outs=[empty])
    return result


def with_entry(module: ir.Module, kernel: str, entry: str) -> None:
    """Adds the public entry that calls a private function once, with its arguments and results."""
    function = next(f for f in functions(module) if f.name.value == kernel)
    arguments, results = arguments_of(function), results_of(function)
    text = ", ".join(f"%{a.name}: {a.type} {a.attributes()}" for a in arguments)
    result_types = ", ".join(f"{r.type} {r.attributes()}" for r in results)
    passed, types = ", ".join(f"%{a.name}" for a in arguments), ", ".join(str(a.type) for a in arguments)
    returned, kinds = ", ".join(f"%r#{index}" for index in range(len(results))), ", ".join(str(r.type) for r in results)
    if len(results) == 1:
        returned = "%r"
    many = f":{len(results)}" if len(results) > 1 else ""
    source = (
        f"func.func public @{entry}({text}) -> ({result_types}) {{\n"
        f"  %r{many} = func.call @{kernel}({passed}) : ({types}) -> ({kinds})\n  return {returned} : {kinds}\n}}"
    )
    declaration = f"module {{ {source}\n {_declared(function, types, kinds)} }}"
    other = ir.Module.parse(declaration)
    clone = next(f for f in functions(other) if f.name.value == entry).operation.clone()
    module.body.append(clone)


def _declared(function: Any, types: str, kinds: str) -> str:
    return f"func.func private @{function.name.value}({types}) -> ({kinds})"
