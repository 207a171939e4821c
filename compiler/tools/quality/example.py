"""What every task makes: a prompt, what is expected of it, and how that is scored."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Example:
    """One prompt and its answers, or one text to predict.

    Attributes:
        task: as tables name it.
        length: tokens that were asked for; 0 where the example brings its own length.
        index: number of the example within its task and length, from 0.
        prompt: tokens that are prefilled.
        answers: what the metric looks for.
        metric: a name of `METRICS` (answer_scores.py); "nats" where `continuation` is scored instead,
            "tokens" where the answer is `answer_tokens`.
        max_new_tokens: how many tokens to generate.
        depth: where the first answer stands in the prompt, 0 (start) to 1 (end); None where it has no one place.
        text: the prompt as text; "" where there is none.
        answer_tokens: what a prompt of tokens without text must be continued with.
        continuation: tokens that follow the prompt, to be predicted one by one.
        spoken: tokens of an answer that is under way: steps feed them after the prompt, before any are generated.
    """

    task: str
    length: int
    index: int
    prompt: tuple[int, ...]
    answers: tuple[str, ...]
    metric: str
    max_new_tokens: int
    depth: float | None = None
    text: str = ""
    answer_tokens: tuple[int, ...] = ()
    continuation: tuple[int, ...] = ()
    spoken: tuple[int, ...] = ()

    @property
    def group(self) -> str:
        """Examples of one group are averaged: the task and the length."""
        return f"{self.task}@{self.length}" if self.length else self.task

    @property
    def name(self) -> str:
        return f"{self.group}#{self.index}"

    @property
    def positions(self) -> int:
        """The context that it needs, in tokens; the same for every example of a task and a length."""
        context = max(len(self.prompt) + len(self.spoken), self.length)
        return context + max(self.max_new_tokens, len(self.continuation))

    @property
    def steps(self) -> int:
        """The most tokens that follow the prompt."""
        return len(self.spoken) + max(self.max_new_tokens, len(self.continuation))

    @property
    def prompt_sha256(self) -> str:
        """Of all tokens that are given, in hexadecimal digits."""
        tokens = (self.prompt, self.continuation, self.spoken) if self.spoken else (self.prompt, self.continuation)
        return hashlib.sha256(repr(tokens).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what another program needs to run the same example."""
        return {
            "name": self.name,
            "task": self.task,
            "length": self.length,
            "index": self.index,
            "prompt_tokens": list(self.prompt),
            "prompt": self.text,
            "answers": list(self.answers),
            "answer_tokens": list(self.answer_tokens),
            "continuation": list(self.continuation),
            "spoken": list(self.spoken),
            "metric": self.metric,
            "max_new_tokens": self.max_new_tokens,
        }
