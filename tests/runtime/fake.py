"""An interpreter that computes nothing real: enough to test what the host does around a program."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from sscc.ir.geometry import Geometry
from sscc.ir.schedule import Program
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.backends.interpreter import HostTensor, InProcess, MemoryUse, StageName, Watcher
from sscc.runtime.session.session import Session
from tests.runtime.signatures import altered, uniform

GEOMETRY = Geometry(sink=2, recent=4, topk=3, obs=2, pool=3, pool_mode="avg", max_context=20)
SIGNATURE = uniform(
    GEOMETRY,
    batch=2,
    prefill_chunk=8,
    dtype="f32",
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=4,
    value_dim=4,
    vocab_size=11,
    eos_token_ids=(7,),
)
LAYERED = altered(SIGNATURE, geometry=GEOMETRY.with_layers([3, 1]))


class HostInterpreter(InProcess):
    """The members of `Interpreter` that tests have no use for. Derived classes have `tensor`, `run` and `reset`."""

    program: Program | None = None
    stages: frozenset[StageName] = frozenset()

    def tensor(self, name: str) -> Array:
        raise NotImplementedError

    def device_tensor(self, name: str) -> HostTensor:
        return HostTensor(self.tensor(name))

    def watch(self, stages: Collection[StageName], watcher: Watcher | None) -> None:
        raise NotImplementedError

    def memory(self) -> MemoryUse | None:
        return None


class FakeInterpreter(HostInterpreter):
    """Prefill walks the cursor as a program does; the next token is always (token + 1) mod V."""

    def __init__(self, signature: Signature = SIGNATURE) -> None:
        self.signature = signature
        s, g = signature, signature.geometry
        main = s.plan.main
        slots = (s.batch, main.kv_heads)
        rows = (*slots, g.packed_rows) if g.packed else (s.layers, *slots, g.budget)
        shape = (*rows, main.key.width)
        generator = np.random.default_rng(0)
        self.states: dict[str, Array] = {
            "k_cache": generator.standard_normal(shape, np.float32),
            "v_cache": generator.standard_normal(shape, np.float32),
            "k_scratch": np.zeros((1, main.kv_heads, s.scratch_tokens, main.key.width), np.float32),
            "v_scratch": np.zeros((1, main.kv_heads, s.scratch_tokens, main.key.width), np.float32),
            "selected": np.array([[[2, 4, 5], [3, 4, 5]], [[2, 3, 4], [2, 3, 5]]]),
        }
        self.calls: list[tuple[str, dict[str, Any], dict[str, int]]] = []

    def tensor(self, name: str) -> Array:
        return self.states[name]

    def reset(self) -> None:
        self.calls.clear()

    def before_call(self) -> None:
        """Begin a call; other interpreters override this."""

    def run(
        self,
        entry: str,
        inputs: Mapping[str, Array],
        scalars: Mapping[str, int] | None = None,
        *,
        copy: bool = True,
    ) -> tuple[dict[str, Array], tuple[int, ...]]:
        self.before_call()
        self.calls.append((entry, {name: value.tolist() for name, value in inputs.items()}, dict(scalars or {})))
        if entry == "decode":
            return {"logits": np.stack([self._logits(token) for token in inputs["token"][:, 0].tolist()])}, ()
        assert scalars is not None
        last = int(inputs["tokens"][0, scalars["length"] - 1])
        return {"prefill_logits": self._logits(last)[None]}, moved_cursor(self.signature, scalars)

    def _logits(self, token: int) -> Array:
        logits = np.zeros(self.signature.vocab_size, np.float32)
        logits[(token + 1) % self.signature.vocab_size] = 1.0
        return logits


def moved_cursor(signature: Signature, scalars: Mapping[str, int]) -> tuple[int, int]:
    """The phase and the chunk after a call of prefill with these scalars."""
    phase, chunk = scalars["phase"], scalars["chunk"]
    chunks = signature.chunks(scalars["length"]) - scalars["reused"]
    for _ in range(scalars["steps"]):
        if phase == signature.layers + 2:
            break
        chunk += 1
        if phase == signature.layers + 1 or chunk == chunks:
            phase, chunk = phase + 1, 0
    return phase, chunk


def fake_session(interpreter: FakeInterpreter | None = None) -> Session:
    return Session(SIGNATURE, interpreter or FakeInterpreter())
