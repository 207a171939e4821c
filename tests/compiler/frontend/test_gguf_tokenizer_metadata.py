"""Metadata of tokenizers in GGUF files that are refused: one clear error, quickly, whatever the file says."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from sscc.compiler.frontend.gguf.sentencepiece import GgufSentencepieceErrors
from sscc.compiler.frontend.gguf.tokenizer import (
    MOST_TEMPLATE_CHARACTERS,
    GgufTokenizerErrors,
    tokenizer_files,
)
from sscc.compiler.frontend.gguf.tokenizer_kinds import GgufKindErrors
from sscc.compiler.frontend.gguf.vocabulary import (
    MOST_ADDED_CHARACTERS,
    MOST_CHARACTERS,
    MOST_TOKEN_CHARACTERS,
    GgufVocabularyErrors,
    read_vocabulary,
)
from sscc.ir.errors import ErrorKind, InputError, UnsupportedError
from tests.compiler.frontend.gguf_metadata import (
    BYTES,
    CONTROL,
    LETTERS,
    MERGES,
    NORMAL,
    SCORES,
    TOKENS,
    TYPES,
    WORDS,
    Metadata,
    bert,
    byte_level,
    header_of,
    keys,
    sentencepiece,
    unigram,
)
from tests.compiler.frontend.test_gguf_sentencepiece import charsmap
from tests.errors import raises

PRE = "tokenizer.ggml.pre"
CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
QUICKLY = 5
"""Seconds. An idle machine takes less than one."""


def check_refused(metadata: Metadata, kind: ErrorKind, /, **fields: Any) -> None:
    started = time.process_time()
    with raises(kind, **fields):
        tokenizer_files(header_of(metadata))
    assert time.process_time() - started < QUICKLY


@pytest.mark.parametrize("kind", ["plamo2", "rwkv", "hybriddna", "gpt3", "test", "no such kind"])
def test_other_kinds_are_refused(kind: str) -> None:
    check_refused(byte_level(model=kind), GgufKindErrors.KIND, kind=kind)
    check_refused(keys(model=kind), GgufKindErrors.KIND, kind=kind)


@pytest.mark.parametrize("name", ["no-such-pre", "GPT-2", "gpt2", "bert-bge", "jina-v2-en", " gpt-2", "llama"])
def test_other_pre_tokenizers_are_refused(name: str) -> None:
    check_refused(byte_level(pre=name), GgufKindErrors.PRE_TOKENIZER, name=name)


def test_a_vocabulary_that_names_no_pre_tokenizer_is_refused() -> None:
    check_refused(byte_level(pre=None), GgufKindErrors.NO_PRE_TOKENIZER, key=PRE)
    check_refused(byte_level(pre=""), GgufKindErrors.NO_PRE_TOKENIZER, key=PRE)
    assert tokenizer_files(header_of(byte_level(pre="default")))


def test_a_file_without_a_vocabulary_has_no_tokenizer() -> None:
    for metadata in ({}, keys(model="none"), keys(model="no_vocab", bos_token_id=7)):
        assert tokenizer_files(header_of(metadata)) == {}
        assert read_vocabulary(header_of(metadata)) is None
    check_refused(byte_level(model=None), GgufVocabularyErrors.MISSING, key="tokenizer.ggml.model")
    check_refused(byte_level(model=""), GgufVocabularyErrors.MISSING, key="tokenizer.ggml.model")


def test_scores_that_rank_nothing_are_refused() -> None:
    """llama.cpp's converter writes -1000 for every token if it does not know the scores."""
    scores = dict.fromkeys(WORDS, -1000.0)
    check_refused(sentencepiece(scores), GgufVocabularyErrors.UNRANKED, count=3, tokens=3, score=-1000.0)


VALUE, COUNT, MISSING = GgufVocabularyErrors.VALUE, GgufVocabularyErrors.COUNT, GgufVocabularyErrors.MISSING
TOO_LONG, ID, MERGE = GgufVocabularyErrors.TOO_LONG, GgufVocabularyErrors.ID, GgufVocabularyErrors.MERGE
PLAIN, SPM, UNIGRAM = byte_level(), sentencepiece(WORDS), unigram({"a": -1.0})
NAN, INFINITE = float("nan"), float("inf")
HUGE = "x" * (MOST_TEMPLATE_CHARACTERS + 1)


def scored(base: Metadata, score: float) -> Metadata:
    """Return `base` with another score of its last token."""
    return base | {SCORES: [*base[SCORES][:-1], score]}


def replaced(base: Metadata, text: str, other: str) -> Metadata:
    """Return `base` with another text of one of its tokens."""
    return base | {TOKENS: [other if token == text else token for token in base[TOKENS]]}


def table(data: bytes) -> Metadata:
    return UNIGRAM | {CHARSMAP: np.frombuffer(data, np.uint8)}


GOOD = charsmap(ord("A"), "b")
LEAF = (1 << 31).to_bytes(4, "little")
ROOT = (1024).to_bytes(4, "little")

REFUSED: list[tuple[Metadata, ErrorKind, dict[str, Any]]] = [
    # Types
    (PLAIN | keys(model=3), VALUE, {"key": "tokenizer.ggml.model", "found": "a int"}),
    (PLAIN | keys(model=["gpt2"]), VALUE, {"key": "tokenizer.ggml.model"}),
    (PLAIN | {TOKENS: "abc"}, VALUE, {"key": TOKENS}),
    (PLAIN | {TOKENS: [1, 2]}, VALUE, {"key": TOKENS, "found": "an array of int32"}),
    (PLAIN | {PRE: 1}, VALUE, {"key": PRE}),
    (PLAIN | {MERGES: "a b"}, VALUE, {"key": MERGES}),
    (PLAIN | {MERGES: [1]}, VALUE, {"key": MERGES}),
    (PLAIN | {TYPES: 1}, VALUE, {"key": TYPES}),
    (PLAIN | {TYPES: ["a"] * 256}, VALUE, {"key": TYPES}),
    (PLAIN | {TYPES: np.ones(256, np.float32)}, VALUE, {"key": TYPES}),
    (PLAIN | {TYPES: np.ones(256, bool)}, VALUE, {"key": TYPES}),
    (PLAIN | keys(bos_token_id="a"), VALUE, {"key": "tokenizer.ggml.bos_token_id"}),
    (PLAIN | keys(bos_token_id=True), VALUE, {"key": "tokenizer.ggml.bos_token_id"}),
    (PLAIN | keys(eos_token_id=1.0), VALUE, {"key": "tokenizer.ggml.eos_token_id"}),
    (PLAIN | keys(eos_token_id=[1]), VALUE, {"key": "tokenizer.ggml.eos_token_id"}),
    (PLAIN | keys(add_bos_token=1), VALUE, {"key": "tokenizer.ggml.add_bos_token"}),
    (PLAIN | keys(add_eos_token="true"), VALUE, {"key": "tokenizer.ggml.add_eos_token"}),
    (PLAIN | keys(add_space_prefix=0), VALUE, {"key": "tokenizer.ggml.add_space_prefix"}),
    (SPM | keys(add_space_prefix="no"), VALUE, {"key": "tokenizer.ggml.add_space_prefix"}),
    (SPM | keys(remove_extra_whitespaces=2), VALUE, {"key": "tokenizer.ggml.remove_extra_whitespaces"}),
    (SPM | {SCORES: ["a"]}, VALUE, {"key": SCORES}),
    (SPM | {SCORES: 1.0}, VALUE, {"key": SCORES}),
    (SPM | {"general.name": 3}, VALUE, {"key": "general.name"}),
    (bert() | keys(**{"normalizer.lowercase": 1}), VALUE, {"key": "tokenizer.ggml.normalizer.lowercase"}),
    (PLAIN | {"tokenizer.chat_template": 3}, VALUE, {"key": "tokenizer.chat_template"}),
    (PLAIN | {"tokenizer.chat_template.rag": ["x"]}, VALUE, {"key": "tokenizer.chat_template.rag"}),
    # Missing keys
    (byte_level(tokens=None), MISSING, {"key": TOKENS}),
    (byte_level() | {TOKENS: []}, GgufVocabularyErrors.NO_TOKENS, {}),
    ({key: value for key, value in PLAIN.items() if key != MERGES}, MISSING, {"key": MERGES}),
    (sentencepiece(WORDS, scores=None), MISSING, {"key": SCORES}),
    (unigram({"a": -1.0}, scores=None), MISSING, {"key": SCORES}),
    (PLAIN | keys(add_bos_token=True), GgufTokenizerErrors.NO_TOKEN, {"key": "tokenizer.ggml.bos_token_id"}),
    (PLAIN | keys(add_sep_token=True), GgufTokenizerErrors.NO_TOKEN, {"key": "tokenizer.ggml.seperator_token_id"}),
    (keys(model="bert", tokens=["a", "b"]), MISSING, {"key": "tokenizer.ggml.unknown_token_id"}),
    (keys(model="t5", tokens=["a", "b"], scores=[-1.0, -2.0]), MISSING, {"key": "tokenizer.ggml.unknown_token_id"}),
    # Lengths
    (PLAIN | {TYPES: [NORMAL] * 255}, COUNT, {"key": TYPES, "count": 255, "tokens": 256}),
    (PLAIN | {TYPES: [NORMAL] * 257}, COUNT, {"key": TYPES, "count": 257}),
    (SPM | {SCORES: SPM[SCORES][1:]}, COUNT, {"key": SCORES}),
    (SPM | {SCORES: [*SPM[SCORES], 1.0]}, COUNT, {"key": SCORES}),
    (UNIGRAM | {SCORES: [1.0]}, COUNT, {"key": SCORES, "count": 1, "tokens": 4}),
    (byte_level({"x" * (MOST_TOKEN_CHARACTERS + 1): NORMAL}), TOO_LONG, {"count": MOST_TOKEN_CHARACTERS + 1}),
    (PLAIN | {"tokenizer.chat_template": HUGE}, TOO_LONG, {"most": MOST_TEMPLATE_CHARACTERS}),
    (PLAIN | {"tokenizer.chat_template.a": HUGE}, TOO_LONG, {"count": MOST_TEMPLATE_CHARACTERS + 1}),
    # Numbers
    (PLAIN | keys(bos_token_id=256), ID, {"token": 256, "last": 255}),
    (PLAIN | keys(eos_token_id=-1), ID, {"token": -1}),
    (PLAIN | keys(eot_token_id=1 << 32), ID, {"token": 1 << 32}),
    (PLAIN | keys(padding_token_id=0xFFFFFFFF), ID, {"key": "tokenizer.ggml.padding_token_id"}),
    (PLAIN | keys(separator_token_id=256), ID, {"key": "tokenizer.ggml.separator_token_id"}),
    (PLAIN | {TYPES: [*[NORMAL] * 255, 7]}, GgufVocabularyErrors.TOKEN_TYPE, {"token": 255, "type": 7}),
    (PLAIN | {TYPES: [-1, *[NORMAL] * 255]}, GgufVocabularyErrors.TOKEN_TYPE, {"token": 0, "type": -1}),
    (scored(SPM, NAN), GgufVocabularyErrors.SCORE, {"token": len(SPM[TOKENS]) - 1, "score": "nan"}),
    (scored(SPM, -INFINITE), GgufVocabularyErrors.SCORE, {"score": "-inf"}),
    (scored(UNIGRAM, INFINITE), GgufVocabularyErrors.SCORE, {"score": "inf"}),
    # Tokens and merges
    (PLAIN | {TOKENS: [*LETTERS[:255], "!"]}, GgufVocabularyErrors.TWICE, {"second": 255, "text": "!"}),
    (bert() | {TOKENS: [*bert()[TOKENS][:-2], "[x]", "\u2581[x]"]}, GgufVocabularyErrors.TWICE, {"text": "[x]"}),
    (PLAIN | {MERGES: ["a b"]}, MERGE, {"number": 0, "merge": "a b"}),
    (byte_level(merges=["a b"]) | {MERGES: ["a b", "ab x"]}, MERGE, {"number": 1}),
    (byte_level(merges=["a b"]) | {MERGES: ["ab"]}, MERGE, {"merge": "ab"}),
    (byte_level(merges=["a b"]) | {MERGES: [""]}, MERGE, {"merge": ""}),
    (byte_level(merges=["a b"]) | {MERGES: ["a  b"]}, MERGE, {"merge": "a  b"}),
    (byte_level(merges=["a b"]) | {MERGES: ["a b c"]}, MERGE, {"merge": "a b c"}),
    (replaced(SPM, "<0x00>", "x"), GgufVocabularyErrors.BYTE_TOKEN, {"text": "x"}),
    (replaced(SPM, "<0x41>", "<0xa1>"), GgufVocabularyErrors.BYTE_TOKEN, {"text": "<0xa1>"}),
    (keys(model="llama", tokens=["<unk>", *BYTES[:9], "ab"], token_type=[2, *[6] * 9, 1], scores=[0.0] * 11),
     GgufVocabularyErrors.BYTES, {"count": 9}),
    # The table of characters
    (UNIGRAM | {CHARSMAP: "abc"}, VALUE, {"key": CHARSMAP}),
    (UNIGRAM | {CHARSMAP: np.zeros(9, np.float32)}, VALUE, {"key": CHARSMAP}),
    (UNIGRAM | {CHARSMAP: np.zeros(9, np.int32)}, GgufSentencepieceErrors.CHARSMAP, {"key": CHARSMAP}),
    (table(b"x"), GgufSentencepieceErrors.CHARSMAP, {}),
    (table(b"\xff" * 99), GgufSentencepieceErrors.CHARSMAP, {}),
    (table(bytes(1 << 22)), GgufSentencepieceErrors.CHARSMAP, {}),
    (table(GOOD[:1500]), GgufSentencepieceErrors.CHARSMAP, {}),
    (table(GOOD[:-2] + b"\xff\0"), GgufSentencepieceErrors.CHARSMAP, {}),
    (table(ROOT + b"\0\0\xff\xff" + bytes(1020) + b"\0"), GgufSentencepieceErrors.CHARSMAP, {}),
    (table(GOOD.replace(LEAF, b"\x99" + LEAF[1:])), GgufSentencepieceErrors.CHARSMAP, {}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_metadata_that_do_not_hold_together_are_refused(number: int) -> None:
    check_refused(*REFUSED[number][:2], **REFUSED[number][2])


def test_bounds_of_vocabularies() -> None:
    letters = [f"{number:06}" + "x" * 1000 for number in range(MOST_CHARACTERS // 1000)]
    check_refused(PLAIN | keys(tokens=letters, token_type=None), TOO_LONG, most=MOST_CHARACTERS)
    few = letters[: MOST_ADDED_CHARACTERS // 1000]
    check_refused(byte_level(dict.fromkeys(few, CONTROL)), TOO_LONG, most=MOST_ADDED_CHARACTERS)
    many = letters[: MOST_CHARACTERS // 1024]
    check_refused(sentencepiece({text: -float(rank) for rank, text in enumerate(many)}), TOO_LONG)
    check_refused(unigram(dict.fromkeys(many, -1.0)), TOO_LONG)


def random_value(choose: random.Random) -> Any:
    count = choose.randint(0, 300)
    makers: list[Callable[[], Any]] = [
        lambda: choose.randint(-3, 300),
        lambda: choose.random() < 0.5,
        lambda: choose.choice(["", "a b", "gpt2", "llama", "qwen2", "\0", "\ud7ff\u2581", "x" * 2000]),
        lambda: choose.choice([NAN, INFINITE, -1.5]),
        lambda: ["".join(choose.choices("ab \u2581<0x>[]", k=choose.randint(0, 4))) for _ in range(count)],
        lambda: np.array(choose.choices(range(8), k=count), choose.choice([np.int32, np.uint8, bool])),
        lambda: np.array(choose.choices([NAN, 0.0, -1.0, 2.5], k=count), np.float32),
    ]  # fmt: skip
    return choose.choice(makers)()


def with_other_item(value: Any, choose: random.Random) -> Any:
    """Return a list or an array with one item replaced."""
    other = value.copy()
    place = choose.randrange(len(other))
    if isinstance(other, np.ndarray):
        other[place] = choose.choice([0, 1, 2, 3, 4, 5, 6, 255 if other.dtype.itemsize == 1 else -7])
    else:
        text = choose.choice(["", "a", "<0xZZ>", "[PAD7]", "</s>", "\u2581", "a b", " ", "\0", "é漢", "[", "##"])
        other[place] = text if isinstance(other[place], str) else choose.randint(0, 6)
    return other


def test_whatever_a_file_says_there_is_one_error_or_a_tokenizer_that_opens() -> None:
    choose, opened = random.Random(4), 0
    bases = [byte_level(merges=["a b", "ab c"]), SPM, UNIGRAM, bert(), table(GOOD), table(GOOD)]
    for _ in range(1500):
        metadata = dict(choose.choice(bases))
        for key in choose.sample(sorted(metadata), choose.randint(1, 2)):
            is_array = isinstance(metadata[key], list | np.ndarray) and len(metadata[key])
            other = (
                with_other_item(metadata[key], choose) if is_array and choose.random() < 0.8 else random_value(choose)
            )
            metadata[key] = other
        try:
            files = tokenizer_files(header_of(metadata))
        except (InputError, UnsupportedError):
            continue
        if files:
            made = Tokenizer.from_str(files["tokenizer.json"].decode())
            made.decode(made.encode("ab A <s> \u2581\ufffd [PAD7]", "a").ids)
            opened += 1
    assert opened > 300
