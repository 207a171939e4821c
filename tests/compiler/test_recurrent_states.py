"""Layers with a recurrent state beside layers that attend: the delta rule, Mamba, Mamba-2, RG-LRU."""

from __future__ import annotations

import json
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    FalconH1Config,
    JambaConfig,
    Mamba2Config,
    MiniMaxConfig,
    NemotronHConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3_5TextConfig,
    RecurrentGemmaConfig,
)

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend.eager import EagerQuerySelection, EagerSnapStream
from sscc.compiler.frontend.recurrence import RecurrentInputs, in_blocks, in_steps
from sscc.compiler.frontend.recurrent_functions import FORMS, RecurrentFunctionErrors, _Found, check_function
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.compiler.tools.commands import cli
from sscc.compiler.tools.quality.harness import CacheScorer
from sscc.runtime.serving.engine.engine import Engine
from sscc.runtime.serving.engine.request import Request
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from sscc.runtime.session.session_errors import SessionErrors
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

SHAPE = small_stacks.SHAPE
CONFIGS: dict[str, PreTrainedConfig] = {
    "delta": Qwen3_5TextConfig(
        **SHAPE, num_hidden_layers=4, layer_types=["linear_attention", "full_attention"] * 2, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12, head_dim=8,
    ),
    "mamba": JambaConfig(
        **SHAPE, num_hidden_layers=2, attn_layer_period=2, attn_layer_offset=1, mamba_dt_rank=4, mamba_d_state=6,
        num_experts=1, num_experts_per_tok=1,
    ),
    "mamba2": Mamba2Config(
        vocab_size=SHAPE["vocab_size"], hidden_size=32, num_heads=8, head_dim=8, state_size=6, n_groups=2,
        num_hidden_layers=3, tie_word_embeddings=False,
    ),
    "side by side": FalconH1Config(
        **SHAPE, num_hidden_layers=2, mamba_d_ssm=48, mamba_n_heads=6, mamba_d_head=8, mamba_n_groups=1,
        mamba_d_state=10,
    ),
    "between": NemotronHConfig(
        **SHAPE, layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"],
        mamba_num_heads=8, mamba_head_dim=8, ssm_state_size=6, n_groups=2, mlp_hidden_act="relu2",
    ),
    "lightning": MiniMaxConfig(
        **SHAPE, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], head_dim=8, block_size=8,
        num_local_experts=4, num_experts_per_tok=2,
    ),
    "gated units": RecurrentGemmaConfig(
        **SHAPE, num_hidden_layers=3, lru_width=32, attention_window_size=9, logits_soft_cap=5.0,
    ),
}  # fmt: skip
STATES = ("delta", "mamba", "mamba2", "gated units")
"""A family for each recurrence with states of its own form."""
NEW = 12


@cache
def random_model(family: str, dtype: str = "f32", attention: str = "eager") -> PreTrainedModel:
    return small_stacks.random_model(CONFIGS[family], attention, dtype)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    folder = tmp_path_factory.mktemp("recurrences")
    return small_stacks.artifacts_in(folder, random_model, lambda _, kept: CACHES[kept], "everything")


@cache
def generated(family: str, length: int) -> list[int]:
    return small_stacks.generated(random_model(family), length, NEW)


@pytest.mark.parametrize(
    ("family", "opt_level", "interpreter"),
    [
        *((family, 2, "native") for family in CONFIGS),
        *((family, 0, "reference") for family in ("delta", "mamba2")),
    ],
)
def test_tokens_are_those_of_transformers_generate(
    family: str, opt_level: int, interpreter: str, artifacts: Artifacts
) -> None:
    """Two slots decode side by side: after prompts of one token, of a chunk, and of several."""
    session = opened(artifacts(family, "everything", opt_level), interpreter)
    for lengths in ((1, 40), (7, 2), (8, 21)) if interpreter == "native" else ((8, 21),):
        assert decoded_side_by_side(session, lengths, NEW) == [generated(family, length) for length in lengths]


@pytest.mark.parametrize("kept", ["small", "query"])
def test_levels_agree_with_each_other_and_with_eager_pytorch(kept: str, artifacts: Artifacts) -> None:
    """Layers with attention keep the rows of their policy; recurrent layers do not depend on it."""
    g = CACHES[kept]
    model = eager_model(random_model, "delta")
    eager = EagerQuerySelection(model, g, g.key_bits) if g.by_query else EagerSnapStream(model, g)
    check_levels(artifacts, "delta", kept, eager, random_tokens(23), random_tokens(16, seed=1), looped=kept == "small")


def test_bf16_is_as_close_to_the_truth_as_eager_bf16(artifacts: Artifacts) -> None:
    """Against f32 arithmetic on the same bf16 weights, our error is that of transformers' own bf16 run, within 1.5."""
    session, model = opened(artifacts("mamba", dtype="bf16")), partial(random_model, "mamba")
    our_error, their_error, _ = errors_in_bf16(session, model, random_tokens(25), random_tokens(20, seed=1))
    assert 0 < our_error <= 1.5 * their_error


@pytest.mark.parametrize("family", STATES)
def test_a_slot_alone_has_the_bits_of_a_slot_in_company(family: str, artifacts: Artifacts) -> None:
    check_company(opened(artifacts(family)))


@pytest.mark.parametrize("family", STATES)
def test_a_prompt_in_pieces_between_steps_has_the_logits_of_the_whole(family: str, artifacts: Artifacts) -> None:
    check_in_pieces(opened(artifacts(family)))


@pytest.mark.parametrize("family", STATES)
def test_a_slot_is_copied_and_sent(family: str, artifacts: Artifacts, tmp_path: Path) -> None:
    check_copied(
        *(Session.from_artifact(loaded(artifacts(family)), interpreter="native") for _ in range(2)), tmp_path / "slot"
    )


@pytest.mark.parametrize("family", STATES)
def test_a_prompt_continues_another_bit_for_bit(family: str, artifacts: Artifacts) -> None:
    """The state before a chunk is kept with the previous chunk."""
    check_continued(opened(artifacts(family)), (1, 2), 5)


def test_the_layers_loop_as_periods(artifacts: Artifacts) -> None:
    check_loops(artifacts("delta"), 4)


def test_inspect_prints_the_states(artifacts: Artifacts, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(artifacts("delta", "small"))]) == 0
    text = capsys.readouterr().out
    assert "2 of 4 layers: a recurrent state of 4 matrices of 8 x 12\n" in text
    groups = json.loads((artifacts("delta", "small") / "manifest.json").read_text())["groups"]
    assert [(group["name"], group["layers"]) for group in groups] == [
        ("convolution", [0, 2]), ("recurrence", [0, 2]), ("", [1, 3]),
    ]  # fmt: skip
    assert cli.main(["inspect", str(artifacts("between"))]) == 0
    text = capsys.readouterr().out
    assert "1 of 4 layers: no state\n" in text
    assert " per cached token, " in text
    assert cli.main(["inspect", str(artifacts("mamba2"))]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("prefixes"))
    assert line.endswith("share its prefill: 7.594 KiB per checkpoint")


def test_goldens_are_met(artifacts: Artifacts, tmp_path: Path) -> None:
    golden = met_golden(artifacts, "delta", "small", tmp_path / "a.rdu")
    assert [golden.tensors[f"recurrent_cache.{layer}"].shape for layer in (0, 2)] == [(4, 8, 12)] * 2


def test_every_pass_keeps_the_numbers(tmp_path: Path) -> None:
    """The evaluator takes a chunk as one block of tokens, the reference interpreter token by token: f64 tells them
    apart where either is wrong."""
    random_model("delta").save_pretrained(tmp_path)
    shape = ["--kv-budget", "48", "--kv-recent", "40", "--max-context", "64", "--prefill-chunk", "7", "--batch", "2"]
    assert cli.main(["bisect", str(tmp_path), *shape, "--precision", "f64"]) == 0


def test_the_next_turn_of_a_conversation_continues_from_a_checkpoint(artifacts: Artifacts) -> None:
    artifact = loaded(artifacts("delta"))

    def opened_engine() -> Engine:
        return Engine(Session.from_artifact(artifact, interpreter="native"))

    prompt = random_tokens(25)
    with opened_engine() as engine:
        first = engine.submit(Request(prompt, max_new_tokens=4)).result()
        turn = [*prompt, *first.tokens, *random_tokens(9, seed=5)]
        again = engine.submit(Request(turn, max_new_tokens=8)).result()
    with opened_engine() as engine:
        anew = engine.submit(Request(turn, max_new_tokens=8)).result()
    assert (first.cached_tokens, again.cached_tokens, anew.cached_tokens) == (0, 21, 0)
    assert again.tokens == anew.tokens


CUT = {
    "delta": ((2, 2, 1, 3, 40), (2, 2, 2, 8, 12)),
    "mamba": ((1, 2, 1, 3, 32), (1, 2, 32, 6, 1)),
    "side by side": ((2, 2, 1, 3, 44), (2, 2, 3, 10, 8)),  # the key of all heads is on both ranks, with its channels
    "gated units": ((2, 2, 1, 3, 16), (2, 2, 16, 1, 1)),
}
"""By family the inputs of convolutions and the states that one of two ranks has."""


@pytest.mark.parametrize("family", CUT)
def test_heads_and_channels_are_cut_over_ranks(family: str, tmp_path: Path) -> None:
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "cut.rdu"
    random_model(family).save_pretrained(checkpoint)
    shape = cache_options(CACHES["everything"]) | {"batch": BATCH, "prefill_chunk": CHUNK}
    compile_model(CompileOptions(checkpoint, out, tp=2, native_code=False, **shape))
    artifact = Artifact.load(out)
    states = {tensor.name: tensor.shape for tensor in artifact.program.tensors if tensor.role == "state"}
    assert (states["inputs_cache.convolution"], states["recurrent_cache.recurrence"]) == CUT[family]

    assert decoded_by_ranks(artifact, 2, 21, NEW) == [generated(family, 21)] * 2


# ------------------------------------------------------------------------------------------------- definition


@pytest.mark.parametrize("decays", [1, 8])
@pytest.mark.parametrize("delta", [True, False])
def test_blocks_are_steps_in_another_order(decays: int, delta: bool) -> None:
    torch.manual_seed(decays)
    key = torch.nn.functional.normalize(torch.randn(2, 37, 2, 8), dim=3)
    decay = -3 * torch.rand(2, 37, 4, decays)
    decay[:, 5] = -torch.inf  # a token that clears the state
    beta = torch.rand(2, 37, 4) if delta else None
    inputs = RecurrentInputs(torch.randn_like(key), key, torch.randn(2, 37, 4, 5), decay, beta=beta)
    state = torch.randn(inputs.state_shape)
    for one, other in zip(in_steps(inputs, state), in_blocks(inputs, state), strict=True):
        assert (one - other).abs().max() < 1e-5


def without_decay(
    query: Any, key: Any, value: Any, g: Any, beta: Any, initial_state: Any = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Has the parameters of `chunk_gated_delta_rule`."""
    return value * beta[..., None], None


def test_a_function_that_computes_something_else_is_refused() -> None:
    with raises(RecurrentFunctionErrors.OTHER):
        check_function(_Found(sys.modules[__name__], "without_decay", FORMS[0]))


# ---------------------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize("family", ["delta", "between"])
def test_scored_tokens_are_read_once(family: str, artifacts: Artifacts) -> None:
    """A recurrent state includes the last token of a prompt, and a step must not add it once more."""
    session = opened(artifacts(family))
    pairs = [(random_tokens(count, 1), random_tokens(9, 2)) for count in (1, 2, 30)]
    found = CacheScorer(session).score([*pairs, pairs[-1]])
    for (context, tokens), ours in zip([*pairs, pairs[-1]], found, strict=True):
        logits = random_model(family)(torch.tensor([context + tokens]), use_cache=False).logits[0, len(context) - 1 :]
        theirs = float(logits.log_softmax(1)[range(len(tokens)), tokens].sum())
        assert ours.logprob == pytest.approx(theirs, abs=1e-2)
    session.prefill(0, [1, 2])
    with raises(SessionErrors.REPLAY_STATE):
        session.replay(0)
