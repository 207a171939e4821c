"""The table of slots, compared with a simple model of it; and refusals of its native part."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sscc.ir.errors import UsageError
from sscc.runtime.serving.engine.request import Request
from sscc.runtime.serving.engine.request_state import RequestState
from sscc.runtime.serving.engine.slot_table import SlotTable
from sscc.runtime.support import _native
from sscc.runtime.support.native_errors import NativeErrors
from tests.errors import raises

SLOTS, CAPACITY = 5, 20


def state(number: int, most: int, ends: list[int]) -> RequestState:
    request = Request((1, 2, 3), most)
    return RequestState(number, request, np.array(request.prompt), np.array(ends, np.int64), 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_a_table_of_random_sequences(seed: int) -> None:
    choose = random.Random(seed)
    table = SlotTable(SLOTS, CAPACITY)
    states: dict[int, RequestState] = {}
    tokens_of_slots: dict[int, list[int]] = {}
    latest: dict[int, float] = {}
    for step in range(200):
        if table.free and choose.random() < 0.4:
            new = state(step, choose.randint(1, CAPACITY), choose.sample(range(6), choose.randint(0, 3)))
            slot = table.take(new)
            table.activate(slot, new)
            states[slot], tokens_of_slots[slot] = new, []
        receivers = np.array([slot in states and choose.random() < 0.7 for slot in range(SLOTS)])
        tokens = np.array([choose.randint(0, 30) if g else -1 for g in receivers], np.int64)
        gaps, over = table.append(tokens, receivers, float(step))
        finishes, waited = [], []
        for slot in np.flatnonzero(receivers).tolist():
            tokens_of_slots[slot].append(int(tokens[slot]))
            waited.append(step - latest.get(slot, 0.0))
            latest[slot] = float(step)
            assert table.next_tokens[slot] == tokens[slot]
            if tokens[slot] in states[slot].ends:
                finishes.append((slot, "eos"))
            elif len(tokens_of_slots[slot]) == states[slot].request.max_new_tokens:
                finishes.append((slot, "length"))
        assert over == finishes
        assert gaps.tolist() == waited
        for slot, tokens_of in tokens_of_slots.items():
            assert table.tokens(slot).tolist() == tokens_of
            assert table.tokens(slot, 2).tolist() == tokens_of[2:]
        for slot, _ in over:
            table.clear(slot)
            del states[slot], tokens_of_slots[slot]


def test_the_newest_token_is_not_in_the_cache() -> None:
    """The first token is not either, before it is picked."""
    table = SlotTable(2, CAPACITY)
    slot = table.take(state(0, 5, []))
    assert (table.lengths().tolist(), table.running, table.free) == ([], 0, 1)
    table.activate(slot, state(0, 5, []))
    for length in (3, 3, 4, 5):
        assert (table.lengths().tolist(), table.running) == ([length], 1)
        table.append(np.array([7, 7]), np.arange(2) == slot, 0.0)
    table.clear(slot)
    assert (table.lengths().tolist(), table.running, table.free) == ([], 0, 2)


def native(slots: int = 2, capacity: int = 3) -> _native.TokenTable:
    return _native.TokenTable(
        np.zeros((slots, capacity), np.int32), np.zeros(slots, np.int64), np.zeros(slots, np.int64)
    )


def test_no_slot_is_given_more_than_its_limit() -> None:
    table = native()
    table.start(0, 2, [])
    step = (np.array([5, 5]), np.array([True, False]), 0.0, np.zeros(2), np.zeros(2, np.int8))
    assert [table.append(*step) for _ in range(2)] == [(1, 0), (1, 1)]
    with raises(NativeErrors.TOKEN_TABLE_SHAPES):
        table.append(*step)


def test_a_slot_that_was_not_started_is_given_nothing() -> None:
    with pytest.raises(UsageError):
        native().append(np.array([5, 5]), np.array([True, False]), 0.0, np.zeros(2), np.zeros(2, np.int8))


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError):
        _native.TokenTable(np.zeros((2, 3), np.int32), np.zeros(3, np.int64), np.zeros(2, np.int64))
    with pytest.raises(UsageError):
        native().start(2, 1, [])
    with pytest.raises(UsageError):
        native().start(0, 4, [])
    with pytest.raises(UsageError):
        native().append(np.zeros(3, np.int64), np.zeros(2, np.bool_), 0.0, np.zeros(2), np.zeros(2, np.int8))
