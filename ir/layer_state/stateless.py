"""No state: layers that are a feed-forward network alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from sscc.ir.layer_state.kept import PositionReasons, Reason
from sscc.ir.layer_state.protocol import Selected, Tensors
from sscc.ir.layer_state.rows import Rows
from sscc.ir.layer_state.tensors import StateTensor


@dataclass(frozen=True)
class Stateless(Rows):
    """A group of layers that keep nothing from token to token."""

    attends: ClassVar[bool] = False

    @cached_property
    def by_name(self) -> dict[str, StateTensor]:
        """The tensors: none."""
        return {}

    def held_bytes(self) -> int:
        """See `LayerState`."""
        return 0

    def far_bytes(self) -> dict[str, int]:
        """See `LayerState`."""
        return {}

    def read_bytes(self, tokens: int) -> int:
        """See `LayerState`."""
        return 0

    def uncompressed_bytes(self, tokens: int) -> int:
        """See `LayerState`."""
        return 0

    def chunk_bytes(self) -> int:
        """See `LayerState`."""
        return 0

    @property
    def in_scratch(self) -> bool:
        """See `LayerState`."""
        return False

    def kept(
        self, tensor: Tensors, index: int, slot: int, length: int, prompt_len: int, selected: Selected
    ) -> PositionReasons:
        """See `LayerState`: no position has a row."""
        return PositionReasons(np.full((self.kv_heads, length), Reason.EVICTED, np.uint8))

    def in_words(self) -> str:
        """See `LayerState`."""
        return "no state"
