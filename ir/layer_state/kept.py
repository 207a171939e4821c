"""The positions of a text that a layer holds, each with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np


class Reason(IntEnum):
    """The reason for the place of a position's row."""

    EVICTED = 0
    """It is in no memory any more."""
    STORED = 1
    """It lies in the store of all rows (policy "query"), and a step reads it where its query chooses it."""
    SELECTED = 2
    """It was chosen: by the end of the prompt, or by a step's query."""
    RECENT = 3
    """It is in the ring of the newest positions."""
    SINK = 4
    """It is one of the first positions."""

    @property
    def near(self) -> bool:
        """True if every step reads it."""
        return self >= Reason.SELECTED


@dataclass(frozen=True, eq=False)
class PositionReasons:
    """The positions that a layer holds of a slot.

    Attributes:
        reasons: [Hkv, length] u8, a `Reason` for every position that was written.
        choice_known: False where a step's query chooses among more candidates than it reads, and the choice is not
            kept: all candidates are `STORED` then.
    """

    reasons: np.ndarray[Any, np.dtype[np.uint8]]
    choice_known: bool = True
