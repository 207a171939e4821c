"""A checkpoint's tensors, which torch reads, as arrays for the runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sscc.ir.weight_formats.registry import ordered_source
from sscc.runtime.artifact.tensor_files import Array, KeepingReader, reading
from sscc.runtime.backends.reference.arrays import to_array

if TYPE_CHECKING:
    import torch

    from sscc.compiler.frontend.checkpoint import Checkpoint


class CheckpointTensors(Mapping[str, Array]):
    """A checkpoint's weights by name, and orders of columns under the names that `order_of` returns.

    Every access reads the tensor again; the array shares the memory into which torch read it.

    Raises as `Checkpoint.tensor` does, and InputError for a dtype that numpy lacks.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def __getitem__(self, name: str) -> Array:
        weight = ordered_source(name)
        if weight is not None and (order := self._checkpoint.order(weight)) is not None:
            return order
        if name not in self._checkpoint.names():
            raise KeyError(name)
        return to_array(self._checkpoint.tensor(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoint.names())

    def __len__(self) -> int:
        return len(self._checkpoint.names())


def checkpoint_reader(checkpoint: Checkpoint, where: str) -> KeepingReader:
    """Return a reader of a checkpoint's weights: numbers, and codes of weights that are stored in the program's format.

    Raises as `sscc.runtime.artifact.tensor_files.reading` and `Checkpoint.kept` do.
    """
    return KeepingReader(reading(CheckpointTensors(checkpoint), where), checkpoint.kept)


def to_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """Return torch tensors as arrays on the same memory. Raises InputError for a dtype that numpy lacks."""
    return {name: to_array(tensor) for name, tensor in tensors.items()}
