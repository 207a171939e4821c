"""Whether a tiny model of a type, compiled and run by the native interpreter, decodes as transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from sscc.compiler.driver import compile_model
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.options import CompileOptions, cache_options
from sscc.ir.errors import UnsupportedError
from sscc.runtime.artifact.reading import Artifact
from tests.families import CHUNK, GEOMETRY, random_tokens
from tests.native import native_session
from tests.tiny_configs import WINDOW, random_model, tiny_config

PROMPT = 40
"""Tokens: several chunks, and more than any window."""
NEW_TOKENS = 24
EXACT = 1e-4
"""How far a row of logits may be from transformers', of its norm: both sum in f32, in another order."""

assert max(WINDOW, 2 * CHUNK) < PROMPT
assert GEOMETRY.sink_recent >= PROMPT + NEW_TOKENS


class Disagreement(Exception):
    """A compiled model computes something else than transformers."""


def agreement(model_type: str, folder: Path, variation: str = "") -> str:
    """Compiles the tiny model of a type and decodes greedily with it.

    Args:
        folder: for checkpoint and artifact.
        variation: of `tiny_configs.VARIATIONS`; where transformers builds no model of it, nor is it compiled.

    Returns:
        The type of the text decoder that was compiled of a composite model, else "".

    Raises:
        Disagreement: tokens differ, or logits by more than rounding.
        SsccError: it does not compile.
    """
    config = tiny_config(model_type, variation)
    checkpoint, output = folder / "checkpoint", folder / "model.rdu"
    shape = cache_options(GEOMETRY) | {"batch": 2, "prefill_chunk": CHUNK, "dtype": "f32"}
    try:
        model = random_model(config)
    except Exception as error:
        # transformers builds no such model, and neither need we, where a config says enough to be refused.
        _refuse_config(config, folder, shape)
        if variation:
            raise UnsupportedError(f"transformers builds no such model: {error}") from error
        raise
    model.save_pretrained(checkpoint)
    compile_model(CompileOptions(checkpoint, output, native_code=False, **shape))
    artifact = Artifact.load(output)
    prompt = random_tokens(PROMPT)
    tokens, theirs = eager_generate(model, prompt, NEW_TOKENS)
    session = native_session(artifact, threads=1)
    rows = [session.prefill(1, prompt)]
    for token in tokens[:-1]:
        rows.append(session.decode({1: token})[1].clone())
    ours = torch.stack(rows)
    distance = ((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).max().item()
    if not distance <= EXACT:
        first = int(((ours - theirs).norm(dim=1) > EXACT * theirs.norm(dim=1)).nonzero()[0])
        raise Disagreement(f"logits differ by {distance:.1e} normwise, from new token {first} on")
    if ours.argmax(1).tolist() != tokens:
        raise Disagreement("tokens differ")
    compiled = open_checkpoint(checkpoint, weights=False).config
    assert compiled is not None
    return "" if compiled.model_type == config.model_type else compiled.model_type


def _refuse_config(config: PreTrainedConfig, folder: Path, shape: dict[str, Any]) -> None:
    """Raises UnsupportedError where a config is refused."""
    config.save_pretrained(folder)
    file, output = folder / "config.json", folder / "model.mlir"
    try:
        compile_model(CompileOptions(file, output, weights="none", compile_to="import", **shape))
    except UnsupportedError:
        raise
    except Exception:
        return


def eager_generate(model: PreTrainedModel, prompt: list[int], count: int) -> tuple[list[int], Tensor]:
    """transformers' own greedy `generate`: `count` tokens and the logits [count, V] they were chosen by."""
    model.generation_config = GenerationConfig()  # no token ends a text, and none is forced or suppressed
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits).float()
