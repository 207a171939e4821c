"""Headers of safetensors files: what the library writes is read, everything else is refused, in linear time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from sscc.ir.errors import ErrorKind
from sscc.runtime.artifact import safetensors_file
from sscc.runtime.artifact.safetensors_file import SafetensorsErrors, TensorEntry, read_header
from sscc.runtime.artifact.tensor_files import read_tensors
from tests.errors import raises

TENSORS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.array([1, 2, 3], np.int64),
    "none": np.zeros((0, 4), np.float32),
    "one": np.array(7, np.int8),
}


def written(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def header_of(path: Path) -> dict[str, TensorEntry]:
    with path.open("rb") as file:
        return read_header(file, path)


def test_files_of_the_library_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path, {"format": "np"})
    held = {name: (entry.dtype, entry.shape, entry.nbytes) for name, entry in header_of(path).items()}
    assert held == {
        "a": ("I64", (3,), 24),
        "b": ("F32", (2, 3), 24),
        "none": ("F32", (0, 4), 0),
        "one": ("I8", (), 1),
    }
    for name, array in read_tensors(path).items():
        assert np.array_equal(array, TENSORS[name])


X: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
Y: dict[str, Any] = {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}
TEXT = json.dumps(X).encode()
BROKEN: dict[str, tuple[object, bytes, ErrorKind]] = {
    "gap": ({"x": X, "y": {**Y, "data_offsets": [12, 16]}}, bytes(16), SafetensorsErrors.GAP),
    "overlap": ({"x": X, "y": {**Y, "data_offsets": [4, 8]}}, bytes(8), SafetensorsErrors.GAP),
    "late start": ({"x": {**X, "data_offsets": [8, 16]}}, bytes(16), SafetensorsErrors.GAP),
    "too little data": ({"x": X}, bytes(7), SafetensorsErrors.DATA_DIFFERS),
    "too much data": ({"x": X}, bytes(9), SafetensorsErrors.DATA_DIFFERS),
    "another size": ({"x": {**X, "shape": [3]}}, bytes(8), SafetensorsErrors.SIZE_DIFFERS),
    "backwards": ({"x": {**X, "data_offsets": [8, 0]}}, bytes(8), SafetensorsErrors.SIZE_DIFFERS),
    "half a byte": ({"x": {"dtype": "F4", "shape": [1], "data_offsets": [0, 1]}}, b"x", SafetensorsErrors.SIZE_DIFFERS),
    "a negative size": ({"x": {**X, "shape": [-1]}}, bytes(8), SafetensorsErrors.NOT_AN_ENTRY),
    "a truth value": ({"x": {**X, "shape": [True]}}, bytes(8), SafetensorsErrors.NOT_AN_ENTRY),
    "a fraction": ({"x": {**X, "shape": [2.0]}}, bytes(8), SafetensorsErrors.NOT_AN_ENTRY),
    "a huge size": ({"x": {**X, "shape": [2**63]}}, bytes(8), SafetensorsErrors.NOT_AN_ENTRY),
    "many dimensions": ({"x": {**X, "shape": [1] * 65}}, bytes(8), SafetensorsErrors.NOT_AN_ENTRY),
    "three offsets": ({"x": {**X, "data_offsets": [0, 8, 8]}}, bytes(8), SafetensorsErrors.NOT_AN_ENTRY),
    "another field": ({"x": {**X, "more": 1}}, bytes(8), SafetensorsErrors.NOT_AN_ENTRY),
    "no dtype": ({"x": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8), SafetensorsErrors.NOT_AN_ENTRY),
    "a number for a tensor": ({"x": 3}, b"", SafetensorsErrors.NOT_AN_ENTRY),
    "unknown dtype": ({"x": {**X, "dtype": "Q4"}}, bytes(8), SafetensorsErrors.UNKNOWN_DTYPE),
    "twice": (b'{"x": %s, "x": %s}' % (TEXT, TEXT), bytes(8), SafetensorsErrors.TWICE),
    "a list": ([], b"", SafetensorsErrors.NOT_AN_OBJECT),
    "no JSON": (b"{", b"", SafetensorsErrors.NOT_JSON),
    "no UTF-8": (b'{"\xff": 1}', b"", SafetensorsErrors.NOT_JSON),
    "deep": (b"[" * 200_000, b"", SafetensorsErrors.NOT_JSON),
    "a number of many digits": (b'{"x": ' + b"9" * 10_000 + b"}", b"", SafetensorsErrors.NOT_JSON),
}


@pytest.mark.parametrize(("header", "data", "kind"), BROKEN.values(), ids=BROKEN)
def test_a_damaged_header_is_refused(tmp_path: Path, header: object, data: bytes, kind: ErrorKind) -> None:
    path = written(tmp_path / "x.safetensors", header, data)
    with raises(kind, path=path):
        header_of(path)
    if kind is not SafetensorsErrors.TWICE and "more" not in str(header):  # the library takes the last one, and any
        with pytest.raises(SafetensorError), safe_open(path, "np"):
            pass


@pytest.mark.parametrize("length", [3, 2**31, 2**63, 2**64 - 1])
def test_a_length_that_the_file_does_not_have(tmp_path: Path, length: int) -> None:
    path = written(tmp_path / "x.safetensors", b"{}", length=length)
    with raises(SafetensorsErrors.HEADER_TRUNCATED, path=path, expected=length, nbytes=2):
        header_of(path)


@pytest.mark.parametrize("data", [b"", b"x" * 7])
def test_a_file_without_a_header(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with raises(SafetensorsErrors.NO_HEADER, nbytes=len(data)):
        header_of(tmp_path / "x")


def test_headers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "x", {"x": X}, bytes(8))
    size = int.from_bytes(path.read_bytes()[:8], "little")
    monkeypatch.setattr(safetensors_file, "HEADER_BYTES", size - 1)
    with raises(SafetensorsErrors.TOO_LARGE, nbytes=size, most=size - 1):
        header_of(path)
    monkeypatch.setattr(safetensors_file, "HEADER_BYTES", size)
    assert list(header_of(path)) == ["x"]
    monkeypatch.setattr(safetensors_file, "HEADER_VALUES", 5)
    written(path, b'{"x": [[], [], []]}')
    with raises(SafetensorsErrors.TOO_MANY_VALUES, values=7, most=5):
        header_of(path)


def many(path: Path, count: int) -> Path:
    header = {f"model.layers.{i}.weight": {**X, "data_offsets": [8 * i, 8 * i + 8]} for i in range(count)}
    return written(path, header, bytes(8 * count))


def test_the_time_grows_with_the_number_of_tensors_and_no_faster(tmp_path: Path) -> None:
    seconds = {}
    for count in (10_000, 100_000):
        path = many(tmp_path / "x", count)
        start = time.process_time()
        assert len(read_tensors(path)) == count
        seconds[count] = time.process_time() - start
    assert seconds[100_000] < 40 * seconds[10_000] + 0.5, "ten times the tensors, and room for a slow machine"
