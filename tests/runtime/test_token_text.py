"""The text of single tokens, for every kind of tokenizer that checkpoints use."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from sscc.runtime.text.token_text import Offsets, TokenBytes, as_text
from tests.models.tiny_llama import END, byte_tokenizer

PIECES = {"<unk>": 0, "<0xE2>": 1, "<0x82>": 2, "<0xAC>": 3, "\u2581the": 4, "\u2581cat": 5, "s": 6, "</s>": 7}


def sentencepiece(strip: bool = True) -> Tokenizer:
    """As Llama 2's: spaces are underscores, unknown characters are bytes, a text's first space is dropped."""
    tokenizer = Tokenizer(models.BPE(PIECES, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens(["</s>"])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if strip else [])])
    return tokenizer


def metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(PIECES, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def test_byte_level() -> None:
    tokenizer = byte_tokenizer()
    spell = TokenBytes(tokenizer)
    text = "a \N{EURO SIGN}\n"
    assert b"".join(map(spell, tokenizer.encode(text).ids)) == text.encode()
    assert {spell(token) for token in range(256)} == {bytes([byte]) for byte in range(256)}
    assert spell(END) == b"<|end|>"
    assert spell.silent(END)
    assert spell(999) == b""


@pytest.mark.parametrize("strip", [True, False])
def test_sentencepiece(strip: bool) -> None:
    spell = TokenBytes(sentencepiece(strip))
    assert b"".join(map(spell, (4, 5, 6, 1, 2, 3, 7))).decode() == " the cats\N{EURO SIGN}</s>"
    assert spell.drops_first_space is strip


def test_metaspace() -> None:
    spell = TokenBytes(metaspace())
    assert [spell(token) for token in (4, 6)] == [b" the", b"s"]
    assert spell.drops_first_space


def test_without_a_decoder() -> None:
    tokenizer = Tokenizer(models.WordLevel({"one": 0, "two": 1}, unk_token="one"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert TokenBytes(tokenizer)(1) == b"two"


@pytest.mark.parametrize("tokenizer", [sentencepiece(), sentencepiece(False), metaspace()], ids=["strip", "no", "meta"])
def test_offsets_are_those_in_the_text(tokenizer: Tokenizer) -> None:
    tokens = (4, 5, 6, 4)
    offsets, text = Offsets(TokenBytes(tokenizer)), tokenizer.decode(list(tokens))
    starts = [offsets.next(token) for token in tokens]
    assert [text[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)] == [
        text[: starts[1]],
        " cat",
        "s",
        " the",
    ]


def test_offsets_of_parts_of_a_character() -> None:
    offsets = Offsets(TokenBytes(sentencepiece(False)))
    assert [offsets.next(token) for token in (4, 1, 2, 3, 7, 6)] == [0, 4, 4, 4, 5, 5]


def test_bytes_that_are_no_text() -> None:
    assert as_text(b"caf\xc3\xa9") == "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
    assert as_text(b"\xe2\x82") == "bytes:\\xe2\\x82"
