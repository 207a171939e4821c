"""Weights in the order in which products read them: panels of 16 outputs, with the summed dimension outermost in a
panel."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from sscc.ir.errors import ErrorKind, InputError, InternalError
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.figures import LINE, PACKED_AT_ONCE

_STORED = {"f32": np.dtype(np.float32), "bf16": np.dtype(np.uint16)}


class WeightPanelErrors(ErrorKind):
    DTYPE = InternalError, "weights of dtype {dtype} cannot be packed in panels"
    SIZES = InternalError, "the sizes and strides of panels must be at least 1: {panels}"
    TOO_FEW_ELEMENTS = (
        InputError,
        "a weight of dtype {dtype} with {elements} elements does not hold {n} x {k} {wanted_dtype} with strides "
        "{n_stride}, {k_stride}",
    )


@dataclass(frozen=True)
class Panels:
    """Packed layout of a slice of a weight for out[m, n] = sum over k of a[m, k] * b[n, k].

    The layout is f32 [ceil(N / 16)][K][16], or bf16 [ceil(N / 16)][ceil(K / 2)][16][2] with pairs of k side by side;
    elements with n >= N or k >= K are zero. A *unit* is a line of 64 bytes of a panel: 16 x 1 f32, or 16 x 2 bf16.

    Attributes:
        n, k: outputs and length of the sums, both at least 1.
        dtype: "f32" or "bf16".
        n_stride, k_stride: elements from b[n, k] to b[n + 1, k] and to b[n, k + 1] in the checkpoint's layout.
    """

    n: int
    k: int
    dtype: str
    n_stride: int
    k_stride: int

    def __post_init__(self) -> None:
        if self.dtype not in _STORED:
            raise WeightPanelErrors.DTYPE(dtype=self.dtype)
        if min(self.n, self.k, self.n_stride, self.k_stride) < 1:
            raise WeightPanelErrors.SIZES(panels=self)

    @property
    def count(self) -> int:
        """Panels."""
        return -(-self.n // LANES)

    @property
    def depth(self) -> int:
        """Number of adjacent k in a unit."""
        return 2 if self.dtype == "bf16" else 1

    @property
    def units(self) -> int:
        """Lines of 64 bytes of a panel."""
        return -(-self.k // self.depth)

    @property
    def panel_bytes(self) -> int:
        return self.units * LINE

    @property
    def packed_bytes(self) -> int:
        return self.count * self.panel_bytes

    @property
    def packed_shape(self) -> tuple[int, int, int, int]:
        """Shape [panels, units, outputs of a panel, k of a unit]."""
        return (self.count, self.units, LANES, self.depth)

    @property
    def span(self) -> int:
        """Elements from the slice's first to its last, both included."""
        return (self.n - 1) * self.n_stride + (self.k - 1) * self.k_stride + 1

    def pack(self, array: npt.NDArray[np.generic], stack: int = 0) -> npt.NDArray[np.generic]:
        """Return the slice in panels.

        Args:
            array: dense array that holds the slice; after the first `stack` dimensions, b[n, k] is element n * n_stride
                + k * k_stride of the flattened other dimensions. f32, or uint16 for bf16.
            stack: number of leading dimensions; each of their elements is packed separately.

        Returns:
            Array of shape [*stacked, *packed_shape] and the dtype of `array`.

        Raises:
            InputError: the array has another dtype or too few elements.
        """
        stacked = array.shape[:stack]
        held = prod(array.shape[stack:])
        if array.dtype != _STORED[self.dtype] or held < self.span:
            raise WeightPanelErrors.TOO_FEW_ELEMENTS(
                dtype=array.dtype, elements=held, n=self.n, k=self.k, wanted_dtype=self.dtype,
                n_stride=self.n_stride, k_stride=self.k_stride,
            )  # fmt: skip
        flat = np.ascontiguousarray(array).reshape(prod(stacked), held)
        packed = np.empty((prod(stacked), *self.packed_shape), array.dtype)
        for source, target in zip(flat, packed, strict=True):
            self._pack_one(source, target)
        return packed.reshape(*stacked, *self.packed_shape)

    def unpack(self, packed: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Return b, dense [.., N, K], from packed [.., *packed_shape]."""
        rows = np.moveaxis(packed, -2, -3).reshape(*packed.shape[:-4], self.count * LANES, self.units * self.depth)
        return np.ascontiguousarray(rows[..., : self.n, : self.k])

    def _pack_one(self, source: npt.NDArray[np.generic], target: npt.NDArray[np.generic]) -> None:
        """Pack one slice [span] into [*packed_shape]."""
        whole = self.n // LANES
        size = source.itemsize
        step = max(1, PACKED_AT_ONCE // (LANES * self.k))
        for first in range(0, whole, step):
            panels = min(step, whole - first)
            view = np.lib.stride_tricks.as_strided(
                source[first * LANES * self.n_stride :],
                (panels, LANES, self.k),
                (LANES * self.n_stride * size, self.n_stride * size, self.k_stride * size),
                writeable=False,
            )
            self._place(view, target[first : first + panels])
        if whole < self.count:
            left = self.n - whole * LANES
            view = np.lib.stride_tricks.as_strided(
                source[whole * LANES * self.n_stride :],
                (1, left, self.k),
                (0, self.n_stride * size, self.k_stride * size),
                writeable=False,
            )
            target[whole] = 0
            self._place(view, target[whole:, :, :left])

    def _place(self, view: npt.NDArray[np.generic], target: npt.NDArray[np.generic]) -> None:
        """Copy rows [panels, outputs, K] into panels [panels, units, outputs, depth], with a zero after an odd K."""
        if self.depth == 1:
            target[..., 0] = view.transpose(0, 2, 1)
            return
        pairs = self.k // 2
        if self.k_stride == 1:
            whole = _as_pairs(view[..., : 2 * pairs])
            np.copyto(_as_pairs(target[:, :pairs])[..., 0], whole.transpose(0, 2, 1))
        else:
            for half in range(2):
                target[:, :pairs, :, half] = view[..., half : 2 * pairs : 2].transpose(0, 2, 1)
        if pairs < self.units:
            target[:, pairs, :, 0] = view[..., -1]
            target[:, pairs, :, 1] = 0


def _as_pairs(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return elements of 2 bytes, whose last axis is dense and of even length, as elements of 4 bytes."""
    return rows.view(np.uint32)
