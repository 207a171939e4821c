"""A request on its way through an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType

import numpy as np

from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine.constraints import Constraint
from sscc.runtime.serving.engine.request import Finish, Request
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.samplers import TokenLogprobs
from sscc.runtime.session.slot_message import SlotMessage


@dataclass(eq=False)
class Job:
    """What the engine knows of a request. What changes is read and written under the engine's lock.

    Attributes:
        id: counts the engine's requests from 0.
        prompt: what is prefilled: all of it, until a draft has shortened it.
        ends: [E] i64, tokens that end the text.
        constraint: what its tokens may be; None: any.
        submitted: the time of `perf_counter`, in seconds; so are the other times.
        slot: that it was given, until it ends.
        tokens: [count] of the new ones, once it has ended; before, they are in the slot's history.
        logprobs: one per new token where asked for; only grows.
        prompt_logprobs: of the prompt, where asked for, before the first token.
        finish: set once it has ended, after everything else.
        error, trace: why, where `finish` is "error", and where it was raised.
        prefilled: whether its prompt was prefilled or reused.
        cached: tokens of it that an earlier prefill saved.
        message: what its prefill has left, of a request that keeps its slot for that, until it ends.
        admitted, first_token, ended: when.
    """

    id: int
    request: Request
    prompt: Excerpt
    ends: Array
    submitted: float
    constraint: Constraint | None = None
    slot: int | None = None
    tokens: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: Finish | None = None
    error: BaseException | None = None
    trace: TracebackType | None = None
    prefilled: bool = False
    cached: int = 0
    message: SlotMessage | None = None
    admitted: float | None = None
    first_token: float | None = None
    ended: float | None = None

    @property
    def prompt_tokens(self) -> int:
        """Of the prompt as it was given."""
        given = self.request.prompt
        return given.text_length if isinstance(given, Excerpt) else len(given)

    @property
    def deadline(self) -> float:
        """When its timeout has passed; infinite without one."""
        timeout = self.request.timeout
        return float("inf") if timeout is None else self.submitted + timeout
