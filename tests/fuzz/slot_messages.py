"""Damaged and hostile slots: every message is refused with an error of the sender, or decoding can continue from it.

A message is a correct one with bytes changed, cut, added or moved, with an edited header, or with other numbers in its
tensors, NaN and infinities included. Half of the messages get the digest of their new contents, as from an attacker.
Some come from a server that sends them in small pieces, or never completely. Findings are: an error other than
`InputError`; an accepted message with a token or position out of range or a number that is not finite; and a call of a
server that takes longer than its deadline. A case has a second of processor time and 256 MiB.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import socket
import struct
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sscc.ir.errors import InputError
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.selectors import QUANTIZED_KEYS, RESIDENT, RESIDENT_PLACES
from sscc.runtime.artifact.signature import ProgramIdentity
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine import Outcome, PrefillError, Received
from sscc.runtime.serving.server.prefill_servers import PrefillServers
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.session import Session
from sscc.runtime.session.slot_message import SlotMessage
from tests.fuzz.harness import Finding, Target
from tests.runtime.fake import SIGNATURE, FakeInterpreter
from tests.runtime.signatures import altered

BY_QUERY = replace(SIGNATURE.geometry, policy="query", rows="indexed", key_bits=16, fetch=2)
INDEXED = replace(SIGNATURE.geometry, rows="indexed")
GEOMETRIES: tuple[Geometry, ...] = (SIGNATURE.geometry, INDEXED, BY_QUERY)
VALUES: tuple[Any, ...] = (
    "", "0", "1", "20", "9" * 400, "²", -1, 2**70, None, [], [0, 8], {"a": []}, "I64", "\ud800",
)  # fmt: skip
FLOATS = (math.nan, math.inf, -math.inf, 3e38, -0.0, 1e-45)
CALL_SECONDS, LATE_SECONDS = 0.1, 5.0
"""The deadline of a call, and the time after which it is late, on a machine that does other things too."""
NUMBERS = (-(2**63), -2, -1, 0, 1, 10, 11, 19, 20, 2**31, 2**63 - 1)


class _States(FakeInterpreter):
    """Has the states that the geometry asks for, with positions as prefill would leave them."""

    def tensor(self, name: str) -> Array:
        if name not in self.states:
            self.states[name] = self._made(name)
        return self.states[name]

    def _made(self, name: str) -> Array:
        s, g = self.signature, self.signature.geometry
        main = s.plan.main
        slots = (s.layers, s.batch, main.kv_heads)
        if name == RESIDENT:
            return np.broadcast_to(np.array([*range(g.sink, g.sink + g.topk - 1), -1]), (*slots, g.topk)).copy()
        if name == RESIDENT_PLACES:
            return np.broadcast_to(np.arange(g.topk)[::-1], (*slots, g.topk)).copy()
        rows = g.topk if name.endswith("resident") else s.scratch_tokens
        assert name in QUANTIZED_KEYS or name.endswith(("store", "resident")), name
        return np.ones((*slots, rows, main.key.width), np.float32)


def _session(geometry: Geometry) -> Session:
    signature = altered(SIGNATURE, geometry=geometry)
    interpreter = _States(signature)
    if geometry.indexed and not geometry.by_query:
        shape = (signature.layers, signature.batch, signature.plan.main.kv_heads, geometry.topk)
        interpreter.states["selected"] = np.broadcast_to(np.arange(2, 2 + geometry.topk), shape).copy()
    return Session(signature, interpreter, identity=lambda: ProgramIdentity("a" * 64, "b" * 64))


class SlotMessages(Target):
    """Messages of programs that keep compact rows, indexed ones, and all rows with resident ones."""

    name: ClassVar[str] = "slots"
    seconds: ClassVar[float] = 1.0
    memory: ClassVar[int] = 256 << 20

    def __init__(self, folder: Path) -> None:
        self._sessions = [_session(geometry) for geometry in GEOMETRIES]

    def run(self, seed: int) -> str:
        choose = random.Random(seed)
        session = choose.choice(self._sessions)
        prompt = [choose.randrange(SIGNATURE.vocab_size) for _ in range(choose.choice([1, 5, 9, 19]))]
        session.prefill(0, prompt)
        right = b"".join(session.slot_format.pieces(session.message(session.snapshot(0))))
        data = right
        for _ in range(choose.choice([0, 1, 1, 2, 4])):
            data = _changed(choose, data)
        if choose.random() < 0.5:
            data = _sealed(data)
        if choose.random() < 0.1:
            return self._called(choose, session, Excerpt.whole(np.array(prompt)), data, right)
        try:
            message = session.slot_format.read(data, "the case")
        except InputError as error:
            if not str(error).startswith("the case ") or "\n" in str(error) or len(str(error)) > 1000:
                raise Finding(f"a refusal in other words: {error}") from None
            return "refused"
        self._judge(session, message)
        return "taken" if data == right else "taken, changed"

    def _called(self, choose: random.Random, session: Session, prompt: Excerpt, data: bytes, right: bytes) -> str:
        """Call a server that sends the message. Returns the outcome."""
        server = _Server(choose, data)
        servers = PrefillServers([server.url], session.slot_format, timeout=CALL_SECONDS)
        outcomes: list[Outcome] = []
        ended, start = threading.Event(), time.monotonic()

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            ended.set()

        servers.start(prompt, math.inf, done)
        in_time = ended.wait(LATE_SECONDS)
        server.close()
        if not in_time:
            raise Finding(f"a call has not ended after {time.monotonic() - start:.3f} s")
        (outcome,) = outcomes
        if isinstance(outcome, Received):
            self._judge(session, outcome.message)
            return "called, taken" if data == right else "called, taken, changed"
        if not isinstance(outcome, PrefillError) or "127.0.0.1" in str(outcome):
            raise Finding(f"a call ends with {outcome!r}")
        return "called, refused"

    def _judge(self, session: Session, message: SlotMessage) -> None:
        length, geometry = len(message.tokens), session.signature.geometry
        tokens, positions = message.tokens.tokens.tolist(), message.tokens.positions.tolist()
        if not all(0 <= token < SIGNATURE.vocab_size for token in tokens):
            raise Finding(f"tokens {tokens}")
        if positions != sorted({*positions}) or not 0 <= positions[0] <= positions[-1] < geometry.max_context:
            raise Finding(f"tokens stand at {positions}")
        if not np.isfinite(message.logits.max()):
            raise Finding("the largest of the logits is not finite")
        for part in message.parts:
            for name, rows in part.items():
                if rows.dtype.kind == "f" and not np.isfinite(rows).all():
                    raise Finding(f"{name} has numbers that are not finite")
                if rows.dtype != np.int64 or name == RESIDENT_PLACES:
                    continue
                if rows.size and not -1 <= rows.min() <= rows.max() < length:
                    raise Finding(f"{name} has positions {rows.tolist()} of {length}")
            places = part.get(RESIDENT_PLACES)
            if places is not None and {*places.reshape(-1).tolist()} != {*range(geometry.topk)}:
                raise Finding(f"places {places.tolist()}")
        session.restore(1, session.adopt(message))
        text_length = positions[-1] + 1
        if session.position(1) != text_length:
            raise Finding(f"the slot is at {session.position(1)}, and the prompt has {text_length} tokens")
        session.decode({1: 3} if text_length < geometry.max_context else {})


class _Server:
    """Answers one call with a message: at once, in drips, to its end or not."""

    def __init__(self, choose: random.Random, data: bytes) -> None:
        self._data = data
        self._size = choose.choice([len(data), len(data), len(data) + 1, max(len(data) - 1, 0), 2**70])
        self._step = choose.choice([len(data) or 1, len(data) // 3 + 1, 1])
        self._pause = choose.choice([0.0, 0.001, 0.02])
        self._stays = choose.random() < 0.3
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            connection, _ = self._socket.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % self._size)
                for begin in range(0, len(self._data), self._step):
                    connection.sendall(self._data[begin : begin + self._step])
                    if self._pause and self._over.wait(self._pause):
                        return
                if self._stays:
                    self._over.wait(LATE_SECONDS)
        except OSError:
            pass  # the call has ended before

    def close(self) -> None:
        self._over.set()
        self._socket.close()


def _changed(choose: random.Random, data: bytes) -> bytes:
    return choose.choice([_flip, _cut, _number, _number, _float, _float, _header])(choose, data)


def _float(choose: random.Random, data: bytes) -> bytes:
    """Four bytes somewhere, where tensors of f32 have theirs."""
    at = choose.randrange(max(len(data) // 4, 1)) * 4
    return data[:at] + struct.pack("<f", choose.choice(FLOATS)) + data[at + 4 :]


def _flip(choose: random.Random, data: bytes) -> bytes:
    at = choose.randrange(len(data) + 1)
    return data[:at] + bytes([choose.randrange(256)]) + data[at + choose.choice([0, 1]) :]


def _cut(choose: random.Random, data: bytes) -> bytes:
    at = choose.randrange(len(data) + 1)
    return choose.choice([data[:at], data[at:], data + data, data[:at] + data[at + 64 :]])


def _number(choose: random.Random, data: bytes) -> bytes:
    """Eight bytes somewhere, where tensors of integers have theirs."""
    at = choose.randrange(max(len(data) // 8, 1)) * 8
    return data[:at] + choose.choice(NUMBERS).to_bytes(8, "little", signed=True) + data[at + 8 :]


def _header(choose: random.Random, data: bytes) -> bytes:
    """The header with a field of the metadata, or of a tensor, put in place of another value."""
    header, rest = _parted(data)
    if not header:
        return data
    place: Any = header[choose.choice(sorted(header))]
    if not isinstance(place, dict) or not place:
        return data
    place[choose.choice(sorted(place))] = choose.choice(VALUES)
    return _joined(header, rest)


def _parted(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError, OverflowError):
        return {}, data
    return (header, data[8 + size :]) if isinstance(header, dict) else ({}, data)


def _joined(header: dict[str, Any], rest: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    return len(text).to_bytes(8, "little") + text + rest


def _sealed(data: bytes) -> bytes:
    header, rest = _parted(data)
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict):
        return data
    metadata["digest"] = hashlib.sha256(rest).hexdigest()
    return _joined(header, rest)
