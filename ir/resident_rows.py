"""Rows that stay resident from step to step if a step may fetch a limited number of rows from a store (`FetchRows` of
`sscc.ir.operations`): the update of one slot and KV head.

`sscc.compiler.frontend.query_selection.fetch_rows` is the definition. It shares no code with this module; tests compare
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

EMPTY = -1
"""Marks a free place instead of a position."""


@dataclass(frozen=True)
class Fetched:
    """Resident set of K rows after a step, and the rows that the step fetches.

    Attributes:
        resident: positions in ascending order, then `EMPTY`, [K] i64.
        places: place of each position, then the free places, [K] i64.
        rows: (place, position) of each fetched row, positions ascending.
    """

    resident: NDArray[np.int64]
    places: NDArray[np.int64]
    rows: list[tuple[int, int]]


def fetch(
    resident: NDArray[np.int64], places: NDArray[np.int64], weights: NDArray[Any], first: int, limit: int
) -> Fetched:
    """Update the resident set of one slot and KV head.

    Args:
        resident, places: the sets after the previous step, [K].
        weights: priority of positions first .. first + n - 1, [n]; NaN has the highest.
        first: first candidate position.
        limit: maximum number of rows to fetch, at least 1.
    """
    room = len(resident)
    order = (np.argsort(-np.where(np.isnan(weights), np.inf, weights), kind="stable") + first).tolist()
    best = order[:room]
    pairs = zip(resident.tolist(), places.tolist(), strict=True)
    held = {position: place for position, place in pairs if 0 <= position - first < len(order)}
    fetched = [position for position in best if position not in held][:limit]
    kept = [position for position in best if position in held]
    others = [position for position in order[room:] if position in held]
    kept += others[: room - len(kept) - len(fetched)]
    taken = {held[position] for position in kept}
    free = iter([place for place in places.tolist() if place not in taken])
    now = {position: held[position] for position in kept} | {position: next(free) for position in sorted(fetched)}
    positions = sorted(now)
    rest = room - len(positions)
    return Fetched(
        np.array(positions + [EMPTY] * rest, np.int64),
        np.array([now[position] for position in positions] + list(free), np.int64),
        [(now[position], position) for position in sorted(fetched)],
    )
