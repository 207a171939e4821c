"""Prompts that other processes prefill: which are on their way, and who waits for each.

Requests of one prompt wait for one and the same prefill. As many prompts as `ahead` are on their way or have come and
wait for a free slot, so that what waits takes bounded memory; the others wait as requests, which is cheap.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from sscc.ir.errors import SsccError
from sscc.runtime.serving.engine.job import Job
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.prompt import Snapshot
from sscc.runtime.session.slot_message import SlotMessage


class PrefillError(SsccError):
    """No other process could prefill a prompt."""


@dataclass(frozen=True)
class Received:
    """What another process has prefilled.

    Attributes:
        message: the slot.
        nbytes: that were moved.
        cached: tokens of the prompt that it did not prefill again.
    """

    message: SlotMessage
    nbytes: int
    cached: int = 0


Outcome = Received | SsccError | None
"""How a prefill elsewhere ends; None: it is to be done here."""


class Elsewhere(Protocol):
    """Other processes that prefill."""

    def start(self, prompt: Excerpt, deadline: float, done: Callable[[Outcome], None]) -> Callable[[], None]:
        """Begins to have a prompt prefilled, and returns at once, with what gives it up.

        Args:
            deadline: of `perf_counter`, after which nobody waits any more.
            done: called once by any thread, unless it was given up before; whether it was need not be looked at.
        """

    def close(self) -> None:
        """Gives up what is on its way."""


@dataclass(eq=False)
class Fetch:
    """A prompt that is prefilled elsewhere, or was.

    Attributes:
        key: of the prompt (`Excerpt.key`).
        waiting: requests by their number.
        outcome: set once `done` is, until it is a snapshot.
        snapshot: of what came, once it is the session's.
        cached: tokens of the prompt that were not prefilled for the first of the requests.
        cancel: gives it up.
    """

    key: bytes
    waiting: dict[int, Job] = field(default_factory=dict)
    done: bool = False
    outcome: Outcome = None
    snapshot: Snapshot | None = None
    cached: int = 0
    cancel: Callable[[], None] = lambda: None


class Arrivals:
    """The prompts of queued requests, which come from elsewhere. Used by the engine's thread alone.

    Args:
        elsewhere: prefills them.
        ahead: prompts that may be on their way or wait for a slot.
        tell: called by any thread with a fetch that is done, before its outcome counts.
    """

    def __init__(self, elsewhere: Elsewhere, ahead: int, tell: Callable[[Fetch, Outcome], None]) -> None:
        self._elsewhere, self._ahead, self._tell = elsewhere, ahead, tell
        self._fetches: OrderedDict[bytes, Fetch] = OrderedDict()
        self._of_job: dict[int, Fetch] = {}
        self._asked: OrderedDict[int, Job] = OrderedDict()  # whose prompts are not on their way yet

    def add(self, job: Job) -> None:
        """A request waits for its prompt."""
        self._asked[job.id] = job

    def begin(
        self, find: Callable[[Excerpt], Snapshot | None], failed: Callable[[Job, Exception], None]
    ) -> None:
        """Have prompts prefilled while there is room, those of the first requests first.

        Args:
            find: returns what is kept of a prompt here, which need not come.
            failed: is told of a request whose prompt cannot be asked for.
        """
        for job in list(self._asked.values()):
            fetch = self._fetches.get(job.prompt.key)
            if fetch is None and len(self._fetches) >= self._ahead:
                break
            del self._asked[job.id]
            try:
                fetch = fetch or self._started(job, find)
            except Exception as error:
                failed(job, error)
                continue
            self._fetches[fetch.key] = fetch
            fetch.waiting[job.id] = job
            self._of_job[job.id] = fetch

    def _started(self, job: Job, find: Callable[[Excerpt], Snapshot | None]) -> Fetch:
        fetch = Fetch(job.prompt.key, snapshot=find(job.prompt))
        fetch.done = fetch.snapshot is not None
        if not fetch.done:
            fetch.cancel = self._elsewhere.start(job.prompt, job.deadline, partial(self._tell, fetch))
        return fetch

    def ready(self) -> tuple[Job, Fetch] | None:
        """The first request whose prompt is there, or will never be, and what came."""
        for fetch in self._fetches.values():
            if fetch.done:
                return next(iter(fetch.waiting.values())), fetch
        return None

    def drop(self, job: Job) -> None:
        """A request has its slot, or has ended. What nobody waits for any more is given up."""
        self._asked.pop(job.id, None)
        fetch = self._of_job.pop(job.id, None)
        if fetch is None:
            return
        del fetch.waiting[job.id]
        if not fetch.waiting:
            del self._fetches[fetch.key]
            if not fetch.done:
                fetch.cancel()
