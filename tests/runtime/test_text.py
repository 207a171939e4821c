"""Text that streams token by token is the text of all the tokens, for the kinds of tokenizers that models bring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from sscc.runtime.text.tokenizer import TextStream, TokenizerFileErrors, decode, encode, load_tokenizer, longest_token
from tests.errors import raises

CORPUS = ["the quick brown fox jumps over the lazy dog", "naïve café, Übergröße", "你好 hello", "🎉🎊 party 🎉"]
END = "<|end|>"


def byte_level() -> Tokenizer:
    """As GPT-2's, Llama-3's, Qwen's and SmolLM's: BPE over bytes, a character may be several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Return a tokenizer like Llama-2's and Mistral's: sentencepiece, a space before the first word, unknown characters
    as bytes."""
    words = ["▁", "▁the", "▁fox", "fox", "▁hello", "lo", "é", "▁na", ",", "a", "b"]
    pieces = ["<unk>", END, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.add_special_tokens(["<unk>", END])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def word_pieces() -> Tokenizer:
    pieces = ["[UNK]", END, "the", "fox", "##es", "##x", "hello", "a"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens([END])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


TOKENIZERS = {"byte-level": byte_level(), "byte-fallback": byte_fallback(), "word-pieces": word_pieces()}
kinds = pytest.mark.parametrize("kind", TOKENIZERS)


def pieces_of(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    stream = TextStream(tokenizer)
    return [*(stream.push(token) for token in tokens), stream.finish()]


@kinds
@given(data=st.data())
def test_pieces_join_to_the_text_of_any_tokens(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    tokens = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=40))
    assert "".join(pieces_of(tokenizer, tokens)) == decode(tokenizer, tokens)


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback"])
@given(text=st.text(st.sampled_from(" the fox,hello é你🎉\n"), max_size=60))
def test_pieces_join_to_the_text_that_was_encoded(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    assert "".join(pieces_of(tokenizer, encode(tokenizer, text))) == text


@given(st.text(max_size=60))
def test_no_piece_ends_within_a_character(text: str) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    pieces = pieces_of(tokenizer, encode(tokenizer, text))
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces) or "\N{REPLACEMENT CHARACTER}" in text


def test_words_come_as_soon_as_they_are_complete() -> None:
    tokenizer = TOKENIZERS["byte-fallback"]
    tokens = [tokenizer.token_to_id(piece) for piece in ("▁the", "▁fox", "<0xF0>", "<0x9F>", "<0x8E>", "<0x89>", "a")]
    assert pieces_of(tokenizer, tokens) == ["the", " fox", "", "", "", "", "🎉a", ""]


def test_an_unfinished_character_comes_at_the_end() -> None:
    tokenizer = TOKENIZERS["byte-fallback"]
    tokens = [tokenizer.token_to_id(piece) for piece in ("▁the", "<0xF0>", "<0x9F>")]
    assert pieces_of(tokenizer, tokens) == ["the", "", "", "\N{REPLACEMENT CHARACTER}" * 2]


def test_special_tokens_are_silent() -> None:
    tokenizer = TOKENIZERS["byte-fallback"]
    tokens = [tokenizer.token_to_id(piece) for piece in ("▁the", END, "▁fox", END)]
    assert pieces_of(tokenizer, tokens) == ["the", "", " fox", "", ""]


def test_a_saved_tokenizer_is_loaded(tmp_path: Path) -> None:
    TOKENIZERS["byte-level"].save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert decode(tokenizer, encode(tokenizer, "naïve fox")) == "naïve fox"


def test_a_missing_or_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    with raises(TokenizerFileErrors.MISSING):
        load_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text('{"model": 7')
    with raises(TokenizerFileErrors.UNREADABLE):
        load_tokenizer(tmp_path / "tokenizer.json")


# ------------------------------------------------------------------------------------------------- the cost of a text

MANY = 3000
HOSTILE = {
    "half a character": ("byte-level", lambda t: [t.token_to_id("ð")] * MANY),
    "bytes that continue nothing": ("byte-fallback", lambda t: [t.token_to_id("<0x80>")] * MANY),
    "bytes that begin again and again": ("byte-fallback", lambda t: [t.token_to_id("<0xF0>")] * MANY),
    "bytes that are characters": (
        "byte-fallback",
        lambda t: [t.token_to_id(f"<0x{b:02X}>") for b in b"\xc3\xa9"] * MANY,
    ),
    "special tokens": ("byte-fallback", lambda t: [t.token_to_id(END)] * MANY),
    "tokens that nobody knows": ("word-pieces", lambda t: [t.get_vocab_size() + 5] * MANY),
    "a decoder with further steps": ("byte-level and more", lambda t: [t.token_to_id("ð")] * MANY + [4]),
}


class CountingTokenizer:
    """Counts the tokens that are decoded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.decoded = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        self.decoded += len(tokens)
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)
        return text


@pytest.mark.parametrize("case", HOSTILE)
def test_the_work_is_linear(case: str) -> None:
    """Whatever the tokens are: each is decoded a few times, and not once for every token after it."""
    kind, make = HOSTILE[case]
    tokenizer = byte_level_and_more() if kind == "byte-level and more" else TOKENIZERS[kind]
    tokens = make(tokenizer)
    counting = CountingTokenizer(tokenizer)
    assert "".join(pieces_of(counting, tokens)) == decode(tokenizer, tokens)  # type: ignore[arg-type]
    assert counting.decoded <= 8 * len(tokens)


def byte_level_and_more() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("z", "zz")])
    return tokenizer


@pytest.mark.parametrize(("kind", "spelling"), [("byte-level", "ð"), ("byte-fallback", "<0x80>")])
def test_broken_bytes_do_not_wait_for_the_end(kind: str, spelling: str) -> None:
    """A character has at most four bytes, so bytes that cannot become a character are reported at once."""
    tokenizer = TOKENIZERS[kind]
    stream, broken = TextStream(tokenizer), tokenizer.token_to_id(spelling)
    letters = 0
    for count in range(1, 50):
        letters += len(stream.push(broken))
        assert letters >= count - 4


@given(st.lists(st.integers(0, 300), max_size=60))
def test_pieces_join_with_further_steps_after_the_bytes(tokens: list[int]) -> None:
    tokenizer = byte_level_and_more()
    assert "".join(pieces_of(tokenizer, tokens)) == decode(tokenizer, tokens)


def test_how_long_a_token_is() -> None:
    assert longest_token(TOKENIZERS["word-pieces"]) == len(END)
    tokenizer = byte_fallback()
    tokenizer.add_tokens(["▁▁▁▁▁▁▁▁", "ééééé"])
    assert longest_token(tokenizer) == len("ééééé".encode())
    spaces = byte_level()
    spaces.add_tokens(["Ġ" * 20])
    assert longest_token(spaces) == 20


def test_an_added_token_of_other_letters_stands_for_itself() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens(["你好", "Ġx"])
    tokens = [tokenizer.token_to_id(spelling) for spelling in ("你好", "Ġx", "ð", "你好")]
    assert "".join(pieces_of(tokenizer, tokens)) == decode(tokenizer, tokens)
    assert "你好" in pieces_of(tokenizer, tokens)
