"""Messages of ranks: what is sent arrives as it was; what is none is refused, and nothing is executed."""

from __future__ import annotations

import json
import pickle
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from sscc.ir.errors import ErrorKind, RankError
from sscc.runtime.backends.collectives import rank_messages as messages
from sscc.runtime.backends.collectives.links import Link, LinkErrors
from sscc.runtime.backends.collectives.rank_messages import MessageErrors
from sscc.runtime.serving.ranks.crew import VOCABULARY
from sscc.runtime.session.kept_rows import PutCopy, ReadChunks
from tests.errors import raises
from tests.fuzz.rank_messages import Marking
from tests.runtime.fake import SIGNATURE


def pair() -> tuple[Link, socket.socket]:
    here, there = socket.socketpair()
    link = Link(here, 3)
    link.vocabulary = VOCABULARY
    return link, there


def carried(value: Any) -> Any:
    link, there = pair()
    for part in messages.encode(value, VOCABULARY):
        there.sendall(part)
    there.close()
    return link.receive()


@pytest.mark.parametrize(
    "value",
    [None, True, -(2**70), 0.1, float("inf"), "\u00e4\ud7ff\n", b"\0\xff", range(3, 9, 2), [], (), {},
     [1, (2, {"a": [3]})], {0: "zero", "one": None}, SIGNATURE, ReadChunks({0: 4}, 1, range(2)),
     {"kind": None, "fields": {"a": [1, "b"]}}],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_values_arrive_as_they_were(value: Any) -> None:
    arrived = carried(value)
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int64, np.uint16, np.float16, np.float32, ml_dtypes.bfloat16,
                                   ml_dtypes.float8_e4m3fn])  # fmt: skip
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 5)])
def test_arrays_arrive_as_they_were(dtype: Any, shape: tuple[int, ...]) -> None:
    value = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)
    put = carried(PutCopy(1, ({"a": value, "b": value.T},)))
    for name, sent in (("a", value), ("b", value.T)):
        arrived = put.parts[0][name]
        assert (arrived.dtype, arrived.shape) == (sent.dtype, sent.shape)
        assert np.array_equal(arrived, sent)
        assert not arrived.size or arrived.ctypes.data % 64 == 0
        assert arrived.flags.writeable


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 2), (3, 4)])
def test_tensors_arrive_as_they_were(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value = torch.ones(shape).to(dtype)
    arrived = carried([value, value.T if value.ndim == 2 else value])
    assert arrived[0].dtype == dtype
    assert torch.equal(arrived[0], value)


def test_other_objects_are_not_sent() -> None:
    for value in (object(), {(1, 2): 3}, np.array(["text"]), {1, 2}, lambda: None):
        with pytest.raises(MessageErrors.NOT_SENT.error):
            messages.encode([value], VOCABULARY)


def framed(tree: Any, payload: bytes = b"") -> bytes:
    header = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    return messages.PREFIX.pack(messages.MAGIC, len(header), len(payload)) + header + payload


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", MessageErrors.NOT_A_MESSAGE),
        (messages.PREFIX.pack(messages.MAGIC, 2**32 - 1, 0), MessageErrors.TOO_LARGE),
        (messages.PREFIX.pack(messages.MAGIC, 2, 2**63), MessageErrors.TOO_LARGE),
        (messages.PREFIX.pack(messages.MAGIC, 2**20, 0) + b"[", LinkErrors.ENDED),
        (framed(b"[" * 100_000), MessageErrors.MALFORMED),
        (framed(["list"] * 3 + [["list", ["list", {}]]]), MessageErrors.MALFORMED),
        (framed(["bytes", 3], b"1234"), MessageErrors.MALFORMED),
        (framed(["bytes", -3]), MessageErrors.MALFORMED),
        (framed(["array", "float32", [2, -1]]), MessageErrors.MALFORMED),
        (framed(["array", "object", [1]], b"12345678"), MessageErrors.MALFORMED),
        (framed(["object", "Popen", {"args": "true"}]), MessageErrors.MALFORMED),
        (framed(["object", "Drop", {"copies": ["tuple"], "more": 1}]), MessageErrors.MALFORMED),
        (framed(["range", 0, 1, 0]), MessageErrors.MALFORMED),
        (framed(["dict", [["list"], 1]]), MessageErrors.MALFORMED),
        (framed(b"NaN"), MessageErrors.MALFORMED),
    ],
    ids=str,
)
def test_what_is_no_message_is_refused(data: bytes, kind: ErrorKind) -> None:
    link, there = pair()
    there.sendall(data)
    there.close()
    tracemalloc.start()
    try:
        with raises(kind, rank=3):
            link.receive()
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    link, there = pair()
    body = pickle.dumps(Marking(tmp_path / "mark"), protocol=5)
    there.sendall(len(body).to_bytes(8, "little") + body)  # as links had it
    there.close()
    with pytest.raises(RankError):
        link.receive()
    assert not (tmp_path / "mark").exists()


def test_nothing_in_the_tree_unpickles_what_it_receives() -> None:
    """torch may unpickle files with `weights_only`; code for ranks, servers and fleets reads no pickles."""
    root = Path(messages.__file__).parents[2]
    words = ("pickle.load", "multiprocessing", "all_gather_object", "broadcast_object", "marshal.load", "shelve")
    for folder in ("runtime", "ir", "compiler"):
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text()
            assert not [word for word in words if word in text], path
