"""What a backend is: it says how it wants weights to lie, makes its code of a schedule, and executes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sscc.runtime.backends.interpreter import Interpreter

if TYPE_CHECKING:  # numpy is slow to import, and the command line asks for names alone
    from sscc.ir.schedule import Program
    from sscc.runtime.artifact.tensor_files import Array, Packing


@dataclass(frozen=True)
class Conditions:
    """Under which a program is opened.

    Attributes:
        digest: sha256 of the schedule's file form; "" where nobody knows it.
        packings: how weights are packed among those that are given, by name.
        threads: how many may be used; None leaves it to the backend.
        precision: "f32", or "f64" where a backend can compute everything in f64.
        checked: whether reads of what nobody wrote are refused, where a backend can.
    """

    digest: str = ""
    packings: Mapping[str, Packing] = field(default_factory=dict)
    threads: int | None = None
    precision: str = "f32"
    checked: bool = False


class Backend(Protocol):
    """Something that executes schedules.

    Attributes:
        name: what `--interpreter` and manifests call it.
    """

    name: str

    def packings(self, program: Program) -> Mapping[str, Packing]:
        """How it wants weights to lie, by name; those that are not named, as the schedule has them."""

    def lower(self, program: Program) -> str:
        """Makes its code of a program ahead of time and keeps it for this machine. Returns in words what came of it.

        Raises:
            UnsafeCacheError: others could have written what is where it is kept.
        """

    def open(self, program: Program, weights: Mapping[str, Array], conditions: Conditions) -> Interpreter:
        """The program with its weights, ready to be called.

        Raises:
            UsageError: conditions that it cannot meet.
            InputError: the program is malformed, or the weights are not the ones that it wants.
        """
