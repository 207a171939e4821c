"""What a runner and the harness say to each other: one JSON object a line, over the runner's stdin and stdout.

A runner is started as `python -m benchmarks.peers.NAME --model FOLDER --dtype TYPE --threads N`, in the peer's own
environment, and stays loaded. First it says `{"ready": true, "version": ..}`. Then it answers

    {"measure": "decode", "batch": B, "context": N, "steps": S}    S steps of B sequences that hold about N tokens
    {"measure": "prefill", "tokens": N}                            one prompt of N tokens, up to its logits

with `{"seconds": ..}`, or with `{"error": ..}` where the peer cannot do it. It ends when stdin does.
This file is imported by every peer's Python and needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

WARM_UP = 2  # steps before the timed ones


@dataclass(frozen=True)
class Setup:
    """Command line of a runner: the Hugging Face folder or GGUF file, the type of the weights, the threads to use."""

    model: Path
    dtype: str
    threads: int

    @property
    def exported(self) -> Path:
        """Where a runner keeps its own form of the model; not there before it has written it."""
        return self.model.with_name(f"{self.model.name}-{Path(sys.argv[0]).stem}-{self.dtype}")


class Unsupported(Exception):
    """The peer cannot do what was asked; the message says what."""


class Measure(ABC):
    """Answers the two requests with seconds."""

    @abstractmethod
    def decode(self, batch: int, context: int, steps: int) -> float: ...

    @abstractmethod
    def prefill(self, tokens: int) -> float: ...


class Stepper(Measure):
    """A peer that keeps its cache between requests: it is filled once, and every repeat decodes on from there.

    Decoding moves on from `context` by at most max(128, context / 8) positions, then the cache is filled anew.
    """

    def __init__(self) -> None:
        self._held: tuple[int, int] | None = None
        self._position = 0

    @abstractmethod
    def start(self, batch: int, context: int, room: int) -> None:
        """Fills an empty cache with `context` tokens in each of `batch` sequences; at most `room` steps follow."""

    @abstractmethod
    def step(self) -> None:
        """One token more in every sequence, up to its logits."""

    @abstractmethod
    def prompt(self, tokens: int) -> None:
        """One prompt of `tokens` tokens through an empty cache, up to the logits of the last."""

    def decode(self, batch: int, context: int, steps: int) -> float:
        room = max(steps + WARM_UP, 128, context // 8)
        if self._held != (batch, context) or self._position + steps + WARM_UP > room:
            self._held = None
            self.start(batch, context, room)
            self._held, self._position = (batch, context), 0
        for _ in range(WARM_UP):
            self.step()
        seconds = timed(lambda: [self.step() for _ in range(steps)])
        self._position += steps + WARM_UP
        return seconds

    def prefill(self, tokens: int) -> float:
        self._held = None
        return timed(lambda: self.prompt(tokens))


def timed(action: Callable[[], object]) -> float:
    """Wall seconds of `action()`."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def token_ids(count: int, vocab: int = 32_000) -> list[int]:
    """A prompt: numbers that look random, the same in every run, none of them a special token."""
    return [3 + (7919 * index + 13 * index * index) % (vocab - 3) for index in range(count)]


def setup() -> Setup:
    """The command line of a runner."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    words = parser.parse_args()
    return Setup(words.model.resolve(), words.dtype, words.threads)


def serve(make: Callable[[Setup], tuple[Measure, str]]) -> None:
    """Answers requests until stdin ends; `make` loads the peer and gives it with its version.

    stdout belongs to the protocol: what the peer's own code prints goes to stderr.
    """
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)
        try:
            measure, version = make(setup())
        except Exception as error:
            _say(answers, {"error": _line(error)})
            raise
        _say(answers, {"ready": True, "version": version})
        for line in sys.stdin:
            _say(answers, _answer(measure, json.loads(line)))


def _answer(measure: Measure, request: dict[str, Any]) -> dict[str, Any]:
    try:
        if request.pop("measure") == "decode":
            return {"seconds": measure.decode(**request)}
        return {"seconds": measure.prefill(**request)}
    except Exception as error:
        return {"error": _line(error)}


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _say(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()
