"""The reference interpreter: executes a schedule with torch and thereby defines what the schedule means.

Everything that does not depend on a call (bodies, kernels, access maps, views without dynamic terms) is resolved
at construction; running an entry walks a list of closures over an environment of scalars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch

from sscc.ir.errors import InputError, UsageError
from sscc.ir.schedule import Body, Entry, Kernel, Launch, Param, Pipeline, Program, View, pipelines
from sscc.runtime.backends.reference.bodies import BodyCode
from sscc.runtime.backends.reference.control import Action, Environment, Memo, Offset, compile_block, getter
from sscc.runtime.backends.reference.kernels import KernelCode
from sscc.runtime.backends.reference.memory import Memory, Written
from sscc.runtime.backends.reference.numerics import Numerics
from sscc.runtime.backends.reference.views import StridedView

LAUNCHES = 16
"""How many bound kernels a launch whose views depend on scalars keeps."""


class ReferenceInterpreter:
    """Runs the entries of a program.

    Args:
        program: the schedule.
        weights: tensors by `Tensor.name`, for every weight and constant of the program.
        precision: "f32" (each dtype is itself) or "f64" (every float tensor stored and computed in float64).
        checked: refuse reads of temporaries that no launch of the call has written; memory is NaN at the start, a
            body's locals at every firing, and a buffer's slot when its producer begins it.

    Raises:
        InputError: the program is malformed (unknown names, views out of bounds, steps whose parameters do
            not fit) or the weights are not the ones it was compiled for.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, torch.Tensor],
        *,
        precision: str = "f32",
        checked: bool = False,
    ) -> None:
        self.program = program
        self._numerics = Numerics(precision)
        self._memory = Memory(program, weights, self._numerics, poison=checked)
        self._written = Written(program) if checked else None
        _check_unique("bodies", program.bodies)
        _check_unique("kernels", program.kernels)
        bodies = {body.name: BodyCode(body, self._numerics, checked=checked) for body in program.bodies}
        self._kernels = {k.name: KernelCode(k, bodies, self._memory, checked=checked) for k in program.kernels}
        self._entries = {entry.name: _EntryCode(entry, self) for entry in program.entries}

    def run(
        self, entry: str, inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, int] | None = None
    ) -> tuple[dict[str, torch.Tensor], tuple[int, ...]]:
        """Calls an entry with exactly its inputs and scalar inputs, by name.

        Returns copies of its outputs by name (undefined where the call did not write one), and its scalar outputs.
        Raises UsageError where the entry, a name, a shape or a dtype does not fit; InputError where the schedule
        does something undefined.
        """
        if entry not in self._entries:
            raise UsageError(f"the schedule has no entry {entry!r}, it has {list(self._entries)}")
        with torch.no_grad():
            return self._entries[entry].run(inputs, {} if scalars is None else scalars)

    def tensor(self, name: str) -> torch.Tensor:
        """A live view of a tensor: reading and writing it reads and writes the interpreter's memory."""
        if name not in self._memory.tensors:
            raise UsageError(f"the schedule has no tensor {name!r}, it has {list(self._memory.tensors)}")
        return self._memory.tensors[name]

    def reset(self) -> None:
        """Zeroes every state."""
        self._memory.reset()
        if self._written is not None:
            self._written.reset()


def _check_unique(what: str, items: Sequence[Body] | Sequence[Kernel]) -> None:
    seen: set[str] = set()
    for item in items:
        if item.name in seen:
            raise InputError(f"the schedule is malformed: two {what} are called {item.name!r}")
        seen.add(item.name)


class _EntryCode:
    """One entry as a list of closures."""

    def __init__(self, entry: Entry, owner: ReferenceInterpreter) -> None:
        self._entry = entry
        self._memory = owner._memory
        self._kernels = owner._kernels
        self._numerics = owner._numerics
        self._written = owner._written
        self._where = f"entry {entry.name!r}"
        for name in (*entry.inputs, *entry.outputs):
            self._require_tensor(name)
        known = set(entry.scalar_inputs)
        self._actions = compile_block(entry.body, known, self._where, self._leaf)
        self._scalar_outputs = [getter(operand, known, self._where) for operand in entry.scalar_outputs]

    def run(
        self, inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, int]
    ) -> tuple[dict[str, torch.Tensor], tuple[int, ...]]:
        self._check_names("inputs", inputs, self._entry.inputs)
        self._check_names("scalars", scalars, self._entry.scalar_inputs)
        for name in self._entry.inputs:
            self._check_input(name, inputs[name])
        for name in self._entry.inputs:
            self._memory.tensors[name].copy_(inputs[name])
        if self._written is not None:
            self._written.begin(self._entry.inputs)
        environment = {name: int(value) for name, value in scalars.items()}
        try:
            for action in self._actions:
                action(environment)
            results = tuple(int(get(environment)) for get in self._scalar_outputs)
        except KeyError as error:
            raise InputError(f"{self._where} uses scalar {error} on a path that never sets it") from None
        return {name: self._memory.tensors[name].clone() for name in self._entry.outputs}, results

    # -- calls

    def _check_names(self, what: str, values: Mapping[str, object], names: Sequence[str]) -> None:
        if set(values) != set(names):
            raise UsageError(f"{self._where} takes {what} {sorted(names)}, it was given {sorted(values)}")

    def _check_input(self, name: str, value: torch.Tensor) -> None:
        declared = self._memory.declared[name]
        dtypes = {Numerics().require(declared.dtype), self._numerics.require(declared.dtype)}
        if tuple(value.shape) != declared.shape or value.dtype not in dtypes:
            raise UsageError(
                f"{self._where} takes {name!r} as {declared.dtype} {list(declared.shape)}, "
                f"it was given {value.dtype} {list(value.shape)}"
            )

    # -- compilation

    def _require_tensor(self, name: str) -> None:
        if name not in self._memory.declared:
            raise InputError(f"the schedule is malformed: {self._where} uses tensor {name!r}, which does not exist")

    def _leaf(self, item: Launch | Pipeline, known: set[str]) -> Action:
        if isinstance(item, Pipeline):
            self._refuse(f"it holds pipeline {item.name!r}, which must stand in a kernel")
        if item.kernel not in self._kernels:
            self._refuse(f"it launches unknown kernel {item.kernel!r}")
        code = self._kernels[item.kernel]
        launch = self._launch(item, code, known)
        return launch if self._written is None else self._guarded(launch, item, code.kernel, self._written)

    def _launch(self, item: Launch, code: KernelCode, known: set[str]) -> Action:
        where = f"{self._where}, launch of {item.kernel!r}"
        arguments = self._arguments(item, code.kernel, known, where)
        operands = zip(code.kernel.scalars, item.scalars, strict=True)
        scalars = [(name, getter(value, known, where)) for name, value in operands]
        if all(argument.static for argument in arguments.values()):
            action = code.bind({name: argument.at({}) for name, argument in arguments.items()})
            return lambda environment: action({name: get(environment) for name, get in scalars})
        memo: Memo[tuple[int, ...], Action] = Memo(LAUNCHES)

        def launch(environment: Environment) -> None:
            key = tuple([argument.offset(environment) for argument in arguments.values()])
            action = memo.get(key)
            if action is None:
                action = code.bind({name: argument.at(environment) for name, argument in arguments.items()})
                memo.keep(key, action)
            action({name: get(environment) for name, get in scalars})

        return launch

    def _arguments(self, item: Launch, kernel: Kernel, known: set[str], where: str) -> dict[str, _Argument]:
        if len(item.args) != len(kernel.params) or len(item.scalars) != len(kernel.scalars):
            raise InputError(
                f"the schedule is malformed: {where} passes {len(item.args)} tensors and {len(item.scalars)} scalars, "
                f"the kernel takes {len(kernel.params)} and {len(kernel.scalars)}"
            )
        pairs = zip(kernel.params, item.args, strict=True)
        return {param.name: self._argument(param, view, known, where) for param, view in pairs}

    def _argument(self, param: Param, view: View, known: set[str], where: str) -> _Argument:
        self._require_tensor(view.tensor)
        declared = self._memory.declared[view.tensor]
        if view.shape != param.shape or declared.dtype != param.dtype:
            raise InputError(
                f"the schedule is malformed: {where}: parameter {param.name!r} is {param.dtype} "
                f"{list(param.shape)}, the view of {view.tensor!r} is {declared.dtype} {list(view.shape)}"
            )
        if param.access != "read" and declared.role in ("weight", "constant", "input"):
            raise InputError(f"the schedule is malformed: {where} writes {declared.role} {view.tensor!r}")
        return _Argument(view, self._memory.tensors[view.tensor], param, known, where)

    def _guarded(self, launch: Action, item: Launch, kernel: Kernel, written: Written) -> Action:
        pairs: list[tuple[View, str]] = [(v, p.access) for v, p in zip(item.args, kernel.params, strict=True)]
        reads = [view.tensor for view, access in pairs if access != "write"]
        writes = [view.tensor for view, access in pairs if access != "read"]
        spilled = {name for p in pipelines(kernel.body) for buffer in p.buffers for name in written.under(buffer)}

        def guarded(environment: Environment) -> None:
            written.undefine(spilled)
            for name in reads:
                written.check(name, kernel.name)
            launch(environment)
            for name in writes:
                written.write(name)

        return guarded

    def _refuse(self, reason: str) -> NoReturn:
        raise InputError(f"the schedule is malformed: {self._where}: {reason}")


class _Argument:
    """A view of a tensor as the argument of a kernel's parameter."""

    def __init__(self, view: View, tensor: torch.Tensor, param: Param, known: set[str], where: str) -> None:
        self._tensor = tensor
        self._where = where
        self._offset = Offset(view, known, where)
        self._view = StridedView(view, tensor.numel(), param.access, self._refuse)
        self.static = self._offset.static
        self.offset = self._offset.at

    def at(self, environment: Environment) -> torch.Tensor:
        """The torch view. Raises InputError where it leaves the tensor."""
        return self._view.at(self._tensor, self.offset(environment))

    def _refuse(self, reason: str) -> NoReturn:
        raise InputError(f"the schedule is malformed: {self._where}: {reason}")
