"""Headers of `.gguf` files: as `gguf.GGUFReader` reads them, or refused in one line, quickly and in bounded memory."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFEndian, GGUFValueType

from sscc.compiler.frontend.gguf.header import read_header
from sscc.compiler.frontend.gguf.header_errors import GgufHeaderErrors
from sscc.ir.errors import LONGEST_FIELD
from sscc.ir.files import FileErrors
from tests.compiler.frontend.gguf_damages import DAMAGES, HUGE
from tests.compiler.frontend.gguf_files import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    F32,
    I32,
    SLACK,
    STRING,
    TYPE_F16,
    TYPE_F32,
    TYPE_I8,
    TYPE_Q4_0,
    U8,
    U64,
    GgufBytes,
    differences,
    entry,
    judged,
    peak,
    small,
    tensor,
    with_entries,
    with_tensors,
    written,
)
from tests.errors import check, raises, refusal

# ----------------------------------------------------------------------------------------------------- good files


def _nothing(writer: gguf.GGUFWriter) -> None:
    pass


def _scalars(writer: gguf.GGUFWriter) -> None:
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", HUGE)
    writer.add_int64("i64", -(2**63))
    for name, value in {"third": 1 / 3, "nan": float("nan"), "infinite": float("-inf"), "zero": -0.0}.items():
        writer.add_float32(f"f32.{name}", value)
        writer.add_float64(f"f64.{name}", value)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "\uff55ser \u202e 😀\0\n\x1b[31m")
    writer.add_key_value("empty", "", GGUFValueType.STRING)


def _arrays(writer: gguf.GGUFWriter) -> None:
    kinds = (set(GGUFValueType) - {GGUFValueType.ARRAY, GGUFValueType.STRING}) - {GGUFValueType.BOOL}
    for kind in sorted(kinds):
        writer.add_key_value(f"of.{kind.name}", [1, 0, 100], GGUFValueType.ARRAY, sub_type=kind)
    writer.add_array("bools", [True, False, True])
    writer.add_array("texts", ["a", "", "é", "▁😀", "\0"])
    writer.add_array("bytes", bytes(range(256)))


def _tensors(writer: gguf.GGUFWriter) -> None:
    random = np.random.default_rng(0)
    for kind, (block, size) in GGML_QUANT_SIZES.items():
        data = random.integers(0, 256, (3, 2 * size), np.uint8)
        writer.add_tensor(f"as.{kind.name}", data, raw_dtype=kind)
        assert block > 0
    for shape in ((5,), (5, 1), (2, 3, 4), (2, 1, 3, 4)):
        writer.add_tensor(f"shape.{len(shape)}", random.standard_normal(shape, np.float32))


def _aligned(alignment: int) -> Callable[[gguf.GGUFWriter], None]:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_custom_alignment(alignment)
        writer.add_tensor("a", np.ones(3, np.int8))
        writer.add_tensor("b", np.ones(5, np.float16))

    return fill


def _vocabulary(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"Ġtoken{number}" for number in range(500)])
    writer.add_token_scores([float(number) for number in range(500)])
    writer.add_token_types([1] * 500)
    writer.add_chat_template("{{ messages }}" * 100)


GOOD = {
    "nothing": _nothing,
    "scalars": _scalars,
    "arrays": _arrays,
    "tensors": _tensors,
    "vocabulary": _vocabulary,
    **{f"alignment-{alignment}": _aligned(alignment) for alignment in (1, 8, 64, 4096)},
}


@pytest.mark.parametrize("name", GOOD)
def test_files_of_the_gguf_package_are_read_as_its_reader_does(name: str, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    GOOD[name](writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = judged(tmp_path / "m.gguf")
    assert header.architecture == "llama"
    assert header.path == tmp_path / "m.gguf"
    data = (tmp_path / "m.gguf").read_bytes()
    judged(written(tmp_path / "v2.gguf", data[:4] + struct.pack("<I", 2) + data[8:]))


def test_values_are_of_pythons_types_and_arrays_of_the_stored_ones(tmp_path: Path) -> None:
    kinds = {
        "bools": ([1, 0], BOOL, np.bool_), "bytes": ([1], U8, np.uint8), "longs": ([HUGE], U64, np.uint64),
        "floats": ([0.5], F32, np.float32), "no numbers": ([], I32, np.int32), "no bools": ([], BOOL, np.bool_),
    }  # fmt: skip
    entries = [entry(key, ARRAY, items, item) for key, (items, item, _) in kinds.items()]
    entries += [ARCHITECTURE, entry("no texts", ARRAY, [], STRING), entry("one", U64, 1), entry("yes", BOOL, 1)]
    header = judged(written(tmp_path / "m.gguf", GgufBytes(entries)))
    for key, (items, _, dtype) in kinds.items():
        array = header.metadata[key]
        assert isinstance(array, np.ndarray)
        assert (array.dtype, array.shape) == (dtype, (len(items),))
    assert header.metadata["no texts"] == []
    assert type(header.metadata["one"]) is int
    assert header.metadata["yes"] is True


def test_order_gaps_and_trailing_bytes_of_tensors_do_not_matter(tmp_path: Path) -> None:
    tensors = [
        tensor("last", [16], TYPE_F32, 256), tensor("first", [8], TYPE_F16, 32), tensor("middle", [3], TYPE_I8, 64)
    ]  # fmt: skip
    file = GgufBytes([ARCHITECTURE], tensors, np.random.default_rng(0).bytes(400))
    header = judged(written(tmp_path / "m.gguf", file))
    assert list(header.tensors) == ["last", "first", "middle"]
    offsets = {name: item.offset for name, item in header.tensors.items()}
    assert offsets["last"] - offsets["first"] == 224


def test_tensors_without_numbers_and_without_dimensions(tmp_path: Path) -> None:
    """They take no place, so that they overlap nothing."""
    tensors = [
        tensor("empty", [0, 7], TYPE_F32, 0),
        tensor("matrix", [4, 4], TYPE_F32, 0),
        tensor("inside", [3, 0, 2], TYPE_F16, 32),
        tensor("no blocks", [0], TYPE_Q4_0, 64),
        tensor("scalar", [], TYPE_F32, 64),
    ]
    header = judged(written(tmp_path / "m.gguf", GgufBytes([ARCHITECTURE], tensors, bytes(range(68)))))
    shapes = {name: item.stored().shape for name, item in header.tensors.items()}
    assert shapes == {"empty": (7, 0), "matrix": (4, 16), "inside": (2, 0, 6), "no blocks": (0,), "scalar": (4,)}
    assert header.tensors["scalar"].shape == ()


def test_a_type_whose_blocks_have_no_known_size_is_left_to_who_reads_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(GGML_QUANT_SIZES, GGMLQuantizationType.Q8_0)
    header = read_header(written(tmp_path / "m.gguf", small()))
    assert header.tensors["output.weight"].nbytes == 0
    assert header.tensors["output.weight"].type == GGMLQuantizationType.Q8_0
    with pytest.raises(KeyError):
        header.tensors["output.weight"].stored()


def test_a_name_may_hold_whatever_prints_as_text(tmp_path: Path) -> None:
    names = ["", "\x1b", "é" * 63]
    file = small().changed(tensors=[tensor(name, [1], TYPE_I8, 32 * i) for i, name in enumerate(names)])
    assert list(judged(written(tmp_path / "m.gguf", file)).tensors) == names


# ------------------------------------------------------------------------------------------------------- damages


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused_in_little_memory(name: str, tmp_path: Path) -> None:
    """Whatever a count says: nothing of that size is allocated."""
    data, kind, fields = DAMAGES[name]
    path = written(tmp_path / "m.gguf", data)
    error, allocated = peak(lambda: refusal(read_header, path))
    check(error, kind, path=path, **fields)
    assert str(error).isprintable()
    assert allocated < SLACK


def test_a_big_endian_file_is_refused_by_name(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", endianess=GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with raises(GgufHeaderErrors.BYTE_ORDER, path=tmp_path / "m.gguf"):
        read_header(tmp_path / "m.gguf")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = small().packed()
    judged(written(tmp_path / "m.gguf", data))
    for size in range(len(data)):
        path = written(tmp_path / "m.gguf", data[:size])
        check(refusal(read_header, path), GgufHeaderErrors.TRUNCATED if size >= 4 else GgufHeaderErrors.NOT_GGUF)


def test_every_byte_changed_is_read_as_the_judge_does_or_refused(tmp_path: Path) -> None:
    data = bytearray(small().packed())
    for place in range(len(data) - 130):
        for value in (data[place] ^ 0x80, data[place] ^ 1):
            path = written(tmp_path / "m.gguf", bytes(data[:place]) + bytes([value]) + bytes(data[place + 1 :]))
            error = refusal(read_header, path)
            if error is None:
                assert differences(read_header(path), [path]) == [], f"byte {place}"
            else:
                assert str(error).isprintable()


def test_messages_are_short_and_print(tmp_path: Path) -> None:
    """Names and texts of a file reach a terminal as text, however long they are."""
    hostile = "\x1b]0;owned\x07\n\u202e" * 400
    for file, kind in (
        (with_entries(entry(hostile, BOOL, 2)), GgufHeaderErrors.BOOLEAN),
        (with_entries(entry(hostile, STRING, b"\xff")), GgufHeaderErrors.NOT_TEXT),
        (with_entries(entry(hostile, U8, 2), entry(hostile, U8, 2)), GgufHeaderErrors.TWICE),
        (with_entries(entry("general.alignment", STRING, hostile)), GgufHeaderErrors.BAD_ALIGNMENT),
        (small().changed(entries=[entry("general.architecture", STRING, hostile)]), GgufHeaderErrors.NO_ARCHITECTURE),
        (with_tensors(tensor(hostile[:60], [1], 4)), GgufHeaderErrors.TENSOR_TYPE),
    ):
        error = refusal(read_header, written(tmp_path / "m.gguf", file))
        check(error, kind)
        assert str(error).isprintable()
        assert len(str(error)) < LONGEST_FIELD + 500


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path, tmp_path / "pipe.gguf", Path("/dev/zero")):
        with raises(FileErrors.NOT_REGULAR):
            read_header(path)
    with raises(FileErrors.CANNOT_READ):
        read_header(tmp_path / "missing.gguf")


def test_errors_are_declared_for_what_the_reader_raises() -> None:
    """Each kind is in the table of damages or has a test of its own."""
    kinds = {kind for _, kind, _ in DAMAGES.values()}
    assert set(GgufHeaderErrors) == kinds
    assert all(re.fullmatch(r"gguf-header\.[a-z-]+", kind.code) for kind in kinds)
