"""Rows that stay near from step to step, where a step may fetch only few of a store (`FetchRows` of
`sscc.ir.operations`): what becomes of one slot and KV head.

`sscc.compiler.frontend.query_selection.fetch_rows` defines it; no code is shared, and tests compare them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

EMPTY = -1
"""In the place of a position: none."""


@dataclass(frozen=True)
class Fetched:
    """What a step leaves of a resident set of K rows, and what it fetches.

    Attributes:
        resident: [K] i64, positions in ascending order, then `EMPTY`.
        places: [K] i64, the place of each, then those that are free.
        rows: (place, position) of each row that is fetched, positions ascending.
    """

    resident: NDArray[np.int64]
    places: NDArray[np.int64]
    rows: list[tuple[int, int]]


def fetch(
    resident: NDArray[np.int64], places: NDArray[np.int64], weights: NDArray[Any], first: int, limit: int
) -> Fetched:
    """A step of one slot and KV head.

    Args:
        resident, places: [K], as the step before left them.
        weights: [n], how much positions first .. first + n - 1 are wanted; NaN more than anything.
        limit: rows to fetch, at least 1.
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
