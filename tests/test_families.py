"""Compiled decoders of every family against transformers itself and against an independent SnapStream.

Everything runs through the artifact: `compile_model`, the schedule, the reference interpreter, a `Session`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.agreement import NEAR, SCORE_TIE, agreement, check_compressed, check_generation, eager_generate
from tests.families import (
    FAMILIES,
    GEOMETRY,
    SCORED,
    Compiler,
    caches,
    feed,
    random_model,
    random_tokens,
    selected,
)
from tests.tiny_configs import MOST_USED, VARIATIONS, variations

NEW_TOKENS = 64
EXACT_TOKENS = 30
"""Number of tokens compared one by one with transformers' own, up to the last row of sinks and ring. In bf16 the mean
error of more tokens is compared."""
SELECTED_STEPS = 10


# ------------------------------------------------------------------------------------ room for everything (a)


@pytest.mark.parametrize("family", [*FAMILIES, *SCORED, "two-rotary-tables"])
def test_with_room_for_everything_it_is_transformers_generate(family: str, compiled: Compiler) -> None:
    program = compiled(family)
    prompt = random_tokens(GEOMETRY.sink_recent - EXACT_TOKENS)
    check_generation(program.model, [program.session(checked=family == "llama")], prompt, EXACT_TOKENS)


# One type for each thing that capture does for some classes alone: attention that is written out, in a class of its own
# table too, with ALiBi, with masks of its own; positions that are counted, and read in every layer; complex numbers;
# text decoders of composite models.
SINGULAR = {
    **dict.fromkeys(("rembert", "falcon", "bloom", "gpt_neo", "bart", "ministral3", "deepseek_v2"), ""),
    **{"gemma3": "gemma3_text", "emu3": "emu3_text_model"},
}


@pytest.mark.parametrize("model_type", SINGULAR)
def test_tiny_models_of_types_that_capture_does_something_for(model_type: str, tmp_path: Path) -> None:
    """The comparison that `benchmarks/coverage.py` makes for every type."""
    assert agreement(model_type, tmp_path) == SINGULAR[model_type]


# A model type for hybrid layers, here with attention only; its gate is a strided part of a product.
VARIED = (("qwen3_5_text", "every layer attends"),)


@pytest.mark.parametrize(("model_type", "variation"), VARIED)
def test_tiny_models_of_types_with_other_fields(model_type: str, variation: str, tmp_path: Path) -> None:
    """The comparison that `benchmarks/coverage.py --fields` makes for the most used types."""
    assert agreement(model_type, tmp_path, variation) == ""


def test_every_variation_is_of_some_type() -> None:
    varied = [name for model_type in (*MOST_USED, VARIED[0][0]) for name in variations(model_type)]
    assert set(varied) == set(VARIATIONS)


@pytest.mark.parametrize("family", ["llama", "gpt-neox"])
def test_bf16_is_as_close_to_the_truth_as_eager_bf16(family: str, compiled: Compiler) -> None:
    """bf16 keeps 8 bits, and the order of roundings is nobody's to define: no fixed distance to transformers can be
    asked for. What can: against f32 arithmetic on the same bf16 weights, our error is that of transformers' own bf16
    run, within a factor of 1.5 (root mean square over 64 x V logits; measured: 0.73 to 1.01 over all families)."""
    program = compiled(family, dtype="bf16")
    prompt = random_tokens(GEOMETRY.sink_recent - NEW_TOKENS)
    tokens, theirs = eager_generate(program.model, prompt, NEW_TOKENS)
    ours = feed(program.session(), prompt, tokens[:-1]).float()
    exact_model = random_model(family, torch.bfloat16, exact=True)
    with torch.no_grad():
        exact = exact_model(input_ids=torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
    our_error, their_error = ((logits - exact).square().mean().sqrt() for logits in (ours, theirs))
    assert 0 < our_error <= 1.5 * their_error
    assert their_error < 0.05 * exact.square().mean().sqrt()
    gap = theirs.topk(2).values.diff().abs()[:, 0]
    same = ours.argmax(-1) == theirs.argmax(-1)
    assert (same | (gap <= 4 * their_error)).all(), "a different token that is no near tie"
    assert same.float().mean() > 0.9


# ------------------------------------------------------------------------------------- a compressed cache (b)


@pytest.mark.parametrize("family", [*FAMILIES, *SCORED])
def test_with_less_room_it_is_the_independent_snapstream(family: str, compiled: Compiler) -> None:
    program = compiled(family)
    check_compressed(program, program.session(checked=family == "llama"), SELECTED_STEPS)


# --------------------------------------------------------------------------------------------- many slots (c)


def test_one_graph_serves_every_mix_of_lengths(compiled: Compiler) -> None:
    """Three slots: far beyond the budget, exactly SR, and a single token; each equals the independent SnapStream."""
    program = compiled("llama")
    session = program.session(checked=True)
    prompts = [random_tokens(n) for n in (130, GEOMETRY.sink_recent, 1)]
    oracles = [program.oracle() for _ in prompts]
    for slot, (prompt, oracle) in enumerate(zip(prompts, oracles, strict=True)):
        session.prefill(slot, prompt)
        oracle.prefill(prompt)
        assert oracle.count_near_ties(selected(session), SCORE_TIE) == 0
        oracle.adopt(selected(session))
    for step in range(6):
        tokens = random_tokens(3, seed=step)
        logits = session.decode(dict(enumerate(tokens)))
        for slot, (token, oracle) in enumerate(zip(tokens, oracles, strict=True)):
            assert (logits[slot] - oracle.decode(token)).abs().max() < NEAR


def test_permuting_slots_permutes_outputs(compiled: Compiler) -> None:
    """Bit for bit: logits and cache bytes."""
    program = compiled("llama")
    prompts = [random_tokens(n) for n in (130, 40, 81)]
    steps = [random_tokens(3, seed=step) for step in range(5)]
    order = [2, 0, 1]  # slot s of the second run holds what slot order[s] held
    straight, permuted = program.session(), program.session()
    for slot in range(3):
        straight.prefill(slot, prompts[slot])
        permuted.prefill(slot, prompts[order[slot]])
    for tokens in steps:
        one = straight.decode(dict(enumerate(tokens)))
        other = permuted.decode({slot: tokens[order[slot]] for slot in range(3)})
        assert torch.equal(other, one[order])
    for slot in range(3):
        assert torch.equal(caches(permuted, slot), caches(straight, order[slot]))


def test_a_slot_does_not_depend_on_the_others(compiled: Compiler) -> None:
    """Within one program a slot's logits and cache are the same bits, whatever else runs. Between programs of another
    batch torch's product may round differently, so there the reference interpreter promises 1e-5 normwise only."""
    program, alone = compiled("llama"), compiled("llama", batch=1)
    prompt, tokens = random_tokens(130), random_tokens(6, seed=1)
    solo, crowded, single = program.session(), program.session(), alone.session()
    expected = feed(solo, prompt, tokens, slot=1)
    for slot, length in ((0, 90), (2, 5)):
        crowded.prefill(slot, random_tokens(length))
    rows = [crowded.prefill(1, prompt)]
    for step, token in enumerate(tokens):
        rows.append(crowded.decode({0: step, 1: token, 2: 2 * step} if step % 2 else {1: token, 2: 3})[1].clone())
    assert torch.equal(torch.stack(rows), expected)
    assert torch.equal(caches(crowded, 1), caches(solo, 1))
    other = feed(single, prompt, tokens)
    assert (other - expected).norm() / expected.norm() < 1e-5


def test_inactive_slots_write_nothing(compiled: Compiler) -> None:
    session = compiled("llama").session(checked=True)
    session.prefill(0, random_tokens(130))
    session.prefill(2, random_tokens(30))
    before = {slot: caches(session, slot) for slot in range(3)}
    for token in random_tokens(5):
        logits = session.decode({2: token})
        assert logits.isfinite().all()
    assert torch.equal(caches(session, 0), before[0])
    assert torch.equal(caches(session, 1), before[1])
    assert not torch.equal(caches(session, 2), before[2])
    assert not before[1].any(), "a slot that was never used holds zeros"


# ------------------------------------------------------------------------------------------ chunks (d) and (e)


def test_chunk_size_changes_nothing(compiled: Compiler) -> None:
    """Selected indices are equal; logits agree to 1e-5 normwise in f32, and to 1e-12 computed in f64: only rounding."""
    prompt, tokens = random_tokens(130), random_tokens(4, seed=1)
    for precision, tolerance in (("f32", 1e-5), ("f64", 1e-12)):
        runs = {}
        for chunk in (7, 64):
            session = compiled("llama", chunk=chunk).session(precision=precision)
            runs[chunk] = (feed(session, prompt, tokens), torch.stack(selected(session)))
        (ours, selections), (logits, indices) = runs[7], runs[64]
        assert (indices >= 0).all()
        assert torch.equal(selections, indices)
        assert (ours - logits).norm() / logits.norm() < tolerance


@pytest.mark.parametrize("steps", [1, 3])
def test_prefill_in_pieces_with_decode_steps_in_between(steps: int, compiled: Compiler) -> None:
    """Byte for byte the cache and the logits of an uninterrupted prefill, and of undisturbed decode steps."""
    program = compiled("llama")
    prompt, neighbour = random_tokens(130), random_tokens(85)
    whole, pieces = program.session(), program.session(checked=steps == 3)
    for session in (whole, pieces):
        session.prefill(0, neighbour)
    logits = whole.prefill(1, prompt)
    fed: list[Tensor] = []
    pieces.start_prefill(1, prompt)
    calls = 1
    while not pieces.step_prefill(steps):
        fed.append(pieces.decode({0: calls % 7})[0].clone())
        calls += 1
    assert calls == -(-whole.signature.prefill_steps(len(prompt)) // steps)
    assert torch.equal(pieces.prefill_logits, logits)
    assert torch.equal(caches(pieces, 1), caches(whole, 1))
    undisturbed = [whole.decode({0: call % 7})[0].clone() for call in range(1, calls)]
    assert torch.equal(torch.stack(fed), torch.stack(undisturbed))
    assert torch.equal(caches(pieces, 0), caches(whole, 0))
