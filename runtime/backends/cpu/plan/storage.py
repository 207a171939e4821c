"""Layout of weights in memory. A weight that only products (and gathers of rows) read is packed into panels.

A packed weight is a stack of slices that are packed separately. The values of a quantized weight are interleaved with
the scales and zero points or minimums of their groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sscc.runtime.artifact.tensor_files import BFLOAT16, Array
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.products.packing import Panels
from sscc.runtime.backends.cpu.products.quantized_packing import QuantizedPanels


@dataclass(frozen=True)
class PanelPacking:
    """Packing of a weight.

    Attributes:
        panels: panels of each slice.
        slice_elements: elements of a slice in the schedule's tensor.
        row_elements: elements from one row of a slice to the next, in the schedule's tensor.
    """

    panels: Panels | QuantizedPanels
    slice_elements: int
    row_elements: int

    @property
    def quantized(self) -> bool:
        return isinstance(self.panels, QuantizedPanels)

    @property
    def padded(self) -> bool:
        """True if the panels have padding besides the rows of a slice. Only whole slices then have an offset."""
        odd = isinstance(self.panels, Panels) and self.panels.k % self.panels.depth != 0
        return odd or self.panels.n % LANES != 0

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the stored shape of a tensor."""
        slices = int(np.prod(shape)) // self.slice_elements
        if isinstance(self.panels, Panels):
            return (slices, *self.panels.packed_shape)
        return (slices, self.panels.count, self.panels.blocks, self.panels.block_bytes)

    def stored_bytes(self, elements: int) -> int:
        """Return the stored size in bytes of a number of elements, which must be whole slices."""
        return elements // self.slice_elements * self.panels.packed_bytes

    def offset(self, element: int) -> int:
        """Return the offset in bytes of the slice or panel that begins with an element of the schedule's tensor."""
        whole, rest = divmod(element, self.slice_elements)
        return whole * self.panels.packed_bytes + rest // (self.row_elements * LANES) * self.panels.panel_bytes

    def companions(self, name: str) -> tuple[str, ...]:
        """Return the names of the tensors that are packed with a tensor: the other parts of a quantized weight."""
        if isinstance(self.panels, Panels):
            return ()
        first, *others = (part.name for part in self.panels.format.parts)
        stem = name.removesuffix(first)
        return tuple(f"{stem}{part}" for part in others)

    def pack(self, array: Array, *others: Array) -> Array:
        """Pack a tensor, or some of its slices; the first part of a quantized weight with the others."""
        slices = array.size // self.slice_elements
        if isinstance(self.panels, Panels):
            raw = _bits(array).reshape(slices, self.slice_elements)
            return self.panels.pack(raw, stack=1).view(array.dtype)
        parts = [np.ascontiguousarray(part).reshape(slices, self.panels.n, -1) for part in (array, *others)]
        return self.panels.pack(*parts).view(array.dtype)

    def pieces(self, array: Array, *others: Array) -> Iterator[Array]:
        """Yield the result of `pack` in pieces, in the order of memory."""
        if isinstance(self.panels, Panels):
            yield self.pack(array)
            return
        slices = array.size // self.slice_elements
        parts = [np.ascontiguousarray(part).reshape(slices, self.panels.n, -1) for part in (array, *others)]
        yield from self.panels.pieces(*parts)

    def unpack(self, stored: Array, shape: tuple[int, ...]) -> Array:
        """Return the tensor that was packed; the first part of a quantized weight. The inverse of `pack`."""
        if isinstance(self.panels, QuantizedPanels):
            return self.panels.unpack(stored.view(np.uint8))[0].view(stored.dtype).reshape(shape)
        rows = self.panels.unpack(_bits(stored)).view(stored.dtype)
        if self.panels.n_stride == 1:
            rows = rows.swapaxes(-1, -2)
        return np.ascontiguousarray(rows).reshape(shape)


Packings = Mapping[str, PanelPacking]
"""Packings of weights by name. Other weights are stored as the schedule has them."""


def _bits(array: Array) -> Array:
    """Return the array as a dense one, with bf16 viewed as uint16, which numpy supports."""
    raw = np.ascontiguousarray(array)
    return raw.view(np.uint16) if raw.dtype == BFLOAT16 else raw
