"""How many prompt positions each layer selects, where layers differ: a list, a file, or a pyramid.

Which layers there are is known only once a model is captured: those that attend within a sliding window keep their
window, and the budgets are those of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sscc.ir.errors import UsageError
from sscc.ir.files import check_name

OPTION = "--kv-topk-per-layer"
_PYRAMID = "pyramid:"
_LONGEST_FILE = 1 << 16


@dataclass(frozen=True)
class LayerTopk:
    """What was asked for.

    Attributes:
        numbers: of each layer in order, or of the first and the last one, between which it changes linearly
            (PyramidKV, arXiv 2406.02069).
        pyramid: which of the two.
    """

    numbers: tuple[int, ...]
    pyramid: bool = False

    @classmethod
    def parse(cls, text: str) -> LayerTopk:
        """Of ``64,32,16``, ``pyramid:64,16``, or the path of a file with numbers between commas or white space.

        Raises:
            UsageError: what is none of these, or a number below 0.
        """
        if text.startswith(_PYRAMID):
            numbers = _numbers(text.removeprefix(_PYRAMID), text)
            if len(numbers) != 2:
                raise UsageError(f"{OPTION} {text} must name two numbers of rows, FIRST and LAST")
            return cls(numbers, True)
        if set(text) <= set("0123456789,- "):
            return cls(_numbers(text, text))
        return cls(_numbers(_read(Path(text)), f"file {text}"))

    def __str__(self) -> str:
        """What `parse` takes."""
        return f"{_PYRAMID if self.pyramid else ''}{','.join(map(str, self.numbers))}"

    @property
    def mean(self) -> int:
        """The number that all layers select where they select alike and as many in all, to the nearest."""
        return round(sum(self.numbers) / len(self.numbers))

    @property
    def most(self) -> int:
        """The most that any layer selects."""
        return max(self.numbers)

    def of(self, layers: int) -> tuple[int, ...]:
        """The numbers of so many layers. Raises UsageError where there are not as many, or no layers."""
        if not layers:
            raise UsageError(f"{OPTION}: the budget governs no layer, all attend within a sliding window")
        if not self.pyramid:
            if len(self.numbers) != layers:
                raise UsageError(
                    f"{OPTION} has {len(self.numbers)} numbers, and the budget governs {layers} layers: give one for "
                    "each (layers that attend within a sliding window keep their window)"
                )
            return self.numbers
        first, last = self.numbers
        steps = max(layers - 1, 1)
        return tuple((2 * (first * (steps - layer) + last * layer) + steps) // (2 * steps) for layer in range(layers))


def _read(path: Path) -> str:
    check_name(path)
    try:
        with path.open() as file:
            text = file.read(_LONGEST_FILE + 1)
    except (OSError, ValueError) as error:
        what = "neither numbers, nor pyramid:FIRST,LAST, nor a file that can be read"
        raise UsageError(f"{OPTION} is {what}: {error}") from None
    if len(text) > _LONGEST_FILE:
        raise UsageError(f"{OPTION}: {path} is longer than {_LONGEST_FILE} characters")
    return text


def _numbers(text: str, source: str) -> tuple[int, ...]:
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() and len(word) < 16 for word in words):
        raise UsageError(f"{OPTION} {source[:60]} must be numbers of rows, none below 0, separated by commas")
    return tuple(map(int, words))
