"""Text and stop strings, as tokens come in any portions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from sscc.runtime.serving.engine import Engine, Finish, Request
from sscc.runtime.serving.engine.transcript import Transcript
from sscc.runtime.session.session import Session
from sscc.runtime.text.tokenizer import decode
from tests.runtime.engine.gated import LIMIT, gated
from tests.runtime.fake import SIGNATURE, FakeInterpreter

WORDS = ("a", "b", "ab", "ba", "c", " ", "é", "<0xC3>", "<0xA9>", "abc", "x")
"""Token ids are indices; two bytes of one character are tokens of their own."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(WORDS)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def read(
    tokenizer: Tokenizer, portions: list[list[int]], stop: tuple[str, ...] = (), finish: Finish = "length"
) -> tuple[list[int], list[str], Finish | None]:
    """All tokens, the text of each piece, and how it ended."""
    transcript = Transcript(tokenizer, stop)
    tokens: list[int] = []
    texts = []
    for number, portion in enumerate(portions):
        piece = transcript.take(portion, [], finish if number == len(portions) - 1 else None)
        tokens += piece.tokens
        texts.append(piece.text)
        assert transcript.read == len(tokens)
        if piece.finish is not None:
            return tokens, texts, piece.finish
    raise AssertionError("the last piece has no finish")


def ids(text: str) -> list[int]:
    return [WORDS.index(letter) for letter in text]


def test_text_comes_with_the_tokens_that_complete_it(tokenizer: Tokenizer) -> None:
    assert read(tokenizer, [[0], [7], [8], [4]]) == ([0, 7, 8, 4], ["a", "", "", "éc"], "length")
    assert read(tokenizer, [[0], [7]]) == ([0, 7], ["a", "\N{REPLACEMENT CHARACTER}"], "length")


def test_a_stop_string_is_cut_off_with_what_follows(tokenizer: Tokenizer) -> None:
    assert read(tokenizer, [ids("xab"), ids("cc")], ("abc",)) == ([10, 0, 1, 4], ["x", ""], "stop")
    assert read(tokenizer, [[10, 9, 0]], ("b",)) == ([10, 9], ["xa"], "stop")  # inside a token
    assert read(tokenizer, [ids("xabx"), ids("ab")], ("abc",)) == ([10, 0, 1, 10, 0, 1], ["xabx", "ab"], "length")
    assert read(tokenizer, [ids("ab"), ids("abc")], ("abc",)) == ([0, 1, 0, 1, 4], ["", "ab"], "stop")


def test_the_first_of_several_stop_strings_counts(tokenizer: Tokenizer) -> None:
    assert read(tokenizer, [[9, 10]], ("c", "bc")) == ([9], ["a"], "stop")
    assert read(tokenizer, [ids("xxab")], ("ax", "xa")) == ([10, 10, 0], ["x"], "stop")


def test_an_ending_token_is_no_text(tokenizer: Tokenizer) -> None:
    assert read(tokenizer, [ids("ab"), ids("x")], (), "eos") == ([0, 1, 10], ["ab", ""], "eos")
    assert read(tokenizer, [ids("abx")], ("x",), "eos") == ([0, 1, 10], ["ab"], "eos")


def test_what_was_held_back_comes_at_the_end(tokenizer: Tokenizer) -> None:
    assert read(tokenizer, [ids("xab"), []], ("abc",), "cancelled") == ([10, 0, 1], ["x", "ab"], "cancelled")
    assert read(tokenizer, [[0, 7], []], ("a\N{REPLACEMENT CHARACTER}",)) == ([0, 7], ["", ""], "stop")


def test_without_a_tokenizer_there_is_no_text() -> None:
    piece = Transcript(None, ()).take([1, 2], [], "length")
    assert (piece.tokens, piece.text, piece.finish) == ((1, 2), "", "length")


@given(
    st.lists(st.integers(0, len(WORDS) - 1), min_size=1, max_size=30),
    st.lists(st.text("abc é", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 5), min_size=30, max_size=30),
)
def test_portions_do_not_matter(tokenizer: Tokenizer, tokens: list[int], stop: list[str], sizes: list[int]) -> None:
    portions, rest = [], tokens
    for size in sizes:
        portions.append(rest[:size])
        rest = rest[size:]
    whole, (text,), finish = read(tokenizer, [tokens], tuple(stop))
    tokens_read, texts, end = read(tokenizer, portions, tuple(stop))
    assert (tokens_read, "".join(texts), end) == (whole, text, finish)
    assert not any(each in text for each in stop)
    if finish == "length":
        assert (whole, text) == (tokens, decode(tokenizer, tokens))
    else:
        cut = decode(tokenizer, whole)
        assert cut.startswith(text)
        assert any(cut[len(text) :].startswith(each) for each in stop)


@given(
    st.lists(st.text("ab", max_size=6), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=3),
)
def test_stops_that_repeat_themselves(texts: list[str], stops: list[str]) -> None:
    """Beginnings of a stop string within another, in any portions: the text is cut where searching all of it would."""
    transcript = Transcript(None, tuple(stops))
    text_out, whole = "", ""
    for text in texts:
        whole += text
        piece, is_stopped = transcript._search(text, last=False)
        text_out += piece
        starts = [whole.find(stop) for stop in stops if stop in whole]
        assert is_stopped == bool(starts)
        if is_stopped:
            assert text_out == whole[: min(starts)]
            return
        held = whole[len(text_out) :]
        assert whole == text_out + held
        assert held == max(
            (whole[i:] for i in range(len(whole) + 1) if any(s.startswith(whole[i:]) for s in stops)), key=len
        )
    assert text_out + transcript._search("", last=True)[0] == whole


# --------------------------------------------------------------------------------------------- stops within an engine

COUNTING = Request((0,), 9, stop=("c é",), eos=frozenset())
"""Its tokens count up from 1, its text is "babba" and then "c é": it stops at token 6."""


@pytest.mark.parametrize("way", ["result", "pieces"])
def test_a_stop_string_ends_the_request(tokenizer: Tokenizer, way: str) -> None:
    with Engine(Session(SIGNATURE, FakeInterpreter()), tokenizer) as engine:
        for _ in range(5):
            handle = engine.submit(COUNTING)
            if way == "pieces":
                pieces = list(handle.pieces())
                assert [token for piece in pieces for token in piece.tokens] == [1, 2, 3, 4, 5, 6]
                assert "".join(piece.text for piece in pieces) == "babba"
                assert pieces[-1].finish == "stop"
            done = handle.result(LIMIT)
            assert (done.tokens, done.text, done.finish) == ((1, 2, 3, 4, 5, 6), "babba", "stop")
            assert (done.kept_rows, done.evicted_rows) == (6, 0)
    metrics = engine.metrics()
    assert metrics.finished["stop"] + metrics.finished["length"] == 5


def test_a_stop_string_frees_the_slot_early(tokenizer: Tokenizer) -> None:
    with gated() as (engine, interpreter):
        engine.tokenizer = tokenizer
        pieces = engine.stream(COUNTING)
        interpreter.wait()
        for _ in range(6):
            interpreter.let(1)
            last = next(pieces)
        assert (last.finish, last.text) == ("stop", "")
        interpreter.open()
        assert engine.generate(Request((3,), 2)).tokens == (4, 5)
        assert engine.metrics().finished["stop"] == 1
        assert engine.metrics().new_tokens < 10 + 2
