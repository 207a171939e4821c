"""Rows of prompts, kept by chunk, for prompts that begin alike.

Where every row of a prompt stays in its slot, what prefill wrote of a chunk depends on the tokens up to the chunk's end
and on nothing else. So chunks are kept under a digest of all tokens before and in them, once however many prompts share
them, and a prompt continues from the longest run of chunks that is there, bit for bit as if it had been prefilled from
nothing. Rows that decode wrote are never kept: they come from attention to chosen rows.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session import Session

Rows = Mapping[str, Array]


class PrefixStore:
    """Keeps the chunks that were used last, and of a prompt its beginning rather than its end.

    Args:
        session: whose slots rows are copied from and to.
        limit: bytes of all that is kept together; 0 keeps nothing.
    """

    def __init__(self, session: Session, limit: int) -> None:
        self._session, self._limit = session, limit
        self._chunks: OrderedDict[bytes, Rows] = OrderedDict()
        self.nbytes = 0

    def restore(self, slot: int, prompt: Array) -> int:
        """Copies into a slot what is kept of a prompt [n] i64; gives how many chunks of it, from the first."""
        keys = self._kept(prompt)[: self._session.reusable_chunks(len(prompt))]
        self._touch(keys)
        for number, key in enumerate(keys):
            self._session.write_rows(slot, number, self._chunks[key])
        return len(keys)

    def keep(self, slot: int, prompt: Array) -> None:
        """Copies the whole chunks of a slot that holds this prompt, as far as the limit allows."""
        size = self._session.signature.row_state_bytes * self._session.signature.prefill_chunk
        if not size or size > self._limit:
            return
        keys = list(self._keys(prompt))[: self._limit // size]
        self._touch([key for key in keys if key in self._chunks])
        for number, key in enumerate(keys):
            if key in self._chunks:
                continue
            while self.nbytes + size > self._limit:
                oldest = next(iter(self._chunks))
                if oldest in keys:
                    return  # only this prompt is left
                del self._chunks[oldest]
                self.nbytes -= size
            self._chunks[key] = self._session.read_rows(slot, number)
            self.nbytes += size
        self._touch(keys)

    def _kept(self, prompt: Array) -> list[bytes]:
        """The keys of the chunks of a prompt that are kept, up to the first that is not."""
        found = []
        for key in self._keys(prompt):
            if key not in self._chunks:
                break
            found.append(key)
        return found

    def _keys(self, prompt: Array) -> Iterator[bytes]:
        """Of each whole chunk of a prompt a digest of its tokens and of all before it."""
        chunk, digest = self._session.signature.prefill_chunk, hashlib.sha256()
        for first in range(0, len(prompt) - chunk + 1, chunk):
            digest.update(prompt[first : first + chunk].tobytes())
            yield digest.digest()

    def _touch(self, keys: list[bytes]) -> None:
        """Notes that chunks were used; the first one of a prompt is the last to go."""
        for key in reversed(keys):
            self._chunks.move_to_end(key)
