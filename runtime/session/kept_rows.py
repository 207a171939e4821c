"""Copies of slots' contents, out of a program's states and back: of a slot right after its prompt, and of the rows that
prefill writes for whole chunks of a prompt, for other prompts with a common prefix.

A copy is identified by a number. If several ranks run the program, each of them executes the same operations
(`RowOperation`) on its own part of the states, and has its own part of every copy under the same number.

If all rows of a prompt stay in its slot, a chunk's rows are copied from and to the slot's part of the states. In other
layers prefill attends to rows in the prompt scratch, which layers use in turn. So its rows are copied in before the
layer's first chunk, and out before the next layer begins. States that a chunk leaves only for the next one (a recurrent
state, the last inputs of a convolution) are copied for chunks that are checkpoints: out before the next chunk begins,
and in from the last cached chunk.
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
        "the slots' rows are divided over {ranks} ranks, so {present} ranks of the program cannot copy a slot",
    )


@dataclass(frozen=True)
class CopySlot:
    """Copy everything that decoding reads of a slot, whose prompt has `length` tokens and was followed by none."""

    copy: int
    slot: int
    length: int


@dataclass(frozen=True)
class RestoreSlot:
    """Write what `CopySlot` has copied of the slot `source` into a slot, after a prompt of `length` tokens."""

    copy: int
    slot: int
    length: int
    source: int


@dataclass(frozen=True)
class EmptyChunk:
    """Allocate memory for the rows of a chunk in all layers, not yet initialised, and for a checkpoint also for the
    states that it leaves for the next chunk."""

    copy: int
    checkpoint: bool


@dataclass(frozen=True)
class ReadChunks:
    """Copy the rows that prefill has left in layers, by the chunk's number in the prompt; for a checkpoint also the
    states that the chunk leaves for the next one."""

    copies: Mapping[int, int]
    slot: int
    layers: range


@dataclass(frozen=True)
class WriteChunks:
    """Write the rows of a prompt's first chunks into layers, for those that later positions still see."""

    copies: tuple[int, ...]
    slot: int
    layers: range


@dataclass(frozen=True)
class ShareCopy:
    """Send all ranks' parts of a copy to rank 0 (`KeptRows.parts`)."""

    copy: int


@dataclass(frozen=True)
class PutCopy:
    """Create a copy from the parts of every rank."""

    copy: int
    parts: tuple[Mapping[str, Array], ...]


@dataclass(frozen=True)
class Drop:
    """Delete copies."""

    copies: tuple[int, ...]


@dataclass(frozen=True)
class DropCheckpoint:
    """Delete the states that the chunk of a copy leaves for the next one."""

    copy: int


RowOperation = (
    CopySlot | RestoreSlot | EmptyChunk | ReadChunks | WriteChunks | ShareCopy | PutCopy | Drop | DropCheckpoint
)


class Copy:
    """A copy, of which every rank has its part. It is deleted when this object is no longer referenced.

    Attributes:
        number: number that identifies it on all ranks.
        nbytes: bytes of all ranks' parts.
        checkpoint: True for a chunk with the states that it leaves for the next one.
    """

    def __init__(self, rows: KeptRows, nbytes: int, checkpoint: bool = True) -> None:
        self.number, self.nbytes, self.checkpoint = next(rows.numbers), nbytes, checkpoint
        weakref.finalize(self, rows.forget, self.number).atexit = False

    def __repr__(self) -> str:
        return f"Copy({format_bytes(self.nbytes)})"


class KeptRows:
    """The copies of a rank.

    Args:
        signature: signature of the program.
        tensor: returns a state by its name.
        group: this rank and its peers.

    Attributes:
        copies: arrays by number, then by state: for a slot [L, Hkv, rows, ..], or [Hkv, rows, ..] for caches that
            layers share; for a chunk, K, V and quantized keys of all layers of a group, [L, Hkv, C, ..], and the states
            that it leaves for the next one.
        numbers: numbers for new copies.
    """

    def __init__(self, signature: Signature, tensor: Tensors, group: Group = ALONE) -> None:
        self._signature, self._tensor, self._group = signature, tensor, group
        self.copies: dict[int, Mapping[str, Array]] = {}
        self.numbers = itertools.count()
        self._shared: tuple[Mapping[str, Array], ...] = ()

    def do(self, operation: RowOperation) -> None:
        """Execute an operation on this rank's part. All ranks execute the same ones in the same order."""
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
        """Delete a copy; without effect if there is none. May be called from any thread, and from finalizers."""
        self.copies.pop(number, None)

    def slot_bytes(self, length: int) -> int:
        """Return the bytes that `CopySlot` copies of a slot after a prompt of `length` tokens, on all ranks together.
        """
        return sum(
            view.nbytes * (self._group.ranks // self._neighbours(group))
            for group, state in self._signature.states
            for view in state.slot(self._tensor, 0, length).values()
        )

    def parts(self, number: int) -> tuple[Mapping[str, Array], ...]:
        """Return every rank's part of a copy."""
        self.do(ShareCopy(number))
        shared, self._shared = self._shared, ()
        return shared

    def layout(self, length: int, slot: int) -> list[dict[str, TensorSpec]]:
        """Return shape and dtype of every rank's part of a copy of a slot after a prompt of `length` tokens."""
        layouts: list[dict[str, TensorSpec]] = [{} for _ in range(self._group.ranks)]
        for group, state in self._signature.states:
            # All ranks run the same program, so their states have the same shapes.
            specs = {name: TensorSpec.of(view) for name, view in state.slot(self._tensor, 0, length).items()}
            for rank, layout in enumerate(layouts):
                if self._owner(group, slot, rank)[0] == rank:
                    layout |= specs
        return layouts

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes that prefill leaves for the positions of a chunk, on all ranks together."""
        return self._group.ranks * sum(rows.nbytes for rows in self._empty().values())

    @cached_property
    def carried_bytes(self) -> int:
        """Bytes of the states that a chunk passes to the next one, on all ranks together."""
        return self._group.ranks * sum(rows.nbytes for rows in self._empty_carried().values())

    def bytes_of_chunk(self, checkpoint: bool) -> int:
        """Return the bytes of the copy of a chunk, on all ranks together."""
        return self.chunk_bytes + checkpoint * self.carried_bytes

    def chunk_layout(self, checkpoint: bool) -> list[dict[str, TensorSpec]]:
        """Return shape and dtype of every rank's part of a chunk. All ranks run the same program, so they are equal."""
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
            if source != owner:  # the same on all ranks, because all groups of neighbours have the same layout
                has = self._group.rank == source
                names = state.slot(self._tensor, 0, operation.length)
                sent = {name: parts[name] for name in names} if has else None
                parts = {**parts, **(self._group.exchange(sent)[source] or {})}
            if owner == self._group.rank:
                for name, view in state.slot(self._tensor, place, operation.length).items():
                    view.write(parts[name])

    def _owner(self, group: LayerGroup, slot: int, rank: int) -> tuple[int, int]:
        """Return the rank among a rank's neighbours that has the rows of a slot, and the slot's number there."""
        if group.slots is None:
            return rank, slot
        count = self._neighbours(group)
        return rank // count * count + slot // group.slots, slot % group.slots

    def _neighbours(self, group: LayerGroup) -> int:
        """Return the number of ranks that divide the slots. Raises UsageError if this rank does not know the others."""
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
        sharers = self._signature.plan.sources  # sharers keep no rows
        for layer in layers:
            if layer not in sharers:
                yield from self._signature.states_of(layer)

    def _first_seen(self, state: LayerState, chunks: int) -> int:
        """Return the first of `chunks` chunks with a row that later positions see."""
        size = self._signature.prefill_chunk
        return state.first_seen(chunks * size) // size

    def _positions(self, chunk: int) -> slice:
        size = self._signature.prefill_chunk
        return slice(chunk * size, (chunk + 1) * size)


@runtime_checkable
class KeepsRows(Protocol):
    """An interpreter that keeps copies of slots itself, because its program runs on several ranks."""

    def keep_rows(self, signature: Signature) -> KeptRows:
        """Return the keeper of copies on all ranks; the same at every call."""


def rows_in_scratch(signature: Signature) -> bool:
    """Return True if rows of some layer are in the prompt scratch, so that they are copied layer by layer."""
    return any(state.in_scratch for _, state in signature.states)


def carries(signature: Signature, layer: int) -> bool:
    """Return True if a chunk of a layer leaves states for the next one, to be copied before that."""
    return any(state.carries for state, _ in signature.states_of(layer))
