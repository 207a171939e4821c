"""The host's state of each slot, and refusals before a program runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sscc.ir.errors import ErrorKind
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.session import Session
from sscc.runtime.session.session_errors import SessionErrors
from tests.errors import raises
from tests.runtime.fake import LAYERED, SIGNATURE, FakeInterpreter, fake_session
from tests.runtime.signatures import row_bytes


def test_prefill_passes_the_cursor_on() -> None:
    interpreter = FakeInterpreter()
    session = fake_session(interpreter)
    session.start_prefill(1, [3] * 9)  # two chunks of 8, two layers: (embed + 2 layers) * 2 + head = 7 steps
    done = [session.step_prefill(2) for _ in range(4)]
    assert done == [False, False, False, True]
    assert session.signature.prefill_steps(9) == 7
    cursors = [(scalars["phase"], scalars["chunk"]) for _, _, scalars in interpreter.calls]
    assert cursors == [(0, 0), (1, 0), (2, 0), (3, 0)]
    _, inputs, scalars = interpreter.calls[0]
    assert inputs["tokens"] == [[3] * 9 + [0] * 15]
    assert (scalars["length"], scalars["slot"], scalars["steps"]) == (9, 1, 2)
    assert session.position(1) == 9
    assert int(session.prefill_logits.argmax()) == 4


def test_decode_masks_other_slots_and_counts_positions() -> None:
    interpreter = FakeInterpreter()
    session = fake_session(interpreter)
    session.prefill(0, [1] * 8)
    session.prefill(1, [2])
    session.decode({0: 5, 1: 6})
    logits = session.decode({1: 9})
    assert logits.shape == (2, 11)
    _, inputs, _ = interpreter.calls[-2]
    assert inputs == {
        "token": [[5], [6]],
        "position_id": [[8], [1]],
        "position": [8, 1],
        "base": [5, 2],
        "active": [True, True],
    }
    _, inputs, _ = interpreter.calls[-1]
    assert inputs == {
        "token": [[0], [9]],
        "position_id": [[0], [2]],
        "position": [0, 2],
        "base": [0, 2],
        "active": [False, True],
    }
    assert (session.position(0), session.position(1)) == (9, 3)


def test_a_slot_being_prefilled_is_not_active() -> None:
    session = fake_session()
    session.prefill(0, [1, 2])
    session.prefill(1, [1, 2])
    session.start_prefill(1, [4])
    session.step_prefill(1)
    session.decode({0: 3})
    with raises(SessionErrors.SLOT_EMPTY, slot=1):
        session.decode({1: 3})
    with raises(SessionErrors.PREFILL_IN_PROGRESS, slot=0, other=1):
        session.start_prefill(0, [1])
    session.abandon_prefill()
    session.prefill(0, [1])


def test_generate_stops_at_the_end_token_or_the_count() -> None:
    session = fake_session()
    assert list(session.generate([1, 4], 8)) == [5, 6, 7]
    assert list(session.generate([1, 4], 4, eos=())) == [5, 6, 7, 8]
    assert list(session.generate([1, 4], 5, eos=[5])) == [5]
    assert session.position(0) == 2  # the last token of a text is never fed
    assert list(session.generate([7], 2, slot=1)) == [8, 9]


def test_an_iterator_that_nobody_starts_leaves_no_prefill_behind() -> None:
    session = fake_session()
    session.generate([1, 2], 3)
    session.prefill(0, [1])


def step(session: Session, tokens: list[int], active: list[bool]) -> Any:
    return session.decode_step(np.array(tokens), np.array(active))


def test_a_step_of_arrays_is_a_step() -> None:
    interpreter, other = FakeInterpreter(), FakeInterpreter()
    session, by_name = fake_session(interpreter), fake_session(other)
    for each in (session, by_name):
        each.prefill(0, [1] * 8)
        each.prefill(1, [2])
    for tokens, active in (([5, 6], [True, True]), ([-1, 9], [False, True]), ([99, 3], [False, True])):
        logits = step(session, tokens, active)
        named = by_name.decode({slot: tokens[slot] for slot in (0, 1) if active[slot]})
        assert np.array_equal(logits[active], named[active])
        assert interpreter.calls[-1] == other.calls[-1]
    assert (session.position(0), session.position(1)) == (9, 4)


@pytest.mark.parametrize(
    ("tokens", "active", "kind", "fields"),
    [
        ([11, 1], [True, False], SessionErrors.TOKEN, {"token": 11, "slot": 0, "last": 10}),
        ([-1, 1], [True, False], SessionErrors.TOKEN, {"token": -1, "slot": 0, "last": 10}),
        ([1, 1], [True, True], SessionErrors.SLOT_EMPTY, {"slot": 1}),
        (
            [1], [True], SessionErrors.STEP_ARRAYS,
            {"slots": 2, "tokens_dtype": "int64", "tokens_shape": [1], "active_dtype": "bool", "active_shape": [1]},
        ),
        (
            [1.0, 1.0], [True, False], SessionErrors.STEP_ARRAYS,
            {"slots": 2, "tokens_dtype": "float64", "tokens_shape": [2], "active_dtype": "bool", "active_shape": [2]},
        ),
        (
            [1, 1], [1, 0], SessionErrors.STEP_ARRAYS,
            {"slots": 2, "tokens_dtype": "int64", "tokens_shape": [2], "active_dtype": "int64", "active_shape": [2]},
        ),
    ],
)
def test_bad_steps_are_refused(tokens: Any, active: Any, kind: ErrorKind, fields: dict[str, Any]) -> None:
    interpreter = FakeInterpreter()
    session = fake_session(interpreter)
    session.prefill(0, [1])
    with raises(kind, **fields):
        step(session, tokens, active)
    assert session.position(0) == 1
    assert [entry for entry, _, _ in interpreter.calls] == ["prefill"]


def test_a_full_slot_may_rest_beside_others() -> None:
    session = fake_session()
    session.prefill(0, [1] * 20)
    session.prefill(1, [1])
    step(session, [4, 4], [False, True])
    with raises(SessionErrors.SLOT_FULL, slot=0, tokens=20):
        step(session, [4, 4], [True, True])
    assert session.position(1) == 2


def test_replay_feeds_the_last_token_where_it_stands() -> None:
    interpreter = FakeInterpreter()
    session = fake_session(interpreter)
    session.prefill(0, [1] * 7 + [4])
    session.prefill(1, [2])
    session.decode({1: 3})
    assert int(session.replay(0).argmax()) == 5
    _, inputs, _ = interpreter.calls[-1]
    assert inputs == {
        "token": [[4], [0]],
        "position_id": [[7], [0]],
        "position": [7, 0],
        "base": [5, 0],
        "active": [True, False],
    }
    assert session.position(0) == 8
    with raises(SessionErrors.REPLAY_AFTER_TOKENS, slot=1, tokens=1):
        session.replay(1)
    session.start_prefill(1, [1])
    with raises(SessionErrors.SLOT_EMPTY, slot=1):
        session.replay(1)


@pytest.mark.parametrize(("length", "rows"), [(3, 3), (6, 6), (8, 8), (9, 9), (10, 9), (20, 9)])
def test_a_snapshot_has_the_rows_that_are_valid(length: int, rows: int) -> None:
    interpreter = FakeInterpreter()
    session = fake_session(interpreter)
    session.prefill(0, [1] * length)
    snapshot = session.snapshot(0)
    picks = 2 * 2 * 8 * 3 * (length > 9)  # positions that each layer and KV head has selected
    assert snapshot.nbytes == session.snapshot_bytes(0) == rows * row_bytes(SIGNATURE) + picks
    before = {name: interpreter.states[name].copy() for name in ("k_cache", "v_cache")}
    session.restore(1, snapshot)
    for name, state in before.items():
        now = interpreter.states[name]
        assert np.array_equal(now[:, 1, :, :rows], state[:, 0, :, :rows])
        assert np.array_equal(now[:, 1, :, rows:], state[:, 1, :, rows:])
        assert np.array_equal(now[:, 0], state[:, 0])
    assert session.position(1) == length
    assert session.kept(1) == session.kept(0)
    assert np.array_equal(session.replay(1), session.replay(0))


@pytest.mark.parametrize("length", [3, 7, 8, 9, 10, 20])
def test_a_snapshot_of_rows_of_all_layers_has_all_of_them(length: int) -> None:
    interpreter = FakeInterpreter(LAYERED)
    session = Session(LAYERED, interpreter)
    session.prefill(0, [1] * length)
    snapshot = session.snapshot(0)
    most = max([topk for topk in (3, 1) if length > 6 + topk], default=0)
    picks = 2 * 2 * 8 * most  # as many for every layer as for that which selects the most
    assert snapshot.nbytes == session.snapshot_bytes(0) == LAYERED.held_bytes + picks
    before = {name: interpreter.states[name].copy() for name in ("k_cache", "v_cache")}
    interpreter.states["k_cache"][0] = 0
    session.restore(1, snapshot)
    assert np.array_equal(interpreter.states["k_cache"][1], before["k_cache"][0])
    assert np.array_equal(interpreter.states["v_cache"], before["v_cache"][[0, 0]])
    assert not interpreter.states["k_cache"][0].any(), "the slot that it was taken of is another one"
    session.restore(0, snapshot)
    assert np.array_equal(interpreter.states["k_cache"], before["k_cache"][[0, 0]])
    assert session.position(1) == length


def test_snapshots_are_of_prompts_and_for_slots_at_rest() -> None:
    session = fake_session()
    session.prefill(0, [1] * 3)
    snapshot = session.snapshot(0)
    session.decode({0: 1})
    with raises(SessionErrors.COPY_AFTER_TOKENS, slot=0, tokens=1):
        session.snapshot(0)
    session.start_prefill(1, [1])
    with raises(SessionErrors.SLOT_IN_PREFILL, slot=1):
        session.restore(1, snapshot)
    with raises(SessionErrors.NO_SLOT, slot=2):
        session.restore(2, snapshot)
    session.restore(0, snapshot)
    assert session.position(0) == 3


def test_logits_belong_to_the_caller() -> None:
    class Reusing(FakeInterpreter):
        def run(self, *args: Any, **more: Any) -> Any:
            outputs, results = super().run(*args, **more)
            kept = self.__dict__.setdefault("kept", {})
            for name, value in outputs.items():
                kept.setdefault(name, value.copy())[...] = value
            return {name: kept[name] for name in outputs}, results

    session = fake_session(Reusing())
    first = session.prefill(0, [1])
    steps = [session.decode({0: token}) for token in (3, 4)]
    session.prefill(1, [5])
    assert [int(logits.argmax()) for logits in (first, steps[0][0], steps[1][0])] == [2, 4, 5]


def test_the_time_in_the_interpreter_is_counted() -> None:
    session = fake_session()
    assert session.interpreter_ns == 0
    session.prefill(0, [1])
    once = session.interpreter_ns
    session.decode({0: 1})
    assert 0 < once < session.interpreter_ns


def test_kept_figures() -> None:
    session = fake_session()
    session.prefill(0, [1] * 12)
    session.decode({0: 1})
    kept = session.kept(0)
    row = 2 * 2 * 2 * 4 * 4  # K and V, layers, KV heads, head_dim, bytes
    assert (kept.prompt_len, kept.length, kept.kept, kept.evicted, kept.budget) == (12, 13, 9, 4, 9)
    assert (kept.kv_bytes, kept.full_bytes, kept.full_bytes_now) == (9 * row, 20 * row, 13 * row)
    session.prefill(0, [1] * 3)
    assert (session.kept(0).kept, session.kept(0).evicted) == (3, 0)
    session.release(0)
    with raises(SessionErrors.SLOT_EMPTY, slot=0):
        session.kept(0)


@pytest.mark.parametrize(
    ("slot", "tokens", "kind", "fields"),
    [
        (0, [], SessionErrors.EMPTY_PROMPT, {}),
        (0, [1] * 21, SessionErrors.PROMPT_TOO_LONG, {"tokens": 21, "max_context": 20}),
        (0, [1, 11], SessionErrors.PROMPT_TOKEN, {"token": 11, "position": 1, "last": 10}),
        (0, [-1], SessionErrors.PROMPT_TOKEN, {"token": -1, "position": 0, "last": 10}),
        (2, [1], SessionErrors.NO_SLOT, {"slot": 2, "last": 1}),
        (-1, [1], SessionErrors.NO_SLOT, {"slot": -1, "last": 1}),
    ],
)
def test_bad_prompts_are_refused(slot: int, tokens: list[int], kind: ErrorKind, fields: dict[str, Any]) -> None:
    session = fake_session()
    for call in (session.prefill, session.start_prefill):
        with raises(kind, **fields):
            call(slot, tokens)
    with raises(kind, **fields):
        session.generate(tokens, 3, slot=slot)


@pytest.mark.parametrize(
    ("tokens", "kind", "fields"),
    [
        ({0: 11}, SessionErrors.TOKEN, {"token": 11, "slot": 0, "last": 10}),
        ({5: 1}, SessionErrors.NO_SLOT, {"slot": 5, "last": 1}),
        ({1: 1}, SessionErrors.SLOT_EMPTY, {"slot": 1}),
    ],
)
def test_bad_decode_steps_are_refused(tokens: Any, kind: ErrorKind, fields: dict[str, Any]) -> None:
    session = fake_session()
    session.prefill(0, [1])
    with raises(kind, **fields):
        session.decode(tokens)


def test_nothing_goes_past_max_context() -> None:
    session = fake_session()
    session.prefill(0, [1] * 20)
    with raises(SessionErrors.SLOT_FULL, slot=0, tokens=20):
        session.decode({0: 1})
    with raises(SessionErrors.REQUEST_TOO_LONG, tokens=18, max_new_tokens=3):
        session.generate([1] * 18, 3)
    with raises(SessionErrors.MAX_NEW_TOKENS, value=0):
        session.generate([1], 0)
    assert len(list(session.generate([1] * 18, 2))) == 2


def test_prefill_calls_are_checked() -> None:
    session = fake_session()
    with raises(SessionErrors.NO_PREFILL_LOGITS):
        _ = session.prefill_logits
    with raises(SessionErrors.NO_PREFILL):
        session.step_prefill(1)
    session.start_prefill(0, [1])
    with raises(SessionErrors.PREFILL_STEPS, steps=0):
        session.step_prefill(0)


def test_reset_forgets_everything() -> None:
    session = fake_session()
    session.prefill(0, [1])
    session.reset()
    with raises(SessionErrors.SLOT_EMPTY, slot=0):
        session.decode({0: 1})


def test_scratch_is_whole_chunks() -> None:
    assert SIGNATURE.scratch_tokens == 24
    assert row_bytes(SIGNATURE) == 128


# ----------------------------------------------------------------------------------- tokens beyond the vocabulary

ROUTES: dict[str, Callable[[Session, Any], object]] = {
    "start_prefill": lambda session, prompt: session.start_prefill(0, prompt),
    "prefill": lambda session, prompt: session.prefill(0, prompt),
    "generate": lambda session, prompt: session.generate(prompt, 1),
    "check_request": lambda session, prompt: session.check_request(prompt, 1),
}
FORMS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "int64": lambda tokens: np.array(tokens, np.int64),
    "int32": lambda tokens: np.array(tokens, np.int32),
    "excerpt": lambda tokens: Excerpt(np.array(tokens, np.int64), np.arange(len(tokens)) * 2),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("token", [11, -1, 2**31 - 1, -(2**31)])
def test_every_route_refuses_the_first_token_beyond_the_vocabulary(route: str, form: str, token: int) -> None:
    interpreter = FakeInterpreter()
    session = fake_session(interpreter)
    with raises(SessionErrors.PROMPT_TOKEN, token=token, position=2, last=10):
        ROUTES[route](session, FORMS[form]([10, 0, token, 99]))
    assert not interpreter.calls
    session.prefill(0, [10, 0])


@pytest.mark.parametrize("token", [2**63, 2**64 + 3, -(2**70)])
def test_numbers_of_any_size_are_refused_as_they_are(token: int) -> None:
    session = fake_session()
    with raises(SessionErrors.PROMPT_TOKEN, token=token, position=1):
        session.prefill(0, [1, token])
    session.prefill(0, [1])
    with raises(SessionErrors.TOKEN, token=token, slot=0, last=10):
        session.decode({0: token})
    assert session.position(0) == 1


def test_a_decode_step_refuses_the_token_of_an_active_slot() -> None:
    session = fake_session()
    session.prefill(0, [1])
    session.prefill(1, [1])
    with raises(SessionErrors.TOKEN, token=11, slot=1, last=10):
        session.decode({0: 1, 1: 11})
    with raises(SessionErrors.TOKEN, token=-1, slot=1, last=10):
        session.decode_step(np.array([1, -1]), np.array([True, True]))
    session.decode_step(np.array([1, -1]), np.array([True, False]))
