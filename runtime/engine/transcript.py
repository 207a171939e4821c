"""From tokens to text as it is read, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sscc.runtime.engine.request import Finish, Piece
from sscc.runtime.sampling import TokenLogprobs
from sscc.runtime.text import TextStream

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Transcript:
    """One reading of a request's tokens. It depends on the tokens alone, and not on how many come at a time.

    Args:
        tokenizer: None makes no text.
        stop: strings that end the text.

    Attributes:
        read: tokens that were given out.
    """

    def __init__(self, tokenizer: Tokenizer | None, stop: tuple[str, ...]) -> None:
        self._stream = None if tokenizer is None else TextStream(tokenizer)
        self._stop = stop
        self._held = ""  # text that may yet become part of a stop string
        self.read = 0

    def take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], finish: Finish | None) -> Piece:
        """The piece that these tokens make, the next of the request. Its `finish` is "stop" where a stop string was
        found, and no token follows the one that completed it."""
        texts = []
        for index, token in enumerate(tokens):
            if finish == "eos" and index == len(tokens) - 1:
                break  # an ending token is no text
            text, found = self._search("" if self._stream is None else self._stream.push(token), last=False)
            texts.append(text)
            if found:
                return self._piece(tokens[: index + 1], texts, logprobs, "stop")
        if finish is not None:
            text, found = self._search("" if self._stream is None else self._stream.finish(), last=True)
            texts.append(text)
            finish = "stop" if found else finish
        return self._piece(tokens, texts, logprobs, finish)

    def _piece(
        self, tokens: Sequence[int], texts: Sequence[str], logprobs: Sequence[TokenLogprobs], finish: Finish | None
    ) -> Piece:
        self.read += len(tokens)
        return Piece(tuple(tokens), "".join(texts), tuple(logprobs[: len(tokens)]), finish)

    def _search(self, text: str, last: bool) -> tuple[str, bool]:
        """The text that may be given out now, and whether a stop string follows it."""
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            return self._held[: min(found)], True
        keep = 0 if last else self._overlap()
        given, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return given, False

    def _overlap(self) -> int:
        """Length of the longest end of the held text that a stop string begins with."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stop):
                return size
        return 0
