"""The cache plan: which layers keep which rows. Layers that keep the same rows are a group; their states are stacked.

A model whose layers all attend to everything is one group, under the geometry that was asked for. Layers that attend
within a sliding window are a group of their own, whose geometry the window decides: in decode such a layer is a ring of
`window` rows and nothing else. Layers with other heads or widths are groups of their own too. A layer whose K and V
others attend to is a group by itself: these others keep nothing, and read what it keeps.

A layer whose operators keep several states (attention and a short convolution) is in a group for each of them. Its rows
of attention are those of its first one; the other groups stand beside that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.kinds import kind_of
from sscc.ir.layer_state.row_streams import Stream, is_latent, state_name
from sscc.ir.layer_state.rows import Rows, store_of
from sscc.ir.layer_state.state_tensors import ProgramSizes

STATELESS = "stateless"
"""The name of the group of layers without a state."""


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
        beside: True if its layers are in another group too.
    """

    name: str
    layers: tuple[int, ...]
    geometry: Geometry
    heads: int
    kv_heads: int
    streams: tuple[Stream, ...]
    sharers: tuple[int, ...] = ()
    slots: int | None = None
    beside: bool = False

    def state(self, name: str) -> str:
        """What a state of a layer is called in the entries."""
        return state_name(name, self.name)

    @property
    def readers(self) -> int:
        """Layers that read the rows of one of the group's."""
        return 1 + len(self.sharers)

    @property
    def latent(self) -> bool:
        """True if all heads make their K and V of one row per position, which is what is kept."""
        return is_latent(self.streams)

    @property
    def attends(self) -> bool:
        """True if the layers attend."""
        return kind_of(self.streams).attends

    @property
    def key(self) -> Stream:
        return self.streams[0]

    def rows(self, sizes: ProgramSizes, scratch: LayerGroup | None = None) -> Rows:
        """Return the rows that its layers keep.

        Args:
            scratch: the group whose prompt scratch it uses; None: its own.
        """
        name = self.name if scratch is None else scratch.name
        kind = kind_of(self.streams)
        return kind(self.name, name, len(self.layers), self.geometry, self.heads, self.kv_heads, self.streams, sizes)

    def shares_scratch_with(self, other: LayerGroup) -> bool:
        """Return True if both can use one prompt scratch, one after the other. One that others read in their phases is
        its layer's own."""
        mine, theirs = (
            (group.heads, group.kv_heads, group.streams, group.geometry.obs) for group in (self, other)
        )
        kept = any(store_of(group.geometry).keeps_prompts or group.sharers for group in (self, other))
        return mine == theirs and self.attends and not kept


def stateless_group(layers: tuple[int, ...], geometry: Geometry) -> LayerGroup:
    """Return the group of layers without a state."""
    return LayerGroup(STATELESS, layers, geometry, heads=1, kv_heads=1, streams=())


@dataclass(frozen=True)
class CachePlan:
    """The groups of a model, in the order of their first layers. Every layer is in exactly one that stands beside no
    other, or shares the rows of one."""

    groups: tuple[LayerGroup, ...]

    def __iter__(self) -> Iterator[LayerGroup]:
        return iter(self.groups)

    @property
    def layers(self) -> int:
        return sum(len(group.layers) + len(group.sharers) for group in self.groups if not group.beside)

    @property
    def main(self) -> LayerGroup:
        """The group that the asked-for geometry governs; the first one where windows govern them all."""
        attending = [group for group in self.groups if group.attends] or self.groups
        return next((group for group in attending if not group.name), attending[0])

    def of(self, layer: int) -> tuple[LayerGroup, int]:
        """The first group of a layer, and the layer's place among the layers of that group; of a layer that shares the
        rows of another one those of that."""
        group = next(group for group in self.groups if not group.beside and layer in (*group.layers, *group.sharers))
        return group, 0 if layer in group.sharers else group.layers.index(layer)

    def all_of(self, layer: int) -> list[tuple[LayerGroup, int]]:
        """All groups of a layer, and the layer's place in each: the first one as `of` gives it, then those beside."""
        beside = (group for group in self.groups if group.beside and layer in group.layers)
        return [self.of(layer), *((group, group.layers.index(layer)) for group in beside)]

    @property
    def sources(self) -> dict[int, int]:
        """The layer whose rows it reads, of each layer that keeps none."""
        return {sharer: group.layers[0] for group in self.groups for sharer in group.sharers}

    def scratch(self, group: LayerGroup) -> LayerGroup:
        """The group whose prompt scratch `group` uses, which gives the scratch its name: the first one it can share."""
        return next(other for other in self.groups if other is group or other.shares_scratch_with(group))


class GroupOfLayers(Protocol):
    """The layers of a group, those that share the rows of its only layer, and whether it stands beside others."""

    @property
    def layers(self) -> Sequence[int]: ...
    @property
    def sharers(self) -> Sequence[int]: ...
    @property
    def beside(self) -> bool: ...


def check_layers(groups: Sequence[GroupOfLayers], layers: int) -> None:
    """Check that groups are those of layers 0 .. `layers` - 1.

    Raises:
        ValueError: a layer is in no group, or in two that stand beside no other; the layers of a group do not ascend,
            or are none; or layers share the rows of several.
    """
    listed = sorted(layer for group in groups if not group.beside for layer in (*group.layers, *group.sharers))
    inside = all(layer in range(layers) for group in groups for layer in group.layers)
    all_of = [(*group.layers, *group.sharers) for group in groups]
    ascending = all(group.layers for group in groups)
    ascending = ascending and all(a < b for own in all_of for a, b in itertools.pairwise(own))
    if listed != list(range(layers)) or not inside or not ascending:
        raise ValueError(f"the groups' layers are {[list(own) for own in all_of]}, they must be {layers} in all")
    several = next((group.layers for group in groups if group.sharers and len(group.layers) > 1), None)
    if several is not None:
        raise ValueError(f"layers share the rows of layers {list(several)}, which must be one")
