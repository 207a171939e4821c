"""When memory is given back."""

from __future__ import annotations

import asyncio
import time

import pytest

from sscc.runtime.server import memory
from sscc.runtime.server.memory import IdleTrim


def test_it_is_given_back_once_when_the_server_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[float] = []
    monkeypatch.setattr(memory, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(memory, "give_back", lambda: trims.append(1))

    async def requests() -> list[int]:
        idle, counts = IdleTrim(), []
        with idle.busy():
            with idle.busy():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            counts.append(len(trims))  # one is still answered
        for _ in range(10):
            with idle.busy():
                pass
        until = time.monotonic() + 30
        while not trims and time.monotonic() < until:
            await asyncio.sleep(0.01)
        counts.append(len(trims))
        await asyncio.sleep(0.2)
        return [*counts, len(trims)]

    assert asyncio.run(requests()) == [0, 1, 1]


def test_the_calls_are_those_of_the_library() -> None:
    """Whatever the library is, glibc or not, nothing fails."""
    memory.keep_little()
    memory.give_back()
