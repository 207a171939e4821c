"""What an engine counts: totals since its start, gauges, and histograms of seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine.request import Finish

INTER_TOKEN_BOUNDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
WAITING_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
"""Upper bounds in seconds, of the times between tokens and of those until something begins."""

SORTED_TOGETHER = 256


@dataclass(frozen=True)
class Histogram:
    """How often durations fell where.

    Attributes:
        bounds: rising upper bounds in seconds, each part of its bucket.
        counts: per bucket, and last of what is above all bounds; not cumulative.
        sum: of all durations, in seconds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many durations there were."""
        return sum(self.counts)


@dataclass(frozen=True)
class Metrics:
    """A consistent snapshot of an engine.

    Attributes:
        queued: requests that wait for a slot, now.
        running: requests that decode, now.
        slots: of the program.
        prefilling: prompts that are being prefilled now, 0 or 1.
        submitted: requests that were taken.
        finished: how many ended, by why. A stop string counts as "stop" where its text was read before the engine
            ended the request otherwise.
        rejected: requests that met a full queue.
        prompt_tokens: of prompts that reached a slot whole, reused ones included.
        new_tokens: made by all requests.
        cached_prompts: those of which an earlier prefill saved some or all tokens; cached_prompt_tokens: these.
        shortened_prompts: those that a draft has read; left_out_prompt_tokens: those that it has left out of them;
            draft_seconds: what it took.
        slot_messages, slot_message_bytes: prompts whose slots went to another process or came from one, and the bytes
            that were moved; slot_message_full_kv_bytes: those of uncompressed caches of the same prompts.
        kept_rows, evicted_rows: of the caches of the requests that decode now, per layer and KV head.
        decode_steps, decode_seconds: calls of the interpreter that decoded, and what they took.
        prefill_steps, prefill_seconds: chunk steps of prefill, and what the calls took that did them.
        overhead_seconds: of the engine's thread beside these calls, in all rounds that decoded or prefilled: sampling,
            ends of requests, copies of reused prompts, bookkeeping.
        first_token_seconds: from submission to the first token.
        inter_token_seconds: between two tokens of a request.
        queued_seconds: from submission until a slot took the request.
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
    decode_seconds: float
    prefill_steps: int
    prefill_seconds: float
    overhead_seconds: float
    first_token_seconds: Histogram
    inter_token_seconds: Histogram
    queued_seconds: Histogram


@dataclass(frozen=True)
class SlotState:
    """What a slot does now.

    Attributes:
        slot: its number.
        request: the number of the request that has it; None where it is free.
        phase: "free", "prefill" or "decode".
        prompt_tokens, new_tokens: of the request.
        kept_rows, evicted_rows: of its cache, per layer and KV head; 0 before it decodes.
        read_tokens: of the prompt, about as many as it has been prefilled for; those of an earlier prefill count.
        seconds: since the request was submitted.
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
    """Figures of one request, which may still go on. Times are of `perf_counter`, in seconds.

    Attributes:
        prompt_tokens, cached_tokens: tokens of the prompt, and those of them that were not prefilled again.
        new_tokens: tokens made so far.
        submitted, first_token, ended: when; `ended` is now where it has not ended.
        finish: why it ended; None where it has not.
    """

    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    submitted: float
    first_token: float | None
    ended: float
    finish: Finish | None


class HistogramCounter:
    """A histogram that grows. What is added is sorted into buckets later, many durations at once."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._limits = np.array(bounds)
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._sum = 0.0
        self._added: list[Array] = []

    def add(self, seconds: Array) -> None:
        """Counts every element of an array, which must not change any more."""
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
    """The parts of `Metrics` that only grow; times in nanoseconds."""

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
        """These counters and the gauges given."""
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
            decode_seconds=self.decode_ns / 1e9,
            prefill_steps=self.prefill_steps,
            prefill_seconds=self.prefill_ns / 1e9,
            overhead_seconds=self.overhead_ns / 1e9,
            first_token_seconds=self.first_token.read(),
            inter_token_seconds=self.inter_token.read(),
            queued_seconds=self.waited.read(),
        )
