"""Cache of proofs: a schedule that was proved by the current sources is not proved again.

The proof of a program (`contract`) depends only on its schedule, its signature and the sources of the validator. Their
sha256 is stored in the user's cache, to which no other user can write.
"""

from __future__ import annotations

import hashlib

import sscc.ir
import sscc.runtime
from sscc.ir.files import sources_digest
from sscc.ir.schedule import Program
from sscc.runtime.artifact.contract import prove
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.support.remembered import Table
from sscc.runtime.support.user_cache import UnsafeCacheError

TABLE = Table("proved.json", 1000, "schedules are proved whenever they are opened")
"""Digests of proved programs; the values are not used."""


def prove_once(program: Program, schedule: str, signature: Signature) -> None:
    """Prove a program, unless the cache has its proof.

    Args:
        schedule: sha256 (hex) of the file from which the program was read.

    Raises:
        InputError: as `sscc.runtime.artifact.contract.prove`.
    """
    key = _key(schedule, signature)
    try:
        if key in TABLE.read():
            return
    except UnsafeCacheError:  # not trusted, and not written
        prove(program, signature)
        return
    prove(program, signature)
    TABLE.add({key: ""})


def remember_proof(schedule: str, signature: Signature) -> None:
    """Record that a program was proved, by the sha256 (hex) of its file."""
    try:
        TABLE.add({_key(schedule, signature): ""})
    except UnsafeCacheError:
        return


def _key(schedule: str, signature: Signature) -> str:
    return hashlib.sha256("\n".join((_validator(), schedule, repr(signature))).encode()).hexdigest()


def _validator() -> str:
    """Return digests of the sources that a proof depends on."""
    return sources_digest(sscc.ir) + sources_digest(sscc.runtime)
