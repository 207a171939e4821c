"""The host's store of prompts: rows of chunks, for prompts that begin alike, and slots of whole prompts.

The rows that prefill makes of a chunk depend on the tokens up to the chunk's end and on nothing else, whatever the
program keeps of them afterwards. The store keeps them under a digest of all these tokens, once for all prompts that
share them. A prompt continues from the longest run of chunks that is there, bit for bit as if it had been prefilled
from nothing. Rows that decode wrote are never kept: they come from attention to a compressed cache.

What a chunk leaves for the next one alone (a recurrent state, the last inputs of a convolution) is kept of checkpoints:
chunks behind which a prompt can continue. Where that is small beside a chunk's rows, all chunks are. Else a prompt has
two at most: its last whole chunk, from which the next turn continues, and the one that it continued from itself; and
where a prompt begins like others, and they had none there, the last chunk that they share. So what is kept of states
does not grow with the length of a text.

A slot after a whole prompt (`Snapshot`) serves the same prompt again, without any prefill. Both share one limit, and
what was used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from sscc.runtime.session.chunk_message import ChunkMessage, chunks_of
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.kept_rows import Copy
from sscc.runtime.session.prompt import Snapshot
from sscc.runtime.session.session import Session
from sscc.runtime.support.usable_memory import usable_memory

MOST_BYTES, SHARE = 2 << 30, 10
SMALL_SHARE = 8
"""Every chunk is a checkpoint where that takes at most the bytes of a chunk's rows divided by this."""
"""The default limit: 2 GiB, or a tenth of the memory where that is less."""


def default_limit() -> int:
    """Return the bytes that a store may take where nobody says: `MOST_BYTES`, or the memory that the process may use
    divided by `SHARE` where that is less."""
    return min(MOST_BYTES, usable_memory() // SHARE)


@dataclass(frozen=True, eq=False)
class KeptChunk:
    """The rows of a chunk.

    Attributes:
        before: the key of the chunk before (`chunk_key`).
        tokens: of the chunk.
        parent: the key in the store of the checkpoint that the prompt continued from which made this one; None: none.
        shared: True for a checkpoint where prompts part that begin alike.
    """

    before: bytes
    tokens: Excerpt
    rows: Copy
    parent: bytes | None = None
    shared: bool = False

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes


class PromptStore:
    """Keeps what was used last, and the beginning of a prompt rather than its end.

    Args:
        session: prefills, one prompt at a time.
        limit: bytes of everything that is kept, and of what the prefill in progress fills; 0 keeps nothing.
        elsewhere: True if other processes prefill, so that whole prompts come and no rows of chunks.

    Attributes:
        nbytes: of everything that is kept or filled.
    """

    def __init__(self, session: Session, limit: int, *, elsewhere: bool = False) -> None:
        self._session, self.limit = session, limit
        self._chunk_bytes, self._carried_bytes = session.rows.chunk_bytes, session.rows.carried_bytes
        self._every = SMALL_SHARE * self._carried_bytes <= self._chunk_bytes
        largest = session.rows.bytes_of_chunk(True)
        self._by_chunk = not elsewhere and 0 < largest <= limit
        # A slot that holds all rows of its prompt is as large as the rows of the chunks, which serve more prompts.
        whole = elsewhere or not any(state.keeps_prompts for _, state in session.signature.states)
        self._whole = whole and limit > 0
        self._entries: OrderedDict[bytes, KeptChunk | Snapshot] = OrderedDict()
        self._prompt: list[bytes] = []  # the keys of the chunks of the prompt that is being prefilled
        self._filling: dict[bytes, KeptChunk] = {}
        self._parent: bytes | None = None  # the checkpoint that this prompt continues from
        self.nbytes = 0

    def find(self, prompt: Excerpt) -> Snapshot | None:
        """Return the slot after exactly this prompt, if it is kept."""
        entry = self._entries.get(prompt.key)
        if isinstance(entry, Snapshot):
            self._entries.move_to_end(prompt.key)
            return entry
        return None

    def begin(self, prompt: Excerpt) -> tuple[list[Copy], dict[int, Copy]]:
        """Begin a prefill, and drop the rows of one that did not `finish`.

        Returns:
            The chunks that a prompt begins with, up to a checkpoint, as far as they are kept and can be reused; and
            memory for others, by their number in the prompt, as far as the limit allows.
        """
        self._forget_filling()
        self._prompt, self._parent = [], None
        if not self._by_chunk:
            return [], {}
        chunks = list(chunks_of(prompt, self._session.signature.prefill_chunk))
        if self._chunk_bytes:
            left = self.limit - self._reserved(prompt) - (0 if self._every else 2 * self._carried_bytes)
            chunks = chunks[: max(left, 0) // self._session.rows.bytes_of_chunk(self._every)]
        self._prompt = [_CHUNK + key for _, key, _ in chunks]
        self._touch()
        alike: list[KeptChunk] = []
        for key in self._prompt:
            if (chunk := self._chunk(key)) is None:
                break
            alike.append(chunk)
        reusable = alike[: self._session.reusable_chunks(len(prompt))]
        while reusable and not reusable[-1].rows.checkpoint:
            reusable.pop()
        if reusable:
            self._parent = self._prompt[len(reusable) - 1]
        return [chunk.rows for chunk in reusable], self._fill(chunks, len(reusable), len(alike))

    def _fill(self, chunks: Sequence[tuple[bytes, bytes, Excerpt]], reused: int, alike: int) -> dict[int, Copy]:
        """Make memory for chunks of the prompt that are not kept, or kept without the checkpoint that they are to be.

        Args:
            chunks: of the prompt, as `chunks_of` has them.
            reused: from how many of them the prefill continues.
            alike: how many of them are kept, from the first one on.
        """
        fill: dict[int, Copy] = {}
        for number, (before, key, tokens) in list(enumerate(chunks))[reused:]:
            there = self._chunk(_CHUNK + key)
            shared = number == alike - 1
            checkpoint = self._every or shared or number == len(chunks) - 1
            nbytes = self._session.rows.bytes_of_chunk(checkpoint)
            is_kept = there is not None and there.rows.checkpoint >= checkpoint
            if not is_kept and self._make_room(nbytes, self._prompt):
                fill[number] = self._session.empty_chunk(checkpoint)
                # A copy of the tokens: a view would keep the whole prompt's in memory.
                own = Excerpt(tokens.tokens.copy(), tokens.positions.copy())
                self._filling[_CHUNK + key] = KeptChunk(before, own, fill[number], self._parent, shared)
                self.nbytes += nbytes
        return fill

    def _chunk(self, key: bytes) -> KeptChunk | None:
        entry = self._entries.get(key)
        return entry if isinstance(entry, KeptChunk) else None

    def finish(self, slot: int) -> Snapshot | None:
        """Keep what was filled, and the slot, which holds a prompt and nothing after it.

        Returns:
            The snapshot of this prompt, if one is kept.
        """
        for key in self._filling.keys() & self._entries.keys():  # without a checkpoint so far
            self.nbytes -= _nbytes(self._entries.pop(key))
        made = [chunk for chunk in self._filling.values() if chunk.rows.checkpoint]
        self._entries |= self._filling
        self._filling = {}
        if made and not self._every:
            self._drop_superseded()
        prompt = self._session.prompt(slot)
        key = prompt.tokens.key
        if self._whole:
            nbytes = self._session.snapshot_bytes(slot) + prompt.nbytes
            self._keep(key, nbytes, lambda: self._session.snapshot(slot), self._prompt)
        self._touch()
        entry = self._entries.get(key)
        return entry if isinstance(entry, Snapshot) else None

    def add(self, snapshot: Snapshot) -> None:
        """Keep what another process has prefilled, unless it is larger than everything may be."""
        if self._whole:
            self._keep(snapshot.prompt.tokens.key, _nbytes(snapshot), lambda: snapshot)

    def entries(self) -> list[KeptChunk | Snapshot]:
        """Return everything that is kept, what was used longest ago first."""
        return list(self._entries.values())

    def add_chunk(self, message: ChunkMessage) -> bool:
        """Keep the rows of a chunk that another session has made. Return False where they are not wanted."""

        def adopted() -> KeptChunk:
            return KeptChunk(message.before, message.tokens, self._session.adopt_chunk(message))

        nbytes = self._session.rows.bytes_of_chunk(message.checkpoint)
        return self._by_chunk and self._keep(_CHUNK + message.key, nbytes, adopted)

    def _keep(
        self, key: bytes, nbytes: int, make: Callable[[], KeptChunk | Snapshot], needed: Container[bytes] = ()
    ) -> bool:
        """Keep an entry that is not there yet, where there is room for it. Return True if it was made and kept.

        Args:
            needed: keys of what stays.
        """
        kept = key not in self._entries and self._make_room(nbytes, needed)
        if kept:
            self._entries[key] = make()
            self.nbytes += nbytes
        return kept

    def _reserved(self, prompt: Excerpt) -> int:
        """Return the bytes that the chunks of a prompt leave to its slot, which serves the whole prompt again."""
        nbytes = self._session.whole_bytes(prompt) if self._whole else 0
        return nbytes if 2 * nbytes <= self.limit else 0

    def _make_room(self, nbytes: int, needed: Container[bytes] = ()) -> bool:
        """Give up what was not used for longest, as far as it takes. Return False where there can be no such room.

        Args:
            needed: keys of what stays.
        """
        if nbytes > self.limit:
            return False
        while self.nbytes + nbytes > self.limit:
            oldest = next(iter(self._entries), None)
            if oldest is None or oldest in needed:
                return False
            self.nbytes -= _nbytes(self._entries.pop(oldest))
        return True

    def _drop_superseded(self) -> None:
        """Give up the checkpoint that the one was made from which this prompt has continued from, if no other prompt
        continued from it."""
        parent = None if self._parent is None else self._chunk(self._parent)
        before = None if parent is None or parent.parent is None else self._chunk(parent.parent)
        if parent is None or before is None or before.shared:
            return
        chunks = (entry for entry in self._entries.values() if isinstance(entry, KeptChunk) and entry is not parent)
        others = any(chunk.parent == parent.parent and chunk.rows.checkpoint for chunk in chunks)
        if not others and before.rows.checkpoint:
            self.nbytes -= before.nbytes
            self._session.drop_checkpoint(before.rows)
            self.nbytes += before.nbytes

    def _forget_filling(self) -> None:
        self.nbytes -= sum(chunk.nbytes for chunk in self._filling.values())
        self._filling = {}

    def _touch(self) -> None:
        """Note that the chunks of the prompt were used; its first one is the last to go."""
        for key in reversed(self._prompt):
            if key in self._entries:
                self._entries.move_to_end(key)


_CHUNK = b"chunk"
"""The beginning of a chunk's key in a store, so that none is the key of a whole prompt (`Excerpt.key`), whose length is
a multiple of 8."""


def _nbytes(entry: KeptChunk | Snapshot) -> int:
    return entry.nbytes + entry.prompt.nbytes if isinstance(entry, Snapshot) else entry.nbytes
