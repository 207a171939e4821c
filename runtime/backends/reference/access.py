"""Affine access maps as strided torch views: element ``map(point)`` of a parameter at every point.

An affine map composed with a strided view is again strided, so every access is one `as_strided`: dimension d
of the iteration space gets the stride sum_r map[r][d] * stride[r]. Dimensions that a map does not use get size
1 and broadcast. Maps that walk backwards (negative coefficients) have no torch view and are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

import torch

from sscc.ir.schedule import Access
from sscc.ir.sizes import dense_strides
from sscc.runtime.backends.reference.interface import Interface
from sscc.runtime.backends.reference.views import injective


class AccessMap:
    """A checked access map over an iteration space of sizes `dims`.

    Raises InputError where the map does not fit the parameter, leaves its bounds or walks backwards.
    """

    def __init__(self, access: Access, dims: tuple[int, ...], interface: Interface) -> None:
        self.param = interface.param(access.param)
        self._dims = dims
        shape = self.param.shape
        if len(access.map) != len(shape) or any(len(row) != len(dims) + 1 for row in access.map):
            interface.refuse(
                f"an access map of {self.param.name!r} must have {len(shape)} rows of {len(dims) + 1} numbers, "
                f"it is {access.map}"
            )
        if any(size < 1 for size in dims):
            interface.refuse(f"an iteration space has dimensions {list(dims)}, each must be at least 1")
        # A dimension of size 1 contributes nothing, whatever its coefficient.
        self._rows = [[c if n > 1 else 0 for c, n in zip(row, dims, strict=False)] for row in access.map]
        self._constants = [row[-1] for row in access.map]
        self._columns = [
            [(axis, row[dim]) for axis, row in enumerate(self._rows) if row[dim]] for dim in range(len(dims))
        ]
        self._identity = shape == dims and all(
            column == [(dim, 1)] or dims[dim] == 1 for dim, column in enumerate(self._columns)
        )
        self._check_bounds(interface)

    def _check_bounds(self, interface: Interface) -> None:
        for axis, (row, constant, size) in enumerate(zip(self._rows, self._constants, self.param.shape, strict=True)):
            if any(coefficient < 0 for coefficient in row):
                interface.refuse(f"an access map of {self.param.name!r} walks backwards along axis {axis}: {row}")
            highest = constant + sum(c * (n - 1) for c, n in zip(row, self._dims, strict=True))
            if constant < 0 or highest >= size:
                interface.refuse(
                    f"an access map reaches {constant} .. {highest} of axis {axis} of {self.param.name!r}, "
                    f"whose size is {size}"
                )

    def uses(self, dim: int) -> bool:
        return bool(self._columns[dim])

    def injective(self, dims: Sequence[int]) -> bool:
        """Whether no two points that differ in `dims` touch the same element of a dense parameter."""
        strides = dense_strides(self.param.shape)
        return injective((sum(r[d] * s for r, s in zip(self._rows, strides, strict=True)), self._dims[d]) for d in dims)

    def view(self, tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        """The elements that the iteration dimensions `dims`, in this order, touch; size 1 where unused."""
        if self._identity and list(dims) == list(range(len(self._dims))):
            return tensor
        strides = tensor.stride()
        offset = tensor.storage_offset() + sum(map(mul, self._constants, strides))
        steps = [sum([strides[axis] * factor for axis, factor in self._columns[dim]]) for dim in dims]
        sizes = [self._dims[dim] if self._columns[dim] else 1 for dim in dims]
        return tensor.as_strided(sizes, steps, offset)
