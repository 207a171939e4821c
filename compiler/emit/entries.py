"""Entry functions become schedule entries: control flow, scalars, launches, and the tensors they use."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch_mlir import ir

from sscc.compiler.emit.bodies import dtype_of
from sscc.compiler.emit.flow import Flow
from sscc.compiler.emit.kernels import BodyTable
from sscc.compiler.emit.layout import KernelLayout, copy_body
from sscc.compiler.emit.memory import Lifetime
from sscc.compiler.emit.windows import whole
from sscc.ir import schedule as sch
from sscc.ir.builders import STORED, Argument, arguments_of, results_of
from sscc.ir.choices import MAIN, RANK


@dataclass
class EmittedEntry:
    """An entry, the tensors that it names (address 0 until placed), and the lifetimes of its temporaries."""

    entry: sch.Entry
    tensors: dict[str, sch.Tensor]
    lifetimes: dict[str, Lifetime]


@dataclass
class EntryEmitter(Flow):
    """Emitter of one entry function. Results of kernels that are not updates in place become temporaries."""

    kernels: dict[str, KernelLayout] = field(default_factory=dict)
    bodies: BodyTable = field(default_factory=BodyTable)
    copies: dict[str, sch.Kernel] = field(default_factory=dict)
    tensors: dict[str, sch.Tensor] = field(default_factory=dict)
    launches: int = 0
    touched: dict[str, list[int]] = field(default_factory=dict)
    loops: list[tuple[int, int]] = field(default_factory=list)

    def emit(self) -> EmittedEntry:
        arguments = arguments_of(self.function)
        scalar_inputs = []
        for argument, value in zip(arguments, self.function.arguments, strict=True):
            if isinstance(argument.type, ir.RankedTensorType):
                self.windows[value] = self._declare(argument)
            else:
                self.scalars[value] = argument.name
                scalar_inputs.append(argument.name)
        *body, terminator = [op.operation for op in self.function.entry_block.operations]
        for op in body:
            self.operation(op)
        outputs, scalar_outputs = self._return(terminator)
        if RANK in self.scalars.values():
            scalar_inputs.append(RANK)
        entry = sch.Entry(
            self.function.name.value,
            tuple(name for name, tensor in self.tensors.items() if tensor.role == "input"),
            tuple(outputs),
            tuple(scalar_inputs),
            tuple(scalar_outputs),
            tuple(self.items[0]),
        )
        return EmittedEntry(entry, self.tensors, self._lifetimes())

    # --------------------------------------------------------------------------------------------- tensors

    def _declare(self, argument: Argument) -> sch.View:
        sources = argument.made_of if argument.role in STORED else ()
        stored = {"sources": sources, "encoding": argument.encoding, "cut": argument.cut}
        return self._tensor(argument.name, argument.type, argument.role, **stored)

    def _tensor(self, name: str, type_: ir.RankedTensorType, role: Any, **stored: Any) -> sch.View:
        self.tensors[name] = sch.Tensor(name, tuple(type_.shape), dtype_of(type_), role, MAIN, 0, **stored)
        return whole(name, type_.shape)

    def temporary(self, type_: ir.RankedTensorType) -> sch.View:
        name = f"{self.function.name.value}.t{sum(1 for t in self.tensors.values() if t.role == 'temporary')}"
        return self._tensor(name, type_, "temporary")

    def _launch(self, kernel: str, args: list[sch.View], scalars: list[sch.ScalarOperand]) -> None:
        self.items[-1].append(sch.Launch(kernel, tuple(args), tuple(scalars)))
        for view in args:
            self.touched.setdefault(view.tensor, []).append(self.launches)
        self.launches += 1

    def copy(self, source: sch.View, target: sch.View, type_: ir.RankedTensorType) -> None:
        body = copy_body(source.shape, dtype_of(type_))
        name = self.bodies.add(body)
        ports = tuple(sch.Port(whole(param.name, param.shape)) for param in body.params)
        pipeline = sch.Pipeline("copy", "i", 0, 1, (), (), (sch.Stage("copy", name, (), ports, (), ()),))
        self.copies[name] = sch.Kernel(name, body.params, (), (pipeline,))
        self._launch(name, [source, target], [])

    def block(self, block: ir.Block, targets: list[sch.View]) -> tuple[sch.Item, ...]:
        begin = self.launches
        items = super().block(block, targets)
        self.loops.append((begin, self.launches))
        return items

    def _lifetimes(self) -> dict[str, Lifetime]:
        """Return the first and last launch that use each temporary; one that enters a loop lives to the loop's end."""
        lifetimes = {}
        for name, tensor in self.tensors.items():
            if tensor.role != "temporary" or name not in self.touched:
                continue
            first, last = self.touched[name][0], self.touched[name][-1]
            for begin, end in self.loops:
                if first < begin <= last < end:
                    last = end - 1
            lifetimes[name] = Lifetime(tensor.nbytes, first, last)
        return lifetimes

    # --------------------------------------------------------------------------------------------- calls

    def work(self, op: ir.Operation) -> bool:
        if op.name == "shard.process_linear_index":
            self.scalars[op.results[0]] = RANK
            return True
        if op.name != "func.call":
            return False
        kernel = self.kernels[op.attributes["callee"].value]
        views, scalars = [], []
        for operand in op.operands:
            if isinstance(operand.type, ir.RankedTensorType):
                views.append(self.windows[operand])
            else:
                scalars.append(self.scalars[operand])
        for result, tied in zip(op.results, kernel.tied, strict=True):
            if tied is None:
                self.windows[result] = self.temporary(result.type)
                views.append(self.windows[result])
            else:
                self.check_dead(op, op.operands[tied])
                self.windows[result] = self.windows[op.operands[tied]]
        self._launch(kernel.name, views, scalars)
        return True

    def _return(self, terminator: ir.Operation) -> tuple[list[str], list[sch.ScalarOperand]]:
        outputs: list[str] = []
        scalar_outputs: list[sch.ScalarOperand] = []
        settled: list[tuple[ir.Value, sch.View]] = []
        for result, value in zip(results_of(self.function), terminator.operands, strict=True):
            if not isinstance(result.type, ir.RankedTensorType):
                scalar_outputs.append(self.scalars[value])
                continue
            if result.role == "output":
                outputs.append(result.name)
            if result.name not in self.tensors:
                self._tensor(result.name, result.type, result.role)
            target = whole(result.name, result.type.shape)
            if not self._renamed(value, target):
                settled.append((value, target))
        self.settle(terminator, settled)
        return outputs, scalar_outputs

    def _renamed(self, value: ir.Value, target: sch.View) -> bool:
        """Rename a temporary that is returned unchanged, so that it is the output itself."""
        view = self.windows[value]
        temporary = self.tensors[view.tensor]
        same_size = temporary.elements == self.tensors[target.tensor].elements
        as_it_lies = same_size and view == whole(view.tensor, view.shape)
        if temporary.role != "temporary" or not as_it_lies or target.tensor in self.touched:
            return False
        self.items[0] = [_renamed_item(item, view.tensor, target.tensor) for item in self.items[0]]
        del self.tensors[view.tensor], self.touched[view.tensor]
        for other, window in self.windows.items():
            if window.tensor == view.tensor:
                self.windows[other] = replace(window, tensor=target.tensor)
        self.windows[value] = target
        return True


def _renamed_item(item: sch.Item, old: str, new: str) -> sch.Item:
    """Return `item` with tensor `old` renamed to `new`."""
    if isinstance(item, sch.Launch):
        args = tuple(replace(view, tensor=new) if view.tensor == old else view for view in item.args)
        return replace(item, args=args)
    if isinstance(item, sch.For | sch.If):
        return replace(item, body=tuple(_renamed_item(inner, old, new) for inner in item.body))
    return item
