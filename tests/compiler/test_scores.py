"""Models that make weights of products in another way: scores that are capped (Gemma 2), and learned sinks, which take
part in the softmax and have no row (GPT-OSS). Both beside layers with a sliding window."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from transformers import Gemma2Config, GptOssConfig, PreTrainedConfig, PreTrainedModel

from sscc.compiler.frontend.capture import Captured, CaptureErrors, check_softcaps
from sscc.compiler.frontend.eager import EagerQuerySelection, EagerSnapStream
from sscc.ir.geometry import Geometry
from sscc.ir.opspec import Op, spec_of_step
from tests.agreement import check_definition, check_generation
from tests.compiler import small_stacks
from tests.compiler.small_stacks import CONTEXT, SHAPE, WINDOW, Artifacts, loaded, opened
from tests.errors import raises
from tests.families import random_tokens
from tests.torch_session import TorchSession

CONFIGS: dict[str, PreTrainedConfig] = {
    # Scores of these weights are up to 40, so that a cap of 3 changes most of them.
    "capped": Gemma2Config(
        **SHAPE,
        num_hidden_layers=3,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=WINDOW,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=5.0,
        tie_word_embeddings=False,
    ),
    "sinks": GptOssConfig(
        **SHAPE, num_hidden_layers=4, head_dim=8, sliding_window=WINDOW, num_local_experts=3, num_experts_per_tok=2
    ),
}
EVERYTHING = Geometry(sink=0, recent=CONTEXT, topk=0, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT)
SMALL = Geometry(sink=2, recent=9, topk=5, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT)
BY_QUERY = replace(SMALL, rows="indexed", policy="query", key_bits=2)
CACHES = {
    "everything": EVERYTHING,
    "small": SMALL,
    "query": BY_QUERY,
    "fetch": replace(BY_QUERY, fetch=2),
}
PROMPT, NEW = 33, 20


@cache
def random_model(family: str, dtype: str = "f32", attention: str = "eager") -> PreTrainedModel:
    return small_stacks.random_model(CONFIGS[family], attention, dtype)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    folder = tmp_path_factory.mktemp("scores")
    return small_stacks.artifacts_in(folder, random_model, lambda _, kept: CACHES[kept], "everything")


@pytest.mark.parametrize(("opt_level", "interpreter"), [(2, "native"), (0, "reference")])
@pytest.mark.parametrize("family", CONFIGS)
def test_tokens_are_those_of_transformers_generate(
    family: str, opt_level: int, interpreter: str, artifacts: Artifacts
) -> None:
    session = TorchSession(opened(artifacts(family, "everything", opt_level), interpreter))
    check_generation(random_model(family), [session], random_tokens(PROMPT), NEW)


@pytest.mark.parametrize(("kept", "opt_level"), [("small", 0), ("fetch", 2)])
@pytest.mark.parametrize("family", CONFIGS)
def test_compressed_it_is_the_definition(family: str, kept: str, opt_level: int, artifacts: Artifacts) -> None:
    """Native and reference code against the definition run eagerly, with fewer rows than the prompt has."""
    g = CACHES[kept]
    model = random_model(family, attention="sscc")
    run = EagerQuerySelection(model, g, g.key_bits, g.fetch) if g.by_query else EagerSnapStream(model, g)
    sessions = (TorchSession(opened(artifacts(family, kept, opt_level), name)) for name in ("native", "reference"))
    check_definition(run, sessions, random_tokens(PROMPT), random_tokens(6, seed=1))


@pytest.mark.parametrize("family", CONFIGS)
def test_attention_is_fused_all_the_same(family: str, artifacts: Artifacts) -> None:
    for kept, fused in (("small", {"decode_attention", "chunk_attention"}), ("fetch", {"query_attention"})):
        steps = [step for body in loaded(artifacts(family, kept)).program.bodies for step in body.steps]
        scored = [step for step in steps if isinstance(step, Op) and "softcap" in spec_of_step(step).attributes]
        assert fused <= {step.kind for step in scored}
        assert {step.softcap for step in scored} == {3.0 if family == "capped" else None}
        votes = [step for step in scored if hasattr(step, "sink_logits")]
        assert {bool(step.sink_logits) for step in votes} == {family == "sinks"}


def test_layers_with_learned_sinks_loop(artifacts: Artifacts) -> None:
    """A layer's sinks are a weight that is stacked like any other."""
    records = loaded(artifacts("sinks", "small")).manifest.looping
    assert [record.looped for record in records if record.entry == "decode"] == [True]


def test_a_cap_that_attention_is_not_told_of_is_refused() -> None:
    graph = torch.fx.Graph()
    rows = [graph.placeholder(name) for name in "qkv"]
    for layer, settings in enumerate(((0, 5.0), (7, 5.0), (7,))):
        graph.call_function(torch.ops.sscc.attention.default, (*rows, layer, 0.5, *settings))
    captured = Captured(graph, {}, {}, {}, {}, "")
    check_softcaps(captured, {})
    with raises(CaptureErrors.SOFTCAP_DIFFERS, fields=["cap = 5.0"], layer=2, softcap=0.0):
        check_softcaps(captured, {"cap": 5.0})
    with raises(CaptureErrors.SOFTCAP_DIFFERS, fields=["cap = 6"], layer=0, softcap=5.0):
        check_softcaps(captured, {"cap": 6})
