"""Less frequent collection of cyclic garbage while a model is compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_ALLOCATIONS = 100_000
"""Allocations between two collections of the youngest generation. With Python's default of 700, imports and passes
spend a tenth of their time in collections, although they keep nearly all objects that they allocate."""


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Collect cyclic garbage rarely while the block runs."""
    usual = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
