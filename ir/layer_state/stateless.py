"""Layers without a state: feed-forward networks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sscc.ir.layer_state.positionless import Positionless
from sscc.ir.layer_state.state_tensors import StateTensor


@dataclass(frozen=True)
class Stateless(Positionless):
    """A group of layers that keep nothing from token to token."""

    @cached_property
    def by_name(self) -> dict[str, StateTensor]:
        """Tensors by name: none."""
        return {}

    @property
    def state_bytes(self) -> int:
        """See `Positionless`."""
        return 0

    @property
    def in_scratch(self) -> bool:
        """See `LayerState`."""
        return False

    def in_words(self) -> str:
        """See `LayerState`."""
        return "no state"
