"""The sampling that a model's generation_config.json states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from sscc.runtime.session.generation_config import GENERATION_FILE, GenerationConfigErrors, default_sampling
from sscc.runtime.session.sampling import Sampling
from tests.errors import raises

LLAMA = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [128001, 128009]}
QWEN = LLAMA | {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1}


def stated(folder: Path, config: Any) -> Sampling:
    (folder / GENERATION_FILE).write_text(config if isinstance(config, str) else json.dumps(config))
    return default_sampling(folder, {GENERATION_FILE})


@pytest.mark.parametrize(
    ("config", "sampling"),
    [
        ({}, Sampling()),
        ({"eos_token_id": 3}, Sampling()),
        (LLAMA, Sampling(0.6, 0, 0.9)),
        (QWEN, Sampling(0.7, 20, 0.8, repetition_penalty=1.1)),
        (QWEN | {"do_sample": False}, Sampling(repetition_penalty=1.1)),
        ({"do_sample": True}, Sampling(1.0)),
        ({"do_sample": True, "top_k": None, "min_p": 0.1, "temperature": 1}, Sampling(1.0, min_p=0.1)),
        ({"do_sample": True, "top_k": -1}, Sampling(1.0)),
    ],
)
def test_what_a_file_states(config: dict[str, Any], sampling: Sampling, tmp_path: Path) -> None:
    assert stated(tmp_path, config) == sampling
    assert default_sampling(tmp_path, ()) == default_sampling(None, ()) == Sampling()


def test_files_that_transformers_writes(tmp_path: Path) -> None:
    GenerationConfig(do_sample=True, temperature=0.5, top_k=7).save_pretrained(tmp_path)
    assert default_sampling(tmp_path, {GENERATION_FILE}) == Sampling(0.5, 7)
    GenerationConfig().save_pretrained(tmp_path)
    assert default_sampling(tmp_path, {GENERATION_FILE}) == Sampling()


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ("{", GenerationConfigErrors.WRONG),
        ("[]", GenerationConfigErrors.WRONG),
        ("[" * 100_000, GenerationConfigErrors.WRONG),
        ({"do_sample": True, "temperature": -1}, GenerationConfigErrors.WRONG),
        ({"do_sample": True, "temperature": "hot"}, GenerationConfigErrors.NOT_A_NUMBER),
        ({"do_sample": True, "top_p": True}, GenerationConfigErrors.NOT_A_NUMBER),
        ('{"do_sample": true, "top_k": 1e400}', GenerationConfigErrors.NOT_A_NUMBER),
        ({"repetition_penalty": 0}, GenerationConfigErrors.WRONG),
    ],
)
def test_what_nobody_can_sample_with(config: Any, kind: GenerationConfigErrors, tmp_path: Path) -> None:
    with raises(kind):
        stated(tmp_path, config)
