"""Exceptions injected at every place where the engine's thread works on a request: only this request ends, its slot
is free, and the thread continues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sscc.ir.errors import InternalError, SsccError
from sscc.ir.option import OptionRangeErrors
from sscc.runtime.artifact.signature import ProgramIdentity
from sscc.runtime.serving.engine import (
    Engine,
    EngineClosed,
    EngineOptions,
    Outcome,
    RemotePrefill,
    Request,
    RequestHandle,
)
from sscc.runtime.serving.engine import request as request_module
from sscc.runtime.serving.engine.executor import EngineErrors, Executor
from sscc.runtime.serving.engine.request import RequestErrors
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.session import Session
from sscc.runtime.support.serving_options import MOST_SECONDS
from tests.errors import check, raises
from tests.runtime.engine.gated import LONG, GatedInterpreter, PausingInterpreter, request
from tests.runtime.engine.other_engine import OtherEngine
from tests.runtime.engine.test_engine import ends, until
from tests.runtime.fake import SIGNATURE, FakeInterpreter

IDENTITY = ProgramIdentity("a" * 64, "b" * 64)
VICTIM = (5,) * 40
"""The prompt whose request meets the fault."""


class InjectedError(Exception):
    """Nobody expects it."""


class Fault:
    """A replacement of a method that fails on request.

    Attributes:
        armed: the next call fails.
    """

    def __init__(self, holder: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.armed = self.hit = False
        method = getattr(holder, name)

        def failing(*args: Any, **more: Any) -> Any:
            if self.armed:
                self.armed, self.hit = False, True
                raise InjectedError("a secret\x1b[2J")
            return method(*args, **more)

        monkeypatch.setattr(holder, name, failing)


Place = Callable[[Executor], tuple[Any, str]]

ALONE: dict[str, Place] = {
    "message": lambda e: (e, "_enqueue"),
    "sampler.start": lambda e: (e._sampler, "start"),
    "prompts.find": lambda e: (e._prompts, "find"),
    "prompts.begin": lambda e: (e._prompts, "begin"),
    "session.start_prefill": lambda e: (e.session, "start_prefill"),
    "session.step_prefill": lambda e: (e.session, "step_prefill"),
    "interpreter.run": lambda e: (e.session.interpreter, "run"),
    "prompts.finish": lambda e: (e._prompts, "finish"),
    "session.prompt": lambda e: (e.session, "prompt"),
    "session.snapshot": lambda e: (e.session, "snapshot"),
    "table.activate": lambda e: (e._table, "activate"),
    "count": lambda e: (e, "_count_prompt"),
    "first pick": lambda e: (e._sampler, "pick"),
    "first token": lambda e: (e, "_note_first_token"),
}
"""Places of a prefill, each with the object and the method that fails."""


@contextmanager
def engine_of(interpreter: FakeInterpreter, **options: Any) -> Iterator[Engine]:
    of_engine = EngineOptions(**{"prompt_cache_bytes": 0} | options)
    engine = Engine(Session(interpreter.signature, interpreter), options=of_engine)
    try:
        yield engine
    finally:
        engine.close(drain=False)


def fails(handle: RequestHandle) -> None:
    """The request has ended with what callers get of an exception that nobody expected."""
    with raises(EngineErrors.REQUEST_FAILED) as caught:
        ends(handle)
    assert isinstance(caught.value, InternalError)
    assert isinstance(caught.value.__cause__, InjectedError)
    assert "\x1b" not in str(caught.value)


def goes_on(engine: Engine) -> None:
    """The engine serves in every slot, as if nothing had been."""
    assert engine.failure is None
    handles = [engine.submit(request(number, new=3)) for number in range(1, 6)]
    assert [ends(handle).tokens for handle in handles] == [
        tuple((number + 1 + index) % 11 for index in range(3)) for number in range(1, 6)
    ]
    metrics = engine.metrics()
    assert (metrics.queued, metrics.running, metrics.prefilling) == (0, 0, 0)
    assert [slot.phase for slot in engine.slots()] == ["free"] * metrics.slots


@pytest.mark.parametrize("place", ALONE)
def test_a_fault_of_a_prefill_ends_its_request_alone(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside a request that decodes, which gets every token."""
    with engine_of(PausingInterpreter(LONG, 0.001), prompt_cache_bytes=10**6) as engine:
        beside = engine.submit(request(1, new=300))
        pieces = beside.pieces()
        next(pieces)
        fault = Fault(*ALONE[place](engine._executor), monkeypatch)
        arm(fault, engine, place)
        victim = engine.submit(request(*VICTIM, new=9))
        fails(victim)
        assert fault.hit
        assert ends(beside).tokens == tuple((2 + index) % 11 for index in range(300))
        goes_on(engine)
    (record,) = [record for record in caplog.records if record.name == "sscc.engine"]
    assert "InjectedError" in record.message
    assert "Traceback" in record.message
    assert "\x1b" not in record.message, "a hostile text reaches no terminal"


def arm(fault: Fault, engine: Engine, place: str) -> None:
    """Lets the next call fail: of what decoding calls too, the next one for the victim."""
    if place not in ("interpreter.run", "first pick"):
        fault.armed = True
        return
    executor = engine._executor
    name = {"interpreter.run": "_step_prefill", "first pick": "_first_token"}[place]
    before = getattr(executor, name)

    def arming(*args: Any) -> Any:
        fault.armed = not fault.hit
        return before(*args)

    setattr(executor, name, arming)


def test_a_fault_of_a_copied_prompt_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("restore", "prompt"):
        with engine_of(FakeInterpreter(LONG), prompt_cache_bytes=10**6) as engine:
            ends(engine.submit(request(*VICTIM)))
            fault = Fault(engine._executor.session, name, monkeypatch)
            fault.armed = True
            fails(engine.submit(request(*VICTIM)))
            assert ends(engine.submit(request(*VICTIM))).cached_tokens == 40
            goes_on(engine)


DECODING: dict[str, Place] = {
    "step": lambda e: (e.session, "decode_step"),
    "interpreter.run": lambda e: (e.session.interpreter, "run"),
    "pick": lambda e: (e._sampler, "pick"),
    "table.append": lambda e: (e._table, "append"),
}


@pytest.mark.parametrize("place", DECODING)
def test_a_fault_of_a_step_ends_what_decodes_and_nothing_else(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting requests get the slots."""
    with engine_of(PausingInterpreter(LONG, 0.001)) as engine:
        decoding = [engine.submit(request(number, new=4000)) for number in (1, 2)]
        until(lambda: all(slot.new_tokens > 1 for slot in engine.slots()))
        waiting = engine.submit(request(3, new=4))
        fault = Fault(*DECODING[place](engine._executor), monkeypatch)
        fault.armed = True
        for handle in decoding:
            fails(handle)
        assert ends(waiting).tokens == (4, 5, 6, 7)
        goes_on(engine)


def test_logprobs_that_cannot_be_told_end_their_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(PausingInterpreter(LONG, 0.001)) as engine:
        beside, victim = engine.submit(request(1, new=200)), engine.submit(request(2, new=4000, logprobs=1))
        until(lambda: all(slot.new_tokens > 1 for slot in engine.slots()))
        Fault(engine._executor._sampler, "logprobs", monkeypatch).armed = True
        fails(victim)
        assert len(ends(beside).tokens) == 200
        goes_on(engine)


@pytest.mark.parametrize("name", ["release", "abandon_prefill", "stop"])
@pytest.mark.parametrize("new", [2, 4000])
def test_a_fault_of_tidying_up_ends_nothing(name: str, new: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled or finished request ends, and others get its slot."""
    with engine_of(PausingInterpreter(LONG, 0.001), prefill_steps=1) as engine:
        executor = engine._executor
        fault = Fault(executor._sampler if name == "stop" else executor.session, name, monkeypatch)
        victim = engine.submit(request(*VICTIM, new=new))
        until(lambda: engine.metrics().prefilling == 1)
        fault.armed = True
        if new > 2:
            victim.cancel()
        assert ends(victim).finish == ("cancelled" if new > 2 else "length")
        fault.armed = False
        goes_on(engine)


class NoThreads(RemotePrefill):
    """Cannot begin a prefill of the victim's prompt."""

    def start(self, prompt: Excerpt, deadline: float, done: Callable[[Outcome], None]) -> Callable[[], None]:
        if prompt.tokens.tolist() == list(VICTIM[:2]):
            raise InjectedError("can't start new thread")
        done(None)
        return lambda: None

    def close(self) -> None: ...


def test_a_remote_prefill_that_cannot_begin() -> None:
    engine = Engine(Session(LONG, FakeInterpreter(LONG)), remote_prefill=NoThreads())
    with engine:
        victims = [engine.submit(request(*VICTIM[:2])) for _ in range(2)]
        for victim in victims:
            fails(victim)
        goes_on(engine)


def test_a_slot_that_cannot_be_adopted_is_not_prefilled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request that waits for the result ends; the next one computes it again."""
    sessions = [Session(SIGNATURE, FakeInterpreter(), identity=lambda: IDENTITY) for _ in range(2)]
    with Engine(sessions[0]) as other:
        remote_prefill = OtherEngine(other, sessions[1].slot_format)
        with Engine(sessions[1], remote_prefill=remote_prefill) as engine:
            fault = Fault(sessions[1], "adopt", monkeypatch)
            fault.armed = True
            fails(engine.submit(request(5, new=2)))
            assert ends(engine.submit(request(5, new=2))).tokens == (6, 7)
            assert engine.metrics().prefill_steps == 0
            goes_on(engine)


# ------------------------------------------------------------------------------------------------------------- doors


def test_a_timeout_has_a_door_and_the_thread_its_own_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait of 1e10 seconds would overflow: requests refuse it, and other waits of the thread are bounded."""
    for seconds in (1e10, float("inf"), float("nan"), -1.0, MOST_SECONDS * 1.01):
        with raises(RequestErrors.TIMEOUT_OUT_OF_RANGE, seconds=seconds):
            request(1, timeout=seconds)
    with raises(OptionRangeErrors.OUT_OF_RANGE, option="max_queue"):
        EngineOptions(max_queue=2**70)
    monkeypatch.setattr(request_module.serving_options, "MOST_SECONDS", float("inf"))
    interpreter = GatedInterpreter(LONG)
    session = Session(LONG, interpreter, identity=lambda: IDENTITY)
    with Engine(session) as engine:
        forever = [engine.submit(request(1, new=2, timeout=1e10)) for _ in range(4)]
        interpreter.open()
        assert [ends(handle).finish for handle in forever] == ["length"] * 4
        kept = engine.submit(Request((1,), 1, timeout=1e10, keep_slot=True))
        assert kept.figures.finish is None
        until(lambda: kept._state.message is not None)
        goes_on_beside(engine)
        kept.taken()


def goes_on_beside(engine: Engine) -> None:
    assert ends(engine.submit(request(3, new=2))).tokens == (4, 5)
    assert engine.failure is None


def test_a_session_that_computes_no_more_ends_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    """The exception is no request's: a step without any active slot fails too."""
    interpreter = GatedInterpreter(LONG)
    with caplog.at_level(logging.ERROR), engine_of(interpreter) as engine:
        victim, waiting = engine.submit(request(1)), engine.submit(request(2))
        interpreter.wait()
        interpreter.error = InjectedError("the memory is gone")
        interpreter.open()
        for handle in (victim, waiting):
            fails(handle)
        with pytest.raises(EngineClosed) as caught:
            engine.submit(request(3))
        check(caught.value, EngineErrors.FAILED, cause="InjectedError: the memory is gone")
        assert engine.failure is interpreter.error
    assert "the memory is gone" in caplog.text


def test_errors_of_the_engine_are_errors_of_sscc() -> None:
    assert issubclass(EngineErrors.QUEUE_FULL.error, SsccError)
    assert EngineErrors.CLOSED.error is EngineClosed
