"""Comparisons of compiled models with transformers' own decoding, the definition, the independent SnapStream, and each
other at all levels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.eager import EagerSnapStream
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.ir.errors import UnsupportedError
from sscc.runtime.session.artifact import Artifact
from tests.families import (
    CHUNK,
    GEOMETRY,
    CompiledModel,
    Compiler,
    feed,
    greedy,
    random_tokens,
    selected,
)
from tests.native import native_session
from tests.tiny_configs import WINDOW, random_model, tiny_config
from tests.torch_session import TorchSession

PROMPT = 40
"""Tokens: several chunks, and more than any window."""
NEW_TOKENS = 24
EXACT = 1e-4
"""Tolerance for the logits of a step, relative to their norm: transformers also sums in f32, but in another order."""
NEAR = 1e-4
"""Tolerance for a single logit in f32, of up to 8.4. Largest measured error over all families: 2.2e-5."""
SCORE_TIE = 1e-5
"""Pooled scores are sums of up to 6 probabilities, each off by about as much as the logits of attention (1e-6)."""

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
    except ImportError:
        text = config.get_text_config()
        if text is config:
            raise
        # Another part of the model wants a package that is not here: its text decoder is found, and examined alone.
        config.save_pretrained(folder)
        file = folder / "config.json"
        compile_model(CompileOptions(file, folder / "model.mlir", weights="none", compile_to="import", **shape))
        return agreement(text.model_type, folder) or str(text.model_type)
    except Exception as error:
        # transformers cannot build such a model; sscc need not, because its config is enough to refuse it.
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


def check_generation(
    model: PreTrainedModel, sessions: Iterable[TorchSession], prompt: Sequence[int], count: int
) -> None:
    """Asserts that sessions decode greedily as transformers' own `generate` does: tokens and logits."""
    tokens, logits = _generated(model, tuple(prompt), count)
    for session in sessions:
        ours, our_logits = greedy(session, prompt, count)
        assert (our_logits - logits).abs().max() < NEAR
        assert ours == tokens
    assert len(set(tokens)) > 4, "a model that repeats itself shows little: take another seed"


@cache
def _generated(model: PreTrainedModel, prompt: tuple[int, ...], count: int) -> tuple[list[int], Tensor]:
    return eager_generate(model, list(prompt), count)


def check_definition(
    definition: EagerSnapStream, sessions: Iterable[TorchSession], prompt: Sequence[int], tokens: Sequence[int]
) -> None:
    """Asserts that sessions compute the logits of the definition, run eagerly over its own caches."""
    expected = torch.stack([definition.prefill(prompt), *map(definition.decode, tokens)])
    for session in sessions:
        assert (feed(session, prompt, tokens) - expected).abs().max() < NEAR


def check_compressed(program: CompiledModel, session: TorchSession, steps: int, tie: float = SCORE_TIE) -> None:
    """Asserts that a session, whose cache has fewer rows than the prompt, computes what the independent SnapStream
    does.

    Scored from the second generated token on: the first one comes from prefill and never sees the cache.

    Args:
        tie: how near two scores are of which either may be chosen, once.
    """
    oracle, prompt, tokens = program.oracle(), random_tokens(130), random_tokens(steps, seed=1)
    assert (session.prefill(0, prompt) - oracle.prefill(prompt)).abs().max() < NEAR
    assert oracle.count_near_ties(selected(session), tie) <= 1
    oracle.adopt(selected(session))
    for token in tokens:
        ours, theirs = session.decode({0: token})[0], oracle.decode(token)
        assert (ours - theirs).abs().max() < NEAR
    with torch.no_grad():
        full = program.model(input_ids=torch.tensor([prompt + tokens])).logits[0, -1]
    assert (ours - full).abs().max() > 100 * NEAR, "compression changed nothing, so this test shows nothing"


def check_levels(family: str, compiled: Compiler) -> None:
    """Asserts that native code of -O1 and of -O2 agrees bit for bit, and that of -O0 within the rounding of sums."""
    prompt, tokens = random_tokens(10), random_tokens(4, seed=1)
    programs = (compiled(family, opt_level=level) for level in (0, 1, 2))
    zero, one, two = (feed(program.native(), prompt, tokens) for program in programs)
    assert torch.equal(one, two)
    assert (zero - two).norm() / two.norm() < 1e-5
