"""Compressed caches of whole prompts, kept for the same prompt again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session import Session, Snapshot


@dataclass(frozen=True)
class Prefilled:
    """What a prefill leaves.

    Attributes:
        snapshot: of the slot.
        logits: [V], after the prompt's last token.
    """

    snapshot: Snapshot
    logits: Array


class PromptCache:
    """Keeps the prompts that were used last.

    Args:
        limit: bytes of all that is kept together; 0 keeps nothing.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[bytes, Prefilled] = OrderedDict()
        self.nbytes = 0

    def find(self, prompt: Array) -> Prefilled | None:
        """What the prefill of exactly this prompt left, [n] i64, if it is kept."""
        key = prompt.tobytes()
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def keep(self, prompt: Array, session: Session, slot: int, logits: Array) -> None:
        """Copies a slot that holds this prompt and nothing after it, unless it is larger than everything may be."""
        if not self._limit:
            return
        key = prompt.tobytes()
        added = session.snapshot_bytes(slot) + logits.nbytes + len(key)
        if added > self._limit or key in self._entries:
            return
        while self.nbytes + added > self._limit:
            self.nbytes -= _nbytes(*self._entries.popitem(last=False))
        self._entries[key] = Prefilled(session.snapshot(slot), logits)
        self.nbytes += added


def _nbytes(key: bytes, entry: Prefilled) -> int:
    return len(key) + entry.snapshot.nbytes + entry.logits.nbytes
