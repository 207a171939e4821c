"""Indices that tensors hold: generated code reports one that is outside of what it indexes, and the core ends the run.

In front of the scalars that a function is given lies a word of the thread's, 0 at the start of a run. A function sets
it and goes on with some index that exists, so that nothing out of bounds is touched; the core looks at it after each
call.
"""

from __future__ import annotations

from sscc.runtime.backends.cpu.mlir import Function, Value

REPORT_BYTES = 8
"""From the scalars back to the word."""


def report_index(f: Function, outside: Value) -> None:
    """Reports an index where `outside` (i1) holds; `f` is a function that the core calls."""
    with f.when(outside):
        f.store(f.constant(1), f["scalars"] + -REPORT_BYTES)
