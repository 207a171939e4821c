"""The protocol of backends: for a program, a backend says how weights lie, makes code, and opens an interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sscc.runtime.backends.collectives.group import ALONE, Group
from sscc.runtime.backends.interpreter import Interpreter

if TYPE_CHECKING:  # numpy is slow to import, and the command line asks for names alone
    from sscc.runtime.artifact.tensor_files import Array, Packing


@dataclass(frozen=True)
class Conditions:
    """Under which a program is opened.

    Attributes:
        digest: sha256 of the schedule's file form; "" where nobody knows it.
        threads: how many may be used; None leaves it to the backend.
        precision: "f32", or "f64" where a backend can compute everything in f64.
        checked: whether reads of what nobody wrote are refused, where a backend can.
        group: the ranks among which this is one, where the program is one of several ranks.
    """

    digest: str = ""
    threads: int | None = None
    precision: str = "f32"
    checked: bool = False
    group: Group = ALONE


class Backend(Protocol):
    """A backend, with the program that it is to execute.

    Attributes:
        name: its name in `--interpreter`, `--pack-for` and manifests.
        tile_rows: number of rows of a matrix that it packs together. Tiles are multiples of it where that costs little.
    """

    name: str
    tile_rows: int

    @property
    def packings(self) -> Mapping[str, Packing]:
        """How it wants weights to lie, by name; those that are not named, as the schedule has them. Found once."""

    def lower(self) -> str:
        """Makes its code ahead of time and keeps it for this machine. Returns in words what came of it.

        Raises:
            UnsafeCacheError: others could have written what is where it is kept.
        """

    def open(self, weights: Mapping[str, Array], conditions: Conditions) -> Interpreter:
        """The program with its weights, as the schedule has them or packed, ready to be called.

        Raises:
            UsageError: conditions that it cannot meet.
            InputError: the program is malformed, or the weights are not the ones that it wants.
        """
