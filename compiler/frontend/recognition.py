"""Attention that a model writes out: a product of queries and keys, a scale, a softmax, a product with values.

Older classes of transformers do not call its attention interface. While such a model runs, every torch function that it
calls is looked at, and where these follow one another the last one is replaced by `sscc::attention`, with the queries,
keys, values and the scale that were seen. It is the same when the model is exported and when it is run, so that the
probe compares what is compiled with the untouched model.

Only these steps are known: numbers that scale, conversions of type and shape, dropout that does nothing, and the mask
that transformers makes, in whose place the model gets none, or zeros. A score that anything else is done to (a bias, a
cap, a mask of the model's own) is attention no longer, and the model is refused because it calls no operator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers.masking_utils import AttentionMaskInterface

from sscc.compiler.frontend.operator import IMPLEMENTATION

WRITTEN_OUT = "sscc_written_out"
"""The attention implementation of models that add a mask without asking whether there is one: they get zeros."""

PRODUCTS = frozenset({"matmul", "bmm", "__matmul__"})
SHAPES = frozenset({"view", "reshape", "contiguous", "to", "float", "type", "type_as", "dropout"})
DIVISIONS = frozenset({"div", "div_", "true_divide", "__truediv__", "__itruediv__"})
MULTIPLICATIONS = frozenset({"mul", "mul_", "__mul__", "__rmul__", "__imul__"})
SUMS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})


@dataclass(frozen=True)
class _Scores:
    """Queries [.., s, D] times keys [.., D, s], times a scale; with `weights` the softmax of it."""

    queries: Tensor
    keys: Tensor
    scale: float
    weights: bool = False


class AttentionRecogniser(TorchFunctionMode):
    """Replaces attention that is written out while it is active.

    Attributes:
        layer: the decoder layer that is running; None before the first.
        batch: sequences of the run.
    """

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.layer: int | None = None
        self.batch = batch
        self._zeros: dict[int, Tensor] = {}
        self._scores: dict[int, tuple[Tensor, _Scores]] = {}  # the tensor too, or another one could get its id

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in PRODUCTS and len(args) == 2:
            weights = self._of(args[0])
            if weights is not None and weights.weights and self.layer is not None:
                return self._attend(weights, args[1], func(*args, **keywords))
        if name == "__getitem__":
            args = (args[0], _without_lists(args[1]))
        result = func(*args, **keywords)
        if isinstance(result, Tensor):
            scores = self._after(name, args, keywords)
            if scores is not None:
                self._scores[id(result)] = result, scores
            elif name == "zeros" or (name in (*SHAPES, "__getitem__") and id(args[0]) in self._zeros):
                self._zeros[id(result)] = result
            else:
                self._forget(result)
        elif name == "__setitem__":
            self._forget(args[0])
        return result

    def _forget(self, written: Tensor) -> None:
        """What is known of a tensor, which a function has made or written over, holds no longer."""
        self._scores.pop(id(written), None)
        self._zeros.pop(id(written), None)

    def _of(self, value: Any) -> _Scores | None:
        return self._scores.get(id(value), (None, None))[1]

    def _after(self, name: str, args: Any, keywords: dict[str, Any]) -> _Scores | None:
        """What a function makes of scores; None where they are scores no longer."""
        if name in PRODUCTS and len(args) == 2:
            return self._product(*args)
        if name == "baddbmm" and len(args) == 3 and (id(args[0]) in self._zeros or keywords.get("beta") == 0):
            scores = self._product(args[1], args[2])
            return None if scores is None else replace(scores, scale=float(keywords.get("alpha", 1)))
        before = self._of(args[0]) if args else None
        if before is None:
            return None
        if name == "softmax":
            dim = args[1] if len(args) > 1 else keywords.get("dim")
            last = dim in (-1, before.queries.dim() - 1)
            return replace(before, weights=True) if last and not before.weights else None
        if name in SHAPES:
            return None if name == "dropout" and keywords.get("training", True) else before
        other = args[1] if len(args) == 2 else None
        if name in SUMS and id(other) in self._zeros:
            return before
        if before.weights or not isinstance(other, (int, float)):
            return None
        if name in DIVISIONS:
            return replace(before, scale=before.scale / other)
        return replace(before, scale=before.scale * other) if name in MULTIPLICATIONS else None

    @staticmethod
    def _product(queries: Any, keys: Any) -> _Scores | None:
        """Scores of a product of two matrices per head; of others None."""
        if not isinstance(queries, Tensor) or not isinstance(keys, Tensor) or queries.dim() not in (3, 4):
            return None
        square = queries.dim() == keys.dim() and queries.shape[-2] == keys.shape[-1]
        return _Scores(queries, keys, 1.0) if square else None

    def _attend(self, scores: _Scores, values: Tensor, product: Tensor) -> Tensor:
        """What attention gives in place of the product of its weights and values."""
        heads = [self._per_head(tensor).to(values.dtype) for tensor in (scores.queries, scores.keys.transpose(-1, -2))]
        out: Tensor = torch.ops.sscc.attention(*heads, self._per_head(values), self.layer, scores.scale, 0)
        return out.reshape(product.shape).to(product.dtype)

    def _per_head(self, x: Tensor) -> Tensor:
        """[b * H, s, D], or what is [b, H, s, D] already, as this."""
        return x.reshape(self.batch, -1, *x.shape[1:]) if x.dim() == 3 else x


def recognise_attention(model: Any) -> None:
    """Lets a model of transformers call `sscc::attention` where it writes attention out, as long as its attention
    implementation is one of ours."""
    running: list[AttentionRecogniser] = []

    @contextmanager
    def recognising(ids: Tensor, positions: Tensor | None) -> Iterator[None]:
        running.append(AttentionRecogniser(ids.shape[0]))
        try:
            with running[-1]:
                yield
        finally:
            running.pop()

    def enter(layer: int) -> Callable[..., None]:
        def note(module: torch.nn.Module, args: Any) -> None:
            if running:
                running[-1].layer = layer

        return note

    for stack in _stacks(model):
        for layer, module in enumerate(stack):
            module.register_forward_pre_hook(enter(layer))
    run_within(model, recognising)


def run_within(model: Any, context: Callable[[Tensor, Tensor | None], AbstractContextManager[Any]]) -> None:
    """Lets a model of transformers run within what `context` makes of its ids [b, s] and positions, as long as its
    attention implementation is one of ours: so that set to another one, it is what transformers has."""
    original = model.forward

    @functools.wraps(original)
    def forward(*args: Any, **keywords: Any) -> Any:
        if model.config._attn_implementation not in (IMPLEMENTATION, WRITTEN_OUT):
            return original(*args, **keywords)
        ids = keywords["input_ids"] if "input_ids" in keywords else args[0]
        with context(ids, keywords.get("position_ids")):
            return original(*args, **keywords)

    model.forward = forward


def _stacks(module: torch.nn.Module) -> list[torch.nn.ModuleList]:
    """The lists of modules that are in no other."""
    if isinstance(module, torch.nn.ModuleList):
        return [module]
    return [stack for child in module.children() for stack in _stacks(child)]


def _without_lists(index: Any) -> Any:
    """An index in which a list of one number is a slice: torch would make a tensor of it, on the meta device."""
    if isinstance(index, tuple):
        return tuple(_without_lists(part) for part in index)
    if isinstance(index, list) and len(index) == 1 and type(index[0]) is int:
        return slice(index[0], index[0] + 1 or None)
    return index


def zero_mask(batch_size: int, q_length: int, kv_length: int, *args: Any, **keywords: Any) -> Tensor:
    """The mask function of `WRITTEN_OUT`: [b, 1, q, kv] zeros, as causality is the operator's own business."""
    return torch.zeros(batch_size, 1, q_length, kv_length, dtype=keywords["dtype"], device=keywords.get("device"))


AttentionMaskInterface.register(WRITTEN_OUT, zero_mask)
