"""Proofs of schedules, kept for whoever opens an artifact that was compiled in the same process.

A proof depends on the schedule and its signature alone, and one for a machine says more than one for none. So the tests
prove what they compile once, and not once more whenever they open it; whatever differs in anything is proved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from sscc.compiler import driver
from sscc.ir.schedule import Program
from sscc.ir.target import Target
from sscc.runtime import contract
from sscc.runtime.artifact import reading
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.validator import Report

KEPT = 64
"""How many proofs, the last that were made."""


class Proofs:
    """In place of `contract.prove`, in the compiler and where artifacts are opened."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Program, Signature], Report] = {}

    def __call__(self, program: Program, signature: Signature, target: Target | None = None) -> Report:
        key = (program, signature)
        if target is None and key in self._kept:
            return self._kept[key]
        self._kept[key] = contract.prove(program, signature, target)
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return self._kept[key]


@contextmanager
def proofs_kept() -> Iterator[None]:
    proofs = Proofs()
    with mock.patch.object(driver, "prove", proofs), mock.patch.object(reading, "prove", proofs):
        yield
