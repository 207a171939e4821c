"""The state of a gated linear recurrence: one f32 matrix per head, of a size that does not depend on the text's length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from sscc.ir.geometry import PLAIN, Geometry, Span
from sscc.ir.layer_state.positionless import Positionless
from sscc.ir.layer_state.protocol import DeviceTensor, Tensors
from sscc.ir.layer_state.recorded import Recorded
from sscc.ir.layer_state.state_tensors import Extent, StateTensor
from sscc.ir.schedule import DTYPE_BYTES

STATE_DTYPE = "f32"
"""Dtype of recurrent states in every program: they accumulate the rounding errors of all earlier steps."""


def state_geometry(geometry: Geometry) -> Geometry:
    """Return the geometry of a group of layers that keep no rows."""
    return replace(geometry.windowed(Span(1)), dtype=PLAIN)


@dataclass(frozen=True)
class Recurrent(Positionless):
    """The recurrent states of a group of layers, [H, D, Dv] per layer and slot.

    `kv_heads` are the heads H, and the only stream has D rows of Dv numbers. The prompt in progress has the state after
    its last chunk.
    """

    carries: ClassVar[bool] = True

    @cached_property
    def by_name(self) -> dict[str, StateTensor]:
        """The tensors, by their names without the group's."""
        (stream,) = self.streams
        shape = (self.kv_heads, stream.rows, stream.width)
        tensors = (
            StateTensor(stream.cache, Extent.SLOTS, STATE_DTYPE, shape, stepped=True, part="cache"),
            StateTensor(stream.scratch, Extent.PROMPT, STATE_DTYPE, shape),
        )
        return {tensor.name: tensor for tensor in tensors}

    @property
    def state_bytes(self) -> int:
        """See `Positionless`."""
        (stream,) = self.streams
        return self.layers * self.kv_heads * stream.rows * stream.width * DTYPE_BYTES[STATE_DTYPE]

    def carried(self, tensor: Tensors) -> Iterator[tuple[str, DeviceTensor]]:
        """See `LayerState`: the state after a chunk."""
        name = self.name_of(self.tensors()[1])
        yield name, tensor(name)[0]

    def slot(self, tensor: Tensors, slot: int, length: int) -> dict[str, DeviceTensor]:
        """See `LayerState`."""
        return {name: tensor(name)[:, slot] for name in map(self.name_of, self.tensors()[:1])}

    def recorded(self, tensor: Tensors, index: int, length: int) -> Iterator[Recorded]:
        """See `LayerState`."""
        (stream,) = self.streams
        yield Recorded(stream.cache, self.layer_rows(tensor, stream, index)[0].read())

    def in_words(self) -> str:
        """See `LayerState`."""
        (stream,) = self.streams
        return f"a recurrent state of {self.kv_heads} matrices of {stream.rows} x {stream.width}"
