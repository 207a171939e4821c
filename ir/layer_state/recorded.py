"""Tensors of a layer's state that a golden records: values to compare, and the rows of near ties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Recorded:
    """A tensor of a layer that goldens hold, of slot 0 right after its prompt.

    Attributes:
        name: of the tensor, without the layer.
        values: [Hkv, n, D], the numbers that its rows stand for.
        valid: [Hkv, n], True for rows that hold a position; None: all do.
        picks: the rows, among n, of positions that the end of the prompt selected, in the order of these positions.
        put: writes the golden's values of these rows into the program's state; None where rows are read by their
            positions, so that it suffices to put these right.
    """

    name: str
    values: Array
    valid: Array | None = None
    picks: slice = field(default_factory=lambda: slice(0, 0))
    put: Callable[[Array], None] | None = None
