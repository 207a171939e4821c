"""Runs of equal calls, and how each parameter of their kernel varies from one call to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch_mlir import ir

from sscc.ir.builders import arguments_of, index_of
from sscc.ir.dialects import kv
from sscc.ir.layer_state.stores import FIRST, TOPK
from sscc.ir.rewriting import producer
from sscc.ir.views import bytes_of
from sscc.passes.stacked_weights import EntrySignature

INVARIANT, INDEXED, READ, INOUT, CARRIED, IN_MEMORY = (
    "invariant",
    "indexed scalar",
    "layer-indexed read",
    "layer-indexed in/out",
    "carried",
    "carried in memory",
)


class NotLooped(Exception):
    """The reason why a run is not looped."""


# -------------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class CallRun:
    """`count` repetitions of a sequence of kernels: calls in order, `len(period)` per repetition."""

    calls: tuple[ir.Operation, ...]
    count: int

    @property
    def period(self) -> tuple[ir.Operation, ...]:
        return self.calls[: len(self.calls) // self.count]

    def column(self, index: int) -> list[ir.Operation]:
        """Return call `index` of every repetition."""
        return list(self.calls[index :: len(self.period)])


def find_runs(calls: Sequence[ir.Operation]) -> list[CallRun]:
    """Yield maximal repetitions, from the first call on: the longest, with the shortest period."""
    names = [call.attributes["callee"].value for call in calls]
    runs = []
    start = 0
    while start < len(calls):
        period, count = _longest_repetition(names, start)
        if count > 1:
            runs.append(CallRun(tuple(calls[start : start + period * count]), count))
        start += period * count
    return runs


def _longest_repetition(names: Sequence[str], start: int) -> tuple[int, int]:
    """Return (period, repetitions) of the longest repetition at `start`; (1, 1) if nothing repeats."""
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
class LayerSlice:
    """A slice of a stacked state: the state, and its first and next offset along axis 0."""

    state: ir.Value
    base: int
    stride: int


@dataclass(frozen=True)
class Formal:
    """Classification of a parameter of call `index` of the period. Its class, and the fields that belong to it:

    * invariant: `values` is one value;
    * indexed scalar: `numbers`, one per repetition; `tabled` if they are a layer's budget;
    * layer-indexed read: `values` has a weight per repetition;
    * layer-indexed in/out: `slice`;
    * carried: `source` is the (call of the period, result) of the previous repetition, `values` the initial value;
      class "": `source` of the same repetition.
    """

    kind: str
    values: tuple[ir.Value, ...] = ()
    numbers: tuple[int, ...] = ()
    tabled: bool = False
    slice: LayerSlice | None = None
    source: tuple[int, int] = (0, 0)


class Plan:
    """Plan for looping a run: a class for every parameter, and a destination for every result.

    Raises NotLooped.
    """

    def __init__(self, run: CallRun, kernels: dict[str, Any], signature: EntrySignature, capacity: int) -> None:
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

    def carried(self) -> list[Formal]:
        """The carried parameters, each source once."""
        by_source = {formal.source: formal for row in self.formals for formal in row if formal.kind == CARRIED}
        return list(by_source.values())

    def states(self) -> dict[ir.Value, bool]:
        """The stacked states whose slices the run uses, and whether it writes them."""
        used = {f.slice.state: False for row in self.formals for f in row if f.slice is not None}
        return used | {put.state: True for row in self.puts for put in row if put is not None}

    # ----------------------------------------------------------------------------------------------- parameters

    def _formal(self, index: int, number: int) -> Formal:
        actuals = tuple(call.operands[number] for call in self.run.column(index))
        origins = [self.origin_in_run(value) for value in actuals]
        if origins[0] is None and len(set(actuals)) == 1:
            return Formal(INVARIANT, actuals[:1])
        same, before = _common_source(origins), _common_source(origins[1:])
        if same is not None:
            return Formal("", source=same)
        if origins[0] is None and before is not None:
            return Formal(CARRIED, actuals[:1], source=before)
        if any(origin is not None for origin in origins):
            raise NotLooped(f"{self._name(index, number)} takes results of calls other than the previous one")
        numbers = [index_of(value) for value in actuals]
        if all(n is not None for n in numbers):
            tabled = arguments_of(self.callees[index])[number].name in (TOPK, FIRST)
            return Formal(INDEXED, numbers=tuple(n for n in numbers if n is not None), tabled=tabled)
        if all(self.signature.is_stored(value) for value in actuals):
            return Formal(READ, actuals)
        return Formal(INOUT, slice=self._slice(index, number, actuals))

    def origin_in_run(self, value: ir.Value) -> tuple[int, int, int] | None:
        """Return (repetition, call of the period, result) that defines `value`; None for other values."""
        source = producer(value)
        if source is None or source not in self.position:
            return None
        return (*self.position[source], list(source.results).index(value))

    def _slice(self, index: int, number: int, actuals: Sequence[ir.Value]) -> LayerSlice:
        what = self._name(index, number)
        sources = [producer(value) for value in actuals]
        offsets, states = [], set()
        for source in sources:
            if source is None or source.name != "tensor.extract_slice" or len(source.operands) != 1:
                raise NotLooped(f"{what} differs from call to call, and is not a slice of one state")
            offsets.append(_layer_offset(source, what))
            states.add(self._root(source.operands[0]))
        if len(states) != 1:
            raise NotLooped(f"{what} is a slice of different states")
        state = states.pop()
        self._claim(state, offsets, index, what)
        return LayerSlice(state, *_progression(offsets, what))

    def _claim(self, state: ir.Value, offsets: Sequence[int], index: int, what: str) -> None:
        """Record the slices of a state. Two layers may not share a slice, because one would read what the other writes.
        """
        for offset in offsets:
            owner = self.slots.setdefault((state, offset), (offsets.index(offset), index))
            if owner != (offsets.index(offset), index) or list(offsets).count(offset) > 1:
                raise NotLooped(f"{what}: two layers share slice {offset} of a state")

    def _root(self, value: ir.Value) -> ir.Value:
        """Return the state before the run of which `value` is a later version."""
        source = producer(value)
        while source is not None and source.name == "tensor.insert_slice" and self.origin_in_run(source.operands[0]):
            value = source.operands[1]
            source = producer(value)
        return value

    def _name(self, index: int, number: int) -> str:
        argument = arguments_of(self.callees[index])[number]
        return f"parameter {argument.name!r} of {self.callees[index].name.value}"

    # -------------------------------------------------------------------------------------------------- results

    def _put(self, index: int, number: int) -> LayerSlice | None:
        """Return the slices of a state into which result `number` of call `index` is inserted; None for other results.
        """
        insertions = [self._insertion(call.results[number]) for call in self.run.column(index)]
        if all(insert is None for insert in insertions):
            return None
        what = f"result {number} of {self.callees[index].name.value}"
        if any(insert is None for insert in insertions):
            raise NotLooped(f"{what} is not stored by every call")
        present = [insert for insert in insertions if insert is not None]
        states = {self._root(insert.operands[1]) for insert in present}
        if len(states) != 1:
            raise NotLooped(f"{what} goes to different states")
        offsets = [_layer_offset(insert, what) for insert in present]
        state = states.pop()
        self._claim(state, offsets, index, what)
        return LayerSlice(state, *_progression(offsets, what))

    def _insertion(self, value: ir.Value) -> ir.Operation | None:
        users = [use.owner.operation for use in value.uses]
        insertions = [user for user in users if user.name == "tensor.insert_slice" and user.operands[0] == value]
        return insertions[0] if len(insertions) == 1 and len(users) == 1 else None

    def _check_whole_states(self) -> None:
        """Refuse a parameter that is a whole state of which the run writes slices: the loop would change it."""
        written = {put.state for row in self.puts for put in row if put is not None}
        for index, row in enumerate(self.formals):
            for number, formal in enumerate(row):
                if formal.kind == INVARIANT and formal.values[0] in written:
                    raise NotLooped(f"{self._name(index, number)} is a whole state of which the run writes slices")

    def _check_results(self) -> None:
        """Refuse results that are read after the run, except those that the last repetition carries out or stores."""
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
        """Return, for each carried value, True if it stays on the chip. Values updated in place stay in memory."""
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
    """Return the offset along axis 0 of a slice or an insertion of one whole layer."""
    offsets, sizes = list(op.attributes["static_offsets"]), list(op.attributes["static_sizes"])
    whole = list(op.operands[1 if op.name == "tensor.insert_slice" else 0].type.shape)
    if any(offsets[1:]) or sizes != [1, *whole[1:]] or offsets[0] < 0:
        raise NotLooped(f"{what} is not a whole layer of its state")
    return int(offsets[0])


def _common_source(origins: Sequence[tuple[int, int, int] | None]) -> tuple[int, int] | None:
    """Return (call, result) if item i is this result of this call in repetition i, for all items."""
    sources = {item[1:] for item in origins if item is not None}
    steady = all(item is not None and item[0] == index for index, item in enumerate(origins))
    return sources.pop() if steady and len(sources) == 1 else None


def _in_place(value: ir.Value) -> bool:
    """Return True if a returned value is an argument of its function, updated in place."""
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
        elif list(source.results).index(value) in kv.ties_of(source):
            value = source.operands[kv.ties_of(source)[list(source.results).index(value)]]
        else:
            return False


def _progression(numbers: Sequence[int], what: str) -> tuple[int, int]:
    """Return (first, step) of equally spaced numbers."""
    steps = {after - before for before, after in pairwise(numbers)}
    if len(steps) != 1:
        raise NotLooped(f"{what} takes {list(numbers)}, which is not an arithmetic progression")
    return numbers[0], steps.pop()
