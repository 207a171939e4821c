"""The keys of a learned index, by which a layer selects the rows that a token attends to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from sscc.ir.geometry import PLAIN, Geometry
from sscc.ir.layer_state.protocol import Tensors
from sscc.ir.layer_state.recorded import Recorded
from sscc.ir.layer_state.rows import Rows
from sscc.ir.layer_state.state_tensors import Extent, StateTensor


def index_geometry(geometry: Geometry, topk: int) -> Geometry:
    """Return the geometry of the keys of an index that chooses `topk` positions: one of each position."""
    return replace(geometry.chosen(topk), dtype=PLAIN)


@dataclass(frozen=True)
class IndexKeys(Rows):
    """The index keys of a group of layers, one per position for all heads.

    They lie in near memory, because every token reads all of them.
    """

    attends: ClassVar[bool] = False

    @cached_property
    def by_name(self) -> dict[str, StateTensor]:
        """Tensors by name, without the group's suffix."""
        (stream,) = self.streams
        shape = (self.kv_heads, self.sizes.scratch_rows, stream.width)
        tensor = StateTensor(stream.cache, Extent.SLOTS, self.sizes.dtype, shape, stepped=True, part="quantized keys")
        return {tensor.name: tensor}

    def far_bytes(self) -> dict[str, int]:
        """See `LayerState`."""
        return {"index keys": self.held_bytes()}

    def read_bytes(self, tokens: int) -> int:
        """See `LayerState`."""
        return self.layers * self.row_bytes * tokens

    def uncompressed_bytes(self, tokens: int) -> int:
        """See `LayerState`."""
        return self.read_bytes(tokens)

    def recorded(self, tensor: Tensors, index: int, length: int) -> Iterator[Recorded]:
        """See `LayerState`."""
        (stream,) = self.streams
        keys = tensor(self.name_of(self.tensors()[0]))[index, 0]
        yield Recorded(stream.cache, keys[:, :length].read())

    def in_words(self) -> str:
        """See `LayerState`."""
        return f"index keys of {self.streams[0].width} numbers, which select {self.geometry.topk} rows"
