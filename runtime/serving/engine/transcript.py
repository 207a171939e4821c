"""Incremental decoding of tokens to text, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sscc.runtime.serving.engine.request import Finish, Piece
from sscc.runtime.session.samplers import TokenLogprobs
from sscc.runtime.text.tokenizer import TextStream

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.runtime.serving.engine.constraints import TextMatcher


class Transcript:
    """Text of a request for one reader. The text depends only on the tokens, not on how they are split into pieces.

    Args:
        tokenizer: tokenizer of the text; None for no text.
        stop: strings that end the text.
        grammar: a stop string ends the text only where the text before it is a complete match; None for anywhere.
        keep_stop: keep the stop string that ends the text.
        spell_special: spell special tokens.
        spelled: special tokens that are spelled regardless of `spell_special`.

    Attributes:
        read: number of tokens returned so far.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stop: tuple[str, ...],
        grammar: TextMatcher | None = None,
        *,
        keep_stop: bool = False,
        spell_special: bool = False,
        spelled: frozenset[int] = frozenset(),
    ) -> None:
        self._stream = None if tokenizer is None else TextStream(tokenizer, special=spell_special, spelled=spelled)
        self._keep_stop = keep_stop
        self._stops = [_StopString(each) for each in stop]
        self._held = ""  # text that may become part of a stop string
        self._grammar = grammar if stop else None
        self.read = 0

    def take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], finish: Finish | None) -> Piece:
        """Return the next piece of the request, made of these tokens. If they complete a stop string, `finish` is
        "stop" and the tokens after it are dropped."""
        texts = []
        for index, token in enumerate(tokens[:-1] if finish == "eos" else tokens):  # an end token has no text
            text, is_stopped = self._search("" if self._stream is None else self._stream.push(token), last=False)
            texts.append(text)
            if is_stopped:
                return self._piece(tokens[: index + 1], texts, logprobs, "stop")
        if finish is not None:
            text, is_stopped = self._search("" if self._stream is None else self._stream.finish(), last=True)
            texts.append(text)
            finish = "stop" if is_stopped else finish
        return self._piece(tokens, texts, logprobs, finish)

    def _piece(
        self, tokens: Sequence[int], texts: Sequence[str], logprobs: Sequence[TokenLogprobs], finish: Finish | None
    ) -> Piece:
        self.read += len(tokens)
        return Piece(tuple(tokens), "".join(texts), tuple(logprobs[: len(tokens)]), finish)

    def _search(self, text: str, last: bool) -> tuple[str, bool]:
        """Return the text that can be released now, and True if a stop string follows it."""
        free, stopped = "", False
        # A stop string at which the grammar does not match may end within `text`, so it is searched letter by letter.
        for part in [text] if self._grammar is None else text:
            given, stopped = self._find(part)
            free += given
            if stopped:
                return free, True
        if last:
            free, self._held = free + self._held, ""
        return free, False

    def _find(self, text: str) -> tuple[str, bool]:
        before = len(self._held)
        self._held += text
        ends = [(stop, stop.search(text)) for stop in self._stops]
        found = ((before + end - stop.length, stop.length) for stop, end in ends if end is not None)
        for start, length in sorted(found):
            if self._grammar is None or self._grammar.matches_with(self._held[:start]):
                return self._held[: start + length if self._keep_stop else start], True
        keep = max((stop.begun for stop in self._stops), default=0)
        free_text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        if self._grammar is not None:
            self._grammar.push(free_text)
        return free_text, False


class _StopString:
    """Incremental search for a stop string, which reads each character once (Knuth, Morris and Pratt).

    Attributes:
        length: length of the string.
        begun: length of the longest suffix of the text so far that is a proper prefix of the string.
    """

    def __init__(self, string: str) -> None:
        self.length = len(string)
        self.begun = 0
        self._string = string
        self._borders = [0]  # for each prefix, the length of its longest proper prefix that is also its suffix
        for letter in string[1:]:
            self._borders.append(self._step(self._borders[-1], letter))

    def search(self, text: str) -> int | None:
        """Return the index in `text` after the first occurrence of the string; None if there is none. `text` continues
        the text searched before."""
        if self._string[0] not in text and not self.begun:
            return None
        for index, letter in enumerate(text):
            self.begun = self._step(self.begun, letter)
            if self.begun == self.length:
                self.begun = self._borders[-1]  # for the next search
                return index + 1
        return None

    def _step(self, begun: int, letter: str) -> int:
        while begun and self._string[begun] != letter:
            begun = self._borders[begun - 1]
        return begun + (self._string[begun] == letter)
