"""Requests whose prompts a draft shortens, one after another, in pieces between decode steps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator

from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine.job import Job
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.shortening import ScoredPrompt, Shortener

REMEMBERED = 16
"""Prompts whose scores are kept, for the same prompt again: several answers to one, or another attempt."""

Left = Excerpt | Array


class Drafts:
    """Used by the engine's thread alone.

    Attributes:
        waiting: requests whose prompts are not shortened yet, by their number; the first one is being worked on.
    """

    def __init__(self, shortener: Shortener) -> None:
        self.waiting: OrderedDict[int, Job] = OrderedDict()
        self._shortener = shortener
        self._steps = shortener.draft.steps_of_a_chunk
        self._work: Generator[None, None, ScoredPrompt] | None = None
        self._known: OrderedDict[tuple[bytes, str | None], ScoredPrompt] = OrderedDict()

    def add(self, job: Job) -> None:
        """A request waits for its prompt to be shortened."""
        self.waiting[job.id] = job

    def drop(self, job: Job) -> None:
        """A request has ended; nothing happens if its prompt is shortened, or was never to be."""
        if self.waiting and job is self.first and self._work is not None:
            self._work.close()
            self._work = None
        self.waiting.pop(job.id, None)

    def step(self) -> Left | None:
        """Does as much for the first request as one chunk takes through the draft's layers. What is left of its prompt
        once that is known: then it waits no longer; None where there is more to do.

        Raises UsageError where the draft cannot read the prompt; the request is to be dropped then.
        """
        job, request = self.first, self.first.request
        assert request.keep is not None
        key = (job.prompt.key, request.text)
        scored = self._known.get(key)
        if scored is None:
            if self._work is None:
                prompt = job.prompt.tokens
                self._work = self._shortener.scoring(prompt, request.text, special=request.special, steps=self._steps)
            try:
                next(self._work)
                return None
            except StopIteration as end:
                scored = self._known[key] = end.value
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        self._work = None
        del self.waiting[job.id]
        return scored.left(request.keep)

    @property
    def first(self) -> Job:
        """The request whose prompt is being shortened."""
        return next(iter(self.waiting.values()))
