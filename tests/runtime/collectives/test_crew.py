"""Ranks that follow one: they make its calls, and when one is gone all others end and say which one it was."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sscc.ir.errors import InputError, RankError
from sscc.ir.schedule import AllReduce, Local
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.library import make_code
from sscc.runtime.backends.interpreter import Interpreter
from sscc.runtime.collectives import crew as crews
from sscc.runtime.collectives.crew import LeadingInterpreter, simulated
from sscc.runtime.collectives.group import ALONE, Group, run_ranks, thread_groups
from sscc.runtime.collectives.links import Link
from sscc.runtime.collectives.processes import ProcessGroup, SharedMemory, Sockets, shared_by_all
from tests.runtime.collectives.test_native import COLUMNS, ROWS, data, mixing, on_reference

HALF = (ROWS // 2, COLUMNS)
PROGRAM = mixing((3,), (AllReduce("a", "t", (0,)),), (Local("t", HALF, "f32"),), "f32")
X = {"x": np.zeros((ROWS, COLUMNS), np.float32)}


class Failing:
    """An interpreter of one rank that goes wrong in a call."""

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
    """All of them have the same inputs; what their states hold after two calls and a reset follows from them."""
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
    assert np.array_equal(leading.tensor("y"), y)
    leading.close()
    assert threads() == 0


def test_a_rank_that_fails_in_a_call() -> None:
    def act() -> None:
        raise InputError("no more ink")

    leading = led(act)
    with pytest.raises(RankError, match="rank 1 failed"):
        leading.run("main", X)
    assert isinstance(leading.lost, RankError)
    for _ in range(2):
        with pytest.raises(RankError, match="rank 1 failed"):
            leading.run("main", X)
    leading.close()
    assert threads() == 0


def test_a_rank_that_stalls_in_a_call() -> None:
    go = threading.Event()
    leading = led(lambda: go.wait(20) and None, timeout=0.3)
    threading.Timer(1.0, go.set).start()
    with pytest.raises(RankError, match="rank 1 does not answer"):
        leading.run("main", X)


def test_a_rank_that_fails_to_open() -> None:
    def opened(group: Group) -> Any:
        if group.rank == 2:
            raise InputError("no weights here")
        return Failing(None, lambda: None)  # type: ignore[arg-type]

    with pytest.raises(RankError, match="rank 2 failed: no weights here"):
        simulated(thread_groups(3), opened)


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
    with pytest.raises(RankError, match="rank 1 does not answer" if stalls else "rank 1 has ended"):
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
    errors: list[BaseException] = []

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
    assert str(errors[0]) == "rank 0 does not answer"


def test_a_link_that_nobody_reads() -> None:
    here, there = socket.socketpair()
    with pytest.raises(RankError, match="rank 7 does not answer"):
        Link(here, 7).send(bytes(10_000_000), 0.3)
    with pytest.raises(RankError, match="rank 7 does not answer"):
        Link(here, 7).receive(0.3)
    there.close()
    with pytest.raises(RankError, match="rank 7 has ended"):
        Link(here, 7).receive(0.3)


def test_ranks_with_memory_and_links_in_common() -> None:
    """As processes have them: the same as threads that share everything, bit for bit."""
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


def test_a_file_that_all_ranks_have_open() -> None:
    """Found by what they tell each other; None where one is elsewhere."""
    def opened(group: Group) -> int | None:
        return shared_by_all(group.exchange, group.rank)

    assert all(isinstance(number, int) for number in run_ranks(thread_groups(2), opened))

    def elsewhere(group: Group) -> int | None:
        def exchange(value: Any) -> Any:
            return group.exchange((("another", "", 1), -1) if group.rank and isinstance(value, tuple) else value)

        return shared_by_all(exchange, group.rank)

    assert run_ranks(thread_groups(2), elsewhere) == [None, None]
