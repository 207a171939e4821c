"""Damaged and hostile slots: every message is refused as somebody's mistake, or is one that decoding can go on from.

A message is a right one with bytes changed, cut, added or moved, its header edited, or numbers put into its tensors;
half of them are sealed again with the digest of what they hold then, as whoever means harm would do it. Wrong is any
other error than `InputError`, and a message that is taken with a token or a position that there is not.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sscc.ir.cache_plan import LANDMARKS, RESIDENT, RESIDENT_PLACES
from sscc.ir.errors import InputError
from sscc.ir.geometry import Geometry
from sscc.runtime.artifact.signature import ProgramIdentity
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session import Session
from sscc.runtime.slot_message import SlotMessage
from tests.fuzz.harness import Finding, Target
from tests.runtime.fake import SIGNATURE, FakeInterpreter
from tests.runtime.signatures import altered

BY_QUERY = replace(SIGNATURE.geometry, policy="query", rows="indexed", landmark_bits=16, fetch=2)
INDEXED = replace(SIGNATURE.geometry, rows="indexed")
GEOMETRIES: tuple[Geometry, ...] = (SIGNATURE.geometry, INDEXED, BY_QUERY)
VALUES: tuple[Any, ...] = (
    "", "0", "1", "20", "9" * 400, "²", -1, 2**70, None, [], [0, 8], {"a": []}, "I64", "\ud800",
)  # fmt: skip
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
        assert name in LANDMARKS or name.endswith(("store", "resident")), name
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
        try:
            message = session.slot_format.read(data, "the case")
        except InputError as error:
            if not str(error).startswith("the case ") or "\n" in str(error) or len(str(error)) > 1000:
                raise Finding(f"a refusal in other words: {error}") from None
            return "refused"
        self._judge(session, message)
        return "taken" if data == right else "taken, changed"

    def _judge(self, session: Session, message: SlotMessage) -> None:
        length, geometry = len(message.tokens), session.signature.geometry
        tokens, positions = message.tokens.tokens.tolist(), message.tokens.positions.tolist()
        if not all(0 <= token < SIGNATURE.vocab_size for token in tokens):
            raise Finding(f"tokens {tokens}")
        if positions != sorted({*positions}) or not 0 <= positions[0] <= positions[-1] < geometry.max_context:
            raise Finding(f"tokens stand at {positions}")
        for part in message.parts:
            for name, rows in part.items():
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


def _changed(choose: random.Random, data: bytes) -> bytes:
    return choose.choice([_flip, _cut, _number, _number, _header])(choose, data)


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
