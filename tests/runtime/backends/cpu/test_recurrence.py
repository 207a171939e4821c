"""Recurrences as native code, against the reference interpreter, which takes token by token in f64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sscc.ir.operations import RecurrentChunk, RecurrentStep
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.recurrence import lower_recurrent_chunk, lower_recurrent_step
from sscc.runtime.backends.reference import recurrence
from tests.runtime.backends.cpu.cpus import CPUS, HOST
from tests.runtime.backends.cpu.harness_prefill import CompiledStages, check_pieces, like, strided

# Heads, groups of keys, numbers of a key and of a value, decays of a head, rates, the delta rule.
KINDS: dict[str, tuple[int, int, int, int, int, bool, bool]] = {
    "delta rule": (4, 2, 20, 40, 1, False, True),
    "wide delta rule": (2, 2, 128, 160, 1, False, True),
    "a decay of each channel": (3, 3, 40, 24, 40, False, True),
    "delta rule of one number": (3, 1, 8, 1, 1, False, True),
    "state-space duality": (6, 2, 33, 70, 1, False, False),
    "lightning attention": (2, 2, 16, 16, 1, False, False),
    "selective scan": (70, 1, 16, 1, 1, True, False),
    "wide selective scan": (5, 1, 20, 1, 1, True, False),
    "channels of columns": (5, 5, 6, 1, 6, False, False),
    "gated units": (50, 1, 1, 1, 1, False, False),
    "gated units of several keys": (6, 2, 1, 1, 1, False, False),
}
SLOTS, CHUNK = 3, 37


def operands(kind: str, slots: int, tokens: int) -> dict[str, torch.Tensor]:
    heads, groups, depth, width, decays, rated, delta = KINDS[kind]
    torch.manual_seed(len(kind))
    key = torch.nn.functional.normalize(torch.randn(slots, tokens, groups, depth), dim=3)
    tensors = {
        "query": torch.randn(slots, tokens, groups, depth),
        "key": strided(key, (0, 2, 1, 3)),
        "value": torch.randn(slots, tokens, heads, width),
        "decay": -3 * torch.rand(slots, tokens, heads, decays) ** 4,
        "state": torch.randn(slots, heads, depth, width),
        "out": torch.full((slots, tokens, heads, width), 9.0),
    }
    tensors["decay"][:, 3:4] = -torch.inf  # a token that clears the state
    tensors |= {"rate": torch.rand(heads, depth) + 0.1} if rated else {}
    return tensors | ({"beta": torch.rand(slots, tokens, heads)} if delta else {})


def step_of(record: Any, tensors: dict[str, torch.Tensor]) -> Any:
    own = {"active": "active"} if record is RecurrentStep else {"start": "start", "length": "n"}
    return record(**{name: name for name in tensors if name != "active"}, **own)


def reference(function: Any, tensors: dict[str, torch.Tensor], **scalars: int) -> dict[str, torch.Tensor]:
    wide = {name: x if x.dtype is torch.bool else x.double() for name, x in tensors.items()}
    function(**{"rate": None, "beta": None, **wide}, **scalars, wide=torch.float64)
    return wide


def check_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert (ours - theirs).abs().max() <= 3e-6 * theirs.abs().max()


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_the_references(kind: str, features: Features) -> None:
    tensors = operands(kind, SLOTS, 1) | {"active": torch.tensor([True, False, True])}
    compiled = CompiledStages(step_of(RecurrentStep, tensors), lower_recurrent_step, tensors, [], features)
    got = check_pieces(compiled, {name: like(x) for name, x in tensors.items()}, {}, ["state", "out"])
    want = reference(recurrence.recurrent_step, tensors)
    check_close(got["state"], want["state"])
    check_close(got["out"][::2], want["out"][::2])
    assert torch.equal(got["state"][1], tensors["state"][1])
    assert got["out"][1].isfinite().all()


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_is_the_references(kind: str, features: Features) -> None:
    """The first chunk, which begins with zeros; one behind it; and a last one that is partly padding."""
    tensors = operands(kind, 1, CHUNK)
    step = step_of(RecurrentChunk, tensors)
    compiled = CompiledStages(step, lower_recurrent_chunk, tensors, ["start", "n"], features)
    for start, length in ((0, 2 * CHUNK), (CHUNK, 2 * CHUNK), (CHUNK, CHUNK + 21), (CHUNK, CHUNK)):
        live = min(length - start, CHUNK)
        memory = {name: like(x) for name, x in tensors.items()}
        for name in ("query", "key", "value", "decay"):
            memory[name][:, live:] = torch.nan
        if start == 0:
            memory["state"].fill_(torch.nan)
        got = check_pieces(compiled, memory, {"start": start, "n": length}, ["state", "out"])
        want = reference(recurrence.recurrent_chunk, memory, start=start, length=length)
        check_close(got["state"], want["state"])
        if live:
            check_close(got["out"][:, :live], want["out"][:, :live])
        assert (got["out"][:, live:] == 9.0).all()


@pytest.mark.parametrize("kind", ["delta rule", "a decay of each channel", "wide selective scan", "gated units"])
def test_nothing_outside_of_operands_and_scratch_is_touched(kind: str) -> None:
    tensors = operands(kind, 1, CHUNK)
    step = step_of(RecurrentChunk, tensors)
    compiled = CompiledStages(step, lower_recurrent_chunk, tensors, ["start", "n"], HOST, checked=True)
    compiled.run({name: like(x) for name, x in tensors.items()}, {"start": CHUNK, "n": CHUNK + 30})
    tensors = operands(kind, SLOTS, 1) | {"active": torch.tensor([True, False, True])}
    compiled = CompiledStages(step_of(RecurrentStep, tensors), lower_recurrent_step, tensors, [], HOST, checked=True)
    compiled.run({name: like(x) for name, x in tensors.items()}, {})
