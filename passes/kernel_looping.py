"""kernel-looping: a run of calls of the same kernels becomes one call of a looped kernel.

What: consecutive calls of one kernel, or of a repeating sequence of kernels (A, B, A, B), become one call of a kernel
that loops over the layers. Every parameter is classified by how its values vary over the run:

* invariant: the same value in every call; passed once;
* indexed scalar: constants base + i * stride; computed from the loop's index;
* layer-indexed read: a weight of each layer; one stacked argument [N, ..], iteration i reads slice i;
* layer-indexed in/out: a slice of a state at base + i * stride, put back at the same place; the state is passed once;
* carried: a result of call i that call i + 1 takes; it stays on the chip, double-buffered;
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

When it does not apply: a value that is none of these (a result that a later call or the caller reads, two layers
that share a slice of a state, constants that do not form a progression) leaves its run as it was; the module's
`sscc.looping` says which runs were looped, and why others were not. A single call is not looped.

Preserves: results, bit for bit.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, func, scf

from sscc.ir.builders import (
    SOURCES,
    STORED,
    Argument,
    arguments_of,
    extract_slice,
    index_constant,
    insert_slice,
    make_function,
    results_of,
    tensor_type,
)
from sscc.ir.dialects import df, kv
from sscc.ir.levels import Looping, add_looping, get_machine, walk
from sscc.ir.rewriting import ValueMap, clone_all, functions, is_rematerialised, producer
from sscc.ir.views import bytes_of
from sscc.passes.base import Pass, count
from sscc.passes.build_entries import entries
from sscc.passes.outline_kernels import KERNEL

CLASS = "sscc.class"
INVARIANT, INDEXED, READ, INOUT, CARRIED, IN_MEMORY = (
    "invariant",
    "indexed scalar",
    "layer-indexed read",
    "layer-indexed in/out",
    "carried",
    "carried in memory",
)


@dataclass(frozen=True)
class KernelLooping(Pass):
    name: ClassVar[str] = "kernel-looping"
    level: ClassVar[str] = "looped"

    def run(self, module: ir.Module) -> None:
        kernels = {f.name.value: f for f in functions(module) if KERNEL in f.attributes}
        capacity = int(get_machine(module).sram_bytes)
        signatures = [_Signature(entry) for entry in entries(module)]
        stacks: dict[tuple[str, ...], Argument] = {}
        for signature in signatures:
            name = signature.entry.name.value
            calls = [op.operation for op in signature.entry.entry_block.operations if op.operation.name == "func.call"]
            for run in find_runs(calls):
                kernel = "+".join(call.attributes["callee"].value for call in run.period)
                layers, reason = len(run.calls), ""
                try:
                    plan = _Plan(run, kernels, signature, capacity)
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


class NotLooped(Exception):
    """Why a run stays as it is."""


# -------------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Run:
    """`count` repetitions of a sequence of kernels: calls in order, `len(period)` per repetition."""

    calls: tuple[ir.Operation, ...]
    count: int

    @property
    def period(self) -> tuple[ir.Operation, ...]:
        return self.calls[: len(self.calls) // self.count]

    def column(self, index: int) -> list[ir.Operation]:
        """Call `index` of every repetition."""
        return list(self.calls[index :: len(self.period)])


def find_runs(calls: Sequence[ir.Operation]) -> list[Run]:
    """Maximal repetitions, from the first call on: the longest, of the shortest period."""
    names = [call.attributes["callee"].value for call in calls]
    runs = []
    start = 0
    while start < len(calls):
        period, count = _longest_repetition(names, start)
        if count > 1:
            runs.append(Run(tuple(calls[start : start + period * count]), count))
        start += period * count
    return runs


def _longest_repetition(names: Sequence[str], start: int) -> tuple[int, int]:
    """(period, repetitions) of the longest repetition at `start`; (1, 1) where nothing repeats."""
    best = (1, 1)
    for period in range(1, (len(names) - start) // 2 + 1):
        count = 1
        while names[start + count * period : start + (count + 1) * period] == names[start : start + period]:
            count += 1
        if count > 1 and period * count > best[0] * best[1]:
            best = (period, count)
    return best


# ---------------------------------------------------------------------------------------------------- classification


@dataclass(frozen=True)
class _Slice:
    """A slice of a stacked state: which state, and its first and next offset along axis 0."""

    state: ir.Value
    base: int
    stride: int


@dataclass(frozen=True)
class _Formal:
    """What a parameter of call `index` of the period gets: its class, and by class

    * invariant: `values` is one value;
    * indexed scalar: `base` and `stride`;
    * layer-indexed read: `values` has a weight per repetition;
    * layer-indexed in/out: `slice`;
    * carried: `source` is the (call of the period, result) of the repetition before, `values` what the first one
      gets; "" as class: `source` of the same repetition.
    """

    kind: str
    values: tuple[ir.Value, ...] = ()
    base: int = 0
    stride: int = 0
    slice: _Slice | None = None
    source: tuple[int, int] = (0, 0)


class _Plan:
    """How a run is looped: a class for every parameter, and where every result goes.

    Raises NotLooped.
    """

    def __init__(self, run: Run, kernels: dict[str, Any], signature: _Signature, capacity: int) -> None:
        self.run, self.signature = run, signature
        self.callees = [kernels[call.attributes["callee"].value] for call in run.period]
        self.position = {call: divmod(index, len(run.period)) for index, call in enumerate(run.calls)}
        self.slots: dict[tuple[ir.Value, int], tuple[int, int]] = {}
        period = list(enumerate(run.period))
        self.formals = [[self._formal(index, n) for n in range(len(call.operands))] for index, call in period]
        self.puts = [[self._put(index, n) for n in range(len(call.results))] for index, call in period]
        self._check_whole_states()
        self._check_results()
        self.on_chip = self._on_chip(capacity)

    def carried(self) -> list[_Formal]:
        """The carried parameters, each source once."""
        found = {formal.source: formal for row in self.formals for formal in row if formal.kind == CARRIED}
        return list(found.values())

    def states(self) -> dict[ir.Value, bool]:
        """The stacked states whose slices the run uses, and whether it writes them."""
        used = {f.slice.state: False for row in self.formals for f in row if f.slice is not None}
        return used | {put.state: True for row in self.puts for put in row if put is not None}

    # ----------------------------------------------------------------------------------------------- parameters

    def _formal(self, index: int, number: int) -> _Formal:
        actuals = tuple(call.operands[number] for call in self.run.column(index))
        made = [self.made_in_run(value) for value in actuals]
        if made[0] is None and len(set(actuals)) == 1:
            return _Formal(INVARIANT, actuals[:1])
        same, before = _common_source(made), _common_source(made[1:])
        if same is not None:
            return _Formal("", source=same)
        if made[0] is None and before is not None:
            return _Formal(CARRIED, actuals[:1], source=before)
        if any(m is not None for m in made):
            raise NotLooped(f"{self._name(index, number)} takes results of other calls than the one before")
        numbers = [_constant(value) for value in actuals]
        if all(n is not None for n in numbers):
            base, stride = _progression([n for n in numbers if n is not None], self._name(index, number))
            return _Formal(INDEXED, base=base, stride=stride)
        if all(self.signature.is_stored(value) for value in actuals):
            return _Formal(READ, actuals)
        return _Formal(INOUT, slice=self._slice(index, number, actuals))

    def made_in_run(self, value: ir.Value) -> tuple[int, int, int] | None:
        """(repetition, call of the period, result) that makes `value`; None for others."""
        source = producer(value)
        if source is None or source not in self.position:
            return None
        return (*self.position[source], list(source.results).index(value))

    def _slice(self, index: int, number: int, actuals: Sequence[ir.Value]) -> _Slice:
        what = self._name(index, number)
        sources = [producer(value) for value in actuals]
        offsets, states = [], set()
        for source in sources:
            if source is None or source.name != "tensor.extract_slice" or len(source.operands) != 1:
                raise NotLooped(f"{what} differs from call to call, and is no slice of one state")
            offsets.append(_layer_offset(source, what))
            states.add(self._root(source.operands[0]))
        if len(states) != 1:
            raise NotLooped(f"{what} is a slice of different states")
        state = states.pop()
        self._claim(state, offsets, index, what)
        return _Slice(state, *_progression(offsets, what))

    def _claim(self, state: ir.Value, offsets: Sequence[int], index: int, what: str) -> None:
        """No two layers may share a slice: what one writes, another would read."""
        for offset in offsets:
            owner = self.slots.setdefault((state, offset), (offsets.index(offset), index))
            if owner != (offsets.index(offset), index) or list(offsets).count(offset) > 1:
                raise NotLooped(f"{what}: two layers share slice {offset} of a state")

    def _root(self, value: ir.Value) -> ir.Value:
        """The state before the run of which `value` is a version."""
        source = producer(value)
        while source is not None and source.name == "tensor.insert_slice" and self.made_in_run(source.operands[0]):
            value = source.operands[1]
            source = producer(value)
        return value

    def _name(self, index: int, number: int) -> str:
        argument = arguments_of(self.callees[index])[number]
        return f"parameter {argument.name!r} of {self.callees[index].name.value}"

    # -------------------------------------------------------------------------------------------------- results

    def _put(self, index: int, number: int) -> _Slice | None:
        """The slices of a state that result `number` of call `index` is inserted into; None for other results."""
        inserts = [self._insertion(call.results[number]) for call in self.run.column(index)]
        if all(insert is None for insert in inserts):
            return None
        what = f"result {number} of {self.callees[index].name.value}"
        if any(insert is None for insert in inserts):
            raise NotLooped(f"{what} is not stored by every call")
        found = [insert for insert in inserts if insert is not None]
        states = {self._root(insert.operands[1]) for insert in found}
        if len(states) != 1:
            raise NotLooped(f"{what} goes to different states")
        offsets = [_layer_offset(insert, what) for insert in found]
        state = states.pop()
        self._claim(state, offsets, index, what)
        return _Slice(state, *_progression(offsets, what))

    def _insertion(self, value: ir.Value) -> ir.Operation | None:
        users = [use.owner.operation for use in value.uses]
        found = [user for user in users if user.name == "tensor.insert_slice" and user.operands[0] == value]
        return found[0] if len(found) == 1 and len(users) == 1 else None

    def _check_whole_states(self) -> None:
        """Refuses a parameter that is all of a state of which the run writes slices: the loop would change it."""
        written = {put.state for row in self.puts for put in row if put is not None}
        for index, row in enumerate(self.formals):
            for number, formal in enumerate(row):
                if formal.kind == INVARIANT and formal.values[0] in written:
                    raise NotLooped(f"{self._name(index, number)} is all of a state that the run writes")

    def _check_results(self) -> None:
        """Refuses results that are read after the run, other than what the last repetition hands on or stores."""
        carried = {formal.source for formal in self.carried()}
        for index, row in enumerate(self.puts):
            for number, put in enumerate(row):
                if put is None:
                    self._check_uses(index, number, (index, number) in carried)

    def _check_uses(self, index: int, number: int, carried: bool) -> None:
        name = self.callees[index].name.value
        for repetition, call in enumerate(self.run.column(index)):
            outside = any(use.owner.operation not in self.position for use in call.results[number].uses)
            if outside and repetition < self.run.count - 1:
                raise NotLooped(f"result {number} of call {repetition} of {name} is read outside of the run")
            if outside and not carried:
                raise NotLooped(f"result {number} of {name} is read after the run and is not carried")

    def _on_chip(self, capacity: int) -> list[bool]:
        """Per carried value, whether it stays on the chip; values updated in place stay in memory."""
        placed = []
        for formal in self.carried():
            index, number = formal.source
            returned = list(self.callees[index].entry_block.operations)[-1].operation.operands[number]
            placed.append(isinstance(formal.values[0].type, ir.RankedTensorType) and not _in_place(returned))
        needed = sum(2 * bytes_of(f.values[0]) for f, chip in zip(self.carried(), placed, strict=True) if chip)
        if needed > capacity:
            raise NotLooped(f"carried values, double-buffered, need {needed} bytes of SRAM, the machine has {capacity}")
        return placed


def _layer_offset(op: ir.Operation, what: str) -> int:
    """The offset along axis 0 of a slice or an insertion that takes one whole layer."""
    offsets, sizes = list(op.attributes["static_offsets"]), list(op.attributes["static_sizes"])
    whole = list(op.operands[1 if op.name == "tensor.insert_slice" else 0].type.shape)
    if any(offsets[1:]) or sizes != [1, *whole[1:]] or offsets[0] < 0:
        raise NotLooped(f"{what} is not one layer of its state")
    return int(offsets[0])


def _common_source(made: Sequence[tuple[int, int, int] | None]) -> tuple[int, int] | None:
    """(call, result) if item i is that result of that call of repetition i, for all items."""
    sources = {item[1:] for item in made if item is not None}
    steady = all(item is not None and item[0] == index for index, item in enumerate(made))
    return sources.pop() if steady and len(sources) == 1 else None


def _in_place(value: ir.Value) -> bool:
    """Whether a returned value is an argument of its function, updated in place."""
    while True:
        source = producer(value)
        if source is None:
            return True
        if source.name == "tensor.insert_slice":
            value = source.operands[1]
        elif source.name == "scf.for":
            value = source.operands[3 + list(source.results).index(value)]
        elif source.name == "scf.if":
            last = list(source.regions[1].blocks[0].operations)[-1].operation
            value = last.operands[list(source.results).index(value)]
        elif source.name in kv.UPDATES:
            value = source.operands[kv.UPDATES[source.name][list(source.results).index(value)]]
        else:
            return False


def _constant(value: ir.Value) -> int | None:
    source = producer(value)
    if source is None or source.name != "arith.constant" or not isinstance(value.type, ir.IndexType):
        return None
    return int(source.attributes["value"].value)


def _progression(numbers: Sequence[int], what: str) -> tuple[int, int]:
    """(first, step) of numbers that are equally spaced."""
    steps = {after - before for before, after in pairwise(numbers)}
    if len(steps) != 1:
        raise NotLooped(f"{what} takes {list(numbers)}, which is no arithmetic progression")
    return numbers[0], steps.pop()


# -------------------------------------------------------------------------------------------- signatures and weights


class _Signature:
    """An entry's arguments, some of which are being replaced by stacks."""

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

    def stack(self, names: tuple[str, ...], argument: Argument) -> ir.Value:
        """The value of a stacked argument, added to the entry where it is new."""
        if argument.name not in self.stacked:
            value = self.entry.entry_block.add_argument(argument.type, self.entry.location)
            sources = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in names])
            role = {f"sscc.{argument.role}": ir.StringAttr.get(argument.name)}
            self.arguments.append(argument)
            self.attributes.append(ir.DictAttr.get({**role, SOURCES: sources}))
            self.stacked[argument.name] = value
            self.known[value] = argument
        return self.stacked[argument.name]

    def take_from_stacks(self, stacks: dict[tuple[str, ...], Argument]) -> None:
        """What is still used by itself and also in a stack is taken from there: no weight is stored twice."""
        layers = {name: (names, index) for names in stacks for index, name in enumerate(names)}
        for argument, value in list(zip(self.arguments, self.entry.arguments, strict=True)):
            if argument.name in layers and any(True for _ in value.uses) and argument.name not in self.stacked:
                names, index = layers[argument.name]
                stack = self.stack(names, stacks[names])
                with ir.InsertionPoint.at_block_begin(self.entry.entry_block), self.entry.location:
                    shape = list(stack.type.shape)
                    part = extract_slice(stack, [index] + [0] * (len(shape) - 1), [1, *shape[1:]], drop=1)
                value.replace_all_uses_with(part)

    def finish(self) -> None:
        """Drops the weights that nobody uses any more, and writes the function's type."""
        block = self.entry.entry_block
        for index in reversed(range(len(self.arguments))):
            if self.arguments[index].role in STORED and not any(True for _ in block.arguments[index].uses):
                block.erase_argument(index)
                del self.arguments[index], self.attributes[index]
        type_ = ir.FunctionType.get([a.type for a in self.arguments], list(self.entry.type.results))
        self.entry.attributes["function_type"] = ir.TypeAttr.get(type_)
        self.entry.attributes["arg_attrs"] = ir.ArrayAttr.get(self.attributes)


def stack_name(names: Sequence[str]) -> str:
    """`model.layers.0-31.mlp.up_proj.weight` for the weights of 32 layers."""
    columns = list(zip(*(name.split(".") for name in names), strict=False))
    return ".".join(column[0] if len(set(column)) == 1 else _numbers(column) for column in columns)


def _numbers(column: Sequence[str]) -> str:
    if not all(part.isdigit() for part in column):
        return ",".join(column)
    numbers = [int(part) for part in column]
    step = numbers[1] - numbers[0]
    if numbers != list(range(numbers[0], numbers[-1] + 1, step or 1)):
        return ",".join(column)
    return f"{numbers[0]}-{numbers[-1]}" + (f":{step}" if step > 1 else "")


# ---------------------------------------------------------------------------------------------------------- the loop


def _loop(
    module: ir.Module,
    plan: _Plan,
    kernels: dict[str, Any],
    signature: _Signature,
    stacks: dict[tuple[str, ...], Argument],
) -> None:
    """Makes the looped kernel of a plan, and replaces the run by a call of it."""
    maker = _Maker(plan, signature, stacks)
    kernel = maker.kernel(module, kernels)
    kernels[kernel.name.value] = kernel
    last = plan.run.calls[-1]
    with ir.InsertionPoint(last), last.location:
        results = [result.type for result in results_of(kernel)]
        call = func.CallOp(results, kernel.name.value, maker.operands())
    made = list(call.results)
    calls = plan.run.calls
    for (index, number), value in zip(maker.finals(), made, strict=False):
        plan.run.column(index)[-1].results[number].replace_all_uses_except(value, list(calls))
    for state, value in zip(maker.written(), made[len(maker.finals()) :], strict=True):
        maker.last_version(state).replace_all_uses_with(value)
    _erase_run(plan)


def _erase_run(plan: _Plan) -> None:
    """Erases the run, what only it used, and what only used it."""
    block = plan.run.calls[0].block
    ops = [op.operation for op in block.operations]
    for op in reversed(ops):
        views = op.name in ("tensor.insert_slice", "tensor.extract_slice") or is_rematerialised(op)
        if (views or op in plan.position) and not any(True for result in op.results for _ in result.uses):
            op.erase()


class _Maker:
    """The looped kernel: its parameters in order, and its body."""

    def __init__(self, plan: _Plan, signature: _Signature, stacks: dict[tuple[str, ...], Argument]) -> None:
        self.plan, self.signature, self.stacks = plan, signature, stacks
        self.parameters: dict[Any, tuple[Argument, str, ir.Value]] = {}
        self.offsets: dict[tuple[int, int], ir.Value] = {}  # computed once: a slice is put back where it was taken
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

    def _stacked(self, formal: _Formal) -> None:
        arguments = [self.signature.argument(value) for value in formal.values]
        names = tuple(argument.name for argument in arguments)
        if names not in self.stacks:
            first = arguments[0]
            type_ = tensor_type([len(names), *first.type.shape], first.type.element_type)
            self.stacks[names] = Argument(first.role, stack_name(names), type_)
        stack = self.stacks[names]
        self.parameters.setdefault(("read", names), (stack, READ, self.signature.stack(names, stack)))

    def operands(self) -> list[ir.Value]:
        return [value for _, _, value in self.parameters.values()]

    def finals(self) -> list[tuple[int, int]]:
        """The results that the loop hands on, which are those that may be read after the run."""
        return [formal.source for formal in self.plan.carried()]

    def written(self) -> list[ir.Value]:
        return [state for state, written in self.plan.states().items() if written]

    def last_version(self, state: ir.Value) -> ir.Value:
        """What the run's insertions leave of a state."""
        version = state
        for op in self.plan.run.calls[0].block.operations:
            operation = op.operation
            inserts = operation.name == "tensor.insert_slice" and operation.operands[1] == version
            if inserts and self.plan.made_in_run(operation.operands[0]) is not None:
                version = operation.results[0]
        return version

    # -------------------------------------------------------------------------------------------------- the kernel

    def kernel(self, module: ir.Module, taken: Container[str]) -> Any:
        """The kernel, under a name that is not among those `taken`: two runs may be of the same kernel and length."""
        plan = self.plan
        finals, written = self.finals(), self.written()
        arguments = [argument for argument, _, _ in self.parameters.values()]
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
        made: dict[tuple[int, int], ir.Value] = {}
        for number, callee in enumerate(self.plan.callees):
            operands = [self._operand(formal, index, carried, states, made) for formal in self.plan.formals[number]]
            for position, value in enumerate(_inline(callee, operands)):
                made[number, position] = value
                put = self.plan.puts[number][position]
                if put is not None:
                    offsets = [self._affine(index, put.base, put.stride)] + [0] * (states[put.state].type.rank - 1)
                    states[put.state] = insert_slice(value, states[put.state], offsets)
        return [*(made[final] for final in finals), *(states[state] for state in written)]

    def _operand(
        self,
        formal: _Formal,
        index: ir.Value,
        carried: dict[tuple[int, int], ir.Value],
        states: dict[ir.Value, ir.Value],
        made: dict[tuple[int, int], ir.Value],
    ) -> ir.Value:
        if formal.kind == INVARIANT:
            return self.values["invariant", formal.values[0]]
        if formal.kind == INDEXED:
            return self._affine(index, formal.base, formal.stride)
        if formal.kind == CARRIED:
            return carried[formal.source]
        if formal.kind == READ:
            names = tuple(self.signature.argument(value).name for value in formal.values)
            return _layer(self.values["read", names], index)
        if formal.slice is not None:
            offset = self._affine(index, formal.slice.base, formal.slice.stride)
            return _layer(states[formal.slice.state], offset)
        return made[formal.source]

    def _affine(self, index: ir.Value, base: int, stride: int) -> ir.Value:
        """base + index * stride, at the loop's own level."""
        if (base, stride) not in self.offsets:
            scaled = index if stride == 1 else arith.MulIOp(index, index_constant(stride)).result
            self.offsets[base, stride] = scaled if base == 0 else arith.AddIOp(scaled, index_constant(base)).result
        return self.offsets[base, stride]


def _layer(stacked: ir.Value, offset: ir.Value) -> ir.Value:
    shape = list(stacked.type.shape)
    return extract_slice(stacked, [offset] + [0] * (len(shape) - 1), [1, *shape[1:]], drop=1)


def _inline(function: Any, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """Clones a function's body here. Gives what it returns."""
    values: ValueMap = dict(zip(function.arguments, operands, strict=True))
    *body, terminator = [op.operation for op in function.entry_block.operations]
    clone_all(body, values)
    return [values[value] for value in terminator.operands]
