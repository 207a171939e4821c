"""The vocabulary in a GGUF file's metadata, checked: tokens, their types, and those with a role.

Keys, types and defaults are those of llama.cpp (src/llama-vocab.cpp, gguf-py/gguf/constants.py). Nothing that the file
says is trusted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import TokenType

from sscc.compiler.frontend.gguf.header import GgufHeader
from sscc.ir.errors import ErrorKind, InputError, UnsupportedError

MODEL, TOKENS, TYPES = "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
SCORES, MERGES = "tokenizer.ggml.scores", "tokenizer.ggml.merges"
NO_VOCABULARY = ("none", "no_vocab")
MOST_CHARACTERS = 1 << 23
"""Maximum characters in all tokens together. The largest published vocabularies have two million."""
MOST_TOKEN_CHARACTERS = 1024
MOST_ADDED_CHARACTERS = 1 << 20
"""Maximum characters in the control, unknown and user-defined tokens together, for which every text is searched.
Thousands of image tokens have fewer."""
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))

ROLES: Mapping[str, tuple[str, ...]] = {
    "bos": ("tokenizer.ggml.bos_token_id",),
    "eos": ("tokenizer.ggml.eos_token_id",),
    "eot": ("tokenizer.ggml.eot_token_id",),
    "eom": ("tokenizer.ggml.eom_token_id",),
    "unk": ("tokenizer.ggml.unknown_token_id",),
    # ggml's docs/gguf.md has the correct spelling, llama.cpp the other one.
    "sep": ("tokenizer.ggml.seperator_token_id", "tokenizer.ggml.separator_token_id"),
    "pad": ("tokenizer.ggml.padding_token_id",),
    "cls": ("tokenizer.ggml.cls_token_id",),
    "mask": ("tokenizer.ggml.mask_token_id",),
    "fim_pad": ("tokenizer.ggml.fim_pad_token_id",),
    "fim_rep": ("tokenizer.ggml.fim_rep_token_id",),
    "fim_sep": ("tokenizer.ggml.fim_sep_token_id",),
}
"""Keys of the tokens that have a role."""

DEFAULT_ROLES: Mapping[str, Mapping[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "bert": {"cls": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
}
"""Default tokens of roles that a file does not name, by the kind of vocabulary. llama.cpp also uses token 11 as the BOS
and EOS of every `gpt2`: those are Falcon's, whose files name them."""

END_TEXTS = frozenset(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|> "
    "<EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> "
    "<\uff5cend\u2581of\u2581sentence\uff5c> [e~[".split()
)
"""Texts of tokens that end an answer, whatever the file states about them."""
FILL_IN_TEXTS: Mapping[str, tuple[str, ...]] = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Texts of fill-in-the-middle tokens, which also end an answer if the file does not name them."""
_MESSAGE_END, _ANSWER_ENDS, _CALL_ENDS = "<|end|>", {"<|return|>", "<|flush|>"}, {"<|call|>", "<|calls|>"}
"""`<|end|>` ends a message but not an answer if the vocabulary has tokens of both other sets."""
_STRUCK = "</s>"
"""An HTML tag, the only one of these texts that a model may well write in an answer."""
_BARS = (("<|", "|>"), ("<\uff5c", "\uff5c>"))
"""Start and end of token texts that ordinary text does not contain."""
_PADDING = re.compile(r"\[PAD(\d+)\]")


Merges = list[str] | list[tuple[str, str]]
"""Merges of a tokenizer.json: two tokens with a space between them, or pairs."""


class GgufVocabularyErrors(ErrorKind):
    """Inconsistent metadata of a tokenizer."""

    MISSING = InputError, "{path}: its tokenizer lacks metadata {key}"
    VALUE = InputError, "{path}: metadata {key} must be {expected}, got {found}"
    COUNT = InputError, "{path}: metadata {key} has {count} entries, but there are {tokens} tokens"
    NO_TOKENS = InputError, "{path}: its tokenizer has no tokens"
    TOO_LONG = InputError, "{path}: {what} must have at most {most} characters, got {count}"
    TWICE = InputError, "{path}: the tokens {first} and {second} are both {text!r}"
    TOKEN_TYPE = InputError, "{path}: the type of token {token} must be 0 .. 6, got {type}"
    BYTE_TOKEN = InputError, "{path}: token {token} is a byte, but its text is {text!r} instead of <0x00> .. <0xFF>"
    BYTES = InputError, "{path}: its tokenizer has tokens for {count} of the 256 bytes"
    SCORE = InputError, "{path}: the score of token {token} must be finite, got {score}"
    ID = InputError, "{path}: metadata {key} is {token}; the tokens are 0 .. {last}"
    MERGE = InputError, "{path}: merge {number} must be two tokens that make a third one, got {merge!r}"
    UNRANKED = (
        UnsupportedError,
        "{path}: {count} of {tokens} tokens have the score {score}, so the order of merges is unknown",
    )


def kind_name(value: Any) -> str:
    """Return the name of a value's type for a message."""
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


class Metadata:
    """Values of a header's metadata by key, checked for their type."""

    def __init__(self, header: GgufHeader) -> None:
        self.path, self._values = header.path, header.metadata

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def keys_below(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`."""
        return [key for key in self._values if key.startswith(prefix)]

    def text(self, key: str, default: str = "") -> str:
        value = self._values.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "a boolean")
        return value

    def number(self, key: str) -> float:
        """Return a finite number."""
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(key, value, "a finite number")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._values.get(key)
        if value is None:
            raise GgufVocabularyErrors.MISSING(path=self.path, key=key)
        if not isinstance(value, list):
            raise self._wrong(key, value, "an array of texts")
        return value

    def numbers(self, key: str, kinds: str, expected: str) -> np.ndarray[Any, np.dtype[Any]] | None:
        """Return an array of numbers, whose dtype has one of the `kinds` of numpy; None where there is none."""
        value = self._values.get(key)
        if value is not None and (not isinstance(value, np.ndarray) or value.dtype.kind not in kinds):
            raise self._wrong(key, value, expected)
        return value

    def token(self, key: str, tokens: int) -> int | None:
        """Return a token's number, below `tokens`; None where the file does not have it."""
        value = self._values.get(key)
        if value is None:
            return None
        if type(value) is not int:
            raise self._wrong(key, value, "an integer")
        if not 0 <= value < tokens:
            raise GgufVocabularyErrors.ID(path=self.path, key=key, token=value, last=tokens - 1)
        return value

    def _wrong(self, key: str, value: Any, expected: str) -> Exception:
        return GgufVocabularyErrors.VALUE(path=self.path, key=key, found=kind_name(value), expected=expected)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file.

    Attributes:
        kind: `tokenizer.ggml.model`, which names the algorithm.
        tokens: texts in the order of the file; ids: the numbers of these texts.
        types: type of each token, one of TokenType; 0 for none.
        roles: the tokens that have a role, by its name in ROLES.
    """

    metadata: Metadata
    kind: str
    architecture: str
    tokens: Sequence[str]
    ids: Mapping[str, int]
    types: Sequence[int]
    roles: Mapping[str, int]

    @property
    def path(self) -> Path:
        return self.metadata.path

    def of_type(self, *types: TokenType) -> list[int]:
        """Return the tokens that have one of the types."""
        kinds = {int(kind) for kind in types}
        return [token for token, kind in enumerate(self.types) if kind in kinds]

    def has_bytes(self) -> bool:
        """Return True if there is a token for every byte.

        Raises:
            InputError: some bytes have tokens and others do not, or a token of that type has another text.
        """
        for token in self.of_type(TokenType.BYTE):
            if self.tokens[token] not in _BYTES:
                raise GgufVocabularyErrors.BYTE_TOKEN(path=self.path, token=token, text=self.tokens[token])
        count = sum(text in self.ids for text in BYTE_TOKENS)
        if count not in (0, 256) and TokenType.BYTE in self.types:
            raise GgufVocabularyErrors.BYTES(path=self.path, count=count)
        return count == 256

    def scores(self) -> list[float]:
        """Return the scores of the tokens. Raises InputError where they lack, or one is no number."""
        values = self.metadata.numbers(SCORES, "fiu", "an array of numbers")
        if values is None:
            raise GgufVocabularyErrors.MISSING(path=self.path, key=SCORES)
        self._check_count(SCORES, len(values))
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            token = int(wrong[0])
            raise GgufVocabularyErrors.SCORE(path=self.path, token=token, score=str(values[token]))
        return [float(value) for value in values.tolist()]

    def check_characters(self, what: str, tokens: Iterable[int], most: int) -> None:
        """Check that `tokens` have at most `most` characters together. Raises InputError."""
        count = sum(len(self.tokens[token]) for token in tokens)
        if count > most:
            raise GgufVocabularyErrors.TOO_LONG(path=self.path, what=what, count=count, most=most)

    def _check_count(self, key: str, count: int) -> None:
        if count != len(self.tokens):
            raise GgufVocabularyErrors.COUNT(path=self.path, key=key, count=count, tokens=len(self.tokens))

    def merges(self) -> Merges:
        """Return the merges of the file, the first one first. Raises InputError where one names no tokens."""
        merges, ids = self.metadata.texts(MERGES), self.ids
        for number, merge in enumerate(merges):
            left, _, right = merge.partition(" ")
            if not left:
                left, right = _halves(merge)
            if left not in ids or right not in ids or left + right not in ids:
                raise GgufVocabularyErrors.MERGE(path=self.path, number=number, merge=merge)
        # `tokenizers` reads texts in two thirds of the time that pairs take, but takes no spaces in tokens then, and a
        # text that begins with "#version" for a comment.
        if any(merge.count(" ") != 1 or merge.startswith("#version") for merge in merges):
            return [_halves(merge) for merge in merges]
        return merges

    def end_tokens(self) -> tuple[int, ...]:
        """Return the tokens that end an answer: those with the roles EOS, EOT and EOM, and others by their text.

        Unlike in llama.cpp, a `</s>` that is not a control token does not count: Qwen, Gemma and others write HTML with
        it.
        """
        tokens, ids = self.tokens, self.ids
        ends = {self.roles[role] for role in ("eos", "eot", "eom") if role in self.roles}
        for role, texts in FILL_IN_TEXTS.items():
            named = [self.roles[role]] if role in self.roles else [ids[text] for text in texts if text in ids]
            ends.update(named[:1])
        ends.update(ids[text] for text in END_TEXTS if text in ids and not self._is_text(text))
        found = {tokens[token] for token in ends}
        if found & _ANSWER_ENDS and found & _CALL_ENDS:
            ends.discard(ids.get(_MESSAGE_END, -1))
        return tuple(sorted(ends))

    def _is_text(self, text: str) -> bool:
        return text == _STRUCK and self.types[self.ids[text]] != TokenType.CONTROL

    def added_tokens(self) -> list[int]:
        """Return the tokens for which a text is searched before anything else is done with it.

        These are the control, unknown and user-defined ones. Older files call all tokens normal: there they are the
        BOS and the ends of an answer.
        """
        searched = {TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED}
        mistyped = {token for token in self._unmistakable() if self.types[token] in (0, TokenType.NORMAL)}
        added = [
            token
            for token, kind in enumerate(self.types)
            if (kind in searched or token in mistyped) and not self.is_padding(token)
        ]
        self.check_characters("its control, unknown and user-defined tokens", added, MOST_ADDED_CHARACTERS)
        return added

    def _unmistakable(self) -> list[int]:
        """Return the tokens that are never text, whatever their type: those that the file names as BOS or as an end,
        and ends between bars. Others, such as `</s>`, may be text."""
        named = [self.roles[role] for role in ("bos", "eos", "eot", "eom") if ROLES[role][0] in self.metadata]
        barred = [text for text in END_TEXTS if any(text.startswith(a) and text.endswith(b) for a, b in _BARS)]
        return [*named, *(self.ids[text] for text in barred if text in self.ids)]

    def is_padding(self, token: int) -> bool:
        """Return True if a token only fills a row of the model that has no token. llama.cpp's converter calls them
        `[PAD<number>]`, and gives them a type that depends on its version."""
        match = _PADDING.fullmatch(self.tokens[token]) if self.types[token] != TokenType.NORMAL else None
        return match is not None and token not in self.roles.values()


_BYTES = frozenset(BYTE_TOKENS)


def _halves(merge: str) -> tuple[str, str]:
    """Return the two tokens of a merge. The first one may begin with a space, as in llama.cpp; it is never empty."""
    middle = merge.find(" ", 1)
    return (merge[:middle], merge[middle + 1 :]) if middle > 0 else ("", "")


def read_vocabulary(header: GgufHeader) -> Vocabulary | None:
    """Return the vocabulary of a file; None if it has none.

    Raises:
        InputError: inconsistent metadata.
    """
    metadata = Metadata(header)
    kind = metadata.text(MODEL)
    if kind in NO_VOCABULARY or (not kind and TOKENS not in metadata):
        return None
    if not kind:
        raise GgufVocabularyErrors.MISSING(path=header.path, key=MODEL)
    tokens = _tokens(metadata)
    ids = {text: token for token, text in enumerate(tokens)}
    if len(ids) != len(tokens):
        first, second = _twice(tokens)
        raise GgufVocabularyErrors.TWICE(path=header.path, first=first, second=second, text=tokens[first])
    roles = {role: token for role, token in DEFAULT_ROLES.get(kind, {}).items() if token < len(tokens)}
    for role, keys in ROLES.items():
        for key in keys:
            token = metadata.token(key, len(tokens))
            roles |= {} if token is None else {role: token}
    return Vocabulary(metadata, kind, header.architecture, tokens, ids, _types(metadata, len(tokens)), roles)


def _tokens(metadata: Metadata) -> list[str]:
    tokens = metadata.texts(TOKENS)
    if not tokens:
        raise GgufVocabularyErrors.NO_TOKENS(path=metadata.path)
    lengths = list(map(len, tokens))
    longest = max(lengths)
    if longest > MOST_TOKEN_CHARACTERS:
        what = f"token {lengths.index(longest)}"
        raise GgufVocabularyErrors.TOO_LONG(path=metadata.path, what=what, count=longest, most=MOST_TOKEN_CHARACTERS)
    if sum(lengths) > MOST_CHARACTERS:
        raise GgufVocabularyErrors.TOO_LONG(
            path=metadata.path, what="its vocabulary", count=sum(lengths), most=MOST_CHARACTERS
        )
    if min(lengths):
        return tokens
    return [text or f"[EMPTY_{token}]" for token, text in enumerate(tokens)]  # the name that llama.cpp gives it


def _twice(tokens: Sequence[str]) -> tuple[int, int]:
    """Return two tokens of the same text."""
    seen: dict[str, int] = {}
    for token, text in enumerate(tokens):
        if text in seen:
            return seen[text], token
        seen[text] = token
    raise AssertionError("no text is there twice")


def _types(metadata: Metadata, tokens: int) -> list[int]:
    values = metadata.numbers(TYPES, "iu", "an array of integers")
    if values is None:
        return [int(TokenType.NORMAL)] * tokens
    if len(values) != tokens:
        raise GgufVocabularyErrors.COUNT(path=metadata.path, key=TYPES, count=len(values), tokens=tokens)
    wrong = np.flatnonzero((values < 0) | (values > int(TokenType.BYTE)))
    if len(wrong):
        token = int(wrong[0])
        raise GgufVocabularyErrors.TOKEN_TYPE(path=metadata.path, token=token, type=int(values[token]))
    return [int(value) for value in values.tolist()]
