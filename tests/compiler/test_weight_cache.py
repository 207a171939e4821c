"""Weights by reference are packed once, stacked and verified, and refused when they are others."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sscc.compiler.weight_cache import cache_folder, packed_weights
from sscc.ir.errors import InputError, OutputError
from sscc.runtime.manifest import WeightsRecord
from sscc.runtime.tensor_files import Array, Stack, TensorSpec, digest_of, read_specs, reading, specs_of

CHECKPOINT = {
    "layers.0.a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layers.1.a": np.arange(6, 12, dtype=np.float32).reshape(2, 3),
    "b": np.ones(4, ml_dtypes.bfloat16),
}
WEIGHTS = {"a": np.arange(12, dtype=np.float32).reshape(2, 2, 3), "b": CHECKPOINT["b"]}
LAYOUT = {
    "a": Stack(TensorSpec((2, 2, 3), "f32"), ("layers.0.a", "layers.1.a")),
    "b": Stack(TensorSpec((4,), "bf16"), ("b",)),
}
READ = reading(CHECKPOINT, "tiny")
RECORD = WeightsRecord("reference", digest_of(LAYOUT, READ), "/somewhere")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def no_progress(done: int, total: int) -> None:
    pass


def unread(source: str, spec: TensorSpec) -> Array:
    raise AssertionError(source)


def test_packs_once_and_then_reads_the_cache(cache: Path) -> None:
    progress: list[tuple[int, int]] = []
    first = packed_weights(RECORD, LAYOUT, READ, lambda *step: progress.append(step))
    assert {name: tensor.tolist() for name, tensor in first.items()} == {n: t.tolist() for n, t in WEIGHTS.items()}
    assert progress == [(24, 56), (48, 56), (56, 56)]
    again = packed_weights(RECORD, LAYOUT, unread, no_progress)
    assert all(np.array_equal(again[name], WEIGHTS[name]) for name in WEIGHTS)
    assert not any(array.flags.owndata or array.flags.writeable for array in again.values()), "mapped, not read"
    (path,) = (cache / "weights").iterdir()
    assert path.name == f"{RECORD.digest}.safetensors"
    assert read_specs(path) == specs_of(LAYOUT)


def test_a_program_that_stacks_otherwise_has_its_own_file(cache: Path) -> None:
    apart = {
        **{f"a.{i}": Stack(TensorSpec((2, 3), "f32"), (f"layers.{i}.a",)) for i in range(2)},
        "b": LAYOUT["b"],
    }
    packed_weights(RECORD, LAYOUT, READ, no_progress)
    other = packed_weights(replace(RECORD, digest=digest_of(apart, READ)), apart, READ, no_progress)
    assert np.array_equal(other["a.1"], CHECKPOINT["layers.1.a"])
    assert len(list((cache / "weights").iterdir())) == 2
    packed_weights(RECORD, LAYOUT, unread, no_progress)


@pytest.mark.parametrize("name", sorted(CHECKPOINT))
def test_other_weights_are_refused_and_leave_nothing(cache: Path, name: str) -> None:
    changed = {**CHECKPOINT, name: CHECKPOINT[name] + 1}
    with pytest.raises(InputError, match="/somewhere is not the one that this artifact was compiled with"):
        packed_weights(RECORD, LAYOUT, reading(changed, "tiny"), no_progress)
    assert list((cache / "weights").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers.1.a": None}, r"tiny has no tensor 'layers.1.a', the program wants it as f32 \[2, 3\]"),
        (
            {"layers.1.a": np.zeros((3, 2), np.float32)},
            r"tensor 'layers.1.a' is float32 \[3, 2\], the program wants f32 \[2, 3\]",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_leaves_nothing(cache: Path, change: dict[str, Any], message: str) -> None:
    given = {name: tensor for name, tensor in {**CHECKPOINT, **change}.items() if tensor is not None}
    with pytest.raises(InputError, match=message):
        packed_weights(RECORD, LAYOUT, reading(given, "tiny"), no_progress)
    assert list((cache / "weights").iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, FileNotFoundError])
def test_a_read_that_fails_is_no_output_error_and_leaves_nothing(cache: Path, error: type[BaseException]) -> None:
    def read(source: str, spec: TensorSpec) -> Array:
        if source == "layers.1.a":
            raise error
        return READ(source, spec)

    with pytest.raises(error):
        packed_weights(RECORD, LAYOUT, read, no_progress)
    assert list((cache / "weights").iterdir()) == []


def test_a_truncated_cache_file_is_reported(cache: Path) -> None:
    packed_weights(RECORD, LAYOUT, READ, no_progress)
    path = next((cache / "weights").iterdir())
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"damaged: .*: delete it, and the weights are packed again"):
        packed_weights(RECORD, LAYOUT, READ, no_progress)


def test_an_unwritable_cache_is_an_output_error(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(OutputError, match=r"Not a directory \(set SSCC_CACHE to another folder\)"):
        packed_weights(RECORD, LAYOUT, READ, no_progress)


def test_a_full_disk_is_an_output_error_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"safetensors cannot be written: No space left on device \(set SSCC_CACHE"):
        packed_weights(RECORD, LAYOUT, READ, no_progress)
    assert list((cache / "weights").iterdir()) == []


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SSCC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sscc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "sscc"
