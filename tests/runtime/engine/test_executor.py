"""Rounds of the engine's thread, run in the test's own thread or with a clock that a test moves."""

from __future__ import annotations

import contextlib
import gc
import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sscc.ir.errors import InputError
from sscc.runtime.serving.engine import Engine, EngineOptions, Request, RequestHandle, executor, request_handle
from sscc.runtime.serving.engine.executor import Close, Executor
from sscc.runtime.serving.engine.request_state import RequestState
from sscc.runtime.serving.engine.transcript import Transcript
from sscc.runtime.session import session as session_module
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.samplers import SamplerErrors
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.session import Session
from sscc.runtime.session.session_errors import SessionErrors
from sscc.runtime.support.native_errors import NativeErrors
from tests.errors import raises
from tests.runtime.engine.gated import LIMIT, LONG, GatedInterpreter, gated, request, serving
from tests.runtime.engine.test_engine import Clock, ends, until
from tests.runtime.fake import SIGNATURE, FakeInterpreter, fake_session


def submitted(executor: Executor, *requests: Request) -> list[RequestState]:
    """Requests as `Engine.submit` gives them on."""
    def prompt(each: Request) -> Excerpt:
        return Excerpt.whole(np.array(each.prompt))

    return [executor.submit(r, prompt(r), np.array(sorted(r.eos or ()), np.int64)) for r in requests]


def finished(session: Session, *requests: Request, **options: Any) -> tuple[Executor, list[RequestState]]:
    """Requests that came before the thread began, served to their end in this one."""
    the_executor = Executor(session, EngineOptions(**{"prompt_cache_bytes": 0} | options))
    states = submitted(the_executor, *requests)
    the_executor.close(Close.DRAIN)
    the_executor.run()
    assert the_executor.done.is_set()
    return the_executor, states


# -------------------------------------------------------------------------------------------------------------- rounds


def test_what_came_before_the_close_is_served() -> None:
    the_executor, states = finished(fake_session(), request(1, new=1), request(2, new=3))
    assert [(state.finish, state.tokens.tolist()) for state in states] == [("length", [2]), ("length", [3, 4, 5])]
    assert the_executor.failure is None


@pytest.mark.parametrize("kept", [0, 10**6])
def test_requests_wait_although_nothing_prefills_or_decodes(kept: int) -> None:
    """Prompts of one token more, each of which takes a round to itself, and then slots are free again."""
    _, states = finished(fake_session(), *[request(1, new=1) for _ in range(7)], prompt_cache_bytes=kept)
    assert [state.finish for state in states] == ["length"] * 7
    assert [state.cached for state in states] == [0] + [int(kept > 0)] * 6


def test_an_engine_finds_and_leaves_empty_slots() -> None:
    session = Session(LONG, FakeInterpreter(LONG))
    session.prefill(0, [1, 2])
    session.start_prefill(1, [1] * 40)
    the_executor = Executor(session, EngineOptions(prompt_cache_bytes=0))
    with raises(SessionErrors.SLOT_EMPTY, slot=0):
        session.kept(0)
    first, second = submitted(the_executor, request(1, new=2), request(2, new=2))
    the_executor.close(Close.DRAIN)
    the_executor.run()
    assert [first.finish, second.finish] == ["length", "length"]
    for slot in range(2):
        with raises(SessionErrors.SLOT_EMPTY, slot=slot):
            session.kept(slot)
    everything = np.ones(2, np.bool_)
    with raises(NativeErrors.SAMPLER_NOT_STARTED, slot=0):  # and no sampler goes on
        the_executor._sampler.pick(np.zeros((2, LONG.vocab_size), np.float32), everything)


def test_a_request_that_cannot_be_sampled_ends_alone_and_the_next_takes_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with gated(signature=LONG) as (engine, interpreter):
        decoding = engine.submit(request(1, new=1000))
        interpreter.wait()
        interpreter.let(1)
        start = engine._executor._sampler.start

        def refuse(slot: int, sampling: Sampling, prompt: Any, logprobs: int | None = None) -> None:
            if prompt.tolist() == [5]:
                raise InputError("not this one")
            start(slot, sampling, prompt, logprobs)

        monkeypatch.setattr(engine._executor._sampler, "start", refuse)
        bad, good = engine.submit(request(5)), engine.submit(request(6, new=2))
        told = reader(bad)
        before = len(interpreter.calls)
        interpreter.let(2)
        assert interpreter.entries[before:] == ["decode", "prefill"]
        told.join(LIMIT)
        assert not told.is_alive()
        with pytest.raises(InputError, match="not this one"):
            ends(bad)
        interpreter.open()
        assert ends(good).tokens == (7, 8)
        decoding.cancel()
        assert engine.metrics().queued_seconds.count == 3


def test_cancelling_what_decodes_leaves_what_prefills() -> None:
    with gated(signature=LONG) as (engine, interpreter):
        decoding = engine.submit(request(1, new=1000))
        interpreter.wait()
        interpreter.let(3)
        prefilling = engine.submit(request(*[2] * 40, new=2))
        interpreter.let(2)
        decoding.cancel()
        interpreter.let(1)
        metrics = engine.metrics()
        assert (metrics.running, metrics.prefilling, metrics.finished["cancelled"]) == (0, 1, 1)
        interpreter.open()
        assert ends(prefilling).tokens == (3, 4)


class GatedNanInterpreter(GatedInterpreter):
    """The logits after token 9 are NaN."""

    def _logits(self, token: int) -> Any:
        logits = super()._logits(token)
        return np.full_like(logits, float("nan")) if token == 9 else logits


def test_damage_found_while_others_decode_costs_them_no_step() -> None:
    """Neither at a first token nor at a later one: every token of theirs is fed once."""
    interpreter = GatedNanInterpreter(SIGNATURE)
    with Engine(Session(SIGNATURE, interpreter)) as engine:
        good = engine.submit(request(10, new=9))
        interpreter.wait()
        bad, late = engine.submit(request(9, new=8)), engine.submit(request(6, new=8))
        interpreter.open()
        assert ends(good).tokens == tuple(range(9))
        for damaged in (bad, late):
            with raises(SamplerErrors.SLOT_LOGITS, slot=1, value=math.nan):
                ends(damaged)
        decoded = [inputs for entry, inputs, _ in interpreter.calls if entry == "decode"]
        assert [inputs["token"][0][0] for inputs in decoded if inputs["active"][0]] == [*range(8)]
        metrics = engine.metrics()
        assert metrics.first_token_seconds.count == 2  # the damaged prompt had none
        assert metrics.new_tokens == 9 + 3


def test_logprobs_come_with_the_tokens_of_those_who_asked() -> None:
    """A request without logprobs gets none, even in a slot whose previous request had some."""
    asked, silent = request(1, new=4, logprobs=2), request(2, new=6)
    _, states = finished(fake_session(), asked, silent, request(3, new=6), request(4, new=2, logprobs=0))
    assert [len(state.logprobs) for state in states] == [4, 0, 0, 2]
    first = states[0].logprobs[0]
    assert (first.token, first.top[0][0], len(first.top)) == (2, 2, 2)


# ------------------------------------------------------------------------------------------------- who waits is told


def reader(waiting: RequestHandle) -> threading.Thread:
    """A thread that waits for the end of a request without a limit; it waits already."""

    def read() -> None:
        with contextlib.suppress(InputError):
            waiting.result()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    until(lambda: waits(thread))
    return thread


def waits(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_filename.endswith("threading.py") and frame.f_code.co_name == "wait"


def cancels(waiting: RequestHandle, clock: Clock) -> None:
    waiting.cancel()


def runs_out(waiting: RequestHandle, clock: Clock) -> None:
    clock.now += 100


def goes_on(waiting: RequestHandle, clock: Clock) -> None:
    pass


@pytest.mark.parametrize(
    ("end", "fields", "finish"),
    [
        (cancels, {"new": 1000}, "cancelled"),
        (runs_out, {"new": 1000, "timeout": 50}, "timeout"),
        (goes_on, {"new": 5}, "length"),
        (goes_on, {"new": 1000, "eos": frozenset({5})}, "eos"),
    ],
)
@pytest.mark.parametrize("company", [True, False])
def test_every_end_wakes_who_waits_for_it(
    end: Callable[..., None], fields: dict[str, Any], finish: str, company: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers are woken while another request continues, whose end would wake them, too, and when no other is left."""
    clock = Clock()
    monkeypatch.setattr(executor, "perf_counter", clock)
    with gated(signature=LONG) as (engine, interpreter):
        waiting = engine.submit(request(1, **fields))
        interpreter.wait()
        others = [engine.submit(request(2, new=3000))] * company
        told = reader(waiting)
        end(waiting, clock)
        if others:
            interpreter.let(12)
        else:
            interpreter.open()
        told.join(LIMIT)
        assert not told.is_alive()
        assert ends(waiting).finish == finish


@pytest.mark.parametrize("token", [9, 6])
def test_damage_wakes_who_waits(token: int) -> None:
    interpreter = GatedNanInterpreter(SIGNATURE)
    with Engine(Session(SIGNATURE, interpreter)) as engine:
        bad = engine.submit(request(token, new=8))
        told = reader(bad)
        interpreter.open()
        told.join(LIMIT)
        assert not told.is_alive()
        with raises(SamplerErrors.SLOT_LOGITS, slot=0, value=math.nan):
            ends(bad)


def test_a_close_wakes_who_waits() -> None:
    with gated(signature=LONG) as (engine, interpreter):
        told = reader(engine.submit(request(1, new=1000)))
        interpreter.open()
        engine.close(drain=False)
        told.join(LIMIT)
        assert not told.is_alive()


def test_a_stop_string_ends_what_is_only_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is read as it comes, although nobody asks for pieces."""
    monkeypatch.setattr(request_handle, "Transcript", StopAtThree)
    with gated(signature=LONG) as (engine, interpreter):
        engine.tokenizer = object()  # type: ignore[assignment]
        told = reader(engine.submit(request(1, new=3000, stop=("x",))))
        others = [engine.submit(request(2, new=3000))]
        interpreter.wait()
        until(lambda: goes(interpreter) and engine.metrics().finished["stop"])
        told.join(LIMIT)
        assert (told.is_alive(), len(others)) == (False, 1)


def goes(interpreter: GatedInterpreter) -> bool:
    interpreter.let(1)
    return True


class StopAtThree(Transcript):
    """Finds a stop string in the third token."""

    def __init__(self, tokenizer: Any, stop: tuple[str, ...], *_: Any, **__: Any) -> None:
        super().__init__(None, stop)

    def take(self, tokens: Any, logprobs: Any, finish: Any) -> Any:
        if self.read + len(tokens) < 3:
            return super().take(tokens, logprobs, finish)
        return self._piece(tokens[: 3 - self.read], [], logprobs, "stop")


def test_a_limited_wait_asks_again_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    for module in (executor, request_handle):
        monkeypatch.setattr(module, "perf_counter", clock)
    with gated() as (engine, interpreter):
        ticket_ = engine.submit(request(1))
        interpreter.wait()
        waited: list[tuple[bool, float | None]] = []

        def wait(*, change: bool, timeout: float | None = None) -> None:
            waited.append((change, timeout))
            clock.now += 0.25

        with monkeypatch.context() as patch:
            patch.setattr(engine._executor._wakeups, "wait", wait)
            for seconds, asked in ((0.75, [0.75, 0.5, 0.25]), (0.0, []), (-1.0, [])):
                waited.clear()
                with pytest.raises(TimeoutError, match="request 0 has not ended in time"):
                    ticket_.result(seconds)
                assert waited == [(True, left) for left in asked]
        interpreter.open()
        assert ends(ticket_).finish == "length"
        assert ticket_.result(0.0).finish == "length"


@pytest.mark.parametrize("way", ["result", "aresult"])
def test_a_failed_wait_cancels_its_request_at_once(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is cancelled even while the caller's error keeps the objects of the failed call alive."""

    def fail(self: RequestHandle) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(RequestHandle, way, fail)
    with serving(LONG, pause=0.001) as engine:
        with pytest.raises(ZeroDivisionError) as held:  # noqa: PT012
            if way == "result":
                engine.generate(request(1, new=4000))
            else:
                engine.agenerate(request(1, new=4000)).send(None)
        until(lambda: engine.metrics().finished["cancelled"] == 1)
        assert held.tb is not None


# ---------------------------------------------------------------------------------------------------- the engine's end


def test_a_drain_that_takes_too_long_is_cancelled() -> None:
    with gated(signature=LONG) as (engine, interpreter):
        slow = engine.submit(request(1, new=1000))
        interpreter.wait()
        closing = threading.Thread(target=engine.close, kwargs={"drain": True, "timeout": 0.0})
        closing.start()
        until(lambda: engine._executor._inbox.qsize() == 2)  # that it drains, and then that it does not
        interpreter.open()
        closing.join(LIMIT)
        assert ends(slow).finish == "cancelled"
        assert not engine._thread.is_alive()


def test_an_engine_that_is_dropped_in_its_own_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", failed.append)

    class Dropping(FakeInterpreter):
        def before_call(self) -> None:
            held.clear()
            gc.collect()

    held: list[Any] = [Engine(Session(SIGNATURE, Dropping()))]
    thread, run = held[0]._thread, held[0]._executor
    held.append(held[0].submit(request(1)))
    thread.join(LIMIT)
    assert (thread.is_alive(), held, failed, run.done.is_set(), run.failure) == (False, [], [], True, None)


# ---------------------------------------------------------------------------------------------------------------- times


class Timed(FakeInterpreter):
    """A call of prefill takes a second, one of decode two."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def run(self, entry: str, *args: Any, **more: Any) -> Any:
        self._clock.now += 1 + (entry == "decode")
        return super().run(entry, *args, **more)


def test_where_the_time_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(executor, "perf_counter", clock)
    for module in (executor, session_module):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: int(clock.now * 1e9))
    the_executor = Executor(Session(SIGNATURE, Timed(clock)), EngineOptions(prompt_cache_bytes=0))
    pick = the_executor._sampler.pick

    def slow_pick(*args: Any) -> Any:
        clock.now += 0.25
        return pick(*args)

    monkeypatch.setattr(the_executor._sampler, "pick", slow_pick)
    submitted(the_executor, request(1, new=3), request(*[2] * 10, new=1))  # one call of prefill, and two after a step
    clock.now += 5
    the_executor.close(Close.DRAIN)
    the_executor.run()
    metrics = the_executor.metrics()
    assert (metrics.prefill_steps, metrics.decode_steps) == (4 + 7, 2)
    assert (metrics.prefill_seconds, metrics.decode_seconds, metrics.overhead_seconds) == (3.0, 4.0, 1.0)
    # The first token comes after one call and a pick. Then come a step and a pick, and the second prompt begins.
    assert metrics.queued_seconds.sum == 5 + (5 + 1.25 + 2.25)
    assert metrics.first_token_seconds.sum == 5 + 1.25 + (5 + 1.25 + 2.25 + 1 + 2.25 + 1.25)
    assert metrics.inter_token_seconds.sum == 2.25 + 3.25


def test_a_round_that_computes_nothing_is_no_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(executor, "perf_counter", clock)
    the_executor = Executor(fake_session(), EngineOptions(prompt_cache_bytes=0))
    submitted(the_executor, request(1, timeout=1))
    clock.now += 1
    the_executor.close(Close.DRAIN)
    the_executor.run()
    metrics = the_executor.metrics()
    assert (metrics.finished["timeout"], metrics.overhead_seconds) == (1, 0.0)


def test_the_times_of_a_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(executor, "perf_counter", clock)
    with gated() as (engine, interpreter):
        first = engine.submit(request(1, new=1))
        interpreter.wait()
        second, third = engine.submit(request(2, new=2)), engine.submit(request(3, new=2))
        clock.now += 7
        interpreter.let(1)  # the first is over, and the second begins
        clock.now += 3
        interpreter.let(1)
        clock.now += 10
        third.cancel()
        interpreter.open()
        done = ends(second)
        assert (done.queued_seconds, done.first_token_seconds, done.seconds) == (7.0, 10.0, 20.0)
        done = ends(first)
        assert (done.queued_seconds, done.first_token_seconds, done.seconds) == (0.0, 7.0, 7.0)
        done = ends(third)
        assert done.queued_seconds == done.first_token_seconds == done.seconds
        assert (done.seconds, done.finish, done.kept_rows, done.evicted_rows) == (20.0, "cancelled", 0, 0)
