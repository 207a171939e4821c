"""Damaged GGUF headers, each with the error that it ends in: (file, kind, fields of the error)."""

from __future__ import annotations

from typing import Any

from sscc.compiler.frontend.gguf.header import MOST_ARCHITECTURE, MOST_NAME_BYTES
from sscc.compiler.frontend.gguf.header_errors import GgufHeaderErrors as K
from sscc.compiler.frontend.gguf.metadata import MOST_KEY_BYTES, MOST_TEXT_BYTES
from sscc.ir.errors import ErrorKind
from tests.compiler.frontend.gguf_files import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    I32,
    STRING,
    TYPE_F32,
    TYPE_I8,
    TYPE_Q4_0,
    TYPE_Q6_K,
    TYPE_Q8_0,
    U8,
    U32,
    U64,
    GgufBytes,
    Pieces,
    entry,
    number,
    small,
    tensor,
    text,
    unfinished_array,
    unfinished_entry,
    unfinished_text,
    with_entries,
    with_tensors,
)

Fields = dict[str, Any]

HUGE, SIZE = (1 << 64) - 1, len(small().packed())

FILES: dict[str, tuple[bytes | GgufBytes, ErrorKind, Fields]] = {
    "empty": (b"", K.NOT_GGUF, {"magic": "b''"}),
    "short magic": (b"GGU", K.NOT_GGUF, {"magic": "b'GGU'"}),
    "other magic": (b"\x1b\0\xff\n" + small().packed(), K.NOT_GGUF, {"magic": repr(b"\x1b\0\xff\n")}),
    "magic alone": (b"GGUF", K.TRUNCATED, {"what": "its header", "end": 8, "size": 4}),
    **{f"version {v}": (small().changed(version=v), K.VERSION, {"version": v, "known": [2, 3]}) for v in (0, 1, 4)},
    "version 0x01020000": (small().changed(version=0x01020000), K.BYTE_ORDER, {}),
    "version 2**31 + 3": (small().changed(version=2**31 + 3), K.VERSION, {"version": 2**31 + 3}),
    "2**64 - 1 tensors": (small().changed(tensor_count=HUGE), K.TOO_MANY, {"what": "tensors", "count": HUGE}),
    "2**64 - 1 entries": (small().changed(entry_count=HUGE), K.TOO_MANY, {"what": "entries of metadata"}),
    "2**16 entries": (small().changed(entry_count=2**16), K.TRUNCATED, {"what": "its metadata", "size": SIZE}),
    "a tensor more": (small().changed(tensor_count=4, data=b""), K.TRUNCATED, {"what": "the entry of tensor 3"}),
    "an entry more": (small().changed(entry_count=6), K.TOO_LONG, {"what": "the entry of tensor 0"}),
    "no architecture": (GgufBytes(), K.NO_ARCHITECTURE, {"value": None}),
    **{
        f"architecture {value!r:.10}": (GgufBytes([entry("general.architecture", kind, value)]), K.NO_ARCHITECTURE, {})
        for kind, value in ((STRING, ""), (STRING, "x" * (MOST_ARCHITECTURE + 1)), (U32, 7), (ARRAY, [1]), (BOOL, 1))
    },
    "a text of the last array a byte beyond the file": (
        GgufBytes([ARCHITECTURE, unfinished_array(STRING, 2, *text("a"), *unfinished_text(4))], alignment=1),
        K.TRUNCATED,
        {"what": "metadata array"},
    ),
    "an overlap of one byte": (
        GgufBytes(
            [ARCHITECTURE, entry("general.alignment", U32, 1)],
            [tensor("a", [4], TYPE_I8), tensor("b", [4], TYPE_I8, 3)],
            bytes(7),
            alignment=1,
        ),
        K.OVERLAP,
        {"tensor": "a", "other": "b"},
    ),
    "the last byte": (small().packed()[:-1], K.TRUNCATED, {"what": "tensor 'output.weight'", "size": SIZE - 1}),
}

ENTRIES: dict[str, tuple[list[Pieces], ErrorKind, Fields]] = {
    "no key": ([entry("", U32, 1)], K.EMPTY_KEY, {"entry": 1}),
    "a key twice": ([entry("a", U32, 1), entry("a", U8, 2)], K.TWICE, {"what": "metadata", "name": "a"}),
    "a key that is no text": ([entry(b"a\xff", U32, 1)], K.NOT_TEXT, {"what": "a key of its metadata"}),
    "half a surrogate": ([entry(b"\xed\xa0\x80", U32, 1)], K.NOT_TEXT, {}),
    "a key of 2**16 bytes": ([unfinished_text(MOST_KEY_BYTES + 1)], K.TOO_LONG, {"bytes": 65536, "most": 65535}),
    "a key of 2**64 - 1 bytes": ([unfinished_text(HUGE)], K.TOO_LONG, {"bytes": HUGE}),
    "a key beyond the file": ([unfinished_text(60_000)], K.TRUNCATED, {"what": "a key of its metadata"}),
    "type 13": ([entry("a", 13, 1)], K.VALUE_TYPE, {"key": "a", "type": 13}),
    "type 2**32 - 1": ([unfinished_entry("a", 2**32 - 1)], K.VALUE_TYPE, {"type": 2**32 - 1}),
    "a boolean of 2": ([entry("a", BOOL, 2)], K.BOOLEAN, {"key": "a", "value": 2}),
    "a text that is none": ([entry("a", STRING, b"\xc3")], K.NOT_TEXT, {"what": "metadata a"}),
    "a text beyond the file": (
        [unfinished_entry("a", STRING, *unfinished_text(1 << 20))], K.TRUNCATED, {"what": "metadata a"}
    ),
    "a text of 2**63 bytes": (
        [unfinished_entry("a", STRING, *unfinished_text(1 << 63))], K.TOO_LONG, {"most": MOST_TEXT_BYTES}
    ),
    "items of type 99": ([unfinished_array(99, 0)], K.VALUE_TYPE, {"key": "array", "type": 99}),
    "arrays in an array": ([unfinished_array(ARRAY, 0)], K.NESTED, {"key": "array"}),
    "2**61 numbers of 8 bytes": ([unfinished_array(U64, 1 << 61)], K.TRUNCATED, {"what": "metadata array"}),
    "2**64 - 1 bytes": ([unfinished_array(U8, HUGE)], K.TRUNCATED, {"what": "metadata array"}),
    "2**64 - 1 booleans": ([unfinished_array(BOOL, HUGE)], K.TRUNCATED, {"what": "metadata array"}),
    "a boolean of 255": ([entry("array", ARRAY, [0, 1, 255], BOOL)], K.BOOLEAN, {"value": 255}),
    "2**64 - 1 texts": ([unfinished_array(STRING, HUGE)], K.TOO_MANY, {"what": "texts in arrays"}),
    "2**20 texts": ([unfinished_array(STRING, 1 << 20)], K.TRUNCATED, {"what": "metadata array"}),
    "an item of 2**64 - 1 bytes": ([unfinished_array(STRING, 2, *unfinished_text(HUGE))], K.TRUNCATED, {}),
    "an item that is no text": ([entry("array", ARRAY, ["a", b"\xff"], STRING)], K.NOT_TEXT, {}),
    "alignment 2**31": ([entry("general.alignment", U32, 2**31)], K.TRUNCATED, {"end": 2**31 + 32}),
    **{
        f"alignment {value!r} of type {kind}": (
            [entry("general.alignment", kind, value)], K.BAD_ALIGNMENT, {"alignment": shown, "type": name}
        )
        for kind, name, value, shown in (
            (U32, "UINT32", 0, 0), (U32, "UINT32", 24, 24), (I32, "INT32", 32, 32), (U64, "UINT64", 32, 32),
            (BOOL, "BOOL", 1, True), (STRING, "STRING", "32", "32"), (ARRAY, "ARRAY", [32], "ndarray"),
        )
    },
}  # fmt: skip
"""In place of the small file's metadata behind its architecture."""

TENSORS: dict[str, tuple[list[Pieces], ErrorKind, Fields]] = {
    "a name of 128 bytes": ([tensor("x" * 128, [1])], K.TOO_LONG, {"bytes": 128, "most": MOST_NAME_BYTES}),
    "a name of 2**64 - 1 bytes": ([unfinished_text(HUGE)], K.TOO_LONG, {"what": "the entry of tensor 0"}),
    "a name that is no text": ([tensor(b"\x80", [1])], K.NOT_TEXT, {}),
    "a tensor twice": ([tensor("a", [1]), tensor("a", [1], offset=32)], K.TWICE, {"what": "tensor", "name": "a"}),
    "5 dimensions": ([tensor("a", [1] * 5)], K.DIMENSIONS, {"tensor": "a", "count": 5, "most": 4}),
    "2**32 - 1 dimensions": ([[*text("a"), number("dimensions", 2**32 - 1, "<I")]], K.DIMENSIONS, {}),
    "2**64 - 1 numbers": ([tensor("a", [HUGE], TYPE_I8)], K.SIZES, {"tensor": "a", "shape": f"[{HUGE}]"}),
    "2**62 numbers": ([tensor("a", [1 << 62], TYPE_F32)], K.SIZES, {}),
    "2**64 numbers": ([tensor("a", [1 << 32, 1 << 32])], K.SIZES, {"shape": f"[{1 << 32}, {1 << 32}]"}),
    "2**60 numbers": ([tensor("a", [1 << 60], TYPE_F32)], K.TRUNCATED, {"what": "tensor 'a'"}),
    "0 of 2**64 numbers": ([tensor("a", [0, 1 << 32, 1 << 32], TYPE_F32)], K.SIZES, {}),
    **{
        f"ggml type {code}": ([tensor("a", [256], code)], K.TENSOR_TYPE, {"tensor": "a", "type": code})
        for code in (4, 31, 38, 1000, 2**32 - 1)
    },
    "half a block": ([tensor("a", [48, 2], TYPE_Q4_0)], K.ROWS, {"shape": "[2, 48]", "block": 32}),
    "half a large block": ([tensor("a", [128, 2], TYPE_Q6_K)], K.ROWS, {"block": 256}),
    "a block that is a scalar": ([tensor("a", [], TYPE_Q8_0)], K.ROWS, {"shape": "[]", "block": 32}),
    "offset 16": ([tensor("a", [1], offset=16)], K.OFFSET, {"tensor": "a", "offset": 16, "alignment": 32}),
    "offset 2**64 - 32": ([tensor("a", [1], offset=HUGE - 31)], K.TRUNCATED, {"what": "tensor 'a'"}),
    "an empty tensor beyond the file": ([tensor("a", [0], offset=160)], K.TRUNCATED, {}),
    "an overlap": ([tensor("b", [8], offset=32), tensor("a", [9])], K.OVERLAP, {"tensor": "a", "other": "b"}),
    "tensors in one place": ([tensor("a", [8]), tensor("b", [8])], K.OVERLAP, {"tensor": "a", "other": "b"}),
    "a tensor in another": (
        [tensor("a", [32]), tensor("none", [0], offset=32), tensor("b", [1], offset=64)], K.OVERLAP, {"other": "b"}
    ),
}  # fmt: skip
"""In place of the small file's tensors."""

DAMAGES: dict[str, tuple[bytes | GgufBytes, ErrorKind, Fields]] = {
    **FILES,
    **{name: (with_entries(*pieces), kind, fields) for name, (pieces, kind, fields) in ENTRIES.items()},
    **{name: (with_tensors(*pieces), kind, fields) for name, (pieces, kind, fields) in TENSORS.items()},
}
