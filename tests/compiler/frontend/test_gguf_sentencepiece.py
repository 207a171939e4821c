"""SentencePiece vocabularies of GGUF files, against its algorithms."""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping

import numpy as np
import pytest

from sscc.runtime.text.tokenizer import TextStream, decode
from tests.compiler.frontend.gguf_metadata import (
    ALPHABET,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    WORDS,
    keys,
    sentencepiece,
    tokenizer,
    tokens,
    unigram,
)
from tests.compiler.frontend.gguf_vocabularies import published, published_tokenizer


def greedy(text: str, scores: Mapping[str, float]) -> list[str]:
    """Return the tokens of SentencePiece's BPE, as its paper and source define it: of all neighbours that make a token
    the best is joined, the leftmost of equal ones. Independent of the code under test on purpose."""
    parts, before, after = list(text), list(range(-1, len(text) - 1)), [*range(1, len(text)), -1]
    queue: list[tuple[float, int, int, str]] = []

    def offer(left: int, right: int) -> None:
        if left >= 0 and right >= 0 and parts[left] + parts[right] in scores:
            joined = parts[left] + parts[right]
            heapq.heappush(queue, (-scores[joined], left, right, joined))

    for right in range(1, len(parts)):
        offer(right - 1, right)
    while queue:
        _, left, right, joined = heapq.heappop(queue)
        if not parts[left] or not parts[right] or parts[left] + parts[right] != joined or after[left] != right:
            continue
        parts[left], parts[right], after[left] = joined, "", after[right]
        if after[right] >= 0:
            before[after[right]] = left
        offer(before[left], left)
        offer(left, after[left])
    found = []
    for part in filter(None, parts):
        found += [part] if part in scores else [f"<0x{byte:02X}>" for byte in part.encode()]
    return found


@pytest.mark.parametrize("name", ["llama-spm", "phi-3"])
def test_merges_do_what_scores_do(name: str) -> None:
    metadata, choose = published()[name].header.metadata, random.Random(1)
    kinds = zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True)
    rank = dict(zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"].tolist(), strict=True))
    scores = {text: rank[text] for text, kind in kinds if kind == NORMAL}
    made = published_tokenizer(name)
    words = [*ALPHABET, *(text.replace(SPACE, " ") for text in scores)]
    texts = ["".join(choose.choices(words, k=choose.randint(1, 30))) for _ in range(300)]
    for text in [*texts, *(" " * count for count in range(1, 40)), *(case for case, _ in published()[name].cases)]:
        expected = greedy(SPACE + text.replace(" ", SPACE), scores) if text else []
        assert made.encode(text, add_special_tokens=False).tokens == expected


def test_merges_do_what_scores_do_in_random_vocabularies() -> None:
    choose = random.Random(2)
    for _ in range(150):
        alphabet = "abc"[: choose.choice((1, 2, 2, 3))]
        texts = list(alphabet)
        for _ in range(choose.randint(2, 14)):
            texts.append(choose.choice(texts) + choose.choice(texts))
        texts = [text for text in dict.fromkeys(texts) if len(text) < 13]
        scores = {text: -float(rank) for text, rank in zip(texts, choose.sample(range(99), len(texts)), strict=True)}
        made = tokenizer(sentencepiece(scores, add_space_prefix=False))
        for _ in range(10):
            text = "".join(choose.choices(alphabet, k=choose.randint(1, 30)))
            assert made.encode(text, add_special_tokens=False).tokens == greedy(text, scores)


def test_bytes_stand_for_letters_that_no_token_has() -> None:
    assert tokens(sentencepiece(WORDS), "abé") == [f"{SPACE}ab", "<0xC3>", "<0xA9>"]
    made = tokenizer(sentencepiece(WORDS))
    for text in (" abé漢 b", "ab  ab", "🙂", " "):
        ids = made.encode(text).ids
        stream = TextStream(made)
        assert "".join(map(stream.push, ids)) + stream.finish() == decode(made, ids) == text


def test_without_bytes_letters_are_unknown() -> None:
    texts = ["<unk>", "<s>", "</s>", *WORDS]
    metadata = keys(model="llama", tokens=texts, token_type=[UNKNOWN, CONTROL, CONTROL] + [NORMAL] * len(WORDS))
    metadata |= keys(scores=[0.0, 0.0, 0.0, *WORDS.values()])
    assert tokens(metadata, "abéé漢b") == [f"{SPACE}ab", "<unk>", "b"]


def test_a_space_is_put_before_every_piece_of_text_unless_the_file_says_no() -> None:
    added = {"<|x|>": CONTROL}
    assert tokens(sentencepiece(WORDS, added), "ab<|x|>ab") == [f"{SPACE}ab", "<|x|>", f"{SPACE}ab"]
    without = sentencepiece(WORDS, added, add_space_prefix=False)
    assert tokens(without, "ab<|x|> ab") == ["ab", "<|x|>", f"{SPACE}ab"]
    assert tokens(sentencepiece(WORDS), "") == []
    assert tokens(sentencepiece(WORDS), "  ab") == [SPACE * 2, f"{SPACE}ab"]
    assert decode(tokenizer(without), [259 + list(WORDS).index(f"{SPACE}ab")]) == " ab"
    assert decode(tokenizer(sentencepiece(WORDS)), [259 + list(WORDS).index(f"{SPACE}ab")]) == "ab"


def test_extra_spaces_are_removed_where_the_file_says_so() -> None:
    assert tokens(sentencepiece(WORDS, remove_extra_whitespaces=True), "  ab   ab ") == [f"{SPACE}ab"] * 2


def best(text: str, scores: Mapping[str, float]) -> float:
    """Return the score of the best division of `text` into tokens; an unknown letter costs 10 more than the worst
    token."""
    values, worst = [0.0], min(scores.values()) - 10
    for end in range(1, len(text) + 1):
        ways = [values[start] + scores[text[start:end]] for start in range(end) if text[start:end] in scores]
        values.append(max([*ways, *([values[-1] + worst] if text[end - 1] not in scores else [])]))
    return values[-1]


def test_unigram_finds_the_best_tokens() -> None:
    choose = random.Random(3)
    scores = {"".join(choose.choices("abc", k=choose.randint(1, 4))): -choose.uniform(1, 9) for _ in range(25)}
    scores |= {SPACE: -2.5, "a": -4.0, "b": -5.0}
    scores.pop("c", None)
    made = tokenizer(unigram(scores))
    for _ in range(200):
        text = "".join(choose.choices("abc ", k=choose.randint(1, 20)))
        spelled, found = SPACE + text.replace(" ", SPACE), made.encode(text, add_special_tokens=False).tokens
        cost = sum(scores[token] if token in scores else (min(scores.values()) - 10) * len(token) for token in found)
        assert cost == pytest.approx(best(spelled, scores))


def charsmap(replaced: int, text: str) -> bytes:
    """Return SentencePiece's table of characters that replaces one byte: a trie of two units and a leaf."""
    units = np.zeros(512, "<u4")
    child, leaf = 256 ^ replaced, 300
    units[0], units[child], units[leaf] = 256 << 10, (child ^ leaf) << 10 | 1 << 8 | replaced, 1 << 31
    return int(units.nbytes).to_bytes(4, "little") + units.tobytes() + text.encode() + b"\0"


def test_a_table_of_characters_replaces_them() -> None:
    metadata = unigram({SPACE: -1.0, "a": -2.0, "b": -3.0})
    metadata["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(charsmap(ord("A"), "b"), np.uint8)
    assert tokens(metadata, "aA") == [SPACE, "a", "b"]
