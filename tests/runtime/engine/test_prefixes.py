"""The store of prompts' chunks: what it finds, and what goes first where there is no room."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.engine.prefixes import PrefixStore
from sscc.runtime.excerpt import Excerpt

CHUNK, ROW = 4, 10
"""Tokens of a chunk, and bytes of a position."""


class Prefilling:
    """A session whose prefill leaves, of every chunk, which prompt it is of."""

    signature = SimpleNamespace(prefill_chunk=CHUNK)
    rows = SimpleNamespace(chunk_bytes=CHUNK * ROW)

    def reusable_chunks(self, length: int) -> int:
        return (length - 1) // CHUNK

    def empty_chunk(self) -> dict[str, Array]:
        return {"rows": np.array(["  "])}


def prompt(text: str) -> Excerpt:
    return Excerpt.whole(np.array([ord(letter) for letter in text]))


def store_of(*prompts: str, chunks: int = 100) -> PrefixStore:
    """A store with room for so many chunks, which has kept these prompts in turn."""
    store = PrefixStore(Prefilling(), chunks * CHUNK * ROW)  # type: ignore[arg-type]
    for text in prompts:
        keep(store, text)
    return store


def keep(store: PrefixStore, text: str) -> None:
    """Prefills a prompt, whose chunks are all of it that does not lie in the store already."""
    for number, rows in store.begin(prompt(text))[1].items():
        rows["rows"][0] = f"{text[0]}{number}"
    assert store.nbytes <= store.limit
    store.finish()


def found(store: PrefixStore, text: str) -> str:
    """The chunks that are there for a prompt, each by the prompt that it was kept of; it is not prefilled."""
    chunks = [str(rows["rows"][0]) for rows in store.begin(prompt(text))[0]]
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
    store = PrefixStore(Prefilling(), limit)  # type: ignore[arg-type]
    keep(store, "aaaabbbb")
    assert (store.nbytes, found(store, "aaaabbbb")) == (0, "")
