"""The reference interpreter: executes a schedule with torch, and its results define the meaning of the schedule.

Everything that does not depend on a call (bodies, kernels, access maps, views without dynamic terms) is resolved at
construction; running an entry calls a list of closures over an environment of scalars.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import torch

from sscc.ir.choices import RANK
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.schedule import Entry, Kernel, Launch, Param, Pipeline, Program, View, pipelines
from sscc.runtime.backends.collectives.group import ALONE, Group, Ranks
from sscc.runtime.backends.interpreter import MemoryUse, StageName, Watcher
from sscc.runtime.backends.reference.bodies import BodyCode
from sscc.runtime.backends.reference.control import (
    Action,
    Environment,
    Memo,
    Offset,
    ReferenceControlErrors,
    compile_block,
    getter,
)
from sscc.runtime.backends.reference.kernels import KernelCode
from sscc.runtime.backends.reference.memory import Memory, Written
from sscc.runtime.backends.reference.numerics import Numerics
from sscc.runtime.backends.reference.views import StridedView
from sscc.runtime.backends.reference.watching import Watch


class ReferenceErrors(ErrorKind):
    NO_ENTRY = UsageError, "the schedule has no entry {entry!r}; its entries are: {entries}"
    NO_TENSOR = UsageError, "the schedule has no tensor {tensor!r}; its tensors are: {tensors}"
    OTHER_INPUTS = UsageError, "entry {entry!r} takes the inputs {expected!r}, but was given {given!r}"
    OTHER_SCALARS = UsageError, "entry {entry!r} takes the scalars {expected!r}, but was given {given!r}"
    OTHER_SHAPE = UsageError, (
        "entry {entry!r} takes {input!r} as {dtype} [{shape}], but was given {given_dtype} [{given_shape}]"
    )

LAUNCHES = 16
"""Number of bound kernels that are kept for a launch whose views depend on scalars."""


class ReferenceInterpreter:
    """Interpreter that runs the entries of a program.

    Args:
        program: the schedule.
        weights: tensors by `Tensor.name`, for every weight and constant of the program.
        precision: "f32" (each dtype is itself) or "f64" (every float tensor is stored and computed in float64).
        checked: refuse reads of temporaries that no launch of the call has written; memory is NaN at the start, a
            body's locals at every firing, and a buffer's slot when its producer begins it.
        group: ranks of the program, with the number of this one, if it has several.

    Raises:
        UsageError: the numbers of ranks of group and program differ.
        InputError: a view or an access map leaves its tensor, an address lies outside of memory, or the weights are not
            those that the program was compiled for. Other properties (names, shapes, dtypes, counts) are not checked
            here; the validator has proved them.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, torch.Tensor],
        *,
        precision: str = "f32",
        checked: bool = False,
        group: Group = ALONE,
    ) -> None:
        ranks = Ranks(group, program.grid)
        self.program, self._rank = program, group.rank
        self._numerics = Numerics(precision)
        self._memory = Memory(program, weights, self._numerics, poison=checked)
        self._written = Written(program) if checked else None
        bodies = {body.name: BodyCode(body, self._numerics, ranks, checked=checked) for body in program.bodies}
        self._watch = Watch()
        self._kernels = {
            k.name: KernelCode(k, bodies, self._memory, checked=checked, watch=self._watch) for k in program.kernels
        }
        self._entries = {entry.name: _EntryCode(entry, self) for entry in program.entries}

    def __repr__(self) -> str:
        precision = f"precision {self._numerics.precision}{'' if self._written is None else ', checked'}"
        memory = MemoryUse.of_tensors(self.program).in_words()
        return f"ReferenceInterpreter({self.program.in_words()}; {precision}; {memory})"

    def run(
        self, entry: str, inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, int] | None = None
    ) -> tuple[dict[str, torch.Tensor], tuple[int, ...]]:
        """Call an entry with exactly its inputs and scalar inputs, by name.

        Returns copies of its outputs by name (undefined if the call did not write one), and its scalar outputs. Raises
        UsageError if an entry, name, shape or dtype does not match, and InputError if the schedule does something
        undefined.
        """
        if entry not in self._entries:
            raise ReferenceErrors.NO_ENTRY(entry=entry, entries=list(self._entries))
        with torch.no_grad():
            return self._entries[entry].run(inputs, {} if scalars is None else scalars)

    def tensor(self, name: str) -> torch.Tensor:
        """Return a live view of a tensor: accesses to it are accesses to the interpreter's memory."""
        if name not in self._memory.tensors:
            raise ReferenceErrors.NO_TENSOR(tensor=name, tensors=list(self._memory.tensors))
        return self._memory.tensors[name]

    @property
    def stages(self) -> frozenset[StageName]:
        """Return the stages that can be watched: all of them."""
        return frozenset(
            (kernel.name, pipeline.name, stage.name)
            for kernel in self.program.kernels
            for pipeline in pipelines(kernel.body)
            for stage in pipeline.stages
        )

    def watch(self, stages: Collection[StageName], watcher: Watcher | None) -> None:
        """See `sscc.runtime.backends.interpreter.Interpreter.watch`."""
        self._watch.set(stages, watcher)

    def reset(self) -> None:
        """Set every state to zero."""
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
        self._rank = owner._rank
        self._watch = owner._watch
        self._launches: Counter[str] = Counter()
        self._where = f"entry {entry.name!r}"
        self._actions = compile_block(entry.body, self._leaf)
        self._scalar_outputs = [getter(operand) for operand in entry.scalar_outputs]

    def run(
        self, inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, int]
    ) -> tuple[dict[str, torch.Tensor], tuple[int, ...]]:
        self._check_names(ReferenceErrors.OTHER_INPUTS, inputs, self._entry.inputs)
        if RANK in self._entry.scalar_inputs:
            scalars = {**scalars, RANK: self._rank}
        self._check_names(ReferenceErrors.OTHER_SCALARS, scalars, self._entry.scalar_inputs)
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
            raise ReferenceControlErrors.UNSET_SCALAR(where=self._where, scalar=error.args[0]) from None
        return {name: self._memory.tensors[name].clone() for name in self._entry.outputs}, results

    # -- calls

    def _check_names(self, kind: ErrorKind, values: Mapping[str, object], names: Sequence[str]) -> None:
        if set(values) != set(names):
            raise kind(entry=self._entry.name, expected=sorted(names), given=sorted(values))

    def _check_input(self, name: str, value: torch.Tensor) -> None:
        declared = self._memory.declared[name]
        dtypes = {Numerics().dtype(declared.dtype), self._numerics.dtype(declared.dtype)}
        if tuple(value.shape) != declared.shape or value.dtype not in dtypes:
            raise ReferenceErrors.OTHER_SHAPE(
                entry=self._entry.name,
                input=name,
                dtype=declared.dtype,
                shape=list(declared.shape),
                given_dtype=str(value.dtype),
                given_shape=list(value.shape),
            )

    # -- compilation

    def _leaf(self, item: Launch | Pipeline) -> Action:
        assert isinstance(item, Launch)  # only kernels contain pipelines
        code = self._kernels[item.kernel]
        launch = self._launch(item, code)
        if self._written is not None:
            launch = self._guarded(launch, item, code.kernel, self._written)
        watch, number = self._watch, self._launches[item.kernel]
        self._launches[item.kernel] += 1

        def numbered(environment: Environment) -> None:
            watch.launch = number
            launch(environment)

        return numbered

    def _launch(self, item: Launch, code: KernelCode) -> Action:
        where = f"{self._where}, launch of {item.kernel!r}"
        arguments = {
            param.name: _Argument(view, self._memory.tensors[view.tensor], param, where)
            for param, view in zip(code.kernel.params, item.args, strict=True)
        }
        operands = zip(code.kernel.scalars, item.scalars, strict=True)
        scalars = [(name, getter(value)) for name, value in operands]
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


class _Argument:
    """A view of a tensor as argument for a parameter of a kernel."""

    def __init__(self, view: View, tensor: torch.Tensor, param: Param, where: str) -> None:
        self._tensor = tensor
        self._offset = Offset(view)
        self._view = StridedView(view, tensor.numel(), param.access, where)
        self.static = self._offset.static
        self.offset = self._offset.at

    def at(self, environment: Environment) -> torch.Tensor:
        """Return the torch view. Raises InputError if it leaves the tensor."""
        return self._view.at(self._tensor, self.offset(environment))
