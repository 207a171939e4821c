"""Models with sliding windows: exact where the other layers keep everything, and one group of layers among others."""

from __future__ import annotations

import copy
import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma4TextConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
)
from transformers.models.mistral import modeling_mistral

from sscc.compiler.driver.driver import CompilationErrors, compile_model
from sscc.compiler.frontend import operator
from sscc.compiler.frontend.capture import CaptureErrors
from sscc.compiler.frontend.eager import EagerSnapStream
from sscc.compiler.frontend.probe import ProbeErrors
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.compiler.tools.commands import cli
from sscc.compiler.tools.inspection.inspection import inspect_artifact
from sscc.ir.geometry import Span
from tests.compiler import small_stacks
from tests.compiler.small_stacks import (
    BATCH,
    CACHES,
    CHUNK,
    EVERYTHING,
    ROW,
    WINDOW,
    Artifacts,
    check_continued,
    check_levels,
    decoded_side_by_side,
    errors_in_bf16,
    loaded,
    met_golden,
    opened,
)
from tests.errors import like, raises
from tests.families import random_tokens

SHAPE: dict[str, Any] = small_stacks.SHAPE | {"sliding_window": WINDOW}
CONFIGS: dict[str, PreTrainedConfig] = {
    "mistral": MistralConfig(**SHAPE, num_hidden_layers=2),
    "phi3": Phi3Config(**SHAPE, num_hidden_layers=2),
    "qwen2": Qwen2Config(**SHAPE, num_hidden_layers=4, use_sliding_window=True, max_window_layers=2),
    "short": Qwen2Config(**SHAPE, num_hidden_layers=2, use_sliding_window=True, max_window_layers=1),
    "gemma3": small_stacks.GEMMA3,
    # Wider heads where there is no window, and fewer of them for K and V.
    "gemma4": Gemma4TextConfig(
        **SHAPE,
        num_hidden_layers=4,
        head_dim=8,
        hidden_size_per_layer_input=0,
        layer_types=["sliding_attention", "full_attention"] * 2,
        per_layer_config={layer: {"head_dim": 16, "num_key_value_heads": 1} for layer in (1, 3)},
    ),
}
WINDOWED = {"mistral": (0, 1), "phi3": (0, 1), "qwen2": (2, 3), "short": (1,), "gemma3": (0, 2, 4), "gemma4": (0, 2)}


@cache
def random_model(family: str, dtype: str = "f32", attention: str = "eager") -> PreTrainedModel:
    return small_stacks.random_model(CONFIGS[family], attention, dtype)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    folder = tmp_path_factory.mktemp("windows")
    return small_stacks.artifacts_in(folder, random_model, lambda _, kept: CACHES[kept], "everything")


@cache
def generated(family: str, length: int, count: int) -> list[int]:
    return small_stacks.generated(random_model(family), length, count)


# ----------------------------------------------------------------------------------------------------- exactness

RUNS = [
    *((family, 2, "native") for family in CONFIGS),
    ("qwen2", 0, "native"),
    ("qwen2", 2, "reference"),
    ("gemma3", 0, "reference"),
]
PROMPTS = (3 * WINDOW + 3, WINDOW - 4)
"""The length of a prompt of several windows, and of one that fits into a window."""
NEW = 2 * WINDOW


@pytest.mark.parametrize(("family", "opt_level", "interpreter"), RUNS)
def test_tokens_are_those_of_transformers_generate(
    family: str, opt_level: int, interpreter: str, artifacts: Artifacts
) -> None:
    """Two slots decode side by side, each to several windows behind its prompt."""
    session = opened(artifacts(family, "everything", opt_level), interpreter)
    assert decoded_side_by_side(session, PROMPTS, NEW) == [generated(family, length, NEW) for length in PROMPTS]


def test_bf16_is_as_close_to_the_truth_as_eager_bf16(artifacts: Artifacts) -> None:
    """As `tests/test_families.py` asks of other models: against f32 arithmetic on the same bf16 weights, our error is
    that of transformers' own bf16 run, within a factor of 1.5. The prompt and what follows outgrow the window."""
    prompt, tokens = random_tokens(2 * WINDOW + 5), random_tokens(2 * WINDOW, seed=1)
    family = "short"
    session, model = opened(artifacts(family, dtype="bf16")), partial(random_model, family)
    our_error, their_error, whole = errors_in_bf16(session, model, prompt, tokens)
    assert 0 < our_error <= 1.5 * their_error < 0.1 * whole


@pytest.mark.parametrize("length", [2 * WINDOW + 5, WINDOW])
@pytest.mark.parametrize(
    ("family", "kept"),
    [("gemma4", "spare"), ("qwen2", "indexed"), ("gemma3", "int8")],
)
def test_levels_agree_with_each_other_and_with_eager_pytorch(
    family: str, kept: str, length: int, artifacts: Artifacts
) -> None:
    eager = EagerSnapStream(eager_model(family), CACHES[kept])
    prompt, tokens = random_tokens(length), random_tokens(WINDOW + 6, seed=1)
    check_levels(artifacts, family, kept, eager, prompt, tokens, looped=family == "gemma3")


@cache
def eager_model(family: str) -> PreTrainedModel:
    """On the weights of the model that is compiled."""
    model = random_model(family, attention=operator.IMPLEMENTATION)
    model.load_state_dict(random_model(family).state_dict())
    return model


def test_a_window_is_not_without_effect() -> None:
    """Or else all of this shows nothing."""
    whole = copy.deepcopy(CONFIGS["mistral"])
    whole.sliding_window = None
    model = AutoModelForCausalLM.from_config(whole, attn_implementation="eager").eval()
    model.load_state_dict(random_model("mistral").state_dict())
    ids = torch.tensor([random_tokens(WINDOW + 1)])
    with torch.no_grad():
        ours, theirs = (each(ids, use_cache=False).logits[0] for each in (random_model("mistral"), model))
    assert torch.allclose(ours[:WINDOW], theirs[:WINDOW], atol=1e-5)
    assert not torch.allclose(ours[WINDOW], theirs[WINDOW], atol=1e-2)


# -------------------------------------------------------------------------------------------- looping and memory


@pytest.mark.parametrize(
    ("family", "looped", "launches"),
    [
        ("mistral", [2], 3),  # embedding, the layers, head
        ("qwen2", [2, 2], 4),
        ("gemma3", [4], 4),  # and the layer that is left
    ],
)
def test_periods_of_mixed_layers_loop_in_one_launch(
    family: str, looped: list[int], launches: int, artifacts: Artifacts
) -> None:
    artifact = loaded(artifacts(family))
    for entry in ("prefill", "decode"):
        records = [record for record in artifact.manifest.looping if record.entry == entry]
        assert [record.layers for record in records] == looped
        assert all(record.looped for record in records)
    assert inspect_artifact(artifact).launches_per_token == launches


@pytest.mark.parametrize("family", CONFIGS)
def test_the_manifest_has_a_group_for_the_windows(family: str, artifacts: Artifacts) -> None:
    path = artifacts(family)
    groups = json.loads((path / "manifest.json").read_text())["groups"]
    windows = next(group for group in groups if group["name"] == f"window{WINDOW}")
    assert tuple(windows["layers"]) == WINDOWED[family]
    kept = {name: windows["geometry"][name] for name in ("sink", "recent", "topk", "window", "rows")}
    assert kept == {"sink": 0, "recent": WINDOW, "topk": 0, "window": WINDOW, "rows": "compact"}
    others = [group for group in groups if group is not windows]
    assert [group["name"] for group in others] == [""] * (len(WINDOWED[family]) < CONFIGS[family].num_hidden_layers)
    assert [group["layers"] for group in groups] == sorted(group["layers"] for group in groups)
    assert all("window" not in group["geometry"] for group in others)
    assert loaded(path).signature.plan.layers == CONFIGS[family].num_hidden_layers


@pytest.mark.parametrize(
    ("family", "kept", "held", "read", "full"),
    [
        ("mistral", "everything", 2 * 10 * ROW, 2 * 10 * ROW, 2 * 10 * ROW),
        ("gemma3", "everything", (3 * 10 + 2 * 64) * ROW, (3 * 10 + 2 * 64) * ROW, (3 * 10 + 2 * 64) * ROW),
        ("gemma3", "small", (3 * 10 + 2 * 16) * ROW, (3 * 10 + 2 * 16) * ROW, (3 * 10 + 2 * 64) * ROW),
        # 64 tokens are 10 chunks of 7.
        ("gemma3", "indexed", (3 * 10 + 2 * (16 + 70)) * ROW, (3 * 10 + 2 * 16) * ROW, (3 * 10 + 2 * 64) * ROW),
        # Codes of 8 and a scale of 4 bytes for 8 numbers of 4.
        ("gemma3", "int8", (3 * 10 + 2 * 16) * 48, (3 * 10 + 2 * 16) * 48, (3 * 10 + 2 * 64) * ROW),
    ],
)
def test_a_sequence_holds_a_window_per_windowed_layer(
    family: str, kept: str, held: int, read: int, full: int, artifacts: Artifacts
) -> None:
    path = artifacts(family, kept)
    artifact = loaded(path)
    found = inspect_artifact(artifact)
    assert (found.held_kv_bytes, found.kv_bytes, found.full_kv_bytes) == (held, read, full)
    states = {tensor.name: tensor for tensor in artifact.program.tensors if tensor.role == "state"}
    rows = {"everything": 64, "small": 16, "indexed": 16, "int8": 16}[kept]
    windows, layers = len(WINDOWED[family]), CONFIGS[family].num_hidden_layers
    assert states["k_cache.window10"].shape[:4] == (windows, BATCH, 2, WINDOW)
    if layers > windows:
        assert states["k_cache"].shape[:4] == (layers - windows, BATCH, 2, rows)
    prompts = sorted(name for name in states if "store" in name or "selected" in name)
    assert prompts == {"indexed": ["k_store", "selected", "v_store"], "everything": []}.get(kept, ["selected"])
    # One scratch for all layers, named after the first one; indexed layers have their prompts instead.
    assert [name for name in states if name.startswith("k_scratch")] == ["k_scratch.window10"]
    session = opened(path)
    session.prefill(0, random_tokens(20))
    assert session.kept(0).kv_bytes == held


def test_inspect_prints_the_groups(artifacts: Artifacts, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(artifacts("gemma3", "indexed"))]) == 0
    text = capsys.readouterr().out
    assert "layers     3 of 5 layers: 4/2 heads of 8, the last 10 rows (sliding window)\n" in text
    assert "layers     2 of 5 layers: 4/2 heads of 8, 16 rows: sink 2, recent 9, top-K 5\n" in text
    assert "looping    decode: 4 layers in one launch of" in text
    assert cli.main(["inspect", str(artifacts("mistral")), "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)["signature"]["plan"]["groups"]
    assert (group["layers"], group["geometry"]["window"]) == ([0, 1], WINDOW)
    assert cli.main(["inspect", str(artifacts("mistral"))]) == 0
    assert "all layers: 4/2 heads of 8, the last 10 rows (sliding window)\n" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------- slots and goldens


@pytest.mark.parametrize("kept", ["small", "indexed", "int8"])
@pytest.mark.parametrize("length", [2 * WINDOW + 8, WINDOW - 3])
def test_a_slot_of_mixed_layers_is_copied(kept: str, length: int, artifacts: Artifacts) -> None:
    session = opened(artifacts("qwen2", kept))
    prompt, tokens = random_tokens(length), random_tokens(WINDOW + 3, seed=2)
    session.prefill(1, prompt)
    snapshot = session.snapshot(1)
    states = session.rows.copies[snapshot.rows.number]
    parts = (*states.values(), *snapshot.selected.values())
    assert snapshot.nbytes == session.snapshot_bytes(1) == sum(part.nbytes for part in parts)
    assert {name.rpartition(".")[2] for name in states if "." in name} == {"window10"}
    assert states["k_cache.window10"].shape[2] == min(length, WINDOW)
    expected = [session.decode({1: token})[1].copy() for token in tokens]
    session.prefill(0, random_tokens(40, seed=3))  # another prompt, over whose rows the copy goes
    session.decode({0: 5})
    session.restore(0, snapshot)
    assert all(np.array_equal(session.decode({0: t})[0], row) for t, row in zip(tokens, expected, strict=True))


@pytest.mark.parametrize(
    ("family", "kept", "opt_level", "interpreter"),
    [
        ("gemma3", "small", 0, "reference"),
        ("gemma3", "small", 2, "native"),
        ("qwen2", "int8", 2, "native"),  # the cache is encoded, the prompt's rows are not
        ("gemma4", "query", 2, "native"),  # layers with windows have a separate scratch
        ("mistral", "everything", 0, "reference"),
        ("mistral", "int8", 2, "native"),  # the ring is encoded; prefill attends to the plain rows
    ],
)
def test_a_prompt_continues_another_bit_for_bit(
    family: str, kept: str, opt_level: int, interpreter: str, artifacts: Artifacts
) -> None:
    """A prompt continues after a chunk before the first window is full, and after one behind several windows."""
    check_continued(opened(artifacts(family, kept, opt_level), interpreter), (1,), 3)


def test_goldens_of_a_mixed_stack_are_met(
    artifacts: Artifacts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = met_golden(artifacts, "gemma3", "small", tmp_path / "a.rdu")
    assert [golden.tensors[f"k_cache.{layer}"].shape[1] for layer in range(5)] == [10, 16, 10, 16, 10]
    assert [layer for layer in range(5) if f"selected.{layer}" in golden.tensors] == [1, 3]
    assert "agrees" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.usefixtures("exports_anew")
def test_a_window_that_only_a_mask_of_the_models_own_knows_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither a keyword nor the mask that transformers makes tells attention: the window would be lost."""
    attend = modeling_mistral.MistralAttention.forward

    def forward(self: Any, *args: Any, **keywords: Any) -> Any:
        config, self.config = self.config, copy.copy(self.config)
        self.config.sliding_window = None
        try:
            return attend(self, *args, **keywords)
        finally:
            self.config = config

    monkeypatch.setattr(modeling_mistral.MistralAttention, "forward", forward)
    monkeypatch.setattr(modeling_mistral, "create_sliding_window_causal_mask", lambda **keywords: None)
    random_model("mistral").save_pretrained(tmp_path)
    options = {**cache_options(EVERYTHING), "prefill_chunk": CHUNK}
    window = "a sliding window of 10 positions"
    cause = like(CaptureErrors.WINDOW_DIFFERS, layer=0, field="sliding_window", expected=window, window="all positions")
    with raises(CompilationErrors.NOT_CAPTURED, cause=cause):
        compile_model(CompileOptions(tmp_path, tmp_path / "a.mlir", compile_to="import", **options))


@pytest.mark.parametrize("error", [1, -1])
def test_the_probe_notices_a_window_that_is_off_by_one(
    error: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    exact = operator.causal_attention

    def causal_attention(q: Any, k: Any, v: Any, scale: float, window: Span, *softmax: Any) -> Any:
        return exact(q, k, v, scale, Span(window.size + error) if window else window, *softmax)

    random_model("qwen2").save_pretrained(tmp_path)
    options = {**cache_options(EVERYTHING), "prefill_chunk": CHUNK}
    monkeypatch.setattr(operator, "causal_attention", causal_attention)
    with raises(ProbeErrors.CAPTURED_DIFFERS):
        compile_model(CompileOptions(tmp_path, tmp_path / "a.mlir", compile_to="import", **options))
