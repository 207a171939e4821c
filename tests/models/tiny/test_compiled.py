"""The accuracy gate on the compiled program: the schedule, executed natively and once by the reference interpreter.

Every query is prefilled in chunks and compressed by the program; then its last token is replayed as a decode
step, so that the answer comes out of the compressed cache. (Scored on prefill's logits the gate could not fail:
those see the whole prompt.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

import sscc
from sscc.ir.geometry import Geometry
from tests.families import adapted
from tests.models.tiny.task import LENGTH, fixed_queries
from tests.models.tiny.test_tiny import FOLDER, ROWS_32, ROWS_64, STREAMING
from tests.torch_session import TorchSession

FULL = Geometry(sink=4, recent=LENGTH - 4, topk=0, obs=8, pool=7, pool_mode="avg", max_context=LENGTH)


Compile = Callable[[Geometry], Path]


@pytest.fixture(scope="module")
def compiled_for(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """`compiled_for(geometry)`: an artifact. The model is captured once, and compiled once per geometry."""
    captured = tmp_path_factory.mktemp("captured") / "import.mlir"
    sscc.compile(FOLDER, output=captured, compile_to="import", max_context=LENGTH, prefill_chunk=256)

    @cache
    def compiled(geometry: Geometry) -> Path:
        folder = tmp_path_factory.mktemp("compiled")
        adapted(captured, folder / "import.mlir", geometry)
        options = {"compile_from": "import", "checkpoint": FOLDER}
        return sscc.compile(folder / "import.mlir", output=folder / "out.rdu", **options).path

    return compiled


def accuracy(artifact: Path, interpreter: str) -> float:
    """The share of the first 64 fixed queries that a program answers; on the reference, which is slow, of 40."""
    session = TorchSession(sscc.load(artifact, interpreter=interpreter))
    queries = fixed_queries()[: 40 if interpreter == "reference" else 64]
    right = 0
    for query in queries:
        session.prefill(0, query.prompt)
        right += _replayed(session, query.prompt[-1]) == query.answer
    return right / len(queries)


def _replayed(session: TorchSession, last: int) -> int:
    """The token that follows when the last prompt token is decoded again at its own position."""
    inputs = {
        "token": torch.tensor([[last]]),
        "position": torch.tensor([LENGTH - 1]),
        "prompt_len": torch.tensor([LENGTH]),
        "active": torch.tensor([True]),
    }
    outputs, _ = session.interpreter.run("decode", inputs)
    return int(outputs["logits"][0].argmax())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("geometry", "interpreter", "low", "high"),
    [
        (FULL, "native", 0.97, 1.0),
        (ROWS_64, "native", 0.96, 1.0),
        (ROWS_32, "native", 0.93, 1.0),
        (ROWS_32, "reference", 0.93, 1.0),
        (STREAMING, "native", 0.0, 0.1),
    ],
    ids=["full", "64 rows", "32 rows", "32 rows on the reference", "32 rows without top-K"],
)
def test_accuracy_of_the_compiled_program(
    compiled_for: Compile,
    geometry: Geometry,
    interpreter: str,
    low: float,
    high: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSCC_NATIVE_OPTIMISE", "2")
    assert low <= accuracy(compiled_for(geometry), interpreter) <= high
