"""Spellings of single tokens, for logprobs: a token may be part of a character, so spellings are bytes."""

from __future__ import annotations

import codecs
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from sscc.runtime.text.tokenizer import BYTE_TOKEN, byte_of_letter, decoder_steps

_KNOWN_TOKENS = 1 << 16  # spellings that are remembered


class TokenBytes:
    """Bytes of a tokenizer's tokens; special tokens are spelled by their names."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._steps = decoder_steps(tokenizer)
        kinds = {step.get("type") for step in self._steps}
        self._byte_level, self._byte_fallback = "ByteLevel" in kinds, "ByteFallback" in kinds
        self._spaces = [mark for step in self._steps if (mark := _space_mark(step)) is not None]
        added = tokenizer.get_added_tokens_decoder()
        self._added = {token: str(entry.content) for token, entry in added.items()}
        self._silent = {token for token, entry in added.items() if entry.special}
        self._find = lru_cache(_KNOWN_TOKENS)(self._spell)

    def __call__(self, token: int) -> bytes:
        return self._find(token)

    def silent(self, token: int) -> bool:
        """Return True if the token is left out of texts."""
        return token in self._silent

    @property
    def joins(self) -> bool:
        """True if a text is the concatenation of its tokens' bytes, except for a first space."""
        kinds = {step.get("type") for step in self._steps}
        return bool(kinds & {"ByteLevel", "Metaspace"}) or bool(self._spaces)

    @property
    def drops_first_space(self) -> bool:
        """True if a text lacks the space with which its first token begins."""
        return any(
            (step.get("type") == "Strip" and step.get("start", 0) > 0)
            or (step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never")
            for step in self._steps
        )

    def _spell(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        spelling = self._tokenizer.id_to_token(token)
        if spelling is None:
            return b""
        if self._byte_level:
            table = byte_of_letter()
            return b"".join(bytes([table[c]]) if c in table else c.encode() for c in spelling)
        if self._byte_fallback and (match := BYTE_TOKEN.fullmatch(spelling)):
            return bytes([int(match[1], 16)])
        if not self._spaces:
            text: str = self._tokenizer.decode([token], skip_special_tokens=False)
            return text.encode()
        for mark in self._spaces:
            spelling = spelling.replace(mark, " ")
        return str(spelling).encode()


class Offsets:
    """Offsets of the tokens in the text of one answer, in characters."""

    def __init__(self, spell: TokenBytes) -> None:
        self._spell = spell
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._characters = 0
        self._first = True

    def next(self, token: int) -> int:
        """Return the offset of `token`, the next token of the answer."""
        start = self._characters
        if not self._spell.silent(token):
            spelling = self._spell(token)
            if self._first and self._spell.drops_first_space:
                spelling = spelling.removeprefix(b" ")
            self._first = False
            self._characters += len(self._decoder.decode(spelling))
        return start


def as_text(spelling: bytes) -> str:
    r"""Return a token's bytes as a string: its text, or if it is not valid text "bytes:\xe2\x82", in OpenAI's notation.
    """
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)


def _space_mark(step: dict[str, Any]) -> str | None:
    """Return the character that stands for a space, in a decoder step that replaces it with a space."""
    if step.get("type") == "Metaspace":
        return str(step["replacement"])
    if step.get("type") == "Replace" and step.get("content") == " ":
        mark = step["pattern"].get("String")
        return None if mark is None else str(mark)
    return None
