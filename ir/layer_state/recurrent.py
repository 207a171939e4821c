"""The state of a gated linear recurrence: one f32 matrix per head, of a size that does not depend on the text's length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import ClassVar

from sscc.ir.geometry import PLAIN, Geometry, Span
from sscc.ir.layer_state.positionless import Positionless
from sscc.ir.layer_state.protocol import DeviceTensor, Tensors
from sscc.ir.layer_state.recorded import Recorded
from sscc.ir.layer_state.state_tensors import Contents, Extent, StateTensor
from sscc.ir.schedule import DTYPE_BYTES

STATE_DTYPE = "f32"
"""Dtype of recurrent states in every program: they accumulate the rounding errors of all earlier steps."""
HELD = "held"
"""The state that has the number of positions that are in a recurrent state, of each head."""


def state_geometry(geometry: Geometry) -> Geometry:
    """Return the geometry of a group of layers that keep no rows."""
    return replace(geometry.windowed(Span(1)), dtype=PLAIN)


@dataclass(frozen=True)
class Recurrent(Positionless):
    """The recurrent states of a group of layers, [H, D, Dv] per layer and slot.

    `kv_heads` are the heads H, and the first stream has D rows of Dv numbers. The prompt in progress has the state
    after its last chunk.

    In a program whose steps have up to V drafted tokens a second stream has the inputs of V + 1 tokens per head, and
    the state may be that before these tokens (`sscc.ir.operations.RecurrentStep`). Their inputs are smaller than a copy
    of the state for each, unless a head's state is a column.
    """

    carries: ClassVar[bool] = True
    reads_twice: ClassVar[bool] = False
    accumulates: ClassVar[bool] = True

    @cached_property
    def by_name(self) -> dict[str, StateTensor]:
        """The tensors, by their names without the group's."""
        stream, heads = self.streams[0], self.kv_heads
        shape = (heads, stream.rows, stream.width)
        tensors = [
            StateTensor(stream.cache, Extent.SLOTS, STATE_DTYPE, shape, stepped=True, part="cache"),
            StateTensor(stream.scratch, Extent.PROMPT, STATE_DTYPE, shape),
        ]
        for pending in self.streams[1:]:
            rows = (heads, self.geometry.spare + 1, pending.width)
            tensors += [
                StateTensor(pending.cache, Extent.SLOTS, STATE_DTYPE, rows, drafted=True, part="cache"),
                StateTensor(HELD, Extent.SLOTS, "i64", (heads,), stepped=True, contents=Contents.LENGTH, part="cache"),
            ]
        return {tensor.name: tensor for tensor in tensors}

    @property
    def state_bytes(self) -> int:
        """See `Positionless`."""
        stream = self.streams[0]
        return self.layers * self.kv_heads * stream.rows * stream.width * DTYPE_BYTES[STATE_DTYPE]

    def spare_bytes(self) -> int:
        """See `LayerState`: inputs of tokens that are not in the state, and the number of those that are."""
        _, _, *pending = self.tensors()
        return self.layers * sum(prod(size or 0 for size in t.shape) * DTYPE_BYTES[t.dtype] for t in pending)

    def carried(self, tensor: Tensors) -> Iterator[tuple[str, DeviceTensor]]:
        """See `LayerState`: the state after a chunk."""
        name = self.name_of(self.tensors()[1])
        yield name, tensor(name)[0]

    def slot(self, tensor: Tensors, slot: int, length: int) -> dict[str, DeviceTensor]:
        """See `LayerState`. No inputs are pending after a prompt."""
        of_slots = (t for t in self.tensors() if t.extent is Extent.SLOTS and not t.drafted)
        return {name: tensor(name)[:, slot] for name in map(self.name_of, of_slots)}

    def recorded(self, tensor: Tensors, index: int, length: int) -> Iterator[Recorded]:
        """See `LayerState`."""
        stream = self.streams[0]
        yield Recorded(stream.cache, self.layer_rows(tensor, stream, index)[0].read())

    def in_words(self) -> str:
        """See `LayerState`."""
        stream = self.streams[0]
        return f"a recurrent state of {self.kv_heads} matrices of {stream.rows} x {stream.width}"
