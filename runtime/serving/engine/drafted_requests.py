"""Requests whose prompts a draft shortens, one at a time, in steps between decode steps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator

from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine.request_state import RequestState
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.shortening import ScoredPrompt, Shortener

REMEMBERED = 16
"""Number of prompts whose scores are kept for later requests with the same prompt (several answers, or a retry)."""

Left = Excerpt | Array


class Drafts:
    """Queue of requests for the draft. Used by the engine's thread only.

    Attributes:
        waiting: requests whose prompts have not been shortened yet, by their id; the draft is working on the first one.
    """

    def __init__(self, shortener: Shortener) -> None:
        self.waiting: OrderedDict[int, RequestState] = OrderedDict()
        self._shortener = shortener
        self._steps = shortener.draft.steps_of_a_chunk
        self._work: Generator[None, None, ScoredPrompt] | None = None
        self._known: OrderedDict[tuple[bytes, str | None], ScoredPrompt] = OrderedDict()

    def add(self, state: RequestState) -> None:
        """Add a request."""
        self.waiting[state.id] = state

    def drop(self, state: RequestState) -> None:
        """Remove a request that has ended; does nothing if it is not in the queue."""
        if self.waiting and state is self.first and self._work is not None:
            self._work.close()
            self._work = None
        self.waiting.pop(state.id, None)

    def step(self) -> Left | None:
        """Do the work of one chunk in all layers of the draft for the first request. Return its shortened prompt when
        that is complete, which removes the request from the queue; None if there is more to do.

        Raises UsageError if the draft cannot read the prompt; the caller must then drop the request.
        """
        state, request = self.first, self.first.request
        assert request.keep is not None
        key = (state.prompt.key, request.text)
        scored = self._known.get(key)
        if scored is None:
            if self._work is None:
                prompt = state.prompt.tokens
                self._work = self._shortener.scoring(prompt, request.text, special=request.special, steps=self._steps)
            try:
                next(self._work)
                return None
            except StopIteration as end:
                scored = self._known[key] = end.value
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        self._work = None
        del self.waiting[state.id]
        return scored.left(request.keep)

    @property
    def first(self) -> RequestState:
        """The request whose prompt is being shortened."""
        return next(iter(self.waiting.values()))
