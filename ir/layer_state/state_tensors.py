"""Tensors of a layer's state: their declaration by each kind, and their shapes in the entries of a program."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class ProgramSizes:
    """Sizes of a program on which the shapes of states depend.

    Attributes:
        batch: number of decode slots, B.
        chunk: tokens of a prefill chunk, C.
        dtype: dtype of activations and caches, "f32" or "bf16".
        max_context: length of the longest sequence, in tokens.
    """

    batch: int
    chunk: int
    dtype: str
    max_context: int

    @property
    def scratch_rows(self) -> int:
        """T: `max_context` rounded up to whole chunks."""
        return -(-self.max_context // self.chunk) * self.chunk


class Extent(Enum):
    """Leading axes of a state tensor in the entries of a program."""

    SLOTS = "slots"
    """[L, B]: a part for each layer and slot."""
    PACKED = "packed"
    """[B]: the layers' parts, of different sizes, are concatenated along the tensor's own first axis."""
    LAST_PROMPT = "last prompt"
    """[L]: a part for each layer, of the prompt that was prefilled last."""
    PROMPT = "prompt"
    """[1]: the prompt in progress; layers use it in turn."""


class Contents(Enum):
    """Constraint on the values of a state tensor, checked when a slot is received."""

    NUMBERS = "numbers"
    """Finite numbers, or codes."""
    SELECTED = "selected"
    """Positions selected at the end of the prompt, then -1."""
    ASCENDING = "ascending"
    """Positions of the prompt in ascending order, then -1."""
    LENGTH = "length"
    """The number of tokens of the prompt."""
    PLACES = "places"
    """A permutation of 0 .. n - 1."""


@dataclass(frozen=True)
class StateTensor:
    """A tensor of a layer's state.

    Attributes:
        name: name without that of the group of layers.
        extent: leading axes, in front of `shape`.
        dtype: dtype of the elements.
        shape: shape for one layer and slot; None for a size that only the model determines.
        stepped: True if a decode step writes it.
        drafted: True if only a step of several tokens writes it.
        contents: constraint on its values.
        part: label under which reports of a step's traffic count it; "" if it is not a cache.
        optional: True if passes may remove it from a program.
    """

    name: str
    extent: Extent
    dtype: str
    shape: tuple[int | None, ...]
    stepped: bool = False
    drafted: bool = False
    contents: Contents = Contents.NUMBERS
    part: str = ""
    optional: bool = False

    def entry_shape(self, layers: int, slots: int) -> tuple[int | None, ...]:
        """Return its shape in the entries of a program.

        Args:
            layers: number of layers of the group.
            slots: number of slots of one rank.
        """
        front = {Extent.SLOTS: (layers, slots), Extent.PACKED: (slots,), Extent.LAST_PROMPT: (layers,)}
        return (*front.get(self.extent, (1,)), *self.shape)
