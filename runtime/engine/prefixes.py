"""Rows of prompts, kept by chunk, for prompts that begin alike.

Where a prompt can go on from another's rows, what prefill wrote of a chunk depends on the tokens up to the chunk's end
and on nothing else. So chunks are kept under a digest of all tokens before and in them, once however many prompts share
them, and a prompt continues from the longest run of chunks that is there, bit for bit as if it had been prefilled from
nothing. Rows that decode wrote are never kept: they come from attention to chosen rows.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice, takewhile

from sscc.runtime.excerpt import Excerpt
from sscc.runtime.kept_rows import Copy
from sscc.runtime.session import Session


class PrefixStore:
    """Keeps the chunks that were used last, and of a prompt its beginning rather than its end.

    Args:
        session: that prefills, one prompt at a time.
        limit: bytes of all that is kept together, and of what the prefill in progress fills; 0 keeps nothing.
    """

    def __init__(self, session: Session, limit: int) -> None:
        self._session, self.limit = session, limit
        self._chunk_bytes = session.rows.chunk_bytes
        self._chunks: OrderedDict[bytes, Copy] = OrderedDict()
        self._prompt: list[bytes] = []  # the keys of the one that is being prefilled
        self._filling: dict[bytes, Copy] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that the chunks take, those that are being filled too."""
        return (len(self._chunks) + len(self._filling)) * self._chunk_bytes

    def begin(self, prompt: Excerpt) -> tuple[list[Copy], dict[int, Copy]]:
        """What is kept of the beginning of a prompt that is about to be prefilled, chunk by chunk, and memory
        for those that follow, by number, as far as the limit allows. What the last prefill did not `finish` is given
        up."""
        self._filling.clear()
        if not self._chunk_bytes:
            return [], {}
        keys = chunk_keys(prompt, self._session.signature.prefill_chunk)
        self._prompt = list(islice(keys, self.limit // self._chunk_bytes))
        self._touch()
        fill: dict[int, Copy] = {}
        for number, key in enumerate(self._prompt):
            if key not in self._chunks and self._make_room():
                fill[number] = self._filling[key] = self._session.empty_chunk()
        kept = takewhile(self._chunks.__contains__, self._prompt)
        reusable = self._session.reusable_chunks(len(prompt))
        return [self._chunks[key] for key in islice(kept, reusable)], fill

    def finish(self) -> None:
        """Keeps what was filled: its prefill has finished."""
        self._chunks |= self._filling
        self._touch()
        self._filling.clear()

    def _make_room(self) -> bool:
        """Gives up the chunk that was not used for longest, where there is no room for another one; whether there is
        now. The prompt's own stay."""
        if self.nbytes + self._chunk_bytes <= self.limit:
            return True
        oldest = next(iter(self._chunks), None)
        if oldest is None or oldest in self._prompt:
            return False
        del self._chunks[oldest]
        return True

    def _touch(self) -> None:
        """Notes that the prompt's chunks were used; its first one is the last to go."""
        for key in reversed(self._prompt):
            if key in self._chunks:
                self._chunks.move_to_end(key)


def chunk_keys(prompt: Excerpt, chunk: int) -> Iterator[bytes]:
    """Of each whole chunk of so many tokens of a prompt a digest of its tokens and of all before it, and of where they
    stand in their text."""
    digest = hashlib.sha256()
    for first in range(0, len(prompt) - chunk + 1, chunk):
        digest.update(prompt.tokens[first : first + chunk].tobytes())
        digest.update(prompt.positions[first : first + chunk].tobytes())
        yield digest.digest()
