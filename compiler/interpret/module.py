"""A module of the compiler as an interpreter for sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch_mlir import ir

from sscc.compiler.interpret import (
    collectives,
    control,
    elementwise,
    experts,
    kv_cache,
    learned_index,
    recurrence,
    stored_weights,
    structured,
    tensors,
)
from sscc.compiler.interpret.build import Builder, Handler, RunnableFunction, handler_of
from sscc.compiler.interpret.signatures import program_signature, query_heads
from sscc.compiler.interpret.types import Types, shape_of
from sscc.ir.builders import STORED, Argument, arguments_of, results_of
from sscc.ir.choices import DECODE, SCORE, STEPS
from sscc.ir.collectives import grid_of
from sscc.ir.errors import ErrorKind, InputError, InternalError, UsageError
from sscc.ir.levels import get_facts, get_groups
from sscc.ir.opspec import functions_of, spec_of
from sscc.ir.rewriting import functions
from sscc.ir.sharding import Cut
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Stack, TensorSpec
from sscc.runtime.backends.collectives.group import ALONE, Group, Ranks
from sscc.runtime.backends.reference.arrays import ArrayInterpreter
from sscc.runtime.session.session import Session


class EvaluatedModuleErrors(ErrorKind):
    NO_ENTRY = UsageError, "the module has no entry {entry!r}; it has: {entries}"
    NO_STATE = UsageError, "the module has no state {state!r}; it has: {states}"
    ENTRIES_DISAGREE = InternalError, "the entries disagree about {state}: {type} and {other}"
    NO_INPUT = UsageError, "the input {input!r} is missing"
    INPUT_SHAPE = UsageError, "the input {input!r} has shape [{shape}], expected {expected}"
    NO_WEIGHT = InputError, "the {role} {tensor!r} is missing; the module needs {expected}"
    WEIGHT_SHAPE = InputError, "the {role} {tensor!r} must be {expected}, got shape [{shape}]"
    NOT_CUT = InputError, "a tensor of shape [{shape}] cannot be cut as {cut}"

ENTRIES = ("prefill", *STEPS, SCORE)
"""Names of the entries that a module may have."""
_ALGORITHM = (experts, kv_cache, learned_index, recurrence, stored_weights)
OPERATIONS: dict[str, Handler] = {
    **control.HANDLERS,
    **elementwise.HANDLERS,
    **structured.HANDLERS,
    **tensors.HANDLERS,
    **{spec_of(record).name: handler_of(record, f) for record, f in functions_of(*map(vars, _ALGORITHM)).items()},
}
"""Handlers of all operations that can be evaluated, by name."""


class Functions:
    """The functions of a module, compiled to closures on first use.

    Args:
        module: at a level from `graph` on; it may be changed or dropped once the functions are built.
        group: this rank and its peers, if the module is sharded.
    """

    def __init__(self, module: ir.Module, types: Types, group: Group = ALONE) -> None:
        self._operations = {**OPERATIONS, **collectives.handlers(Ranks(group, grid_of(module)))}
        self._sources = {function.name.value: function for function in functions(module)}
        self._built: dict[str, RunnableFunction] = {}
        self._types = types

    def __call__(self, name: str) -> RunnableFunction:
        """Return a function. Raises UnsupportedError for an operation in it, or in a function it calls, that cannot be
        evaluated."""
        if name not in self._built:
            builder = Builder(self._types, self._operations, self)
            self._built[name] = builder.build(self._sources[name])
        return self._built[name]


@dataclass(frozen=True)
class _RunnableEntry:
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    function: RunnableFunction


class ModuleInterpreter:
    """Runs the entries of a module, with weights given by name and states kept between calls.

    States and the outputs that an entry takes as arguments are zero at the start.

    Args:
        module: from level graph on, with public functions; not needed any more after this.
        weights: a tensor for every weight and constant that an entry takes; floating dtypes are converted.
        precision: "f32" computes in the module's own types, "f64" stores and computes all floats as float64.
        group: this rank and its peers, if the module is sharded; the rank takes its part of each sharded weight.

    Raises:
        InputError: a weight is missing or of another shape, or the module is not a dump of sscc.
        UnsupportedError: an operation that cannot be evaluated, with its location.
    """

    def __init__(
        self, module: ir.Module, weights: Mapping[str, torch.Tensor], *, precision: str = "f32", group: Group = ALONE
    ) -> None:
        self.types = Types(precision)
        self._group = group
        get_facts(module)  # raises for a module that is not a dump
        build = Functions(module, self.types, group)
        self._entries = {
            function.name.value: _RunnableEntry(
                tuple(arguments_of(function)), tuple(results_of(function)), build(function.name.value)
            )
            for function in functions(module)
            if _is_entry(function)
        }
        self._weights = {a.name: self._weight(a, weights) for a in self._arguments(STORED)}
        self._held = {a.name: self._zeros(a) for a in self._arguments(("state", "output"))}

    def run(
        self, entry: str, inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, int] | None = None
    ) -> tuple[dict[str, torch.Tensor], tuple[int, ...]]:
        """Run an entry. Return its output tensors by name, and its scalar outputs in order.

        Raises:
            UsageError: there is no such entry, or an input is missing or of another shape.
            CheckError: an operation does something undefined, such as reading outside of a tensor.
        """
        if entry not in self._entries:
            raise EvaluatedModuleErrors.NO_ENTRY(entry=entry, entries=list(self._entries))
        this, values_by_name = self._entries[entry], {**inputs, **(scalars or {})}
        values = this.function(*[self._operand(argument, values_by_name) for argument in this.arguments])
        outputs: dict[str, torch.Tensor] = {}
        numbers: list[int] = []
        for result, value in zip(this.results, values, strict=True):
            if not isinstance(result.type, ir.RankedTensorType):
                numbers.append(int(value))
                continue
            if result.role == "output":
                outputs[result.name] = value
            if result.name in self._held:
                self._held[result.name] = value
        return outputs, tuple(numbers)

    def tensor(self, name: str) -> torch.Tensor:
        """Return the current value of a state. Raises UsageError if there is no state of this name."""
        if name not in self._held:
            raise EvaluatedModuleErrors.NO_STATE(state=name, states=list(self._held))
        return self._held[name]

    def reset(self) -> None:
        """Set every state to zero."""
        self._held = {name: torch.zeros_like(value) for name, value in self._held.items()}

    def _arguments(self, roles: tuple[str, ...]) -> list[Argument]:
        first: dict[str, Argument] = {}
        for entry in self._entries.values():
            for argument in entry.arguments:
                if argument.role not in roles:
                    continue
                other = first.setdefault(argument.name, argument)
                if other.type != argument.type:
                    raise EvaluatedModuleErrors.ENTRIES_DISAGREE(
                        state=argument.name, type=str(other.type), other=str(argument.type)
                    )
        return list(first.values())

    def _operand(self, argument: Argument, values: Mapping[str, Any]) -> torch.Tensor:
        if argument.role in STORED:
            return self._weights[argument.name]
        if argument.role != "input":
            return self._held[argument.name]
        if argument.name not in values:
            raise EvaluatedModuleErrors.NO_INPUT(input=argument.name)
        value = torch.as_tensor(values[argument.name], dtype=self.types.dtype(argument.type))
        if tuple(value.shape) != shape_of(argument.type):
            raise EvaluatedModuleErrors.INPUT_SHAPE(
                input=argument.name, shape=list(value.shape), expected=str(argument.type)
            )
        return value

    def _weight(self, argument: Argument, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
        value = weights.get(argument.name)
        if value is None:
            raise EvaluatedModuleErrors.NO_WEIGHT(role=argument.role, tensor=argument.name, expected=str(argument.type))
        if argument.cut:
            value = part_of(value, Cut.parse(argument.cut), self._group)
        if tuple(value.shape) != shape_of(argument.type):
            raise EvaluatedModuleErrors.WEIGHT_SHAPE(
                role=argument.role, tensor=argument.name, shape=list(value.shape), expected=str(argument.type)
            )
        return value.to(self.types.dtype(argument.type))

    def _zeros(self, argument: Argument) -> torch.Tensor:
        return torch.zeros(shape_of(argument.type), dtype=self.types.dtype(argument.type))


def part_of(value: torch.Tensor, cut: Cut, group: Group) -> torch.Tensor:
    """Return a rank's part of a tensor. Raises InputError if its size is not that of the cut."""
    if value.dim() <= cut.axis or value.shape[cut.axis] != cut.size:
        raise EvaluatedModuleErrors.NOT_CUT(shape=list(value.shape), cut=str(cut))
    spans = cut.spans(group.rank, group.ranks)
    return torch.cat([value.narrow(cut.axis, begin, end - begin) for begin, end in spans], cut.axis)


def is_runnable(module: ir.Module) -> bool:
    """Return True if the module has the entries that a session runs."""
    return {function.name.value for function in functions(module) if _is_entry(function)} >= {"prefill", DECODE}


def _is_entry(function: Any) -> bool:
    """Return True if a function is an entry from `build-entries`: captured functions have no visibility attribute."""
    attributes = function.operation.attributes
    return "sym_visibility" in attributes and ir.StringAttr(attributes["sym_visibility"]).value == "public"


def stored_layout(module: ir.Module, role: str) -> dict[str, Stack]:
    """Return the entries' arguments of a role ("weight" or "constant") by name, with their sources. For sharded ones
    these are the whole tensors, as `ModuleInterpreter` expects them."""
    layout = {}
    for function in functions(module):
        if not _is_entry(function):
            continue
        for argument in arguments_of(function):
            if argument.role == role:
                shape = shape_of(argument.type)
                shape = tuple(Cut.parse(argument.cut).whole_shape(shape)) if argument.cut else shape
                spec = TensorSpec(shape, str(argument.type.element_type))
                layout[argument.name] = Stack(spec, argument.made_of, argument.encoding)
    return layout


def signature_of(module: ir.Module) -> Signature:
    """Return the signature of a module with entries. Raises InputError if an entry lacks a state that determines it."""
    facts, geometry = get_facts(module)
    states = {
        argument.name: shape_of(argument.type)
        for function in functions(module)
        if function.name.value in ENTRIES
        for argument in arguments_of(function)
        if argument.role == "state"
    }
    return program_signature(facts, geometry, get_groups(module), query_heads(module), states)


def module_session(
    module: ir.Module, weights: Mapping[str, torch.Tensor], *, precision: str = "f32", group: Group = ALONE
) -> Session:
    """Return a session on a module instead of a schedule. Raises as `ModuleInterpreter` does."""
    interpreter = ModuleInterpreter(module, weights, precision=precision, group=group)
    return Session(signature_of(module), ArrayInterpreter(interpreter))
