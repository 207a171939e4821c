"""Number of prompt positions that each layer selects, if layers differ: a list, a file, or a pyramid.

The budgets apply to the layers with full attention; layers that attend within a sliding window keep their window. The
number of layers is known only after the model has been captured.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sscc.ir.errors import ErrorKind, UsageError, quoted
from sscc.ir.files import check_name

OPTION = "--kv-topk-per-layer"
_PYRAMID = "pyramid:"
_LONGEST_FILE = 1 << 16


class LayerTopkErrors(ErrorKind):
    NOT_A_PYRAMID = UsageError, "--kv-topk-per-layer {text} must name two numbers of rows, FIRST and LAST"
    NO_LAYER = (
        UsageError,
        "--kv-topk-per-layer applies to no layer of this model, because all of them attend within a sliding window: "
        "leave it out",
    )
    OTHER_LAYERS = (
        UsageError,
        "--kv-topk-per-layer has {numbers} numbers, but it applies to {layers} layers: give one for each (layers that "
        "attend within a sliding window keep their window)",
    )
    UNREADABLE = (
        UsageError,
        "--kv-topk-per-layer is neither a list of numbers, nor pyramid:FIRST,LAST, nor a readable file: {reason}",
    )
    FILE_TOO_LONG = UsageError, "--kv-topk-per-layer: {path} has more than {most} characters"
    NOT_NUMBERS = (
        UsageError,
        "--kv-topk-per-layer {source} must be numbers of rows, 0 or more, separated by commas",
    )


@dataclass(frozen=True)
class LayerTopk:
    """The value of `--kv-topk-per-layer`.

    Attributes:
        numbers: numbers of selected rows of all layers in order; of a pyramid, those of the first and the last layer,
            with linear interpolation in between (PyramidKV, arXiv 2406.02069).
        pyramid: True for a pyramid.
    """

    numbers: tuple[int, ...]
    pyramid: bool = False

    @classmethod
    def parse(cls, text: str) -> LayerTopk:
        """Parse ``64,32,16``, ``pyramid:64,16``, or the path of a file with numbers separated by commas or white space.

        Raises:
            UsageError: any other text, a number below 0, or an unreadable or too long file.
        """
        if text.startswith(_PYRAMID):
            numbers = _numbers(text.removeprefix(_PYRAMID), text)
            if len(numbers) != 2:
                raise LayerTopkErrors.NOT_A_PYRAMID(text=text)
            return cls(numbers, True)
        if set(text) <= set("0123456789,- "):
            return cls(_numbers(text, text))
        return cls(_numbers(_read(Path(text)), f"file {text}"))

    def __str__(self) -> str:
        """Return a text that `parse` accepts."""
        return f"{_PYRAMID if self.pyramid else ''}{','.join(map(str, self.numbers))}"

    @property
    def mean(self) -> int:
        """The mean of `numbers`, rounded: the number per layer that gives an even distribution of the same total."""
        return round(sum(self.numbers) / len(self.numbers))

    @property
    def most(self) -> int:
        """The largest number of rows that a layer selects."""
        return max(self.numbers)

    def of(self, layers: int) -> tuple[int, ...]:
        """Return the numbers of `layers` layers. Raises UsageError for a list of another length, or for no layers."""
        if not layers:
            raise LayerTopkErrors.NO_LAYER()
        if not self.pyramid:
            if len(self.numbers) != layers:
                raise LayerTopkErrors.OTHER_LAYERS(numbers=len(self.numbers), layers=layers)
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
        raise LayerTopkErrors.UNREADABLE(reason=quoted(error)) from None
    if len(text) > _LONGEST_FILE:
        raise LayerTopkErrors.FILE_TOO_LONG(path=path, most=_LONGEST_FILE)
    return text


def _numbers(text: str, source: str) -> tuple[int, ...]:
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() and len(word) < 16 for word in words):
        raise LayerTopkErrors.NOT_NUMBERS(source=source)
    return tuple(map(int, words))
