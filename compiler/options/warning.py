"""Warnings about inputs that are accepted nevertheless.

A warning has a kind, like an error (`sscc.ir.errors`), but is never raised. A module that warns declares its kinds:

    class CheckpointWarnings(ErrorKind):
        UNUSED = SsccWarning, "{path}: tensors without a place in the model: {tensors}"

    warn(CheckpointWarnings.UNUSED(path=path, tensors=names))
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sscc.ir.errors import SsccError

logger = logging.getLogger("sscc")


class SsccWarning(SsccError):
    """A warning. `kind`, `fields` and `as_json()` are those of an error."""

    exit_code = 0


_collected: ContextVar[list[SsccError] | None] = ContextVar("collected warnings", default=None)


def warn(warning: SsccError) -> None:
    """Show a warning as one line on stderr, "sscc: warning: ..", and collect it. Inside `collecting` a warning is shown
    once, however often it is issued."""
    collected = _collected.get()
    if collected is not None:
        if str(warning) in map(str, collected):
            return
        collected.append(warning)
    logger.warning("sscc: warning: %s", warning)


@contextmanager
def collecting() -> Iterator[list[SsccError]]:
    """Collect the warnings of a block. An inner block adds to the list of the outer one."""
    outer = _collected.get()
    if outer is not None:
        yield outer
        return
    collected: list[SsccError] = []
    token = _collected.set(collected)
    try:
        yield collected
    finally:
        _collected.reset(token)
