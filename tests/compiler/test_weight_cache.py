"""Weights by reference are packed once, stacked and verified, and refused when they are others."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sscc.compiler.driver.weight_cache import WeightCacheErrors, pack_weights, packed_ahead, packed_weights
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.files import FileErrors, file_digest
from sscc.runtime.artifact.manifest import WeightsRecord
from sscc.runtime.artifact.tensor_files import (
    Array,
    Stack,
    TensorErrors,
    TensorSpec,
    digest_of,
    read_specs,
    reading,
    specs_of,
)
from sscc.runtime.support import verification
from sscc.runtime.support.user_cache import CacheErrors
from tests.errors import raises

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
RECORD = WeightsRecord("reference", digest_of(LAYOUT, READ))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "weights").iterdir())


def packed_file(cache: Path) -> Path:
    return cache / "weights" / f"{RECORD.digest}.safetensors"


def no_progress(done: int, total: int) -> None:
    pass


def unread(source: str, spec: TensorSpec) -> Array:
    raise AssertionError(source)


def test_weights_that_are_packed_ahead_are_read_at_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie under their digest, and are not read again to be verified by the process that wrote them."""
    with packed_ahead(lambda progress: pack_weights(LAYOUT, READ, progress)) as digest:
        assert digest() == RECORD.digest
    assert files(cache) == [f"{RECORD.digest}.safetensors", f"{RECORD.digest}.sha256"]
    monkeypatch.setattr(verification, "_verified", unread)
    found = packed_weights(RECORD, LAYOUT, unread, no_progress)
    assert all(np.array_equal(found[name], WEIGHTS[name]) for name in WEIGHTS)


def test_packing_stops_with_the_block_that_wants_it(cache: Path) -> None:
    going, usual = threading.Event(), sys.getswitchinterval()

    def slowly(source: str, spec: TensorSpec) -> Array:
        going.set()
        assert stopped.wait(60)
        return READ(source, spec)

    stopped = threading.Event()
    with packed_ahead(lambda progress: pack_weights(LAYOUT, slowly, progress)):
        assert going.wait(60)
        threading.Timer(0.1, stopped.set).start()
    assert files(cache) == []
    assert sys.getswitchinterval() == usual


def test_an_error_of_packing_reaches_who_waits(cache: Path) -> None:
    wrong = {"a": Stack(TensorSpec((2, 2, 3), "f32"), ("layers.0.a", "b"))}
    with (
        packed_ahead(lambda progress: pack_weights(wrong, READ, progress)) as digest,
        pytest.raises(InputError),
    ):
        digest()
    assert files(cache) == []


def test_packs_once_and_then_reads_the_cache(cache: Path) -> None:
    progress: list[tuple[int, int]] = []
    first = packed_weights(RECORD, LAYOUT, READ, lambda *step: progress.append(step))
    assert {name: tensor.tolist() for name, tensor in first.items()} == {n: t.tolist() for n, t in WEIGHTS.items()}
    assert progress == [(24, 56), (48, 56), (56, 56)]
    again = packed_weights(RECORD, LAYOUT, unread, no_progress)
    assert all(np.array_equal(again[name], WEIGHTS[name]) for name in WEIGHTS)
    assert not any(array.flags.owndata or array.flags.writeable for array in again.values()), "mapped, not read"
    assert files(cache) == [f"{RECORD.digest}.safetensors", f"{RECORD.digest}.sha256"]
    assert read_specs(packed_file(cache)) == specs_of(LAYOUT)
    assert file_digest(packed_file(cache)) == packed_file(cache).with_suffix(".sha256").read_text()


def test_a_program_that_stacks_otherwise_has_its_own_file(cache: Path) -> None:
    apart = {
        **{f"a.{i}": Stack(TensorSpec((2, 3), "f32"), (f"layers.{i}.a",)) for i in range(2)},
        "b": LAYOUT["b"],
    }
    packed_weights(RECORD, LAYOUT, READ, no_progress)
    other = packed_weights(replace(RECORD, digest=digest_of(apart, READ)), apart, READ, no_progress)
    assert np.array_equal(other["a.1"], CHECKPOINT["layers.1.a"])
    assert len(files(cache)) == 4
    packed_weights(RECORD, LAYOUT, unread, no_progress)


@pytest.mark.parametrize("name", sorted(CHECKPOINT))
def test_other_weights_are_refused_and_leave_nothing(cache: Path, name: str) -> None:
    changed = {**CHECKPOINT, name: CHECKPOINT[name] + 1}
    with raises(WeightCacheErrors.DIGEST_DIFFERS):
        packed_weights(RECORD, LAYOUT, reading(changed, "tiny"), no_progress)
    assert list((cache / "weights").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "kind", "fields"),
    [
        (
            {"layers.1.a": None}, TensorErrors.MISSING,
            {"where": "tiny", "tensor": "layers.1.a", "expected": "f32 [2, 3]"},
        ),
        (
            {"layers.1.a": np.zeros((3, 2), np.float32)},
            TensorErrors.OTHER_TENSOR, {
                "tensor": "layers.1.a", "dtype": "float32", "shape": [3, 2], "expected": "f32 [2, 3]"
            },
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_leaves_nothing(
    cache: Path, change: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]
) -> None:
    tensors = {name: tensor for name, tensor in {**CHECKPOINT, **change}.items() if tensor is not None}
    with raises(kind, **fields):
        packed_weights(RECORD, LAYOUT, reading(tensors, "tiny"), no_progress)
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


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "truncated": (".safetensors", truncate, "is damaged: its sha256"),
    "flipped": (".safetensors", flip, "is damaged: its sha256"),
    "another digest": (".sha256", flip, "is damaged: its sha256"),
    "no digest": (".sha256", Path.unlink, ""),
    "no data": (".safetensors", Path.unlink, ""),
}


@pytest.mark.parametrize(("suffix", "damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_is_said_and_packed_again(
    cache: Path, suffix: str, damage: Callable[[Path], None], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    packed_weights(RECORD, LAYOUT, READ, no_progress)
    path = packed_file(cache).with_suffix(suffix)
    data = path.read_bytes()
    damage(path)
    again = packed_weights(RECORD, LAYOUT, READ, no_progress)
    assert all(np.array_equal(again[name], WEIGHTS[name]) for name in WEIGHTS)
    assert path.read_bytes() == data
    assert message in caplog.text
    packed_weights(RECORD, LAYOUT, unread, no_progress)


def test_without_verifying_bytes_are_taken_as_they_are(cache: Path) -> None:
    packed_weights(RECORD, LAYOUT, READ, no_progress)
    flip(packed_file(cache))
    again = packed_weights(RECORD, LAYOUT, unread, no_progress, verify=False)
    assert not np.array_equal(again["b"], WEIGHTS["b"])


def test_a_cache_that_others_can_write_is_refused(cache: Path) -> None:
    packed_weights(RECORD, LAYOUT, READ, no_progress)
    (cache / "weights").chmod(0o777)
    with raises(CacheErrors.FOREIGN_WRITERS):
        packed_weights(RECORD, LAYOUT, READ, no_progress)


def test_an_unwritable_cache_is_an_output_error(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with raises(FileErrors.CANNOT_WRITE, reason="Not a directory"):
        packed_weights(RECORD, LAYOUT, READ, no_progress)


def test_a_full_disk_is_an_output_error_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with raises(FileErrors.CANNOT_WRITE, reason="No space left on device"):
        packed_weights(RECORD, LAYOUT, READ, no_progress)
    assert list((cache / "weights").iterdir()) == []
