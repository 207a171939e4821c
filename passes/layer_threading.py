"""Threading of a layer's state through its functions: the parts that all kinds of state have in common."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import func

from sscc.ir.builders import (
    Argument,
    Offset,
    arguments_of,
    extract_slice,
    insert_slice,
    make_function,
    results_of,
    tensor_type,
)
from sscc.ir.choices import STEPS
from sscc.ir.dialects import kv
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.row_streams import state_name
from sscc.ir.layer_state.state_tensors import Extent, StateTensor
from sscc.ir.levels import GroupFacts, ProgramFacts, walk
from sscc.ir.rewriting import ValueMap, clone_with, is_rematerialised, stand_in
from sscc.passes.attended import LAYER

CHOOSE, COMPRESS = "choose", "compress"
"""Names of the functions that run after the last chunk of a prompt in a layer."""
OWN_SLOT = "own_slot"
"""Input of a function that runs only on ranks that have the slot's state: the index of the slot among those of the
rank. It replaces the input `slot`."""

Values = Callable[[ir.Value], ir.Value]
"""Maps an operand of the operator to the value that replaces it in the new function."""
Rewritten = tuple[ir.Value, list[ir.Value]]
"""Result of a layer's operator, and the new values of the states that the function updates."""


class LayerThreader(ABC):
    """Threads a layer's state through one of its functions, and for prefill adds the functions that run after the last
    chunk of a prompt.

    Attributes:
        operator: operation of the layer that depends on earlier tokens.
        layer: number of the layer.
        entry: entry whose function is rewritten.
        slots: number of slots whose state this rank has.
        tokens: number of tokens of a slot in a step, which follow one another.
        free_size: size that shapes of states have as None, because only the model determines it.
    """

    def __init__(
        self, module: ir.Module, function: Any, operator: ir.Operation, facts: ProgramFacts, group: GroupFacts
    ) -> None:
        self.module, self.function, self.facts, self.group = module, function, facts, group
        self.geometry = group.geometry
        self.operator = operator
        self.layer = function.attributes[LAYER].value
        self.entry = function.attributes["sscc.entry"].value
        self.element = self.operator.results[0].type.element_type
        self.slots, self.free_size = facts.batch, 0
        self.tokens = self.operator.results[0].type.shape[0] // facts.batch if self.is_step else 1

    @abstractmethod
    def rewrite(self) -> Any:
        """Return the function that replaces this one, and add those that run after the last chunk of a prompt."""

    def argument(self, state: StateTensor) -> Argument:
        """Return a state as the function of one layer has it: without the axis of layers."""
        front = {Extent.SLOTS: [self.slots], Extent.PACKED: [self.slots], Extent.PROMPT: [1], Extent.LAST_PROMPT: []}
        shape = [size or self.free_size for size in state.shape]
        elements = {"i8": ir.IntegerType.get_signless(8), "i64": ir.IntegerType.get_signless(64)}
        elements |= {"f32": ir.F32Type.get(), "bf16": ir.BF16Type.get()}
        name = state_name(state.name, self.group.name) if self.group.beside else state.name
        return Argument("state", name, tensor_type([*front[state.extent], *shape], elements[state.dtype]))

    @property
    def is_step(self) -> bool:
        """True in an entry that feeds tokens to all slots; False in prefill."""
        return self.entry in STEPS

    def step_inputs(self) -> list[Argument]:
        """Return the inputs of a step: `position`, `base` and `active` [Q] of its tokens."""
        return slot_inputs(self.facts.batch * self.tokens)

    def chunk_inputs(self) -> list[Argument]:
        """Return the inputs of a chunk: `start` and `length`."""
        index = ir.IndexType.get()
        return [Argument("input", "start", index), Argument("input", "length", index)]

    def rebuild(
        self,
        states: list[Argument],
        inputs: list[Argument],
        operate: Callable[[Values, list[ir.Value]], Rewritten],
    ) -> Any:
        """Return a copy of the function with further arguments, and with its operator replaced.

        Args:
            states: states that the new function updates.
            inputs: further inputs; those that the function already has are reused.
            operate: builds the operator's result and the new values of `states`, from a map of the old function's
                operands to their new values, and the values of the added arguments.
        """
        old = self.function
        attributes = {key: old.attributes[key] for key in (LAYER, "sscc.entry")}
        name = old.name.value
        old.attributes["sym_name"] = ir.StringAttr.get(name + ".captured")
        known = {(argument.role, argument.name) for argument in arguments_of(old)}
        more = [argument for argument in inputs if (argument.role, argument.name) not in known]
        arguments = [*arguments_of(old), *states, *more]
        new = make_function(self.module, name, arguments, [*results_of(old), *states], old.location, attributes)
        values: ValueMap = dict(zip(old.arguments, new.arguments, strict=False))
        by_name = {(a.role, a.name): value for a, value in zip(arguments, new.arguments, strict=True)}
        added = [by_name[argument.role, argument.name] for argument in (*states, *inputs)]

        def value_of(operand: ir.Value) -> ir.Value:
            value = stand_in(operand, values)
            assert value is not None  # operations are cloned in program order
            return value

        outputs: list[ir.Value] = []
        *body, terminator = [op.operation for op in old.entry_block.operations]
        with ir.InsertionPoint(new.entry_block):
            for op in body:
                if op == self.operator:
                    before = len(new.entry_block.operations)
                    with op.location:
                        out, outputs = operate(value_of, added)
                    values[op.results[0]] = out
                    self._note_settings(list(new.entry_block.operations)[before:])
                elif not is_rematerialised(op):
                    clone_with(op, values)
            with terminator.location:
                func.ReturnOp([*(values[v] for v in terminator.operands), *outputs])
        return new

    def note_settings(self, function: Any) -> None:
        """Set the attributes of `_note_settings` on the operations of a function that runs at the end of a prompt."""
        self._note_settings(function.entry_block.operations)

    def _note_settings(self, operations: Iterable[Any]) -> None:
        """Set the group's name on operations that the module's geometry does not govern, and the softcap on operations
        that compute scores."""
        for op in (inner for each in operations for inner in (each.operation, *walk(each))):
            if op.name.startswith("kv."):
                kv.in_group(op, self.group.name)
                kv.inherit(op, self.operator)

    def end_function(self, what: str, arguments: Sequence[Argument], results: Sequence[Argument]) -> Any:
        """Return a function, still empty, that runs after the last chunk of a prompt."""
        name = end_name(what, self.layer, self.group.name if self.group.beside else "")
        location = ir.Location.name(name, self.operator.location)
        attributes = {"sscc.entry": ir.StringAttr.get("prefill")}
        return make_function(self.module, f"prefill.{name}", arguments, results, location, attributes)


class StateThreader(LayerThreader):
    """Threads the state of an operator that is not attention.

    Attributes:
        group_name: prefix of the names of groups of such layers.
    """

    group_name: ClassVar[str]

    @staticmethod
    @abstractmethod
    def sizes_of(operator: ir.Operation) -> tuple[int, ...]:
        """Return the sizes that the operators of one group have in common."""

    @staticmethod
    @abstractmethod
    def geometry_of(geometry: Geometry, sizes: Sequence[int]) -> Geometry:
        """Return the geometry of the rows of a group of these sizes, where layers that attend have `geometry`."""


def slot_inputs(tokens: int) -> list[Argument]:
    """Return the inputs of a step of `tokens` tokens that have a number for each: `position`, `base` and `active`."""
    numbers = tensor_type([tokens], ir.IntegerType.get_signless(64))
    flags = tensor_type([tokens], ir.IntegerType.get_signless(1))
    kinds = {"position": numbers, "base": numbers, "active": flags}
    return [Argument("input", name, type_) for name, type_ in kinds.items()]


def end_name(what: str, layer: int, beside: str = "") -> str:
    """Return the name, without its entry, of a function that runs after the last chunk of a prompt.

    Args:
        what: `CHOOSE` or `COMPRESS`.
        layer: number of the layer.
        beside: group whose state it completes, if that is not the layer's first group.
    """
    return f"{what}.{layer}.{beside}" if beside else f"{what}.{layer}"


def appended(rows: Sequence[ir.Value], wholes: Sequence[ir.Value], start: ir.Value) -> list[ir.Value]:
    """Return states of a prompt with the rows of a chunk in them."""
    return [insert_slice(new, whole, [0, 0, start, 0]) for new, whole in zip(rows, wholes, strict=True)]


def filled(cache: ir.Value, offsets: list[Offset], scratch: ir.Value, index: ir.Value) -> ir.Value:
    """Return `cache` with the rows of `scratch` at `index` in it, from `offsets` on."""
    place = extract_slice(cache, offsets, [1, *index.type.shape, cache.type.shape[3]])
    return insert_slice(kv.GatherRows(scratch, index, place, place.type).gathered, cache, offsets)


def parted(values: Sequence[ir.Value], counts: Sequence[int]) -> list[list[ir.Value]]:
    """Return lists of `counts` values each, and then the rest."""
    ends = [0, *itertools.accumulate(counts), len(values)]
    return [list(values[first:end]) for first, end in itertools.pairwise(ends)]
