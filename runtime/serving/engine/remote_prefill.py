"""Queued requests whose prompts are prefilled by other processes.

Requests with the same prompt share one prefill. At most `ahead` prompts are being prefilled, or prefilled and waiting
for a free slot, so that their memory is bounded; further prompts wait as requests, which is cheap.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from sscc.ir.errors import SsccError
from sscc.runtime.serving.engine.request_state import RequestState
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.prompt import Snapshot
from sscc.runtime.session.slot_message import SlotMessage


class PrefillError(SsccError):
    """No other process was able to prefill the prompt."""


@dataclass(frozen=True)
class Received:
    """A slot that another process has prefilled.

    Attributes:
        message: the slot.
        nbytes: bytes transferred.
        cached: prompt tokens that the process reused from its cache.
    """

    message: SlotMessage
    nbytes: int
    cached: int = 0


Outcome = Received | SsccError | None
"""Outcome of a remote prefill; None if the prompt must be prefilled here."""


class RemotePrefill(Protocol):
    """Interface to other processes that prefill."""

    def start(self, prompt: Excerpt, deadline: float, done: Callable[[Outcome], None]) -> Callable[[], None]:
        """Start a prefill, and return a function that gives it up. Does not block.

        Args:
            deadline: time of `perf_counter` after which nobody waits any more.
            done: receives the outcome. It is called once, from any thread, unless the prefill was given up before; a
                call after that is harmless.
        """

    def close(self) -> None:
        """Give up all prefills."""


@dataclass(eq=False)
class Fetch:
    """A remote prefill, in progress or done.

    Attributes:
        key: key of the prompt (`Excerpt.key`).
        waiting: requests that wait for it, by their id.
        done: True once there is an outcome.
        outcome: the outcome, until it has been converted to `snapshot`.
        snapshot: the prompt's slot in the session.
        cached: prompt tokens that were not prefilled for the first of the requests.
        cancel: gives up the prefill.
    """

    key: bytes
    waiting: dict[int, RequestState] = field(default_factory=dict)
    done: bool = False
    outcome: Outcome = None
    snapshot: Snapshot | None = None
    cached: int = 0
    cancel: Callable[[], None] = lambda: None


class Arrivals:
    """Remote prefills of queued requests. Used by the engine's thread only.

    Args:
        remote_prefill: processes that prefill.
        ahead: maximum number of prompts being prefilled, or waiting for a slot.
        report: called from any thread with the outcome of a prefill, which takes effect when the engine's thread
            handles it.
    """

    def __init__(self, remote_prefill: RemotePrefill, ahead: int, report: Callable[[Fetch, Outcome], None]) -> None:
        self._remote_prefill, self._ahead, self._report = remote_prefill, ahead, report
        self._fetches: OrderedDict[bytes, Fetch] = OrderedDict()
        self._of_request: dict[int, Fetch] = {}
        self._asked: OrderedDict[int, RequestState] = OrderedDict()  # requests whose prefill has not been started

    def add(self, state: RequestState) -> None:
        """Add a request that waits for its prompt."""
        self._asked[state.id] = state

    def begin(
        self, find: Callable[[Excerpt], Snapshot | None], failed: Callable[[RequestState, Exception], None]
    ) -> None:
        """Start prefills while there is room, in the order of the requests.

        Args:
            find: returns the cached slot of a prompt, which then needs no prefill.
            failed: called with a request whose prefill cannot be started.
        """
        for state in list(self._asked.values()):
            fetch = self._fetches.get(state.prompt.key)
            if fetch is None and len(self._fetches) >= self._ahead:
                break
            del self._asked[state.id]
            try:
                fetch = fetch or self._started(state, find)
            except Exception as error:
                failed(state, error)
                continue
            self._fetches[fetch.key] = fetch
            fetch.waiting[state.id] = state
            self._of_request[state.id] = fetch

    def _started(self, state: RequestState, find: Callable[[Excerpt], Snapshot | None]) -> Fetch:
        fetch = Fetch(state.prompt.key, snapshot=find(state.prompt))
        fetch.done = fetch.snapshot is not None
        if not fetch.done:
            fetch.cancel = self._remote_prefill.start(state.prompt, state.deadline, partial(self._report, fetch))
        return fetch

    def ready(self) -> tuple[RequestState, Fetch] | None:
        """Return the first request whose remote prefill is done, and the prefill; None if there is none."""
        for fetch in self._fetches.values():
            if fetch.done:
                return next(iter(fetch.waiting.values())), fetch
        return None

    def drop(self, state: RequestState) -> None:
        """Remove a request that has its slot or has ended. Prefills for which no request waits are given up."""
        self._asked.pop(state.id, None)
        fetch = self._of_request.pop(state.id, None)
        if fetch is None:
            return
        del fetch.waiting[state.id]
        if not fetch.waiting:
            del self._fetches[fetch.key]
            if not fetch.done:
                fetch.cancel()
