"""The cache plan: groups of layers that keep the same rows. The states of a group's layers are stacked.

A model whose layers all attend to the whole context is one group, under the requested geometry. Layers with
sliding-window attention are a group of their own, whose geometry follows from the window: during decode such a layer
keeps only a ring of `window` rows. Layers with other head counts or widths are separate groups too. A layer whose K and
V are shared by later layers is a group by itself: the later layers (its sharers) keep no rows and read those of this
one.

A layer whose operators keep several states (attention and a short convolution) is in one group per state. The first of
these groups holds its attention rows; the others are marked `beside`.
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
"""Name of the group of layers without a state."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers that keep the same kind of cache and share stacked states.

    Attributes:
        name: suffix of the states' names; "" for the group under the requested geometry.
        layers: layer numbers, ascending.
        geometry: rows that each layer keeps.
        heads: query heads.
        kv_heads: KV heads.
        streams: streams of rows, named as in `STREAMS_OF_A_GROUP`.
        sharers: layers, ascending, that keep no rows and read those of the group's only layer.
        slots: slots per rank, if ranks with the same KV heads divide the slots among themselves; None if every rank
            keeps the rows of all slots.
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
        """Return the name in the entries of one of the group's states."""
        return state_name(name, self.name)

    @property
    def readers(self) -> int:
        """Number of layers that read the rows of one layer of the group."""
        return 1 + len(self.sharers)

    @property
    def latent(self) -> bool:
        """True for latent rows: all heads compute their K and V from one cached row per position."""
        return is_latent(self.streams)

    @property
    def attends(self) -> bool:
        """True if the layers have attention."""
        return kind_of(self.streams).attends

    @property
    def key(self) -> Stream:
        return self.streams[0]

    def rows(self, sizes: ProgramSizes, scratch: LayerGroup | None = None) -> Rows:
        """Return the rows that the layers keep.

        Args:
            scratch: group that owns the prompt scratch; None for this group.
        """
        name = self.name if scratch is None else scratch.name
        kind = kind_of(self.streams)
        return kind(self.name, name, len(self.layers), self.geometry, self.heads, self.kv_heads, self.streams, sizes)

    def shares_scratch_with(self, other: LayerGroup) -> bool:
        """Return True if both groups can use one prompt scratch in turn. A scratch that sharers read later belongs to
        its layer alone."""
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
    """Groups of a model's layers, in the order of their first layers. Each layer is in exactly one group that is not
    `beside`, or is a sharer of one."""

    groups: tuple[LayerGroup, ...]

    def __iter__(self) -> Iterator[LayerGroup]:
        return iter(self.groups)

    @property
    def layers(self) -> int:
        return sum(len(group.layers) + len(group.sharers) for group in self.groups if not group.beside)

    @property
    def main(self) -> LayerGroup:
        """The group under the requested geometry; the first attending one if windows govern all of them."""
        attending = [group for group in self.groups if group.attends] or self.groups
        return next((group for group in attending if not group.name), attending[0])

    def of(self, layer: int) -> tuple[LayerGroup, int]:
        """Return a layer's first group, and its index in that group. A sharer has the group and index of the layer
        whose rows it reads."""
        group = next(group for group in self.groups if not group.beside and layer in (*group.layers, *group.sharers))
        return group, 0 if layer in group.sharers else group.layers.index(layer)

    def all_of(self, layer: int) -> list[tuple[LayerGroup, int]]:
        """Return all groups of a layer with its index in each: the group that `of` returns, then those marked `beside`.
        """
        others = (group for group in self.groups if group.beside and layer in group.layers)
        return [self.of(layer), *((group, group.layers.index(layer)) for group in others)]

    @property
    def sources(self) -> dict[int, int]:
        """The layer whose rows each sharer reads, by sharer."""
        return {sharer: group.layers[0] for group in self.groups for sharer in group.sharers}

    def scratch(self, group: LayerGroup) -> LayerGroup:
        """Return the group that owns the prompt scratch of `group`: the first one that can share its scratch."""
        return next(other for other in self.groups if other is group or other.shares_scratch_with(group))


class GroupOfLayers(Protocol):
    """Layers of a group: those that keep rows, and those that share the rows of the only one."""

    @property
    def layers(self) -> Sequence[int]: ...
    @property
    def sharers(self) -> Sequence[int]: ...
    @property
    def beside(self) -> bool: ...


def check_layers(groups: Sequence[GroupOfLayers], layers: int) -> None:
    """Check that groups cover layers 0 .. `layers` - 1.

    Raises:
        ValueError: a layer is in no group, or in two that are not `beside`; the layers of a group are not ascending, or
            there are none; or a group with sharers has several layers.
    """
    listed = sorted(layer for group in groups if not group.beside for layer in (*group.layers, *group.sharers))
    inside = all(layer in range(layers) for group in groups for layer in group.layers)
    all_of = [(*group.layers, *group.sharers) for group in groups]
    ascending = all(group.layers for group in groups)
    ascending = ascending and all(a < b for own in all_of for a, b in itertools.pairwise(own))
    if listed != list(range(layers)) or not inside or not ascending:
        raise ValueError(f"the groups' layers must cover {layers} layers, got {[list(own) for own in all_of]}")
    several = next((group.layers for group in groups if group.sharers and len(group.layers) > 1), None)
    if several is not None:
        raise ValueError(f"a group with sharers must have one layer, got {list(several)}")
