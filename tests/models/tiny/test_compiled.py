"""The accuracy gate on the compiled program: the schedule, executed natively and once by the reference interpreter.
Of a dense model, of one with experts and of one with latent rows. Measured over 128 queries: experts 1.0 with the full
cache, 0.938 with 32 rows, 0.031 without top-K; latent rows 1.0, 0.961 and 0.023.

Every query is prefilled in chunks and compressed by the program; then its last token is replayed as a decode
step, so that the answer comes out of the compressed cache. (Scored on prefill's logits the gate could not fail:
those see the whole prompt.)
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import sscc
from sscc.compiler.options.compile_options import cache_options
from sscc.ir.geometry import Geometry
from tests.families import adapted
from tests.models.tiny.task import FOLDERS, LENGTH, fixed_queries
from tests.models.tiny.test_tiny import ROWS_32, STREAMING
from tests.torch_session import TorchSession

FULL = Geometry(sink=4, recent=LENGTH - 4, topk=0, obs=8, pool=7, pool_mode="avg", max_context=LENGTH)

Compile = Callable[[str, Geometry], Path]


@pytest.fixture(scope="module")
def compiled_for(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """`compiled_for(kind, geometry)`: an artifact. A model is captured once, and compiled once per geometry."""

    @cache
    def captured(kind: str) -> Path:
        file = tmp_path_factory.mktemp("captured") / "import.mlir"
        sscc.compile(FOLDERS[kind], output=file, compile_to="import", max_context=LENGTH, prefill_chunk=256)
        return file

    @cache
    def compiled(kind: str, geometry: Geometry) -> Path:
        folder = tmp_path_factory.mktemp("compiled")
        adapted(captured(kind), folder / "import.mlir", geometry)
        options = {"compile_from": "import", "checkpoint": FOLDERS[kind]}
        return sscc.compile(folder / "import.mlir", output=folder / "out.rdu", **options).path

    return compiled


def accuracy(artifact: Path, interpreter: str, count: int) -> float:
    """Return the fraction of the first `count` fixed queries that a program answers."""
    session = TorchSession(sscc.load(artifact, interpreter=interpreter))
    queries = fixed_queries()[:count]
    right = 0
    for query in queries:
        session.prefill(0, query.prompt)
        right += _replayed(session, query.prompt[-1]) == query.answer
    return right / len(queries)


def accuracy_of_second_question(artifact: Path, count: int) -> float:
    """The same where a token cannot be replayed, because the state of a recurrence has taken it in: the question stands
    at the end of the prompt, which chooses the rows that stay, and is asked again."""
    session = sscc.load(artifact, interpreter="native")
    queries = fixed_queries()[:count]
    right = 0
    for query in queries:
        session.prefill(0, list(query.prompt))
        session.decode({0: query.prompt[-2]})
        right += int(session.decode({0: query.prompt[-1]})[0].argmax()) == query.answer
    return right / len(queries)


def _replayed(session: TorchSession, last: int) -> int:
    """The token that follows when the last prompt token is decoded again at its own position."""
    inputs = {
        "token": torch.tensor([[last]]),
        "position_id": torch.tensor([[LENGTH - 1]]),
        "position": torch.tensor([LENGTH - 1]),
        "base": torch.tensor([session.signature.geometry.base(LENGTH)]),
        "active": torch.tensor([True]),
    }
    outputs, _ = session.interpreter.run("decode", inputs)
    return int(outputs["logits"][0].argmax())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "geometry", "interpreter", "count", "low", "high"),
    [
        ("dense", FULL, "native", 32, 0.97, 1.0),
        ("dense", ROWS_32, "native", 64, 0.93, 1.0),
        ("dense", ROWS_32, "reference", 40, 0.93, 1.0),
        ("dense", STREAMING, "native", 32, 0.0, 0.1),
        ("moe", ROWS_32, "native", 128, 0.91, 1.0),
        ("moe", STREAMING, "native", 32, 0.0, 0.1),
        ("mla", ROWS_32, "native", 128, 0.93, 1.0),
        ("mla", STREAMING, "native", 32, 0.0, 0.1),
    ],
    ids=[
        *("full", "32 rows", "32 rows on the reference", "32 rows without top-K"),
        *("experts, 32 rows", "experts, 32 rows without top-K", "latent, 32 rows", "latent, 32 rows without top-K"),
    ],
)
def test_accuracy_of_the_compiled_program(
    compiled_for: Compile,
    kind: str,
    geometry: Geometry,
    interpreter: str,
    count: int,
    low: float,
    high: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSCC_NATIVE_OPTIMISE", "2")
    assert low <= accuracy(compiled_for(kind, geometry), interpreter, count) <= high


ROOM = 8
"""Tokens behind a prompt."""


@pytest.mark.slow
@pytest.mark.parametrize(("geometry", "low", "high"), [(ROWS_32, 0.97, 1.0), (STREAMING, 0.0, 0.1)])
def test_accuracy_of_a_compiled_hybrid(
    geometry: Geometry, low: float, high: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gated delta net, and attention whose rows are chosen: the net alone does not answer."""
    monkeypatch.setenv("SSCC_NATIVE_OPTIMISE", "2")
    shape = cache_options(replace(geometry, max_context=LENGTH + ROOM))
    artifact = sscc.compile(FOLDERS["hybrid"], output=tmp_path / "out.rdu", prefill_chunk=256, **shape).path
    assert low <= accuracy_of_second_question(artifact, 64) <= high


@pytest.mark.slow
@pytest.mark.parametrize(("learnt", "low", "high"), [(True, 0.93, 1.0), (False, 0.0, 0.1)])
def test_accuracy_of_a_compiled_index(
    learnt: bool, low: float, high: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index chooses 32 of 1024 rows for each token: one that scores all positions alike does not answer."""
    monkeypatch.setenv("SSCC_NATIVE_OPTIMISE", "2")
    shutil.copytree(FOLDERS["indexed"], tmp_path / "model")
    if not learnt:
        file = tmp_path / "model" / "model.safetensors"
        tensors = load_file(file)
        flat = {name: tensor * (0 if "weights_proj" in name else 1) for name, tensor in tensors.items()}
        save_file(flat, file, metadata={"format": "pt"})
    artifact = sscc.compile(
        tmp_path / "model", output=tmp_path / "out.rdu", max_context=LENGTH, prefill_chunk=256
    ).path
    assert low <= accuracy(artifact, "native", 64) <= high
