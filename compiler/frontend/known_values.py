"""Values that a model computes from constants alone: masks, slopes of a position bias, counts.

While a model is exported its tensors have shapes and no numbers. Values that depend on no weight and no input are
computed here all the same, beside the model, on the CPU: torch functions that create tensors of numbers, the given
buffers, and everything computed from these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

from sscc.compiler.frontend.tensor_facts import TensorFacts

FACTORIES = frozenset(
    {"arange", "eye", "full", "linspace", "ones", "scalar_tensor", "tensor", "zeros"}
)
LIKE = frozenset({"full_like", "ones_like", "zeros_like"})
SHAPED_AS = frozenset({"expand_as", "reshape_as", "type_as", "view_as"})
"""Functions whose second operand gives its shape or type but none of its numbers, like the first operand of `LIKE`."""
MAX_ELEMENTS = 1 << 25


class KnownValues(TensorFacts[Tensor]):
    """Values of the tensors of a running model, as far as they are known without weights.

    Args:
        rounded: dtype of the program, if it is narrower than f32: values that the model rounds to it are kept unrounded
            here.
    """

    def __init__(self, rounded: torch.dtype = torch.float32) -> None:
        super().__init__()
        self._rounded = rounded

    def follow(self, func: Callable[..., Any], args: Any, keywords: Mapping[str, Any], result: Any) -> None:
        """Record the effect of a torch function that has returned.

        Args:
            result: return value of the function. If it is a tensor and all operands are known, it becomes known too.
        """
        name = getattr(func, "__name__", "")
        value = self._evaluate(func, name, args, keywords) if isinstance(result, Tensor) else None
        if works_in_place(name) and args and isinstance(args[0], Tensor):
            if name == "__setitem__":
                value = self._evaluate(func, name, args, keywords)
            self._forget_storage(args[0])
            result = args[0]
        if isinstance(result, Tensor):
            self.put(result, value)

    def _forget_storage(self, written: Tensor) -> None:
        """Forget the numbers of a tensor that is written to, and of its other views."""
        known = [tensor for tensor, _ in self]
        storage = written.untyped_storage()._cdata if known else None
        for tensor in known:
            if tensor.untyped_storage()._cdata == storage:
                self.put(tensor, None)

    def _evaluate(self, func: Callable[..., Any], name: str, args: Any, keywords: Mapping[str, Any]) -> Tensor | None:
        """Return the result of a function of known numbers; None if it has other operands, or creates too much."""
        leaves, tree = _pytree.tree_flatten((args, dict(keywords)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not (tensors or name in FACTORIES):
            return None
        patterns = tensors[1:] if name in SHAPED_AS else tensors if name in LIKE else []
        with for_real():
            values: dict[int, Tensor | None] = {id(tensor): self._pattern(tensor) for tensor in patterns}
            values |= {id(tensor): self.of(tensor) for tensor in tensors if id(tensor) not in values}
            if any(value is None or value.numel() > MAX_ELEMENTS for value in values.values()):
                return None
            replaced = [values[id(leaf)] if isinstance(leaf, Tensor) else self._setting(leaf) for leaf in leaves]
            positional, named = _pytree.tree_unflatten(replaced, tree)
            if "device" in named:
                named["device"] = torch.device("cpu")
            if works_in_place(name):
                positional = (positional[0].clone(), *positional[1:])
            try:
                value = func(*positional, **named)
            except Exception:  # a function that does not run on the CPU, or not on these operands
                return None
        value = positional[0] if name == "__setitem__" else value
        return value if isinstance(value, Tensor) and value.numel() <= MAX_ELEMENTS else None

    def _pattern(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the same shape and dtype that stores a single number."""
        return torch.zeros((), dtype=self._kept(tensor.dtype)).expand(tensor.shape)

    def _setting(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        return self._kept(leaf) if isinstance(leaf, torch.dtype) else leaf

    def _kept(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float32 if dtype == self._rounded else dtype


def works_in_place(name: str) -> bool:
    """Return True if a torch function of this name changes its first operand."""
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in ("__index__", "__int__", "__invert__"))
    return name.endswith("_")


@contextmanager
def for_real() -> Iterator[None]:
    """Make torch compute inside the block, even while it traces outside."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield
