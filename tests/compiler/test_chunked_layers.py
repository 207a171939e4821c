"""Layers whose queries see their chunk of the text alone, as Llama 4 has them, with its experts and its temperature."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Llama4TextConfig, PreTrainedModel

from sscc.compiler.driver.driver import CompilationErrors, compile_model
from sscc.compiler.frontend import operator, sparse_experts
from sscc.compiler.frontend.capture import CaptureErrors
from sscc.compiler.frontend.probe import ProbeErrors
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.ir.errors import SsccError, UnsupportedError
from sscc.ir.geometry import Geometry, Span
from tests.captures import exports_anew
from tests.compiler import small_stacks
from tests.compiler.small_stacks import CHUNK, CONTEXT, SHAPE, WINDOW, Artifacts, check_continued, loaded, opened
from tests.errors import check
from tests.families import random_tokens

LLAMA4 = Llama4TextConfig(
    **SHAPE,
    intermediate_size_mlp=48,
    num_hidden_layers=2,
    head_dim=8,
    attention_chunk_size=WINDOW,
    layer_types=["chunked_attention", "full_attention"],
    no_rope_layers=[1, 0],  # the second has no rotary embedding, and a temperature
    floor_scale=WINDOW + 3,
    attn_temperature_tuning=True,
    moe_layers=[1],
    num_local_experts=4,
    num_experts_per_tok=2,
    rope_parameters={"rope_type": "default", "rope_theta": 1e4},
)
ALONE = copy.deepcopy(LLAMA4)
ALONE.num_hidden_layers, ALONE.layer_types, ALONE.no_rope_layers, ALONE.moe_layers = 1, ["chunked_attention"], [1], []
CONFIGS = {"llama4": LLAMA4, "alone": ALONE}
EVERYTHING = Geometry(sink=0, recent=CONTEXT, topk=0, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT)
PROMPTS = {0: 3 * WINDOW + 3, 1: WINDOW - 4}
"""By slot: a prompt of several chunks, whose parts of 7 do not divide them, and one within the first."""
NEW = 2 * WINDOW


@cache
def random_model(family: str, dtype: str = "f32") -> PreTrainedModel:
    return small_stacks.random_model(CONFIGS[family], "eager", dtype)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    folder = tmp_path_factory.mktemp("chunks")
    return small_stacks.artifacts_in(folder, random_model, lambda *_: EVERYTHING, "everything")


@cache
def generated(length: int) -> tuple[list[int], np.ndarray]:
    """Return the tokens that transformers generates from a random prompt of `length` tokens, and their logits."""
    out = random_model("llama4").generate(
        torch.tensor([random_tokens(length)]), max_new_tokens=NEW, do_sample=False, pad_token_id=0,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    return out.sequences[0, length:].tolist(), torch.cat(out.logits).float().numpy()


@pytest.mark.parametrize(("opt_level", "interpreter"), [(0, "reference"), (1, "native"), (2, "native")])
def test_tokens_are_those_of_transformers_generate(opt_level: int, interpreter: str, artifacts: Artifacts) -> None:
    """Two slots decode side by side, each beyond several borders of chunks."""
    session = opened(artifacts("llama4", "everything", opt_level), interpreter)
    rows = {slot: [session.prefill(slot, random_tokens(n)).copy()] for slot, n in PROMPTS.items()}
    for _ in range(NEW - 1):
        logits = session.decode({slot: int(of_slot[-1].argmax()) for slot, of_slot in rows.items()})
        for slot, of_slot in rows.items():
            of_slot.append(logits[slot].copy())
    for slot, length in PROMPTS.items():
        tokens, theirs = generated(length)
        ours = np.stack(rows[slot])
        assert ours.argmax(1).tolist() == tokens
        assert np.abs(ours - theirs).max() <= 1e-4
        assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.999999


def test_a_prompt_continues_another_bit_for_bit(artifacts: Artifacts) -> None:
    """From within the first chunk, and from behind several."""
    check_continued(opened(artifacts("alone")), (1, 3), WINDOW)


def test_the_manifest_and_inspect_know_the_chunks(artifacts: Artifacts) -> None:
    path = artifacts("llama4", "everything", 2)
    chunked, other = json.loads((path / "manifest.json").read_text())["groups"]
    assert (chunked["name"], chunked["layers"], other["layers"]) == (f"chunk{WINDOW}", [0], [1])
    kept = {name: chunked["geometry"][name] for name in ("sink", "recent", "topk", "window", "window_stride")}
    assert kept == {"sink": 0, "recent": WINDOW, "topk": 0, "window": WINDOW, "window_stride": WINDOW}
    assert not {"window", "window_stride"} & other["geometry"].keys()
    text = loaded(path).signature.groups_in_words()[0]
    assert text == "1 of 2 layers: 4/2 heads of 8, the rows of a chunk of 10"


def refused(tmp_path: Path) -> SsccError:
    random_model("llama4").save_pretrained(tmp_path)
    options: dict[str, Any] = {**cache_options(EVERYTHING), "prefill_chunk": CHUNK}
    with exports_anew(), pytest.raises(UnsupportedError) as refusal:
        compile_model(CompileOptions(tmp_path, tmp_path / "a.mlir", compile_to="import", **options))
    return refusal.value


def test_the_probe_notices_a_chunk_that_is_off_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = operator.causal_attention

    def causal_attention(q: Any, k: Any, v: Any, scale: float, window: Span, *softmax: Any) -> Any:
        return exact(q, k, v, scale, Span(window.size + 1, window.size + 1) if window else window, *softmax)

    monkeypatch.setattr(operator, "causal_attention", causal_attention)
    check(refused(tmp_path), ProbeErrors.CAPTURED_DIFFERS)


def test_experts_whose_other_rows_are_not_zeros_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where an activation gave something else than 0 for 0."""
    monkeypatch.setattr(sparse_experts, "_same", lambda func, value, *_: 0.5)
    error = refused(tmp_path)
    check(error, CompilationErrors.NOT_CAPTURED_BECAUSE, cause=CaptureErrors.EXPERT_PRODUCTS)
    expected = {"module": "model.layers.1.feed_forward.experts", "products": 0, "expected": 2}
    assert error.fields["cause"]["fields"] == expected
