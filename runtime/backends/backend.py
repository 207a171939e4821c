"""Protocol of backends: for a program, a backend defines the layout of weights, generates code, and opens an
interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sscc.runtime.backends.collectives.group import ALONE, Group
from sscc.runtime.backends.interpreter import Interpreter

if TYPE_CHECKING:  # numpy is slow to import, and the command line needs only names
    from sscc.runtime.artifact.tensor_files import Array, Packing


@dataclass(frozen=True)
class Conditions:
    """Conditions under which a program is opened.

    Attributes:
        digest: sha256 of the schedule's file form; "" if it is not known.
        threads: number of threads; None for the backend's default.
        precision: "f32", or "f64" for a backend that can compute everything in f64.
        checked: True to refuse reads of memory that was never written, if the backend can detect them.
        group: group of ranks that includes this one, for a program of several ranks.
    """

    digest: str = ""
    threads: int | None = None
    precision: str = "f32"
    checked: bool = False
    group: Group = ALONE


class Backend(Protocol):
    """A backend for one program.

    Attributes:
        name: name of the backend in `--interpreter` and `--pack-for`.
        packer: name of the backend whose packing of weights it uses, as manifests have it.
        tile_rows: number of rows of a matrix that it packs together. Tiles are multiples of it if that costs little.
    """

    name: str
    packer: str
    tile_rows: int

    @property
    def packings(self) -> Mapping[str, Packing]:
        """Packed layouts of weights, by name; other weights keep the schedule's layout. Computed once."""

    def lower(self) -> str:
        """Generate the code ahead of time and keep it for this machine. Return a description of the result.

        Raises:
            UnsafeCacheError: other users could have written to the cache of code.
        """

    def open(self, weights: Mapping[str, Array], conditions: Conditions) -> Interpreter:
        """Return an interpreter for the program with its weights, in the schedule's layout or packed.

        Raises:
            UsageError: the backend does not support the conditions.
            InputError: the program is malformed, or the weights are not those of the program.
        """
