"""The reference interpreter: executes a schedule with torch and thereby defines what the schedule means.

Everything that does not depend on a call (kernels, access maps, views without dynamic terms) is resolved at
construction; running an entry walks a list of closures over an environment of scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from sscc.ir.errors import InputError, UsageError
from sscc.runtime.reference.control import SCALAR_OPS, Environment, Window, getter
from sscc.runtime.reference.interface import Bind, Interface
from sscc.runtime.reference.memory import Memory, Written
from sscc.runtime.reference.numerics import Numerics
from sscc.runtime.reference.stages import STAGES
from sscc.runtime.schedule import Entry, For, If, Item, Kernel, Launch, Operand, Program, Scalar, View

Step = Callable[[Environment], None]


class ReferenceInterpreter:
    """Runs the entries of a program.

    Args:
        program: the schedule.
        weights: tensors by `source`, for every weight and constant of the program.
        precision: "f32" (each dtype is itself) or "f64" (every float tensor stored and computed in float64).
        checked: refuse reads of temporaries that no launch of the call has written.

    Raises:
        InputError: the program is malformed (unknown names, views out of bounds, stages whose parameters do
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
        self._kernels: dict[str, tuple[Kernel, list[Bind]]] = {}
        for kernel in program.kernels:
            if kernel.name in self._kernels:
                raise InputError(f"the schedule is malformed: two kernels are called {kernel.name!r}")
            interface = Interface.of(kernel, self._numerics)
            self._kernels[kernel.name] = (kernel, [STAGES[type(stage)](stage, interface) for stage in kernel.stages])
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
        self._steps = self._block(entry.body, known)
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
            for step in self._steps:
                step(environment)
            results = tuple(int(get(environment)) for get in self._scalar_outputs)
        except KeyError as error:
            raise InputError(f"{self._where} uses scalar {error} on a path that never sets it") from None
        return {name: self._memory.tensors[name].clone() for name in self._entry.outputs}, results

    # -- calls

    def _check_names(self, what: str, given: Mapping[str, object], wanted: Sequence[str]) -> None:
        if set(given) != set(wanted):
            raise UsageError(f"{self._where} takes {what} {sorted(wanted)}, it was given {sorted(given)}")

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

    def _block(self, items: Sequence[Item], known: set[str]) -> list[Step]:
        """Compiles items in order; adds the scalars that they define to `known`."""
        return [self._item(item, known) for item in items]

    def _item(self, item: Item, known: set[str]) -> Step:
        if isinstance(item, Scalar):
            return self._scalar(item, known)
        if isinstance(item, For):
            return self._for(item, known)
        if isinstance(item, If):
            return self._if(item, known)
        return self._launch(item, known)

    def _operand(self, operand: Operand, known: set[str]) -> Callable[[Environment], int]:
        return getter(operand, known, self._where)

    def _scalar(self, item: Scalar, known: set[str]) -> Step:
        arity, function = SCALAR_OPS.get(item.op, (-1, int))
        if len(item.args) != arity:
            raise InputError(f"the schedule is malformed: {self._where}: {item.op!r} of {len(item.args)} arguments")
        getters = [self._operand(arg, known) for arg in item.args]
        known.add(item.name)

        def step(environment: Environment) -> None:
            environment[item.name] = int(function(*[get(environment) for get in getters]))

        return step

    def _for(self, item: For, known: set[str]) -> Step:
        lower, upper = self._operand(item.lower, known), self._operand(item.upper, known)
        known.add(item.index)
        body = self._block(item.body, known)

        def step(environment: Environment) -> None:
            for index in range(lower(environment), upper(environment)):
                environment[item.index] = index
                for inner in body:
                    inner(environment)

        return step

    def _if(self, item: If, known: set[str]) -> Step:
        condition = self._operand(item.condition, known)
        body = self._block(item.body, known)

        def step(environment: Environment) -> None:
            if condition(environment):
                for inner in body:
                    inner(environment)

        return step

    def _launch(self, item: Launch, known: set[str]) -> Step:
        if item.kernel not in self._kernels:
            raise InputError(f"the schedule is malformed: {self._where} launches unknown kernel {item.kernel!r}")
        kernel, binds = self._kernels[item.kernel]
        windows = self._windows(item, kernel, known)
        scalars = [(n, self._operand(value, known)) for n, value in zip(kernel.scalars, item.scalars, strict=True)]
        if all(window.static for window in windows.values()):
            views = {name: window.at({}) for name, window in windows.items()}
            fires = [bind(views) for bind in binds]

            def step(environment: Environment) -> None:
                values = {name: get(environment) for name, get in scalars}
                for fire in fires:
                    fire(values)
        else:

            def step(environment: Environment) -> None:
                values = {name: get(environment) for name, get in scalars}
                views = {name: window.at(environment) for name, window in windows.items()}
                for bind in binds:
                    bind(views)(values)

        return step if self._written is None else self._guarded(step, item, kernel, self._written)

    def _windows(self, item: Launch, kernel: Kernel, known: set[str]) -> dict[str, Window]:
        where = f"{self._where}, launch of {kernel.name!r}"
        if len(item.args) != len(kernel.params) or len(item.scalars) != len(kernel.scalars):
            raise InputError(
                f"the schedule is malformed: {where} passes {len(item.args)} tensors and {len(item.scalars)} scalars, "
                f"the kernel takes {len(kernel.params)} and {len(kernel.scalars)}"
            )
        windows = {}
        for param, view in zip(kernel.params, item.args, strict=True):
            self._require_tensor(view.tensor)
            declared = self._memory.declared[view.tensor]
            if view.shape != param.shape or declared.dtype != param.dtype:
                raise InputError(
                    f"the schedule is malformed: {where}: parameter {param.name!r} is {param.dtype} "
                    f"{list(param.shape)}, the view of {view.tensor!r} is {declared.dtype} {list(view.shape)}"
                )
            if param.access != "read" and declared.role in ("weight", "constant", "input"):
                raise InputError(f"the schedule is malformed: {where} writes {declared.role} {view.tensor!r}")
            tensor = self._memory.tensors[view.tensor]
            windows[param.name] = Window(view, tensor, param.access, known, where)
        return windows

    def _guarded(self, step: Step, item: Launch, kernel: Kernel, written: Written) -> Step:
        pairs: list[tuple[View, str]] = [(v, p.access) for v, p in zip(item.args, kernel.params, strict=True)]
        reads = [view.tensor for view, access in pairs if access != "write"]
        writes = [view.tensor for view, access in pairs if access != "read"]

        def guarded(environment: Environment) -> None:
            for name in reads:
                written.check(name, kernel.name)
            step(environment)
            for name in writes:
                written.write(name)

        return guarded
