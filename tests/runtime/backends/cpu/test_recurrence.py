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
    wide = {name: x.double() if x.is_floating_point() else x.clone() for name, x in tensors.items()}
    behind = dict.fromkeys(("pending", "held", "position")) if function is recurrence.recurrent_step else {}
    function(**{"rate": None, "beta": None, **behind, **wide}, **scalars, wide=torch.float64)
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
    assert (got["out"][1] == 0).all()


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_is_the_references(kind: str, features: Features) -> None:
    """Compared are the first chunk, which begins with zeros, the second one, and a last one with padding."""
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


PENDING = 4
"""Tokens of a slot whose inputs are kept."""


def drafted_operands(kind: str, tokens: int) -> dict[str, torch.Tensor]:
    """Operands of a step of several tokens: the slots have 2 pending inputs, no active token, and 3 pending inputs."""
    heads, _, depth, width, decays, _, delta = KINDS[kind]
    tensors = {
        name: x.flatten(0, 1)[:, None] if name not in ("state", "rate") else x
        for name, x in operands(kind, SLOTS, tokens).items()
    }
    torch.manual_seed(1)
    pending = torch.randn(SLOTS, heads, PENDING, depth + width + decays + 1)
    pending[..., depth + width : -1] = -3 * torch.rand(SLOTS, heads, PENDING, decays) ** 4
    pending[..., -1] = torch.rand(SLOTS, heads, PENDING) if delta else 0.0
    position = torch.tensor([9, 0, 3])[:, None] + torch.arange(tokens)
    active = torch.arange(tokens) < torch.tensor([min(tokens, 2), 0, tokens])[:, None]
    held = torch.tensor([7, 5, 0])[:, None].expand(SLOTS, heads).contiguous()
    flat = {"position": (position * active).flatten(), "active": active.flatten()}
    return tensors | {"pending": pending, "held": held} | flat


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_with_pending_inputs_is_the_references(kind: str, tokens: int, features: Features) -> None:
    tensors = drafted_operands(kind, tokens)
    compiled = CompiledStages(step_of(RecurrentStep, tensors), lower_recurrent_step, tensors, [], features)
    written = ["state", "out", "pending", "held"]
    got = check_pieces(compiled, {name: like(x) for name, x in tensors.items()}, {}, written)
    want = reference(recurrence.recurrent_step, tensors)
    for name in written[:3]:
        check_close(got[name], want[name])
    assert torch.equal(got["held"], want["held"].long())
    assert torch.equal(got["state"][1], tensors["state"][1])
    assert (got["out"][~tensors["active"]] == 0).all()


@pytest.mark.parametrize("kind", ["delta rule", "a decay of each channel", "wide selective scan", "gated units"])
@pytest.mark.parametrize("held", [-(2**62), -1, 2**62])
def test_an_impossible_number_of_positions_touches_nothing_else(kind: str, held: int) -> None:
    for tokens in (1, 3):
        tensors = drafted_operands(kind, tokens)
        tensors["held"].fill_(held)
        step = step_of(RecurrentStep, tensors)
        compiled = CompiledStages(step, lower_recurrent_step, tensors, [], HOST, checked=True)
        compiled.run({name: like(x) for name, x in tensors.items()}, {})
