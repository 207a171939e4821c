"""The slots of an engine as arrays, so that one call per step handles all slots."""

from __future__ import annotations

import numpy as np

from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine.request import Finish
from sscc.runtime.serving.engine.request_state import RequestState
from sscc.runtime.support import _native

_FINISH: dict[int, Finish] = {1: "eos", 2: "length"}  # numbered as in `_native.TokenTable`


class SlotTable:
    """Assignment of requests to slots, and the tokens generated in each slot.

    Args:
        slots: number of slots, B.
        capacity: maximum number of generated tokens of a sequence.

    Attributes:
        states: request of each slot; None for a free slot.
        active: [B] bool, slots that decode.
        next_tokens: [B] i64, next input token of each active slot: its newest token.
        counts: [B] i64, number of generated tokens.
        limits: [B] i64, maximum number of generated tokens of each active slot.
        prompt_lens: [B] i64, prompt length of each active slot, in tokens.
        with_logprobs: active slots whose requests have logprobs.
    """

    def __init__(self, slots: int, capacity: int) -> None:
        self.states: list[RequestState | None] = [None] * slots
        self.active = np.zeros(slots, np.bool_)
        self.next_tokens = np.zeros(slots, np.int64)
        self.counts = np.zeros(slots, np.int64)
        self.limits = np.zeros(slots, np.int64)
        self.prompt_lens = np.zeros(slots, np.int64)
        self.with_logprobs: set[int] = set()
        self._history = np.zeros((slots, capacity), np.int32)  # pages that no token has reached use no memory
        self._native = _native.TokenTable(self._history, self.counts, self.next_tokens)
        self._finish = np.zeros(slots, np.int8)
        self._free = list(range(slots))[::-1]

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    @property
    def running(self) -> int:
        """Number of slots that decode."""
        return int(np.count_nonzero(self.active))

    def take(self, state: RequestState) -> int:
        """Assign a free slot to a request, and return it."""
        slot = self._free.pop()
        self.states[slot], state.slot = state, slot
        return slot

    def state(self, slot: int) -> RequestState:
        """Return the request of an occupied slot."""
        state = self.states[slot]
        assert state is not None
        return state

    def activate(self, slot: int, state: RequestState) -> None:
        """Start decoding in a slot, after the prefill of its prompt."""
        self.active[slot] = True
        self.prompt_lens[slot] = len(state.prompt)
        self.limits[slot] = state.request.max_new_tokens
        self._native.start(slot, state.request.max_new_tokens, state.ends.tolist())
        if state.request.logprobs is not None:
            self.with_logprobs.add(slot)

    def append(self, tokens: Array, receivers: Array, now: float) -> tuple[Array, list[tuple[int, Finish]]]:
        """Append a token to some of the active slots.

        Args:
            tokens: [B] i64.
            receivers: [B] bool, slots whose token is appended.
            now: time of this step, in seconds.

        Returns [n] f64, the seconds since each receiver's previous token (undefined for a first token), and the slots
        whose requests end with this token, with the finish reason.
        """
        gaps = np.empty(len(receivers))
        count, ended = self._native.append(tokens, receivers, now, gaps, self._finish)
        slots = np.flatnonzero(self._finish).tolist() if ended else []
        return gaps[:count], [(slot, _FINISH[int(self._finish[slot])]) for slot in slots]

    def tokens(self, slot: int, start: int = 0) -> Array:
        """Return a copy of the slot's generated tokens from index `start` on."""
        copied: Array = self._history[slot, start : self.counts[slot]].copy()
        return copied

    def clear(self, slot: int) -> None:
        """Free a slot."""
        self.states[slot] = None
        self.active[slot] = False
        self.counts[slot] = 0
        self.with_logprobs.discard(slot)
        self._free.append(slot)

    def lengths(self) -> Array:
        """Return [n] i64, the number of cached positions of each active slot. The newest token is not in the cache
        yet."""
        fed_positions: Array = (self.prompt_lens + np.maximum(self.counts - 1, 0))[self.active]
        return fed_positions
