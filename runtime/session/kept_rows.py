"""Copies of what slots hold, out of a program's states and in again: of a slot right after its prompt, and of what
prefill writes of a prompt's whole chunks, for other prompts that begin alike.

A copy is known by a number. Where several ranks run the program, each of them does the same operations (`RowOperation`)
on its own part of the states, and has its own part of every copy under the same number.

Where all rows of a prompt stay in its slot, a chunk's are copied from and to the slot's part of the states. Of other
layers the prefill attends to rows in the prompt scratch, which layers use one after the other. So its rows are copied
in before the layer's first chunk, and out before the next layer begins. What a chunk leaves for the next one alone (a
recurrent state, the last inputs of a convolution) is copied of chunks that are checkpoints: out before the next chunk
begins, and in from the last of the chunks that are there.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np

from sscc.ir.cache_plan import LayerGroup
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.layer_state.protocol import LayerState, Tensors
from sscc.ir.sizes import format_bytes
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array, TensorSpec
from sscc.runtime.backends.collectives.group import ALONE, Group


class KeptRowErrors(ErrorKind):
    RANKS_MISSING = (
        UsageError,
        "a slot cannot be copied by {present} of the program's ranks, because {ranks} ranks divide the slots' rows",
    )


@dataclass(frozen=True)
class CopySlot:
    """Copies all that decoding reads of a slot, whose prompt has `length` tokens and was followed by none."""

    copy: int
    slot: int
    length: int


@dataclass(frozen=True)
class RestoreSlot:
    """Gives a slot what `CopySlot` has copied of the slot `source`, after a prompt of `length` tokens."""

    copy: int
    slot: int
    length: int
    source: int


@dataclass(frozen=True)
class EmptyChunk:
    """Makes memory for the rows of a chunk in all layers, whose contents mean nothing yet, and where the chunk is a
    checkpoint for what it leaves for the next one."""

    copy: int
    checkpoint: bool


@dataclass(frozen=True)
class ReadChunks:
    """Copies what prefill has left of layers, of chunks by their number in the prompt; what the last of them leaves for
    the next one is copied for each that is a checkpoint."""

    copies: Mapping[int, int]
    slot: int
    layers: range


@dataclass(frozen=True)
class WriteChunks:
    """Gives layers what prefill left of a prompt's first chunks: of those that later positions still see."""

    copies: tuple[int, ...]
    slot: int
    layers: range


@dataclass(frozen=True)
class ShareCopy:
    """Gives rank 0 what all ranks have of a copy (`KeptRows.parts`)."""

    copy: int


@dataclass(frozen=True)
class PutCopy:
    """Makes a copy of what every rank is to have of it, by rank."""

    copy: int
    parts: tuple[Mapping[str, Array], ...]


@dataclass(frozen=True)
class Drop:
    """Gives copies up."""

    copies: tuple[int, ...]


@dataclass(frozen=True)
class DropCheckpoint:
    """Gives up what the chunk of a copy leaves for the next one."""

    copy: int


RowOperation = (
    CopySlot | RestoreSlot | EmptyChunk | ReadChunks | WriteChunks | ShareCopy | PutCopy | Drop | DropCheckpoint
)


class Copy:
    """A copy, of which every rank has its part. It is given up when nobody holds this any more.

    Attributes:
        number: by which ranks know it.
        nbytes: of all ranks' parts.
        checkpoint: True for a chunk of which there is what it leaves for the next one.
    """

    def __init__(self, rows: KeptRows, nbytes: int, checkpoint: bool = True) -> None:
        self.number, self.nbytes, self.checkpoint = next(rows.numbers), nbytes, checkpoint
        weakref.finalize(self, rows.forget, self.number).atexit = False

    def __repr__(self) -> str:
        return f"Copy({format_bytes(self.nbytes)})"


class KeptRows:
    """The copies that a rank has, of which a program of one has one.

    Args:
        signature: of the program.
        tensor: gives a state by its name.
        group: the rank among those that run the program.

    Attributes:
        copies: by number, then by state: of a slot [L, Hkv, rows, ..], or of caches that layers have in common [Hkv,
            rows, ..]; of a chunk, K, V and landmarks of all layers of a group, [L, Hkv, C, ..], and what it leaves for
            the next one.
        numbers: for copies that are to be made.
    """

    def __init__(self, signature: Signature, tensor: Tensors, group: Group = ALONE) -> None:
        self._signature, self._tensor, self._group = signature, tensor, group
        self.copies: dict[int, Mapping[str, Array]] = {}
        self.numbers = itertools.count()
        self._shared: tuple[Mapping[str, Array], ...] = ()

    def do(self, operation: RowOperation) -> None:
        """Does an operation on this rank's part. All ranks do the same ones in the same order."""
        match operation:
            case CopySlot():
                self._copy_slot(operation)
            case RestoreSlot():
                self._restore_slot(operation)
            case EmptyChunk(number, checkpoint):
                self.copies[number] = self._empty() | (self._empty_carried() if checkpoint else {})
            case DropCheckpoint(number):
                kept = self._empty().keys()
                self.copies[number] = {name: rows for name, rows in self.copies[number].items() if name in kept}
            case ReadChunks():
                self._read(operation)
            case WriteChunks():
                self._write(operation)
            case ShareCopy(number):
                shared = tuple(self._group.exchange(self.copies[number]))
                self._shared = shared if self._group.rank == 0 else ()
            case PutCopy(number, parts):
                self.copies[number] = parts[self._group.rank]
            case Drop(numbers):
                for number in numbers:
                    self.copies.pop(number, None)

    def forget(self, number: int) -> None:
        """Gives a copy up; nothing happens if there is none. Any thread may ask, and finalizers do."""
        self.copies.pop(number, None)

    def slot_bytes(self, length: int) -> int:
        """Bytes that `CopySlot` copies of a slot after a prompt of so many tokens, on all ranks together."""
        return sum(
            view.nbytes * (self._group.ranks // self._neighbours(group))
            for group, state in self._signature.states
            for view in state.slot(self._tensor, 0, length).values()
        )

    def parts(self, number: int) -> tuple[Mapping[str, Array], ...]:
        """What every rank has of a copy, by rank."""
        self.do(ShareCopy(number))
        shared, self._shared = self._shared, ()
        return shared

    def layout(self, length: int, slot: int) -> list[dict[str, TensorSpec]]:
        """Shape and dtype of what every rank has of a copy of a slot after a prompt of so many tokens."""
        layouts: list[dict[str, TensorSpec]] = [{} for _ in range(self._group.ranks)]
        for group, state in self._signature.states:
            # One program is every rank's, so the states of all are alike.
            specs = {name: TensorSpec.of(view) for name, view in state.slot(self._tensor, 0, length).items()}
            for rank, layout in enumerate(layouts):
                if self._owner(group, slot, rank)[0] == rank:
                    layout |= specs
        return layouts

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of what prefill leaves of the positions of a chunk, on all ranks together."""
        return self._group.ranks * sum(rows.nbytes for rows in self._empty().values())

    @cached_property
    def carried_bytes(self) -> int:
        """Bytes of the states that a chunk hands to the next one, on all ranks together."""
        return self._group.ranks * sum(rows.nbytes for rows in self._empty_carried().values())

    def bytes_of_chunk(self, checkpoint: bool) -> int:
        """Return the bytes of the copy of a chunk, on all ranks together."""
        return self.chunk_bytes + checkpoint * self.carried_bytes

    def chunk_layout(self, checkpoint: bool) -> list[dict[str, TensorSpec]]:
        """Return shape and dtype of what every rank has of a chunk. One program is every rank's, so all are alike."""
        rows = self._empty() | (self._empty_carried() if checkpoint else {})
        return [{name: TensorSpec.of(each) for name, each in rows.items()}] * self._group.ranks

    # -- slots

    def _copy_slot(self, operation: CopySlot) -> None:
        parts: dict[str, Array] = {}
        for group, state in self._signature.states:
            owner, place = self._owner(group, operation.slot, self._group.rank)
            if owner == self._group.rank:
                views = state.slot(self._tensor, place, operation.length)
                parts |= {name: view.read() for name, view in views.items()}
        self.copies[operation.copy] = parts

    def _restore_slot(self, operation: RestoreSlot) -> None:
        parts = self.copies[operation.copy]
        for group, state in self._signature.states:
            source, _ = self._owner(group, operation.source, self._group.rank)
            owner, place = self._owner(group, operation.slot, self._group.rank)
            if source != owner:  # of which all ranks are aware, since neighbours are alike everywhere
                has = self._group.rank == source
                names = state.slot(self._tensor, 0, operation.length)
                sent = {name: parts[name] for name in names} if has else None
                parts = {**parts, **(self._group.exchange(sent)[source] or {})}
            if owner == self._group.rank:
                for name, view in state.slot(self._tensor, place, operation.length).items():
                    view.write(parts[name])

    def _owner(self, group: LayerGroup, slot: int, rank: int) -> tuple[int, int]:
        """The one among a rank's neighbours that has the rows of a slot, and the slot's number there."""
        if group.slots is None:
            return rank, slot
        count = self._neighbours(group)
        return rank // count * count + slot // group.slots, slot % group.slots

    def _neighbours(self, group: LayerGroup) -> int:
        """Of how many ranks one has a slot. Raises UsageError where this rank knows of no others."""
        count = self._signature.sharing_slots(group)
        if self._group.ranks % count:
            raise KeptRowErrors.RANKS_MISSING(present=self._group.ranks, ranks=count)
        return count

    # -- chunks

    def _empty(self) -> dict[str, Array]:
        rows: dict[str, Array] = {}
        for group, state in self._signature.states:
            layers = len(group.layers)
            for name, view in state.positions(self._tensor, 0, 0):
                heads, _, *row = view.shape
                rows[name] = np.empty((layers, heads, self._signature.prefill_chunk, *row), view.dtype)
        return rows

    def _empty_carried(self) -> dict[str, Array]:
        return {
            name: np.empty((len(group.layers), *view.shape), view.dtype)
            for group, state in self._signature.states
            for name, view in state.carried(self._tensor)
        }

    def _write(self, operation: WriteChunks) -> None:
        chunks = [self.copies[number] for number in operation.copies]
        for state, index in self._states(operation.layers):
            seen = range(self._first_seen(state, len(chunks)), len(chunks))
            for name, view in state.positions(self._tensor, index, operation.slot):
                for chunk in seen:
                    view[:, self._positions(chunk)].write(chunks[chunk][name][index])
            for name, view in state.carried(self._tensor):
                view.write(chunks[-1][name][index])

    def _read(self, operation: ReadChunks) -> None:
        for state, index in self._states(operation.layers):
            for name, view in state.positions(self._tensor, index, operation.slot):
                for chunk, number in operation.copies.items():
                    view[:, self._positions(chunk)].read(self.copies[number][name][index])
            for name, view in state.carried(self._tensor):
                for rows in (self.copies[number] for number in operation.copies.values()):
                    if name in rows:
                        view.read(rows[name][index])

    def _states(self, layers: Iterable[int]) -> Iterator[tuple[LayerState, int]]:
        sharers = self._signature.plan.sources  # which leave nothing of their own
        for layer in layers:
            if layer not in sharers:
                yield from self._signature.states_of(layer)

    def _first_seen(self, state: LayerState, chunks: int) -> int:
        """The first of so many chunks of which positions behind them see a row."""
        size = self._signature.prefill_chunk
        return state.first_seen(chunks * size) // size

    def _positions(self, chunk: int) -> slice:
        size = self._signature.prefill_chunk
        return slice(chunk * size, (chunk + 1) * size)


@runtime_checkable
class KeepsRows(Protocol):
    """An interpreter that keeps copies of slots itself, because its program runs on several ranks."""

    def keep_rows(self, signature: Signature) -> KeptRows:
        """Return what keeps copies on all ranks; the same at every call."""


def rows_in_scratch(signature: Signature) -> bool:
    """Return True if rows of some layer lie in the prompt scratch, so that each layer's are copied in its time."""
    return any(state.in_scratch for _, state in signature.states)


def carries(signature: Signature, layer: int) -> bool:
    """Return True if a chunk of a layer leaves for the next one what is to be copied before that."""
    return any(state.carries for state, _ in signature.states_of(layer))
