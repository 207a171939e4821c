"""A prompt's slot as bytes: what one process sends to another, and what a file keeps, in one format.

A message is a safetensors file: 8 bytes of header length, a JSON header, then the bytes of each tensor without gaps. It
holds what `Session.snapshot` copies of a slot after its prompt, of every rank that runs the program; the prompt's
tokens; and the logits that follow it. So decoding goes on from it with any sampling, bit for bit as where the prompt
was prefilled. The header's `__metadata__` says of which program, weights, geometry and sizes the slot is, and has the
sha256 of all that follows the header.

Nothing in a message is trusted, and nothing of it is executed. The program that reads one knows the header that it must
have, byte for byte, from the length of the prompt alone, so no other is read any further, and what is allocated for one
is bounded before it comes. Positions, by which rows are fetched, are checked to be ones that the prompt has, and rows,
scales and logits to be numbers: whoever computed a NaN would make others answer with it. The digest finds damage, it
does not say who wrote the message.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sscc.ir.errors import ErrorKind, InputError, UsageError
from sscc.ir.layer_state.protocol import LayerState
from sscc.ir.layer_state.tensors import Contents
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
from sscc.runtime.excerpt import Excerpt

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FORMAT, VERSION = "sscc-slot", 2
HEADER_BYTES = 1 << 20
"""The most that a header may have."""

TOKENS, POSITIONS, LOGITS, ROWS, SELECTED = "tokens", "positions", "logits", "rank{}/{}", "selected/{}"
"""What tensors are called: the tokens of a prompt that were prefilled [n] i64, where they stand in their text [n] i64,
logits [V] f32 after the last one, each state that a rank has of the slot, and of each group of layers the positions
that its prompt selected, where no state has them."""

_DIGITS = 18  # of a number in a header; no sizes have more
_CHECKED_AT_ONCE = 1 << 18  # numbers
_METADATA = "__metadata__"


class SlotMessageErrors(ErrorKind):
    DTYPE_OF_LOGITS = UsageError, "a slot whose logits are {dtype} has no message, only one of float32 has"
    HEADER_SIZE = InputError, "{where} is no slot that sscc has saved: its header has {header} of {size} bytes"
    NO_METADATA = InputError, "{where} is no slot that sscc has saved: its header does not say so"
    OTHER_FORMAT = InputError, "{where} is no slot that sscc has saved: its format is {format}"
    OTHER_VERSION = (
        InputError,
        "{where} has version {version} of the format of slots, this sscc reads {ours}",
    )
    OTHER_PROGRAM = InputError, "{where} is the slot of another program: {name} {theirs} there, {ours} here"
    HEADER_DIFFERS = InputError, "{where} is damaged: its header is not that of a slot after {length} tokens"
    SIZE_DIFFERS = InputError, "{where} is damaged: it has {size} bytes behind its header, not {expected}"
    DIGEST_DIFFERS = InputError, "{where} is damaged: its contents have another sha256 than its header says"
    NUMBER_OUT_OF_RANGE = InputError, "{where} is damaged: its {name} is {text}, expected {low} to {high}"
    TOKENS_NOT_ASCENDING = InputError, "{where} is malformed: its tokens' positions do not ascend"
    POSITIONS_NOT_ASCENDING = InputError, "{where} is malformed: {name} has positions that do not ascend"
    NOT_PLACES = InputError, "{where} is malformed: {name} names a place twice, or one that there is not"
    VALUE_OUT_OF_RANGE = InputError, "{where} is malformed: {name} has {value}, expected {low} to {high}"
    NOT_FINITE = InputError, "{where} is malformed: {name} has numbers that are not finite"
    NO_LIKELIEST = InputError, "{where} is malformed: the largest of its logits is {largest}"


@dataclass(frozen=True, eq=False)
class SlotMessage:
    """What a slot holds after a prompt, out of any session. Its arrays may be views of a file or of what was received.

    Attributes:
        tokens: of the prompt that were prefilled, n of them.
        logits: [V] f32, after its last token.
        slot: the slot that it was in; where ranks have slots of their own, theirs are told by it.
        parts: of every rank, states by name.
        selected: positions by the name of their group, of a program of one rank (`Session.kept`).
    """

    tokens: Excerpt
    logits: Array
    slot: int
    parts: tuple[Mapping[str, Array], ...]
    selected: Mapping[str, Array] = field(default_factory=dict)

    def arrays(self) -> dict[str, Array]:
        """All arrays, by the names that tensors have in the format."""
        rows = {ROWS.format(rank, name): rows for rank, part in enumerate(self.parts) for name, rows in part.items()}
        chosen = {SELECTED.format(name): positions for name, positions in self.selected.items()}
        tokens, positions = self.tokens.tokens, self.tokens.positions
        return {TOKENS: tokens, POSITIONS: positions, LOGITS: self.logits, **rows, **chosen}


Layout = Callable[[int, int], list[dict[str, TensorSpec]]]
"""Of every rank shape and dtype of the states that it has of a slot, from the length of its prompt and its number."""


class SlotFormat:
    """The messages of one program.

    Args:
        signature: of the program.
        identity: of the program and its weights.
        layout: what ranks have of a slot.
        remembers: whether messages have the positions that prompts selected (`SlotMessage.selected`).
    """

    def __init__(self, signature: Signature, identity: ProgramIdentity, layout: Layout, *, remembers: bool) -> None:
        self.identity = identity
        self._signature = signature
        self._layout = layout
        self._remembers = remembers
        self._facts = _facts(signature, identity, ranks=len(layout(1, 0)))

    @property
    def prefill_chunk(self) -> int:
        """Tokens of a prefill chunk of the program."""
        return self._signature.prefill_chunk

    # -- writing

    def pieces(self, message: SlotMessage) -> list[memoryview]:
        """The bytes of a message, to be written one after another. Nothing is copied but the header.

        Raises UsageError for logits in double precision, which only the reference interpreter makes.
        """
        if message.logits.dtype != np.float32:
            raise SlotMessageErrors.DTYPE_OF_LOGITS(dtype=message.logits.dtype)
        arrays = message.arrays()
        specs = {name: TensorSpec.of(array) for name, array in arrays.items()}
        order = file_order(specs)
        data, digest = [tensor_bytes(arrays[name]) for name in order], hashlib.sha256()
        for piece in data:
            digest.update(piece)
        metadata = self._metadata(len(message.tokens), message.slot, digest.hexdigest())
        return [memoryview(tensors_header(order, specs, metadata)), *data]

    def nbytes(self, length: int) -> int:
        """Bytes of the message of a slot after a prompt of so many tokens; a header's digits leave them as they are,
        up to its padding."""
        specs = self._specs(length, 0)
        return len(self._header(length, 0, "0" * 64)) + sum(spec.nbytes for spec in specs.values())

    def most(self, length: int) -> int:
        """No message of a prompt of so many tokens has more bytes than this."""
        return HEADER_BYTES + sum(spec.nbytes for spec in self._specs(length, 0).values())

    # -- reading

    def read(self, data: ReadableBuffer, where: str) -> SlotMessage:
        """The message that bytes are. Its rows are views of them, which are not copied.

        Args:
            where: what to call the place that they come from.

        Raises InputError naming what is wrong: no message, another version, a slot of other weights, another program,
        geometry or number of ranks, a damaged one, one with positions that its prompt does not have, and one with
        numbers that are not finite.
        """
        view = memoryview(data).cast("B")
        size = int.from_bytes(view[:8], "little") + 8
        if not 8 < size <= min(len(view), HEADER_BYTES):
            raise SlotMessageErrors.HEADER_SIZE(where=where, header=size - 8, size=len(view))
        metadata = self._checked_metadata(bytes(view[8:size]), where)
        length = _number(metadata, "length", 1, self._signature.geometry.max_context, where)
        slot = _number(metadata, "slot", 0, self._signature.batch - 1, where)
        digest = metadata["digest"]
        specs = self._specs(length, slot)
        if bytes(view[:size]) != self._header(length, slot, digest):
            raise SlotMessageErrors.HEADER_DIFFERS(where=where, length=length)
        payload = sum(spec.nbytes for spec in specs.values())
        if len(view) - size != payload:
            raise SlotMessageErrors.SIZE_DIFFERS(where=where, size=len(view) - size, expected=payload)
        if hashlib.sha256(view[size:]).hexdigest() != digest:
            raise SlotMessageErrors.DIGEST_DIFFERS(where=where)
        message = self._message(view[size:], specs, slot)
        self._check(message, where)
        return message

    def _checked_metadata(self, header: bytes, where: str) -> dict[str, str]:
        """What a header says of its slot, which is of this program; its other fields are not checked yet."""
        try:
            metadata = json.loads(header)[_METADATA]
            texts = {str(name): str(metadata[name]) for name in ("format", "version", "length", "slot", "digest")}
        except (ValueError, RecursionError, TypeError, KeyError, IndexError):
            raise SlotMessageErrors.NO_METADATA(where=where) from None
        if texts["format"] != FORMAT:
            raise SlotMessageErrors.OTHER_FORMAT(where=where, format=texts["format"])
        if texts["version"] != str(VERSION):
            raise SlotMessageErrors.OTHER_VERSION(where=where, version=texts["version"], ours=VERSION)
        for name, ours in self._facts.items():
            theirs = metadata.get(name)
            if theirs != ours:
                raise SlotMessageErrors.OTHER_PROGRAM(where=where, name=name, theirs=theirs, ours=ours)
        return texts

    def _message(self, payload: memoryview, specs: Specs, slot: int) -> SlotMessage:
        arrays: dict[str, Array] = {}
        offset = 0
        for name in file_order(specs):
            spec = specs[name]
            array: Array = np.ndarray(spec.shape, NUMPY_DTYPES[spec.dtype], buffer=payload, offset=offset)
            # What is checked to be in range may not change afterwards, as a file that is mapped may.
            arrays[name] = array.copy() if spec.dtype == "i64" else array
            offset += spec.nbytes
        parts = tuple(
            {name: arrays[ROWS.format(rank, name)] for name in part}
            for rank, part in enumerate(self._layout(len(arrays[TOKENS]), slot))
        )
        chosen = {name: arrays[SELECTED.format(name)] for name in self._selected_specs(len(arrays[TOKENS]))}
        return SlotMessage(Excerpt(arrays[TOKENS], arrays[POSITIONS]), arrays[LOGITS], slot, parts, chosen)

    def _check(self, message: SlotMessage, where: str) -> None:
        """Raise InputError for a token, a position or a place that there is not, and for a number that is not
        finite."""
        vocabulary, length = self._signature.vocab_size, len(message.tokens)
        _check_range(message.tokens.tokens, 0, vocabulary - 1, TOKENS, where)
        positions = message.tokens.positions
        _check_range(positions, 0, self._signature.geometry.max_context - 1, POSITIONS, where)
        if np.any(positions[1:] <= positions[:-1]):
            raise SlotMessageErrors.TOKENS_NOT_ASCENDING(where=where)
        for name, positions in message.selected.items():
            _check_range(positions, 0, length - 1, SELECTED.format(name), where)
        for _, state in self._signature.states:
            for part in message.parts:
                _check_positions(state, part, length, where)
        largest = float(message.logits.max())  # a token may be ruled out by minus infinity
        if not np.isfinite(largest):
            raise SlotMessageErrors.NO_LIKELIEST(where=where, largest=largest)
        for rank, part in enumerate(message.parts):
            for name, rows in part.items():
                _check_finite(rows, ROWS.format(rank, name), where)

    # -- the header that a message must have

    def _header(self, length: int, slot: int, digest: str) -> bytes:
        specs = self._specs(length, slot)
        return tensors_header(file_order(specs), specs, self._metadata(length, slot, digest))

    def _metadata(self, length: int, slot: int, digest: str) -> dict[str, str]:
        kind = {"format": FORMAT, "version": str(VERSION)}
        return {**kind, **self._facts, "length": str(length), "slot": str(slot), "digest": digest}

    def _specs(self, length: int, slot: int) -> dict[str, TensorSpec]:
        specs = dict.fromkeys((TOKENS, POSITIONS), TensorSpec((length,), "i64"))
        specs[LOGITS] = TensorSpec((self._signature.vocab_size,), "f32")
        for rank, part in enumerate(self._layout(length, slot)):
            specs |= {ROWS.format(rank, name): spec for name, spec in part.items()}
        return specs | {SELECTED.format(name): spec for name, spec in self._selected_specs(length).items()}

    def _selected_specs(self, length: int) -> dict[str, TensorSpec]:
        if not self._remembers:
            return {}
        return {
            name: TensorSpec((len(group.layers), group.kv_heads, count), "i64")
            for group, state in self._signature.states
            for name, (_, count) in state.remembered(length).items()
        }


def _facts(signature: Signature, identity: ProgramIdentity, ranks: int) -> dict[str, str]:
    """What a slot's message says of its program, in the order in which a difference is told."""
    sizes = ("dtype", "vocab_size", "batch", "prefill_chunk")
    return {
        "weights": identity.weights,
        "ranks": str(ranks),
        **{f"geometry.{name}": json.dumps(value) for name, value in signature.geometry.to_dict().items()},
        **{name: str(getattr(signature, name)) for name in sizes},
        "program": identity.program,
    }


def _number(metadata: Mapping[str, str], name: str, low: int, high: int, where: str) -> int:
    text = metadata[name]
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS and low <= int(text) <= high):
        raise SlotMessageErrors.NUMBER_OUT_OF_RANGE(where=where, name=name, text=text, low=low, high=high)
    return int(text)


def _check_positions(state: LayerState, part: Mapping[str, Array], length: int, where: str) -> None:
    """Raise InputError for a number that a tensor of a state cannot hold after a prompt of `length` tokens.

    Args:
        part: of the state, as one rank has it (`KeptRows`).
    """
    for tensor in state.tensors():
        values = part.get(state.name_of(tensor))
        if values is None:
            continue
        if tensor.contents is Contents.SELECTED:
            for index, of_layer in enumerate(values):
                valid = state.picks(index, length)
                _check_range(of_layer[..., :valid], 0, length - 1, tensor.name, where)
                _check_range(of_layer[..., valid:], -1, -1, tensor.name, where)
        elif tensor.contents is Contents.ASCENDING:
            _check_range(values, -1, length - 1, tensor.name, where)
            before, after = values[..., :-1], values[..., 1:]
            if np.any((after >= 0) & (after <= before)):
                raise SlotMessageErrors.POSITIONS_NOT_ASCENDING(where=where, name=tensor.name)
        elif tensor.contents is Contents.PLACES and np.any(np.sort(values, axis=-1) != np.arange(values.shape[-1])):
            raise SlotMessageErrors.NOT_PLACES(where=where, name=tensor.name)


def _check_range(values: Array, low: int, high: int, name: str, where: str) -> None:
    if values.size and (values.min() < low or values.max() > high):
        wrong: Any = values[(values < low) | (values > high)].flat[0]
        raise SlotMessageErrors.VALUE_OUT_OF_RANGE(where=where, name=name, value=int(wrong), low=low, high=high)


def _check_finite(rows: Array, name: str, where: str) -> None:
    """Raise InputError where a floating-point tensor has a NaN or an infinite number, in little memory."""
    if rows.dtype.kind in "biu":
        return
    flat = rows.reshape(-1)
    for begin in range(0, flat.size, _CHECKED_AT_ONCE):
        if not np.isfinite(flat[begin : begin + _CHECKED_AT_ONCE]).all():
            raise SlotMessageErrors.NOT_FINITE(where=where, name=name)
