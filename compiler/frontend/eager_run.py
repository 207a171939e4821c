"""The interface of an eager run for operators that keep a state in it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class EagerRun(Protocol):
    """One sequence that runs eagerly, with the states of each layer.

    Attributes:
        position: position of the next token.
        rows: by layer and name, rows of all positions that goldens do not record.
    """

    position: int
    rows: dict[tuple[int, str], Tensor]

    def attends_beside(self, layer: int) -> None:
        """Record that the layer that is prefilled now attends to rows in `rows`."""

    def keep_state(self, layer: int, name: str, rows: Tensor) -> None:
        """Keep a state of the layer that is prefilled now.

        Args:
            name: name of the state's rows [1, R, D]; goldens call it `name_cache`.
        """

    def state(self, layer: int, name: str) -> Tensor:
        """Return the rows [1, R, D] of a state, which may be written."""
