"""Layers that attend to the K and V of earlier ones, and layers with inputs of their own (Gemma 3n, Gemma 4): compiled
programs against transformers, against the independent SnapStream and against the definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sscc.compiler.frontend.eager import EagerQuerySelection, EagerSnapStream
from sscc.ir.schedule import launches
from tests.agreement import EXACT, SCORE_TIE, eager_generate
from tests.families import GEOMETRY, Compiler, feed, random_model, random_tokens
from tests.native import native_session

PROMPT, TOKENS = random_tokens(40), random_tokens(12, seed=1)
SMALL = replace(GEOMETRY, recent=9, topk=5)
KINDS = {
    "compact": SMALL,
    "indexed": replace(SMALL, rows="indexed"),
    "query": replace(SMALL, rows="indexed", policy="query", key_bits=2),
}
LEVELS = {"compact": (0, 1, 2)}
"""Levels compiled per way to keep rows; only -O2 for ways that are not listed."""
TOLERANCE, CLOSE = 1e-4, 1e-5
"""Of a row of logits: sums in another order than PyTorch's, and of levels and interpreters among themselves."""


def eager(family: str, kind: str) -> torch.Tensor:
    """Logits after the prompt and each token, by the definition."""
    model, g, sources = random_model(family), KINDS[kind], SOURCES[family]
    model.set_attn_implementation("sscc")
    run: EagerSnapStream = EagerSnapStream(model, g, sources=sources)
    if g.by_query:
        run = EagerQuerySelection(model, g, g.key_bits, sources=sources)
    rows = torch.stack([run.prefill(PROMPT), *(run.decode(token) for token in TOKENS)])
    model.set_attn_implementation("eager")
    return rows


SOURCES = {
    "shared-in-turns": {2: 0, 3: 1, 4: 0, 5: 1},
    "shared-alone": {2: 1, 3: 1},
    "several-hidden-states": {2: 0, 3: 1},
}


@pytest.mark.parametrize("family", ["shared-in-turns", "several-hidden-states"])
def test_with_room_for_everything_it_is_transformers_generate(family: str, compiled: Compiler) -> None:
    """The prompt is longer than the windows."""
    program = compiled(family)
    assert dict(program.artifact.signature.plan.sources) == SOURCES[family]
    tokens, logits = eager_generate(program.model, PROMPT, 20)
    ours = feed(native_session(program.artifact), PROMPT, tokens[:-1])
    assert (ours - logits).abs().max() < EXACT
    assert ours.argmax(1).tolist() == tokens
    assert len(set(tokens)) > 2, "a model that repeats itself shows little: take another seed"


@pytest.mark.parametrize("kind", KINDS)
def test_beyond_the_budget_it_is_the_definition(kind: str, compiled: Compiler) -> None:
    """The definition is compared at every level and on both interpreters."""
    programs = [compiled("shared-in-turns", KINDS[kind], opt_level=level) for level in LEVELS.get(kind, (2,))]
    *others, rows = [feed(native_session(program.artifact), PROMPT, TOKENS) for program in programs]
    expected = eager("shared-in-turns", kind)
    assert ((rows - expected).norm(dim=1) < TOLERANCE * expected.norm(dim=1)).all()
    for looped, plain in zip(others[1:], others[:1], strict=True):
        assert torch.equal(looped, rows)
        assert (plain - rows).norm() < CLOSE * rows.norm()
    reference = feed(programs[-1].session(checked=True), PROMPT, TOKENS[:2])
    assert (reference - rows[:3]).norm() < CLOSE * rows[:3].norm()


def test_a_layer_that_shares_sees_what_the_other_ones_prompt_selected(compiled: Compiler) -> None:
    """The results are those of the independent SnapStream."""
    program = compiled("shared-alone")
    session, oracle = native_session(program.artifact), program.oracle()
    prompt = random_tokens(130)
    first = session.prefill(0, prompt)
    assert (first - oracle.prefill(prompt)).abs().max() < EXACT
    picks = [session.interpreter.tensor(name)[0].clone() for name in ("selected", "selected.group_2")]
    assert oracle.count_near_ties([*picks, picks[1], picks[1]], SCORE_TIE) <= 1
    oracle.adopt([*picks, picks[1], picks[1]])
    for token in TOKENS[:6]:
        ours, theirs = session.decode({0: token})[0], oracle.decode(token)
        assert (ours - theirs).abs().max() < EXACT
    with torch.no_grad():
        full = program.model(input_ids=torch.tensor([prompt + TOKENS[:6]])).logits[0, -1]
    assert (ours - full).abs().max() > 100 * EXACT, "compression changed nothing, so this test shows nothing"


def test_shared_rows_are_held_once_and_read_again(compiled: Compiler) -> None:
    signature = compiled("shared-in-turns", SMALL).artifact.signature
    row = 2 * 2 * 8 * 4  # K and V of two heads of 8 numbers
    assert signature.layers == 6
    assert [(group.layers, group.sharers) for group in signature.plan] == [((0,), (2, 4)), ((1,), (3, 5))]
    assert signature.held_bytes == (10 + SMALL.budget) * row
    assert signature.read_bytes == 3 * signature.held_bytes
    assert "layers share rows" in signature.kv_in_words()
    assert signature.groups_in_words()[0].startswith("1 of 6 layers, whose rows 2 others share: 4/2 heads of 8")


def test_layers_that_share_are_one_loop(compiled: Compiler) -> None:
    program = compiled("shared-in-turns", SMALL).artifact.program
    kernels = {entry.name: [launch.kernel for launch in launches(entry.body)] for entry in program.entries}
    both = "decode.layer.2+decode.layer.3.x2"
    assert kernels["decode"] == ["decode.embed", "decode.layer.0", "decode.layer.1", both, "decode.head"]
    assert len(kernels["prefill"]) == 5


def test_slots_do_not_see_each_other(compiled: Compiler) -> None:
    program = compiled("shared-in-turns", SMALL)
    session = native_session(program.artifact)
    alone = feed(session, PROMPT, TOKENS[:4])
    session.reset()
    session.prefill(1, random_tokens(17))
    session.prefill(0, PROMPT)
    rows = [session.decode({0: token, 1: 5})[0].clone() for token in TOKENS[:4]]
    assert torch.equal(torch.stack(rows), alone[1:])
