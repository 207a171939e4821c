"""Text that streams token by token is the text of all the tokens, for the kinds of tokenizers that models bring."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from sscc.ir.errors import InputError
from sscc.runtime.text import TextStream, decode, encode, load_tokenizer

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
    """As Llama-2's and Mistral's: sentencepiece, a space before the first word, unknown characters as bytes."""
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
    with pytest.raises(InputError, match="give --token-ids"):
        load_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text('{"model": 7')
    with pytest.raises(InputError, match="not a tokenizer that can be read"):
        load_tokenizer(tmp_path / "tokenizer.json")
