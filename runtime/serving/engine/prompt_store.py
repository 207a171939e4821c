"""The host's prompt cache: rows of chunks, for prompts with a common prefix, and slots of whole prompts.

The rows that prefill computes for a chunk depend only on the tokens up to the chunk's end, whatever rows the program
keeps of them afterwards. The store keeps the rows under a digest of all these tokens, once for all prompts that share
them. A prompt continues from its longest prefix of cached chunks, and the result is bit for bit that of a full prefill.
Rows written by decode are never cached, because they come from attention to a compressed cache.

State that a chunk passes on to the next one only (a recurrent state, the last inputs of a convolution) is kept for
checkpoints: chunks after which a prompt can continue. If the state is small beside a chunk's rows, every chunk is
a checkpoint. Otherwise a prompt has at most two: its last whole chunk, from which the next turn continues, and the one
that it continued from itself. In addition, when a prompt shares a prefix with others that has no checkpoint, the last
shared chunk becomes one. So the memory for states does not grow with the length of a text.

The slot after a whole prompt (`Snapshot`) serves the same prompt again without any prefill. Chunks and slots share one
limit, and the least recently used ones are dropped first.
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
"""Default limit: 2 GiB, or a tenth of the memory if that is less."""
SMALL_SHARE = 8
"""Every chunk is a checkpoint if its state takes at most the bytes of the chunk's rows divided by this."""


def default_limit() -> int:
    """Return the default limit of a store in bytes: `MOST_BYTES`, or the memory that the process may use divided by
    `SHARE` if that is less."""
    return min(MOST_BYTES, usable_memory() // SHARE)


@dataclass(frozen=True, eq=False)
class KeptChunk:
    """The cached rows of a chunk.

    Attributes:
        before: key of the previous chunk (`chunk_key`).
        tokens: tokens of the chunk.
        rows: rows of the chunk in the session's store.
        parent: store key of the checkpoint from which the prompt continued that computed this chunk; None for none.
        shared: True for a checkpoint at the end of a prefix that several prompts share.
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
    """Least recently used cache of prompts. Of a prompt, the last chunks are dropped before the first ones.

    Args:
        session: session that prefills, one prompt at a time.
        limit: maximum bytes of all entries and of the chunks being filled; 0 disables the cache.
        remote_prefill: True if other processes prefill, so that whole prompts arrive but no rows of chunks.

    Attributes:
        nbytes: bytes of all entries and of the chunks being filled.
    """

    def __init__(self, session: Session, limit: int, *, remote_prefill: bool = False) -> None:
        self._session, self.limit = session, limit
        self._chunk_bytes, self._carried_bytes = session.rows.chunk_bytes, session.rows.carried_bytes
        self._every = SMALL_SHARE * self._carried_bytes <= self._chunk_bytes
        largest = session.rows.bytes_of_chunk(True)
        self._by_chunk = not remote_prefill and 0 < largest <= limit
        # A slot that keeps all rows of its prompt is as large as the rows of the chunks, which serve more prompts.
        whole = remote_prefill or not any(state.keeps_prompts for _, state in session.signature.states)
        self._whole = whole and limit > 0
        self._entries: OrderedDict[bytes, KeptChunk | Snapshot] = OrderedDict()
        self._prompt: list[bytes] = []  # keys of the chunks of the prompt that is being prefilled
        self._filling: dict[bytes, KeptChunk] = {}
        self._parent: bytes | None = None  # checkpoint from which this prompt continues
        self.nbytes = 0

    def find(self, prompt: Excerpt) -> Snapshot | None:
        """Return the slot after exactly this prompt, if it is cached."""
        entry = self._entries.get(prompt.key)
        if isinstance(entry, Snapshot):
            self._entries.move_to_end(prompt.key)
            return entry
        return None

    def begin(self, prompt: Excerpt) -> tuple[list[Copy], dict[int, Copy]]:
        """Begin a prefill, and drop the rows of a prefill that did not `finish`.

        Returns:
            The cached chunks from which the prompt can continue, up to a checkpoint; and memory for the rows of other
            chunks, by their index in the prompt, as far as the limit allows.
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
        """Allocate memory for the chunks of a prompt that are not cached, or cached without the checkpoint that they
        need.

        Args:
            chunks: chunks of the prompt, from `chunks_of`.
            reused: number of chunks from which the prefill continues.
            alike: number of cached chunks at the beginning of the prompt.
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
                # The tokens are copied, because a view would keep those of the whole prompt in memory.
                own = Excerpt(tokens.tokens.copy(), tokens.positions.copy())
                self._filling[_CHUNK + key] = KeptChunk(before, own, fill[number], self._parent, shared)
                self.nbytes += nbytes
        return fill

    def _chunk(self, key: bytes) -> KeptChunk | None:
        entry = self._entries.get(key)
        return entry if isinstance(entry, KeptChunk) else None

    def finish(self, slot: int) -> Snapshot | None:
        """Cache the chunks that were filled, and the slot, which must hold a prompt and nothing after it.

        Returns:
            The snapshot of this prompt, if it is cached.
        """
        for key in self._filling.keys() & self._entries.keys():  # entries to be replaced by ones with a checkpoint
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
        """Cache the result of a remote prefill, unless it is larger than the limit."""
        if self._whole:
            self._keep(snapshot.prompt.tokens.key, _nbytes(snapshot), lambda: snapshot)

    def entries(self) -> list[KeptChunk | Snapshot]:
        """Return all entries, least recently used first."""
        return list(self._entries.values())

    def add_chunk(self, message: ChunkMessage) -> bool:
        """Cache the rows of a chunk from another session. Return False if they are already cached or do not fit."""

        def adopted() -> KeptChunk:
            return KeptChunk(message.before, message.tokens, self._session.adopt_chunk(message))

        nbytes = self._session.rows.bytes_of_chunk(message.checkpoint)
        return self._by_chunk and self._keep(_CHUNK + message.key, nbytes, adopted)

    def _keep(
        self, key: bytes, nbytes: int, make: Callable[[], KeptChunk | Snapshot], needed: Container[bytes] = ()
    ) -> bool:
        """Add an entry unless it exists or there is no room for it. Return True if it was added.

        Args:
            needed: keys that must not be dropped.
        """
        kept = key not in self._entries and self._make_room(nbytes, needed)
        if kept:
            self._entries[key] = make()
            self.nbytes += nbytes
        return kept

    def _reserved(self, prompt: Excerpt) -> int:
        """Return the bytes to leave for the slot of a prompt, which can serve the whole prompt again."""
        nbytes = self._session.whole_bytes(prompt) if self._whole else 0
        return nbytes if 2 * nbytes <= self.limit else 0

    def _make_room(self, nbytes: int, needed: Container[bytes] = ()) -> bool:
        """Drop the least recently used entries until there is room. Return False if that is not possible.

        Args:
            needed: keys that must not be dropped.
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
        """Drop the checkpoint two turns back: the one from which the parent of this prompt continued, unless it is
        shared or another checkpoint continued from it."""
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
        """Mark the chunks of the prompt as used. The first chunk is marked last, so that it is dropped last."""
        for key in reversed(self._prompt):
            if key in self._entries:
                self._entries.move_to_end(key)


_CHUNK = b"chunk"
"""Prefix of a chunk's key in a store, so that it cannot equal the key of a whole prompt (`Excerpt.key`), whose length
is a multiple of 8."""


def _nbytes(entry: KeptChunk | Snapshot) -> int:
    return entry.nbytes + entry.prompt.nbytes if isinstance(entry, Snapshot) else entry.nbytes
