"""Wake-ups of tasks of several event loops, some of which wait for every token and some for a change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import Lock
from typing import Any

import pytest

from sscc.runtime.serving.engine.wakeups import Wakeups

LOCK = Lock()


def wake(wakeups: Wakeups, *, change: bool) -> None:
    with LOCK:
        wakeups.wake(change=change)


@pytest.fixture
def loops() -> Iterator[list[asyncio.AbstractEventLoop]]:
    loops = [asyncio.new_event_loop() for _ in range(2)]
    yield loops
    for loop in loops:
        loop.close()


def future(wakeups: Wakeups, loop: asyncio.AbstractEventLoop, *, change: bool) -> asyncio.Future[None]:
    """As a task of the loop gets it."""

    async def ask() -> list[asyncio.Future[None]]:
        return [wakeups.future(change=change)]  # in a list, or the loop would wait for it

    return loop.run_until_complete(ask())[0]


def turn(loop: asyncio.AbstractEventLoop) -> None:
    """Lets the loop do what it was called for."""
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))


def test_progress_wakes_those_who_wait_for_it_in_every_loop(loops: list[asyncio.AbstractEventLoop]) -> None:
    wakeups = Wakeups(LOCK)
    first, second = loops
    changes = [future(wakeups, first, change=True), future(wakeups, second, change=True)]
    progress = future(wakeups, second, change=False)

    def woken(change: bool) -> list[bool]:
        wake(wakeups, change=change)
        turn(first)
        turn(second)
        return [each.done() for each in (*changes, progress)]

    assert woken(change=False) == [False, False, True]
    assert woken(change=False) == [False, False, True]
    assert woken(change=True) == [True, True, True]
    assert not wakeups._tasks  # nothing of a loop is kept that nobody waits in


def test_a_change_wakes_both_kinds_at_once(
    loops: list[asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    wakeups = Wakeups(LOCK)
    waiting = [future(wakeups, loops[0], change=change) for change in (True, False)]
    called: list[Any] = []
    plain = loops[0].call_soon_threadsafe

    def calling(*args: Any) -> None:
        called.append(args)
        plain(*args)

    monkeypatch.setattr(loops[0], "call_soon_threadsafe", calling)
    wake(wakeups, change=True)
    turn(loops[0])
    assert [each.done() for each in waiting] == [True, True]
    assert len(called) == 1
    assert not wakeups._tasks


def test_those_who_have_given_up_waiting_for_a_change_are_forgotten(loops: list[asyncio.AbstractEventLoop]) -> None:
    wakeups = Wakeups(LOCK)
    gone, stays = (future(wakeups, loops[0], change=True) for _ in range(2))
    gone.cancel()
    wake(wakeups, change=False)
    assert wakeups._tasks == {loops[0]: [(stays, True)]}
    stays.cancel()
    wake(wakeups, change=False)
    assert not wakeups._tasks


def test_a_loop_that_was_closed_is_forgotten(loops: list[asyncio.AbstractEventLoop]) -> None:
    wakeups = Wakeups(LOCK)
    for change in (True, False):
        future(wakeups, loops[0], change=change)
    stays = future(wakeups, loops[1], change=False)
    loops[0].close()
    wake(wakeups, change=False)
    assert not wakeups._tasks
    turn(loops[1])
    assert stays.done()


def test_who_has_gone_is_not_woken(loops: list[asyncio.AbstractEventLoop]) -> None:
    wakeups, failed = Wakeups(LOCK), []
    loops[0].set_exception_handler(lambda _, context: failed.append(context))
    gone, stays = (future(wakeups, loops[0], change=False) for _ in range(2))
    gone.cancel()
    wake(wakeups, change=False)
    turn(loops[0])
    assert (gone.cancelled(), stays.done(), failed) == (True, True, [])
