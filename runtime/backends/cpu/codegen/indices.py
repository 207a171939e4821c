"""Indices read from tensors: generated code reports an index that is out of range, and the core ends the run.

Each thread has a word before the scalars that a function receives. It is 0 at the start of a run. A function that meets
an index out of range sets the word and continues with a valid index, so that it accesses nothing out of bounds. The
core checks the word after each call.
"""

from __future__ import annotations

from sscc.runtime.backends.cpu.codegen.mlir import Function, Value, lanes_of

REPORT_BYTES = 8
"""Distance of the word before the scalars, in bytes."""


def report_index(f: Function, outside: Value) -> None:
    """Report an index if `outside` (i1) is true; `f` is a function that the core calls."""
    with f.when(outside):
        f.store(f.constant(1), f["scalars"] + -REPORT_BYTES)


def cut_index(f: Function, index: Value, extent: int, mask: Value | None = None) -> Value:
    """Clamp an index (or one per lane) to 0 .. extent - 1, and report one in a lane of the mask that was outside."""
    cut = f.max(f.min(index, extent - 1), 0)
    beyond = f.compare("ne", cut, index)
    if lanes_of(beyond.type):
        beyond = f.any(beyond if mask is None else beyond & mask)
    report_index(f, beyond)
    return cut
