"""Metadata of tokenizers in GGUF files, to be changed by tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from sscc.compiler.frontend.gguf.header import GgufHeader
from sscc.compiler.frontend.gguf.tokenizer import tokenizer_files
from sscc.runtime.text.tokenizer import byte_of_letter

TOKENS, TYPES, SCORES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"
MERGES = "tokenizer.ggml.merges"
LETTERS = list(byte_of_letter())
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
ALPHABET = "abcXYZ '\".,!?-_()[]{}<>|=+*/#\n\t 0123456789" + "äßжщ漢字かな한글ไทย🙂🚀½²\u200d"
"""Letters of many scripts, for random texts."""
WORDS = {SPACE: -9.0, "a": -10.0, "b": -11.0, "ab": -1.0, f"{SPACE}ab": -2.0, SPACE * 2: -3.0}
"""Of a small SentencePiece vocabulary, with their scores."""

Metadata = dict[str, Any]


def header_of(metadata: Mapping[str, Any], name: str = "model") -> GgufHeader:
    """Return a header with the metadata of a tokenizer: lists of numbers are arrays as they are read from a file."""
    arrays = {
        key: np.array(value, np.float32 if key == SCORES else np.int32)
        for key, value in metadata.items()
        if isinstance(value, list) and value and not isinstance(value[0], str)
    }
    return GgufHeader(Path(f"{name}.gguf"), {"general.architecture": "llama", **metadata, **arrays}, {})


def keys(**values: Any) -> Metadata:
    """Return metadata of a tokenizer; None leaves a key out."""
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def merged(base: Metadata, changes: Mapping[str, Any]) -> Metadata:
    return {key: value for key, value in (base | changes).items() if value is not None}


def byte_level(added: Mapping[str, int] | None = None, merges: Sequence[str] = (), **changes: Any) -> Metadata:
    """Return the metadata of a byte-level vocabulary: bytes, what the merges make, and added tokens by their type."""
    made = [merge.replace(" ", "", 1) for merge in merges]
    tokens = [*LETTERS, *made, *(added or {})]
    types = [NORMAL] * (len(LETTERS) + len(made)) + list((added or {}).values())
    base = keys(model="gpt2", pre="gpt-2", tokens=tokens, token_type=types, merges=list(merges))
    return merged(base, keys(**changes))


def sentencepiece(scores: Mapping[str, float], added: Mapping[str, int] | None = None, /, **changes: Any) -> Metadata:
    """Return the metadata of a SentencePiece vocabulary: <unk>, <s>, </s>, bytes, tokens with scores, added tokens."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *scores, *(added or {})]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(scores) + list((added or {}).values())
    values = [0.0] * 259 + list(scores.values()) + [-1000.0] * len(added or {})
    base = keys(model="llama", tokens=tokens, token_type=types, scores=values, bos_token_id=1, eos_token_id=2)
    return merged(base, keys(**changes))


def unigram(scores: Mapping[str, float], /, **changes: Any) -> Metadata:
    tokens, types = ["<pad>", "</s>", "<unk>", *scores], [CONTROL, CONTROL, UNKNOWN] + [NORMAL] * len(scores)
    base = keys(model="t5", tokens=tokens, token_type=types, scores=[0.0, 0.0, 0.0, *scores.values()])
    return merged(base | keys(add_space_prefix=True), keys(**changes))


def tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_files(header_of(metadata))["tokenizer.json"].decode())


def tokens(metadata: Mapping[str, Any], text: str, *, special: bool = False) -> list[str]:
    found: list[str] = tokenizer(metadata).encode(text, add_special_tokens=special).tokens
    return found


BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", f"{SPACE}un", "able", f"{SPACE}cafe", f"{SPACE}!", "s"]


def bert(**changes: Any) -> Metadata:
    ids = {"unknown": 1, "cls": 2, "seperator": 3, "mask": 4, "padding": 0}
    base = keys(model="bert", pre="bert-bge", tokens=BERT_TOKENS, token_type=[CONTROL] * 5 + [NORMAL] * 5)
    return merged(base | keys(**{f"{role}_token_id": token for role, token in ids.items()}), keys(**changes))
