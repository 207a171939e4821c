"""Suppression of libraries' warnings, and one-line forms of their errors."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence torch's and transformers' warnings, and the tracebacks that torch logs before it raises: our errors have
    the same information.

    torch gives its loggers handlers of their own, so a level on the root would not reach them. Each change of a level
    clears the cached levels of all loggers, so existing loggers are disabled, and levels are set for later ones.
    """
    heads = [logging.getLogger(name) for name in ("torch", "transformers")]
    rest = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("torch.")]
    levels, disabled = [logger.level for logger in heads], [logger.disabled for logger in rest]
    for logger in heads:
        logger.setLevel(logging.CRITICAL + 1)
    for logger in rest:
        logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(heads, levels, strict=True):
            logger.setLevel(level)
        for logger, old in zip(rest, disabled, strict=True):
            logger.disabled = old


def one_line(error: BaseException) -> str:
    """Return the message of a library's error on one line, without torch's advice; the name of its class if it is
    empty."""
    text = " ".join(str(error).split()).split(". This is an internal")[0]
    return text[:300] or type(error).__name__
