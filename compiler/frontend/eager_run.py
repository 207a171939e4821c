"""One sequence that runs eagerly, as operators see it that keep a state in it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from sscc.ir.geometry import Geometry


class EagerRun(Protocol):
    """One sequence that runs eagerly with the state of each layer."""

    geometry: Geometry
    position: int
    k_cache: list[Tensor]

    def keep_state(self, layer: int, name: str, rows: Tensor, geometry: Geometry) -> None:
        """Keep the state of the layer that is prefilled now.

        Args:
            name: of the state's rows [1, R, D], which goldens have as `name_cache`.
            geometry: of these rows.
        """
