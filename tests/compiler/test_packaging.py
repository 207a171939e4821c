"""Programs whose weights are stacked layers: embedded, referred to, and run on another checkpoint."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sscc.compiler.driver.packaging import PackagingErrors, write_artifact
from sscc.compiler.driver.referred_checkpoints import ReferredCheckpointErrors, remember
from sscc.compiler.driver.sessions import open_session
from sscc.compiler.driver.weight_cache import WeightCacheErrors
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.interpret.signatures import program_signature
from sscc.compiler.options.compile_options import CompileOptions
from sscc.ir.errors import ErrorKind
from sscc.ir.files import FileErrors
from sscc.ir.geometry import Geometry
from sscc.ir.levels import GroupFacts, ProgramFacts
from sscc.ir.looping import Looping
from sscc.ir.schedule import Program, Tensor
from sscc.runtime.artifact.tensor_files import Array, TensorErrors
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from sscc.runtime.support.user_cache import HINT, WEIGHTS
from tests.errors import raises
from tests.limits import largest_file
from tests.runtime.session_program import session_program

GEOMETRY = Geometry(sink=1, recent=4, topk=3, obs=2, pool=3, pool_mode="avg", max_context=32)
FACTS = ProgramFacts(
    batch=2, chunk=8, dtype="f32", layers=3, vocab_size=7, config='{"model_type": "llama"}', digest="", eos=(6,)
)
NAMES = tuple(f"model.layers.{i}.mlp.down_proj.weight" for i in range(3))
SHAPE = (64, 96)
STATES = {"k_cache": (3, 2, 1, 8, 4), "v_cache": (3, 2, 1, 8, 4)}
SIGNATURE = program_signature(FACTS, GEOMETRY, [GroupFacts("", (0, 1, 2), GEOMETRY)], {"": 2}, STATES)
PROGRAM = session_program(
    SIGNATURE,
    tensors=(
        Tensor("down", (3, *SHAPE), "f32", "weight", "hbm", 0, NAMES),
        Tensor("norm", (64,), "f32", "weight", "hbm", 73728, ("model.norm.weight",)),
        Tensor("table", (2, 4), "f32", "constant", "hbm", 73984, ("table.0", "table.1")),
    ),
)
CONSTANTS = {"table.0": torch.zeros(4), "table.1": torch.ones(4, dtype=torch.float64), "unused": torch.ones(3)}
LOOPING = (Looping("decode", "layer", 3),)


def write_checkpoint(folder: Path, seed: int) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(SHAPE, generator=generator) for name in NAMES}
    save_file({**tensors, "model.norm.weight": torch.ones(64).half()}, folder / "model.safetensors")
    return folder


def change(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors if tensor is None else {**tensors, name: tensor}, folder / "model.safetensors")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint", 0)


def package(checkpoint: Path, output: Path, program: Program = PROGRAM, **options: Any) -> list[str]:
    opened = open_checkpoint(checkpoint)
    compile_options = CompileOptions(checkpoint, output, **options)
    return write_artifact(compile_options, program, FACTS, SIGNATURE, opened, CONSTANTS, None, LOOPING)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "weight-cache"))



def loaded(artifact: Path, checkpoint: Path | None = None) -> Session:
    return open_session(Artifact.load(artifact), checkpoint, interpreter="reference")


def stacked(checkpoint: Path) -> Array:
    tensors = load_file(checkpoint / "model.safetensors")
    return np.stack([tensors[name].numpy() for name in NAMES])


@pytest.mark.parametrize("mode", ["embed", "reference"])
def test_a_session_gets_stacked_weights(checkpoint: Path, tmp_path: Path, mode: str) -> None:
    report = package(checkpoint, tmp_path / "x.rdu", weights=mode)
    assert "weights 72.25 KiB" in report[-1]
    session = loaded(tmp_path / "x.rdu")
    assert np.array_equal(session.interpreter.tensor("down"), stacked(checkpoint))
    assert np.array_equal(session.interpreter.tensor("norm"), np.ones(64))
    assert np.array_equal(session.interpreter.tensor("table"), [[0.0] * 4, [1.0] * 4])
    assert Artifact.load(tmp_path / "x.rdu").manifest.looping == LOOPING


def test_both_modes_have_one_digest(checkpoint: Path, tmp_path: Path) -> None:
    digests = set()
    for mode in ("embed", "reference"):
        package(checkpoint, tmp_path / f"{mode}.rdu", weights=mode)
        digests.add(Artifact.load(tmp_path / f"{mode}.rdu").manifest.weights.digest)
    assert len(digests) == 1


@pytest.mark.parametrize("mode", ["embed", "reference"])
def test_another_checkpoint_is_stacked_too(checkpoint: Path, tmp_path: Path, mode: str) -> None:
    package(checkpoint, tmp_path / "x.rdu", weights=mode)
    other = write_checkpoint(tmp_path / "other", 1)
    down = loaded(tmp_path / "x.rdu", other).interpreter.tensor("down")
    assert np.array_equal(down, stacked(other))
    assert not np.array_equal(down, stacked(checkpoint))


CHANGES = {
    "missing": (None, TensorErrors.MISSING, {"expected": "f32 [64, 96]"}),
    "shape": (torch.zeros(96, 64), TensorErrors.OTHER_TENSOR, {"dtype": "float32", "shape": [96, 64]}),
}


@pytest.mark.parametrize(("tensor", "kind", "fields"), CHANGES.values(), ids=CHANGES)
def test_a_checkpoint_that_does_not_fit(
    checkpoint: Path, tmp_path: Path, tensor: torch.Tensor | None, kind: ErrorKind, fields: dict[str, Any]
) -> None:
    package(checkpoint, tmp_path / "embedded.rdu")
    package(checkpoint, tmp_path / "referring.rdu", weights="reference")
    change(checkpoint, NAMES[1], tensor)
    for mode in ("embed", "reference"):
        with raises(kind, where=str(checkpoint), tensor=NAMES[1], **fields):
            package(checkpoint, tmp_path / "new.rdu", weights=mode)
    assert not (tmp_path / "new.rdu").exists()
    for artifact in ("embedded.rdu", "referring.rdu"):
        with raises(kind, where=f"the checkpoint {checkpoint}", tensor=NAMES[1], **fields):
            loaded(tmp_path / artifact, checkpoint)
    with raises(ReferredCheckpointErrors.CHANGED, artifact=str(tmp_path / "referring.rdu"), checkpoint=str(checkpoint)):
        loaded(tmp_path / "referring.rdu")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "weight-cache") == [
        "checkpoint",
        "embedded.rdu",
        "referring.rdu",
    ]
    assert not (tmp_path / "weight-cache" / "weights").exists()


def test_a_layer_that_changed_since_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    package(checkpoint, tmp_path / "x.rdu", weights="reference")
    change(checkpoint, NAMES[2], torch.zeros(SHAPE))
    with raises(ReferredCheckpointErrors.CHANGED, checkpoint=str(checkpoint)):
        loaded(tmp_path / "x.rdu")


def test_other_weights_are_refused_by_their_digest(checkpoint: Path, tmp_path: Path) -> None:
    """Whatever the times of files say, packing compares what was read."""
    package(checkpoint, tmp_path / "x.rdu", weights="reference")
    digest = Artifact.load(tmp_path / "x.rdu").manifest.weights.digest
    remember(digest, write_checkpoint(tmp_path / "other", 1))
    with raises(WeightCacheErrors.DIGEST_DIFFERS, expected=digest):
        loaded(tmp_path / "x.rdu")
    assert (tmp_path / "weight-cache" / WEIGHTS).is_dir()
    assert list((tmp_path / "weight-cache" / WEIGHTS).rglob("*.*")) == []


def test_a_full_disk_while_packing(checkpoint: Path, tmp_path: Path) -> None:
    package(checkpoint, tmp_path / "x.rdu", weights="reference")
    with raises(FileErrors.CANNOT_WRITE, reason="File too large", advice_hint=f" ({HINT})"), largest_file(50_000):
        loaded(tmp_path / "x.rdu")
    assert (tmp_path / "weight-cache" / WEIGHTS).is_dir()
    assert list((tmp_path / "weight-cache" / WEIGHTS).rglob("*.*")) == []
    with raises(FileErrors.CANNOT_WRITE, path=tmp_path / "y.rdu", reason="File too large"), largest_file(50_000):
        package(checkpoint, tmp_path / "y.rdu")
    assert not (tmp_path / "y.rdu").exists()


def test_a_constant_without_a_value_is_our_bug(checkpoint: Path, tmp_path: Path) -> None:
    *others, table = PROGRAM.tensors
    tensors = (*others, replace(table, sources=("table.0", "table.9")))
    with raises(PackagingErrors.UNKNOWN_CONSTANT, constant="table.9", tensor="table"):
        package(checkpoint, tmp_path / "x.rdu", replace(PROGRAM, tensors=tensors))
    assert not (tmp_path / "x.rdu").exists()
