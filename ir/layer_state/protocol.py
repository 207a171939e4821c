"""The protocol of a layer's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from sscc.ir.errors import UsageError
from sscc.ir.layer_state.kept import PositionReasons
from sscc.ir.layer_state.recorded import Recorded
from sscc.ir.layer_state.state_tensors import StateTensor

Array = np.ndarray[Any, np.dtype[Any]]


class DeviceTensor(Protocol):
    """A tensor in the memory of the device that executes a program, or a part of one.

    Attributes:
        shape, dtype, nbytes: as those of an array.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def nbytes(self) -> int: ...

    def __getitem__(self, index: Any) -> DeviceTensor:
        """Return the part that integers and slices select. Nothing is transferred."""

    def read(self, out: Array | None = None) -> Array:
        """Return a copy, in `out` if given."""

    def write(self, values: Array) -> None:
        """Replace the values."""


Tensors = Callable[[str], DeviceTensor]
"""Gives a state of a program by its name in the entries. Raises UsageError if the program has no such state."""
Selected = Mapping[str, Array]
"""Positions [L, Hkv, k] i64 that the end of a slot's prompt selected, by the name of the group of layers."""


def tensor_if_there(tensor: Tensors, name: str) -> DeviceTensor | None:
    """Return a state that not every program has; None if this one has none."""
    try:
        return tensor(name)
    except UsageError:
        return None


class LayerState(Protocol):
    """One kind of state, of all layers of a group: these have equal shapes, and their tensors are stacked.

    An index counts the group's layers. Bytes are those of all layers of the group on one rank.
    """

    def tensors(self) -> tuple[StateTensor, ...]:
        """Return its tensors."""

    # ------------------------------------------------------------------------------------------------ bytes

    def held_bytes(self) -> int:
        """Return the bytes that one sequence owns."""

    def spare_bytes(self) -> int:
        """Return the part of `held_bytes` that only tokens need which may be rejected (`Geometry.spare`)."""

    def far_bytes(self) -> dict[str, int]:
        """Return the parts of `held_bytes` that lie in no cache, by their names."""

    def read_bytes(self, tokens: int) -> int:
        """Return the bytes that a decode step reads of a sequence of `tokens` tokens, nearly all from its prompt."""

    def uncompressed_bytes(self, tokens: int) -> int:
        """Return the bytes of a sequence of `tokens` tokens without compression and codes."""

    def chunk_bytes(self) -> int:
        """Return the bytes of what prefill leaves of the positions of one chunk, for prompts that begin alike."""

    def carried_bytes(self) -> int:
        """Return the bytes of `carried`, of all layers."""

    # -------------------------------------------------------------------------------------------- snapshots

    def observed_tokens(self, prompt_len: int) -> int:
        """Return how many of a prompt's last tokens have to be prefilled although what is left of them is there."""

    def slot(self, tensor: Tensors, slot: int, length: int) -> dict[str, DeviceTensor]:
        """Return all parts of states that decoding reads of a slot right after a prompt of `length` tokens."""

    def picks(self, index: int, prompt_len: int) -> int:
        """Return how many positions the end of a prompt of `prompt_len` tokens selects in a layer."""

    def remembered(self, length: int) -> dict[str, tuple[str, int]]:
        """Return the states that the program has of the last prompt alone, and that are remembered for each slot.

        Args:
            length: tokens of the prompt.

        Returns:
            By the group's name the state [L, Hkv, K], and the number of its columns that hold anything.
        """

    def positions(self, tensor: Tensors, index: int, slot: int) -> Iterator[tuple[str, DeviceTensor]]:
        """Yield the parts of states, [H, T, ..], that prefill writes for each position of a layer."""

    def carried(self, tensor: Tensors) -> Iterator[tuple[str, DeviceTensor]]:
        """Yield the parts of states that pass from a chunk of the prompt in progress to the next one."""

    @property
    def carries(self) -> bool:
        """True if a chunk leaves anything for the next one that `positions` do not have (`carried`)."""

    @property
    def reads_twice(self) -> bool:
        """True if a step may read the last token of a prompt again (`Session.replay`)."""

    @property
    def accumulates(self) -> bool:
        """True if a step of one token replaces the state before it, so that the step cannot be taken back."""

    @property
    def in_scratch(self) -> bool:
        """True if `positions` or `carried` are in a scratch that layers use one after the other."""

    @property
    def keeps_prompts(self) -> bool:
        """True if a slot holds the rows of all positions of its prompt."""

    def first_seen(self, position: int) -> int:
        """Return the first position that a token at `position` sees."""

    # --------------------------------------------------------------------------------------------- contract

    def name_of(self, tensor: StateTensor) -> str:
        """Return the name of one of its tensors in the entries."""

    def tables(self) -> tuple[tuple[int, ...], ...]:
        """Return the numbers that a looped kernel may look up for its layer, each table in the layers' order."""

    def selected_counts(self) -> frozenset[int]:
        """Return how many positions the end of a prompt may select in a layer."""

    def unequal_budgets(self) -> dict[int, tuple[int, ...]]:
        """Return the rows of each layer, by those that a step's operands have, where these are not the same."""

    def settings(self, step: Any) -> Mapping[str, Any]:
        """Return the attributes that a step of a schedule must have in layers of the group."""

    # -------------------------------------------------------------------------------------------- reporting

    def kept(
        self, tensor: Tensors, index: int, slot: int, length: int, prompt_len: int, selected: Selected
    ) -> PositionReasons:
        """Return which positions a layer holds of a slot.

        Args:
            length: positions written so far, `prompt_len` of them by prefill.
            selected: as the slot's prompt left it.
        """

    def picked(self, tensor: Tensors, index: int) -> DeviceTensor | None:
        """Return the positions [Hkv, K] that the end of slot 0's prompt selected in a layer, of the prompt that was
        prefilled last where the program has those of one alone; None where it selects none."""

    def recorded(self, tensor: Tensors, index: int, length: int) -> Iterator[Recorded]:
        """Yield the tensors of a layer that a golden may hold, of slot 0 right after a prompt of `length` tokens."""

    def in_words(self) -> str:
        """Return what each layer keeps, in one line."""
