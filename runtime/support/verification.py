"""Comparison of large files with their expected digests, repeated only after a file has changed.

Verified files are recorded in the user's cache by device, inode, size and both times, so that a file that was written,
copied or moved there since is verified again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.sizes import format_bytes
from sscc.runtime.support import _native
from sscc.runtime.support.remembered import Table

TABLE = Table("verified.json", 1000, "weights are verified whenever they are opened")
"""Sha256 of files by identity."""

_TOLD_BYTES = 2 * 2**30
_SETTLED_NS = 2 * 10**9
"""A file that changed within this time may change again without changing its times: file systems count in up to 2 s."""

_WRITTEN: dict[str, str] = {}
_LOGGER = logging.getLogger("sscc")


class VerificationErrors(ErrorKind):
    CANNOT_READ = InputError, "{path} cannot be read: {reason}"
    CHANGED = InputError, "{path} changed while it was read: try again"
    DIGEST_DIFFERS = InputError, "{path} is damaged: its sha256 has changed since it was written"


@dataclass(frozen=True)
class Claim:
    """An open file, and its expected sha256 (hex)."""

    path: Path
    file: BufferedReader
    sha256: str


def note_written(file: BufferedReader, sha256: str) -> None:
    """Record the sha256 (hex) of a file that this process has written, so that it need not be read for verification."""
    _WRITTEN[_identity(file)] = sha256


def verify_files(claims: Sequence[Claim]) -> None:
    """Verify every file that has not been verified before, or has changed since; several at a time.

    If the cache cannot be written, this is logged, and files are read every time.

    Raises:
        InputError: a file is damaged, changes while it is read, or cannot be read.
        UnsafeCacheError: another user could have written the cache's records.
    """
    table = {**TABLE.read(), **_WRITTEN}
    pending = [claim for claim in claims if table.get(_identity(claim.file)) != claim.sha256]
    if not pending:
        return
    nbytes = sum(os.fstat(claim.file.fileno()).st_size for claim in pending)
    if nbytes >= _TOLD_BYTES:
        _LOGGER.info(f"verifying {format_bytes(nbytes)} of weights; skipped from now on unless they change")
    with ThreadPoolExecutor(min(len(pending), _native.usable_threads())) as pool:
        identities = list(pool.map(_verified, pending))
    right = {name: claim.sha256 for name, claim in zip(identities, pending, strict=True) if name is not None}
    if right:
        TABLE.add(right)


def _verified(claim: Claim) -> str | None:
    """Compare a file with its claim. Return its identity, or None if it may still change without changing its identity.
    """
    identity, state = _identity(claim.file), os.fstat(claim.file.fileno())
    settled = time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns) > _SETTLED_NS
    try:
        digest = hashlib.file_digest(claim.file, "sha256").hexdigest()
    except OSError as error:
        raise VerificationErrors.CANNOT_READ(path=claim.path, reason=error.strerror) from None
    if digest != claim.sha256:
        raise VerificationErrors.DIGEST_DIFFERS(path=claim.path)
    if _identity(claim.file) != identity:
        raise VerificationErrors.CHANGED(path=claim.path)
    return identity if settled else None


def _identity(file: BufferedReader) -> str:
    state = os.fstat(file.fileno())
    return f"{state.st_dev}:{state.st_ino}:{state.st_size}:{state.st_mtime_ns}:{state.st_ctime_ns}"
