"""Protocol between the harness and a runner: JSON objects, one per line, over the runner's stdin and stdout.

A runner is started as `python -m benchmarks.peers.NAME --model FOLDER --dtype TYPE --threads N` in the peer's
environment, and stays loaded. It first prints `{"ready": true, "version": ..}`. Then it answers

    {"measure": "decode", "batch": B, "context": N, "steps": S}    S steps of B sequences of about N tokens
    {"measure": "prefill", "tokens": N}                            a prompt of N tokens, up to its logits

with `{"seconds": ..}`, or with `{"error": ..}` if the peer cannot run it. It ends when stdin is closed.
Every peer's Python imports this file, which needs only the standard library.
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
    """Command line of a runner: Hugging Face folder or GGUF file, type of weights, number of threads."""

    model: Path
    dtype: str
    threads: int

    @property
    def exported(self) -> Path:
        """Path of the runner's own form of the model, which the runner writes."""
        return self.model.with_name(f"{self.model.name}-{Path(sys.argv[0]).stem}-{self.dtype}")


class Unsupported(Exception):
    """A request that the peer cannot run, with the reason."""


class Measure(ABC):
    """A runner: it returns the seconds of the two requests."""

    @abstractmethod
    def decode(self, batch: int, context: int, steps: int) -> float: ...

    @abstractmethod
    def prefill(self, tokens: int) -> float: ...


class Stepper(Measure):
    """A peer that keeps its cache between requests, so that repeats continue decoding.

    After max(128, context / 8) positions beyond `context` the cache is filled again.
    """

    def __init__(self) -> None:
        self._held: tuple[int, int] | None = None
        self._position = 0

    @abstractmethod
    def start(self, batch: int, context: int, room: int) -> None:
        """Fill an empty cache with `context` tokens in each of `batch` sequences, with room for `room` steps."""

    @abstractmethod
    def step(self) -> None:
        """Decode one token in every sequence, up to its logits."""

    @abstractmethod
    def prompt(self, tokens: int) -> None:
        """Prefill a prompt of `tokens` tokens into an empty cache, up to the logits of the last."""

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
    """Return the wall seconds of a call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def token_ids(count: int, vocab: int = 32_000) -> list[int]:
    """Return a pseudo-random prompt without special tokens, the same in every run."""
    return [3 + (7919 * index + 13 * index * index) % (vocab - 3) for index in range(count)]


def setup() -> Setup:
    """Return the parsed command line of a runner."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    words = parser.parse_args()
    return Setup(words.model.resolve(), words.dtype, words.threads)


def serve(make: Callable[[Setup], tuple[Measure, str]]) -> None:
    """Answer requests until stdin is closed.

    stdout is reserved for the protocol; other output of the peer goes to stderr.

    Args:
        make: function that loads the peer, and returns it with its version.
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
