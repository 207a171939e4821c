"""Limits of GGUF headers, and the memory that reading them takes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from sscc.compiler.frontend.gguf.cursor import Limit
from sscc.compiler.frontend.gguf.header import MOST_ARCHITECTURE, MOST_NAME_BYTES, read_header
from sscc.compiler.frontend.gguf.header_errors import GgufHeaderErrors
from sscc.compiler.frontend.gguf.metadata import MOST_KEY_BYTES
from tests.compiler.frontend.gguf_files import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    F32,
    SLACK,
    STRING,
    TYPE_I8,
    U8,
    U32,
    GgufBytes,
    Piece,
    entry,
    joined,
    judged,
    peak,
    small,
    tensor,
    unfinished_array,
    with_entries,
    written,
)
from tests.errors import check, raises, refusal


@pytest.mark.parametrize(
    ("limit", "count"), [(Limit.ENTRIES, 5), (Limit.TENSORS, 3), (Limit.TEXTS, 3), (Limit.METADATA, None)]
)
def test_a_file_at_a_limit_is_read_and_one_beyond_refused(
    limit: Limit, count: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "m.gguf", small())
    count = count or sum(len(piece.data) for group in small().entries for piece in group)
    monkeypatch.setattr(limit, "most", count)
    judged(path)
    monkeypatch.setattr(limit, "most", count - 1)
    with raises(GgufHeaderErrors.TOO_MANY, what=limit.noun, count=count, most=count - 1):
        read_header(path)


def test_metadata_is_bounded_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limit.METADATA, "most", 1 << 20)
    data = Piece("number", bytes(1 << 21))
    for value in (entry("a", ARRAY, [data.data], STRING), [*unfinished_array(U8, len(data.data)), data]):
        path = written(tmp_path / "m.gguf", with_entries(value))
        error, allocated = peak(lambda path=path: refusal(read_header, path))
        check(error, GgufHeaderErrors.TOO_MANY, what="bytes of metadata")
        assert allocated < SLACK


def test_a_key_and_a_name_may_be_as_long_as_their_limits(tmp_path: Path) -> None:
    file = small().changed(
        entries=[ARCHITECTURE, entry("k" * MOST_KEY_BYTES, U8, 1)], tensors=[tensor("t" * MOST_NAME_BYTES, [1])]
    )
    judged(written(tmp_path / "m.gguf", file))
    file = small().changed(entries=[entry("general.architecture", STRING, "é" * MOST_ARCHITECTURE)])
    assert judged(written(tmp_path / "m.gguf", file)).architecture == "é" * MOST_ARCHITECTURE


def test_a_hundred_thousand_keys(tmp_path: Path) -> None:
    count = 100_000
    entries = b"".join(struct.pack("<Q9sII", 9, b"key%06d" % i, U32, i) for i in range(count))
    file = GgufBytes([ARCHITECTURE, [Piece("entries", entries)]], entry_count=count + 1)
    header = read_header(written(tmp_path / "m.gguf", file))
    assert len(header.metadata) == count + 1
    assert header.metadata["key000077"] == 77
    file = file.changed(entry_count=10_001)  # what follows is ignored: there are no tensors
    header, allocated = peak(lambda: read_header(written(tmp_path / "m.gguf", file)))
    assert len(header.metadata) == 10_001
    assert allocated < len(file.packed()) + 200 * 10_000 + SLACK


def test_an_array_takes_its_bytes_and_64_for_each_text(tmp_path: Path) -> None:
    count = 10_000
    items = b"".join(struct.pack("<Q", 9) + b"tok%06d" % i for i in range(count))
    value = [*unfinished_array(STRING, count), Piece("text", items)]
    path = written(tmp_path / "texts.gguf", GgufBytes([ARCHITECTURE, value]))
    header, allocated = peak(lambda: read_header(path))
    assert header.metadata["array"][77] == "tok000077"
    assert allocated < len(items) + 64 * count + SLACK


@pytest.mark.parametrize(("kind", "dtype"), [(U8, np.uint8), (F32, np.float32), (BOOL, np.bool_)])
def test_an_array_of_numbers_takes_its_bytes(kind: int, dtype: type[np.generic], tmp_path: Path) -> None:
    data = bytes(10 << 20)
    count = len(data) // np.dtype(dtype).itemsize
    value = [*unfinished_array(kind, count), Piece("number", data)]
    path = written(tmp_path / "numbers.gguf", GgufBytes([ARCHITECTURE, value]))
    header, allocated = peak(lambda: read_header(path))
    assert (header.metadata["array"].dtype, header.metadata["array"].size) == (dtype, count)
    assert allocated < len(data) + SLACK


def test_a_header_at_all_limits_takes_less_than_256_mib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits and memory are 64 times smaller here. One character of four bytes makes all characters of a string as
    wide."""
    scale = 64
    for limit in Limit:
        monkeypatch.setattr(limit, "most", limit.most // scale)
    keys = [entry(f"😀{index:06}", U8, 1) for index in range(Limit.ENTRIES.most - 3)]
    texts = entry("texts", ARRAY, ["😀"] * Limit.TEXTS.most, STRING)
    names = [tensor(f"😀{index:0123}", [1, 1, 1, 1], TYPE_I8, 32 * index) for index in range(Limit.TENSORS.most)]
    left = Limit.METADATA.most - sum(len(joined(pieces)) for pieces in (*keys, texts, ARCHITECTURE))
    keys.append(entry("x", STRING, "😀" + "x" * (left - 25)))
    file = GgufBytes([ARCHITECTURE, *keys, texts], names, bytes(32 * len(names)))
    path = written(tmp_path / "m.gguf", file)
    header, allocated = peak(lambda: read_header(path))
    assert len(header.metadata) == Limit.ENTRIES.most
    assert len(header.tensors) == Limit.TENSORS.most
    assert allocated < (256 << 20) // scale


def test_tensors_are_mapped(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", GgufBytes([ARCHITECTURE], [tensor("a", [4 << 20])], bytes(16 << 20)))
    header, allocated = peak(lambda: read_header(path))
    stored, mapped = peak(header.tensors["a"].stored)
    assert stored.shape == (16 << 20,)
    assert allocated + mapped < SLACK
    assert not stored.flags.writeable
