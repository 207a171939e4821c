"""Prompts of a given length: filler with needles, and a search for the amount of filler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from sscc.compiler.tools.quality.prose import NOISE, SENTENCES
from sscc.ir.errors import ErrorKind, UsageError

Count = Callable[[str], int]
"""Function from a text to its number of tokens, including added special tokens."""


class HaystackErrors(ErrorKind):
    PROMPT_TOO_LONG = UsageError, "{text} does not fit into {length} tokens: it needs at least {smallest}"


class Haystack:
    """An endless text, cut after any number of words; needles are placed between its sentences."""

    def __init__(self, sentences: Iterator[str]) -> None:
        self._sentences = sentences
        self._words: list[str] = []
        self._ends = [0]

    @classmethod
    def prose(cls, random: Random) -> Haystack:
        """Return this project's sentences in random order; none is repeated before all have occurred."""
        return cls(_shuffled(random))

    @classmethod
    def noise(cls) -> Haystack:
        """Return the same five sentences, repeated."""
        return cls(_repeated())

    def text(self, words: int, needles: Sequence[tuple[float, str]] = ()) -> str:
        """Return the first `words` words, with each needle at the end of the sentence nearest to its depth.

        Args:
            words: number of words, without needles.
            needles: pairs of depth and text. Depth 0 is the beginning, 1 the end of the last whole sentence. Needles at
                the same place keep their order.
        """
        while self._ends[-1] <= words:
            self._words += next(self._sentences).split()
            self._ends.append(len(self._words))
        ends = [end for end in self._ends if end <= words]
        placed_needles = [(_nearest(ends, depth * words), needle) for depth, needle in needles]
        pieces, start = [], 0
        for end, needle in sorted(placed_needles, key=lambda item: item[0]):
            pieces += [*self._words[start:end], needle]
            start = end
        return " ".join([*pieces, *self._words[start:words]])


def _nearest(ends: Sequence[int], place: float) -> int:
    return min(ends, key=lambda end: abs(end - place))


def _shuffled(random: Random) -> Iterator[str]:
    while True:
        yield from random.sample(SENTENCES, len(SENTENCES))


def _repeated() -> Iterator[str]:
    sentences = [f"{sentence}." for sentence in NOISE.rstrip(".").split(". ")]
    while True:
        yield from sentences


def fit(build: Callable[[int], str], length: int, count: Count, what: str, largest: int | None = None) -> str:
    """Return the longest `build(size)` of at most `length` tokens, size >= 0 (and <= `largest`).

    Raises UsageError, naming `what`, if size 0 already has more tokens.
    """
    smallest = count(build(0))
    if smallest > length:
        raise HaystackErrors.PROMPT_TOO_LONG(text=what, length=length, smallest=smallest)
    limit = length if largest is None else largest  # every unit of filler has at least one token
    low, high = 0, limit + 1
    step = 16
    while low + step < high:  # most prompts are far below the limit, so first search for a close upper bound
        if count(build(low + step)) > length:
            high = low + step
            break
        low, step = low + step, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        if count(build(middle)) <= length:
            low = middle
        else:
            high = middle
    return build(low)
