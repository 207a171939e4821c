"""Layers that attend to rows which an index of the model's own chooses: DeepSeek-V3.2's, MiniMax-M3's."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV32Config,
    GlmMoeDsaConfig,
    MiniMaxM3VLTextConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend import operator
from sscc.compiler.frontend.chosen_rows import chosen_attention, index
from sscc.compiler.frontend.eager import EagerSnapStream
from sscc.compiler.frontend.learned_index import LearnedIndexErrors
from sscc.compiler.frontend.stateful import OPERATORS
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.compiler.tools.commands import cli
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from tests.compiler import small_stacks
from tests.compiler.small_stacks import (
    BATCH,
    CACHES,
    CHUNK,
    Artifacts,
    check_company,
    check_continued,
    check_copied,
    check_in_pieces,
    check_levels,
    check_loops,
    decoded_by_ranks,
    decoded_side_by_side,
    eager_model,
    errors_in_bf16,
    loaded,
    met_golden,
    opened,
)
from tests.errors import raises
from tests.families import random_tokens
from tests.tiny_configs import tiny_config

SHAPE = small_stacks.SHAPE
LATENT: dict[str, Any] = SHAPE | {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 6, "moe_intermediate_size": 16, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "index_topk": 9, "index_head_dim": 8, "index_n_heads": 64,
}  # fmt: skip
"""Of many heads of an index some score every position above 0: equal scores have no order."""


def endless(model_type: str) -> PreTrainedConfig:
    """Return the tiny config of a type, without a token that ends a text."""
    config = tiny_config(model_type)
    config.eos_token_id = None
    return config


CONFIGS: dict[str, PreTrainedConfig] = {
    "latent": DeepseekV32Config(**LATENT, num_hidden_layers=3, first_k_dense_replace=1),
    "choices taken over": GlmMoeDsaConfig(
        **LATENT, num_hidden_layers=4, first_k_dense_replace=0, indexer_types=["full", "shared"] * 2
    ),
    "windows beside": endless("dots3_note_text"),
    "blocks": MiniMaxM3VLTextConfig(
        **SHAPE, num_hidden_layers=3, head_dim=8, rotary_dim=8, num_local_experts=4, num_experts_per_tok=2,
        dense_intermediate_size=48, shared_intermediate_size=16, index_n_heads=2, index_head_dim=8, index_block_size=4,
        index_topk_blocks=3, layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        mlp_layer_types=["dense", "sparse", "sparse"],
    ),
}  # fmt: skip
NEW = 12


@cache
def random_model(family: str, dtype: str = "f32", attention: str = "eager") -> PreTrainedModel:
    return small_stacks.random_model(CONFIGS[family], attention, dtype)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    folder = tmp_path_factory.mktemp("indexes")
    return small_stacks.artifacts_in(folder, random_model, lambda _, kept: CACHES[kept], "everything")


@cache
def generated(family: str, length: int) -> list[int]:
    return small_stacks.generated(random_model(family), length, NEW)


@pytest.mark.parametrize(
    ("family", "opt_level", "interpreter"),
    [
        *((family, 2, "native") for family in CONFIGS),
        ("choices taken over", 0, "reference"),
        ("blocks", 0, "reference"),
    ],
)
def test_tokens_are_those_of_transformers_generate(
    family: str, opt_level: int, interpreter: str, artifacts: Artifacts
) -> None:
    """Prompts have fewer positions than an index chooses, and more; texts outgrow that number while they decode."""
    session = opened(artifacts(family, "everything", opt_level), interpreter)
    for lengths in ((1, 40), (7, 2), (8, 21)) if interpreter == "native" else ((8, 21),):
        assert decoded_side_by_side(session, lengths, NEW) == [generated(family, length) for length in lengths]


@pytest.mark.parametrize("family", ["latent", "blocks"])
def test_levels_agree_with_each_other_and_with_eager_pytorch(family: str, artifacts: Artifacts) -> None:
    eager = EagerSnapStream(eager_model(random_model, family), CACHES["everything"])
    prompt, tokens = random_tokens(23), random_tokens(16, seed=1)
    check_levels(artifacts, family, "everything", eager, prompt, tokens, looped=family == "latent")


def test_bf16_is_as_close_to_the_truth_as_eager_bf16(artifacts: Artifacts) -> None:
    """Errors relative to f32 arithmetic with the same bf16 weights. All positions are selected: with more positions,
    rounding could change the selection, which is not an error of arithmetic."""
    session, model = opened(artifacts("blocks", dtype="bf16")), partial(random_model, "blocks")
    our_error, their_error, _ = errors_in_bf16(session, model, random_tokens(5), random_tokens(4, seed=1))
    assert 0 < our_error <= 1.5 * their_error


@pytest.mark.parametrize("family", CONFIGS)
def test_a_slot_alone_has_the_bits_of_a_slot_in_company(family: str, artifacts: Artifacts) -> None:
    check_company(opened(artifacts(family)))


@pytest.mark.parametrize("family", ["windows beside", "choices taken over"])
def test_a_prompt_in_pieces_between_steps_has_the_logits_of_the_whole(family: str, artifacts: Artifacts) -> None:
    check_in_pieces(opened(artifacts(family)))


@pytest.mark.parametrize("family", CONFIGS)
def test_a_prompt_continues_another_bit_for_bit(family: str, artifacts: Artifacts) -> None:
    check_continued(opened(artifacts(family)), (1, 2), 5)


@pytest.mark.parametrize("family", ["windows beside", "choices taken over"])
def test_a_slot_is_copied_and_sent(family: str, artifacts: Artifacts, tmp_path: Path) -> None:
    check_copied(
        *(Session.from_artifact(loaded(artifacts(family)), interpreter="native") for _ in range(2)), tmp_path / "slot"
    )


@pytest.mark.parametrize("kept", ["small", "int8", "query"])
def test_a_policy_acts_on_the_other_layers(kept: str, artifacts: Artifacts) -> None:
    """Rows of indexed layers all stay, whatever the budget; encoded, they are encoded everywhere."""
    session = opened(artifacts("blocks", kept))
    assert decoded_side_by_side(session, (8, 21), 4)[0]
    plan = {group.name: group.geometry for group in session.signature.plan}
    assert (plan["chosen"].topk, plan["chosen"].dtype, plan["index"].dtype) == (12, CACHES[kept].dtype, "model")
    assert plan[""] == CACHES[kept]


def test_inspect_prints_the_states(artifacts: Artifacts, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(artifacts("blocks", "small"))]) == 0
    text = capsys.readouterr().out
    assert "2 of 3 layers: 4/2 heads of 8, rows of all positions, of which the model's own index chooses 12\n" in text
    assert "2 of 3 layers: index keys of 8 numbers, which select 12 rows\n" in text
    groups = json.loads((artifacts("blocks", "small") / "manifest.json").read_text())["groups"]
    assert [(group["name"], group["layers"]) for group in groups] == [
        ("", [0]), ("chosen", [1, 2]), ("index", [1, 2]),
    ]  # fmt: skip


def test_inspect_names_no_budget_where_every_layer_is_indexed(
    artifacts: Artifacts, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(artifacts("latent", "small"))]) == 0
    facts = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if not line.startswith(" "))
    assert facts["cache"].startswith("9 rows = sink 0 + recent 0 + topk 9,")
    assert facts["selection"] == "the model's own index"


def test_layers_that_take_a_choice_over_loop_as_periods(artifacts: Artifacts) -> None:
    path = artifacts("choices taken over")
    check_loops(path, 4)
    groups = {group.name: group.layers for group in loaded(path).signature.plan}
    assert groups == {"chosen": (0, 1, 2, 3), "index": (0, 2)}


def test_goldens_are_met(artifacts: Artifacts, tmp_path: Path) -> None:
    golden = met_golden(artifacts, "latent", "everything", tmp_path / "a.rdu")
    assert {golden.tensors[f"index_cache.{layer}"].shape[2] for layer in range(3)} == {8}


def test_every_pass_keeps_the_numbers(tmp_path: Path) -> None:
    random_model("latent").save_pretrained(tmp_path)
    shape = ["--kv-budget", "48", "--kv-recent", "40", "--max-context", "64", "--prefill-chunk", "7", "--batch", "2"]
    assert cli.main(["bisect", str(tmp_path), *shape, "--precision", "f64"]) == 0


@pytest.mark.parametrize("family", ["latent", "blocks"])
def test_heads_are_cut_over_ranks(family: str, tmp_path: Path) -> None:
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "cut.rdu"
    random_model(family).save_pretrained(checkpoint)
    shape = cache_options(CACHES["everything"]) | {"batch": BATCH, "prefill_chunk": CHUNK}
    compile_model(CompileOptions(checkpoint, out, tp=2, native_code=False, **shape))
    assert decoded_by_ranks(Artifact.load(out), 2, 21, NEW) == [generated(family, 21)] * 2


# ------------------------------------------------------------------------------------------------- definition


def test_a_choice_of_everything_is_causal_attention() -> None:
    torch.manual_seed(2)
    query, key, weight = torch.randn(2, 11, 5, 8), torch.randn(2, 11, 8), torch.randn(2, 11, 5)
    chosen = index(query, key, weight, 0, 1, 0, 16)
    assert chosen[0, 0, 3].tolist() == [0, 1, 2, 3, *[-1] * 12]
    q, k, v = torch.randn(2, 4, 11, 8), torch.randn(2, 2, 11, 8), torch.randn(2, 2, 11, 6)
    ours = chosen_attention(q, k, v, chosen, None, 0, 0.5, 0.0)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5, enable_gqa=True)
    assert (ours - theirs).abs().max() < 1e-5


def test_the_newest_blocks_are_chosen_in_any_case() -> None:
    query, key = torch.ones(1, 10, 1, 1), -torch.arange(10.0).reshape(1, 10, 1)
    chosen = index(query, key, None, 0, 3, 1, 6)[0, 0]
    assert chosen[9].tolist() == [0, 1, 2, 9, -1, -1]
    assert chosen[7].tolist() == [0, 1, 2, 6, 7, -1]
    assert chosen[1].tolist() == [0, 1, -1, -1, -1, -1]


def test_a_number_of_positions_that_no_field_says_is_refused() -> None:
    config = DeepseekV32Config(**LATENT, num_hidden_layers=1)
    model = small_stacks.random_model(config, operator.IMPLEMENTATION, "f32")
    for each in OPERATORS:
        each.recognise(model)
    model.config.index_topk = 5
    with raises(LearnedIndexErrors.TOPK), torch.no_grad():
        model(torch.zeros(1, 20, dtype=torch.int64), use_cache=False)
