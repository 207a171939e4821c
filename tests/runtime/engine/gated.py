"""An interpreter whose every call waits for the test, so that a test decides what happens between two of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sscc.runtime.artifact.signature import Signature
from sscc.runtime.serving.engine import Engine, EngineOptions, Request
from sscc.runtime.session.session import Session
from tests.runtime.fake import SIGNATURE, FakeInterpreter
from tests.runtime.signatures import altered

LIMIT = 30.0
"""Seconds after which a test that waits for another thread has failed."""

LONG = altered(SIGNATURE, geometry=replace(SIGNATURE.geometry, max_context=4096))
"""Room for requests that do not end by themselves while a test looks at them."""


class GatedInterpreter(FakeInterpreter):
    """An interpreter whose calls wait until they are let through; the next one then raises `error`, if set."""

    def __init__(self, signature: Signature = SIGNATURE) -> None:
        super().__init__(signature)
        self.error: BaseException | None = None
        self._arrived = threading.Semaphore(0)
        self._through = threading.Semaphore(0)
        self._open = threading.Event()

    def before_call(self) -> None:
        self._arrived.release()
        if not self._open.is_set() and not self._through.acquire(timeout=LIMIT):
            raise AssertionError("the test forgot a call")
        if self.error is not None:
            raise self.error

    def let(self, calls: int) -> None:
        """Lets calls through, one after the other, and waits until the one after them has begun."""
        for _ in range(calls):
            self._through.release()
            self.wait()

    def wait(self) -> None:
        """Wait until the next call has begun."""
        assert self._arrived.acquire(timeout=LIMIT)

    def open(self) -> None:
        """Lets everything through from now on."""
        self._open.set()
        self._through.release()

    @property
    def entries(self) -> list[str]:
        """The entries called so far."""
        return [entry for entry, _, _ in self.calls]


class PausingInterpreter(FakeInterpreter):
    """Calls take `pause` seconds in which other threads run, as they do while native code computes."""

    def __init__(self, signature: Signature, pause: float) -> None:
        super().__init__(signature)
        self._pause = pause

    def before_call(self) -> None:
        time.sleep(self._pause)


@contextmanager
def gated(signature: Signature = SIGNATURE, **options: Any) -> Iterator[tuple[Engine, GatedInterpreter]]:
    """Open an engine on such an interpreter; remaining requests are cancelled at the end."""
    interpreter = GatedInterpreter(signature)
    engine = Engine(Session(signature, interpreter), options=EngineOptions(**{"prompt_cache_bytes": 0} | options))
    try:
        yield engine, interpreter
    finally:
        interpreter.open()
        engine.close(drain=False)


@contextmanager
def serving(signature: Signature = SIGNATURE, *, pause: float | None = None, **options: Any) -> Iterator[Engine]:
    """An engine on an interpreter that waits for nobody, or `pause` seconds; the next token is (token + 1) mod V."""
    interpreter = FakeInterpreter(signature) if pause is None else PausingInterpreter(signature, pause)
    engine = Engine(Session(signature, interpreter), options=EngineOptions(**{"prompt_cache_bytes": 0} | options))
    try:
        yield engine
    finally:
        engine.close(drain=False)


def request(*prompt: int, new: int = 4, eos: frozenset[int] | None = frozenset(), **more: Any) -> Request:
    return Request(prompt or (1,), new, eos=eos, **more)
