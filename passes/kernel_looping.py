"""kernel-looping: a run of calls of the same kernels becomes one call of a looped kernel.

What: consecutive calls of one kernel, or of a repeating sequence of kernels (A, B, A, B), become one call of a kernel
that loops over the layers. Every parameter is classified by how its values vary over the run:

* invariant: the same value in every call; passed once;
* indexed scalar: constants; computed from the loop's index, or looked up in a table if they are not equally spaced.
  Layer budgets are always looked up, so that a schedule shows the budgets of all layers;
* layer-indexed read: a weight of each layer; one stacked argument [N, ..], iteration i reads slice i;
* layer-indexed in/out: a slice of a state at base + i * stride, put back at the same place; the state is passed once;
* carried: a result of call i that call i + 1 reads; it stays on the chip, double-buffered;
* carried in memory: the same, for a value that is updated in place in memory (prefill's hidden states and scratch).

Why: between two calls the machine drains its pipelines, launches and refills, and its memory idles. In one looped
kernel the weights of layer i + 1 stream in while layer i computes.

Before::

    func.func private @layer(%h: tensor<2x8xf32> {sscc.input = "hidden"}, %w: tensor<8xf32> {sscc.weight = "w.0"})
        -> (tensor<2x8xf32> {sscc.output = "hidden"}) attributes {sscc.kernel} {
      %e = tensor.empty() : tensor<2x8xf32>
      %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>,
          affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
          ins(%h, %w : tensor<2x8xf32>, tensor<8xf32>) outs(%e : tensor<2x8xf32>) {
        ^bb0(%a: f32, %b: f32, %o: f32):
        %m = arith.mulf %a, %b : f32
        linalg.yield %m : f32
      } -> tensor<2x8xf32>
      return %y : tensor<2x8xf32>
    }
    func.func public @decode(%h: tensor<2x8xf32> {sscc.input = "h"}, %w0: tensor<8xf32> {sscc.weight = "w.0"},
        %w1: tensor<8xf32> {sscc.weight = "w.1"}) -> (tensor<2x8xf32> {sscc.output = "logits"}) {
      %0 = func.call @layer(%h, %w0) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
      %1 = func.call @layer(%0, %w1) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
      return %1 : tensor<2x8xf32>
    }

After::

    func.func public @decode(%h: .. "h"}, %w: tensor<2x8xf32> {sscc.sources = ["w.0", "w.1"], sscc.weight = "w.0-1"}) ..
      %1 = call @layer.x2(%h, %w) ..
      return %1 : tensor<2x8xf32>
    }
    func.func private @layer.x2(%h: tensor<2x8xf32> {sscc.class = "carried", sscc.state = "hidden"}, ..
      %zero = arith.constant 0 : index
      %n = arith.constant 2 : index
      %one = arith.constant 1 : index
      %y = scf.for %i = %zero to %n step %one iter_args(%hi = %h) -> (tensor<2x8xf32>) {
        %wi = tensor.extract_slice %w[%i, 0] [1, 8] [1, 1] : tensor<2x8xf32> to tensor<8xf32>
        %e = tensor.empty() : tensor<2x8xf32>
        %yi = linalg.generic .. ins(%hi, %wi : ..
        ..
        scf.yield %yi : tensor<2x8xf32>
      } {df.carried = array<i64: 0>}
      return %y : tensor<2x8xf32>
    }

When it does not apply: a run is unchanged if one of its values has none of these classes (a result that a later call or
the caller reads, two layers that share a slice of a state, slices that are not equally spaced). The module's
`sscc.looping` lists the runs that were looped, and the reasons why others were not. A single call is not looped.

Preserves: results, bit for bit.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, func, scf

from sscc.ir.builders import (
    Argument,
    arguments_of,
    extract_slice,
    index_constant,
    insert_slice,
    make_function,
    results_of,
    table_entry,
    tensor_type,
)
from sscc.ir.dialects import df
from sscc.ir.levels import add_looping, get_target, walk
from sscc.ir.looping import Looping
from sscc.ir.rewriting import ValueMap, clone_all, functions, is_rematerialised
from sscc.ir.sharding import Cut
from sscc.passes.base import Pass, count
from sscc.passes.build_entries import entries
from sscc.passes.outline_kernels import KERNEL
from sscc.passes.runs import CARRIED, IN_MEMORY, INDEXED, INOUT, INVARIANT, READ, Formal, NotLooped, Plan, find_runs
from sscc.passes.stacked_weights import EntrySignature, stack_name

CLASS = "sscc.class"


@dataclass(frozen=True)
class KernelLooping(Pass):
    name: ClassVar[str] = "kernel-looping"
    takes: ClassVar[tuple[str, ...]] = ("kernels", "looped")
    follows: ClassVar[tuple[str, ...]] = ("merge-equal-kernels",)
    level: ClassVar[str] = "looped"

    def run(self, module: ir.Module) -> None:
        kernels = {f.name.value: f for f in functions(module) if KERNEL in f.attributes}
        capacity = int(get_target(module).nearest.capacity.value)
        signatures = [EntrySignature(entry) for entry in entries(module)]
        stacks: dict[tuple[str, ...], Argument] = {}
        for signature in signatures:
            name = signature.entry.name.value
            calls = [op.operation for op in signature.entry.entry_block.operations if op.operation.name == "func.call"]
            for run in find_runs(calls):
                kernel = "+".join(call.attributes["callee"].value for call in run.period)
                layers, reason = len(run.calls), ""
                try:
                    plan = Plan(run, kernels, signature, capacity)
                except NotLooped as error:
                    reason = str(error)
                    count("runs refused")
                else:
                    _loop(module, plan, kernels, signature, stacks)
                    count("runs looped")
                    count("calls replaced", layers)
                add_looping(module, Looping(name, kernel, layers, reason))
        count("stacked weights", len(stacks))
        for signature in signatures:
            signature.take_from_stacks(stacks)
            signature.finish()
        called = {op.attributes["callee"].value for op in walk(module) if op.name == "func.call"}
        for name, kernel in kernels.items():
            if name not in called:
                kernel.operation.erase()


# ---------------------------------------------------------------------------------------------------------- the loop


def _loop(
    module: ir.Module,
    plan: Plan,
    kernels: dict[str, Any],
    signature: EntrySignature,
    stacks: dict[tuple[str, ...], Argument],
) -> None:
    """Create the looped kernel of a plan, and replace the run by a call of it."""
    maker = _Maker(plan, signature, stacks)
    kernel = maker.kernel(module, kernels)
    kernels[kernel.name.value] = kernel
    last = plan.run.calls[-1]
    with ir.InsertionPoint(last), last.location:
        results = [result.type for result in results_of(kernel)]
        call = func.CallOp(results, kernel.name.value, maker.operands())
    loop_results = list(call.results)
    calls = plan.run.calls
    for (index, number), value in zip(maker.finals(), loop_results, strict=False):
        plan.run.column(index)[-1].results[number].replace_all_uses_except(value, list(calls))
    for state, value in zip(maker.written(), loop_results[len(maker.finals()) :], strict=True):
        maker.last_version(state).replace_all_uses_with(value)
    _erase_run(plan)


def _erase_run(plan: Plan) -> None:
    """Erase the run, operations that only it used, and operations that only used it."""
    block = plan.run.calls[0].block
    ops = [op.operation for op in block.operations]
    for op in reversed(ops):
        views = op.name in ("tensor.insert_slice", "tensor.extract_slice") or is_rematerialised(op)
        if (views or op in plan.position) and not any(True for result in op.results for _ in result.uses):
            op.erase()


class _Maker:
    """Builder of the looped kernel: its parameters in order, and its body."""

    def __init__(self, plan: Plan, signature: EntrySignature, stacks: dict[tuple[str, ...], Argument]) -> None:
        self.plan, self.signature, self.stacks = plan, signature, stacks
        self.parameters: dict[Any, tuple[Argument, str, ir.Value]] = {}
        self.offsets: dict[tuple[int, int], ir.Value] = {}  # equal offsets are one value
        self.tables: dict[tuple[int, ...], ir.Value] = {}
        for formal in plan.carried():
            kind = CARRIED if plan.on_chip[plan.carried().index(formal)] else IN_MEMORY
            self._parameter(("carried", formal.source), formal.values[0], kind)
        for state in plan.states():
            self._parameter(("state", state), state, INOUT)
        for index, row in enumerate(plan.formals):
            for number, formal in enumerate(row):
                if formal.kind == INVARIANT:
                    self._parameter(("invariant", formal.values[0]), formal.values[0], INVARIANT, (index, number))
                elif formal.kind == READ:
                    self._stacked(formal)

    def _parameter(self, key: Any, value: ir.Value, kind: str, formal: tuple[int, int] | None = None) -> None:
        if key not in self.parameters:
            self.parameters[key] = (self._argument(key, value, formal), kind, value)

    def _argument(self, key: Any, value: ir.Value, formal: tuple[int, int] | None) -> Argument:
        if key[0] == "carried":
            result = results_of(self.plan.callees[key[1][0]])[key[1][1]]
            return Argument("state", result.name, value.type)
        if key[0] == "state" and isinstance(value.owner, ir.Block):
            return self.signature.argument(value)
        if formal is not None:
            return arguments_of(self.plan.callees[formal[0]])[formal[1]]
        return Argument("state", f"state.{len(self.parameters)}", value.type)

    def _stacked(self, formal: Formal) -> None:
        arguments = [self.signature.argument(value) for value in formal.values]
        names = tuple(argument.name for argument in arguments)
        if names not in self.stacks:
            first = arguments[0]
            type_ = tensor_type([len(names), *first.type.shape], first.type.element_type)
            sources = tuple(source for argument in arguments for source in argument.made_of)
            cut = str(Cut.parse(first.cut).of_stack()) if first.cut else ""
            self.stacks[names] = Argument(first.role, stack_name(names), type_, sources, first.encoding, cut)
        stack = self.stacks[names]
        self.parameters.setdefault(("read", names), (stack, READ, self.signature.stack(stack)))

    def operands(self) -> list[ir.Value]:
        return [value for _, _, value in self.parameters.values()]

    def finals(self) -> list[tuple[int, int]]:
        """Results that the loop carries out, which may be read after the run."""
        return [formal.source for formal in self.plan.carried()]

    def written(self) -> list[ir.Value]:
        return [state for state, written in self.plan.states().items() if written]

    def last_version(self, state: ir.Value) -> ir.Value:
        """Return the value of a state after the run's insertions."""
        version = state
        for op in self.plan.run.calls[0].block.operations:
            operation = op.operation
            inserts = operation.name == "tensor.insert_slice" and operation.operands[1] == version
            if inserts and self.plan.origin_in_run(operation.operands[0]) is not None:
                version = operation.results[0]
        return version

    # -------------------------------------------------------------------------------------------------- the kernel

    def kernel(self, module: ir.Module, taken: Container[str]) -> Any:
        """Return the kernel, under a name that is not among those `taken`: two runs may have the same kernel and
        length."""
        plan = self.plan
        finals, written = self.finals(), self.written()
        parameters = (argument for argument, _, _ in self.parameters.values())
        arguments = [Argument(argument.role, argument.name, argument.type) for argument in parameters]
        results = [results_of(plan.callees[index])[number] for index, number in finals]
        results += [self.parameters["state", state][0] for state in written]
        base = "+".join(callee.name.value for callee in plan.callees) + f".x{plan.run.count}"
        name, number = base, 0
        while name in taken:
            number += 1
            name = f"{base}.{number}"
        location = plan.run.calls[0].location
        kernel = make_function(module, name, arguments, results, location, {KERNEL: ir.UnitAttr.get()})
        classes = [kind for _, kind, _ in self.parameters.values()]
        kernel.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [
                ir.DictAttr.get({**{e.name: e.attr for e in attributes}, CLASS: ir.StringAttr.get(kind)})
                for attributes, kind in zip(kernel.attributes["arg_attrs"], classes, strict=True)
            ]
        )
        self.values = dict(zip(self.parameters, kernel.arguments, strict=True))
        with ir.InsertionPoint(kernel.entry_block), location:
            inits = [self.values["carried", source] for source in finals]
            inits += [self.values["state", state] for state in written]
            loop = scf.ForOp(index_constant(0), index_constant(plan.run.count), index_constant(1), inits)
            on_chip = [index for index, chip in enumerate(plan.on_chip) if chip]
            if on_chip:
                loop.operation.attributes[df.CARRIED] = ir.DenseI64ArrayAttr.get(on_chip)
            with ir.InsertionPoint(loop.body):
                scf.YieldOp(self._iteration(loop, finals, written))
            func.ReturnOp(list(loop.results))
        return kernel

    def _iteration(self, loop: Any, finals: list[tuple[int, int]], written: list[ir.Value]) -> list[ir.Value]:
        index = loop.induction_variable
        inner = list(loop.inner_iter_args)
        carried = dict(zip(finals, inner, strict=False))
        states = {state: self.values["state", state] for state in self.plan.states()}
        states |= dict(zip(written, inner[len(finals) :], strict=True))
        results: dict[tuple[int, int], ir.Value] = {}
        for number, callee in enumerate(self.plan.callees):
            operands = [self._operand(formal, index, carried, states, results) for formal in self.plan.formals[number]]
            for position, value in enumerate(_inline(callee, operands)):
                results[number, position] = value
                put = self.plan.puts[number][position]
                if put is not None:
                    offsets = [self._affine(index, put.base, put.stride)] + [0] * (states[put.state].type.rank - 1)
                    states[put.state] = insert_slice(value, states[put.state], offsets)
        return [*(results[final] for final in finals), *(states[state] for state in written)]

    def _operand(
        self,
        formal: Formal,
        index: ir.Value,
        carried: dict[tuple[int, int], ir.Value],
        states: dict[ir.Value, ir.Value],
        results: dict[tuple[int, int], ir.Value],
    ) -> ir.Value:
        if formal.kind == INVARIANT:
            return self.values["invariant", formal.values[0]]
        if formal.kind == INDEXED:
            return self._number(index, formal)
        if formal.kind == CARRIED:
            return carried[formal.source]
        if formal.kind == READ:
            names = tuple(self.signature.argument(value).name for value in formal.values)
            return _layer(self.values["read", names], index)
        if formal.slice is not None:
            offset = self._affine(index, formal.slice.base, formal.slice.stride)
            return _layer(states[formal.slice.state], offset)
        return results[formal.source]

    def _number(self, index: ir.Value, formal: Formal) -> ir.Value:
        """Return an indexed scalar, built at the loop's top level."""
        numbers = formal.numbers
        base, stride = numbers[0], numbers[1] - numbers[0]
        if not formal.tabled and all(number == base + stride * place for place, number in enumerate(numbers)):
            return self._affine(index, base, stride)
        if numbers not in self.tables:
            self.tables[numbers] = table_entry(numbers, index)
        return self.tables[numbers]

    def _affine(self, index: ir.Value, base: int, stride: int) -> ir.Value:
        """Return base + index * stride, built at the loop's top level."""
        if (base, stride) not in self.offsets:
            scaled = index if stride == 1 else arith.MulIOp(index, index_constant(stride)).result
            self.offsets[base, stride] = scaled if base == 0 else arith.AddIOp(scaled, index_constant(base)).result
        return self.offsets[base, stride]


def _layer(stacked: ir.Value, offset: ir.Value) -> ir.Value:
    shape = list(stacked.type.shape)
    return extract_slice(stacked, [offset] + [0] * (len(shape) - 1), [1, *shape[1:]], drop=1)


def _inline(function: Any, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """Clone a function's body at the insertion point. Return its results."""
    values: ValueMap = dict(zip(function.arguments, operands, strict=True))
    *body, terminator = [op.operation for op in function.entry_block.operations]
    clone_all(body, values)
    return [values[value] for value in terminator.operands]
