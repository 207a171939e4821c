"""Uncompressed members of a zip archive, found by a reading of the archive that leaves no ambiguity.

Readers of zip files differ in which of several directories, names or sizes they trust. This one reads the central
directory at the end of the file, compares each local header with it, and refuses everything that two readers could
understand differently: duplicate names, also in another case, overlapping members, compression, encryption, several
disks, comments. Sizes are known before anything is read, so an archive costs no more memory than its directory.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from sscc.ir.errors import ErrorKind, InputError, quoted
from sscc.ir.files import open_regular

MOST_MEMBERS = 100_000
MOST_DIRECTORY_BYTES = 32 << 20
LONGEST_NAME = 1024

_END, _END64, _LOCATOR64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_ENTRY, _LOCAL = struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
_NAME = re.compile(rb"[A-Za-z0-9_.+ @=,()-]+(/[A-Za-z0-9_.+ @=,()-]+)*")
_UTF8, _DESCRIPTOR = 0x800, 0x8
_ZIP64 = 1
_PIECE = 1 << 20


class StoredZipKind(ErrorKind):
    """Kinds whose message begins with the archive's path."""

    def __init__(self, message: str) -> None:
        super().__init__(InputError, "{path}: " + message)


class StoredZipErrors(StoredZipKind):
    UNREADABLE = "cannot be read: {cause}"
    NO_END = "is not a zip archive, or is truncated: it does not end with a zip directory"
    DIRECTORY_MISPLACED = "the zip directory is damaged: {bytes} bytes at {offset} do not end where the trailer begins"
    TOO_LARGE = "the zip directory has {members} members in {bytes} bytes, more than the limit of {limit} members"
    DIRECTORY_DAMAGED = "the zip directory is damaged at entry {entry}"
    NAME = "member {name!r} has a name that is not plain: letters, digits and /, without .. and at most 1024 long"
    TWICE = "the archive has two members {name!r} (case does not count)"
    NOT_STORED = "member {name!r} is compressed or encrypted: torch.export.save stores members as they are"
    HEADER_DIFFERS = "member {name!r}: its local header and the zip directory disagree"
    OVERLAPS = "member {name!r} overlaps another member or the zip directory"
    CHECKSUM = "member {name!r} is damaged: its checksum does not match"
    SHORT = "the archive ends within member {name!r}"


@dataclass(frozen=True)
class Member:
    """A stored member.

    Attributes:
        name: name in the directory.
        start, size: range of its bytes in the file.
        crc: CRC-32 of these bytes.
    """

    name: str
    start: int
    size: int
    crc: int


class StoredZip:
    """The members of an archive, by name in the order of the directory.

    Raises:
        InputError: the file is not such an archive. Only the directory and the local headers are read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_regular(path)
        try:
            self.members = {member.name: member for member in self._read()}
        except OSError as error:
            raise StoredZipErrors.UNREADABLE(path=path, cause=quoted(error.strerror or error)) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> StoredZip:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def read(self, name: str) -> bytes:
        """Return the bytes of a member. Raises InputError if its checksum does not match."""
        member = self.members[name]
        data = self._at(member.start, member.size)
        if len(data) < member.size:
            raise StoredZipErrors.SHORT(path=self.path, name=name)
        if zlib.crc32(data) != member.crc:
            raise StoredZipErrors.CHECKSUM(path=self.path, name=name)
        return data

    def verify(self) -> None:
        """Compare every member with its checksum, in bounded memory. Raises InputError."""
        for member in self.members.values():
            self._file.seek(member.start)
            crc, left = 0, member.size
            while left:
                piece = self._file.read(min(left, _PIECE))
                if not piece:
                    raise StoredZipErrors.SHORT(path=self.path, name=member.name)
                crc, left = zlib.crc32(piece, crc), left - len(piece)
            if crc != member.crc:
                raise StoredZipErrors.CHECKSUM(path=self.path, name=member.name)

    def _at(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(size)

    def _read(self) -> list[Member]:
        count, size, offset = self._trailer()
        data = self._at(offset, size)
        members: list[Member] = []
        names: set[str] = set()
        place = 0
        for entry in range(count):
            if place + _ENTRY.size > size:
                raise StoredZipErrors.DIRECTORY_DAMAGED(path=self.path, entry=entry)
            member, place = self._entry(data, place, entry)
            if member.name.lower() in names:
                raise StoredZipErrors.TWICE(path=self.path, name=member.name)
            names.add(member.name.lower())
            members.append(member)
        if place != size:
            raise StoredZipErrors.DIRECTORY_DAMAGED(path=self.path, entry=count)
        return self._placed(members, offset)

    def _trailer(self) -> tuple[int, int, int]:
        """Return the number of members, and size and offset of the directory."""
        length = os.fstat(self._file.fileno()).st_size
        end = length - _END.size
        tail = self._at(max(end, 0), _END.size)
        if end < 0 or tail[:4] != b"PK\x05\x06":
            raise StoredZipErrors.NO_END(path=self.path)
        _, disk, first, here, count, size, offset, comment = _END.unpack(tail)
        locator = self._at(end - _LOCATOR64.size, _LOCATOR64.size) if end >= _LOCATOR64.size else b""
        if locator[:4] == b"PK\x06\x07":
            _, _, at, _ = _LOCATOR64.unpack(locator)
            end = end - _LOCATOR64.size - _END64.size
            record = self._at(end, _END64.size) if end == at else b""
            if record[:4] != b"PK\x06\x06":
                raise StoredZipErrors.NO_END(path=self.path)
            short = here, count, size, offset
            _, _, _, _, disk, first, here, count, size, offset = _END64.unpack(record)
            limits = 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF
            pairs = zip(short, (here, count, size, offset), limits, strict=True)
            if any(value not in (wide, limit) for value, wide, limit in pairs):
                raise StoredZipErrors.NO_END(path=self.path)
        if disk or first or here != count or comment:
            raise StoredZipErrors.NO_END(path=self.path)
        if count > MOST_MEMBERS or size > MOST_DIRECTORY_BYTES:
            raise StoredZipErrors.TOO_LARGE(path=self.path, members=count, bytes=size, limit=MOST_MEMBERS)
        if offset + size != end:
            raise StoredZipErrors.DIRECTORY_MISPLACED(path=self.path, bytes=size, offset=offset)
        return count, size, offset

    def _entry(self, data: bytes, place: int, entry: int) -> tuple[Member, int]:
        """Return the member of an entry of the directory, with the `start` of its local header, and the next entry."""
        fields = _ENTRY.unpack_from(data, place)
        magic, _, _, flags, method, _, _, crc, packed, size, long, extra, comment, disk, _, _, start = fields
        named = place + _ENTRY.size
        end = named + long + extra + comment
        if magic != b"PK\x01\x02" or end > len(data) or disk or comment:
            raise StoredZipErrors.DIRECTORY_DAMAGED(path=self.path, entry=entry)
        name = self._name(data[named : named + long])
        if method or flags & ~(_UTF8 | _DESCRIPTOR):
            raise StoredZipErrors.NOT_STORED(path=self.path, name=name)
        wide = _zip64(data[named + long : end])
        numbers = []
        for value in (size, packed, start):
            if value == 0xFFFFFFFF:
                if not wide:
                    raise StoredZipErrors.DIRECTORY_DAMAGED(path=self.path, entry=entry)
                value = wide.pop(0)
            numbers.append(value)
        if numbers[0] != numbers[1]:
            raise StoredZipErrors.NOT_STORED(path=self.path, name=name)
        return Member(name, numbers[2], numbers[0], crc), end

    def _name(self, raw: bytes) -> str:
        plain = len(raw) <= LONGEST_NAME and _NAME.fullmatch(raw) and not {b".", b".."} & set(raw.split(b"/"))
        if not plain:
            raise StoredZipErrors.NAME(path=self.path, name=raw[:LONGEST_NAME].decode("ascii", "replace"))
        return raw.decode("ascii")

    def _placed(self, members: list[Member], directory: int) -> list[Member]:
        """Return the members with the ranges of their bytes, which follow from the local headers."""
        placed, behind = {}, 0
        for member in sorted(members, key=lambda member: member.start):
            if member.start < behind or member.start + _LOCAL.size > directory:
                raise StoredZipErrors.OVERLAPS(path=self.path, name=member.name)
            name = member.name.encode()
            header = self._at(member.start, _LOCAL.size + len(name))
            magic, _, flags, method, _, _, crc, packed, size, long, extra = _LOCAL.unpack_from(header)
            known = flags & _DESCRIPTOR or (crc == member.crc and {packed, size} <= {member.size, 0xFFFFFFFF})
            strange = flags & ~(_UTF8 | _DESCRIPTOR) or method or header[_LOCAL.size :] != name or long != len(name)
            if magic != b"PK\x03\x04" or strange or not known:
                raise StoredZipErrors.HEADER_DIFFERS(path=self.path, name=member.name)
            start = member.start + _LOCAL.size + long + extra
            behind = start + member.size
            if behind > directory:
                raise StoredZipErrors.OVERLAPS(path=self.path, name=member.name)
            placed[member.name] = Member(member.name, start, member.size, member.crc)
        return [placed[member.name] for member in members]


def _zip64(extra: bytes) -> list[int]:
    """Return the numbers of the zip64 field among the extra fields of an entry, if it has one."""
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<2H", extra)
        if kind == _ZIP64 and size <= 28 and len(extra) >= 4 + size:
            return list(struct.unpack_from(f"<{size // 8}Q", extra, 4))
        extra = extra[4 + size :]
    return []
