"""Constant folding of numbers that a model creates while it runs, at capture time.

A forward may create ``torch.tensor(0.95, device=x.device)`` and compute with it (Gemma 3n: a quantile of the normal
distribution). A capture would contain a constant without a value, because parameters are on the meta device, and
operations on single numbers that no input can change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

ARITHMETIC = frozenset(
    name
    for base in ("add", "sub", "mul", "div", "truediv", "true_divide")
    for name in (base, f"{base}_", f"__{base}__", f"__r{base}__", f"__i{base}__")
)
"""Functions that accept a number in place of a tensor without dimensions."""


class NumberFolding(TorchFunctionMode):
    """A mode that computes results of `torch.tensor(NUMBER)` immediately, on the CPU, and passes them as numbers to
    functions of other float tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, Tensor] = {}  # with the tensors themselves, so that ids are not reused

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        if func is torch.tensor and args and type(args[0]) in (bool, int, float):
            return self._computed(func, args, {name: v for name, v in keywords.items() if name != "device"})
        tensors = [leaf for leaf in tree_leaves((args, keywords)) if isinstance(leaf, Tensor)] if self._known else []
        known = [tensor for tensor in tensors if id(tensor) in self._known]
        if known and len(known) == len(tensors):
            return self._computed(func, args, keywords)
        if known and getattr(func, "__name__", "") in ARITHMETIC and self._are_floats(tensors):
            args, keywords = tree_map(self._as_number, (args, keywords))
        return func(*args, **keywords)

    def _computed(self, func: Callable[..., Any], args: Any, keywords: dict[str, Any]) -> Any:
        with _disable_current_modes():
            result = func(*args, **keywords)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device.type == "cpu" and not leaf.dim():
                self._known[id(leaf)] = leaf
        return result

    def _are_floats(self, tensors: list[Tensor]) -> bool:
        return all(tensor.is_floating_point() for tensor in tensors)

    def _as_number(self, value: Any) -> Any:
        return self._known[id(value)].item() if isinstance(value, Tensor) and id(value) in self._known else value
