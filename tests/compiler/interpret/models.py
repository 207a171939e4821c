"""Tiny models at level graph, with their weights, and what eager PyTorch makes of them."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend.capture import config_constants
from sscc.compiler.frontend.construction import build_model
from sscc.compiler.frontend.eager import EagerSnapStream
from sscc.compiler.options.compile_options import CompileOptions
from sscc.ir.geometry import Geometry
from tests.families import random_model, random_tokens

GEOMETRY = Geometry(sink=2, recent=8, topk=6, obs=4, pool=3, pool_mode="avg", max_context=64)
CHUNK, BATCH, SLOT = 8, 2, 1
PROMPT, TOKENS = random_tokens(29), random_tokens(5, 1)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def shape_options(dtype: str = "f32") -> dict[str, object]:
    """Return the options with which CompileOptions makes GEOMETRY."""
    g = GEOMETRY
    rows = {f"kv_{name}": getattr(g, name) for name in ("sink", "recent", "topk", "obs", "pool", "pool_mode")}
    return {**rows, "max_context": g.max_context, "batch": BATCH, "prefill_chunk": CHUNK, "dtype": dtype}


@cache
def graph(family: str, dtype: str) -> str:
    """The module of level graph, as text."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        random_model(family).config.save_pretrained(folder)
        options = CompileOptions(
            model=folder / "config.json",
            output=folder / "out.mlir",
            compile_to="graph",
            weights="none",
            **shape_options(dtype),  # type: ignore[arg-type]
        )
        compile_model(options)
        return options.output_path.read_text()


def weights(family: str, dtype: str = "f32") -> dict[str, Tensor]:
    """Weights and constants by the names that the module has for them."""
    return weights_of(random_model(family, DTYPES[dtype]), dtype)


def weights_of(model: PreTrainedModel, dtype: str = "f32") -> dict[str, Tensor]:
    """Those of any model that was compiled for this context."""
    built = build_model(deepcopy(model.config), DTYPES[dtype])
    return {**model.state_dict(), **config_constants(built, GEOMETRY.max_context)}


def eager(family: str, dtype: str = "f32") -> EagerSnapStream:
    model = deepcopy(random_model(family, DTYPES[dtype]))
    model.set_attn_implementation("sscc")
    return EagerSnapStream(model, GEOMETRY)
