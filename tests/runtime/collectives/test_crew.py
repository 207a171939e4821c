"""Ranks that follow one: they make its calls, and when one is gone all others end and say which one it was."""

from __future__ import annotations

import copy
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sscc.ir.errors import ErrorKind, InputError, RankError
from sscc.ir.schedule import AllReduce, Local
from sscc.runtime.backends.collectives.group import ALONE, Group, GroupErrors, run_ranks, thread_groups
from sscc.runtime.backends.collectives.links import Link, LinkErrors
from sscc.runtime.backends.collectives.processes import (
    ProcessGroup,
    SharedMemory,
    Sockets,
    TransportErrors,
    shared_by_all,
)
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.library import make_code
from sscc.runtime.backends.interpreter import Interpreter
from sscc.runtime.serving.ranks import crew as crews
from sscc.runtime.serving.ranks.crew import CrewErrors, LeadingInterpreter, simulated
from sscc.runtime.support.native_errors import NativeErrors
from tests.errors import check, raises
from tests.runtime.collectives.test_native import COLUMNS, ROWS, data, mixing, on_reference

HALF = (ROWS // 2, COLUMNS)
PROGRAM = mixing((3,), (AllReduce("a", "t", (0,)),), (Local("t", HALF, "f32"),), "f32")
X = {"x": np.zeros((ROWS, COLUMNS), np.float32)}


class InkErrors(ErrorKind):
    EMPTY = InputError, "no more {colour}: {left} ml, for {pages}"


class Failing:
    """An interpreter of one rank that raises in a call."""

    def __init__(self, inner: Interpreter, act: Callable[[], None]) -> None:
        self.inner, self.act = inner, act

    def run(self, *args: Any, **options: Any) -> Any:
        self.act()
        return self.inner.run(*args, **options)


def led(act: Callable[[], None] | None = None, timeout: float = 60.0) -> LeadingInterpreter:
    """Rank 0 of three; `act` is what rank 1 does in every call."""
    code = make_code(PROGRAM, optimise=0)

    def opened(group: Group) -> Any:
        inner = NativeInterpreter(PROGRAM, {}, code=code, threads=1, group=group)
        return Failing(inner, act) if act is not None and group.rank == 1 else inner

    return simulated(thread_groups(3, timeout), opened)


def threads() -> int:
    return sum(thread.name.startswith("sscc-ranks") or "_follow" in thread.name for thread in threading.enumerate())


def test_ranks_make_the_calls_of_the_first() -> None:
    """All ranks get the same inputs, which determine their states after two calls and a reset."""
    leading = led()
    assert leading.ranks == 3
    assert repr(leading).startswith("LeadingInterpreter(NativeInterpreter(")
    assert ", 3 ranks; 1 thread; " in repr(leading)
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    for _ in range(2):
        leading.reset()
        leading.run("main", {"x": x})
    # y = 0 at first, so that the sums are zero in the first iteration and equal on all ranks in the others.
    y = np.zeros_like(x)
    for _ in range(3):
        a = x * y
        y = np.float32(0.25) * (a + a + a) + x
    assert np.array_equal(leading.device_tensor("y").read(), y)
    leading.close()
    assert threads() == 0


def test_a_rank_that_fails_in_a_call() -> None:
    """Rank 0's error has the kind, the message and the fields of its."""

    def act() -> None:
        raise InkErrors.EMPTY(colour="cyan", left=0.5, pages=[1, 2])

    leading = led(act)
    cause = {
        "kind": "ink.empty",
        "message": "no more cyan: 0.5 ml, for 1, 2",
        "fields": {"colour": "cyan", "left": 0.5, "pages": [1, 2]},
    }
    with raises(CrewErrors.RANK_FAILED, rank=1, cause=cause):
        leading.run("main", X)
    assert isinstance(leading.failure, RankError)
    for _ in range(2):
        with raises(CrewErrors.RANK_FAILED, rank=1, cause=cause) as caught:
            leading.run("main", X)
        assert str(caught.value) == "rank 1 failed: no more cyan: 0.5 ml, for 1, 2"
    leading.close()
    assert threads() == 0


@pytest.mark.parametrize("error", [ValueError("\x1b[31mred"), InputError("without a kind")])
def test_a_rank_that_fails_by_an_error_without_a_kind(error: Exception) -> None:
    def act() -> None:
        raise error

    name = "ValueError: \\x1b[31mred" if isinstance(error, ValueError) else "without a kind"
    leading = led(act)
    with raises(CrewErrors.RANK_FAILED, rank=1, cause={"kind": None, "message": name, "fields": {}}):
        leading.run("main", X)
    leading.close()


@pytest.mark.parametrize("late", [0.6, 60.0])
def test_a_third_rank_that_notices_a_failure_does_not_hide_its_reason(
    late: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 2 notices that rank 1 has failed before rank 1 says why; where rank 1 never says it, the failure is
    reported all the same."""
    monkeypatch.setattr(crews, "REASON_SECONDS", 30.0 if late < 1 else 0.6)
    send, ended = Link.send, threading.Event()

    def slowly(link: Link, message: Any, *options: Any) -> None:
        if message[0] is crews.Word.FAILED:
            ended.wait(late)
        send(link, message, *options)

    def act() -> None:
        raise InkErrors.EMPTY(colour="cyan", left=0.5, pages=[])

    monkeypatch.setattr(Link, "send", slowly)
    leading = led(act)
    with pytest.raises(RankError) as caught:
        leading.run("main", X)
    ended.set()
    assert caught.value.kind is (CrewErrors.RANK_FAILED if late < 1 else NativeErrors.RANK_FAILED)
    assert caught.value.fields["rank"] == 1
    leading.close()


def test_what_a_rank_says_of_a_third() -> None:
    """An error about another rank is of the same kind at rank 0; a hostile one is text."""
    known = LinkErrors.ENDED(rank=2)
    check(crews._reported(known.as_json()), LinkErrors.ENDED, rank=2)
    for report in ({"kind": "link.ended", "fields": {"other": 1}, "message": "m"}, {"kind": ["a"], "message": "m"}, {}):
        assert type(crews._reported(report)) is RankError
    cause = InkErrors.EMPTY(colour="cyan", left=1, pages=[])
    failed = CrewErrors.RANK_FAILED(rank=1, cause=crews.ReportedError(cause.as_json()))
    again = crews._reported(failed.as_json())
    assert again.as_json() == failed.as_json() == copy.copy(failed).as_json()
    assert copy.copy(crews.ReportedError({"kind": "k", "message": "m", "fields": {"a": 1}})).as_json()["kind"] == "k"


@pytest.mark.parametrize("message", [None, 7, (), ("what",), ("ready", 1), ("failed", "text")])
def test_a_rank_that_says_something_else(message: Any) -> None:
    here, there = socket.socketpair()
    crew = crews.Crew([Link(here, 1)], ALONE, lambda at_once: None)
    Link(there, 0).send(message)
    with raises(CrewErrors.NOT_A_COMMAND, rank=1):
        crew.wait()
    crew.close()


@pytest.mark.parametrize("message", [None, ("run", 3, {}, None), ("rows", (1, 2)), ("signature", {}), ("rows", None)])
def test_rank_0_says_something_else(message: Any) -> None:
    here, there = socket.socketpair()
    leading = Link(here, 1)
    leading.send(message)
    with raises(CrewErrors.NOT_A_COMMAND, rank=0):
        crews.follow(Link(there, 0), thread_groups(2)[1], lambda: Failing(None, lambda: None))  # type: ignore[arg-type]
    assert leading.receive() == (crews.Word.READY,)
    assert leading.receive()[0] == crews.Word.LOST


def test_a_rank_that_stalls_in_a_call() -> None:
    go = threading.Event()
    leading = led(lambda: go.wait(20) and None, timeout=0.3)
    threading.Timer(1.0, go.set).start()
    with pytest.raises(RankError) as caught:
        leading.run("main", X)
    assert caught.value.kind in (CrewErrors.SILENT, NativeErrors.RANK_STALLED)  # whichever looks first
    assert caught.value.fields == {"rank": 1}


def test_a_rank_that_fails_to_open() -> None:
    def opened(group: Group) -> Any:
        if group.rank == 2:
            raise InkErrors.EMPTY(colour="black", left=0, pages=[])
        return Failing(None, lambda: None)  # type: ignore[arg-type]

    with raises(CrewErrors.RANK_FAILED, rank=2) as caught:
        simulated(thread_groups(3), opened)
    assert caught.value.fields["cause"]["kind"] == InkErrors.EMPTY.code


@pytest.mark.parametrize("stalls", [True, False])
def test_a_rank_that_is_gone_while_nothing_is_to_be_done(stalls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "PATIENCE", 0.3)
    monkeypatch.setattr(crews, "PING_SECONDS", 0.1)
    (here, there), (asking, asked) = socket.socketpair(), socket.socketpair()
    stopped: list[bool] = []
    crew = crews.Crew([Link(here, 1)], ALONE, lambda at_once: stopped.append(at_once), [Link(asking, 1)])
    other, beats = Link(there, 0), Link(asked, 0)
    other.send((crews.Word.READY,))
    crew.wait()
    assert beats.receive() == (crews.Word.PING,)
    if not stalls:
        other.close()
    until = time.monotonic() + 10
    while crew.error is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    with raises(CrewErrors.SILENT if stalls else LinkErrors.ENDED, rank=1):
        crew.call(crews.Word.RESET)
    crew.close()
    assert stopped == [True, False]


def test_a_rank_that_answers_while_it_is_at_work_and_finds_that_it_is_asked_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call may take longer than anybody waits for an answer. When rank 0 asks no more, that ends the call."""
    monkeypatch.setattr(crews, "PATIENCE", 0.3)
    (here, there), (asking, asked) = socket.socketpair(), socket.socketpair()
    leading, beats = Link(here, 1), Link(asking, 1)
    group, waiting = thread_groups(2)[1], threading.Event()
    errors: list[RankError] = []

    def act() -> None:
        waiting.set()
        group.exchange(None)

    def work() -> None:
        try:
            crews.follow(Link(there, 0), group, lambda: Failing(None, act), Link(asked, 0))  # type: ignore[arg-type]
        except RankError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert leading.receive() == (crews.Word.READY,)
    leading.send((crews.Word.RUN, "main", {}, None))
    assert waiting.wait(10)
    for _ in range(3):
        beats.send((crews.Word.PING,))
        assert beats.receive() == (crews.Word.PONG,)
    thread.join(10)
    check(errors[0], LinkErrors.SILENT, rank=0)


def test_a_link_that_nobody_reads() -> None:
    here, there = socket.socketpair()
    with raises(LinkErrors.SILENT, rank=7):
        Link(here, 7).send(bytes(10_000_000), 0.3)
    with raises(LinkErrors.SILENT, rank=7):
        Link(here, 7).receive(0.3)
    there.close()
    with raises(LinkErrors.ENDED, rank=7):
        Link(here, 7).receive(0.3)


def test_ranks_with_memory_and_links_in_common() -> None:
    """Processes with shared memory and links give the same bits as threads that share everything."""
    pairs = [socket.socketpair() for _ in range(2)]
    links = [[Link(here, rank + 1) for rank, (here, _) in enumerate(pairs)], *([Link(there, 0)] for _, there in pairs)]
    memory = SharedMemory.create()
    groups = [ProcessGroup(rank, 3, links[rank], SharedMemory(memory, rank, 3, 50.0)) for rank in range(3)]
    code = make_code(PROGRAM, optimise=0)

    def on_native(group: Group) -> np.ndarray:
        x, y = data(group.rank, "f32")
        for _ in range(2):  # windows of two interpreters lie beside each other
            interpreter = NativeInterpreter(PROGRAM, {}, code=code, threads=1, group=group)
            interpreter.tensor("y")[...] = y.numpy()
            interpreter.run("main", {"x": x.numpy()})
        return interpreter.tensor("y").copy()

    expected = run_ranks(thread_groups(3), lambda group: on_reference(PROGRAM, group))
    for work in (on_native, lambda group: on_reference(PROGRAM, group).numpy()):
        for rank, y in enumerate(run_ranks(groups, work)):
            assert np.array_equal(y, expected[rank].numpy())


def test_ranks_with_sockets_between_each_two() -> None:
    """The same sums as over memory, and a program that is another one on one rank is found."""
    groups = in_sockets()
    code = make_code(PROGRAM, optimise=0)

    def on_native(group: Group) -> np.ndarray:
        x, y = data(group.rank, "f32")
        interpreter = NativeInterpreter(PROGRAM, {}, code=code, threads=1, group=group)
        interpreter.tensor("y")[...] = y.numpy()
        interpreter.run("main", {"x": x.numpy()})
        return interpreter.tensor("y").copy()

    expected = run_ranks(thread_groups(3), lambda group: on_reference(PROGRAM, group))
    for rank, y in enumerate(run_ranks(groups, on_native)):  # type: ignore[arg-type]
        assert np.array_equal(y, expected[rank].numpy())

    def other(group: Group) -> None:
        meet = group.windows(128).meeting
        meet(64 if group.rank == 1 else 128, 0)  # type: ignore[operator]

    with pytest.raises(RankError) as caught:
        run_ranks(in_sockets(), other)  # type: ignore[arg-type]
    assert caught.value.kind in (TransportErrors.OUT_OF_STEP, GroupErrors.UNREACHED)


def in_sockets() -> list[ProcessGroup]:
    """Three ranks with a link between each two."""
    data: list[dict[int, Link]] = [{} for _ in range(3)]
    values: list[list[Link]] = [[] for _ in range(3)]
    for low, high in ((0, 1), (0, 2), (1, 2)):
        here, there = socket.socketpair()
        data[low][high], data[high][low] = Link(here, high), Link(there, low)
    for rank in (1, 2):
        here, there = socket.socketpair()
        values[0].append(Link(here, rank))
        values[rank].append(Link(there, 0))
    return [ProcessGroup(rank, 3, values[rank], Sockets(rank, data[rank])) for rank in range(3)]


def test_a_file_that_all_ranks_have_open() -> None:
    """Ranks find out by exchanging messages; the result is None if one of them has another file."""
    def opened(group: Group) -> int | None:
        return shared_by_all(group.exchange, group.rank)

    assert all(isinstance(number, int) for number in run_ranks(thread_groups(2), opened))

    def elsewhere(group: Group) -> int | None:
        def exchange(value: Any) -> Any:
            return group.exchange((("another", "", 1), -1) if group.rank and isinstance(value, tuple) else value)

        return shared_by_all(exchange, group.rank)

    assert run_ranks(thread_groups(2), elsewhere) == [None, None]
