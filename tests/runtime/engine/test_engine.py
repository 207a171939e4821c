"""The engine around an interpreter that computes nothing: slots, queue, policy, and every way in which requests end."""

from __future__ import annotations

import contextlib
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.option import OptionRangeErrors
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine import (
    Completion,
    Engine,
    EngineClosed,
    EngineOptions,
    Piece,
    QueueFull,
    Request,
    RequestHandle,
    executor,
)
from sscc.runtime.serving.engine.engine import SubmissionErrors
from sscc.runtime.serving.engine.executor import EngineErrors
from sscc.runtime.serving.engine.request import RequestErrors
from sscc.runtime.session.samplers import SamplerErrors
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.session import Session
from sscc.runtime.session.session_errors import SessionErrors
from sscc.runtime.support import serving_options
from tests.errors import raises
from tests.runtime.engine.gated import LIMIT, LONG, gated, request, serving
from tests.runtime.fake import SIGNATURE, FakeInterpreter


def ends(handle: RequestHandle) -> Completion:
    return handle.result(LIMIT)


def until(what: Any) -> None:
    """Waits until `what()` is true."""
    for _ in range(int(LIMIT * 1000)):
        if what():
            return
        time.sleep(0.001)
    raise AssertionError("it did not happen")


# ----------------------------------------------------------------------------------------------------- what comes out


def test_a_completion() -> None:
    with serving() as engine:
        done = engine.generate(request(1, 4, new=3))
        assert (done.tokens, done.text, done.finish) == ((5, 6, 7), "", "length")
        assert (done.prompt_tokens, done.kept_rows, done.evicted_rows, done.cached_tokens) == (2, 4, 0, 0)
        assert 0 <= done.queued_seconds <= done.first_token_seconds <= done.seconds
        long = engine.generate(request(*[1] * 12, new=4))
        assert (long.kept_rows, long.evicted_rows) == (9, 6)  # 12 + 3 positions, in as many rows as the cache has


@pytest.mark.parametrize(
    ("eos", "tokens", "finish"),
    [(None, (5, 6, 7), "eos"), (frozenset(), (5, 6, 7, 8, 9), "length"), (frozenset({6, 10}), (5, 6), "eos")],
)
def test_the_tokens_that_end_a_text(eos: frozenset[int] | None, tokens: tuple[int, ...], finish: str) -> None:
    with serving() as engine:
        for _ in range(2):  # a slot that had other ends before
            engine.generate(request(1, eos=frozenset({9, 8, 7})))
            done = engine.generate(request(4, new=5, eos=eos))
            assert (done.tokens, done.finish) == (tokens, finish)


def test_one_new_token_takes_no_decode_step() -> None:
    with serving() as engine:
        assert engine.generate(request(3, new=1)).tokens == (4,)
        assert engine.generate(request(3, new=9, eos=frozenset({4}))).finish == "eos"
        assert engine.metrics().decode_steps == 0


def test_pieces_are_the_completion() -> None:
    with serving() as engine:
        handle = engine.submit(request(1, new=9))
        pieces = list(handle.pieces())
        assert [token for piece in pieces for token in piece.tokens] == [*range(2, 11)]
        assert [piece.finish for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
        assert pieces[-1].finish == "length"
        assert list(handle.pieces()) == [Piece(tuple(range(2, 11)), "", (), "length")]  # read again, all at once
        assert handle.result().tokens == tuple(range(2, 11))


def test_a_piece_comes_with_every_step_for_who_is_fast_enough() -> None:
    with gated() as (engine, interpreter):
        pieces = engine.stream(request(1, new=4))
        interpreter.wait()
        for token in (2, 3, 4):
            interpreter.let(1)
            assert next(pieces) == Piece((token,), "")
        interpreter.open()
        assert list(pieces) == [Piece((5,), "", (), "length")]


# ----------------------------------------------------------------------------------------------------- slots and queue


def test_requests_wait_in_order_and_slots_are_used_again() -> None:
    with serving(max_queue=100) as engine:
        handles = [engine.submit(request(i % 7, new=1 + i % 5)) for i in range(50)]
        assert [handle.id for handle in handles] == [*range(50)]
        done = [ends(handle) for handle in handles]
        assert [each.tokens for each in done] == [
            tuple((i % 7 + 1 + n) % 11 for n in range(1 + i % 5)) for i in range(50)
        ]
        metrics = engine.metrics()
        assert (metrics.queued, metrics.running, metrics.prefilling, metrics.slots) == (0, 0, 0, 2)
        assert (metrics.submitted, metrics.finished["length"], metrics.new_tokens) == (50, 50, 150)


def test_the_oldest_request_gets_the_slot_that_frees() -> None:
    with gated() as (engine, interpreter):
        first = engine.submit(request(1, new=2))
        interpreter.wait()
        handles = [first, *(engine.submit(request(i, new=3)) for i in (2, 3, 4))]
        interpreter.open()
        for handle in handles:
            ends(handle)
        prompts = [inputs["tokens"][0][0] for entry, inputs, _ in interpreter.calls if entry == "prefill"]
        assert prompts == [1, 2, 3, 4]


def test_a_finished_slot_is_free_before_the_next_step() -> None:
    with gated() as (engine, interpreter):
        handles = [engine.submit(request(1, new=3))]
        interpreter.wait()
        handles += [engine.submit(request(2, new=9)), engine.submit(request(3, new=9))]
        interpreter.open()
        for handle in handles:
            ends(handle)
        assert interpreter.entries[:6] == ["prefill", "decode"] * 3
        fed = [inputs["token"] for entry, inputs, _ in interpreter.calls[:6] if entry == "decode"]
        assert fed == [[[2], [0]], [[3], [3]], [[4], [4]]]


def test_a_queue_may_have_no_limit() -> None:
    count = serving_options.QUEUE + 10
    with gated(max_queue=None) as (engine, interpreter):
        handles = [engine.submit(request(1, new=1)) for _ in range(count)]
        assert engine.metrics().rejected == 0
        interpreter.open()
        assert [ends(handle).finish for handle in handles] == ["length"] * count


def test_a_full_queue_refuses() -> None:
    with gated(max_queue=1) as (engine, interpreter):
        handles = [engine.submit(request(1, new=3)) for _ in range(3)]  # two for the slots, one that waits
        with raises(EngineErrors.QUEUE_FULL, queue=1, slots=2):
            engine.submit(request(1))
        interpreter.wait()
        handles[2].cancel()
        interpreter.let(1)
        handles.append(engine.submit(request(1, new=3)))
        assert engine.metrics().rejected == 1
        interpreter.open()
        assert [ends(handle).finish for handle in handles] == ["length", "length", "cancelled", "length"]


@pytest.mark.parametrize(
    ("impossible", "kind", "fields"),
    [
        (request(*[1] * 21), SessionErrors.PROMPT_TOO_LONG, {"tokens": 21}),
        (request(*[1] * 15, new=6), SessionErrors.REQUEST_TOO_LONG, {"tokens": 15, "max_new_tokens": 6}),
        (request(1, new=0), SessionErrors.MAX_NEW_TOKENS, {"value": 0}),
        (request(11), SessionErrors.PROMPT_TOKEN, {"token": 11}),
        (request(2**70), SessionErrors.PROMPT_TOKEN, {}),
        (Request((), 1), SessionErrors.EMPTY_PROMPT, {}),
        (request(1, stop=("x",)), SubmissionErrors.NO_TOKENIZER, {}),
        (request(1, sampling=Sampling(logit_bias=((11, 1.0),))), SubmissionErrors.NO_SUCH_TOKEN, {"token": 11}),
        (request(1, logprobs=12), SubmissionErrors.TOO_MANY_LOGPROBS, {"logprobs": 12}),
    ],
)
def test_impossible_requests_are_refused(impossible: Request, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with serving() as engine:
        with raises(kind, **fields):
            engine.submit(impossible)
        assert engine.metrics().submitted == 0
        assert engine.generate(request(1, new=1)).tokens == (2,)


@pytest.mark.parametrize("token", [11, -1, 2**63, -(2**70)])
def test_a_request_with_a_token_beyond_the_vocabulary_is_refused(token: int) -> None:
    with serving() as engine:
        with raises(SessionErrors.PROMPT_TOKEN, token=token, position=1, last=10):
            engine.submit(request(1, token, 99))
        assert engine.metrics().submitted == 0


@pytest.mark.parametrize(
    ("values", "kind", "fields"),
    [(
        {"stop": "abc"}, RequestErrors.STOP_NOT_TEXTS, {"stop": "abc"}
    ), ({"stop": ("",)}, RequestErrors.STOP_NOT_TEXTS, {}), (
        {"timeout": 0}, RequestErrors.TIMEOUT_OUT_OF_RANGE, {"seconds": 0}
    ),
     (
         {"timeout": float("nan")}, RequestErrors.TIMEOUT_OUT_OF_RANGE, {"seconds": "nan"}
     ), ({"logprobs": -1}, RequestErrors.LOGPROBS_NEGATIVE, {"logprobs": -1})],
)  # fmt: skip
def test_requests_of_no_meaning_are_refused(values: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        request(1, **values)


def test_the_least_that_requests_and_options_may_say() -> None:
    bias = Sampling(logit_bias=((0, 1.0), (10, 1.0)))
    with serving(max_queue=0, prefill_steps=1, prompt_cache_bytes=0) as engine:
        assert engine.generate(request(1, new=1, logprobs=0, sampling=bias)).finish == "length"
        assert len(engine.generate(request(1, new=1, logprobs=11)).logprobs[0].top) == 11
    assert request(1, timeout=0.001).timeout == 0.001
    assert EngineOptions().prompt_cache_bytes is None


@pytest.mark.parametrize("values", [{"max_queue": -1}, {"prefill_steps": 0}, {"prompt_cache_bytes": -1}])
def test_options_of_no_meaning_are_refused(values: dict[str, int]) -> None:
    with raises(OptionRangeErrors.OUT_OF_RANGE):
        EngineOptions(**values)


# ------------------------------------------------------------------------------------------------------------- prefill


def steps_between_decodes(calls: list[tuple[str, dict[str, Any], dict[str, int]]]) -> list[int]:
    """Chunk steps of the prefill calls before, between and after the decode steps."""
    runs = groupby(calls, lambda call: call[0])
    return [sum(scalars["steps"] for _, _, scalars in run) for entry, run in runs if entry == "prefill"]


@pytest.mark.parametrize(("steps", "most"), [(None, 4), (1, 1), (7, 7)])
def test_a_long_prompt_stalls_nobody_beyond_its_share(steps: int | None, most: int) -> None:
    with gated(prefill_steps=steps) as (engine, interpreter):
        first = engine.submit(request(1, new=19))
        interpreter.wait()
        second = engine.submit(request(*[2] * 17, new=2))  # 3 chunks: (embed + 2 layers) * 3 + head = 10 steps
        interpreter.open()
        assert [ends(first).tokens[-1], ends(second).tokens[-1]] == [9, 4]
        alone, *others = steps_between_decodes(interpreter.calls)
        assert alone == 4  # one chunk through all layers, because nobody waited
        assert others == [most] * (10 // most) + [10 % most] * (10 % most > 0)


def test_short_prompts_share_what_may_run_between_two_steps() -> None:
    with gated(prefill_steps=8, signature=LONG) as (engine, interpreter):
        handles = [engine.submit(request(1, new=40))]
        interpreter.wait()
        handles += [engine.submit(request(2, new=1)) for _ in range(3)]
        interpreter.open()
        for handle in handles:
            ends(handle)
        assert steps_between_decodes(interpreter.calls) == [4, 8, 4]


def test_nothing_to_decode_lets_prefill_run_on() -> None:
    with gated(prefill_steps=1) as (engine, interpreter):
        handle = engine.submit(request(*[2] * 17, new=1))
        interpreter.open()
        ends(handle)
        assert [scalars["steps"] for _, _, scalars in interpreter.calls] == [4, 4, 2]


# --------------------------------------------------------------------------------------------------------------- ends


def test_cancelling_what_waits_prefills_and_decodes() -> None:
    with gated(signature=LONG) as (engine, interpreter):
        decoding = engine.submit(request(1, new=1000))
        interpreter.wait()
        interpreter.let(3)
        prefilling = engine.submit(request(*[2] * 40, new=1000))  # 5 chunks, 16 steps
        queued = engine.submit(request(3))
        interpreter.let(2)
        metrics = engine.metrics()
        assert (metrics.running, metrics.prefilling, metrics.queued) == (1, 1, 1)
        for handle in (queued, prefilling, decoding):
            handle.cancel()
            handle.cancel()
        interpreter.let(0)
        interpreter.open()
        assert ends(queued) == Completion((), "", (), "cancelled", 1, 0, 0, False, *times(ends(queued)))
        assert (ends(prefilling).tokens, ends(prefilling).finish) == ((), "cancelled")
        assert ends(prefilling).kept_rows == 0
        done = ends(decoding)
        assert done.finish == "cancelled"
        assert done.tokens == tuple(n % 11 for n in range(2, 2 + len(done.tokens)))
        assert 3 <= len(done.tokens) <= 5
        assert engine.generate(request(5, new=2)).tokens == (6, 7)
        assert engine.metrics().finished["cancelled"] == 3


def times(done: Completion) -> tuple[float, float, float]:
    assert done.queued_seconds == done.first_token_seconds == done.seconds
    return done.queued_seconds, done.first_token_seconds, done.seconds


def test_a_timeout_ends_what_waits_prefills_and_decodes() -> None:
    with gated(signature=LONG) as (engine, interpreter):
        handles = [engine.submit(request(1, new=1000, timeout=0.02))]
        interpreter.wait()
        interpreter.let(3)
        handles.append(engine.submit(request(*[2] * 40, new=1000, timeout=0.02)))
        handles.append(engine.submit(request(3, timeout=0.02)))
        stays = engine.submit(request(4, timeout=1e5))
        interpreter.let(1)
        time.sleep(0.03)
        interpreter.open()
        assert [ends(handle).finish for handle in handles] == ["timeout"] * 3
        assert len(ends(handles[0]).tokens) >= 3
        assert ends(stays).finish == "length"


class Clock:
    """Stands where a test puts it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("order", [(10, 20, 30, 40), (40, 30, 20, 10), (20, 10, 40, 30)])
def test_every_deadline_fires_and_none_before_its_time(order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A later one still does when an earlier one has expired: of what decodes, and of what waits."""
    clock = Clock()
    monkeypatch.setattr(executor, "perf_counter", clock)
    with gated(signature=LONG) as (engine, interpreter):
        handles = {seconds: engine.submit(request(1, new=1000, timeout=seconds)) for seconds in order}
        interpreter.wait()
        interpreter.let(4)
        for fired, seconds in enumerate((10, 20, 30, 40)):
            clock.now = 100.0 + seconds - 0.001
            interpreter.let(2)
            assert engine.metrics().finished["timeout"] == fired
            clock.now = 100.0 + seconds
            if seconds < 40:
                interpreter.let(2)
            else:
                interpreter.open()
            assert (ends(handles[seconds]).finish, engine.metrics().finished["timeout"]) == ("timeout", fired + 1)
        clock.now += 1000
        assert engine.generate(request(3, new=2)).tokens == (4, 5)
        assert engine.generate(request(3, new=2, timeout=5)).finish == "length"


def test_a_deadline_of_one_that_ended_otherwise_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(executor, "perf_counter", clock)
    with gated(signature=LONG) as (engine, interpreter):
        short, stays = (engine.submit(request(1, new=new, timeout=t)) for new, t in ((2, 10), (1000, 20)))
        interpreter.wait()
        interpreter.let(5)
        assert ends(short).finish == "length"
        clock.now += 15
        interpreter.let(2)
        assert engine.metrics().finished["timeout"] == 0
        clock.now += 5
        interpreter.open()
        assert ends(stays).finish == "timeout"


def test_waiting_has_a_timeout_of_its_own() -> None:
    with gated() as (engine, interpreter):
        handle = engine.submit(request(1))
        with pytest.raises(TimeoutError, match="request 0 has not ended in time"):
            handle.result(0.01)
        interpreter.open()
        assert ends(handle).finish == "length"


@pytest.mark.parametrize(("words", "drain"), [({"drain": True}, True), ({"drain": False}, False), ({}, True)])
def test_close_finishes_or_cancels(words: dict[str, bool], drain: bool) -> None:
    with gated(signature=LONG) as (engine, interpreter):
        handles = [engine.submit(request(i, new=30)) for i in range(5)]
        interpreter.wait()
        closing = threading.Thread(target=engine.close, kwargs=words)
        closing.start()
        until(lambda: refuses(engine))
        interpreter.open()
        closing.join(LIMIT)
        assert not closing.is_alive()
        assert [ends(handle).finish for handle in handles] == ["length" if drain else "cancelled"] * 5
        engine.close()
        with raises(EngineErrors.CLOSED):
            engine.submit(request(1))


def refuses(engine: Engine) -> bool:
    try:
        engine.submit(request(1, new=1)).cancel()
    except EngineClosed:
        return True
    except QueueFull:
        return False
    return False


def test_a_drain_that_takes_too_long_is_cut_off() -> None:
    with serving(LONG, pause=0.001) as engine:
        slow = engine.submit(request(1, new=4000))
        engine.close(drain=True, timeout=0.0)
        assert ends(slow).finish in ("cancelled", "length")
        assert engine.metrics().running == 0


def test_a_context_finishes_or_cancels() -> None:
    session = Session(LONG, FakeInterpreter(LONG))
    with Engine(session) as engine:
        handle = engine.submit(request(1, new=50))
    assert ends(handle).finish == "length"
    with pytest.raises(ZeroDivisionError), Engine(session) as engine:  # noqa: PT012
        handle = engine.submit(request(1, new=4000))
        raise ZeroDivisionError
    assert ends(handle).finish == "cancelled"


# ------------------------------------------------------------------------------------------------------------ failures


def test_a_failing_interpreter_ends_everything_and_is_named() -> None:
    with gated() as (engine, interpreter):
        handles = [engine.submit(request(i)) for i in range(4)]
        interpreter.wait()
        pieces = handles[0].pieces()
        interpreter.let(1)
        assert next(pieces).tokens == (1,)
        interpreter.error = InputError("a pointer left its region")
        interpreter.open()
        for handle in (*handles, *handles):
            with pytest.raises(InputError, match="a pointer left its region"):
                ends(handle)
        with pytest.raises(InputError, match="a pointer left its region"):
            list(pieces)
        with raises(EngineErrors.FAILED):
            engine.submit(request(1))
        assert engine.failure is interpreter.error
        metrics = engine.metrics()
        assert (metrics.finished["error"], metrics.queued, metrics.running) == (4, 0, 0)
        engine.close()


class Wrecked(FakeInterpreter):
    """Fails at its third call, and so does the session when it is to be tidied."""

    def before_call(self) -> None:
        if len(self.calls) == 2:
            raise MemoryError("no memory for the step")


@pytest.mark.parametrize("broken", ["release", "abandon_prefill"])
@pytest.mark.parametrize("new", [1, 100])
def test_a_thread_that_dies_leaves_nobody_waiting(broken: str, new: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that prefill, decode or wait end, and readers are notified, in whatever state the session is left."""
    session = Session(LONG, Wrecked(LONG))
    engine = Engine(session)
    monkeypatch.setattr(session, broken, lambda *slot: 1 / 0)
    handles: list[RequestHandle] = []
    with contextlib.suppress(EngineClosed):  # it may be quick to die
        for _ in range(4):
            handles.append(engine.submit(request(*[1] * 40, new=new)))
    told: list[str] = []

    def read(handle: RequestHandle) -> None:
        with raises(EngineErrors.REQUEST_FAILED, cause="MemoryError: no memory for the step"):
            list(handle.pieces())
        told.append("pieces")

    threads = [threading.Thread(target=read, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert len(told) == len(handles)
    with raises(EngineErrors.FAILED):
        engine.submit(request(1))
    metrics = engine.metrics()
    assert (metrics.running, metrics.prefilling, metrics.queued) == (0, 0, 0)
    assert metrics.finished["error"] == len(handles)
    engine.close()


def test_a_reader_that_dies_frees_its_slot() -> None:
    with serving(LONG, pause=0.001) as engine:

        def read() -> None:
            with contextlib.suppress(ZeroDivisionError):
                for piece in engine.stream(request(1, new=4000)):
                    assert piece.tokens
                    raise ZeroDivisionError

        threads = [threading.Thread(target=read) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        until(lambda: engine.metrics().finished["cancelled"] == 6)
        metrics = engine.metrics()
        assert (metrics.running, metrics.queued, metrics.prefilling) == (0, 0, 0)
        assert engine.generate(request(1, new=2)).tokens == (2, 3)


class NanInterpreter(FakeInterpreter):
    """A slot whose prompt was 9 gets logits that are not numbers."""

    def _logits(self, token: int) -> Array:
        logits = super()._logits(token)
        if token == 9:
            logits[3] = float("nan")
        return logits


def test_logits_that_are_no_numbers_end_their_own_request_only() -> None:
    with Engine(Session(SIGNATURE, NanInterpreter())) as engine:
        good, bad, late = (engine.submit(request(t, new=8)) for t in (10, 9, 6))
        assert ends(good).tokens == (0, 1, 2, 3, 4, 5, 6, 7)
        for handle in (bad, late):  # at once, and after 7, 8, 9
            with raises(SamplerErrors.SLOT_LOGITS, value="nan"):
                ends(handle)
        assert engine.failure is None
        assert engine.generate(request(1, new=1)).tokens == (2,)


# ----------------------------------------------------------------------------------------- those who do not come back


def test_dropped_handles_and_iterators_cancel_their_requests() -> None:
    with serving(LONG, pause=0.001, max_queue=1000) as engine:
        for i in range(60):
            pieces = engine.stream(request(1, new=4000))
            if i % 3 == 0:
                next(pieces)
            elif i % 3 == 1:
                next(pieces)
                pieces.close()  # type: ignore[attr-defined]
            else:
                engine.submit(request(2, new=4000))
            del pieces
        gc.collect()
        until(lambda: sum(engine.metrics().finished.values()) == 80)
        metrics = engine.metrics()
        assert (metrics.running, metrics.queued, metrics.prefilling) == (0, 0, 0)
        assert metrics.finished["cancelled"] == 80
        both = [engine.submit(request(3, new=3)) for _ in range(2)]
        assert [ends(handle).tokens for handle in both] == [(4, 5, 6)] * 2


def test_a_closed_iterator_cancels_although_the_handle_is_kept() -> None:
    with serving(LONG, pause=0.001) as engine:
        handle = engine.submit(request(1, new=4000))
        for _ in handle.pieces():
            break
        assert ends(handle).finish == "cancelled"


def test_a_dropped_engine_ends_its_thread() -> None:
    before = threading.active_count()
    engine = Engine(Session(SIGNATURE, FakeInterpreter()))
    engine.generate(request(1))
    assert threading.active_count() == before + 1
    del engine
    gc.collect()
    until(lambda: threading.active_count() == before)


def interrupt(main: int, when: Any) -> threading.Thread:
    def body() -> None:
        until(when)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=body)
    thread.start()
    return thread


@pytest.mark.parametrize("call", ["generate", "result", "pieces", "close"])
def test_an_interrupt_while_waiting_leaves_cleanly(call: str) -> None:
    with gated(signature=LONG) as (engine, interpreter):
        handle = engine.submit(request(1, new=1000))
        interpreter.wait()
        sender = interrupt(threading.main_thread().ident or 0, waits_for_engine)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            if call == "generate":
                engine.generate(request(2, new=1000))
            elif call == "result":
                handle.result()
            elif call == "pieces":
                list(handle.pieces())
            else:
                # Its step ends when the requests are notified.
                threading.Thread(target=lambda: (until(waits_for_its_thread), interpreter.open())).start()
                engine.close()
        sender.join()
        interpreter.open()
        if call == "result":
            handle.cancel()
        until(lambda: call == "generate" or handle.result(LIMIT).finish == "cancelled")
        if call != "close":
            handle.cancel()
            assert engine.generate(request(3, new=2)).tokens == (4, 5)


def waits_for_engine() -> bool:
    """Return True if the main thread waits in a method of the engine."""
    frames = main_frames()
    waits = {("executor.py", "wait"), ("engine.py", "close")}
    return frames[:1] == [("threading.py", "wait")] and not waits.isdisjoint(frames)


def waits_for_its_thread() -> bool:
    """Return True if the main thread is at the end of `close`."""
    frames = main_frames()
    return ("threading.py", "join") in frames and ("engine.py", "close") in frames


def main_frames() -> list[tuple[str, str]]:
    """Return file and function of each frame of the main thread, innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = []
    while frame is not None:
        frames.append((frame.f_code.co_filename.rpartition("/")[2], frame.f_code.co_name))
        frame = frame.f_back
    return frames


def test_a_process_that_forgets_its_engine_ends() -> None:
    code = (
        "from tests.runtime.engine.gated import *\n"
        "engine = Engine(Session(LONG, FakeInterpreter(LONG)))\n"
        "handle = engine.submit(request(1, new=4000))\n"
        "print(next(handle.pieces()).tokens[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


# ------------------------------------------------------------------------------------------------------------- metrics


@pytest.fixture
def busy() -> Iterator[Engine]:
    with gated(signature=LONG) as (engine, interpreter):
        handles = [engine.submit(request(*[1] * 9, new=20)), engine.submit(request(2, new=20))]
        interpreter.wait()
        interpreter.let(12)
        yield engine
        interpreter.open()
        for handle in handles:
            ends(handle)


def test_metrics_of_what_runs(busy: Engine) -> None:
    metrics = busy.metrics()
    assert (metrics.running, metrics.submitted, metrics.prompt_tokens) == (2, 2, 10)
    # Of 12 calls 4 prefilled, at most 4 steps a round: 4, then 3 and 1 of the second prompt, then its other 3.
    assert (metrics.prefill_steps, metrics.decode_steps) == (7 + 4, 8)
    assert metrics.first_token_seconds.count == metrics.queued_seconds.count == 2
    assert metrics.inter_token_seconds.count == metrics.new_tokens - 2
    assert metrics.kept_rows + metrics.evicted_rows == 10 + metrics.new_tokens - 2
    assert metrics.evicted_rows > 0
    assert len(metrics.queued_seconds.counts) == len(metrics.queued_seconds.bounds) + 1
    assert metrics.decode_seconds > 0
    assert metrics.prefill_seconds > 0
    assert metrics.overhead_seconds > 0


def test_slots_tell_how_far_a_prompt_is_read() -> None:
    with gated(signature=LONG) as (engine, interpreter):
        handle = engine.submit(request(*[2] * 40, new=2))  # 5 chunks, 16 steps, 4 at a time
        read = []
        interpreter.wait()
        for _ in range(4):
            (slot,) = [one for one in engine.slots() if one.request is not None]
            read.append((slot.phase, slot.read_tokens))
            interpreter.let(1)
        (slot,) = [one for one in engine.slots() if one.request is not None]
        read.append((slot.phase, slot.read_tokens))
        interpreter.open()
        ends(handle)
    assert read == [("prefill", 0), ("prefill", 10), ("prefill", 20), ("prefill", 30), ("decode", 40)]


def test_a_second_token_does_not_wait_for_the_prompts_of_others() -> None:
    """A prompt that ends in a round in which nothing decoded leaves the next one a share of it alone."""
    with gated(prefill_steps=1, signature=LONG) as (engine, interpreter):
        first = engine.submit(request(*[2] * 17, new=9))  # 10 steps
        interpreter.wait()
        second = engine.submit(request(*[3] * 17, new=1))
        interpreter.open()
        ends(first), ends(second)
        begin, *between = steps_between_decodes(interpreter.calls)
        assert begin == 10 + 1
        assert set(between[:7]) == {1}
