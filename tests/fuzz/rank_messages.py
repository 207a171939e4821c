"""Hostile bytes on a link between ranks: every message is refused as a rank's mistake, or is made of data alone.

A case is a right message with bytes changed, cut, added or moved, its header edited (half of the time with its length
set right), a pickle, or noise; it is sent over a real link. Wrong is any other error than `RankError`, more than a
second or 256 MiB, and a value of a type that is not data. A pickle that were read would leave a mark.
"""

from __future__ import annotations

import json
import pickle
import random
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sscc.ir.errors import RankError
from sscc.runtime.backends.collectives import rank_messages as messages
from sscc.runtime.backends.collectives.links import Link
from sscc.runtime.serving.ranks.crew import VOCABULARY, Word
from sscc.runtime.session.kept_rows import CopySlot, Drop, PutCopy, ReadChunks, WriteChunks
from tests.fuzz.harness import Finding, Target
from tests.runtime.fake import SIGNATURE

ROWS = {"k_cache": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "selected": np.arange(4)}
MESSAGES: tuple[Any, ...] = (
    (Word.RUN, "decode", {"tokens": np.arange(4), "active": np.ones(4, bool)}, {"slot": 1}),
    (Word.RUN, "prefill", {"tokens": np.arange(8)}, None),
    (Word.SIGNATURE, SIGNATURE),
    (Word.ROWS, CopySlot(0, 1, 9)),
    (Word.ROWS, ReadChunks({0: 3, 1: 4}, 0, range(2))),
    (Word.ROWS, WriteChunks((3, 4), 1, range(0, 4, 2))),
    (Word.ROWS, PutCopy(5, (ROWS, ROWS))),
    (Word.ROWS, Drop((1, 2, 3))),
    (Word.FAILED, {"kind": "row.too-few", "message": "too few", "fields": {"layer": 3}}),
    (Word.PING,),
    [ROWS, None, {"boot": ("a", "b", 7)}, 1.5, float("inf"), b"bytes"],
)
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 63, 2**31, 2**63, 10**400, "", "array", "tensor", "object", "bytes", "__class__", "Drop", [],
    [[]], {}, ["tuple"], ["bytes", 2**40], ["array", "float32", [2**20, 2**20]], ["array", "object", [1]],
    ["range", 0, 2**62, 1], ["object", "Drop", {"copies": 3}], ["object", "os.system", {"command": "true"}],
)  # fmt: skip
DATA = (type(None), bool, int, float, str, bytes, range)


class Marking:
    """An object whose pickle creates a file when it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


class RankMessages(Target):
    """Bytes that rank 1 sends to rank 0."""

    name: ClassVar[str] = "ranks"
    memory: ClassVar[int] = 256 << 20
    seconds: ClassVar[float] = 1.0

    def __init__(self, folder: Path) -> None:
        self._mark = folder / "executed"

    def run(self, seed: int) -> str:
        choose = random.Random(seed)
        right = choose.choice(MESSAGES)
        data = b"".join(messages.encode(right, VOCABULARY))
        for _ in range(choose.choice([0, 1, 1, 2, 4])):
            data = self._changed(choose, data)
        try:
            value = self._received(data)
        except RankError as error:
            if error.kind is None or "\n" in str(error):
                raise Finding(f"a refusal without a kind: {error}") from None
            return "refused"
        finally:
            if self._mark.exists():
                raise Finding("something that was received was executed")
        _judge(value)
        return "taken"

    def _received(self, data: bytes) -> Any:
        here, there = socket.socketpair()
        link = Link(here, 1)
        link.vocabulary = VOCABULARY
        try:
            there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(data) + 4096)
            there.settimeout(1.0)
            there.sendall(data[: 64 << 10])  # what no buffer takes is not sent: the message is then cut
            there.close()
            return link.receive()
        finally:
            link.close()

    def _changed(self, choose: random.Random, data: bytes) -> bytes:
        at = choose.randrange(len(data) + 1)
        match choose.randrange(6):
            case 0:
                return data[:at] + bytes([choose.randrange(256)]) + data[at + choose.choice([0, 1]) :]
            case 1:
                return choose.choice([data[:at], data[at:], data + data, data[:at] + data[at + 64 :]])
            case 2:
                return pickle.dumps(Marking(self._mark)) if choose.random() < 0.5 else choose.randbytes(at)
            case 3:
                number = choose.choice([0, 1, 2**16, 2**31, 2**32 - 1, 2**40, 2**63])
                place = choose.choice([(4, 4), (8, 8)])
                data = data.ljust(messages.PREFIX.size, b"\0")
                word = (number % 2 ** (8 * place[1])).to_bytes(place[1], "little")
                return data[: place[0]] + word + data[sum(place) :]
        return _edited(choose, data)


def _edited(choose: random.Random, data: bytes) -> bytes:
    """The message with a node of its header put in place of another value, nested, or repeated."""
    if len(data) < messages.PREFIX.size:
        return data
    magic, length, payload = messages.PREFIX.unpack_from(data)
    rest = data[messages.PREFIX.size :]
    try:
        tree = json.loads(rest[:length])
    except (ValueError, RecursionError):
        return data
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        items = enumerate(node) if isinstance(node, list) else node.items() if isinstance(node, dict) else ()
        for key, item in items:
            places.append((node, key))
            walk(item)

    walk(tree)
    if not places:
        return data
    node, key = choose.choice(places)
    match choose.randrange(3):
        case 0:
            node[key] = choose.choice(VALUES)
        case 1:
            for _ in range(choose.choice([1, 40, 3000])):
                node[key] = ["list", node[key]]
        case 2 if isinstance(node, list):
            node.extend([node[key]] * choose.choice([1, 1000]))
    try:
        header = json.dumps(tree).encode()
    except (RecursionError, ValueError):
        header = b"[" * 100_000
    told = len(header) if choose.random() < 0.8 else length
    return messages.PREFIX.pack(magic, told, payload) + header + rest[length:]


def _judge(value: Any) -> None:
    if isinstance(value, np.ndarray):
        value.tobytes()
    elif isinstance(value, list | tuple):
        for item in value:
            _judge(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _judge(key)
            _judge(item)
    elif type(value) in VOCABULARY.values():
        for item in vars(value).values():
            _judge(item)
    elif not isinstance(value, DATA):
        raise Finding(f"a message became a {type(value)}")
