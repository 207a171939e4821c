"""Tokenizers of GGUF files: published vocabularies give the published tokens; tokens with a meaning keep it."""

from __future__ import annotations

import json
import os
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from sscc.compiler.frontend.gguf.header import read_header
from sscc.compiler.frontend.gguf.tokenizer import GgufTokenizerWarnings, tokenizer_files
from sscc.compiler.frontend.gguf.vocabulary import GgufVocabularyErrors, read_vocabulary
from sscc.compiler.options.warning import collecting
from sscc.runtime.text.chat_template import ChatTemplate
from sscc.runtime.text.tokenizer import TextStream, decode
from tests.compiler.frontend.gguf_metadata import (
    ALPHABET,
    CONTROL,
    LETTERS,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    WORDS,
    Metadata,
    bert,
    byte_level,
    header_of,
    keys,
    sentencepiece,
    tokenizer,
    tokens,
    unigram,
)
from tests.compiler.frontend.gguf_vocabularies import Published, published, published_tokenizer, whole
from tests.errors import check, raises

WHOLE_VOCABULARIES = "SSCC_GGUF_VOCABULARIES"
"""Environment variable: llama.cpp's folder `models`, whose whole vocabularies are tested, too."""


def check_published(vocabulary: Published) -> None:
    """Check every case.

    Those of qwen35 that are not in NFC are tested without the normalizer. They are llama.cpp's own, which has none, for
    Qwen2's vocabulary; Qwen3.5's tokenizer normalizes.
    """
    made = Tokenizer.from_str(tokenizer_files(vocabulary.header)["tokenizer.json"].decode())
    for text, ids in vocabulary.cases:
        plain = vocabulary.name == "qwen35" and not unicodedata.is_normalized("NFC", text)
        if plain:
            assert made.encode(text).ids == made.encode(unicodedata.normalize("NFC", text)).ids
        normalizer = made.normalizer
        made.normalizer = None if plain else normalizer
        assert made.encode(text, add_special_tokens=False).ids == ids, (vocabulary.name, text)
        made.normalizer = normalizer


@pytest.mark.parametrize("name", sorted(published()))
def test_published_cases(name: str) -> None:
    vocabulary = published()[name]
    assert len(vocabulary.cases) >= 46
    check_published(vocabulary)


@pytest.mark.skipif(WHOLE_VOCABULARIES not in os.environ, reason=f"{WHOLE_VOCABULARIES} is not set")
def test_whole_published_vocabularies() -> None:
    names = set()
    for vocabulary in whole(Path(os.environ[WHOLE_VOCABULARIES])):
        check_published(vocabulary)
        names.add(vocabulary.name)
    assert names == set(published())


BYTE_LEVEL = [name for name in sorted(published()) if name not in ("bert-bge", "gemma-4", "llama-spm", "phi-3")]


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_byte_level_text_comes_back(name: str) -> None:
    made, choose = published_tokenizer(name), random.Random(name)
    texts = ["".join(choose.choices(ALPHABET, k=choose.randint(0, 60))) for _ in range(100)]
    for text in [*texts, *(unicodedata.normalize("NFC", case) for case, _ in published()[name].cases)]:
        ids = made.encode(text, add_special_tokens=False).ids
        assert decode(made, ids) == text
        stream = TextStream(made)
        assert "".join(map(stream.push, ids)) + stream.finish() == text


def test_a_file_is_read_and_its_tokenizer_opens_in_transformers(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([*LETTERS, "ab", "<|begin|>", "<|eot_id|>"])
    writer.add_token_types([NORMAL] * 257 + [CONTROL] * 2)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_chat_template("{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    files = tokenizer_files(read_header(tmp_path / "m.gguf"))
    for file, data in files.items():
        (tmp_path / file).write_bytes(data)
    theirs = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    ours = Tokenizer.from_str(files["tokenizer.json"].decode())
    for text in ("ab ba", "<|eot_id|>é"):
        assert theirs(text)["input_ids"] == ours.encode(text).ids
        assert ours.encode(text).ids[0] == 257
    assert (theirs.bos_token, theirs.eos_token) == ("<|begin|>", "<|eot_id|>")
    template = ChatTemplate.load(tmp_path)
    assert template is not None
    assert template.render([{"role": "user", "content": "ab"}]) == "<|begin|>ab"


# ---------------------------------------------------------------------------------------------- tokens of a meaning


def test_added_tokens_are_found_whole_whatever_their_letters() -> None:
    full_width = "<\uff5cUser\uff5c>"
    made = byte_level({full_width: CONTROL, "<think>": USER_DEFINED, "   ": USER_DEFINED, "[PAD260]": UNUSED})
    assert tokens(made, f"{full_width}hi<think>    x")[0] == full_width
    assert tokens(made, "a   b") == ["a", "   ", "b"]
    assert tokens(made, "<think>") == ["<think>"]
    assert len(tokens(made, "[PAD260]")) == 8
    opened = tokenizer(made)
    assert decode(opened, opened.encode(f"{full_width}<think>é").ids) == "<think>é"


def test_rows_without_tokens_are_not_found_in_texts() -> None:
    for kind in (UNKNOWN, CONTROL, USER_DEFINED, UNUSED):
        assert len(tokens(byte_level({"[PAD256]": kind}), "[PAD256]")) == 8


def test_older_files_call_ends_normal() -> None:
    made = byte_level({"<|im_end|>": NORMAL, "</s>": NORMAL})
    assert tokens(made, "<|im_end|></s>") == ["<|im_end|>", "<", "/", "s", ">"]
    assert tokens(made | keys(eos_token_id=257), "</s>") == ["</s>"]


def test_phi3_takes_spaces_after_its_tokens() -> None:
    added = {"<|user|>": CONTROL}
    for changes, expected in (({"general.name": "Phi-3 mini"}, 2), ({"general.architecture": "phi3"}, 2), ({}, 3)):
        assert len(tokens(sentencepiece(WORDS, added, add_space_prefix=False) | changes, "<|user|>  ab")) == expected
    metadata = sentencepiece(WORDS, added, add_space_prefix=False) | {"general.architecture": "phi3"}
    assert tokens(metadata, "<s>  ab") == ["<s>", SPACE, f"{SPACE}ab"]


def test_masks_take_spaces_before_them() -> None:
    made = tokenizer(byte_level({"<mask>": CONTROL}, pre="jina-v2-code"))
    assert made.encode("a  <mask>b").ids == [LETTERS.index("a"), 256, LETTERS.index("b")]


BOS = {"<|bos|>": CONTROL, "<|eos|>": CONTROL, "<|sep|>": CONTROL}
IDS = {"bos_token_id": 256, "eos_token_id": 257, "seperator_token_id": 258}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"pre": "gpt-2"}, ["a"]),
        ({"pre": "qwen2"}, ["a"]),
        ({"pre": "llama-bpe"}, ["<|bos|>", "a"]),
        ({"pre": "tekken"}, ["<|bos|>", "a"]),
        ({"pre": "llama-bpe", "add_bos_token": False}, ["a"]),
        ({"pre": "gpt-2", "add_bos_token": True}, ["<|bos|>", "a"]),
        ({"pre": "gpt-2", "add_eos_token": True}, ["a", "<|eos|>"]),
        ({"pre": "chameleon", "add_eos_token": True}, ["<|bos|>", "a", "<|eos|>"]),
        ({"pre": "falcon3", "bos_token_id": None}, ["a"]),
    ],
)
def test_bos_and_eos_of_byte_level_vocabularies(changes: dict[str, Any], expected: list[str]) -> None:
    assert tokens(byte_level(BOS, **IDS | changes), "a", special=True) == expected


def test_gemma4_always_begins_with_bos() -> None:
    base = keys(model="gemma4", tokens=["<unk>", "<bos>", "a", SPACE], token_type=[3, 3, 1, 1], merges=[])
    for changes in ({}, {"add_bos_token": False}):
        assert tokens(base | keys(bos_token_id=1, **changes), "a a", special=True) == ["<bos>", "a", SPACE, "a"]


def test_bos_and_eos_of_other_kinds() -> None:
    assert tokens(sentencepiece(WORDS), "ab", special=True) == ["<s>", f"{SPACE}ab"]
    assert tokens(sentencepiece(WORDS, add_eos_token=True), "ab", special=True) == ["<s>", f"{SPACE}ab", "</s>"]
    assert tokens(sentencepiece(WORDS, bos_token_id=None), "ab", special=True)[0] == "<s>"  # llama.cpp's default
    assert tokens(unigram({SPACE: -1.0, "a": -2.0}), "a", special=True) == [SPACE, "a", "</s>"]


def test_pairs_are_separated() -> None:
    made = tokenizer(byte_level(BOS, **IDS, pre="roberta-bpe", add_bos_token=True, add_eos_token=True))
    assert made.encode("a", "b").tokens == ["<|bos|>", "a", "<|eos|>", "<|sep|>", "b", "<|eos|>"]


def test_word_piece() -> None:
    assert tokens(bert(), "Unables CAFÉ!x", special=True) == [
        "[CLS]", "un", "##able", "##s", "cafe", "!", "[UNK]", "[SEP]",
    ]  # fmt: skip
    assert tokenizer(bert()).encode("un", "cafe").tokens == ["[CLS]", "un", "[SEP]", "cafe", "[SEP]"]
    assert tokenizer(bert()).encode("un", "cafe").type_ids == [0, 0, 0, 1, 1]
    assert tokens(bert() | keys(**{"normalizer.lowercase": False}), "Un un") == ["[UNK]", "un"]
    assert tokens(bert() | keys(**{"normalizer.strip_accents": False}), "CAFÉ") == ["[UNK]"]


END = "<\uff5cend\u2581of\u2581sentence\uff5c>"


@pytest.mark.parametrize(
    ("added", "changes", "expected"),
    [
        ({"<|a|>": 3, "<|b|>": 3, "<|c|>": 3, "<|d|>": 3}, {}, []),
        (
            {"<|a|>": 3, "<|b|>": 3, "<|c|>": 3},
            {"eos_token_id": 256, "eot_token_id": 257, "eom_token_id": 258},
            [0, 1, 2],
        ),
        ({"<|im_end|>": 3, "<|eot_id|>": 3, "<end_of_turn>": 3, "<|endoftext|>": 3, END: 3}, {}, [0, 1, 2, 3, 4]),
        ({"<|fim_pad|>": 3, "<|repo_name|>": 3, "<|file_sep|>": 3, "<|fim_middle|>": 3}, {}, [0, 1, 2]),
        ({"<|fim_pad|>": 3, "<|other|>": 3}, {"fim_pad_token_id": 257}, [1]),
        ({"<|end|>": 3, "<|return|>": 3, "<|call|>": 3}, {}, [1, 2]),
        ({"<|end|>": 3, "<|flush|>": 3, "<|calls|>": 3}, {}, [1, 2]),
        ({"<|end|>": 3, "<|return|>": 3}, {}, [0, 1]),
        ({"</s>": CONTROL}, {}, [0]),
        ({"</s>": NORMAL}, {}, []),
        ({"</s>": USER_DEFINED}, {}, []),
        ({"</s>": NORMAL}, {"eos_token_id": 256}, [0]),
    ],
)
def test_ends_of_an_answer(added: dict[str, int], changes: dict[str, Any], expected: list[int]) -> None:
    header = header_of(byte_level(added, **changes))
    vocabulary = read_vocabulary(header)
    assert vocabulary is not None
    ends = vocabulary.end_tokens()
    assert ends == tuple(256 + token for token in expected)
    assert json.loads(tokenizer_files(header)["generation_config.json"])["eos_token_id"] == list(ends)


def test_files_name_the_special_tokens() -> None:
    files = tokenizer_files(header_of(byte_level(BOS, **IDS, padding_token_id=258, unknown_token_id=256)))
    named = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "sep_token": "<|sep|>", "pad_token": "<|sep|>"}
    named["unk_token"] = "<|bos|>"
    assert json.loads(files["special_tokens_map.json"]) == named
    assert named.items() <= json.loads(files["tokenizer_config.json"]).items()
    assert "chat_template.jinja" not in files


def test_sampling_is_the_files() -> None:
    """Numbers of 32 bits get their decimal form back, and a key that is not followed is named."""
    keys = {"temp": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "penalty_repeat": 1.1}
    stated = {f"general.sampling.{name}": float(np.float32(value)) for name, value in keys.items()}
    stated["general.sampling.top_k"] = 20
    with collecting() as warnings:
        files = tokenizer_files(header_of(byte_level() | stated | {"general.sampling.mirostat": 2}))
    (warning,) = warnings
    check(warning, GgufTokenizerWarnings.SAMPLING, key="general.sampling.mirostat")
    config = json.loads(files["generation_config.json"])
    names = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}
    assert {names.get(name, name): value for name, value in keys.items()}.items() <= config.items()
    assert config["do_sample"] is True
    assert "do_sample" not in json.loads(tokenizer_files(header_of(byte_level()))["generation_config.json"])
    with raises(GgufVocabularyErrors.VALUE, key="general.sampling.temp"):
        tokenizer_files(header_of(byte_level() | {"general.sampling.temp": "hot"}))


def test_the_default_chat_template_is_kept() -> None:
    templates = {"tokenizer.chat_template": "{{ 1 }}é", "tokenizer.chat_template.tool_use": "{{ 2 }}"}
    files = tokenizer_files(header_of(byte_level() | templates))
    assert files["chat_template.jinja"].decode() == "{{ 1 }}é"
    assert set(files) == {
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
        "chat_template.jinja",
    }  # fmt: skip


@pytest.mark.parametrize("make", [byte_level, bert, lambda: sentencepiece(WORDS), lambda: unigram({"a": -1.0})])
def test_files_are_the_same_every_time(make: Callable[[], Metadata]) -> None:
    assert tokenizer_files(header_of(make())) == tokenizer_files(header_of(make()))
