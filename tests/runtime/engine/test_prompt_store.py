"""The store of prompts: what it finds, and what goes first where there is no room."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sscc.runtime.serving.engine import Engine, EngineOptions
from sscc.runtime.serving.engine.prompt_store import MOST_BYTES, KeptChunk, PromptStore, default_limit
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.kept_rows import Copy
from sscc.runtime.session.session import Session
from tests.runtime.engine.gated import gated, request
from tests.runtime.fake import SIGNATURE, FakeInterpreter, fake_session
from tests.runtime.signatures import row_bytes

CHUNK, ROW = 4, 10
"""Tokens of a chunk, and bytes of a position."""


class Rows(Copy):
    """The rows of a chunk: the prompt that it is of, and its number."""

    def __init__(self, nbytes: int, checkpoint: bool) -> None:
        self.nbytes, self.checkpoint, self.text = nbytes, checkpoint, ""


class Prefilling:
    """A session whose slots hold all rows of their prompts."""

    signature = SimpleNamespace(prefill_chunk=CHUNK, states=[(None, SimpleNamespace(keeps_prompts=True))])

    def __init__(self, carried: int = 0) -> None:
        self.rows = SimpleNamespace(
            chunk_bytes=CHUNK * ROW, carried_bytes=carried,
            bytes_of_chunk=lambda checkpoint: CHUNK * ROW + checkpoint * carried,
        )  # fmt: skip

    def prompt(self, slot: int) -> SimpleNamespace:
        return SimpleNamespace(tokens=prompt("Z"))

    def reusable_chunks(self, length: int) -> int:
        return (length - 1) // CHUNK

    def empty_chunk(self, checkpoint: bool) -> Copy:
        return Rows(self.rows.bytes_of_chunk(checkpoint), checkpoint)

    def drop_checkpoint(self, chunk: Copy) -> None:
        chunk.nbytes, chunk.checkpoint = self.rows.chunk_bytes, False


def prompt(text: str) -> Excerpt:
    return Excerpt.whole(np.array([ord(letter) for letter in text]))


def store_of(*prompts: str, chunks: int = 100) -> PromptStore:
    """Return a store that has room for `chunks` chunks and has kept the prompts in order."""
    store = PromptStore(Prefilling(), chunks * CHUNK * ROW)  # type: ignore[arg-type]
    for text in prompts:
        keep(store, text)
    return store


def keep(store: PromptStore, text: str) -> None:
    """Prefills a prompt, whose chunks are all of it that does not lie in the store already."""
    for number, rows in store.begin(prompt(text))[1].items():
        assert isinstance(rows, Rows)
        rows.text = f"{text[0]}{number}"
    assert store.nbytes <= store.limit
    assert store.finish(0) is None


def found(store: PromptStore, text: str) -> str:
    """The chunks that are there for a prompt, each by the prompt that it was kept of; it is not prefilled."""
    chunks = [rows.text for rows in store.begin(prompt(text))[0] if isinstance(rows, Rows)]
    assert [chunk[1:] for chunk in chunks] == [str(number) for number in range(len(chunks))]
    return "".join(chunk[0] for chunk in chunks)


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("aaaabbbbccccd", "aaa"),
        ("aaaabbbbcccc", "aa"),  # the last position is prefilled anyway
        ("aaaabbbbcccX", "aa"),
        ("aaaabbbXcccc", "a"),
        ("aaaXbbbbcccc", ""),
        ("Xaaabbbbcccc", ""),
        ("bbbbccccdddd", ""),  # a chunk is what it is by all that came before
        ("aaaa", ""),
        ("aa", ""),
    ],
)
def test_a_prompt_finds_the_whole_chunks_that_it_begins_with(text: str, chunks: str) -> None:
    assert found(store_of("aaaabbbbccccdd"), text) == chunks


def test_what_prompts_share_is_kept_once() -> None:
    store = store_of("aaaabbbbcccc", "aaaabbbbdddd", "aaaabbbbdddd")
    assert store.nbytes == 4 * CHUNK * ROW
    assert found(store, "aaaabbbbdddde") == "aaa"


def test_the_chunks_that_were_not_used_for_longest_go_first_and_those_at_the_end_of_a_prompt() -> None:
    store = store_of("aaaabbbbcccc", "ddddeeee", chunks=4)
    assert store.nbytes == 4 * CHUNK * ROW
    assert found(store, "aaaabbbbc") == "aa"
    keep(store, "ffffgggg")  # takes the room of what was used before the last question
    assert found(store, "aaaabbbbc") == "aa"
    assert found(store, "ffffggggf") == "ff"
    assert found(store, "ddddeeeed") == ""


def test_of_a_prompt_beyond_the_limit_the_beginning_is_kept() -> None:
    store = store_of("aaaabbbbcccc", chunks=2)
    assert (found(store, "aaaabbbbccccd"), store.nbytes) == ("aa", 2 * CHUNK * ROW)
    keep(store, "ddddeeeeffff")
    assert (found(store, "ddddeeeeffffg"), store.nbytes) == ("dd", 2 * CHUNK * ROW)


def test_a_prefill_that_did_not_finish_leaves_nothing_and_gives_its_room_back() -> None:
    store = store_of("aaaa", chunks=3)
    store.begin(prompt("bbbbcccc"))
    assert store.nbytes == 3 * CHUNK * ROW
    assert found(store, "bbbbcccc") == ""
    keep(store, "ddddeeee")
    assert (found(store, "aaaab"), found(store, "ddddeeeef")) == ("a", "dd")


@pytest.mark.parametrize("limit", [0, CHUNK * ROW - 1])
def test_nothing_is_kept_where_no_chunk_fits(limit: int) -> None:
    store = PromptStore(Prefilling(), limit)  # type: ignore[arg-type]
    keep(store, "aaaabbbb")
    assert (store.nbytes, found(store, "aaaabbbb")) == (0, "")


# ------------------------------------------------------------------------------------------------------ checkpoints

STATE = 1000
"""Bytes of a state that passes from chunk to chunk: more than a chunk's rows."""


def store_of_states(*prompts: str) -> PromptStore:
    store = PromptStore(Prefilling(STATE), 100 * CHUNK * ROW + 10 * STATE)  # type: ignore[arg-type]
    for text in prompts:
        keep(store, text)
    return store


def checkpoints(store: PromptStore) -> int:
    """Return the number of checkpoints of a store, whose bytes must agree with it."""
    chunks = [entry for entry in store.entries() if isinstance(entry, KeptChunk)]
    count = sum(chunk.rows.checkpoint for chunk in chunks)
    assert store.nbytes == len(chunks) * CHUNK * ROW + count * STATE
    return count


def test_a_prompt_continues_from_the_last_whole_chunk_of_the_turn_before() -> None:
    store = store_of_states("aaaabbbbccccd")
    assert (checkpoints(store), found(store, "aaaabbbbccccdeeef")) == (1, "aaa")
    assert found(store, "aaaabbbbXXXXX") == ""  # there is no checkpoint before it


def test_a_conversation_has_two_checkpoints_however_long_it_gets() -> None:
    turns = ["aaaabbbbccccd", "aaaabbbbccccddddeeee", "aaaabbbbccccddddeeeeffffgggg"]
    store = store_of_states(*turns)
    assert checkpoints(store) == 2
    keep(store, turns[-1] + "hhhh")
    assert checkpoints(store) == 2
    assert found(store, turns[-1] + "hhhhi") == "a" * 3 + "a" * 5
    assert found(store, turns[-1] + "XXXX") == "a" * 7  # the last message is written anew
    assert found(store, turns[1] + "XXXX") == ""


def test_what_prompts_share_gets_a_checkpoint_when_the_second_one_comes() -> None:
    store = store_of_states("ssssttttaaaa", "ssssttttbbbb")
    assert checkpoints(store) == 3
    assert found(store, "ssssttttccccc") == "ss"
    for turn in ("ssssttttccccdddd", "ssssttttccccddddeeee", "ssssttttccccddddeeeeffff"):
        keep(store, turn)
    assert found(store, "ssssttttXXXX") == "ss"  # which no conversation takes away


def test_a_small_state_is_kept_of_every_chunk() -> None:
    store = PromptStore(Prefilling(1), 1000 * CHUNK * ROW)  # type: ignore[arg-type]
    keep(store, "aaaabbbbccccd")
    assert store.nbytes == 3 * (CHUNK * ROW + 1)
    assert found(store, "aaaabbbbXXXX") == "aa"


# ---------------------------------------------------------------------------------------------------- whole prompts

SLOT_ROW, CHUNK_BYTES = row_bytes(SIGNATURE), SIGNATURE.chunk_bytes


def prefilled(store: PromptStore, session: Session, *tokens: int) -> Excerpt:
    """Prefill a prompt as an engine does."""
    text = Excerpt.whole(np.array(tokens, np.int64))
    session.start_prefill(0, text, *store.begin(text))
    while not session.step_prefill(100):
        pass
    store.finish(0)
    return text


def entry(tokens: int) -> int:
    """Return the bytes of a kept slot: rows, tokens and their positions, logits, and selected positions."""
    rows = min(tokens, SIGNATURE.geometry.budget)
    selected = 2 * 2 * SIGNATURE.geometry.selected(tokens)
    return SLOT_ROW * rows + 16 * tokens + 4 * SIGNATURE.vocab_size + 8 * selected


def test_the_prompt_that_was_not_used_for_longest_goes() -> None:
    session = fake_session()
    store = PromptStore(session, CHUNK_BYTES + entry(2))
    store.limit = 2 * entry(2)  # exactly two, and no chunk
    a, b = prefilled(store, session, 1, 2), prefilled(store, session, 2, 1)
    assert store.nbytes == 2 * entry(2)
    assert store.find(a) is not None
    c = prefilled(store, session, 3, 1)
    assert [store.find(text) is not None for text in (a, b, c)] == [True, False, True]
    assert store.nbytes == 2 * entry(2)
    prefilled(store, session, 1, 2)
    assert store.nbytes == 2 * entry(2)


def test_only_the_whole_prompt_is_found() -> None:
    session = fake_session()
    store = PromptStore(session, 10**6)
    for _ in range(2):
        prefilled(store, session, 1, 2, 3)
        assert store.nbytes == entry(3)
    for other in ([1, 2], [1, 2, 3, 4], [2, 3], [1, 2, 4]):
        assert store.find(Excerpt.whole(np.array(other, np.int64))) is None


@pytest.mark.parametrize("limit", [0, entry(3) - 1])
def test_what_is_larger_than_everything_is_not_kept(limit: int) -> None:
    session = fake_session()
    store = PromptStore(session, limit)
    if limit:
        prefilled(store, session, 1)
    small = store.nbytes
    assert store.find(prefilled(store, session, 1, 2, 3)) is None
    assert store.nbytes == small


def test_a_long_prompt_leaves_room_for_its_slot() -> None:
    """Its chunks would fill everything."""
    session, tokens = fake_session(), [token % 10 for token in range(19)]
    long = Excerpt.whole(np.array(tokens, np.int64))
    assert session.whole_bytes(long) == entry(19)
    store = PromptStore(session, 2 * entry(19))
    prefilled(store, session, *tokens)
    assert store.nbytes == CHUNK_BYTES + entry(19) > store.limit - CHUNK_BYTES
    assert store.find(long) is not None
    assert len(store.begin(Excerpt.whole(np.array([*tokens, 1], np.int64)))[0]) == 1


def test_the_default_limit() -> None:
    assert 0 < default_limit() <= MOST_BYTES


def test_a_kept_prompt_takes_no_prefill() -> None:
    options = EngineOptions(prompt_cache_bytes=10**6)
    interpreter = FakeInterpreter()
    with Engine(Session(SIGNATURE, interpreter), options=options) as engine:
        first = engine.generate(request(1, 2, 3, new=8))
        again = engine.generate(request(1, 2, 3, new=8))
        other = engine.generate(request(1, 2, 3, 4, new=5))
        assert (first.cached_tokens, again.cached_tokens, other.cached_tokens) == (0, 3, 0)
        assert again.tokens == first.tokens == (4, 5, 6, 7, 8, 9, 10, 0)
        assert (again.kept_rows, again.evicted_rows, again.prompt_tokens) == (9, 1, 3)
        assert [entry for entry, _, _ in interpreter.calls].count("prefill") == 2
        metrics = engine.metrics()
        assert (metrics.cached_prompts, metrics.cached_prompt_tokens, metrics.prompt_tokens) == (1, 3, 10)


def test_a_reused_prompt_counts_as_a_chunk_between_decode_steps() -> None:
    with gated(prompt_cache_bytes=10**6) as (engine, interpreter):
        kept = [engine.submit(request(2, new=1))]
        interpreter.wait()
        interpreter.let(0)
        kept.append(engine.submit(request(1, new=15)))
        kept += [engine.submit(request(2, new=2)) for _ in range(3)]
        interpreter.open()
        assert [handle.result(30).cached_tokens for handle in kept] == [0, 0, 1, 1, 1]
        active = [inputs["active"].count(True) for entry, inputs, _ in interpreter.calls if entry == "decode"]
        assert active == [1, 2, 2, 2, *[1] * 10]
