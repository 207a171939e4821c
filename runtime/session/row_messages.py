"""Rows of a prompt as bytes, for another process or for a file.

A message is a safetensors file: 8 bytes of header length, a JSON header, then the bytes of each tensor without gaps.
The header's `__metadata__` identifies the program, weights, geometry and sizes of the rows, and has the sha256 of
everything behind the header.

Messages are untrusted, and never executed. The reading program can compute the required header, byte for byte, from a
few numbers in it; messages with another header are not read any further, and allocations are bounded in advance. The
digest detects damage, it does not authenticate the sender.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from sscc.ir.errors import ErrorKind, InputError
from sscc.runtime.artifact.signature import ProgramIdentity, Signature
from sscc.runtime.artifact.tensor_files import (
    NUMPY_DTYPES,
    Array,
    Specs,
    TensorSpec,
    file_order,
    tensor_bytes,
    tensors_header,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

HEADER_BYTES = 1 << 20
"""Maximum bytes of a header."""

_ROWS = "rank{}/{}"  # name of a tensor of rows, from its rank and state

T = TypeVar("T")

_DIGITS = 18  # maximum digits of a number in a header; no sizes have more
_CHECKED_AT_ONCE = 1 << 18  # numbers
_METADATA = "__metadata__"


class RowMessageErrors(ErrorKind):
    HEADER_SIZE = InputError, "{where} has no rows saved by sscc: its header has {header} of {size} bytes"
    NO_METADATA = InputError, "{where} has no rows saved by sscc: its header lacks their metadata"
    OTHER_FORMAT = InputError, "{where} has no rows saved by sscc: its format is {format}, expected {ours}"
    OTHER_VERSION = InputError, "{where} has version {version} of the format {format}; this sscc reads {ours}"
    OTHER_PROGRAM = InputError, "{where} has rows of another program: {name} {theirs} there, {ours} here"
    HEADER_DIFFERS = InputError, "{where} is damaged: its header is not the one for {numbers}"
    SIZE_DIFFERS = InputError, "{where} is damaged: it has {size} bytes behind its header, not {expected}"
    DIGEST_DIFFERS = InputError, "{where} is damaged: the sha256 of its contents is not the one in its header"
    NUMBER_OUT_OF_RANGE = InputError, "{where} is damaged: its {name} is {text}, expected {low} to {high}"
    TOKENS_NOT_ASCENDING = InputError, "{where} is malformed: its tokens' positions are not ascending"
    VALUE_OUT_OF_RANGE = InputError, "{where} is malformed: {name} has {value}, expected {low} to {high}"
    NOT_FINITE = InputError, "{where} is malformed: {name} has numbers that are not finite"


Parts = Sequence[Mapping[str, Array]]
"""Rows of every rank, by the name of their state."""


@dataclass(frozen=True)
class Opened:
    """A message whose header has been read.

    Attributes:
        where: source of the message, for errors.
        view: the whole message.
        size: bytes of its header.
        fields: metadata of the header.
    """

    where: str
    view: memoryview
    size: int
    fields: Mapping[str, str]

    def number(self, name: str, low: int, high: int) -> int:
        """Return a number of the metadata. Raises InputError for one that is out of range."""
        text = self.fields[name]
        if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS and low <= int(text) <= high):
            raise RowMessageErrors.NUMBER_OUT_OF_RANGE(where=self.where, name=name, text=text, low=low, high=high)
        return int(text)


class RowMessages:
    """A format of messages of one program.

    Args:
        format, version: identify the format.
        signature: signature of the program.
        identity: identity of the program and its weights.
        ranks: number of its ranks.
    """

    def __init__(
        self, format_: str, version: int, signature: Signature, identity: ProgramIdentity, ranks: int
    ) -> None:
        self._format, self._version = format_, version
        self._facts = _facts(signature, identity, ranks)

    def pieces(self, arrays: Mapping[str, Array], numbers: Mapping[str, str]) -> list[memoryview]:
        """Return the bytes of a message, to be written one after another. Only the header is copied.

        Args:
            numbers: metadata from which a reader computes shapes and dtypes.
        """
        specs = {name: TensorSpec.of(array) for name, array in arrays.items()}
        data, digest = [tensor_bytes(arrays[name]) for name in file_order(specs)], hashlib.sha256()
        for piece in data:
            digest.update(piece)
        return [memoryview(self.header(specs, numbers, digest.hexdigest())), *data]

    def header(self, specs: Specs, numbers: Mapping[str, str], digest: str) -> bytes:
        """Return the header of a message, as long as the data begins behind it."""
        kind = {"format": self._format, "version": str(self._version)}
        return tensors_header(file_order(specs), specs, {**kind, **self._facts, **numbers, "digest": digest})

    def opened(self, data: ReadableBuffer, where: str, numbers: tuple[str, ...]) -> Opened:
        """Read the header of a message as far as it identifies the program.

        Args:
            where: source of the bytes, for errors.
            numbers: names of the metadata from which shapes and dtypes are computed.

        Raises:
            InputError: not a message, another format or version, or another program.
        """
        view = memoryview(data).cast("B")
        size = int.from_bytes(view[:8], "little") + 8
        if not 8 < size <= min(len(view), HEADER_BYTES):
            raise RowMessageErrors.HEADER_SIZE(where=where, header=size - 8, size=len(view))
        try:
            metadata = json.loads(bytes(view[8:size]))[_METADATA]
            texts = {str(name): str(metadata[name]) for name in ("format", "version", *numbers, "digest")}
        except (ValueError, RecursionError, TypeError, KeyError, IndexError):
            raise RowMessageErrors.NO_METADATA(where=where) from None
        if texts["format"] != self._format:
            raise RowMessageErrors.OTHER_FORMAT(where=where, format=texts["format"], ours=self._format)
        if texts["version"] != str(self._version):
            raise RowMessageErrors.OTHER_VERSION(
                where=where, version=texts["version"], format=self._format, ours=self._version
            )
        for name, ours in self._facts.items():
            theirs = metadata.get(name)
            if theirs != ours:
                raise RowMessageErrors.OTHER_PROGRAM(where=where, name=name, theirs=theirs, ours=ours)
        return Opened(where, view, size, texts)

    def arrays(self, opened: Opened, specs: Specs, numbers: Mapping[str, str]) -> dict[str, Array]:
        """Return the tensors of a message, views of its bytes. Tensors whose range is checked are copied, since a
        mapped file may change.

        Args:
            specs: specs that follow from the numbers.

        Raises:
            InputError: the header is not that of these specs, or the contents do not match the header.
        """
        where, view, size = opened.where, opened.view, opened.size
        digest = opened.fields["digest"]
        if bytes(view[:size]) != self.header(specs, numbers, digest):
            shown = ", ".join(f"{name} {value}" for name, value in numbers.items())
            raise RowMessageErrors.HEADER_DIFFERS(where=where, numbers=shown)
        payload = sum(spec.nbytes for spec in specs.values())
        if len(view) - size != payload:
            raise RowMessageErrors.SIZE_DIFFERS(where=where, size=len(view) - size, expected=payload)
        if hashlib.sha256(view[size:]).hexdigest() != digest:
            raise RowMessageErrors.DIGEST_DIFFERS(where=where)
        arrays: dict[str, Array] = {}
        offset = size
        for name in file_order(specs):
            spec = specs[name]
            array: Array = np.ndarray(spec.shape, NUMPY_DTYPES[spec.dtype], buffer=view, offset=offset)
            arrays[name] = array.copy() if spec.dtype == "i64" else array
            offset += spec.nbytes
        return arrays


def _facts(signature: Signature, identity: ProgramIdentity, ranks: int) -> dict[str, str]:
    """Return the metadata that identify the program of rows, in the order in which a difference is reported."""
    sizes = ("dtype", "vocab_size", "batch", "prefill_chunk")
    return {
        "weights": identity.weights,
        "ranks": str(ranks),
        **{f"geometry.{name}": json.dumps(value) for name, value in signature.geometry.to_dict().items()},
        **{name: str(getattr(signature, name)) for name in sizes},
        "program": identity.program,
    }


def check_tokens(tokens: Array, positions: Array, signature: Signature, where: str) -> None:
    """Check the tokens [n] i64 of a prompt and their positions [n] i64 in the text.

    Raises:
        InputError: an invalid token or position, or positions that are not ascending.
    """
    check_range(tokens, 0, signature.vocab_size - 1, "tokens", where)
    check_range(positions, 0, signature.geometry.max_context - 1, "positions", where)
    if np.any(positions[1:] <= positions[:-1]):
        raise RowMessageErrors.TOKENS_NOT_ASCENDING(where=where)


def check_range(values: Array, low: int, high: int, name: str, where: str) -> None:
    """Check that integers are in range. Raises InputError for the first that is not."""
    if values.size and (values.min() < low or values.max() > high):
        wrong: Any = values[(values < low) | (values > high)].flat[0]
        raise RowMessageErrors.VALUE_OUT_OF_RANGE(where=where, name=name, value=int(wrong), low=low, high=high)


def by_rank(parts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """Return every rank's states, by the names of tensors in a message."""
    return {_ROWS.format(rank, name): of_state for rank, part in enumerate(parts) for name, of_state in part.items()}


def parts_of(arrays: Mapping[str, Array], layout: Sequence[Mapping[str, TensorSpec]]) -> tuple[dict[str, Array], ...]:
    """Return the rows of every rank from the tensors of a message: the inverse of `by_rank`.

    Args:
        layout: shapes and dtypes of every rank's states.
    """
    return tuple({name: arrays[_ROWS.format(rank, name)] for name in part} for rank, part in enumerate(layout))


def check_parts(parts: Parts, where: str) -> None:
    """Check that the rows of all ranks are finite. Raises InputError for the first that are not."""
    for name, rows in by_rank(parts).items():
        check_finite(rows, name, where)


def check_finite(rows: Array, name: str, where: str) -> None:
    """Check in little memory that a floating-point tensor has only finite numbers.

    Raises:
        InputError: it has a NaN or an infinity, which would spread to other slots' results.
    """
    if rows.dtype.kind in "biu":
        return
    flat = rows.reshape(-1)
    for begin in range(0, flat.size, _CHECKED_AT_ONCE):
        if not np.isfinite(flat[begin : begin + _CHECKED_AT_ONCE]).all():
            raise RowMessageErrors.NOT_FINITE(where=where, name=name)
