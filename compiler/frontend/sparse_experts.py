"""Recognition of experts that a model applies to all tokens, with zero rows for those that are not selected.

Some classes of transformers (Llama 4) do not run their experts through its interface. They make scores [T, X] that are
zero except for each token's selected experts, scale a copy of the tokens per expert by them, multiply all of it by the
stacked matrices of all experts, and sum over experts. Rows of experts that are not selected are zero and remain zero:
through a product because it has no bias, through an activation because it maps 0 to 0.

While such a model runs, the functions that it calls are observed. A tensor is represented by its rows [T, k, ..] of the
selected experts and the single value that all its other elements have. If that is zero at the sum over experts, the sum
over the selected experts replaces it, and the products are `sscc::expert_product`. The result is the same for all
weights and inputs whose products are finite. After any other function the chain ends, nothing is replaced, and capture
refuses the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from sscc.compiler.frontend.tensor_facts import TensorFacts

POINTWISE = frozenset(
    "float to type type_as contiguous sigmoid silu gelu relu tanh softplus mish hardswish leaky_relu elu selu "
    "relu6 square".split()
)
"""Element-wise functions of one operand."""
MULTIPLICATIONS = frozenset({"mul", "__mul__", "__rmul__"})
FILLED = {"zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0}
Layout = Literal["token expert", "expert token", "rows", "stacked"]


@dataclass(frozen=True)
class _Filled:
    """A tensor whose elements all have the same value."""

    value: float


@dataclass(frozen=True)
class _Indices:
    """Indices [T, k] of the `k` different experts of each token, among `experts`."""

    experts: int


@dataclass(frozen=True)
class _Copies:
    """Tokens [T, H], once per expert: [X * T, H]."""

    tokens: Tensor
    experts: int


@dataclass(frozen=True)
class _Chosen:
    """Numbers of tokens' selected experts; all other elements have one value.

    Attributes:
        rows: [T, k, F].
        index: [T, k], the experts; those of a token are different.
        experts: X.
        fill: value of all other elements.
        layout: "token expert" [T, X] and "expert token" [X, T] (F = 1), "rows" [X * T, F] or "stacked" [X, T, F].
    """

    rows: Tensor
    index: Tensor
    experts: int
    fill: float
    layout: Layout

    @property
    def shapes(self) -> dict[Layout, tuple[int, ...]]:
        """Return the shape of all numbers in each layout with the experts first."""
        tokens, _, width = self.rows.shape
        flat: dict[Layout, tuple[int, ...]] = {"expert token": (self.experts, tokens)} if width == 1 else {}
        return {"rows": (self.experts * tokens, width), "stacked": (self.experts, tokens, width), **flat}


Known = _Filled | _Indices | _Copies | _Chosen


class ExpertRecogniser(TorchFunctionMode):
    """Replaces sums over all experts by sums over the selected ones while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self._known = TensorFacts[Known]()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        name = getattr(func, "__name__", "")
        before = [self._known.of(value) for value in args[:2]]
        first = before[0] if before else None
        if name == "sum" and isinstance(first, _Chosen) and first.layout == "stacked" and first.fill == 0:
            dims = args[1] if len(args) > 1 else keywords.get("dim")
            if dims in (0, [0], (0,)) and not keywords.keys() - {"dim"}:
                return first.rows.sum(dim=1)
        result = func(*args, **keywords)
        known = self._after(name, func, before, result, args, keywords)
        results = result if isinstance(result, tuple | list) else (result,)
        facts = known if isinstance(known, list) else [known]
        for tensor, fact in zip(results, [*facts, *[None] * (len(results) - len(facts))], strict=True):
            if isinstance(tensor, Tensor):
                self._known.put(tensor, fact)  # created or overwritten by this function
        if name == "__setitem__":
            self._known.put(args[0], None)
        return result

    def _after(
        self, name: str, func: Callable[..., Any], before: list[Known | None], result: Any, args: Any, keywords: Any
    ) -> Known | list[Known | None] | None:
        """Return what is known about the result of a function."""
        first, second = [*before, None, None][:2]
        if name in FILLED or name in ("full_like", "new_full"):
            value = FILLED[name] if name in FILLED else (keywords.get("fill_value", args[-1]))
            return _Filled(float(value)) if isinstance(value, int | float) else None
        if name == "topk" and isinstance(args[0], Tensor) and args[0].dim() == 2:
            dim = args[2] if len(args) > 2 else keywords.get("dim", -1)
            return [None, _Indices(args[0].shape[1])] if dim in (1, -1) else None
        if name == "repeat" and isinstance(args[0], Tensor) and args[0].dim() == 2:
            counts = args[1] if len(args) == 2 else args[1:]
            return _Copies(args[0], counts[0]) if tuple(counts[1:]) == (1,) else None
        if name in ("scatter", "scatter_"):
            return self._scattered(first, args)
        if name in MULTIPLICATIONS and len(args) == 2:
            return _product(first, second) or _product(second, first)
        if not isinstance(first, _Chosen):
            return None
        if name in ("bmm", "matmul", "__matmul__") and len(args) == 2:
            return _multiplied(first, args[1])
        others = [*args[1:], *keywords.values()]
        if any(isinstance(value, Tensor) and name != "type_as" for value in others):
            return None
        if name in POINTWISE:
            fill = _same(func, first.fill, args[1:], keywords)
            return replace(first, rows=func(first.rows, *args[1:], **keywords), fill=fill)
        if name in ("transpose", "t") and first.layout == "token expert" and set(args[1:]) <= {0, 1}:
            return replace(first, layout="expert token")
        if name in ("view", "reshape") and first.layout != "token expert":
            layouts = [layout for layout, shape in first.shapes.items() if shape == tuple(result.shape)]
            return replace(first, layout=layouts[0]) if layouts else None
        if name in ("chunk", "split") and first.layout in ("rows", "stacked"):
            dim = args[2] if len(args) > 2 else keywords.get("dim", 0)
            if dim in (-1, result[0].dim() - 1):
                parts = func(first.rows, args[1], dim=-1)
                return [replace(first, rows=part) for part in parts]
        return None

    def _scattered(self, first: Known | None, args: Any) -> _Chosen | None:
        """Return the scores [T, X] with those of the selected experts scattered among equal numbers."""
        if len(args) != 4 or not isinstance(first, _Filled) or args[1] not in (1, -1):
            return None
        target, _, index, source = args
        indices = self._known.of(index)
        if not isinstance(indices, _Indices) or not isinstance(source, Tensor) or source.shape != index.shape:
            return None
        if target.dim() != 2 or target.shape[1] != indices.experts:
            return None
        return _Chosen(source[..., None], index, indices.experts, first.value, "token expert")


def _product(x: Known | None, y: Known | None) -> _Chosen | None:
    """Return the known form of an element-wise product."""
    if not isinstance(y, _Chosen):
        return None
    if isinstance(x, _Copies) and x.experts == y.experts and y.layout == "rows" and y.fill == 0:
        return replace(y, rows=x.tokens[:, None] * y.rows)
    same_rows = isinstance(x, _Chosen) and x.index is y.index and x.layout == y.layout and x.rows.shape == y.rows.shape
    return replace(y, rows=x.rows * y.rows, fill=x.fill * y.fill) if isinstance(x, _Chosen) and same_rows else None


def _multiplied(x: _Chosen, weight: Any) -> _Chosen | None:
    """Return the known form of rows times a matrix [X, F, O] per expert: zeros remain zeros."""
    if x.layout != "stacked" or x.fill != 0 or not isinstance(weight, Tensor) or weight.dim() != 3:
        return None
    if weight.shape[:2] != (x.experts, x.rows.shape[2]) or weight.dtype != x.rows.dtype:
        return None
    return replace(x, rows=torch.ops.sscc.expert_product(x.rows, weight.transpose(1, 2), x.index))


def _same(func: Callable[..., Any], value: float, others: Iterable[Any], keywords: dict[str, Any]) -> float:
    """Return the result of an element-wise function for `value`. It runs outside of any export, on a real number; if it
    takes the dtype of another tensor, any tensor will do."""
    plain = [torch.tensor([0.0]) if isinstance(other, Tensor) else other for other in others]
    named = {name: other for name, other in keywords.items() if name != "device"}
    with _disable_current_modes():
        return float(func(torch.tensor([value]), *plain, **named))


def stacked_experts(model: torch.nn.Module) -> list[str]:
    """Return the paths of modules with stacked input and output matrices of several experts, which run by themselves.
    """
    return [
        name
        for name, module in model.named_modules()
        if not hasattr(module, "_is_expert_parallel")
        and "expert" in name.rpartition(".")[2]
        and sum(parameter.dim() == 3 for parameter in module.parameters(recurse=False)) > 1
    ]
