"""Models in several `.gguf` files, as `gguf.GGUFWriter` splits them: opened by any part, or refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from sscc.compiler.frontend.gguf.cursor import Limit
from sscc.compiler.frontend.gguf.header import read_header
from sscc.compiler.frontend.gguf.header_errors import GgufHeaderErrors
from sscc.compiler.frontend.gguf.parts import GgufPartErrors
from sscc.compiler.options.split_files import MOST_PARTS
from sscc.ir.errors import ErrorKind
from tests.compiler.frontend.gguf_files import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    F32,
    I8,
    I32,
    STRING,
    TYPE_I8,
    U16,
    U32,
    GgufBytes,
    Pieces,
    differences,
    entry,
    tensor,
    written,
)
from tests.errors import check, raises, refusal

PARTS = 3


def part_path(folder: Path, part: int, count: int = PARTS, name: str = "model") -> Path:
    return folder / f"{name}-{part:05}-of-{count:05}.gguf"


def save_split(folder: Path, name: str = "model", small_first: bool = False) -> list[Path]:
    """Write a model in three files, of which the first one has no tensors if `small_first`."""
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", "llama", split_max_tensors=2, small_first_shard=small_first)
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("tokens", ["a", "b"])
    for number in range(4 if small_first else 5):
        writer.add_tensor(f"blk.{number}.weight", np.full((number + 1, 3), number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return [part_path(folder, part, name=name) for part in range(1, PARTS + 1)]


def part(number: Any, count: Any = 2, kind: int = U16, *entries: Pieces, name: str = "") -> GgufBytes:
    """Return a part with one tensor."""
    said = [entry("split.no", kind, number), entry("split.count", kind, count)]
    return GgufBytes([ARCHITECTURE, *said, *entries], [tensor(name or f"tensor {number}", [4], TYPE_I8)], b"abcd")


@pytest.mark.parametrize("small_first", [False, True])
@pytest.mark.parametrize("opened", range(1, PARTS + 1))
def test_any_part_opens_the_model(opened: int, small_first: bool, tmp_path: Path) -> None:
    paths = save_split(tmp_path, small_first=small_first)
    header = read_header(part_path(tmp_path, opened))
    assert differences(header, paths) == []
    assert header.path == part_path(tmp_path, opened)
    assert header.architecture == "llama"
    assert {item.path for item in header.tensors.values()} == {*paths[small_first:]}
    assert header.tensors["blk.3.weight"].stored().tobytes() == np.full((4, 3), 3, np.float32).tobytes()


def test_parts_are_found_by_the_name_that_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub's cache has links; the files behind them have other names. Names may look like patterns."""
    (tmp_path / "blobs").mkdir()
    for number, path in enumerate(save_split(tmp_path, name="[a-z]\n*-00001-of-00003"), 1):
        shutil.move(path, tmp_path / "blobs" / str(number))
        path.symlink_to(tmp_path / "blobs" / str(number))
    monkeypatch.chdir(tmp_path)
    assert len(read_header(Path("[a-z]\n*-00001-of-00003-00002-of-00003.gguf")).tensors) == 5


def test_a_file_that_says_that_it_is_whole_has_any_name(tmp_path: Path) -> None:
    """gguf-split --merge leaves a count of 0."""
    for count in (0, 1):
        assert len(read_header(written(tmp_path / "m.gguf", part(0, count))).tensors) == 1


# ------------------------------------------------------------------------------------------------------- damages


def test_a_part_that_is_missing(tmp_path: Path) -> None:
    paths = save_split(tmp_path)
    for make in (lambda path: None, Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")):
        if paths[1].is_file():
            paths[1].unlink()
        make(paths[1])
        with raises(GgufPartErrors.MISSING, path=paths[2], count=3, missing=paths[1].name):
            read_header(paths[2])
        if paths[1].is_dir():
            paths[1].rmdir()
        elif os.path.lexists(paths[1]):
            paths[1].unlink()


@pytest.mark.parametrize(
    "name",
    [
        "alone.gguf", "model-00002-of-00003", "-00002-of-00003.gguf", "model-2-of-3.gguf", "model-00002-of-00004.gguf",
        "model-00001-of-00003.gguf", "model-00000-of-00003.gguf", "model-00005-of-00003.gguf",
        "model-0000\u0662-of-00003.gguf",  # the Arabic digit 2
        "model-00002-of-00003.GGUF",
    ],
)  # fmt: skip
def test_a_part_under_another_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    paths = save_split(tmp_path)
    shutil.copy(paths[1], tmp_path / "other" / name)
    with raises(GgufPartErrors.NAME, path=tmp_path / "other" / name, part=2, count=3, expected="-00002-of-00003.gguf"):
        read_header(tmp_path / "other" / name)


def test_a_part_beyond_their_count(tmp_path: Path) -> None:
    save_split(tmp_path)
    with raises(GgufPartErrors.NAME, part=5, count=3):
        read_header(written(part_path(tmp_path, 5), part(4, 3)))


@pytest.mark.parametrize("opened", [1, 2])
def test_parts_that_were_swapped(opened: int, tmp_path: Path) -> None:
    first, second, third = save_split(tmp_path)
    data = second.read_bytes()
    second.write_bytes(third.read_bytes())
    third.write_bytes(data)
    with raises(GgufPartErrors.DIFFERS if opened == 1 else GgufPartErrors.NAME, path=second):
        read_header((first, second)[opened - 1])


def test_a_part_of_another_model(tmp_path: Path) -> None:
    first, second, _ = save_split(tmp_path)
    written(second, part(1, 7))
    with raises(GgufPartErrors.DIFFERS, path=second, part=2, count=3, said=2, said_count=7):
        read_header(first)
    written(second, GgufBytes([ARCHITECTURE]))
    with raises(GgufPartErrors.NOT_A_NUMBER, path=second, key="split.no", value=None):
        read_header(first)


@pytest.mark.parametrize("count", ["count", "no", "tensors.count"])
@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (STRING, "2", "2"), (ARRAY, [2, 3], "ndarray"), (F32, 2.0, 2.0), (BOOL, 1, True), (I8, -1, -1),
        (U32, 2**32 - 1, 2**32 - 1),
    ],
)  # fmt: skip
def test_numbers_of_parts_that_are_none(count: str, kind: int, value: Any, shown: Any, tmp_path: Path) -> None:
    values = {"no": entry("split.no", U16, 0), "count": entry("split.count", U16, 2)}
    values[count] = entry(f"split.{count}", kind, value)
    written(part_path(tmp_path, 1, 2), GgufBytes([ARCHITECTURE, *values.values()]))
    written(part_path(tmp_path, 2, 2), part(1))
    most = 2**31 - 1 if count == "tensors.count" else MOST_PARTS
    error = refusal(read_header, part_path(tmp_path, 1, 2))
    check(error, GgufPartErrors.NOT_A_NUMBER, key=f"split.{count}", value=shown, most=most)
    assert str(error).isprintable()


@pytest.mark.parametrize(
    ("second", "kind", "fields"),
    [
        (part(1, name="tensor 0"), GgufHeaderErrors.TWICE, {"what": "tensor", "name": "tensor 0"}),
        (part(1).changed(data=b"abc"), GgufHeaderErrors.TRUNCATED, {"what": "tensor 'tensor 1'"}),
        (b"", GgufHeaderErrors.NOT_GGUF, {"magic": "b''"}),
        (part(1).changed(version=1), GgufHeaderErrors.VERSION, {"version": 1}),
    ],
)
def test_a_part_that_is_damaged(
    second: bytes | GgufBytes, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path
) -> None:
    """The error names the part."""
    first = written(part_path(tmp_path, 1, 2), part(0))
    with raises(kind, path=written(part_path(tmp_path, 2, 2), second), **fields):
        read_header(first)


def test_the_number_of_tensors(tmp_path: Path) -> None:
    written(part_path(tmp_path, 2, 2), part(1))
    for said in (1, 2, 3):
        first = written(part_path(tmp_path, 1, 2), part(0, 2, U16, entry("split.tensors.count", I32, said)))
        error = refusal(read_header, first)
        if said == 2:
            assert error is None
        else:
            check(error, GgufPartErrors.TENSORS, path=first, count=2, tensors=2, said=said)


def test_parts_without_an_architecture(tmp_path: Path) -> None:
    for number in (0, 1):
        file = part(number)
        written(part_path(tmp_path, number + 1, 2), file.changed(entries=file.entries[1:]))
    with raises(GgufHeaderErrors.NO_ARCHITECTURE, path=part_path(tmp_path, 2, 2), value=None):
        read_header(part_path(tmp_path, 2, 2))


@pytest.mark.parametrize(
    ("limit", "count"),
    [
        (Limit.TENSORS, lambda files: sum(len(file.tensors) for file in files)),
        (Limit.ENTRIES, lambda files: sum(len(file.entries) for file in files)),
        (Limit.TEXTS, lambda files: 4),
        (
            Limit.METADATA,
            lambda files: sum(len(piece.data) for file in files for group in file.entries for piece in group),
        ),
    ],
)
def test_parts_share_the_limits(
    limit: Limit, count: Callable[[list[GgufBytes]], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [part(number, 2, U16, entry("texts", ARRAY, ["a", "b"], STRING)) for number in (0, 1)]
    for number, file in enumerate(files, 1):
        written(part_path(tmp_path, number, 2), file)
    most = count(files)
    monkeypatch.setattr(limit, "most", most)
    assert len(read_header(part_path(tmp_path, 1, 2)).tensors) == 2
    monkeypatch.setattr(limit, "most", most - 1)
    with raises(GgufHeaderErrors.TOO_MANY, path=part_path(tmp_path, 2, 2), count=most, most=most - 1):
        read_header(part_path(tmp_path, 1, 2))
