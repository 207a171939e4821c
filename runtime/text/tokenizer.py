"""Text to tokens and back, with the `tokenizers` library alone; streaming of tokens to text."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sscc.ir.errors import ErrorKind, InputError, quoted
from sscc.ir.files import read_text

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_KNOWN_TOKENIZERS = 8  # whose properties are remembered
_TRIED_AT_ONCE = 8  # number of tokens without text after which a window is decoded only when it has doubled


class TokenizerFileErrors(ErrorKind):
    MISSING = InputError, "{path} does not exist, so the artifact has no tokenizer: give --token-ids"
    UNREADABLE = InputError, "{path} is not a readable tokenizer: {cause}"


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a tokenizer.json, which encodes whole prompts (`encode_whole`). Raises InputError if it
    is missing or damaged."""
    if not path.is_file():
        raise TokenizerFileErrors.MISSING(path=path)
    try:
        return encode_whole(Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerFileErrors.UNREADABLE(path=path, cause=quoted(error)) from None


def encode_whole(tokenizer: Tokenizer) -> Tokenizer:
    """Return `tokenizer` without truncation and padding, which its file may request. transformers resets both, too: a
    prompt must not be cut or padded silently."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_prompt(path: Path) -> str:
    """Return the text of a prompt file, or of stdin for "-", without the final newline. Raises InputError."""
    return read_text(path).removesuffix("\n")


def encode(tokenizer: Tokenizer, text: str, *, special: bool = True) -> list[int]:
    """Return the token ids of a prompt. With `special` they include the special tokens that the tokenizer adds around
    it."""
    # Encoded as a batch of one: the library releases Python's lock only for batches, so that other threads can run.
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
    return ids


def longest_token(tokenizer: Tokenizer) -> int:
    """Return the maximum bytes of text of one token, for tokenizers that neither drop nor rewrite text."""
    kinds = {step.get("type") for step in decoder_steps(tokenizer)}
    if "ByteLevel" in kinds:
        return max(map(len, tokenizer.get_vocab()))  # a letter is a byte
    return max(len(spelling.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()) for spelling in tokenizer.get_vocab())


def decode(tokenizer: Tokenizer, tokens: Sequence[int], *, special: bool = False) -> str:
    """Return the text of `tokens`; `special`: with special tokens."""
    text: str = tokenizer.decode(list(tokens), skip_special_tokens=not special)
    return text


def decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the steps of a tokenizer's decoder, as in its file; empty if it has no decoder."""
    decoder = tokenizer.decoder
    return [] if decoder is None else list(_flat(json.loads(decoder.__getstate__())))


def _flat(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder.get("type") == "Sequence":
        for step in decoder["decoders"]:
            yield from _flat(step)
    else:
        yield decoder


@cache
def byte_of_letter() -> dict[str, int]:
    """Return the alphabet of byte-level BPE: printable Latin-1 stands for itself, other bytes for letters from 256 up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


# ------------------------------------------------------------------------------------------------ tokens as they come


class TextStream:
    """Turns tokens into text piece by piece; the pieces together are `decode` of all the tokens.

    The work is linear in the number of tokens, whatever they are. Tokens without text (special ones, unknown ids) are
    left out, and bytes that can no longer become a character are returned at once, as replacement characters.

    Args:
        special: spell special tokens instead of leaving them out.
        spelled: special tokens that are spelled although others are left out. The text around one is decoded
            separately.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, special: bool = False, spelled: frozenset[int] = frozenset()
    ) -> None:
        traits = _traits(tokenizer)
        self._silent = frozenset() if special else traits.silent
        self._spelled = frozenset() if special else spelled & traits.silent
        self._tokenizer = tokenizer
        self._new = lambda: _ByteLevelPieces() if traits.only_byte_level else _WindowPieces(tokenizer, traits, special)
        self._pieces = self._new()

    def push(self, token: int) -> str:
        """Return the text that `token` completes, often empty."""
        if token in self._spelled:
            text, self._pieces = self._pieces.finish() + str(self._tokenizer.id_to_token(token)), self._new()
            return text
        spelling = None if token in self._silent else self._tokenizer.id_to_token(token)
        return "" if spelling is None else self._pieces.push(token, spelling)

    def finish(self) -> str:
        """Return the text still held back, at the end."""
        return self._pieces.finish()


def pieces(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text of tokens, piece by piece as they come; no piece is empty."""
    stream = TextStream(tokenizer)
    for token in tokens:
        piece = stream.push(token)
        if piece:
            yield piece
    rest = stream.finish()
    if rest:
        yield rest


class _Traits:
    """Properties of a tokenizer that a stream needs."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        kinds = [step.get("type") for step in decoder_steps(tokenizer)]
        self.silent = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
        self.only_byte_level = kinds == ["ByteLevel"]
        self.byte_level = "ByteLevel" in kinds
        self.byte_fallback = "ByteFallback" in kinds


_traits = lru_cache(_KNOWN_TOKENIZERS)(_Traits)


class _ByteLevelPieces:
    """Pieces of byte-level BPE, in which a text is the concatenation of its tokens' bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int, spelling: str) -> str:
        table = byte_of_letter()
        try:
            spelt = bytes([table[letter] for letter in spelling])
        except KeyError:  # an added token of other letters stands for itself
            spelt = spelling.encode()
        return self._decoder.decode(spelt)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowPieces:
    """Pieces of any other decoder.

    The spelling of a token depends on its neighbours: sentencepiece drops the space before a text's first word, and
    byte fallback reads a run of byte tokens as a whole: as characters, or if it is not UTF-8 as one replacement
    character per byte. So each piece is the difference between two decodings of a window that begins one piece earlier,
    and nothing is returned while the window ends in an incomplete character or in a run of bytes that may yet become
    UTF-8.
    """

    def __init__(self, tokenizer: Tokenizer, traits: _Traits, special: bool) -> None:
        self._decode = partial(decode, tokenizer, special=special)
        self._traits = traits
        self._tokens: list[int] = []  # the window
        self._done = 0  # number of its tokens whose text has been returned
        self._given = ""  # that text
        self._run: codecs.IncrementalDecoder | None = None  # decoder of the byte tokens at the end of the window
        self._broken = False  # they are not UTF-8
        self._retry = 0  # tokens of the window at which it is decoded again

    def push(self, token: int, spelling: str) -> str:
        byte = BYTE_TOKEN.fullmatch(spelling) if self._traits.byte_fallback else None
        if byte is not None:
            return self._push_byte(token, int(byte[1], 16))
        if self._broken:
            self._given = self._decode(self._tokens)
        self._run, self._broken = None, False
        self._tokens.append(token)
        return self._advance() if len(self._tokens) >= self._retry else ""

    def finish(self) -> str:
        if self._broken:
            return ""  # every byte was returned immediately
        text = self._decode(self._tokens)
        return text[len(self._given) :] if text.startswith(self._given) else ""

    def _push_byte(self, token: int, byte: int) -> str:
        if self._broken:
            self._tokens, self._done = [token], 1  # the tokens that follow are decoded with this one as their neighbour
            return _REPLACEMENT
        self._tokens.append(token)
        if self._run is None:
            self._run = codecs.getincrementaldecoder("utf-8")()
        try:
            self._run.decode(bytes([byte]))
        except UnicodeDecodeError:
            piece = self._advance()
            if piece:
                self._broken, self._tokens, self._done = True, [token], 1
            return piece
        return ""

    def _advance(self) -> str:
        text = self._decode(self._tokens)
        incomplete = self._traits.byte_level and text.endswith(_REPLACEMENT)
        piece = "" if incomplete or not text.startswith(self._given) else text[len(self._given) :]
        if not piece:
            waiting = len(self._tokens) - self._done
            self._retry = len(self._tokens) + (1 if waiting < _TRIED_AT_ONCE else waiting)
            return ""
        self._tokens = self._tokens[self._done :]
        self._done, self._retry = len(self._tokens), 0
        self._given = self._decode(self._tokens)
        return piece
