"""Addresses and tiers: permanent tensors are placed side by side, temporaries share space, and tensors that exceed a
memory go to the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sscc.ir.sizes import align


@dataclass(frozen=True)
class Lifetime:
    """Size of a temporary in bytes, and the inclusive range of launches, in program order, that need it."""

    nbytes: int
    first: int
    last: int


def pack(sizes: Mapping[str, int], base: int) -> tuple[dict[str, int], int]:
    """Return addresses from `base` on for regions that are all live at once, and the end."""
    addresses: dict[str, int] = {}
    for name, nbytes in sizes.items():
        addresses[name] = base
        base += align(nbytes)
    return addresses, base


def share(lifetimes: Mapping[str, Lifetime], base: int) -> tuple[dict[str, int], int]:
    """Return first-fit addresses for temporaries, and the end of the highest one.

    Temporaries that are live at the same time never overlap.
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
    """Return the tensors of `sizes` that go to the next memory if space is given to the first ones in `order`."""
    spilled = []
    for name in order:
        if align(sizes[name]) <= capacity:
            capacity -= align(sizes[name])
        else:
            spilled.append(name)
    return spilled
