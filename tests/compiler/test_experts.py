"""Decoders with experts, compiled, against transformers: all levels, both interpreters, in chunks and in company."""

from __future__ import annotations

import pytest
import torch

from sscc.runtime.session import Session
from tests.families import EXPERTS, CompiledModel, Compiler, feed, greedy, random_tokens
from tests.test_families import EXACT, eager_generate
from tests.torch_session import TorchSession

NEW_TOKENS = 12


def native(program: CompiledModel) -> TorchSession:
    return TorchSession(Session.from_artifact(program.artifact, interpreter="native"))


@pytest.mark.parametrize("family", EXPERTS)
def test_experts_are_transformers_own(family: str, compiled: Compiler) -> None:
    """A prompt of two chunks, the second one partly padding."""
    program = compiled(family)
    prompt = random_tokens(10)
    tokens, logits = eager_generate(program.model, prompt, NEW_TOKENS)
    for session in (program.session(), native(program)):
        ours, our_logits = greedy(session, prompt, NEW_TOKENS)
        assert (our_logits - logits).abs().max() < EXACT
        assert ours == tokens
    assert len(set(tokens)) > 4, "a model that repeats itself shows little: take another seed"


def test_every_level_agrees(compiled: Compiler) -> None:
    prompt, tokens = random_tokens(10), random_tokens(4, seed=1)
    programs = (compiled("experts-in-groups", opt_level=level) for level in (0, 1, 2))
    zero, one, two = (feed(native(program), prompt, tokens) for program in programs)
    assert torch.equal(one, two)
    assert (zero - two).norm() / two.norm() < 1e-5


def test_company_changes_no_bit(compiled: Compiler) -> None:
    """Slots whose tokens go to the same experts share a block of rows."""
    program = compiled("experts-softmax")
    session, alone = native(program), native(program)
    prompts = [random_tokens(9, seed=seed) for seed in range(3)]
    for slot, prompt in enumerate(prompts):
        session.prefill(slot, prompt)
    for slot, prompt in enumerate(prompts):
        alone.prefill(slot, prompt)
        together = session.decode(dict.fromkeys(range(3), 5))[slot].clone()
        assert torch.equal(alone.decode({slot: 5})[slot], together)
        for other, again in enumerate(prompts):
            session.prefill(other, again)
