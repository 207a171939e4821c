"""Facts about the tensors of a running model, by the identity of the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from torch import Tensor

Fact = TypeVar("Fact")


class TensorFacts(Generic[Fact]):
    """A fact for some tensors. A tensor with a fact is kept alive, so that no other tensor gets its identity."""

    def __init__(self) -> None:
        self._facts: dict[int, tuple[Tensor, Fact]] = {}

    def __iter__(self) -> Iterator[tuple[Tensor, Fact]]:
        return iter(list(self._facts.values()))

    def of(self, value: Any) -> Fact | None:
        """Return the fact about a value; None if there is none."""
        entry = self._facts.get(id(value))
        return None if entry is None else entry[1]

    def put(self, tensor: Tensor, fact: Fact | None) -> None:
        """Record the fact about a tensor, which replaces an earlier one. None removes it."""
        self._facts.pop(id(tensor), None)
        if fact is not None:
            self._facts[id(tensor)] = tensor, fact
