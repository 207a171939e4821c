"""Positions that a module counts itself: the numbers 0, 1, .. of the current tokens, computed in the model's forward.

In a compiled program a chunk or a step begins at any position, and each slot has its own. Some modules count their
tokens and use the same numbers for all sequences of a batch (Llama 4 computes the temperature of its attention from
them). They get the values for the true positions instead. While the model runs, element-wise functions are followed
from `arange` on; when the result is expanded to [b, s, ..], the values for the true positions replace it. Any other use
of such numbers is unchanged, and is refused if it affects the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from sscc.compiler.frontend.tensor_facts import TensorFacts

POINTWISE = frozenset(
    "float to type double add __add__ __radd__ sub __sub__ __rsub__ mul __mul__ __rmul__ div true_divide __truediv__ "
    "__floordiv__ floor_divide floor ceil log log1p log2 exp sqrt rsqrt pow __pow__ clamp clamp_min clamp_max neg abs "
    "__neg__".split()
)
VIEWS = frozenset({"view", "reshape", "unsqueeze", "__getitem__"})


class CountedPositions(TorchFunctionMode):
    """Replaces counted positions with true ones while it is active.

    Attributes:
        positions: true positions, [b, s].
    """

    def __init__(self, positions: Tensor) -> None:
        super().__init__()
        self.positions = positions
        self._followed = TensorFacts[Tensor]()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        name = getattr(func, "__name__", "")
        followed = self._followed.of(args[0]) if args else None
        if name == "expand" and followed is not None:
            sizes = args[1] if len(args) == 2 and not isinstance(args[1], int) else args[1:]
            if tuple(sizes[:2]) == tuple(self.positions.shape) and args[0].dim() == len(sizes):
                return followed.reshape(*followed.shape, *[1] * (len(sizes) - 2)).expand(*sizes)
        result = func(*args, **keywords)
        if isinstance(result, Tensor):
            positions = self._after(name, func, followed, result, args, keywords)
            self._followed.put(result, positions)
        return result

    def _after(
        self, name: str, func: Callable[..., Any], followed: Tensor | None, result: Tensor, args: Any, keywords: Any
    ) -> Tensor | None:
        """Return the result of a function for the true positions [b, s]; None if its result is not followed."""
        count = self.positions.shape[1]
        if name == "arange":
            counts = len(args) == 1 and type(args[0]) is int and args[0] == count
            return self.positions if counts and keywords.keys() <= {"device"} else None
        others = [*args[1:], *keywords.values()]
        if followed is None or any(isinstance(value, Tensor) for value in others):
            return None
        if name in VIEWS:
            return followed if result.shape[:2] == (1, count) and result.numel() == count else None
        if name not in POINTWISE:
            return None
        positions: Tensor = func(followed, *args[1:], **keywords)
        return positions
