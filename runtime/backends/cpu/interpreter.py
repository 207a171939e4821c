"""The native interpreter: a schedule compiled for this CPU and executed by the C++ core."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping
from functools import cached_property

import numpy as np

from sscc.ir.choices import RANK
from sscc.ir.errors import ErrorKind, InputError, UsageError
from sscc.ir.schedule import Program, Tensor
from sscc.ir.sizes import ByteCount
from sscc.runtime.artifact.tensor_files import NUMPY_DTYPES, Array
from sscc.runtime.backends.collectives.group import ALONE, Group, Ranks
from sscc.runtime.backends.cpu.plan.collectives import windows_of
from sscc.runtime.backends.cpu.plan.library import NativeCode, make_code
from sscc.runtime.backends.cpu.plan.plan import MEMORY, decode_plan
from sscc.runtime.backends.cpu.plan.storage import Packings, PanelPacking
from sscc.runtime.backends.cpu.plan.watching import NativeStages
from sscc.runtime.backends.cpu.plan.weights import packed_weights
from sscc.runtime.backends.interpreter import HostTensor, InProcess, MemoryUse, StageName, Watcher
from sscc.runtime.backends.stage_trace import StageTrace
from sscc.runtime.support import _native


class NativeInterpreterErrors(ErrorKind):
    MEMORY = (
        InputError,
        "the schedule needs an arena of {arena} and memory for its on-chip buffers, which exceed this machine's memory",
    )
    NO_ENTRY = UsageError, "the schedule has no entry {entry!r}, only {entries!r}"
    NO_TENSOR = UsageError, "the schedule has no tensor {tensor!r} in memory, only {tensors!r}"
    INPUT_DIFFERS = (
        UsageError,
        "input {input!r} is {dtype} [{shape}], but the schedule takes {wanted_dtype} [{wanted_shape}]",
    )
    INPUT_NAMES = UsageError, "entry {entry!r} takes the inputs {inputs!r}, not {names!r}"
    SCALAR_NAMES = UsageError, "entry {entry!r} takes the scalars {inputs!r}, not {names!r}"
    NO_WEIGHT = InputError, "the {role} {tensor!r} of the schedule is missing"
    WEIGHT_DIFFERS = (
        InputError,
        "{role} {tensor!r} is {dtype} [{shape}], but the schedule takes {wanted_dtype} [{wanted_shape}]",
    )


class NativeInterpreter(InProcess):
    """Interpreter that runs the entries of a program as native code.

    Args:
        program: schedule.
        weights: arrays by `Tensor.name`, for every weight and constant of the program, in the schedule's layout or as
            returned by `store_weights`. Stored arrays are used without a copy.
        packed: packings of the weights; None for the result of `packed_weights`.
        code: code of the program; None to generate it.
        threads: number of threads; None for all CPUs that the process may use.
        group: group of ranks that includes this one, for a program of several ranks.

    Raises:
        UsageError: the group and the program have different ranks.
        InputError: the program is malformed or not supported by native code, or the weights are not those of the
            program.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Array],
        *,
        packed: Packings | None = None,
        code: NativeCode | None = None,
        threads: int | None = None,
        group: Group = ALONE,
    ) -> None:
        Ranks(group, program.grid)
        self.program, self._number = program, group.rank
        packings = packed_weights(program) if packed is None else packed
        self._code = make_code(program, packings=packings) if code is None else code
        self._weights = store_weights(program, packings, weights)
        externals = [(name, array.ctypes.data, array.nbytes) for name, array in self._weights.items()]
        count = threads or _native.usable_threads()
        guarded = self._code.violations is not None
        shape = windows_of(program.grid, program.kernels, program.bodies)
        self._windows = None if shape is None else group.windows(shape.nbytes)
        self._rank = () if shape is None else (group.rank,)
        windows = None
        if self._windows is not None:
            windows = (self._windows.address, group.rank, group.ranks, self._windows.meeting)
        try:
            self.core = _native.Core(
                self._code.plan, self._code.addresses, externals, count, windows=windows, guarded=guarded
            )
        except MemoryError:
            raise NativeInterpreterErrors.MEMORY(arena=ByteCount(program.arena_bytes)) from None
        self._tensors = {t.name: t for t in program.tensors if t.name not in self._weights}
        self._entries = {entry.name: entry for entry in program.entries}
        self._memory = _memory(self.core)

    def __repr__(self) -> str:
        threads = f"{self.core.threads} thread{'' if self.core.threads == 1 else 's'}"
        return f"NativeInterpreter({self.program.in_words()}; {threads}; {self.memory().in_words()})"

    @property
    def host_threads(self) -> _native.Team:
        """Threads of the core, see `Interpreter`."""
        return self.core.team

    def run(
        self,
        entry: str,
        inputs: Mapping[str, Array],
        scalars: Mapping[str, int] | None = None,
        *,
        copy: bool = True,
    ) -> tuple[dict[str, Array], tuple[int, ...]]:
        """Call an entry with all of its inputs and scalar inputs, by name.

        Returns its outputs by name (undefined where the call did not write one), and its scalar outputs. The outputs
        are copies or, without `copy`, live views, which later calls overwrite.
        Raises UsageError if the entry, a name, a shape or a dtype does not match; InternalError if checked code
        accesses memory outside an operand.
        """
        if entry not in self._entries:
            raise NativeInterpreterErrors.NO_ENTRY(entry=entry, entries=list(self._entries))
        called, numbers = self._entries[entry], {} if scalars is None else scalars
        if RANK in called.scalar_inputs:
            numbers = {**numbers, RANK: self._number}
        if inputs.keys() != set(called.inputs):
            raise NativeInterpreterErrors.INPUT_NAMES(entry=entry, inputs=called.inputs, names=list(inputs))
        if numbers.keys() != set(called.scalar_inputs):
            raise NativeInterpreterErrors.SCALAR_NAMES(entry=entry, inputs=called.scalar_inputs, names=list(numbers))
        for name in called.inputs:
            self._set(name, inputs[name])
        results = self.core.run(entry, [*(numbers[name] for name in called.scalar_inputs), *self._rank])
        if self._code.violations is not None:
            self._code.violations.raise_first()
        views = {name: self.tensor(name) for name in called.outputs}
        return {name: view.copy() for name, view in views.items()} if copy else views, tuple(results)

    def device_tensor(self, name: str) -> HostTensor:
        """See `Interpreter`."""
        return HostTensor(self.tensor(name))

    def tensor(self, name: str) -> Array:
        """Return a view of an input, output, state or temporary."""
        if name not in self._tensors:
            raise NativeInterpreterErrors.NO_TENSOR(tensor=name, tensors=list(self._tensors))
        tensor = self._tensors[name]
        raw = self._memory[tensor.address : tensor.address + tensor.nbytes]
        return raw.view(NUMPY_DTYPES[tensor.dtype]).reshape(tensor.shape)

    def reset(self) -> None:
        """Set every state to zero."""
        for tensor in self._tensors.values():
            if tensor.role == "state":
                self.tensor(tensor.name)[...] = 0

    def watch(self, stages: Collection[StageName], watcher: Watcher | None) -> None:
        """See `Interpreter.watch`. The first call scans the plan for stages."""
        self._stages.watch(stages, watcher)

    @property
    def stages(self) -> frozenset[StageName]:
        """Stages that can be watched."""
        return self._stages.names

    @cached_property
    def _stages(self) -> NativeStages:
        return NativeStages(self.program, decode_plan(self._code.plan), self.core)

    def start_trace(self, capacity: int) -> None:
        """Record the work of every thread, the latest `capacity` events of each, until `end_trace`."""
        self.core.trace(True, capacity)

    def end_trace(self) -> StageTrace:
        """Return the events since `start_trace`, and stop recording."""
        self.core.trace(False)
        counts = [0] * self.core.threads
        for _, thread, count, _ in self.core.totals():
            counts[thread] += count
        return StageTrace(self.core.labels, self.core.threads, self.core.events(), counts)

    def memory(self) -> MemoryUse:
        """Return the sizes of the interpreter's memory."""
        states = sum(t.nbytes for t in self._tensors.values() if t.role == "state")
        weights = sum(array.nbytes for array in self._weights.values())
        return MemoryUse(weights, states, self.core.allocated_bytes - states)

    def _set(self, name: str, value: Array) -> None:
        target = self.tensor(name)
        if value.shape != target.shape or value.dtype != target.dtype:
            raise NativeInterpreterErrors.INPUT_DIFFERS(
                input=name, dtype=value.dtype, shape=value.shape, wanted_dtype=target.dtype, wanted_shape=target.shape
            )
        target[...] = value


def store_weights(program: Program, packed: Packings, weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return weights and constants in the layout of native code: packed for products, dense and aligned.

    Args:
        weights: arrays in the schedule's layout, or stored already; stored arrays are used without a copy.

    Raises InputError for a missing array, or one with another shape or dtype than the program's.
    """
    stored = {}
    for tensor in program.tensors:
        if tensor.role in ("weight", "constant"):
            stored[tensor.name] = _stored(tensor, packed.get(tensor.name), weights)
    return stored


def _stored(tensor: Tensor, packing: PanelPacking | None, weights: Mapping[str, Array]) -> Array:
    if tensor.name not in weights:
        raise NativeInterpreterErrors.NO_WEIGHT(role=tensor.role, tensor=tensor.name)
    array = weights[tensor.name]
    dtype = NUMPY_DTYPES[tensor.dtype]
    packed = packing is not None and array.shape == packing.stored_shape(tensor.shape)
    if (array.shape != tensor.shape and not packed) or array.dtype != dtype:
        raise NativeInterpreterErrors.WEIGHT_DIFFERS(
            role=tensor.role, tensor=tensor.name, dtype=array.dtype, shape=array.shape,
            wanted_dtype=tensor.dtype, wanted_shape=tensor.shape,
        )  # fmt: skip
    if packed or packing is None:
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)
    others = packing.companions(tensor.name)
    if missing := next((name for name in others if name not in weights), None):
        raise NativeInterpreterErrors.NO_WEIGHT(role=tensor.role, tensor=missing)
    return packing.pack(array, *(weights[name] for name in others))


def _memory(core: _native.Core) -> Array:
    address, nbytes = core.region(MEMORY)
    memory: Array = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    return memory


__all__ = ["NativeInterpreter", "store_weights"]
