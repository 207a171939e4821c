"""Frequencies that depend on the length of the text are, in a program, those of a text that fills its context."""

from __future__ import annotations

import logging
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, PreTrainedConfig

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend import probe
from sscc.compiler.frontend.probe import ProbeErrors
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.ir.geometry import Geometry
from tests.compiler.small_stacks import SHAPE, fed, opened
from tests.errors import raises
from tests.families import random_tokens

FIRST, CONTEXT = 16, 48
"""Positions with the frequencies of short texts, and those of the program."""
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.3, 1.6],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": FIRST,
}
SMALL = SHAPE | {"num_hidden_layers": 1}
CONFIGS: dict[str, PreTrainedConfig] = {
    "longrope": Phi3Config(
        **(SMALL | {"max_position_embeddings": CONTEXT}), rope_parameters=LONGROPE,
        original_max_position_embeddings=FIRST,
    ),
    "dynamic": LlamaConfig(
        **(SMALL | {"max_position_embeddings": FIRST}),
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e2, "factor": 3.0},
    ),
}  # fmt: skip


OPTIONS: dict[str, Any] = cache_options(Geometry(0, CONTEXT, 0, 4, 3, "avg", CONTEXT)) | {
    "batch": 1, "prefill_chunk": 7, "dtype": "f32",
}  # fmt: skip


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_text_that_fills_the_context_has_the_models_own_frequencies(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reference is one run of transformers over the whole text: while it generates, the keys of the tokens before
    keep the frequencies of shorter texts."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(deepcopy(CONFIGS[kind]), attn_implementation="eager").eval()
    model.save_pretrained(tmp_path / "checkpoint")
    output, text = tmp_path / "model.rdu", random_tokens(CONTEXT)
    with caplog.at_level(logging.WARNING):
        compile_model(CompileOptions(tmp_path / "checkpoint", output, native_code=False, **OPTIONS))
    assert f"all positions get the rotary frequencies ({kind}) of a text of {CONTEXT} tokens" in caplog.text
    ours = fed(opened(output), text[:-9], text[-9:])
    with torch.no_grad():
        runs = (model(torch.tensor([text[:length]]), use_cache=False) for length in (CONTEXT, FIRST - 1))
        theirs, short = (run.logits[0].numpy() for run in runs)
    assert abs(ours - theirs[-10:]).max() <= 1e-4
    assert abs(short - theirs[: FIRST - 1]).max() > 1e-2  # or else this shows nothing


def test_the_probe_notices_the_frequencies_of_short_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(deepcopy(CONFIGS["longrope"])).save_pretrained(tmp_path / "checkpoint")
    fixed = probe.fixed_frequencies
    monkeypatch.setattr(probe, "fixed_frequencies", lambda model, length: fixed(model, 1))
    with raises(ProbeErrors.CAPTURED_DIFFERS):
        compile_model(CompileOptions(tmp_path / "checkpoint", tmp_path / "m.mlir", compile_to="import", **OPTIONS))
