"""An example of a task: a prompt, the expected answer, and its metric."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Example:
    """One prompt and its answers, or one text to predict.

    Attributes:
        task: name of the task in tables.
        length: requested length in tokens; 0 if the example has its own length.
        index: number of the example within its task and length, from 0.
        prompt: tokens that are prefilled.
        answers: expected answers for the metric.
        metric: a name of `METRICS` (answer_scores.py); "nats" if `continuation` is scored instead, "tokens" if the
            answer is `answer_tokens`.
        max_new_tokens: number of tokens to generate.
        depth: position of the first answer in the prompt, 0 (start) to 1 (end); None without a single position.
        text: text of the prompt; "" if there is none.
        answer_tokens: expected continuation of a prompt of tokens without text.
        continuation: tokens that follow the prompt, to be predicted one by one.
        spoken: first tokens of the answer, which are fed by decode steps after the prompt before tokens are generated.
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
        """Task and length; the scores of a group are averaged."""
        return f"{self.task}@{self.length}" if self.length else self.task

    @property
    def name(self) -> str:
        return f"{self.group}#{self.index}"

    @property
    def positions(self) -> int:
        """Required context in tokens, equal for all examples of a task and length."""
        context = max(len(self.prompt) + len(self.spoken), self.length)
        return context + max(self.max_new_tokens, len(self.continuation))

    @property
    def steps(self) -> int:
        """Maximum number of tokens that follow the prompt."""
        return len(self.spoken) + max(self.max_new_tokens, len(self.continuation))

    @property
    def prompt_sha256(self) -> str:
        """SHA-256 of the prompt, the first tokens of the answer and the continuation, in hexadecimal digits."""
        tokens = (self.prompt, self.continuation, self.spoken) if self.spoken else (self.prompt, self.continuation)
        return hashlib.sha256(repr(tokens).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the example as a JSON object that is sufficient for another program to run it."""
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
