"""Addresses and tiers: what lasts lies side by side, temporaries share space, what exceeds a memory is in the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sscc.ir.sizes import align


@dataclass(frozen=True)
class Lifetime:
    """A temporary's size in bytes and the inclusive range of launches, in program order, that need it."""

    nbytes: int
    first: int
    last: int


def pack(sizes: Mapping[str, int], base: int) -> tuple[dict[str, int], int]:
    """Addresses for regions that all live at once, from `base` on. Returns them and the end."""
    addresses: dict[str, int] = {}
    for name, nbytes in sizes.items():
        addresses[name] = base
        base += align(nbytes)
    return addresses, base


def share(lifetimes: Mapping[str, Lifetime], base: int) -> tuple[dict[str, int], int]:
    """First-fit addresses for temporaries: two that live at the same time never overlap.

    Returns the addresses and the end of the highest one.
    """
    addresses: dict[str, int] = {}
    live: list[tuple[int, int, int]] = []  # (address, end, last launch), by address
    end = base
    for name, life in sorted(lifetimes.items(), key=lambda item: (item[1].first, -item[1].nbytes, item[0])):
        live = [block for block in live if block[2] >= life.first]
        address = _first_gap(live, base, align(life.nbytes))
        addresses[name] = address
        live.append((address, address + align(life.nbytes), life.last))
        live.sort()
        end = max(end, address + align(life.nbytes))
    return addresses, end


def _first_gap(live: Sequence[tuple[int, int, int]], base: int, size: int) -> int:
    address = base
    for start, end, _ in live:
        if start - address >= size:
            return address
        address = max(address, end)
    return address


def spill(sizes: Mapping[str, int], order: Sequence[str], capacity: int) -> list[str]:
    """Which of `sizes` lie in the next memory when those that come first in `order` get the room that there is."""
    spilled = []
    for name in order:
        if align(sizes[name]) <= capacity:
            capacity -= align(sizes[name])
        else:
            spilled.append(name)
    return spilled
