"""`Session.kept`: the positions in the cache of each layer and KV head with their reasons, compared with the definition
in torch, after a prompt and while tokens are fed, on both interpreters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sscc.compiler.frontend.eager import NO_SOURCES, EagerQuerySelection, EagerSnapStream
from sscc.compiler.frontend.full_attention import needed
from sscc.ir.geometry import Geometry
from sscc.runtime.session.kept_positions import Kept, KeptPositionErrors, Reason
from sscc.runtime.session.session import Session
from tests.errors import raises
from tests.families import GEOMETRY, Compiler, random_model, random_tokens
from tests.native import native_interpreter

PROMPT, TOKENS = random_tokens(40), random_tokens(3, seed=1)
SMALL = replace(GEOMETRY, recent=9, topk=5)
QUERY = replace(SMALL, rows="indexed", policy="query", key_bits=2)
CASES = {
    "windows and shared rows": ("shared-in-turns", SMALL),
    "indexed": ("llama3-rope", replace(SMALL, rows="indexed")),
    "latent rows, budgets by layer": ("latent-whole-query", SMALL.with_layers([12, 5])),
    "resident rows": ("llama3-rope", replace(QUERY, fetch=2)),
}


def definition(family: str, g: Geometry, signature_sources: dict[int, int], latent: tuple[int, ...]) -> EagerSnapStream:
    model = random_model(family)
    model.set_attn_implementation("sscc")
    sources = signature_sources or NO_SOURCES
    if g.by_query:
        return EagerQuerySelection(model, g, g.key_bits, g.fetch, latent, sources)
    return EagerSnapStream(model, g, latent, sources)


def check(kept: Kept, expected: EagerSnapStream) -> None:
    """The parts of the cache are those of the definition, position by position."""
    n = expected.position
    assert (kept.length, len(kept.layers)) == (n, len(expected.geometries))
    for layer, g in zip(kept.layers, expected.geometries, strict=True):
        selected = expected.selected[layer.layer].tolist()
        assert layer.source == expected.sources.get(layer.layer)
        for head in range(layer.kv_heads):
            chosen = [position for position in selected[head] if position >= 0]
            ring = list(range(max(n - g.recent, g.sink), n))
            assert layer.positions(head, Reason.SELECTED).tolist() == chosen
            assert layer.positions(head, Reason.RECENT).tolist() == ring
            assert layer.positions(head).tolist() == [*range(g.sink), *chosen, *ring]
            rest = Reason.STORED if g.by_query else Reason.EVICTED
            assert len(layer.positions(head, rest)) == n - g.sink - len(chosen) - len(ring)


@pytest.mark.parametrize("case", CASES)
def test_positions_are_those_of_the_definition(case: str, compiled: Compiler) -> None:
    family, g = CASES[case]
    program = compiled(family, g)
    plan = program.artifact.signature.plan
    latent = tuple(layer for group in plan for layer in group.layers if group.streams[0].name == "latent")
    expected = definition(family, g, dict(plan.sources), latent)
    native = Session(program.artifact.signature, native_interpreter(program.artifact))
    reference = Session.from_artifact(program.artifact, interpreter="reference")
    expected.prefill(PROMPT)
    for session in (native, reference):
        session.prefill(1, PROMPT)
        session.prefill(0, random_tokens(30, seed=2))  # another slot's prompt, which selects after it
        check(session.kept(1), expected)
    for token in TOKENS:
        expected.decode(token)
        native.decode({1: token, 0: token})
        reference.decode({1: token})
    for session in (native, reference):
        check(session.kept(1), expected)
    if not g.by_query:
        native.prefill(1, PROMPT)
        copy = native.snapshot(1)
        native.prefill(1, random_tokens(30, seed=2))
        native.restore(2, copy)
        assert [one.reasons.tolist() for one in native.kept(2).layers] == [
            one.reasons.tolist() for one in reference_after_prompt(reference).layers
        ]


def reference_after_prompt(session: Session) -> Kept:
    session.prefill(2, PROMPT)
    return session.kept(2)


def test_where_every_step_chooses_anew_the_store_has_everything(compiled: Compiler) -> None:
    program = compiled("llama3-rope", QUERY)
    session = Session(program.artifact.signature, native_interpreter(program.artifact))
    session.prefill(0, PROMPT)
    layer = session.kept(0).layers[0]
    assert not layer.choice_known
    assert "chosen anew by every step" in repr(layer)
    assert (layer.reasons[0] == Reason.STORED).sum() == 40 - 4 - 9
    session.prefill(0, PROMPT[:18])  # 5 candidates, all of which a step reads
    layer = session.kept(0).layers[0]
    assert layer.choice_known
    assert layer.positions(1, Reason.SELECTED).tolist() == [4, 5, 6, 7, 8]


def test_what_a_full_cache_would_have_read_is_transformers_attention(compiled: Compiler) -> None:
    """The attention weight of each fed token, per layer and query head, on positions that its KV head no longer has."""
    program = compiled("llama3-rope", SMALL)
    session = Session(program.artifact.signature, native_interpreter(program.artifact))
    session.prefill(0, PROMPT)
    for token in TOKENS:
        session.decode({0: token})
    kept, tokens = session.kept(0), [*PROMPT, *TOKENS]
    model = random_model("llama3-rope")
    model.set_attn_implementation("sscc")
    told = needed(model, tokens, len(PROMPT), kept, GEOMETRY.max_context)
    model.set_attn_implementation("eager")
    weights = model(input_ids=torch.tensor([tokens]), output_attentions=True).attentions
    expected = np.zeros(len(tokens))
    for layer, of_layer in zip(kept.layers, weights, strict=True):
        heads = of_layer.shape[1]
        for head in range(heads):
            selected = set(layer.positions(head * layer.kv_heads // heads, Reason.SELECTED).tolist())
            for at in range(len(PROMPT), len(tokens)):
                lost = [p for p in range(4, at + 1 - 9) if p not in selected]
                expected[lost] += of_layer[0, head, at, lost].detach().numpy() / (heads * len(TOKENS) * len(weights))
    assert told.queries == len(TOKENS)
    assert np.abs(told.mass - expected).max() < 1e-6
    assert 0.05 < told.share == pytest.approx(expected.sum())


def test_shares_and_refusals(compiled: Compiler) -> None:
    program = compiled("llama3-rope", replace(SMALL, rows="indexed"))
    session = Session(program.artifact.signature, native_interpreter(program.artifact))
    session.prefill(0, PROMPT)
    kept = session.kept(0)
    assert repr(kept).startswith("Kept(18 of 40 positions kept, budget 18")
    shares = kept.shares()
    assert shares.shape == (40,)
    assert np.all(shares[:4] == 1)
    assert np.all(shares[-9:] == 1)
    assert shares[4:-9].sum() == pytest.approx(5)  # of every layer and head 5 of them
    assert np.array_equal(kept.shares(1, 0), kept.reasons(1, 0)[0] >= Reason.SELECTED)
    with raises(KeptPositionErrors.NO_LAYER, layer=2, last=1):
        kept.shares(2)
    with raises(KeptPositionErrors.NO_HEAD, head=2, layer=1, last=1):
        kept.shares(1, 2)
    with raises(KeptPositionErrors.SEVERAL_RANKS):
        _ = replace(kept, of_layers=None).layers
