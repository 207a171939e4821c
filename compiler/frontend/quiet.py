"""Libraries talk a lot; what sscc says is one line."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silences torch's and transformers' warnings, and the tracebacks that torch logs before it raises: our error says
    it.

    torch gives its loggers handlers of their own, so a level on the root would not reach them.
    """
    names = ["torch", "transformers", *(name for name in logging.root.manager.loggerDict if name.startswith("torch."))]
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def one_line(error: BaseException, limit: int = 300) -> str:
    """The message of a library's error on one line, without torch's advice; its class where it says nothing."""
    text = " ".join(str(error).split()).split(". This is an internal")[0]
    return text[:limit] or type(error).__name__
