"""The slots of an engine as arrays, so that a step takes one call for any number of them."""

from __future__ import annotations

import numpy as np

from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine.job import Job
from sscc.runtime.serving.engine.request import Finish
from sscc.runtime.support import _native

_FINISH: dict[int, Finish] = {1: "eos", 2: "length"}  # as `_native.TokenTable` numbers them


class SlotTable:
    """Which request has which slot, and the tokens made so far.

    Args:
        slots: B.
        capacity: most new tokens that a sequence can have.

    Attributes:
        jobs: per slot, None where it is free.
        active: [B] bool, slots that decode.
        next_tokens: [B] i64, what an active slot is fed next: its newest token.
        counts: [B] i64, new tokens.
        prompt_lens: [B] i64, tokens of the prompt of active slots.
        telling: active slots whose requests ask for logprobs.
    """

    def __init__(self, slots: int, capacity: int) -> None:
        self.jobs: list[Job | None] = [None] * slots
        self.active = np.zeros(slots, np.bool_)
        self.next_tokens = np.zeros(slots, np.int64)
        self.counts = np.zeros(slots, np.int64)
        self.prompt_lens = np.zeros(slots, np.int64)
        self.telling: set[int] = set()
        self._history = np.zeros((slots, capacity), np.int32)  # pages that no token reached take no memory
        self._native = _native.TokenTable(self._history, self.counts, self.next_tokens)
        self._finish = np.zeros(slots, np.int8)
        self._free = list(range(slots))[::-1]

    @property
    def free(self) -> int:
        """How many slots are free."""
        return len(self._free)

    @property
    def running(self) -> int:
        """How many slots decode."""
        return int(np.count_nonzero(self.active))

    def take(self, job: Job) -> int:
        """Gives a free slot to a request."""
        slot = self._free.pop()
        self.jobs[slot], job.slot = job, slot
        return slot

    def job(self, slot: int) -> Job:
        """The request that has the slot."""
        job = self.jobs[slot]
        assert job is not None
        return job

    def activate(self, slot: int, job: Job) -> None:
        """Starts decoding in a slot, once its prompt is there."""
        self.active[slot] = True
        self.prompt_lens[slot] = len(job.prompt)
        self._native.start(slot, job.request.max_new_tokens, job.ends.tolist())
        if job.request.logprobs is not None:
            self.telling.add(slot)

    def append(self, tokens: Array, receivers: Array, now: float) -> tuple[Array, list[tuple[int, Finish]]]:
        """Adds a token to some of the active slots.

        Args:
            tokens: [B] i64.
            receivers: [B] bool, the slots that get theirs.
            now: the time of this step, in seconds.

        Returns [n] f64, the seconds since the previous token of each of them (of a first token it means nothing); and
        the slots whose request ends with this token.
        """
        gaps = np.empty(len(receivers))
        count, ended = self._native.append(tokens, receivers, now, gaps, self._finish)
        slots = np.flatnonzero(self._finish).tolist() if ended else []
        return gaps[:count], [(slot, _FINISH[int(self._finish[slot])]) for slot in slots]

    def tokens(self, slot: int, start: int = 0) -> Array:
        """A copy of the slot's new tokens from number `start` on."""
        copied: Array = self._history[slot, start : self.counts[slot]].copy()
        return copied

    def clear(self, slot: int) -> None:
        """Frees a slot."""
        self.jobs[slot] = None
        self.active[slot] = False
        self.counts[slot] = 0
        self.telling.discard(slot)
        self._free.append(slot)

    def lengths(self) -> Array:
        """[n] i64, per active slot the positions in its cache, which the newest token has not reached yet."""
        fed_positions: Array = (self.prompt_lens + np.maximum(self.counts - 1, 0))[self.active]
        return fed_positions
