"""Choice of the replica for a prompt."""

from __future__ import annotations

from typing import Any

import pytest

from sscc.runtime.serving.fleet.affinity import BLOCK, MOST_KEYS, Affinity, keys_of

SYSTEM = {"role": "system", "content": "s" * 3 * BLOCK}


def conversation(*said: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    turns = [{"role": roles[index % 2], "content": text} for index, text in enumerate(said)]
    return {"messages": [SYSTEM, *turns]}


def test_a_conversation_goes_on_with_its_own_keys() -> None:
    first = keys_of(conversation("u" * BLOCK))
    second = keys_of(conversation("u" * BLOCK, "a" * BLOCK, "v" * BLOCK))
    other = keys_of(conversation("U" * BLOCK))
    assert len(first) == 4
    assert second[: len(first)] == first
    assert other[:3] == first[:3]
    assert other[3] != first[3]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"prompt": "x" * BLOCK}, {"prompt": ["x" * BLOCK, "another"]}),
        ({"prompt": [7] * BLOCK}, {"prompt": [[7] * BLOCK, [8]]}),
        (
            {"messages": [{"role": "user", "content": "x" * BLOCK}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * BLOCK}]}]},
        ),
    ],
)
def test_the_first_prompt_counts_however_it_is_written(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert keys_of(one) == keys_of(two) != ()


def test_who_said_something_matters() -> None:
    same = [{"messages": [{"role": role, "content": "x" * BLOCK}]} for role in ("user", "system")]
    assert keys_of(same[0]) != keys_of(same[1])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": None},
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": [-1] * BLOCK},
        {"prompt": [1, "a"]},
        {"prompt": [1 << 40]},
        {"prompt": {"a": 1}},
        {"messages": []},
        {"messages": ["no message"]},
    ],
)
def test_what_is_no_prompt_has_no_keys(body: dict[str, Any]) -> None:
    assert keys_of(body) == ()


def test_only_whole_blocks_are_looked_at() -> None:
    prompt = {"prompt": "x" * (2 * BLOCK + 1)}
    longer = {"prompt": "x" * (2 * BLOCK + 2)}
    assert keys_of({"prompt": "x" * (BLOCK - 1)}) == ()
    assert keys_of(prompt) == keys_of(longer)
    assert len(keys_of({"prompt": "x" * BLOCK * (MOST_KEYS + 9)})) == MOST_KEYS
    assert len(keys_of({"prompt": "\ud800" * BLOCK})) == 1


IDLE = {"a": 0, "b": 0, "c": 0}


def test_the_longest_beginning_wins() -> None:
    table: Affinity[str] = Affinity(imbalance=2)
    table.note((b"1", b"2"), "b")
    table.note((b"1", b"3", b"4"), "c")
    assert table.ranked((b"1", b"3", b"9"), IDLE) == [["c"], ["a", "b"]]
    assert table.ranked((b"1", b"2", b"9"), IDLE) == [["b"], ["a", "c"]]
    assert table.ranked((b"1", b"8"), {"a": 0, "b": 2, "c": 1}) == [["c", "b"], ["a"]]
    assert table.ranked((b"8",), {"a": 2, "b": 1, "c": 0}) == [["c", "b", "a"]]
    assert table.ranked((b"1",), {}) == []


def test_a_replica_with_much_more_to_do_is_passed_by() -> None:
    table: Affinity[str] = Affinity(imbalance=2)
    table.note((b"1",), "a")
    assert table.ranked((b"1",), {"a": 3, "b": 1, "c": 2}) == [["a"], ["b", "c"]]
    assert table.ranked((b"1",), {"a": 4, "b": 1, "c": 2}) == [["b", "c", "a"]]
    table.note((b"1",), "b")  # where it went instead
    assert table.ranked((b"1",), {"a": 1, "b": 1, "c": 2}) == [["a", "b"], ["c"]]


def test_replicas_that_are_gone_are_forgotten() -> None:
    table: Affinity[str] = Affinity(imbalance=2)
    table.note((b"1", b"2"), "a")
    table.note((b"1",), "b")
    assert table.ranked((b"1", b"2"), {"b": 0, "c": 0}) == [["b"], ["c"]]  # who is no candidate does not count
    table.keep_only({"b", "c"})
    assert table.ranked((b"1", b"2"), IDLE) == [["b"], ["a", "c"]]


def test_of_a_prompt_the_end_is_forgotten_first() -> None:
    table: Affinity[str] = Affinity(imbalance=2, most=3)
    table.note((b"1", b"2", b"3"), "a")
    table.note((b"9",), "b")
    assert table.ranked((b"1", b"2", b"3"), IDLE)[0] == ["a"]
    assert table.ranked((b"1", b"2"), IDLE)[0] == ["a"]
    table.note((b"8",), "b")
    table.note((b"7",), "b")
    assert table.ranked((b"1", b"2", b"3"), IDLE) == [["a", "b", "c"]]
