"""Affine access maps as strided torch views: element ``map(point)`` of a parameter at every point.

The composition of an affine map with a strided view is again strided, so every access is one `as_strided`: dimension d
of the iteration space gets the stride sum_r map[r][d] * stride[r]. Dimensions that a map does not use get size
1 and broadcast. Maps with negative coefficients have no torch view and are refused. Only accesses along an indirect
axis are copies, created at every firing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import mul

import torch

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import Access
from sscc.ir.sizes import dense_strides
from sscc.runtime.backends.reference.interface import Interface, Views
from sscc.runtime.backends.reference.views import MalformedKind, injective


class ReferenceAccessErrors(MalformedKind):
    BACKWARDS = "the access map of {param!r} has negative coefficients along axis {axis}: {coefficients}"
    OUT_OF_BOUNDS = "the access map of {param!r} reaches {first} .. {last} of axis {axis}, whose size is {size}"


class ReferenceIndexErrors(ErrorKind):
    OUT_OF_BOUNDS = InputError, (
        "body {body!r} reads elements {first} .. {last} of axis {axis} of {param!r}, whose size is {size}"
    )


class AccessMap:
    """A checked access map over an iteration space of sizes `dims`.

    Raises InputError if the map leaves the bounds of the parameter or has negative coefficients.
    """

    def __init__(self, access: Access, dims: tuple[int, ...], interface: Interface) -> None:
        self.param = interface.params[access.param]
        self._body = interface.body.name
        self._dims = dims
        shape = self.param.shape
        # A dimension of size 1 contributes nothing, whatever its coefficient is.
        self._rows = [[c if n > 1 else 0 for c, n in zip(row, dims, strict=False)] for row in access.map]
        self._constants = [row[-1] for row in access.map]
        self._columns = [
            [(axis, row[dim]) for axis, row in enumerate(self._rows) if row[dim]] for dim in range(len(dims))
        ]
        self._identity = shape == dims and all(
            column == [(dim, 1)] or dims[dim] == 1 for dim, column in enumerate(self._columns)
        )
        self._check_bounds(interface)
        self._index: AccessMap | None = None
        if access.indirect is not None:
            self._axis = access.indirect.axis
            self._index = AccessMap(access.indirect.index, dims, interface)

    def _check_bounds(self, interface: Interface) -> None:
        for axis, (row, constant, size) in enumerate(zip(self._rows, self._constants, self.param.shape, strict=True)):
            if any(coefficient < 0 for coefficient in row):
                raise ReferenceAccessErrors.BACKWARDS(
                    where=interface.where, param=self.param.name, axis=axis, coefficients=row
                )
            highest = constant + sum(c * (n - 1) for c, n in zip(row, self._dims, strict=True))
            if constant < 0 or highest >= size:
                raise ReferenceAccessErrors.OUT_OF_BOUNDS(
                    where=interface.where, param=self.param.name, axis=axis, first=constant, last=highest, size=size
                )

    def uses(self, dim: int) -> bool:
        return bool(self._columns[dim]) or (self._index is not None and self._index.uses(dim))

    def injective(self, dims: Sequence[int]) -> bool:
        """Return True if any two points that differ in `dims` access different elements of a dense parameter."""
        strides = dense_strides(self.param.shape)
        return injective((sum(r[d] * s for r, s in zip(self._rows, strides, strict=True)), self._dims[d]) for d in dims)

    def view(self, tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        """Return the elements accessed over the iteration dimensions `dims`, in this order; size 1 for unused ones."""
        if self._identity and list(dims) == list(range(len(self._dims))):
            return tensor
        strides = tensor.stride()
        offset = tensor.storage_offset() + sum(map(mul, self._constants, strides))
        steps = [sum([strides[axis] * factor for axis, factor in self._columns[dim]]) for dim in dims]
        sizes = [self._dims[dim] if self._columns[dim] else 1 for dim in dims]
        return tensor.as_strided(sizes, steps, offset)

    def bind(self, views: Views, dims: Sequence[int]) -> Callable[[], torch.Tensor]:
        """Return a function that gives the elements at each firing, shaped as by `view`; along an indirect axis they
        are a copy."""
        tensor = views[self.param.name]
        view = self.view(tensor, dims)
        if self._index is None:
            return lambda: view
        axis, size, stride = self._axis, self.param.shape[self._axis], tensor.stride(self._axis)
        windows = view.as_strided((size, *view.shape), (stride, *view.stride()), view.storage_offset())
        index = self._index.view(views[self._index.param.name], dims).unsqueeze(0)

        def gather() -> torch.Tensor:
            check_indices(index, self._body, self.param.name, axis, size)
            return torch.take_along_dim(windows, index, 0).squeeze(0)

        return gather


def check_indices(index: torch.Tensor, body: str, name: str, axis: int, size: int) -> None:
    """Raise InputError if an index is outside of an axis of parameter `name` of a body."""
    low, high = torch.aminmax(index)
    if low < 0 or high >= size:
        raise ReferenceIndexErrors.OUT_OF_BOUNDS(
            body=body, param=name, axis=axis, first=int(low), last=int(high), size=size
        )
