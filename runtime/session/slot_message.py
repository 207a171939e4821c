"""A prompt's slot as bytes, one of the `RowMessages`.

It holds everything that `Session.snapshot` copies of a slot after its prompt, from every rank that runs the program;
the prompt's tokens; and the logits behind it. So decoding can continue from it with any sampling, bit for bit as in the
process that prefilled the prompt. The header follows from the length of the prompt alone. Positions, by which rows are
fetched, are checked to be those of the prompt, and rows, scales and logits to be finite: a NaN would spread to results
of others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sscc.ir.errors import ErrorKind, InputError, UsageError
from sscc.ir.layer_state.protocol import LayerState
from sscc.ir.layer_state.state_tensors import Contents
from sscc.runtime.artifact.signature import ProgramIdentity, Signature
from sscc.runtime.artifact.tensor_files import Array, TensorSpec
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.row_messages import (
    HEADER_BYTES,
    RowMessages,
    by_rank,
    check_parts,
    check_range,
    check_tokens,
    parts_of,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FORMAT, VERSION = "sscc-slot", 2

TOKENS, POSITIONS, LOGITS, SELECTED = "tokens", "positions", "logits", "selected/{}"
"""Names of tensors besides the rows: the prefilled tokens of a prompt [n] i64, their positions in the text [n] i64,
logits [V] f32 after the last one, and for each group of layers the positions that its prompt selected, if no state has
them."""


class SlotMessageErrors(ErrorKind):
    DTYPE_OF_LOGITS = UsageError, "a slot with logits of {dtype} cannot be a message: they must be float32"
    POSITIONS_NOT_ASCENDING = InputError, "{where} is malformed: {name} has positions that are not ascending"
    NOT_PLACES = InputError, "{where} is malformed: {name} has a duplicate or invalid place"
    NO_LIKELIEST = InputError, "{where} is malformed: the largest of its logits is {largest}"


@dataclass(frozen=True, eq=False)
class SlotMessage:
    """The contents of a slot after a prompt, outside of a session. Its arrays may be views of a file or of received
    bytes.

    Attributes:
        tokens: prefilled tokens of the prompt, n of them.
        logits: [V] f32, after its last token.
        slot: its slot; if ranks divide the slots, it determines theirs.
        parts: states by name, for every rank.
        selected: positions by the name of their group, for a program of one rank (`Session.kept`).
    """

    tokens: Excerpt
    logits: Array
    slot: int
    parts: tuple[Mapping[str, Array], ...]
    selected: Mapping[str, Array] = field(default_factory=dict)

    def arrays(self) -> dict[str, Array]:
        """Return all arrays, by the names of tensors in the format."""
        chosen = {SELECTED.format(name): positions for name, positions in self.selected.items()}
        tokens, positions = self.tokens.tokens, self.tokens.positions
        return {TOKENS: tokens, POSITIONS: positions, LOGITS: self.logits, **by_rank(self.parts), **chosen}


Layout = Callable[[int, int], list[dict[str, TensorSpec]]]
"""Returns shape and dtype of every rank's states of a slot, from the length of its prompt and its number."""


class SlotFormat:
    """The messages of one program.

    Args:
        signature: signature of the program.
        identity: identity of the program and its weights.
        layout: states of a slot on every rank.
        remembers: True if messages have the positions that prompts selected (`SlotMessage.selected`).
    """

    def __init__(self, signature: Signature, identity: ProgramIdentity, layout: Layout, *, remembers: bool) -> None:
        self.identity = identity
        self._signature = signature
        self._layout = layout
        self._remembers = remembers
        self._messages = RowMessages(FORMAT, VERSION, signature, identity, len(layout(1, 0)))

    @property
    def prefill_chunk(self) -> int:
        """Tokens of a prefill chunk of the program."""
        return self._signature.prefill_chunk

    # -- writing

    def pieces(self, message: SlotMessage) -> list[memoryview]:
        """Return the bytes of a message, to be written one after another. Only the header is copied.

        Raises UsageError for logits in double precision, which only the reference interpreter computes.
        """
        if message.logits.dtype != np.float32:
            raise SlotMessageErrors.DTYPE_OF_LOGITS(dtype=message.logits.dtype)
        return self._messages.pieces(message.arrays(), _numbers(len(message.tokens), message.slot))

    def nbytes(self, length: int) -> int:
        """Return the bytes of the message of a slot after a prompt of `length` tokens. Padding makes them independent
        of the digits in the header."""
        specs = self._specs(length, 0)
        header = self._messages.header(specs, _numbers(length, 0), "0" * 64)
        return len(header) + sum(spec.nbytes for spec in specs.values())

    def most(self, length: int) -> int:
        """Return the maximum bytes of a message for a prompt of `length` tokens."""
        return HEADER_BYTES + sum(spec.nbytes for spec in self._specs(length, 0).values())

    # -- reading

    def read(self, data: ReadableBuffer, where: str) -> SlotMessage:
        """Return the message in bytes. Its rows are views, not copies.

        Args:
            where: source of the bytes, for errors.

        Raises InputError naming the fault: not a message, another version, other weights, another program, geometry or
        number of ranks, damage, positions that its prompt does not have, or numbers that are not finite.
        """
        opened = self._messages.opened(data, where, ("length", "slot"))
        length = opened.number("length", 1, self._signature.geometry.max_context)
        slot = opened.number("slot", 0, self._signature.batch - 1)
        arrays = self._messages.arrays(opened, self._specs(length, slot), _numbers(length, slot))
        message = self._message(arrays, slot)
        self._check(message, where)
        return message

    def _message(self, arrays: Mapping[str, Array], slot: int) -> SlotMessage:
        parts = parts_of(arrays, self._layout(len(arrays[TOKENS]), slot))
        chosen = {name: arrays[SELECTED.format(name)] for name in self._selected_specs(len(arrays[TOKENS]))}
        return SlotMessage(Excerpt(arrays[TOKENS], arrays[POSITIONS]), arrays[LOGITS], slot, parts, chosen)

    def _check(self, message: SlotMessage, where: str) -> None:
        """Raise InputError for an invalid token, position or place, and for a number that is not finite."""
        length = len(message.tokens)
        check_tokens(message.tokens.tokens, message.tokens.positions, self._signature, where)
        for name, positions in message.selected.items():
            check_range(positions, 0, length - 1, SELECTED.format(name), where)
        for _, state in self._signature.states:
            for part in message.parts:
                _check_positions(state, part, length, where)
        largest = float(message.logits.max())  # tokens may be excluded by minus infinity
        if not np.isfinite(largest):
            raise SlotMessageErrors.NO_LIKELIEST(where=where, largest=largest)
        check_parts(message.parts, where)

    # -- the tensors that a message must have

    def _specs(self, length: int, slot: int) -> dict[str, TensorSpec]:
        specs = dict.fromkeys((TOKENS, POSITIONS), TensorSpec((length,), "i64"))
        specs[LOGITS] = TensorSpec((self._signature.vocab_size,), "f32")
        specs |= by_rank(self._layout(length, slot))
        return specs | {SELECTED.format(name): spec for name, spec in self._selected_specs(length).items()}

    def _selected_specs(self, length: int) -> dict[str, TensorSpec]:
        if not self._remembers:
            return {}
        return {
            name: TensorSpec((len(group.layers), group.kv_heads, count), "i64")
            for group, state in self._signature.states
            for name, (_, count) in state.remembered(length).items()
        }


def _numbers(length: int, slot: int) -> dict[str, str]:
    """Return the metadata that determine the tensors of a message."""
    return {"length": str(length), "slot": str(slot)}


def _check_positions(state: LayerState, part: Mapping[str, Array], length: int, where: str) -> None:
    """Raise InputError for a number that a state tensor cannot hold after a prompt of `length` tokens.

    Args:
        part: one rank's part of the state (`KeptRows`).
    """
    for tensor in state.tensors():
        values = part.get(state.name_of(tensor))
        if values is None:
            continue
        if tensor.contents is Contents.SELECTED:
            for index, of_layer in enumerate(values):
                valid = state.picks(index, length)
                check_range(of_layer[..., :valid], 0, length - 1, tensor.name, where)
                check_range(of_layer[..., valid:], -1, -1, tensor.name, where)
        elif tensor.contents is Contents.ASCENDING:
            check_range(values, -1, length - 1, tensor.name, where)
            before, after = values[..., :-1], values[..., 1:]
            if np.any((after >= 0) & (after <= before)):
                raise SlotMessageErrors.POSITIONS_NOT_ASCENDING(where=where, name=tensor.name)
        elif tensor.contents is Contents.LENGTH:
            check_range(values, length, length, tensor.name, where)
        elif tensor.contents is Contents.PLACES and np.any(np.sort(values, axis=-1) != np.arange(values.shape[-1])):
            raise SlotMessageErrors.NOT_PLACES(where=where, name=tensor.name)
