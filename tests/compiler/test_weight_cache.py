"""Weights by reference are packed once, verified, and refused when they are others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sscc.compiler.weight_cache import cache_folder, packed_weights
from sscc.ir.errors import InputError, OutputError
from sscc.runtime.manifest import WeightsRecord
from sscc.runtime.tensor_files import TensorSpec, digest_of

WEIGHTS = {"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
SPEC = {name: TensorSpec.of(tensor) for name, tensor in WEIGHTS.items()}
RECORD = WeightsRecord("reference", digest_of(SPEC, WEIGHTS.__getitem__), "/somewhere", SPEC)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def no_progress(done: int, total: int) -> None:
    pass


def test_packs_once_and_then_reads_the_cache() -> None:
    progress: list[tuple[int, int]] = []
    first = packed_weights(RECORD, WEIGHTS.__getitem__, lambda *step: progress.append(step))
    assert all(torch.equal(first[name], WEIGHTS[name]) for name in WEIGHTS)
    assert progress[-1] == (32, 32)

    def unread(name: str) -> torch.Tensor:
        raise AssertionError(name)

    again = packed_weights(RECORD, unread, no_progress)
    assert all(torch.equal(again[name], WEIGHTS[name]) for name in WEIGHTS)


def test_other_weights_are_refused_and_leave_nothing(cache: Path) -> None:
    changed = {**WEIGHTS, "a": WEIGHTS["a"] + 1}
    with pytest.raises(InputError, match="not the one that this artifact was compiled with"):
        packed_weights(RECORD, changed.__getitem__, no_progress)
    assert list((cache / "weights").iterdir()) == []


def test_a_truncated_cache_file_is_reported(cache: Path) -> None:
    packed_weights(RECORD, WEIGHTS.__getitem__, no_progress)
    path = next((cache / "weights").iterdir())
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match="damaged"):
        packed_weights(RECORD, WEIGHTS.__getitem__, no_progress)


def test_an_unwritable_cache_is_an_output_error(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(OutputError, match="SSCC_CACHE"):
        packed_weights(RECORD, WEIGHTS.__getitem__, no_progress)


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SSCC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sscc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "sscc"
