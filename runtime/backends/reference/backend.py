"""The reference interpreter as a backend: it executes schedules directly and prepares nothing."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sscc.ir.schedule import Program
from sscc.runtime.artifact.tensor_files import Array, Packing
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.reference.arrays import ArrayInterpreter, to_tensors
from sscc.runtime.backends.reference.interpreter import ReferenceInterpreter


class Reference:
    """See `sscc.runtime.backends.backend.Backend`."""

    name = packer = "reference"
    tile_rows = 1

    def __init__(self, program: Program) -> None:
        self._program = program
        self.packings: Mapping[str, Packing] = {}

    def lower(self) -> str:
        return "none"

    def open(self, weights: Mapping[str, Array], conditions: Conditions) -> ArrayInterpreter:
        """Set the number of torch's threads, for this whole process; raises the errors of `ReferenceInterpreter`."""
        c = conditions
        if c.threads is not None:
            torch.set_num_threads(c.threads)
        inner = ReferenceInterpreter(
            self._program, to_tensors(weights), precision=c.precision, checked=c.checked, group=c.group
        )
        return ArrayInterpreter(inner, self._program)
