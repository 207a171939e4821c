"""Metrics of an engine: totals since its start, gauges, and histograms of seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine.request import Finish

INTER_TOKEN_BOUNDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
WAITING_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
"""Upper bounds of buckets in seconds: for the time between tokens, and for the time until a request begins."""

SORTED_TOGETHER = 256
"""Number of arrays that a histogram collects before it sorts them into buckets."""


@dataclass(frozen=True)
class Histogram:
    """Histogram of durations.

    Attributes:
        bounds: increasing upper bounds of the buckets in seconds, inclusive.
        counts: count of each bucket, not cumulative; the last one counts durations above all bounds.
        sum: sum of all durations, in seconds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)


@dataclass(frozen=True)
class Metrics:
    """A consistent snapshot of an engine.

    Attributes:
        queued: requests waiting for a slot.
        running: requests that decode.
        slots: number of slots of the program.
        prefilling: prompts being prefilled, 0 or 1.
        submitted: requests accepted.
        finished: requests that ended, by reason. A stop string counts as "stop" if its text was read before the engine
            ended the request for another reason.
        rejected: requests refused because the queue was full.
        prompt_tokens: tokens of prompts that were prefilled completely, reused tokens included.
        new_tokens: tokens generated for all requests.
        cached_prompts: prompts reused completely or in part.
        cached_prompt_tokens: tokens reused.
        shortened_prompts: prompts shortened by a draft.
        left_out_prompt_tokens: tokens that a draft left out of them.
        draft_seconds: time of the draft's work.
        slot_messages, slot_message_bytes: slots sent to or received from other processes, and their bytes.
        slot_message_full_kv_bytes: bytes of uncompressed caches of the same prompts.
        kept_rows, evicted_rows: cache rows of the requests that decode, per layer and KV head.
        decode_steps, decode_seconds: decode calls of the interpreter, and their time.
        verify_steps: those among them that verified drafted tokens.
        drafted_tokens, accepted_tokens: tokens drafted for them, and those that were picked.
        prefill_steps, prefill_seconds: chunk steps of prefill, and the time of the calls.
        overhead_seconds: time of the engine's thread outside these calls, in all rounds that decoded or prefilled:
            sampling, ends of requests, copies of reused prompts, bookkeeping.
        first_token_seconds: time from submission to the first token.
        inter_token_seconds: time between two tokens of a request.
        queued_seconds: time from submission until the request got a slot.
    """

    queued: int
    running: int
    slots: int
    prefilling: int
    submitted: int
    finished: Mapping[Finish, int]
    rejected: int
    prompt_tokens: int
    new_tokens: int
    cached_prompts: int
    cached_prompt_tokens: int
    shortened_prompts: int
    left_out_prompt_tokens: int
    draft_seconds: float
    slot_messages: int
    slot_message_bytes: int
    slot_message_full_kv_bytes: int
    kept_rows: int
    evicted_rows: int
    decode_steps: int
    verify_steps: int
    drafted_tokens: int
    accepted_tokens: int
    decode_seconds: float
    prefill_steps: int
    prefill_seconds: float
    overhead_seconds: float
    first_token_seconds: Histogram
    inter_token_seconds: Histogram
    queued_seconds: Histogram


@dataclass(frozen=True)
class SlotState:
    """State of a slot.

    Attributes:
        slot: index of the slot.
        request: number of the request in the slot; None for a free slot.
        phase: "free", "prefill" or "decode".
        prompt_tokens, new_tokens: tokens of the request.
        kept_rows, evicted_rows: rows of its cache, per layer and KV head; 0 before decode.
        read_tokens: approximate progress of the prefill in tokens, reused tokens included.
        seconds: time since the request was submitted.
    """

    slot: int
    request: int | None = None
    phase: Literal["free", "prefill", "decode"] = "free"
    prompt_tokens: int = 0
    new_tokens: int = 0
    kept_rows: int = 0
    evicted_rows: int = 0
    read_tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Figures:
    """Figures of one request, which may still be running. Times are from `perf_counter`, in seconds.

    Attributes:
        prompt_tokens, cached_tokens: tokens of the prompt, and the reused ones among them.
        new_tokens: tokens generated so far.
        drafted_tokens, accepted_tokens: tokens drafted for the answer, and those of them that were picked.
        submitted, first_token, ended: times of these events; `ended` is the current time if the request is still
            running.
        finish: finish reason; None if the request is still running.
    """

    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    submitted: float
    first_token: float | None
    ended: float
    finish: Finish | None


class HistogramCounter:
    """A histogram under construction. Durations are collected, and sorted into buckets in batches."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._limits = np.array(bounds)
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._sum = 0.0
        self._added: list[Array] = []

    def add(self, seconds: Array) -> None:
        """Add every element of an array, which must not be modified afterwards."""
        self._added.append(seconds)
        if len(self._added) == SORTED_TOGETHER:
            self._sort()

    def read(self) -> Histogram:
        self._sort()
        return Histogram(self._bounds, tuple(self._counts.tolist()), self._sum)

    def _sort(self) -> None:
        if self._added:
            seconds = np.concatenate(self._added)
            self._added.clear()
            self._counts += np.bincount(np.searchsorted(self._limits, seconds), minlength=len(self._counts))
            self._sum += float(seconds.sum())


@dataclass
class Counters:
    """The monotonic part of `Metrics`; times in nanoseconds."""

    submitted: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    cached_prompts: int = 0
    cached_prompt_tokens: int = 0
    shortened_prompts: int = 0
    left_out_prompt_tokens: int = 0
    draft_ns: int = 0
    slot_messages: int = 0
    slot_message_bytes: int = 0
    slot_message_full_kv_bytes: int = 0
    decode_steps: int = 0
    verify_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    decode_ns: int = 0
    prefill_steps: int = 0
    prefill_ns: int = 0
    overhead_ns: int = 0
    finished: dict[Finish, int] = field(default_factory=lambda: dict.fromkeys(get_args(Finish), 0))
    first_token: HistogramCounter = field(default_factory=lambda: HistogramCounter(WAITING_BOUNDS))
    inter_token: HistogramCounter = field(default_factory=lambda: HistogramCounter(INTER_TOKEN_BOUNDS))
    waited: HistogramCounter = field(default_factory=lambda: HistogramCounter(WAITING_BOUNDS))

    def read(
        self, *, queued: int, running: int, slots: int, prefilling: int, kept_rows: int, evicted_rows: int
    ) -> Metrics:
        """Return these counters together with gauges."""
        return Metrics(
            queued=queued,
            running=running,
            slots=slots,
            prefilling=prefilling,
            submitted=self.submitted,
            finished=dict(self.finished),
            rejected=self.rejected,
            prompt_tokens=self.prompt_tokens,
            new_tokens=self.new_tokens,
            cached_prompts=self.cached_prompts,
            cached_prompt_tokens=self.cached_prompt_tokens,
            shortened_prompts=self.shortened_prompts,
            left_out_prompt_tokens=self.left_out_prompt_tokens,
            draft_seconds=self.draft_ns / 1e9,
            slot_messages=self.slot_messages,
            slot_message_bytes=self.slot_message_bytes,
            slot_message_full_kv_bytes=self.slot_message_full_kv_bytes,
            kept_rows=kept_rows,
            evicted_rows=evicted_rows,
            decode_steps=self.decode_steps,
            verify_steps=self.verify_steps,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            decode_seconds=self.decode_ns / 1e9,
            prefill_steps=self.prefill_steps,
            prefill_seconds=self.prefill_ns / 1e9,
            overhead_seconds=self.overhead_ns / 1e9,
            first_token_seconds=self.first_token.read(),
            inter_token_seconds=self.inter_token.read(),
            queued_seconds=self.waited.read(),
        )
