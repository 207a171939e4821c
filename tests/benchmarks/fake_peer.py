"""A runner that needs nothing installed; its type says how it behaves."""

from __future__ import annotations

import sys
import time

from benchmarks.peers.protocol import Measure, Setup, Unsupported, serve


class Fake(Measure):
    """A peer that takes 1 ms per step and 0.1 ms per token of a prompt."""

    def __init__(self, behaviour: str) -> None:
        self.behaviour = behaviour

    def decode(self, batch: int, context: int, steps: int) -> float:
        if self.behaviour == "dies":
            sys.exit(3)
        if self.behaviour == "hangs":
            time.sleep(60)
        if self.behaviour == "talks":
            print("not an answer")  # noqa: T201
        return steps * 1e-3

    def prefill(self, tokens: int) -> float:
        if self.behaviour == "decodes":
            raise Unsupported("it only decodes")
        return tokens * 1e-4


def make(setup: Setup) -> tuple[Fake, str]:
    if setup.dtype == "broken":
        raise RuntimeError("the model is too large\nsecond line")
    return Fake(setup.dtype), "1.0"


if __name__ == "__main__":
    serve(make)
