"""Bounded reading of a GGUF header: bytes of a mapped file from the front on, and limits on what they may hold.

Every count and length in a file is compared with the bytes that are there, and with a limit, before anything of that
size is allocated. Numbers are little-endian.
"""

from __future__ import annotations

import mmap
from collections import Counter
from enum import Enum
from pathlib import Path
from struct import Struct
from typing import Any

from sscc.compiler.frontend.gguf.header_errors import GgufHeaderErrors
from sscc.ir.errors import SsccError, quoted

U32, U64 = Struct("<I"), Struct("<Q")


class Limit(Enum):
    """Limits on the contents of all files of a model together. A member is `noun, number`.

    A header at all limits is read in about a second of processor time and in less than 256 MiB; a text takes up to 4
    times its bytes.
    """

    METADATA = "bytes of metadata", 32 << 20
    ENTRIES = "entries of metadata", 1 << 17
    TEXTS = "texts in arrays", 1 << 20  # the largest published vocabularies have 780,000 tokens and merges
    TENSORS = "tensors", 1 << 14  # the largest published models have 2,000

    noun: str
    most: int

    def __init__(self, noun: str, most: int) -> None:
        self.noun, self.most = noun, most


class Budget:
    """Counts of bytes, entries, texts and tensors in the files of a model, each compared with its limit."""

    def __init__(self) -> None:
        self._spent: Counter[Limit] = Counter()

    def left(self, limit: Limit) -> int:
        return limit.most - self._spent[limit]

    def spend(self, path: Path, limit: Limit, count: int) -> None:
        self._spent[limit] += count
        if self._spent[limit] > limit.most:
            raise GgufHeaderErrors.TOO_MANY(path=path, what=limit.noun, count=self._spent[limit], most=limit.most)


class Cursor:
    """A position in a mapped file.

    Attributes:
        at: the byte that is read next.
        what: the part of the header that is being read, as errors name it.
    """

    def __init__(self, path: Path, data: mmap.mmap, budget: Budget) -> None:
        self.path, self.data, self.size, self.budget = path, data, len(data), budget
        self.at, self.what = 0, "its header"
        self._end, self._begin = self.size, 0

    def begin_metadata(self) -> None:
        """Limit what is read from here on to the bytes that metadata may still have."""
        self._begin, self._end = self.at, min(self.size, self.at + self.budget.left(Limit.METADATA))

    def end_metadata(self) -> None:
        """Take what was read since `begin_metadata` off the budget."""
        self.budget.spend(self.path, Limit.METADATA, self.at - self._begin)
        self._end = self.size

    def require(self, count: int) -> None:
        """Check that `count` bytes follow."""
        if self.at + count > self._end:
            raise self._beyond(self.at + count)

    def raw(self, count: int) -> bytes:
        """Read `count` bytes, which are copied."""
        self.require(count)
        begin, self.at = self.at, self.at + count
        return self.data[begin : self.at]

    def _beyond(self, end: int) -> SsccError:
        """Return the error of reading up to byte `end`, beyond the file or beyond the bytes that metadata may have."""
        if end > self.size:
            return GgufHeaderErrors.TRUNCATED(path=self.path, what=self.what, end=end, size=self.size)
        count = Limit.METADATA.most + end - self._end
        return GgufHeaderErrors.TOO_MANY(
            path=self.path, what=Limit.METADATA.noun, count=count, most=Limit.METADATA.most
        )

    def unpack(self, layout: Struct) -> tuple[Any, ...]:
        """Read the numbers of a layout."""
        begin, self.at = self.at, self.at + layout.size
        if self.at > self._end:
            raise self._beyond(self.at)
        return layout.unpack_from(self.data, begin)

    def text(self, most: int) -> str:
        """Read a text of at most `most` bytes."""
        (count,) = self.unpack(U64)
        if count > most:
            raise GgufHeaderErrors.TOO_LONG(path=self.path, what=self.what, bytes=count, most=most)
        try:
            return self.raw(count).decode()
        except UnicodeDecodeError as error:
            raise self._not_text(error) from None

    def texts(self, count: int) -> list[str]:
        """Read `count` texts."""
        self.budget.spend(self.path, Limit.TEXTS, count)
        self.require(U64.size * count)  # the least that they have
        texts = [""] * count
        # A vocabulary has hundreds of thousands of texts: their bounds are checked here, without a call for each.
        data, at, end, unpack = self.data, self.at, self._end, U64.unpack_from
        try:
            for index in range(count):
                begin = at + U64.size
                if begin > end:
                    raise self._beyond(begin)
                at = begin + unpack(data, at)[0]
                if at > end:
                    raise self._beyond(at)
                texts[index] = data[begin:at].decode()
        except UnicodeDecodeError as error:
            raise self._not_text(error) from None
        self.at = at
        return texts

    def _not_text(self, error: UnicodeDecodeError) -> SsccError:
        return GgufHeaderErrors.NOT_TEXT(path=self.path, what=self.what, cause=quoted(error))
