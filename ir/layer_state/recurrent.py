"""The state of a gated linear recurrence: a matrix of f32 numbers for each head, whatever the length of the text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from sscc.ir.geometry import PLAIN, Geometry, Span
from sscc.ir.layer_state.kept import PositionReasons, Reason
from sscc.ir.layer_state.protocol import Array, Selected, Tensors
from sscc.ir.layer_state.recorded import Recorded
from sscc.ir.layer_state.rows import Rows
from sscc.ir.layer_state.tensors import Extent, StateTensor
from sscc.ir.schedule import DTYPE_BYTES

STATE_DTYPE = "f32"
"""The dtype of recurrent states in every program: rounding errors of all earlier steps add up in them."""


def state_geometry(geometry: Geometry) -> Geometry:
    """Return the geometry of a group of layers with a recurrent state, which keeps no row of any position."""
    return replace(geometry.windowed(Span(1)), dtype=PLAIN)


@dataclass(frozen=True)
class Recurrent(Rows):
    """The recurrent states of a group of layers, [H, D, Dv] of a layer and slot.

    `kv_heads` are the heads H, and the only stream has D rows of Dv numbers. The prompt in progress has the state after
    its last chunk.
    """

    attends: ClassVar[bool] = False
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
        """Bytes of the states of all layers."""
        (stream,) = self.streams
        return self.layers * self.kv_heads * stream.rows * stream.width * DTYPE_BYTES[STATE_DTYPE]

    def held_bytes(self) -> int:
        """See `LayerState`."""
        return self.state_bytes

    def far_bytes(self) -> dict[str, int]:
        """See `LayerState`."""
        return {}

    def read_bytes(self, tokens: int) -> int:
        """See `LayerState`."""
        return self.state_bytes

    def uncompressed_bytes(self, tokens: int) -> int:
        """See `LayerState`."""
        return self.state_bytes

    def chunk_bytes(self) -> int:
        """See `LayerState`: no position has anything of its own."""
        return 0

    def carried_bytes(self) -> int:
        """See `LayerState`."""
        return self.state_bytes

    def positions(self, tensor: Tensors, index: int, slot: int) -> Iterator[tuple[str, Array]]:
        """See `LayerState`: no position has anything of its own."""
        return iter(())

    def carried(self, tensor: Tensors) -> Iterator[tuple[str, Array]]:
        """See `LayerState`: the state after a chunk."""
        name = self.name_of(self.tensors()[1])
        yield name, tensor(name)[0]

    def slot(self, tensor: Tensors, slot: int, length: int) -> dict[str, Array]:
        """See `LayerState`."""
        return {name: tensor(name)[:, slot] for name in map(self.name_of, self.tensors()[:1])}

    def kept(
        self, tensor: Tensors, index: int, slot: int, length: int, prompt_len: int, selected: Selected
    ) -> PositionReasons:
        """See `LayerState`: no position has a row."""
        return PositionReasons(np.full((self.kv_heads, length), Reason.EVICTED, np.uint8))

    def recorded(self, tensor: Tensors, index: int, length: int) -> Iterator[Recorded]:
        """See `LayerState`."""
        (stream,) = self.streams
        yield Recorded(stream.cache, self.layer_rows(tensor, stream, index)[0])

    def in_words(self) -> str:
        """See `LayerState`."""
        (stream,) = self.streams
        return f"a recurrent state of {self.kv_heads} matrices of {stream.rows} x {stream.width}"
