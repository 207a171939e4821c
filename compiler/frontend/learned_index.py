"""Recognition of learned indexes in the models' own code.

While a model runs, every torch function is looked at. A product of queries of several heads and one key per position,
a ReLU, a weighted sum over heads, and the positions of the highest sums are DeepSeek-V3.2's index; a product, its
maximum in blocks of positions, and the blocks of the highest maxima MiniMax-M3's. The last function of such a chain
returns a `Choice`, which the model passes to its attention function, which calls `sscc::chosen_attention`. A chain with
any other function returns an ordinary tensor, which that function refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sscc.compiler.frontend.chosen_rows import Choice, with_earlier
from sscc.compiler.frontend.eager_run import EagerRun
from sscc.compiler.frontend.operator import stated_context
from sscc.compiler.frontend.recognition import MULTIPLICATIONS, PRODUCTS, recognise_in_layers
from sscc.compiler.frontend.tensor_facts import TensorFacts
from sscc.ir.errors import ErrorKind, UnsupportedError
from sscc.ir.layer_state.row_streams import INDEX

INFINITY = float("inf")
TOPK_FIELDS = ("index_topk", "index_topk_blocks")
"""Fields of a config with the number of positions, or blocks of positions, that an index selects."""


class LearnedIndexErrors(ErrorKind):
    TOPK = (
        UnsupportedError,
        "the index of layer {layer} chooses {topk} of {count}, but no field of the config ({fields}) states this",
    )


class _Comparison:
    """The result of comparing the scores of selected positions, which is not used."""


class _BestScores:
    """The scores of selected positions."""

    def __eq__(self, other: object) -> Any:
        return _Comparison()

    __hash__ = None  # type: ignore[assignment]


class _Best(NamedTuple):
    """The result of `topk`: `indices` is the choice, `values` are the best scores."""

    values: Any
    indices: Choice


@dataclass(frozen=True)
class _Scores:
    """Scores of all positions for each token.

    Attributes:
        query: [b, s, Hi, D], or [b, Hi, s, D] if heads are not summed.
        key: [b, s, D].
        scale: factor on the products.
        form: "heads", with an axis of heads; "summed" over it; "blocked", positions in blocks; "blocks" alone.
        rectified: True behind a ReLU.
        weight: weights of heads in the sum, [b, s, Hi].
        masked: True if later positions are masked.
        block, local: as in `sscc::index`.
    """

    query: Tensor
    key: Tensor
    scale: float = 1.0
    form: str = "heads"
    rectified: bool = False
    weight: Tensor | None = None
    masked: bool = False
    block: int = 1
    local: int = 0


class IndexRecogniser(TorchFunctionMode):
    """Replaces selections by learned indexes while it is active.

    Args:
        config: config of the model.
        dtype: dtype of its activations.

    Attributes:
        layer: decoder layer that is running.
    """

    def __init__(self, config: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer: int | None = None
        self._config, self._dtype = config, dtype
        self._scores = TensorFacts[_Scores]()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "topk" and self.layer is not None:
            best = self._chosen(*args, **keywords)
            if best is not None:
                return best
        before = [self._scores.of(arg) for arg in args[:2]]
        # Behind earlier tokens, block numbers of the text are not those of the current tokens.
        local = name == "scatter_" and before[0] is not None and before[0].form == "blocks"
        result = args[0] if local else func(*args, **keywords)
        if isinstance(result, Tensor):
            after = self._after(name, before, args, keywords, result)
            self._scores.put(result, after)
        elif name == "__setitem__":
            self._scores.put(args[0], None)
        return result

    def _after(
        self, name: str, before: list[_Scores | None], args: Any, keywords: dict[str, Any], result: Tensor
    ) -> _Scores | None:
        """Return the scores after the function `name`; None where the function is no step of a known index."""
        first, second = [*before, None, None][:2]
        if name in PRODUCTS and len(args) == 2:
            return _product(*args) if first is None and second is None else _summed(args[0], second)
        if first is None or second is not None:
            return None
        if name in MULTIPLICATIONS and isinstance(args[1], int | float) and args[1] > 0:
            return replace(first, scale=first.scale * args[1]) if first.form in ("heads", "summed") else None
        if name == "relu" and first.form == "heads":
            return replace(first, rectified=True)
        if name == "squeeze" and first.form == "summed" and result.dim() == 3:
            return first
        if name == "masked_fill" and first.form == "heads" and not first.rectified and args[2] == -INFINITY:
            return replace(first, masked=True)
        if name == "pad" and first.masked and keywords.get("value", args[-1]) == -INFINITY:
            return first
        if name == "view" and first.masked and first.form == "heads" and result.dim() == 5:
            return replace(first, form="blocked", block=int(result.shape[4]))
        if name == "amax" and first.form == "blocked" and keywords.get("dim", args[-1]) == -1:
            return replace(first, form="blocks")
        if name == "scatter_" and first.form == "blocks" and args[1] == -1 and args[3] == INFINITY:
            return replace(first, local=int(args[2].shape[-1]))
        return None

    def _chosen(self, scores: Any, k: int, dim: int = -1, **others: Any) -> _Best | None:
        """Return the choice that a `topk` of known scores makes; None for any other `topk`."""
        known = self._scores.of(scores)
        if known is None or others or dim not in (-1, scores.dim() - 1):
            return None
        if not (known.form == "blocks" or (known.form == "summed" and known.rectified)):
            return None
        assert self.layer is not None
        sizes = [getattr(self._config, name, None) for name in TOPK_FIELDS]
        whole = next((n for n in sizes if isinstance(n, int) and k == min(n, scores.shape[-1])), None)
        if whole is None:
            fields = ", ".join(TOPK_FIELDS)
            raise LearnedIndexErrors.TOPK(layer=self.layer, topk=k, count=scores.shape[-1], fields=fields)
        limit = stated_context()
        most = whole if limit is None else min(whole, -(-limit // known.block))
        weight = None if known.weight is None else known.weight.float() * known.scale
        query = known.query if known.weight is not None else known.query.transpose(1, 2)
        query, key = query.to(self._dtype), known.key.to(self._dtype)
        settings = (self.layer, known.block, known.local, most * known.block)
        return _Best(_BestScores(), Choice(torch.ops.sscc.index(query, key, weight, *settings)))


def _product(queries: Any, keys: Any) -> _Scores | None:
    """Return scores of a product of queries [b, s, Hi, D] or [b, Hi, s, D] and keys [b, 1, D, t]."""
    if not isinstance(queries, Tensor) or not isinstance(keys, Tensor) or queries.dim() != 4 or keys.dim() != 4:
        return None
    if keys.shape[1] != 1 or queries.shape[3] != keys.shape[2] or queries.shape[0] != keys.shape[0]:
        return None
    tokens = keys.shape[3]
    if queries.shape[1] != tokens and queries.shape[2] != tokens:
        return None
    return _Scores(queries, keys[:, 0].transpose(1, 2))


def _summed(weight: Any, scores: _Scores | None) -> _Scores | None:
    """Return scores summed over heads by weights [b, s, 1, Hi]."""
    if scores is None or not scores.rectified or scores.form != "heads" or weight.dim() != 4:
        return None
    if weight.shape != (*scores.query.shape[:2], 1, scores.query.shape[2]):
        return None
    return replace(scores, form="summed", weight=weight[:, :, 0])


class LearnedIndex:
    """See `sscc.compiler.frontend.stateful.StatefulOperator`."""

    target = torch.ops.sscc.index.default
    layer_argument = 3
    layer_types = frozenset[str]()

    def modules(self, model: torch.nn.Module) -> list[str]:
        """See `StatefulOperator`: modules of models whose config states the number of positions that an index selects.
        """
        config = getattr(model, "config", None)
        return [""] if any(getattr(config, name, None) is not None for name in TOPK_FIELDS) else []

    def recognise(self, model: Any) -> None:
        """See `StatefulOperator`: within decoder layers, which are numbered."""
        recognise_in_layers(model, [], lambda ids, positions: IndexRecogniser(model.config, model.dtype))

    def in_pieces(self) -> AbstractContextManager[None]:
        """See `StatefulOperator`."""
        return with_earlier(_Joined({}))

    def prefilling(self, run: EagerRun) -> AbstractContextManager[None]:
        """See `StatefulOperator`."""
        run.rows.clear()

        def keep(layer: int, name: str, rows: Tensor, axis: int) -> Tensor:
            if name in INDEX:
                run.keep_state(layer, name, rows)
            elif name == "k":
                run.attends_beside(layer)
            run.rows[layer, name] = rows
            return rows

        return with_earlier(keep)

    def decoding(self, run: EagerRun) -> AbstractContextManager[None]:
        """See `StatefulOperator`."""
        return with_earlier(_Joined(run.rows))


class _Joined:
    """Joins rows of new tokens with those of earlier ones.

    Args:
        rows: rows of earlier tokens, by layer and name.
    """

    def __init__(self, rows: dict[tuple[int, str], Tensor]) -> None:
        self._rows = rows

    def __call__(self, layer: int, name: str, rows: Tensor, axis: int) -> Tensor:
        before = self._rows.get((layer, name))
        self._rows[layer, name] = rows if before is None else torch.cat([before, rows], axis)
        return self._rows[layer, name]


class ChosenAttention:
    """See `sscc.compiler.frontend.stateful.StatefulOperator`. `LearnedIndex` gives it the rows of earlier tokens."""

    target = torch.ops.sscc.chosen_attention.default
    layer_argument = 5
    layer_types = frozenset[str]()

    def modules(self, model: torch.nn.Module) -> list[str]:
        """See `StatefulOperator`: none."""
        return []

    def recognise(self, model: Any) -> None:
        """See `StatefulOperator`: the model's attention function calls it."""

    def in_pieces(self) -> AbstractContextManager[None]:
        """See `StatefulOperator`."""
        return nullcontext()

    def prefilling(self, run: EagerRun) -> AbstractContextManager[None]:
        """See `StatefulOperator`."""
        return nullcontext()

    def decoding(self, run: EagerRun) -> AbstractContextManager[None]:
        """See `StatefulOperator`."""
        return nullcontext()


LEARNED_INDEX, CHOSEN_ATTENTION = LearnedIndex(), ChosenAttention()
