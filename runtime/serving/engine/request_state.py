"""State of a request in an engine."""

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
class RequestState:
    """State of a request in the engine. Mutable fields are read and written under the engine's lock.

    Attributes:
        id: number of the request; the engine counts from 0.
        prompt: tokens to prefill; the whole prompt, until a draft has shortened it.
        ends: [E] i64, tokens that end the text.
        constraint: constraint on the generated tokens; None for any tokens.
        submitted: time of submission (`perf_counter`, in seconds).
        slot: slot assigned to the request, until the request ends.
        tokens: [count] generated tokens, set at the end; until then they are in the slot's history.
        logprobs: one per generated token, if requested; append-only.
        prompt_logprobs: logprobs of the prompt, if requested; complete before the first token.
        finish: finish reason; set last, after all other fields.
        error, trace: exception and its traceback if `finish` is "error".
        prefilled: True once the prompt has been prefilled or reused.
        cached: prompt tokens that did not have to be prefilled, because they were cached.
        drafted, accepted: tokens drafted for the answer, and those of them that were picked.
        message: result of the prefill of a request with `keep_slot`, until the request ends.
        admitted, first_token, ended: times of these events (`perf_counter`, in seconds).
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
    drafted: int = 0
    accepted: int = 0
    message: SlotMessage | None = None
    admitted: float | None = None
    first_token: float | None = None
    ended: float | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the submitted prompt, before a draft shortens it."""
        given = self.request.prompt
        return given.text_length if isinstance(given, Excerpt) else len(given)

    @property
    def text_tokens(self) -> Array:
        """[n] i64, tokens of the submitted prompt; of those to prefill where the others are not known."""
        given = self.request.prompt
        return np.asarray(self.prompt.tokens if isinstance(given, Excerpt) else given, np.int64)

    @property
    def deadline(self) -> float:
        """Time at which the request times out; infinite without a timeout."""
        timeout = self.request.timeout
        return float("inf") if timeout is None else self.submitted + timeout
