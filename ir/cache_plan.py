"""The cache plan: which layers keep which rows. Layers that keep the same rows are a group; their states are stacked.

A model whose layers all attend to everything is one group, under the geometry that was asked for. Layers that attend
within a sliding window are a group of their own, whose geometry the window decides: in decode such a layer is a ring of
`window` rows and nothing else. Layers with other heads or widths are groups of their own too. A layer whose K and V
others attend to is a group by itself: these others keep nothing, and read what it keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sscc.ir.choices import PLAIN_BITS
from sscc.ir.geometry import Geometry

if TYPE_CHECKING:
    from sscc.ir.kv_rows import RowFormat

Array = np.ndarray[Any, np.dtype[Any]]

K_AND_V, LATENT = ("k", "v"), ("latent",)
STREAMS_OF_A_GROUP = (K_AND_V, LATENT)
"""Names of what layers keep rows of: what a group may have, in order. A latent row is a key of all heads, and its first
numbers are their value (`absorb-latent`)."""
STREAMS = tuple(name for names in STREAMS_OF_A_GROUP for name in names)
CACHES, SCRATCHES, STORES, RESIDENT_ROWS = (
    tuple(f"{name}_{what}" for name in STREAMS) for what in ("cache", "scratch", "store", "resident")
)
"""The states of each stream: the rows that are kept; those of the prompt in progress; those of every slot's
positions, where they stay; those that stay near from step to step, where a step may fetch only few."""
LANDMARKS, LANDMARK_SCRATCHES = ("landmarks", "landmark_scales"), ("landmark_scratch", "landmark_scale_scratch")
"""Those of landmarks, by which queries choose: of every slot, and of the prompt in progress. Landmarks that are keys
have no scales (`landmark_states`)."""


RESIDENT, RESIDENT_PLACES = "resident", "resident_places"
"""Those that say which positions' rows stay near, `[L, B, Hkv, topk]`: positions in ascending order, then -1; the place
of each among the rows, then the places that are free."""


def landmark_states(names: Sequence[str], geometry: Geometry) -> Sequence[str]:
    """Those of `LANDMARKS` or `LANDMARK_SCRATCHES` that there are under a geometry."""
    if not geometry.by_query:
        return ()
    return names[:1] if geometry.landmark_bits == PLAIN_BITS else names


def streams_of(
    names: Sequence[str], shapes: Mapping[str, Sequence[int]], row_format: RowFormat | None = None
) -> tuple[Stream, ...]:
    """The streams that have a state among `shapes`; `names` says what it is called, for each of `STREAMS`. Its rows
    are encoded where there is a format."""
    widths = {stream: shapes[name][-1] for stream, name in zip(STREAMS, names, strict=True) if name in shapes}
    return tuple(Stream(name, row_format.numbers(size) if row_format else size) for name, size in widths.items())


def state_name(name: str, group: str) -> str:
    """What a state of the layers of a group is called in the entries."""
    return f"{name}.{group}" if group else name


@dataclass(frozen=True)
class Stream:
    """A sequence of rows, one per position and KV head, that every layer of a group keeps.

    Attributes:
        name: one of `STREAMS`.
        width: numbers of a row.
    """

    name: str
    width: int

    @property
    def cache(self) -> str:
        return f"{self.name}_cache"

    @property
    def scratch(self) -> str:
        return f"{self.name}_scratch"

    @property
    def store(self) -> str:
        """The state that holds the rows of every slot's prompt where the selected ones stay there, and those of later
        positions too where queries choose."""
        return f"{self.name}_store"

    @property
    def resident(self) -> str:
        """The state that holds the rows of every slot that stay near, where a step may fetch only few."""
        return f"{self.name}_resident"


@dataclass(frozen=True)
class LayerGroup:
    """Layers whose caches are alike, and which therefore share their states.

    Attributes:
        name: "" for those that the asked-for geometry governs; else a word, the end of their states' names.
        layers: which, ascending.
        geometry: the rows that each of them keeps.
        heads: query heads; kv_heads: those of K and V.
        streams: called as one of `STREAMS_OF_A_GROUP`.
        sharers: layers that keep no rows, but read those of the group's only layer, ascending.
        slots: where ranks that share KV heads have the rows of slots of their own, how many a rank has; None where it
            has those of all.
    """

    name: str
    layers: tuple[int, ...]
    geometry: Geometry
    heads: int
    kv_heads: int
    streams: tuple[Stream, ...]
    sharers: tuple[int, ...] = ()
    slots: int | None = None

    def state(self, name: str) -> str:
        """What a state of a layer is called in the entries."""
        return state_name(name, self.name)

    @property
    def budgets(self) -> tuple[int, ...]:
        """Rows that a query may see, per layer."""
        return tuple(self.geometry.of_layer(index).budget for index in range(len(self.layers)))

    @property
    def readers(self) -> int:
        """Layers that read the rows of one of the group's."""
        return 1 + len(self.sharers)

    def rows(self, array: Array, index: int) -> Array:
        """The cache of one layer, `[B, Hkv, R, ..]`, as a view of the state that holds the caches of all layers of the
        group: `[L, B, Hkv, R, ..]`, or packed `[B, Hkv, rows, ..]`. `index` counts the group's layers."""
        if not self.geometry.packed:
            stacked: Array = array[index]
            return stacked
        first = self.geometry.layer_offsets[index]
        rows: Array = array[:, :, first : first + self.geometry.of_layer(index).cache_rows]
        return rows

    @property
    def row_states(self) -> tuple[str, ...]:
        """The states in which every position of a slot has its row, `[L, B, Hkv, T, ..]`; none where not all rows stay
        in the slot."""
        if not self.geometry.indexed:
            return ()
        landmarks = landmark_states(LANDMARKS, self.geometry)
        return tuple(map(self.state, (*(stream.store for stream in self.streams), *landmarks)))

    @property
    def resident_states(self) -> tuple[str, ...]:
        """What says which rows stay near, then those rows; none where a step may fetch all that it chooses."""
        if self.geometry.fetch is None:
            return ()
        rows = (stream.resident for stream in self.streams)
        return tuple(map(self.state, (RESIDENT, RESIDENT_PLACES, *rows)))

    @property
    def latent(self) -> bool:
        """Whether all heads make their K and V of one row per position, which is what is kept."""
        return self.streams[0].name in LATENT

    @property
    def key(self) -> Stream:
        return self.streams[0]

    @property
    def width(self) -> int:
        """Numbers of a position's rows in all streams, per KV head."""
        return sum(stream.width for stream in self.streams)

    def heads_in_words(self, between: str) -> str:
        """How many heads there are, and of how many numbers; `between` stands between different widths of streams."""
        if self.latent:
            return f"{self.heads} heads over one latent row of {self.width}"
        widths = dict.fromkeys(str(stream.width) for stream in self.streams)
        return f"{self.heads}/{self.kv_heads} heads of {between.join(widths)}"

    def shares_scratch_with(self, other: LayerGroup) -> bool:
        """Whether both can use one prompt scratch, one after the other. One that others read in their phases is its
        layer's own."""
        mine, theirs = (
            (group.heads, group.kv_heads, group.streams, group.geometry.obs, group.geometry.indexed)
            for group in (self, other)
        )
        return mine == theirs and not self.geometry.indexed and not self.sharers and not other.sharers


@dataclass(frozen=True)
class CachePlan:
    """The groups of a model, in the order of their first layers. Every layer is in exactly one, or shares the rows of
    one."""

    groups: tuple[LayerGroup, ...]

    def __iter__(self) -> Iterator[LayerGroup]:
        return iter(self.groups)

    @property
    def layers(self) -> int:
        return sum(len(group.layers) + len(group.sharers) for group in self.groups)

    @property
    def main(self) -> LayerGroup:
        """The group that the asked-for geometry governs; the first one where windows govern them all."""
        return next((group for group in self.groups if not group.name), self.groups[0])

    def of(self, layer: int) -> tuple[LayerGroup, int]:
        """The group of a layer, and the layer's place among the layers of that group; of a layer that shares the rows
        of another one those of that."""
        group = next(group for group in self.groups if layer in (*group.layers, *group.sharers))
        return group, 0 if layer in group.sharers else group.layers.index(layer)

    @property
    def sources(self) -> dict[int, int]:
        """The layer whose rows it reads, of each layer that keeps none."""
        return {sharer: group.layers[0] for group in self.groups for sharer in group.sharers}

    def scratch(self, group: LayerGroup) -> LayerGroup:
        """The group whose prompt scratch `group` uses, which gives the scratch its name: the first one it can share."""
        return next(other for other in self.groups if other is group or other.shares_scratch_with(group))


def check_layers(groups: Sequence[tuple[Sequence[int], Sequence[int]]], layers: int) -> None:
    """Raises ValueError where some of layers 0 .. `layers` - 1 are in no group or in two, or a group has none. Each
    group is its layers, and those that share the rows of its layer: there is but one then, which stands before them."""
    listed = sorted(layer for own, sharers in groups for layer in (*own, *sharers))
    ascending = all([*own, *sharers] == sorted([*own, *sharers]) and own for own, sharers in groups)
    if listed != list(range(layers)) or not ascending:
        shown = [[*own, *sharers] for own, sharers in groups]
        raise ValueError(f"the groups' layers are {shown}, they must be {layers} in all")
    several = next((own for own, sharers in groups if sharers and len(own) > 1), None)
    if several is not None:
        raise ValueError(f"layers share the rows of layers {list(several)}, which must be one")
