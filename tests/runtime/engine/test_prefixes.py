"""The store of prompts' chunks: what it finds, and what goes first where there is no room."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.engine.prefixes import PrefixStore

CHUNK, ROW = 4, 10
"""Tokens of a chunk, and bytes of a position."""


@dataclass
class Slots:
    """A session whose slots hold, of every chunk, which prompt it is of."""

    signature: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(prefill_chunk=CHUNK, row_state_bytes=ROW)
    )
    written: list[tuple[int, int, str]] = field(default_factory=list)
    holds: str = ""

    def reusable_chunks(self, length: int) -> int:
        return (length - 1) // CHUNK

    def read_rows(self, slot: int, chunk: int) -> dict[str, Array]:
        return {"rows": np.array([f"{self.holds}{chunk}"])}

    def write_rows(self, slot: int, chunk: int, rows: dict[str, Array]) -> None:
        self.written.append((slot, chunk, str(rows["rows"][0])))


def prompt(text: str) -> Array:
    return np.array([ord(letter) for letter in text])


def store_of(*prompts: str, chunks: int = 100) -> tuple[PrefixStore, Slots]:
    """A store with room for so many chunks, which has kept these prompts in turn."""
    slots = Slots()
    store = PrefixStore(slots, chunks * CHUNK * ROW)  # type: ignore[arg-type]
    for text in prompts:
        slots.holds = text[0]
        store.keep(0, prompt(text))
    return store, slots


def found(store: PrefixStore, slots: Slots, text: str) -> str:
    """The chunks that are there for a prompt, each by the prompt that it was kept of."""
    slots.written.clear()
    count = store.restore(1, prompt(text))
    assert [(slot, chunk) for slot, chunk, _ in slots.written] == [(1, chunk) for chunk in range(count)]
    return "".join(source[0] for _, _, source in slots.written)


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
    assert found(*store_of("aaaabbbbccccdd"), text) == chunks


def test_what_prompts_share_is_kept_once() -> None:
    store, slots = store_of("aaaabbbbcccc", "aaaabbbbdddd", "aaaabbbbdddd")
    assert store.nbytes == 4 * CHUNK * ROW
    assert found(store, slots, "aaaabbbbdddde") == "aaa"


def test_the_chunks_that_were_not_used_for_longest_go_first_and_those_at_the_end_of_a_prompt() -> None:
    store, slots = store_of("aaaabbbbcccc", "ddddeeee", chunks=4)
    assert store.nbytes == 4 * CHUNK * ROW
    assert found(store, slots, "aaaabbbbccccd") == "aa"
    slots.holds = "f"
    store.keep(0, prompt("ffffgggg"))  # takes the room of what was used before the last question
    assert found(store, slots, "ddddeeeed") == ""
    assert found(store, slots, "aaaabbbbccccd") == "aa"
    assert found(store, slots, "ffffggggf") == "ff"


def test_of_a_prompt_beyond_the_limit_the_beginning_is_kept() -> None:
    store, slots = store_of("aaaabbbbcccc", chunks=2)
    assert (found(store, slots, "aaaabbbbccccd"), store.nbytes) == ("aa", 2 * CHUNK * ROW)
    slots.holds = "d"
    store.keep(0, prompt("ddddeeeeffff"))
    assert (found(store, slots, "ddddeeeeffffg"), store.nbytes) == ("dd", 2 * CHUNK * ROW)


@pytest.mark.parametrize("limit", [0, CHUNK * ROW - 1])
def test_nothing_is_kept_where_no_chunk_fits(limit: int) -> None:
    slots = Slots()
    store = PrefixStore(slots, limit)  # type: ignore[arg-type]
    store.keep(0, prompt("aaaabbbb"))
    assert (store.nbytes, found(store, slots, "aaaabbbb")) == (0, "")
