"""States of a fixed size, in which no position has anything of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sscc.ir.layer_state.kept import PositionReasons, Reason
from sscc.ir.layer_state.protocol import DeviceTensor, Selected, Tensors
from sscc.ir.layer_state.rows import Rows


@dataclass(frozen=True)
class Positionless(Rows, ABC):
    """The base of such states: their bytes do not depend on the length of a text."""

    attends: ClassVar[bool] = False

    @property
    @abstractmethod
    def state_bytes(self) -> int:
        """Bytes of the states of all layers."""

    def held_bytes(self) -> int:
        """See `LayerState`."""
        return self.state_bytes + self.spare_bytes()

    def spare_bytes(self) -> int:
        """See `LayerState`."""
        return 0

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
        """See `LayerState`."""
        return 0

    def carried_bytes(self) -> int:
        """See `LayerState`."""
        return self.state_bytes

    def positions(self, tensor: Tensors, index: int, slot: int) -> Iterator[tuple[str, DeviceTensor]]:
        """See `LayerState`."""
        return iter(())

    def kept(
        self, tensor: Tensors, index: int, slot: int, length: int, prompt_len: int, selected: Selected
    ) -> PositionReasons:
        """See `LayerState`."""
        return PositionReasons(np.full((self.kv_heads, length), Reason.EVICTED, np.uint8))
