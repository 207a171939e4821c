"""Vector programs and reductions: scalar operations evaluated with torch over a whole iteration space.

Each value is a tensor with one axis per iteration dimension, of size 1 if it does not depend on that dimension, so
torch's broadcasting replaces the loop nest. All reads of a step happen before its writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

import torch
from torch import Tensor

from sscc.ir.opspec import executes
from sscc.ir.schedule import Instr, Reduction, Vector
from sscc.runtime.backends.reference import scalar_ops
from sscc.runtime.backends.reference.access import AccessMap, check_indices
from sscc.runtime.backends.reference.interface import Bind, Fire, Interface, Scalars, Views
from sscc.runtime.backends.reference.numerics import BOOLEAN
from sscc.runtime.backends.reference.views import MalformedKind, overlap


class ReferenceVectorErrors(MalformedKind):
    WRITES_TWICE = "a step writes elements of {param!r} more than once"

Operation = tuple[int, Callable[..., Tensor], tuple[int, ...]]

_OF_ONE_TYPE = {**scalar_ops.FLOAT, **scalar_ops.INTEGER, **scalar_ops.BITWISE}
_COMPARE = {**scalar_ops.COMPARE_FLOAT, **scalar_ops.COMPARE_INTEGER}


class PointProgram:
    """The instructions of a vector program, resolved to numbered value slots and torch functions."""

    def __init__(self, step: Union[Vector, Reduction], interface: Interface) -> None:
        self._interface = interface
        self._dims = step.dims
        self._slots: dict[str, int] = {}
        self._types: list[str] = []
        self._initial: list[Tensor | None] = []
        self._index_dims: dict[int, int] = {}
        self._scalars: list[tuple[int, str]] = []
        self._loaded: dict[str, int] = {}
        self._operations: list[Operation] = []
        self.maps = [AccessMap(access, step.dims, interface) for access in step.inputs]
        for number, access_map in enumerate(self.maps):
            self._slots[f"in{number}"] = self._new(access_map.param.dtype)
        for instr in step.body:
            self._slots[instr.name] = self._compile(instr)
        self._result = self._slot(step.result, None)

    @property
    def result_type(self) -> str:
        return self._types[self._result]

    def bind(self, views: Views, target: Tensor | None = None) -> Callable[[Scalars], Tensor]:
        """Fix the tensors; the returned function evaluates the result over the iteration space.

        The result may be copied to `target` at once, even if an input overlaps it.
        """
        bound = list(self._initial)
        everything = range(len(self._dims))
        for number, access_map in enumerate(self.maps):
            bound[number] = access_map.view(views[access_map.param.name], everything)
        inputs = bound[: len(self.maps)]
        tangled = target is not None and any(_tangled(value, target) for value in inputs if value is not None)
        for name, slot in self._loaded.items():
            bound[slot] = views[name]
        operations, scalar_slots, result = self._operations, self._scalars, self._result
        copied = bound[result]
        if copied is not None and not tangled:  # the program only copies an input or a constant
            return lambda _: copied

        def evaluate(scalars: Scalars) -> Tensor:
            values = list(bound)
            for slot, name in scalar_slots:
                values[slot] = torch.scalar_tensor(scalars[name], dtype=torch.int64)
            for slot, function, args in operations:
                values[slot] = function(*[values[arg] for arg in args])
            value = values[result]
            assert value is not None  # every slot is an input, a constant or the result of an operation
            return value.clone() if tangled else value

        return evaluate

    # -- names and slots

    def _new(self, dtype: str, value: Tensor | None = None) -> int:
        self._types.append("i64" if dtype == "index" else dtype)
        self._initial.append(value)
        return len(self._types) - 1

    def _slot(self, arg: Union[int, float, str], literal_type: str | None) -> int:
        """Return the slot of a name, or of a literal of type `literal_type`."""
        if isinstance(arg, str):
            if arg not in self._slots:
                slot = self._new("i64")
                self._scalars.append((slot, arg))
                self._slots[arg] = slot
            return self._slots[arg]
        assert literal_type is not None  # literals only occur where their type is known
        return self._new(literal_type, torch.tensor(arg, dtype=self._interface.numerics.dtype(literal_type)))

    # -- instructions

    def _compile(self, instr: Instr) -> int:
        special = {"const": self._const, "index": self._index, "load": self._load}.get(instr.op)
        if special is not None:
            return special(instr)
        function, types = self._operation(instr)
        args = tuple(self._slot(arg, dtype) for arg, dtype in zip(instr.args, types, strict=True))
        return self._emit(instr.type, function, args)

    def _emit(self, dtype: str, function: Callable[..., Tensor], args: tuple[int, ...]) -> int:
        slot = self._new(dtype)
        self._operations.append((slot, function, args))
        return slot

    def _operation(self, instr: Instr) -> tuple[Callable[..., Tensor], list[str]]:
        """Return the torch function of an operation, and the types of its arguments, which literals take."""
        result = "i64" if instr.type == "index" else instr.type
        first = self._first_type(instr)
        if instr.op == "select":
            return torch.where, [BOOLEAN, result, result]
        if instr.op == "fpowi":
            return torch.pow, [result, self._first_type(instr, skip=1)]
        if instr.op in _OF_ONE_TYPE:
            return _OF_ONE_TYPE[instr.op], [result] * len(instr.args)
        if instr.op in _COMPARE:
            return _COMPARE[instr.op], [first, first]
        convert, dtype = scalar_ops.CONVERT[instr.op], self._interface.numerics.dtype(result)
        return lambda x: convert(x, dtype), [first]

    def _first_type(self, instr: Instr, skip: int = 0) -> str:
        """Return the type of the first named argument, which is also the type of literals."""
        for arg in instr.args[skip:]:
            if isinstance(arg, str):
                return self._types[self._slot(arg, None)]
        return "i64" if instr.type in ("index", BOOLEAN) or skip else instr.type

    def _const(self, instr: Instr) -> int:
        return self._slot(instr.args[0], instr.type)

    def _index(self, instr: Instr) -> int:
        (dim,) = instr.args
        assert isinstance(dim, int)
        shape = [size if axis == dim else 1 for axis, size in enumerate(self._dims)]
        slot = self._new(instr.type, torch.arange(self._dims[dim]).view(shape))
        self._index_dims[slot] = dim
        return slot

    def _load(self, instr: Instr) -> int:
        name, *indices = instr.args
        param = self._interface.params[str(name)]
        slots = tuple(self._slot(index, "i64") for index in indices)
        unsafe = [axis for axis, slot in enumerate(slots) if not self._safe(slot, param.shape[axis])]
        if param.name not in self._loaded:
            self._loaded[param.name] = self._new(param.dtype)
        return self._emit(instr.type, _loader(self._interface, param.name, unsafe), (self._loaded[param.name], *slots))

    def _safe(self, slot: int, size: int) -> bool:
        """Return True if an index cannot leave 0 .. size - 1, whatever the inputs are."""
        if slot in self._index_dims:
            return self._dims[self._index_dims[slot]] <= size
        literal = self._initial[slot]
        return literal is not None and 0 <= int(literal) < size


def _tangled(source: Tensor, target: Tensor) -> bool:
    """Return True if an element of `target` may share its bytes with a different element of `source`."""
    same = source.data_ptr() == target.data_ptr() and source.stride() == target.stride()
    return not same and overlap(source, target)


def _loader(interface: Interface, name: str, unsafe: Sequence[int]) -> Callable[..., Tensor]:
    def load(source: Tensor, *indices: Tensor) -> Tensor:
        for axis in unsafe:
            check_indices(indices[axis], interface.body.name, name, axis, source.shape[axis])
        return source[indices]

    return load


# ------------------------------------------------------------------------------------------------- steps


@executes(Vector)
def compile_vector(step: Vector, interface: Interface) -> Bind:
    """Compile out[map(point)] = result(point). Refuses an output in which two points write the same element."""
    program = PointProgram(step, interface)
    dims = range(len(step.dims))
    output = _output(step, interface, dims)

    def bind(views: Views) -> Fire:
        target = output.view(views[output.param.name], dims)
        evaluate = program.bind(views, target)

        def fire(scalars: Scalars) -> None:
            target.copy_(evaluate(scalars))

        return fire

    return bind


def _reduce_each(reduce: Callable[[Tensor, int], Tensor], value: Tensor, axes: Sequence[int]) -> Tensor:
    for axis in sorted(axes, reverse=True):
        value = reduce(value, axis)
    return value


_COMBINE: dict[str, tuple[Callable[[Tensor, Sequence[int]], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "addf": (lambda value, axes: torch.sum(value, list(axes)), torch.add),
    "mulf": (lambda value, axes: _reduce_each(torch.prod, value, axes), torch.mul),
    "maximumf": (lambda value, axes: torch.amax(value, list(axes)), torch.maximum),
    "minimumf": (lambda value, axes: torch.amin(value, list(axes)), torch.minimum),
}


@executes(Reduction)
def compile_reduction(step: Reduction, interface: Interface) -> Bind:
    """Compile out[map(point)] = combine over `reduce` of result(point), starting with `init`, in f32 or f64; rounded on
    writing."""
    program = PointProgram(step, interface)
    kept = [dim for dim in range(len(step.dims)) if dim not in step.reduce]
    output = _output(step, interface, kept)
    combine, join = _COMBINE[step.combine]
    accumulate = torch.promote_types(interface.numerics.accumulate, interface.numerics.dtype(program.result_type))
    init = torch.tensor(step.init, dtype=accumulate)

    def bind(views: Views) -> Fire:
        evaluate = program.bind(views)
        target = output.view(views[output.param.name], kept)

        def fire(scalars: Scalars) -> None:
            value = evaluate(scalars).to(accumulate).expand(step.dims)
            value = combine(value, step.reduce) if step.reduce else value
            target.copy_(join(value, init))

        return fire

    return bind


def _output(step: Union[Vector, Reduction], interface: Interface, dims: Sequence[int]) -> AccessMap:
    output = AccessMap(step.output, step.dims, interface)
    check_output(output, interface, dims)
    return output


def check_output(output: AccessMap, interface: Interface, dims: Sequence[int]) -> None:
    """Raise InputError if two points of `dims` write the same element."""
    if not output.injective(dims):
        raise ReferenceVectorErrors.WRITES_TWICE(where=interface.where, param=output.param.name)
