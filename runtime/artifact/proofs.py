"""Proofs of schedules, remembered: a program that was proved by these sources is not proved again.

The proof of a program (`contract`) depends on its schedule, its signature and the sources of the validator
alone. Their sha256 is remembered in the user's cache, which nobody else can write.
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
"""Digests of proved programs; the values say nothing."""


def prove_once(program: Program, schedule: str, signature: Signature) -> None:
    """Prove a program, unless the cache remembers its proof.

    Args:
        schedule: sha256 (hex) of the file that the program was read from.

    Raises:
        InputError: as `sscc.runtime.artifact.contract.prove`.
    """
    key = _key(schedule, signature)
    try:
        if key in TABLE.read():
            return
    except UnsafeCacheError:  # neither believed nor written
        prove(program, signature)
        return
    prove(program, signature)
    TABLE.add({key: ""})


def remember_proof(schedule: str, signature: Signature) -> None:
    """Remember that a program was proved, by the sha256 (hex) of its file."""
    try:
        TABLE.add({_key(schedule, signature): ""})
    except UnsafeCacheError:
        return


def _key(schedule: str, signature: Signature) -> str:
    return hashlib.sha256("\n".join((_validator(), schedule, repr(signature))).encode()).hexdigest()


def _validator() -> str:
    """Return digests of the sources that a proof depends on."""
    return sources_digest(sscc.ir) + sources_digest(sscc.runtime)
