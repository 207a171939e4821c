"""A slot as bytes: what was saved is what is loaded, bit for bit, and anything else is refused by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.files import FileErrors
from sscc.runtime.artifact.signature import ProgramIdentity, Signature
from sscc.runtime.session.row_messages import HEADER_BYTES, RowMessageErrors
from sscc.runtime.session.session import Session
from sscc.runtime.session.session_errors import SessionErrors
from tests.errors import raises
from tests.runtime.fake import SIGNATURE, FakeInterpreter, fake_session
from tests.runtime.signatures import altered

IDENTITY = ProgramIdentity("a" * 64, "b" * 64)
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
"""More tokens than the cache has rows, so that positions are selected."""


def session_with(signature: Signature = SIGNATURE, identity: ProgramIdentity = IDENTITY) -> Session:
    return Session(signature, FakeInterpreter(signature), identity=lambda: identity)


def message_bytes(session: Session, prompt: list[int] = PROMPT) -> bytearray:
    session.prefill(1, prompt)
    return bytearray(b"".join(session.slot_format.pieces(session.message(session.snapshot(1)))))


def header_of(data: bytes) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header


def with_metadata(data: bytes, **changes: str) -> bytes:
    """The message with another header, as long as the one before where padding permits."""
    header = header_of(data)
    header["__metadata__"] |= changes
    text = json.dumps(header, separators=(",", ":")).encode()
    size = int.from_bytes(data[:8], "little")
    text = text.ljust(size)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def resealed(data: bytes) -> bytes:
    """The message with the digest that its contents have now."""
    size = 8 + int.from_bytes(data[:8], "little")
    return with_metadata(data, digest=hashlib.sha256(data[size:]).hexdigest())


@pytest.mark.parametrize("length", [1, 2, 5, 9, 10, 20])
def test_a_file_has_what_the_slot_had(tmp_path: Path, length: int) -> None:
    first, other = session_with(), session_with()
    prompt = (PROMPT * 3)[:length]
    logits = first.prefill(1, prompt)
    path = tmp_path / "slot.safetensors"
    first.save_slot(1, path)
    other.interpreter.states["k_cache"][:] = 0  # type: ignore[attr-defined]
    assert np.array_equal(other.load_slot(0, path), logits)
    for name in ("k_cache", "v_cache"):
        states = [session.interpreter.tensor(name) for session in (first, other)]
        rows = SIGNATURE.geometry.kept_rows(length)
        assert np.array_equal(states[0][:, 1, :, :rows], states[1][:, 0, :, :rows])
    assert other.position(0) == length
    assert np.array_equal(other.kept(0).layers[1].reasons, first.kept(1).layers[1].reasons)
    assert path.stat().st_size == first.slot_format.nbytes(length) <= first.slot_format.most(length)
    assert np.array_equal(load_file(path)["tokens"], prompt), "any reader of the container reads it"


def test_rows_are_not_copied_on_the_way() -> None:
    session = session_with()
    session.prefill(0, PROMPT)
    snapshot = session.snapshot(0)
    rows = session.rows.copies[snapshot.rows.number]["k_cache"]
    pieces = session.slot_format.pieces(session.message(snapshot))
    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), rows) for piece in pieces)
    data = np.frombuffer(b"".join(pieces), np.uint8)
    (part,) = session.slot_format.read(data, "it").parts
    assert np.shares_memory(part["k_cache"], data)


def test_a_flipped_bit_is_found_wherever_it_is() -> None:
    session = session_with()
    data = message_bytes(session, PROMPT[:2])
    for at in range(0, len(data), 7):
        data[at] ^= 1 << at % 8
        with pytest.raises(InputError) as caught:
            session.slot_format.read(data, "it")
        assert isinstance(caught.value.kind, RowMessageErrors)
        assert caught.value.fields["where"] == "it"
        data[at] ^= 1 << at % 8
    session.slot_format.read(data, "it")
    for cut in (0, 7, 8, 100, len(data) - 1):
        with pytest.raises(InputError) as caught:
            session.slot_format.read(data[:cut], "it")
        assert caught.value.kind in (RowMessageErrors.HEADER_SIZE, RowMessageErrors.SIZE_DIFFERS)
        assert caught.value.fields["where"] == "it"


PROGRAM, WEIGHTS = IDENTITY.program, IDENTITY.weights
OTHERS: dict[str, tuple[Session, str, str | None, str]] = {
    "weights": (session_with(identity=ProgramIdentity(PROGRAM, "c" * 64)), "weights", WEIGHTS, "c" * 64),
    "program": (session_with(identity=ProgramIdentity("c" * 64, WEIGHTS)), "program", PROGRAM, "c" * 64),
    "policy": (
        session_with(altered(SIGNATURE, geometry=SIGNATURE.geometry.with_layers([3, 1]))),
        "geometry.layer_topk", None, "[3, 1]",
    ),
    "slots": (session_with(altered(SIGNATURE, batch=3)), "batch", "2", "3"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_slot_of_another_program_is_refused_by_name(name: str) -> None:
    session, part, theirs, ours = OTHERS[name]
    with raises(RowMessageErrors.OTHER_PROGRAM, where="it", name=part, theirs=theirs, ours=ours):
        session.slot_format.read(message_bytes(session_with()), "it")


@pytest.mark.parametrize(
    ("change", "kind", "fields"),
    [
        (lambda data: b"", RowMessageErrors.HEADER_SIZE, {}),
        (
            lambda data: (HEADER_BYTES + 1).to_bytes(8, "little") + bytes(HEADER_BYTES * 2),
            RowMessageErrors.HEADER_SIZE, {},
        ),
        (lambda data: with_metadata(data, version="1"), RowMessageErrors.OTHER_VERSION, {"version": "1", "ours": 2}),
        (lambda data: with_metadata(data, version="3"), RowMessageErrors.OTHER_VERSION, {"version": "3", "ours": 2}),
        (
            lambda data: with_metadata(data, format="pt"), RowMessageErrors.OTHER_FORMAT,
            {"where": "it", "format": "pt"},
        ),
        (
            lambda data: with_metadata(data, length="0"), RowMessageErrors.NUMBER_OUT_OF_RANGE,
            {"where": "it", "name": "length", "text": "0", "low": 1, "high": 20},
        ),
        (
            lambda data: with_metadata(data, length="9" * 30), RowMessageErrors.NUMBER_OUT_OF_RANGE,
            {"low": 1, "high": 20},
        ),
        (
            lambda data: with_metadata(data, length="8"), RowMessageErrors.HEADER_DIFFERS,
            {"where": "it", "numbers": "length 8, slot 1"},
        ),
        (
            lambda data: with_metadata(data, slot="2"), RowMessageErrors.NUMBER_OUT_OF_RANGE,
            {"where": "it", "name": "slot", "text": "2", "low": 0, "high": 1},
        ),
        (lambda data: with_metadata(data, more="1"), RowMessageErrors.HEADER_DIFFERS, {"where": "it"}),
        (lambda data: b"\x10" + bytes(7) + b"[" * 16, RowMessageErrors.NO_METADATA, {"where": "it"}),
    ],
)
def test_what_is_no_message_is_refused(
    change: Callable[[bytes], bytes], kind: ErrorKind, fields: dict[str, Any]
) -> None:
    session = session_with()
    with raises(kind, **fields):
        session.slot_format.read(change(bytes(message_bytes(session))), "it")


@pytest.mark.parametrize("name", ["tokens", "selected/"])
@pytest.mark.parametrize("value", [-1, 11, 2**62])
def test_numbers_out_of_range_are_refused_whoever_has_sealed_them(name: str, value: int) -> None:
    session = session_with()
    data = message_bytes(session)
    begin = 8 + int.from_bytes(data[:8], "little") + header_of(data)[name]["data_offsets"][0]
    data[begin : begin + 8] = value.to_bytes(8, "little", signed=True)
    with raises(RowMessageErrors.VALUE_OUT_OF_RANGE, low=0, name=name, value=value):
        session.slot_format.read(resealed(data), "it")


def test_a_session_of_no_artifact_says_so(tmp_path: Path) -> None:
    session = fake_session()
    session.prefill(0, PROMPT)
    with raises(SessionErrors.NO_IDENTITY):
        session.save_slot(0, tmp_path / "slot")
    session = session_with()
    with raises(FileErrors.CANNOT_READ, path=tmp_path / "slot", reason="No such file or directory"):
        session.load_slot(0, tmp_path / "slot")
    with raises(FileErrors.NOT_REGULAR, path=tmp_path):
        session.load_slot(0, tmp_path)
    with raises(SessionErrors.SLOT_EMPTY):
        session.save_slot(0, tmp_path / "slot")
