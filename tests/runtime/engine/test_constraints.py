"""The tokens that a grammar allows, and the stop strings that it lets end a text."""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from sscc.runtime.serving.engine import constraints
from sscc.runtime.serving.engine.constraints import (
    Constraint,
    ConstraintErrors,
    ConstraintTable,
    GrammarCompiler,
    token_bits,
)
from sscc.runtime.serving.engine.transcript import Transcript
from sscc.runtime.text.grammar import Grammar
from tests.errors import raises

WORDS = ["a", "b", "ab", "ba", "abc", "c", "}", "{", '"', ":", "▁a", "▁", "▁▁", "1", "12", "<end>", "<other>"]
END, OTHER = WORDS.index("<end>"), WORDS.index("<other>")
VOCABULARY = 40
"""Of the program; the tokenizer has fewer tokens."""


def tokenizer() -> Tokenizer:
    """Sentencepiece's way: words with their space, which is lost at the beginning of a text."""
    made = Tokenizer(models.BPE({word: number for number, word in enumerate(WORDS)}, [("a", "b"), ("ab", "c")]))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace(prepend_scheme="first")
    made.add_special_tokens(["<end>", "<other>"])
    return made


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer(), VOCABULARY, [END])


def allowed(table: ConstraintTable) -> set[str | int]:
    """The spellings of the tokens that slot 0 may pick."""
    ready = table.ready()
    assert ready is not None
    assert ready.constrained[0]
    bits = np.unpackbits(ready.bits[0].view(np.uint8), bitorder="little")[: len(ready.bits[0]) * 32]
    return {WORDS[token] if token < len(WORDS) else token for token in np.flatnonzero(bits).tolist()}


def advance(table: ConstraintTable, word: str) -> None:
    tokens = np.array([WORDS.index(word), -1], np.int64)
    table.advance(tokens, np.array([True, False]))


def started(constraint: Constraint) -> ConstraintTable:
    table = ConstraintTable(2, VOCABULARY)
    table.start(0, constraint)
    return table


def test_the_tokens_that_a_grammar_allows(compiler: GrammarCompiler) -> None:
    table = started(compiler.constraint(Grammar.regex("ab?c*"), (END,), 0, None))
    assert allowed(table) == {"a", "ab", "abc"}
    advance(table, "a")
    assert allowed(table) == {"b", "c", "<end>"}
    advance(table, "c")
    assert allowed(table) == {"c", "<end>"}
    advance(table, "<end>")
    assert table.over(np.array([True, True])) == {}


def test_the_grammar_is_that_of_the_text_which_begins_without_its_space(compiler: GrammarCompiler) -> None:
    table = started(compiler.constraint(Grammar.regex(" ?a b?"), (END,), 0, None))
    assert allowed(table) == {"a"}
    advance(table, "a")
    assert allowed(table) == {"▁"}
    text = tokenizer().decode([WORDS.index("▁a")])
    assert text == "a", "which is why a token with a space is not allowed at first"


def test_what_nothing_may_follow_ends_by_its_end_or_by_itself(compiler: GrammarCompiler) -> None:
    for ends in ((END,), ()):
        table = started(compiler.constraint(Grammar.choice(["ab"]), ends, 0, None))
        advance(table, "ab")
        if ends:
            assert allowed(table) == {"<end>"}
        ready = table.ready()
        assert ready is not None
        assert table.over(np.array([True, True])) == ({} if ends else {0: None})


def test_a_token_that_ends_is_allowed_where_the_grammar_is_whole_and_no_sooner(compiler: GrammarCompiler) -> None:
    ends = (WORDS.index("c"), OTHER)
    table = started(compiler.constraint(Grammar.regex("abc?"), ends, 0, None))
    assert allowed(table) == {"a", "ab", "abc"}
    advance(table, "ab")
    assert allowed(table) == {"c", "<other>"}


def test_least_lengths_and_allowed_tokens() -> None:
    only = token_bits([WORDS.index("a"), 39], VOCABULARY)
    table = started(Constraint(None, (END, 39), least=1, only=only))
    assert allowed(table) == {"a"}
    advance(table, "a")
    assert allowed(table) == {"a", "<end>", 39}
    table.stop(0)
    assert table.ready() is None
    table.start(0, Constraint(None, (END,), least=1))
    assert END not in {WORDS.index(word) for word in allowed(table) if isinstance(word, str)}
    advance(table, "a")
    ready = table.ready()
    assert ready is not None
    assert not ready.constrained[0], "nothing binds it any more"


def test_a_slot_begins_anew(compiler: GrammarCompiler) -> None:
    table = started(compiler.constraint(Grammar.regex("a+"), (END,), 0, None))
    advance(table, "a")
    table.start(0, compiler.constraint(Grammar.regex("b+"), (END,), 0, None))
    assert allowed(table) == {"b"}
    table.start(0, None)
    assert table.ready() is None


def test_a_mask_that_comes_after_its_answer_binds_nobody(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is cancelled while its mask is computed, and the next one in its slot has no grammar."""
    table = ConstraintTable(2, VOCABULARY)
    table.start(1, compiler.constraint(Grammar.regex("b+"), (END,), 0, None))
    table.ready()
    go, fill = threading.Event(), constraints._fill

    def late(*words: Any) -> None:
        assert go.wait(30)
        fill(*words)

    monkeypatch.setattr(constraints, "_fill", late)
    table.start(0, compiler.constraint(Grammar.regex("a+"), (END,), 0, None))
    table.stop(0)
    go.set()
    table.start(0, None)
    ready = table.ready()
    assert ready is not None
    assert ready.constrained.tolist() == [False, True]


def test_what_no_token_can_say_is_a_failure(compiler: GrammarCompiler) -> None:
    table = started(compiler.constraint(Grammar.regex("az"), (END,), 0, None))
    advance(table, "a")
    table.ready()
    failure = table.over(np.array([True, True]))[0]
    assert failure


def test_the_name_of_a_special_token_is_text(compiler: GrammarCompiler) -> None:
    """The other tokens of this tokenizer cannot spell it."""
    with raises(ConstraintErrors.REFUSED):
        compiler.compile(Grammar.choice(["<other>"]))


def test_a_wrong_grammar_is_refused(compiler: GrammarCompiler) -> None:
    with raises(ConstraintErrors.REFUSED):
        compiler.compile(Grammar.regex("(a"))


@pytest.mark.parametrize(
    ("pattern", "stop", "letters", "text"),
    [
        ("[abc]+", ("c",), "abc", "ab"),
        ("ab(ca)*", ("c", "ca"), "abcaca", "ab"),
        ("[ab]{3}c?", ("b",), "abab", "aba"),
        ("[abc]{4}", ("b", "abc"), "abcabc", "abca"),
        ("(ab)+c", ("b", "c", "abc"), "ababc", None),
        ("[ab]*", ("ba", "ab"), "abab", ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 2, 6])
def test_a_stop_string_ends_what_matches(
    pattern: str, stop: tuple[str, ...], letters: str, text: str | None, size: int, compiler: GrammarCompiler
) -> None:
    """However many tokens are read at a time."""
    starts = sorted(found.start() for each in stop for found in re.finditer(f"(?={each})", letters))
    definition = next((letters[:at] for at in starts if re.fullmatch(pattern, letters[:at])), None)
    assert definition == text
    transcript = Transcript(tokenizer(), stop, compiler.text_matcher(Grammar.regex(pattern)))
    given, finish = "", None
    for begin in range(0, len(letters), size):
        part = [WORDS.index(letter) for letter in letters[begin : begin + size]]
        piece = transcript.take(part, (), "length" if begin + size >= len(letters) else None)
        given, finish = given + piece.text, piece.finish
        if finish is not None:
            break
    assert (given, finish) == ((letters, "length") if text is None else (text, "stop"))


@pytest.mark.parametrize("keep", [False, True])
def test_the_stop_string_may_stay_in_the_text(keep: bool) -> None:
    transcript: Any = Transcript(tokenizer(), ("bc", "c"), keep_stop=keep)
    piece = transcript.take([WORDS.index(letter) for letter in "abcab"], (), None)
    assert (piece.text, piece.finish) == ("abc" if keep else "a", "stop")


@pytest.mark.parametrize("spell", [False, True])
def test_special_tokens_may_be_spelt(spell: bool) -> None:
    transcript = Transcript(tokenizer(), (), spell_special=spell)
    piece = transcript.take([0, OTHER, 1, END], (), "eos")
    assert piece.text.replace(" ", "") == ("a<other>b" if spell else "ab"), "the token that ends it is no text"
