"""Ranges of numeric options: every number of the commands that serve is finite and has a stated maximum."""

from __future__ import annotations

from sscc.ir.errors import ErrorKind, UsageError


class OptionRangeErrors(ErrorKind):
    OUT_OF_RANGE = UsageError, "{option} is {value:.12g}, it must be at least {least:.12g} and at most {most:.12g}"
    NOT_ABOVE_ZERO = UsageError, "{option} is {value:.12g}, it must be above 0 and at most {most:.12g}"


MOST_THREADS = 1 << 14
MOST_RANKS = 1 << 10


def check_range(option: str, value: float | None, least: float, most: float) -> None:
    """Raise UsageError unless the value is None or a number between `least` and `most`."""
    if value is not None and not least <= value <= most:
        raise OptionRangeErrors.OUT_OF_RANGE(option=option, value=_bounded(value), least=least, most=most)


def check_positive(option: str, value: float | None, most: float) -> None:
    """Raise UsageError unless the value is None or a number above 0 and at most `most`."""
    if value is not None and not 0 < value <= most:
        raise OptionRangeErrors.NOT_ABOVE_ZERO(option=option, value=_bounded(value), most=most)


def _bounded(value: float) -> float:
    """Return an integer beyond what a float holds as an infinite one, which formats."""
    try:
        float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return value
