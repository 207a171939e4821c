"""Pre-tokenizers of GGUF files: all names of llama.cpp, and the pieces into which they split texts."""

from __future__ import annotations

import pytest

from sscc.compiler.frontend.gguf.pre_tokenizers import PRE_TOKENIZERS, WORD_PIECE_NAMES
from sscc.runtime.text.tokenizer import decode
from tests.compiler.frontend.gguf_metadata import byte_level, keys, tokenizer, tokens


def test_every_name_of_llama_cpp_is_known() -> None:
    assert (len(PRE_TOKENIZERS), len(WORD_PIECE_NAMES)) == (91, 3)
    assert not WORD_PIECE_NAMES & PRE_TOKENIZERS.keys()


SPLITS = {
    "gpt-2": ("I've 123  x", ["I", "'ve", "\u0120123", "\u0120", "\u0120x"]),
    "llama-bpe": ("I'VE 12345", ["I", "'VE", "\u0120", "123", "45"]),
    "qwen2": ("ab 12\n\n x", ["ab", "\u0120", "1", "2", "\u010a\u010a", "\u0120x"]),
    "smollm": ("a 12", ["a", "\u0120", "1", "2"]),
    "tekken": ("fooBar12/\n", ["foo", "Bar", "1", "2", "/\u010a"]),
    "gpt-4o": ("fooBar's123 4", ["foo", "Bar's", "123", "\u0120", "4"]),
    "seed-coder": ("a=\n\nb1", ["a", "=", "\u010a\u010a", "b", "1"]),
    "bailingmoe": ("it's 12", ["it", "'s", "\u0120", "1", "2"]),
    "falcon": ("12345 a$$", ["123", "45", "\u0120a", "$$"]),
    "superbpe": ("1234567 ab cd", ["1", "234", "567", "\u0120ab\u0120cd"]),
    "afmoe": ("12345678", ["12", "345", "678"]),
    "tiny_aya": ("12345678", ["12", "345", "678"]),
    "deepseek-llm": ("12 ab!?", ["12", "\u0120ab", "!?"]),
    "deepseek-v3": ("1234 ab", ["123", "4", "\u0120ab"]),
    "ufakzeka": ("I've", ["I", "'ve"]),
    "exaone-moe": ("ab cd", ["ab\u0120cd"]),
    "minicpm5": ("12345", ["123", "45"]),
    "laguna": ("a\n\nb", ["a", "\u010a\u010a", "b"]),
    "chameleon": ("IMGIMGABZ12", ["IMGIMGABZ", "1", "2"]),
    "jais-2": ("a" + " " * 7 + "b", ["a", "\u0120" * 4, "\u0120" * 2, "\u0120b"]),
    "bloom": ("ab, cd", ["ab", ",", "\u0120cd"]),
}


@pytest.mark.parametrize("name", sorted(SPLITS))
def test_texts_are_split_as_the_name_says(name: str) -> None:
    text, expected = SPLITS[name]
    split = tokenizer(byte_level(pre=name)).pre_tokenizer.pre_tokenize_str(text)
    assert [piece for piece, _ in split] == expected


def test_kimi_splits_han_from_other_letters() -> None:
    split = tokenizer(byte_level(pre="kimi-k2")).pre_tokenizer.pre_tokenize_str("ab漢字cD1234")
    assert [(end - start) for _, (start, end) in split] == [2, 2, 1, 1, 3, 1]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_no_pre_tokenizer_loses_text(name: str) -> None:
    made = tokenizer(byte_level(pre=name))
    if PRE_TOKENIZERS[name].byte_level:
        for text in ("I'll pay 12.50\u20ac\n\n  (caf\u00e9)", "漢字かな 한글 ไทย\t🙂 x²", " " * 9, "aB" * 50):
            assert decode(made, made.encode(text, add_special_tokens=False).ids) == text


def test_text_is_normalized_where_the_model_does() -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    for name, same in {"qwen2": True, "mpt": True, "command-r": True, "gpt-2": False, "llama-bpe": False}.items():
        made = byte_level(pre=name)
        assert (tokens(made, composed) == tokens(made, decomposed)) == same


def test_ignore_merges_takes_a_word_that_is_a_token() -> None:
    merges = ["b c", "a b", "ab c"]  # b c comes first, so that a b is not reached
    assert tokens(byte_level(merges=merges, pre="gpt-2"), "abc") == ["a", "bc"]
    assert tokens(byte_level(merges=merges, pre="llama-bpe"), "abc") == ["abc"]


def test_merges_of_text() -> None:
    """`tokenizers` would take a merge of "#version" in a list of texts for a comment."""
    merges = ["v e", "ve r", "s i", "o n", "si on", "ver sion", "# version", "#version s"]
    texts = [*"#versiona", *(merge.replace(" ", "") for merge in merges)]
    for kept in (merges, merges[:-1]):
        metadata = keys(model="gemma4", tokens=texts, merges=kept)
        assert tokens(metadata, "a#versions") == ["a", *(["#versions"] if kept == merges else ["#version", "s"])]


def test_an_old_gpt_neox_has_a_pre_tokenizer_without_naming_one() -> None:
    metadata = byte_level(merges=["1 2"], pre=None) | {"general.architecture": "gptneox"}
    assert tokens(metadata, "12") == ["12"]
