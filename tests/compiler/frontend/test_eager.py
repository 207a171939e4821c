"""EagerSnapStream against the independent oracle and transformers' own generation, on tiny random models."""

from __future__ import annotations

import itertools
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
)

from sscc.compiler.frontend.eager import EagerErrors, EagerSnapStream, make_golden
from sscc.ir.geometry import Geometry
from tests.errors import raises
from tests.oracles.independent import IndependentSnapStream

VOCABULARY = 96
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SHAPE, num_key_value_heads=2, head_dim=10),
    "qwen2": Qwen2Config(**SHAPE, num_key_value_heads=1),
    "gpt-neox": GPTNeoXConfig(**SHAPE, rotary_pct=0.5),
}
GEOMETRIES = {
    "defaults": Geometry(sink=2, recent=6, topk=8, obs=4, pool=3, pool_mode="avg", max_context=64),
    "max-pool": Geometry(sink=1, recent=5, topk=7, obs=8, pool=5, pool_mode="max", max_context=64),
    "no-sink": Geometry(sink=0, recent=4, topk=6, obs=1, pool=1, pool_mode="avg", max_context=64),
    "streaming": Geometry(sink=4, recent=8, topk=0, obs=4, pool=7, pool_mode="avg", max_context=64),
    "ring-of-one": Geometry(sink=3, recent=1, topk=9, obs=3, pool=7, pool_mode="max", max_context=64),
}
TIE = 1e-6  # scores are sums of a few probabilities; f32 rounding moves them by about 1e-7
STEPS = 10


@cache
def load(family: str, implementation: str) -> PreTrainedModel:
    """The same random weights for every attention implementation (from_config writes into the config it gets)."""
    torch.manual_seed(1)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        deepcopy(CONFIGS[family]), attn_implementation=implementation
    )
    return model.eval()


def random_prompt(n: int) -> list[int]:
    tokens: list[int] = torch.randint(0, VOCABULARY, (n,), generator=torch.Generator().manual_seed(n)).tolist()
    return tokens


def oracle_for(family: str, g: Geometry) -> IndependentSnapStream:
    model = load(family, "eager")
    return IndependentSnapStream(
        model, sink=g.sink, recent=g.recent, topk=g.topk, obs=g.obs, pool=g.pool, pool_mode=g.pool_mode
    )


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "geometry", "n"),
    [
        *itertools.product(["llama"], GEOMETRIES, [1, 3, 8, 9, 15, 16, 40]),
        *itertools.product(["qwen2", "gpt-neox"], GEOMETRIES, [9, 40]),
    ],
)
def test_equals_the_independent_oracle(family: str, geometry: str, n: int) -> None:
    g = GEOMETRIES[geometry]
    ours, oracle = EagerSnapStream(load(family, "sscc"), g), oracle_for(family, g)
    assert_close(ours.prefill(random_prompt(n)), oracle.prefill(random_prompt(n)))
    excused = oracle.count_near_ties(ours.selected, TIE)
    assert excused <= 1
    oracle.adopt(ours.selected)
    for token in random_prompt(n + STEPS)[-STEPS:]:
        assert_close(ours.decode(token), oracle.decode(token))


@pytest.mark.parametrize("family", CONFIGS)
def test_replaying_the_last_prompt_token_sees_the_compressed_cache(family: str) -> None:
    g, prompt = GEOMETRIES["defaults"], random_prompt(40)
    ours, oracle = EagerSnapStream(load(family, "sscc"), g), oracle_for(family, g)
    full = ours.prefill(prompt)
    oracle.prefill(prompt)
    oracle.adopt(ours.selected)
    replayed = ours.decode(prompt[-1], position=len(prompt) - 1)
    assert_close(replayed, oracle.decode(prompt[-1], position=len(prompt) - 1))
    assert (replayed - full).abs().max() > 1e-3
    assert ours.position == len(prompt)
    assert_close(ours.decode(5), oracle.decode(5))


@pytest.mark.parametrize("family", CONFIGS)
def test_with_room_for_everything_it_is_transformers_generate(family: str) -> None:
    g = Geometry(sink=4, recent=60, topk=0, obs=4, pool=3, pool_mode="avg", max_context=64)
    prompt = random_prompt(20)
    _, new_tokens, tensors = make_golden(load(family, "sscc"), g, prompt, 40)
    out = load(family, "sdpa").generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=40,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    assert new_tokens == out.sequences[0, len(prompt) :].tolist()
    ours = [tensors["prefill_logits"], *(tensors[f"logits.{step}"] for step in range(39))]
    assert_close(torch.stack(ours), torch.cat(out.logits))


def test_golden_names_and_shapes() -> None:
    g, prompt = GEOMETRIES["defaults"], random_prompt(30)
    same, new_tokens, tensors = make_golden(load("llama", "sscc"), g, prompt, 3)
    layers = [f"{name}.{layer}" for layer in range(3) for name in ("k_cache", "v_cache", "selected")]
    assert list(tensors) == [*layers, "prefill_logits", "logits.0", "logits.1", "logits.2"]
    assert same == prompt
    assert new_tokens[0] == int(tensors["prefill_logits"].argmax())
    assert new_tokens[1:] == [int(tensors[f"logits.{step}"].argmax()) for step in range(2)]
    assert tensors["k_cache.2"].shape == (2, g.budget, 10)
    assert tensors["selected.0"].shape == (2, g.topk)
    run = EagerSnapStream(load("llama", "sscc"), g)
    run.prefill(prompt)
    assert torch.equal(tensors["k_cache.2"], run.k_cache[2])


def test_golden_without_topk_has_no_selection() -> None:
    _, _, tensors = make_golden(load("llama", "sscc"), GEOMETRIES["streaming"], random_prompt(20), 1)
    assert not [name for name in tensors if name.startswith("selected")]


class TwoInputs(torch.nn.Module):
    """A decoder as an exported program is called: (ids, positions) to logits."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=ids, position_ids=positions, use_cache=False).logits
        return logits


def test_exported_program_is_the_same_model() -> None:
    g, prompt = GEOMETRIES["defaults"], random_prompt(30)
    model = load("llama", "sscc")
    batch, length = torch.export.Dim("batch", min=1, max=8), torch.export.Dim("length", min=1, max=64)
    ids = torch.zeros(2, 5, dtype=torch.long)
    with torch.no_grad():
        program = torch.export.export(
            TwoInputs(model),
            (ids, ids.clone()),
            dynamic_shapes=({0: batch, 1: length}, {0: batch, 1: length}),
            strict=False,
        )
    of_model, of_program = make_golden(model, g, prompt, 4), make_golden(program, g, prompt, 4)
    assert of_model[1] == of_program[1]
    for name, tensor in of_model[2].items():
        torch.testing.assert_close(of_program[2][name], tensor, atol=1e-5, rtol=1e-5)


def test_refuses_other_attention_implementations() -> None:
    with raises(EagerErrors.OTHER_IMPLEMENTATION, used="sdpa"):
        EagerSnapStream(load("llama", "sdpa"), GEOMETRIES["defaults"])


def test_refuses_a_model_that_bypasses_the_operator() -> None:
    config = BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=1, n_head=4)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sscc").eval()
    run = EagerSnapStream(model, GEOMETRIES["defaults"])
    with raises(EagerErrors.NO_ATTENTION):
        run.prefill([1, 2, 3])


def test_refuses_bad_lengths() -> None:
    g = GEOMETRIES["defaults"]
    run = EagerSnapStream(load("llama", "sscc"), g)
    with raises(EagerErrors.NO_PREFILL):
        run.decode(1)
    with raises(EagerErrors.EMPTY_PROMPT):
        run.prefill([])
    with raises(EagerErrors.PROMPT_TOO_LONG, tokens=65, context=64):
        run.prefill([1] * 65)
    run.prefill([1] * 64)
    with raises(EagerErrors.POSITION_OUTSIDE, position=64, context=64):
        run.decode(1)
    with raises(EagerErrors.TEXT_TOO_LONG, prompt=60, tokens=5):
        make_golden(load("llama", "sscc"), g, [1] * 60, 5)
