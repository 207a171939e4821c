"""LFM2: layers with a short convolution, whose state is its last inputs, beside layers that attend."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import conv1d
from transformers import Lfm2Config, PreTrainedConfig, PreTrainedModel

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend.eager import EagerQuerySelection, EagerSnapStream
from sscc.compiler.frontend.short_convolution import ConvolutionRecogniser, convolved, convolving
from sscc.compiler.options.compile_options import CompileOptions, cache_options
from sscc.compiler.tools.commands import cli
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from tests.compiler import small_stacks
from tests.compiler.small_stacks import (
    BATCH,
    CACHES,
    EVERYTHING,
    Artifacts,
    check_company,
    check_continued,
    check_in_pieces,
    check_levels,
    check_loops,
    decoded_by_ranks,
    decoded_side_by_side,
    eager_model,
    errors_in_bf16,
    fed,
    loaded,
    met_golden,
    opened,
)
from tests.families import random_tokens

MIXED = ["conv", "conv", "full_attention", "conv", "conv", "full_attention"]
CONFIGS: dict[str, PreTrainedConfig] = {
    "three": Lfm2Config(**small_stacks.SHAPE, num_hidden_layers=6, layer_types=MIXED),
    "biased": Lfm2Config(**small_stacks.SHAPE, num_hidden_layers=6, layer_types=MIXED, conv_bias=True),
    "four": Lfm2Config(
        **small_stacks.SHAPE, num_hidden_layers=3, layer_types=["full_attention", "conv", "conv"], conv_L_cache=4
    ),
    "two": Lfm2Config(**small_stacks.SHAPE, num_hidden_layers=2, layer_types=MIXED[1:3], conv_L_cache=2),
}
"""By the taps of the convolution, or "biased", which has three of them."""
NEW = 12


@cache
def random_model(family: str, dtype: str = "f32", attention: str = "eager") -> PreTrainedModel:
    return small_stacks.random_model(CONFIGS[family], attention, dtype)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    folder = tmp_path_factory.mktemp("convolutions")
    return small_stacks.artifacts_in(folder, random_model, lambda _, kept: CACHES[kept], "everything")


@cache
def generated(family: str, length: int) -> list[int]:
    return small_stacks.generated(random_model(family), length, NEW)


@pytest.mark.parametrize(
    ("family", "opt_level", "interpreter"),
    [
        ("three", 0, "reference"),
        ("three", 2, "native"),
        *((family, 2, "native") for family in ("biased", "four", "two")),
    ],
)
def test_tokens_are_those_of_transformers_generate(
    family: str, opt_level: int, interpreter: str, artifacts: Artifacts
) -> None:
    """Two slots decode side by side: after prompts shorter than the filter, of a chunk, and of several."""
    session = opened(artifacts(family, "everything", opt_level), interpreter)
    for lengths in ((1, 40), (7, 2), (8, 21)):
        assert decoded_side_by_side(session, lengths, NEW) == [generated(family, length) for length in lengths]


def test_a_convolution_is_not_without_effect() -> None:
    """Without it the tokens that the other tests compare would show nothing."""
    ids = torch.tensor([random_tokens(5)])
    changed = ids.clone()
    changed[0, 0] += 1
    layer = random_model("two").model.layers[0]
    with torch.no_grad():
        ours, theirs = (layer.conv(random_model("two").model.embed_tokens(each)) for each in (ids, changed))
    assert not torch.allclose(ours[0, 1], theirs[0, 1], atol=1e-3)
    assert torch.equal(ours[0, 2:], theirs[0, 2:])


@pytest.mark.parametrize("length", [23, 1])
@pytest.mark.parametrize("kept", ["small", "query"])
def test_levels_agree_with_each_other_and_with_eager_pytorch(kept: str, length: int, artifacts: Artifacts) -> None:
    g = CACHES[kept]
    model = eager_model(random_model, "three")
    eager = EagerQuerySelection(model, g, g.key_bits) if g.by_query else EagerSnapStream(model, g)
    prompt, tokens = random_tokens(length), random_tokens(16, seed=1)
    check_levels(artifacts, "three", kept, eager, prompt, tokens, looped=kept == "small")


def test_bf16_is_as_close_to_the_truth_as_eager_bf16(artifacts: Artifacts) -> None:
    """Against f32 arithmetic on the same bf16 weights, our error is that of transformers' own bf16 run, within 1.5."""
    session, model = opened(artifacts("biased", dtype="bf16")), partial(random_model, "biased")
    our_error, their_error, _ = errors_in_bf16(session, model, random_tokens(25), random_tokens(20, seed=1))
    assert 0 < our_error <= 1.5 * their_error


def test_a_slot_alone_has_the_bits_of_a_slot_in_company(artifacts: Artifacts) -> None:
    check_company(opened(artifacts("three", "small")))


def test_a_prompt_in_pieces_between_steps_has_the_logits_of_the_whole(artifacts: Artifacts) -> None:
    check_in_pieces(opened(artifacts("three", "small")))


@pytest.mark.parametrize("kept", ["small", "query"])
@pytest.mark.parametrize("length", [1, 23])
def test_a_slot_is_copied(kept: str, length: int, artifacts: Artifacts) -> None:
    """A slot is also copied right after a prompt shorter than the filter, into a slot with another text."""
    session = opened(artifacts("three", kept))
    prompt, tokens = random_tokens(length), random_tokens(13, seed=2)
    session.prefill(1, prompt)
    snapshot = session.snapshot(1)
    states = session.rows.copies[snapshot.rows.number]
    assert states["inputs_cache.convolution"].shape == (4, 1, 2, 32)
    expected = [session.decode({1: token})[1].copy() for token in tokens]
    session.prefill(0, random_tokens(40, seed=3))
    session.decode({0: 5})
    session.restore(0, snapshot)
    assert all(np.array_equal(session.decode({0: t})[0], row) for t, row in zip(tokens, expected, strict=True))


@pytest.mark.parametrize("length", [2, 23])
def test_a_slot_is_sent(length: int, artifacts: Artifacts, tmp_path: Path) -> None:
    path, tokens = artifacts("three", "small"), random_tokens(13, seed=2)
    first, second = (Session.from_artifact(loaded(path), interpreter="reference") for _ in range(2))
    expected = fed(first, random_tokens(length), tokens, slot=1)
    first.prefill(1, random_tokens(length))
    first.save_slot(1, tmp_path / "slot")
    second.load_slot(0, tmp_path / "slot")
    assert all(np.array_equal(second.decode({0: t})[0], row) for t, row in zip(tokens, expected[1:], strict=True))


@pytest.mark.parametrize(
    ("kept", "opt_level", "interpreter"), [("small", 0, "reference"), ("small", 2, "native"), ("query", 2, "native")]
)
def test_a_prompt_continues_another_bit_for_bit(
    kept: str, opt_level: int, interpreter: str, artifacts: Artifacts
) -> None:
    """The inputs before a chunk are kept with the chunk before it."""
    check_continued(opened(artifacts("three", kept, opt_level), interpreter), (1, 2), 5)


def test_the_layers_loop_as_periods(artifacts: Artifacts) -> None:
    check_loops(artifacts("three"), 6)


def test_inspect_prints_the_convolutions(artifacts: Artifacts, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(artifacts("three", "small"))]) == 0
    text = capsys.readouterr().out
    assert "4 of 6 layers: the last 2 inputs of a convolution of 32 channels\n" in text
    assert "2 of 6 layers: 4/2 heads of 8, 16 rows" in text
    groups = json.loads((artifacts("three", "small") / "manifest.json").read_text())["groups"]
    assert [group["layers"] for group in groups] == [[0, 1, 3, 4], [2, 5]]


def test_goldens_are_met(artifacts: Artifacts, tmp_path: Path) -> None:
    golden = met_golden(artifacts, "three", "small", tmp_path / "a.rdu")
    assert [golden.tensors[f"inputs_cache.{layer}"].shape for layer in (0, 1, 3, 4)] == [(1, 2, 32)] * 4


@pytest.mark.parametrize("ranks", [2])
def test_channels_are_cut_over_ranks(ranks: int, artifacts: Artifacts, tmp_path: Path) -> None:
    checkpoint, out = artifacts("three").with_name("three.f32"), tmp_path / "cut.rdu"
    shape = cache_options(EVERYTHING) | {"batch": BATCH, "prefill_chunk": small_stacks.CHUNK}
    compile_model(CompileOptions(checkpoint, out, tp=ranks, native_code=False, **shape))
    artifact = Artifact.load(out)
    states = {tensor.name: tensor.shape for tensor in artifact.program.tensors if tensor.role == "state"}
    assert states["inputs_cache.convolution"] == (4, BATCH, 1, 2, 32 // ranks)

    assert decoded_by_ranks(artifact, ranks, 21, NEW) == [generated("three", 21)] * ranks


# ------------------------------------------------------------------------------------------------- recognition


def _run(reads: Any, padding: int = 2, **settings: Any) -> tuple[torch.Tensor, list[Any]]:
    """Return what a reader gives of a convolution in a layer, and the calls of the operator."""
    calls: list[Any] = []
    x, weight = torch.randn(2, 6, 9), torch.randn(6, 1, 3)

    def note(*arguments: Any) -> torch.Tensor:
        calls.append(arguments)
        return convolved(torch.nn.functional.pad(arguments[0], (2, 0)), *arguments[1:3])


    recogniser = ConvolutionRecogniser()
    recogniser.layer = 4
    with convolving(note), recogniser:
        out = reads(conv1d(x, weight, padding=padding, groups=6, **settings))
    expected = reads(conv1d(x, weight, padding=padding, groups=6, **settings))
    assert torch.allclose(out, expected, atol=1e-6)
    return out, calls


@pytest.mark.parametrize("reads", [lambda y: y[..., :9], lambda y: y[:, :, :9], lambda y: y[:, :, 0:9]])
def test_a_causal_convolution_is_recognised(reads: Any) -> None:
    _, calls = _run(reads)
    assert [call[3] for call in calls] == [4]


@pytest.mark.parametrize(
    ("reads", "settings"),
    [
        (lambda y: y[..., 2:], {}),
        (lambda y: y[..., -9:], {}),
        (lambda y: y[:, :9], {}),
        (lambda y: y.mul_(2)[..., :9], {}),
        (lambda y: y, {}),
        (lambda y: y[..., :9], {"padding": 1}),
        (lambda y: y[..., :9], {"padding": 4, "dilation": 2}),
        (lambda y: y[..., :4], {"stride": 2}),
    ],
    ids=[
        *("the last columns", "from the end", "channels", "written over", "all columns"),
        *("padding", "dilation", "stride"),
    ],
)
def test_another_convolution_is_not(reads: Any, settings: dict[str, Any]) -> None:
    _, calls = _run(reads, **settings)
    assert not calls
