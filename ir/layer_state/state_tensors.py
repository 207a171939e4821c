"""Tensors of a layer's state, as its kind declares them and as the entries of a program have them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class ProgramSizes:
    """Sizes of a program that the shapes of states depend on.

    Attributes:
        batch: decode slots B.
        chunk: prefill chunk C, in tokens.
        dtype: of activations and caches, "f32" or "bf16".
        max_context: longest sequence, in tokens.
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
    """The axes that a tensor of a state has in front of its own shape, in the entries of a program."""

    SLOTS = "slots"
    """[L, B]: each layer and each slot has its part."""
    PACKED = "packed"
    """[B]: the parts of the layers, of different sizes, lie one behind the other in the tensor's own shape."""
    LAST_PROMPT = "last prompt"
    """[L]: each layer has its part, of the prompt that was prefilled last."""
    PROMPT = "prompt"
    """[1]: of the prompt in progress; layers use it one after the other."""


class Contents(Enum):
    """The values that a tensor of a state may hold, as a receiver of a slot checks them."""

    NUMBERS = "numbers"
    """Finite numbers, or codes."""
    SELECTED = "selected"
    """The positions of the prompt that its end selects, then -1."""
    ASCENDING = "ascending"
    """Positions of the prompt in ascending order, then -1."""
    PLACES = "places"
    """The numbers 0 .. n - 1, each once."""


@dataclass(frozen=True)
class StateTensor:
    """A tensor of a layer's state.

    Attributes:
        name: without that of the group of layers.
        extent: the axes in front of `shape`.
        dtype: of its elements.
        shape: of one layer and slot; None for a size that follows from the model alone.
        stepped: True if a decode step writes it.
        contents: the values that it may hold.
        part: what it is counted as where a step's traffic is told by parts; "" where it is no cache.
        optional: True if passes may remove it from a program.
    """

    name: str
    extent: Extent
    dtype: str
    shape: tuple[int | None, ...]
    stepped: bool = False
    contents: Contents = Contents.NUMBERS
    part: str = ""
    optional: bool = False

    def entry_shape(self, layers: int, slots: int) -> tuple[int | None, ...]:
        """Return its shape in the entries of a program.

        Args:
            layers: of the group that keeps it.
            slots: that one rank has.
        """
        front = {Extent.SLOTS: (layers, slots), Extent.PACKED: (slots,), Extent.LAST_PROMPT: (layers,)}
        return (*front.get(self.extent, (1,)), *self.shape)
