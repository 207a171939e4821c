"""What prefill writes of a prompt's whole chunks, copied out for other prompts that begin alike, and in again.

Where all rows of a prompt stay in its slot, they are copied from and to the slot's part of the states. A layer with a
window keeps a ring there, which later positions overwrite; what prefill attends to lies in the prompt scratch,
which layers use one after the other. So its rows are copied in before the layer's first chunk, and out after its last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from sscc.ir.cache_plan import LayerGroup
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array

Rows = Mapping[str, Array]
"""Of one chunk, by state: K, V and landmarks of all layers of a group, [L, Hkv, C, ..]."""


class PrefixRows:
    """Copies rows of a program in which prompts can go on from others'.

    Args:
        signature: of the program.
        tensor: gives a state by its name.

    Attributes:
        in_scratch: whether rows of some layer lie in the prompt scratch, so that each layer's are copied in its time.
    """

    def __init__(self, signature: Signature, tensor: Callable[[str], Array]) -> None:
        self._signature, self._tensor = signature, tensor
        self.in_scratch = any(group.geometry.window for group in signature.plan)

    def empty(self) -> Rows:
        """Memory for the rows of a chunk, whose contents mean nothing yet."""
        rows: dict[str, Array] = {}
        for group in self._signature.plan:
            for name, view in self._views(group, 0, 0):
                heads, _, *row = view.shape
                rows[name] = np.empty((len(group.layers), heads, self._signature.prefill_chunk, *row), view.dtype)
        return rows

    def write(self, layers: Iterable[int], slot: int, chunks: Sequence[Rows]) -> None:
        """Gives layers what prefill left of a prompt's first chunks: of those that later positions still see."""
        for group, index in map(self._signature.plan.of, layers if chunks else ()):
            seen = range(self._first_seen(group, len(chunks)), len(chunks))
            for name, view in self._views(group, index, slot):
                for chunk in seen:
                    view[:, self._positions(chunk)] = chunks[chunk][name][index]

    def read(self, layers: Iterable[int], slot: int, chunks: Mapping[int, Rows]) -> None:
        """Copies what prefill has left of layers, of chunks by their number."""
        for group, index in map(self._signature.plan.of, layers if chunks else ()):
            for name, view in self._views(group, index, slot):
                for chunk, rows in chunks.items():
                    rows[name][index] = view[:, self._positions(chunk)]

    def _first_seen(self, group: LayerGroup, chunks: int) -> int:
        """The first of so many chunks of which positions behind them see a row."""
        size = self._signature.prefill_chunk
        return group.geometry.sees.first(chunks * size) // size

    def _positions(self, chunk: int) -> slice:
        size = self._signature.prefill_chunk
        return slice(chunk * size, (chunk + 1) * size)

    def _views(self, group: LayerGroup, index: int, slot: int) -> Iterator[tuple[str, Array]]:
        """Live views of a layer, which is number `index` of its group: [Hkv, T, ..]."""
        for name in group.row_states:
            yield name, self._tensor(name)[index, slot]
        if group.geometry.window:
            scratch = self._signature.plan.scratch(group)
            for stream in group.streams:
                yield group.state(stream.scratch), self._tensor(scratch.state(stream.scratch))[0]
