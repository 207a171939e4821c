"""Tensors of a layer's state that a golden records: values to compare, and the rows of near ties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Recorded:
    """A tensor of a layer that goldens hold, for slot 0 right after its prompt.

    Attributes:
        name: name of the tensor, without the layer.
        values: decoded numbers of its rows, [Hkv, n, D].
        valid: [Hkv, n], True for rows that hold a position; None if all do.
        picks: indices, among the n rows, of positions selected at the end of the prompt, in the order of positions.
        put: writes the golden's values of these rows into the program's state; None if rows are read through their
            positions, so that it suffices to correct the positions.
    """

    name: str
    values: Array
    valid: Array | None = None
    picks: slice = field(default_factory=lambda: slice(0, 0))
    put: Callable[[Array], None] | None = None
