"""The inputs of a short causal convolution, kept in a ring of rows as the state of its layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from sscc.ir.geometry import PLAIN, Geometry, Span
from sscc.ir.layer_state.protocol import DeviceTensor, Tensors
from sscc.ir.layer_state.rows import Rows
from sscc.ir.layer_state.state_tensors import Extent, StateTensor
from sscc.ir.schedule import DTYPE_BYTES


def ring_geometry(geometry: Geometry, taps: int) -> Geometry:
    """Return the geometry of the last `taps` - 1 inputs, whatever rows `geometry` has for layers that attend: that of
    position p is in row p mod (taps - 1 + spare).

    A token reads `taps` - 1 inputs before its own, where a query of attention sees its own row among those of the
    window. So if none of a step's spare + 1 tokens stays, one more input has to.
    """
    spare = geometry.spare + 1 if geometry.spare else 0
    return replace(geometry.windowed(Span(taps - 1)), dtype=PLAIN, spare=spare)


@dataclass(frozen=True)
class Inputs(Rows):
    """The last inputs of the convolutions of a group of layers: rows of all channels, as of one head.

    The prompt in progress has the inputs before its next chunk, in the order of their positions and not of the ring.
    """

    attends: ClassVar[bool] = False

    @cached_property
    def by_name(self) -> dict[str, StateTensor]:
        """The tensors, by their names without the group's."""
        (stream,) = self.streams
        ring, before = (
            (self.kv_heads, rows, stream.width) for rows in (self.geometry.cache_rows, self.geometry.visible_rows)
        )
        tensors = (
            StateTensor(stream.cache, Extent.SLOTS, self.sizes.dtype, ring, stepped=True, part="cache"),
            StateTensor(stream.scratch, Extent.PROMPT, self.sizes.dtype, before),
        )
        return {tensor.name: tensor for tensor in tensors}

    def chunk_bytes(self) -> int:
        """See `LayerState`: no position has anything that lasts."""
        return 0

    def carried_bytes(self) -> int:
        """See `LayerState`."""
        (stream,) = self.streams
        return self.layers * self.geometry.visible_rows * stream.width * DTYPE_BYTES[self.sizes.dtype]

    def positions(self, tensor: Tensors, index: int, slot: int) -> Iterator[tuple[str, DeviceTensor]]:
        """See `LayerState`: no position has anything that lasts."""
        return iter(())

    def carried(self, tensor: Tensors) -> Iterator[tuple[str, DeviceTensor]]:
        """See `LayerState`: a chunk's last inputs."""
        name = self.name_of(self.tensors()[1])
        yield name, tensor(name)[0]

    carries: ClassVar[bool] = True
    reads_twice: ClassVar[bool] = False

    def slot(self, tensor: Tensors, slot: int, length: int) -> dict[str, DeviceTensor]:
        """See `LayerState`: zeros stand before the first position of a prompt that is shorter than the ring."""
        return {name: tensor(name)[:, slot] for name in map(self.name_of, self.tensors()[:1])}

    def in_words(self) -> str:
        """See `LayerState`."""
        return f"the last {self.geometry.visible_rows} inputs of a convolution of {self.streams[0].width} channels"
