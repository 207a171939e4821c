"""One sequence that runs eagerly, as operators see it that keep a state in it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class EagerRun(Protocol):
    """One sequence that runs eagerly with the states of each layer.

    Attributes:
        position: of the next token.
        rows: by layer and name, rows of all positions that no golden has.
    """

    position: int
    rows: dict[tuple[int, str], Tensor]

    def attends_beside(self, layer: int) -> None:
        """Note that the layer that is prefilled now attends to rows that `rows` has."""

    def keep_state(self, layer: int, name: str, rows: Tensor) -> None:
        """Keep a state of the layer that is prefilled now.

        Args:
            name: of the state's rows [1, R, D], which goldens have as `name_cache`.
        """

    def state(self, layer: int, name: str) -> Tensor:
        """Return the rows [1, R, D] of a state, which may be written."""
