"""Sessions with torch tensors, which most tests compare with those of eager PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.backends.interpreter import HostTensor, Interpreter
from sscc.runtime.backends.reference.arrays import to_array, to_tensors
from sscc.runtime.session.session import Session


def to_tensor(array: Array) -> Tensor:
    """On the same memory."""
    return to_tensors({"": array})[""]


class TensorInterpreter:
    """An interpreter with torch tensors, on the same memory."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter

    def run(
        self, entry: str, inputs: Mapping[str, Tensor], scalars: Mapping[str, int] | None = None
    ) -> tuple[dict[str, Tensor], tuple[int, ...]]:
        arrays = {name: to_array(tensor) for name, tensor in inputs.items()}
        outputs, results = self._interpreter.run(entry, arrays, scalars)
        return to_tensors(outputs), results

    def tensor(self, name: str) -> Tensor:
        held = self._interpreter.device_tensor(name)
        assert isinstance(held, HostTensor)
        return to_tensor(held.array)


class TorchSession:
    """A session whose logits and states are torch tensors; everything else is the session's own."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.interpreter = TensorInterpreter(session.interpreter)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    @property
    def prefill_logits(self) -> Tensor:
        return to_tensor(self.session.prefill_logits)

    def prefill(self, slot: int, tokens: Sequence[int]) -> Tensor:
        return to_tensor(self.session.prefill(slot, tokens))

    def decode(self, tokens: Mapping[int, int]) -> Tensor:
        return to_tensor(self.session.decode(tokens))
