"""Indices that tensors hold: generated code reports one that is outside of what it indexes, and the core ends the run.

Each thread has a word in front of the scalars that a function gets, which is 0 at the start of a run. A function that
meets such an index sets the word and goes on with another index, one that exists, so that nothing out of bounds is
touched. The core looks at the word after each call.
"""

from __future__ import annotations

from sscc.runtime.backends.cpu.codegen.mlir import Function, Value, lanes_of

REPORT_BYTES = 8
"""The word lies so many bytes before the scalars."""


def report_index(f: Function, outside: Value) -> None:
    """Reports an index where `outside` (i1) holds; `f` is a function that the core calls."""
    with f.when(outside):
        f.store(f.constant(1), f["scalars"] + -REPORT_BYTES)


def cut_index(f: Function, index: Value, extent: int, mask: Value | None = None) -> Value:
    """An index, or one per lane, cut to 0 .. extent - 1; one that was beyond, in a lane of the mask, is reported."""
    cut = f.max(f.min(index, extent - 1), 0)
    beyond = f.compare("ne", cut, index)
    if lanes_of(beyond.type):
        beyond = f.any(beyond if mask is None else beyond & mask)
    report_index(f, beyond)
    return cut
