"""The reference interpreter as a backend: it executes schedules as they are, and has nothing to prepare."""

from __future__ import annotations

from collections.abc import Mapping

from sscc.ir.schedule import Program
from sscc.runtime.artifact.tensor_files import Array, Packing
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.interpreter import Interpreter
from sscc.runtime.backends.reference.arrays import open_reference


class Reference:
    """See `sscc.runtime.backends.backend.Backend`."""

    name = "reference"

    def __init__(self, program: Program) -> None:
        self._program = program
        self.packings: Mapping[str, Packing] = {}

    def lower(self) -> str:
        return "none"

    def open(self, weights: Mapping[str, Array], conditions: Conditions) -> Interpreter:
        c = conditions
        return open_reference(self._program, weights, threads=c.threads, precision=c.precision, checked=c.checked)
