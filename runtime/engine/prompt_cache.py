"""Compressed caches of whole prompts, kept for the same prompt again."""

from __future__ import annotations

from collections import OrderedDict

from sscc.runtime.excerpt import Excerpt
from sscc.runtime.session import Session, Snapshot


class PromptCache:
    """Keeps the prompts that were used last.

    Args:
        limit: bytes of all that is kept together; 0 keeps nothing.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[bytes, Snapshot] = OrderedDict()
        self.nbytes = 0

    def find(self, prompt: Excerpt) -> Snapshot | None:
        """What the prefill of exactly this prompt left, if it is kept."""
        key = prompt.key
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def keep(self, session: Session, slot: int) -> Snapshot | None:
        """Copies a slot that holds a prompt and nothing after it, unless it is larger than everything may be; the
        copy, if there is one of this prompt now."""
        if not self._limit:
            return None
        key = session.prompt(slot).tokens.key
        if key not in self._entries and self._make_room(session.snapshot_bytes(slot) + session.prompt(slot).nbytes):
            self._add(key, session.snapshot(slot))
        return self._entries.get(key)

    def add(self, snapshot: Snapshot) -> None:
        """Keeps what another process has prefilled, unless it is larger than everything may be."""
        key = snapshot.prompt.tokens.key
        if key not in self._entries and self._make_room(_nbytes(snapshot)):
            self._add(key, snapshot)

    def _make_room(self, nbytes: int) -> bool:
        """Gives up what was not used for longest, as far as it takes; False where there can be no such room."""
        if nbytes > self._limit:
            return False
        while self.nbytes + nbytes > self._limit:
            self.nbytes -= _nbytes(self._entries.popitem(last=False)[1])
        return True

    def _add(self, key: bytes, snapshot: Snapshot) -> None:
        self._entries[key] = snapshot
        self.nbytes += _nbytes(snapshot)


def _nbytes(snapshot: Snapshot) -> int:
    return snapshot.nbytes + snapshot.prompt.nbytes
