"""Recognition of attention in a model's own code: a product of queries and keys, a scale, a softmax, a product with
values.

Older classes of transformers do not call its attention interface. While such a model runs, every torch function that it
calls is inspected; when these form attention, the last one is replaced by `sscc::attention`, with the queries, keys,
values and the scale that were found. This works in the same way when the model is exported and when it is run, so that
the probe compares the program to be compiled with the untouched model.

Only these steps are known: numbers that scale, conversions of type and shape, dropout without effect, masks, and a bias
that is linear in the key's position. Masks and biases must be values that the model computes from constants
(`known_values`): the mask that transformers makes, in place of which the model gets none, or zeros; a mask of the
model's own, which must be causal, with or without a window; and ALiBi (arXiv 2108.12409). A decode step of one token
does not show which of these a value is, so the model first runs once without weights, over as many tokens as its masks
have. Scores with any other operation (another bias, a cap) are not recognised, and the model is refused because it does
not call the operator.

ALiBi adds `slope[h] * t` to the scores of head h at the key of position t. In the paper it is relative to the query's
position, but this is a constant of each softmax. It is computed by additional columns of queries and keys:

    q'[h] = [q[h] | slope[h] / scale]      k'[t] = [k[t] | t]      scale q'[h] . k'[t] = scale q[h] . k[t] + slope[h] t

so that only the capture deals with it, and a cache keeps rows that are a few numbers longer. In bf16, which keeps 8
bits, t is two columns, its multiple of 256 and the rest, and each slope two numbers that sum to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers.masking_utils import AttentionMaskInterface

from sscc.compiler.frontend.known_values import KnownValues, for_real
from sscc.compiler.frontend.operator import IMPLEMENTATION, bounded_window, stated_context
from sscc.compiler.frontend.tensor_facts import TensorFacts
from sscc.ir.errors import ErrorKind, SsccError, UnsupportedError

WRITTEN_OUT = "sscc_written_out"
"""Attention implementation of models that add a mask without checking for None: they get zeros."""
IMPLEMENTATIONS = (IMPLEMENTATION, WRITTEN_OUT)
"""Attention implementations with which a model calls our operator."""
POSITION_COLUMNS = "attention_position_columns"
"""Buffer [1, H, 1, columns] of a model with ALiBi: the additional columns of queries."""

PRODUCTS = frozenset({"matmul", "bmm", "__matmul__"})
SHAPES = frozenset({"view", "reshape", "contiguous"})
CONVERSIONS = frozenset({"to", "float", "type", "type_as", "dropout"})
DIVISIONS = frozenset({"div", "div_", "true_divide", "__truediv__", "__itruediv__"})
MULTIPLICATIONS = frozenset({"mul", "mul_", "__mul__", "__rmul__", "__imul__"})
SUMS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
HEADS_OF_ALL = (None, None, slice(None), slice(None))
HEADS_OF_EACH = (slice(None), None)
"""Indices that give rows [s, D] of positions dimensions for sequences and heads, and rows [b, s, D] one for heads."""
READINGS = frozenset({"__bool__", "__contains__", "__float__", "__int__", "item", "tolist"})
FILLS = frozenset({"masked_fill", "masked_fill_"})

MASKED = -1e4
"""A score that is lowered to this or below, or by this much, is masked."""
LINEAR = 1e-5
"""Maximum deviation of a bias from a straight line, relative to its largest number."""
DIGIT = 256
"""Range of one column of positions: bf16 has every integer up to here."""


class RecognitionErrors(ErrorKind):
    LOST_SCORES = (
        UnsupportedError,
        "the scores of layer {layer} are changed by {operator}, which is not a scale, a causal mask or ALiBi",
    )
    NO_POSITIONS = UnsupportedError, "a model with ALiBi must be given position_ids: its keys carry their positions"
    TOO_MANY_POSITIONS = (
        UnsupportedError,
        "ALiBi over {positions} positions in {dtype}, which can represent only {most}: lower --max-context, or give "
        "--dtype f32",
    )


@dataclass(frozen=True)
class Form:
    """Form of a layer's attention, apart from its queries, keys and values.

    Attributes:
        scale: factor on the products.
        window: maximum number of positions that a query sees, its own included; 0 for all earlier ones.
        slopes: increase of each head's scores from one key to the next; empty without ALiBi.
    """

    scale: float
    window: int = 0
    slopes: tuple[float, ...] = ()


@dataclass(frozen=True)
class _Scores:
    """Queries [.., s, D] times keys [.., D, s], times a scale; with `weights` the softmax of this.

    Attributes:
        shape: [.., s, s].
        bias: known numbers that are added and broadcast to `shape`; None for none.
        seen: known bool, True where the scores are not masked; None if nothing is masked.
        kept: known bool, True where the scores are not overwritten. At the softmax it must be True wherever `seen` is.
    """

    queries: Tensor
    keys: Tensor
    scale: float
    shape: tuple[int, ...]
    bias: Tensor | None = None
    seen: Tensor | None = None
    kept: Tensor | None = None
    weights: bool = False

    def times(self, number: float) -> _Scores:
        """Return the scores multiplied by a number."""
        return replace(self, scale=self.scale * number, bias=None if self.bias is None else self.bias * number)

    def divided(self, number: float) -> _Scores:
        """Return the scores divided by a number."""
        return replace(self, scale=self.scale / number, bias=None if self.bias is None else self.bias / number)

    def plus(self, added: Tensor) -> _Scores:
        """Return the scores plus known numbers, of which those at `MASKED` or below are a mask."""
        masked = added <= MASKED
        bias = torch.where(masked, 0, added)
        if not bias.any():
            return self.masked(masked)
        return replace(self.masked(masked), bias=bias if self.bias is None else self.bias + bias)

    def masked(self, where: Tensor) -> _Scores:
        """Return the scores with a mask, known bool."""
        if not where.any():
            return self
        return replace(self, seen=~where if self.seen is None else self.seen & ~where)

    def only(self, where: Tensor) -> _Scores:
        """Return the scores where `where` is True; elsewhere they are overwritten."""
        if where.all():
            return self
        return replace(self, kept=where if self.kept is None else self.kept & where)

    def reshaped(self, shape: tuple[int, ...]) -> _Scores | None:
        """Return the scores in another shape; None if masks and biases cannot be reshaped."""
        parts = [None if part is None else _reshaped(part, self.shape, shape) for part in (self.bias, self.seen)]
        if self.kept is not None or (self.bias is None, self.seen is None) != (parts[0] is None, parts[1] is None):
            return None
        return replace(self, shape=shape, bias=parts[0], seen=parts[1])

    def softmax(self) -> _Scores | None:
        """Return the softmax of the scores; None if overwritten scores are not masked."""
        if self.kept is not None and (self.seen is None or (self.seen & ~self.kept).any()):
            return None
        return replace(self, weights=True, kept=None)

    def form(self, batch: int) -> Form | None:
        """Return the form of the attention; None if its mask or bias is unknown."""
        window = 0 if self.seen is None else _band(self.seen)
        slopes = () if self.bias is None else _slopes(self.bias, self.shape, batch)
        return None if window is None or slopes is None else Form(self.scale, window, slopes)

    def fits(self, form: Form, batch: int) -> bool:
        """Return True if mask and bias of these few tokens are those of a form that was found in a longer run."""
        if form.scale != self.scale or (self.bias is not None and not form.slopes):
            return False
        seen = None if self.seen is None else torch.broadcast_tensors(self.seen, band(self.shape, form.window))
        if seen is not None and not torch.equal(*seen):
            return False
        if not form.slopes or self.bias is None:
            return not form.slopes or self.shape[-1] == 1
        line = torch.tensor(form.slopes)[:, None] * torch.arange(self.shape[-1])
        rest = _per_head(self.bias, self.shape, batch) - line[:, None]
        return bool((rest - rest[..., :1]).abs().max() <= LINEAR * max(1.0, line.abs().max().item()))


@dataclass
class Recognition:
    """Facts about a model with attention in its own code.

    Attributes:
        buffers: buffers of the model, by name.
        forms: form of attention, by layer; None while forms are being determined.
        lost: by layer, the function whose result was not recognised as scores any more.
        running: the active recognisers.
        original: forward of the unmodified model.
    """

    buffers: dict[str, Tensor] = field(default_factory=dict)
    forms: dict[int, Form] | None = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    running: list[AttentionRecogniser] = field(default_factory=list)
    original: Callable[..., Any] = lambda: None


class AttentionRecogniser(TorchFunctionMode):
    """Replaces attention in a model's own code while it is active.

    Attributes:
        layer: decoder layer that is running; None before the first.
        batch: sequences of the run.
        observed: form of attention by layer, while forms are being determined.
    """

    def __init__(self, model: Any, recognition: Recognition, batch: int, positions: Tensor | None) -> None:
        super().__init__()
        self.layer: int | None = None
        self.batch = batch
        self.observed: dict[int, Form] = {}
        self._recognition = recognition
        self._positions = positions
        self._columns: Tensor | None = getattr(model, POSITION_COLUMNS, None)
        self._key_columns: Tensor | None = None
        self._known = KnownValues(getattr(model, "dtype", torch.float32))
        buffers = dict(model.named_buffers()) if recognition.buffers else {}
        for name, value in recognition.buffers.items():
            if name in buffers:  # layers that are not captured have no buffers
                self._known.put(buffers[name], value)
        self._looked_up: dict[int, Tensor] = {}
        self._scores = TensorFacts[_Scores]()

    def __enter__(self) -> AttentionRecogniser:
        if self._columns is not None:
            if self._positions is None:
                raise RecognitionErrors.NO_POSITIONS()
            self._key_columns = key_columns(self._positions, self._columns)
        super().__enter__()
        return self

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in PRODUCTS and len(args) == 2:
            weights = self._scores.of(args[0])
            if weights is not None and weights.weights and self.layer is not None:
                return self._attend(weights, args[1], func(*args, **keywords))
        if name == "__getitem__":
            index = _without_lists(args[1])
            args = (args[0], HEADS_OF_EACH if id(args[0]) in self._looked_up and index == HEADS_OF_ALL else index)
        binary = name in SUMS or name in MULTIPLICATIONS or name == "where"
        before = [self._scores.of(arg) for arg in (args if binary else args[:1])]
        if name in READINGS and self._recognition.forms is None and self._known.of(args[0]) is not None:
            with for_real():
                return func(self._known.of(args[0]), *args[1:], **keywords)
        result = func(*args, **keywords)
        if isinstance(result, Tensor) and not isinstance(result, torch.nn.Parameter):
            with for_real():
                scores = self._after(name, args, keywords, tuple(result.shape))
            self._scores.put(result, scores)
            if scores is None and self.layer is not None and any(before) and name not in ("__get__", "transpose"):
                self._recognition.lost.setdefault(self.layer, name)
        elif name == "__setitem__":
            self._scores.put(args[0], None)
        self._known.follow(func, args, keywords, result)
        return result

    def look_up(self, rows: Tensor) -> None:
        """Record rows [b, s, D] that were looked up by position, which the model expects to be [s, D]."""
        self._looked_up[id(rows)] = rows

    def know(self, tensor: Tensor, value: Tensor) -> None:
        """Record the numbers of a tensor."""
        self._known.put(tensor, value)

    def _after(self, name: str, args: Any, keywords: dict[str, Any], shape: tuple[int, ...]) -> _Scores | None:
        """Return the scores of this shape that a function computes from scores; None if they are not recognised any
        more."""
        if name in PRODUCTS and len(args) == 2:
            return self._product(*args)
        if name == "baddbmm":
            return self._sum_with_product(*args, **keywords)
        before, other = self._scores.of(args[0]) if args else None, args[1] if len(args) > 1 else None
        if name == "where" and len(args) == 3:
            return self._chosen(*args)
        if before is None and (name in SUMS or name in MULTIPLICATIONS):
            before, other = self._scores.of(other), args[0]
        if before is None:
            return None
        if name == "softmax":
            dim = other if other is not None else keywords.get("dim")
            return before.softmax() if dim in (-1, len(shape) - 1) and not before.weights else None
        if name in SHAPES:
            return before.reshaped(shape)
        if name in CONVERSIONS:
            return None if name == "dropout" and keywords.get("training", True) else before
        if name in FILLS:
            return self._filled(before, other, args[2] if len(args) > 2 else keywords.get("value"))
        value = self._known.of(other)
        if name in SUMS and value is not None and "alpha" not in keywords:
            return before.plus(value) if not before.weights or not value.any() else None
        if name in MULTIPLICATIONS and value is not None and value.dim():
            ones = value == 1
            return before.only(ones) if not before.weights and bool((ones | (value == 0)).all()) else None
        number = value.item() if value is not None and not value.dim() else other
        if before.weights or not isinstance(number, (int, float)):
            return None
        if name in DIVISIONS:
            return before.divided(number)
        return before.times(number) if name in MULTIPLICATIONS else None

    def _sum_with_product(
        self, added: Any, batch1: Any, batch2: Any, beta: float = 1, alpha: float = 1, **other: Any
    ) -> _Scores | None:
        """Return scores of ``beta * added + alpha * batch1 @ batch2``."""
        value, scores = self._known.of(added), self._product(batch1, batch2)
        if scores is None or other or (value is None and beta != 0):
            return None
        scores = replace(scores, scale=float(alpha))
        return scores if beta == 0 or value is None else scores.plus(value * beta)

    def _chosen(self, condition: Any, yes: Any, no: Any) -> _Scores | None:
        """Return scores where a known mask is set, overwritten elsewhere."""
        where = self._known.of(condition)
        if where is None:
            return None
        scores = self._scores.of(yes)
        if scores is not None:
            return self._filled(scores, condition, no, where=~where)
        return self._filled(self._scores.of(no), condition, yes)

    def _filled(self, scores: _Scores | None, mask: Any, fill: Any, where: Tensor | None = None) -> _Scores | None:
        """Return scores that are a number wherever a known mask is set."""
        where = self._known.of(mask) if where is None else where
        value = self._known.of(fill) if isinstance(fill, Tensor) else fill
        if scores is None or where is None or value is None or where.dtype != torch.bool:
            return None
        low = bool((torch.as_tensor(value) <= MASKED).all())
        return scores.masked(where) if low and not scores.weights else None

    @staticmethod
    def _product(queries: Any, keys: Any) -> _Scores | None:
        """Return the scores of a product of two matrices per head; None for other products."""
        if not isinstance(queries, Tensor) or not isinstance(keys, Tensor) or queries.dim() not in (3, 4):
            return None
        square = queries.dim() == keys.dim() and queries.shape[-2] == keys.shape[-1]
        return _Scores(queries, keys, 1.0, (*queries.shape[:-1], keys.shape[-1])) if square else None

    def _attend(self, scores: _Scores, values: Tensor, product: Tensor) -> Tensor:
        """Return the result of attention in place of the product of weights and values; the product itself for unknown
        forms."""
        assert self.layer is not None
        forms = self._recognition.forms
        with for_real():
            if forms is None:
                form = scores.form(self.batch)
                if form is not None:
                    self.observed[self.layer] = form
                return product
            form = forms.get(self.layer)
            if form is None and scores.bias is None and scores.seen is None:
                form = Form(scores.scale)
            if form is None or not scores.fits(form, self.batch):
                self._recognition.lost.setdefault(self.layer, "softmax")
                return product
        q, k = (self._split(tensor).to(values.dtype) for tensor in (scores.queries, scores.keys.transpose(-1, -2)))
        if form.slopes:
            assert self._columns is not None
            assert self._key_columns is not None
            q = torch.cat([q, self._columns.to(q.dtype).expand(*q.shape[:-1], -1)], -1)
            k = torch.cat([k, self._key_columns.to(k.dtype).expand(*k.shape[:-1], -1)], -1)
        settings = (self.layer, form.scale, bounded_window(self.layer, form.window or None, None).size)
        out: Tensor = torch.ops.sscc.attention(q, k, self._split(values), *settings)
        return out.reshape(product.shape).to(product.dtype)

    def _split(self, x: Tensor) -> Tensor:
        """Return [b * H, s, D] as [b, H, s, D]; a tensor of that rank is returned unchanged."""
        return x.reshape(self.batch, -1, *x.shape[1:]) if x.dim() == 3 else x


def recognise_attention(model: Any) -> None:
    """Let a model of transformers call `sscc::attention` in place of attention in its own code, while its attention
    implementation is one of ours. `observe_attention` determines its masks and biases; before that it must have none.
    """
    recognition = model.attention_recognition = Recognition(original=model.forward)
    recognise_in_layers(
        model,
        recognition.running,
        lambda ids, positions: AttentionRecogniser(model, recognition, ids.shape[0], positions),
    )


class LayerRecogniser(Protocol):
    """A mode that replaces functions of a model.

    Attributes:
        layer: decoder layer that is running; None between layers.
    """

    layer: int | None

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> Any: ...


Recogniser = TypeVar("Recogniser", bound=LayerRecogniser)


def recognise_in_layers(
    model: Any, running: list[Recogniser], make: Callable[[Tensor, Tensor | None], Recogniser]
) -> None:
    """Let a model of transformers run within a recogniser that knows the decoder layer, as in `run_within`.

    Args:
        running: holds the recogniser of each run in progress, innermost last.
        make: creates a recogniser from the ids [b, s] and positions of a run. Its `layer` is the number of the running
            layer.
    """

    @contextmanager
    def recognising(ids: Tensor, positions: Tensor | None) -> Iterator[None]:
        running.append(make(ids, positions))
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

    for stack in _module_lists(model):
        for layer, module in enumerate(stack):
            module.register_forward_pre_hook(enter(layer))
    run_within(model, recognising)


def run_within(model: Any, context: Callable[[Tensor, Tensor | None], AbstractContextManager[Any]]) -> None:
    """Let a model of transformers run within the context that `context` creates from its ids [b, s] and positions,
    while its attention implementation is one of ours. With any other implementation the model is transformers' own."""
    original = model.forward

    @functools.wraps(original)
    def forward(*args: Any, **keywords: Any) -> Any:
        if model.config._attn_implementation not in IMPLEMENTATIONS:
            return original(*args, **keywords)
        ids = keywords["input_ids"] if "input_ids" in keywords else args[0]
        with context(ids, keywords.get("position_ids")):
            return original(*args, **keywords)

    model.forward = forward


def observe_attention(model: Any, tokens: int) -> bool:
    """Determine the masks and biases of a model whose buffers have their values: it runs with no other numbers over
    `tokens` tokens.

    Returns:
        True if it runs. Otherwise only attention without masks and biases of the model's own is recognised.
    """
    recognition: Recognition = model.attention_recognition
    recognition.buffers = {n: b.detach() for n, b in model.named_buffers() if b.device.type != "meta"}
    recognition.forms, recognition.lost = None, {}
    forward = model.forward
    model.forward = functools.partial(_observe, model, recognition, tokens)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    try:
        with torch.no_grad():
            torch.func.functional_call(model, {name: tensor.to("meta") for name, tensor in tensors}, ())
    except Exception:  # a class may need unknown numbers, or a mask where it gets None
        recognition.forms = {}
        return False
    finally:
        model.forward = forward
        recognition.running.clear()
    _add_position_columns(model, recognition.forms or {})
    return True


def _observe(model: Any, recognition: Recognition, tokens: int) -> None:
    """Run a model with all tensors on the meta device, and record the form of each layer."""
    ids, positions = (torch.empty(1, tokens, dtype=torch.int64, device="meta") for _ in range(2))
    recogniser = AttentionRecogniser(model, recognition, 1, positions)
    # Questions of a model about its input numbers (such as which of them are padding) need an answer.
    recogniser.know(ids, torch.ones(ids.shape, dtype=torch.int64))
    recogniser.know(positions, torch.arange(tokens)[None])
    recognition.running.append(recogniser)
    with recogniser:
        recognition.original(input_ids=ids, position_ids=positions, use_cache=False)
    recognition.forms = recogniser.observed


def note_looked_up(model: Any, rows: Tensor) -> None:
    """Tell the active recogniser about rows [b, s, D] that a module of the model has looked up by position."""
    recognition: Recognition | None = getattr(model, "attention_recognition", None)
    if recognition is not None and recognition.running:
        recognition.running[-1].look_up(rows)


def position_biases(model: Any) -> bool:
    """Return True if a model has ALiBi: its rows of K hold positions, which must keep every bit."""
    return hasattr(model, POSITION_COLUMNS)


def lost_scores(model: Any) -> Iterator[SsccError]:
    """Return the reason why attention was almost recognised, for the first such layer; None without one."""
    recognition: Recognition | None = getattr(model, "attention_recognition", None)
    if recognition is not None and recognition.lost:
        layer, name = min(recognition.lost.items())
        yield RecognitionErrors.LOST_SCORES(layer=layer, operator=name.strip("_"))


def key_columns(positions: Tensor, columns: Tensor) -> Tensor:
    """Return the additional columns of keys at `positions` [b, s]: [b, 1, s, columns], exact in the dtype of the
    queries' `columns`.

    Raises:
        UnsupportedError: the context exceeds the range of the columns.
    """
    count = columns.shape[-1]
    if count == 1:
        return positions.to(columns.dtype)[:, None, :, None]
    limit = stated_context()
    if limit is not None and limit > DIGIT * DIGIT:
        raise RecognitionErrors.TOO_MANY_POSITIONS(positions=limit, dtype=columns.dtype, most=DIGIT * DIGIT)
    numbers = positions.float()
    high = torch.floor(numbers / DIGIT)
    digits = torch.stack([high, high, numbers - high * DIGIT, numbers - high * DIGIT], -1)
    return digits.to(columns.dtype)[:, None]


def query_columns(form: Form, dtype: torch.dtype) -> Tensor:
    """Return the additional columns of queries, [1, H, 1, columns], the factors of those of `key_columns`."""
    exact = torch.tensor(form.slopes, dtype=torch.float64) / form.scale
    if dtype in (torch.float32, torch.float64):
        return exact.to(dtype)[None, :, None, None]
    columns = []
    for weight in (DIGIT, 1):
        first = (exact * weight).to(dtype)
        columns += [first, (exact * weight - first.double()).to(dtype)]
    return torch.stack(columns, -1)[None, :, None]


def _add_position_columns(model: Any, forms: dict[int, Form]) -> None:
    """Add the buffer `POSITION_COLUMNS` to a model whose layers have the same ALiBi; if they differ, their attention is
    not recognised."""
    biased = {form for form in forms.values() if form.slopes}
    if not biased:
        return
    if len({(form.scale, form.slopes) for form in biased}) > 1:
        for layer in [layer for layer, form in forms.items() if form.slopes]:
            del forms[layer]
        return
    columns = query_columns(next(iter(biased)), getattr(model, "dtype", torch.float32))
    model.register_buffer(POSITION_COLUMNS, columns, persistent=False)


def band(shape: tuple[int, ...], window: int) -> Tensor:
    """Return the keys [s, s] that each query of the first s positions sees, within a window (0: none)."""
    length = shape[-1]
    ahead = torch.arange(length) - torch.arange(length)[:, None]
    return (ahead <= 0) & (ahead > -window) if window else ahead <= 0


def _band(seen: Tensor) -> int | None:
    """Return the window of a causal mask [.., s, s], 0 for none; None for another mask."""
    length = seen.shape[-1]
    if seen.dim() < 2 or seen.shape[-2] != length:
        return None
    window = int(seen.reshape(-1, length, length)[0, -1].sum()) % length
    return window if torch.equal(*torch.broadcast_tensors(seen, band((length,), window))) else None


def _per_head(bias: Tensor, shape: tuple[int, ...], batch: int) -> Tensor:
    """Return a bias of scores [b, H, s, s] or [b * H, s, s] as [H, s or 1, s] of the first sequence."""
    bias = bias.reshape(*[1] * (len(shape) - bias.dim()), *bias.shape)
    bias = bias.expand(*shape[:-2], *bias.shape[-2:])
    bias = bias[..., -1:, :] if bias.shape[-2] == 1 else bias
    return bias.reshape(batch, -1, *bias.shape[-2:])[0].expand(-1, -1, shape[-1]).float()


def _slopes(bias: Tensor, shape: tuple[int, ...], batch: int) -> tuple[float, ...] | None:
    """Return the increase of each head's bias from one key to the next; None if it is not a straight line with one
    slope per head for all queries."""
    length = shape[-1]
    lines = _per_head(bias, shape, batch).double()
    slopes = (lines[:, -1, -1] - lines[:, -1, 0]) / max(length - 1, 1)
    rest = lines - (slopes[:, None] * torch.arange(length))[:, None]
    straight = (rest - rest[..., :1]).abs().max() <= LINEAR * lines.abs().max().clamp(min=1)
    return tuple(slopes.float().tolist()) if length > 1 and bool(straight) else None


def _reshaped(part: Tensor, before: tuple[int, ...], after: tuple[int, ...]) -> Tensor | None:
    """Return known numbers that broadcast to one shape as numbers that broadcast to another; None if rows and columns
    differ."""
    if before[-2:] != after[-2:]:
        return None
    if part.dim() <= 2 or part.numel() == part.shape[-1] * part.shape[-2]:
        return part.reshape(part.shape[-2:])
    inner = part.shape[-2:]
    return part.expand(*before[:-2], *inner).reshape(*after[:-2], *inner)


def _module_lists(module: torch.nn.Module) -> list[torch.nn.ModuleList]:
    """Return the lists of modules that are in no other list."""
    if isinstance(module, torch.nn.ModuleList):
        return [module]
    return [stack for child in module.children() for stack in _module_lists(child)]


def _without_lists(index: Any) -> Any:
    """Return an index with slices in place of lists of one number, from which torch would make tensors on the meta
    device."""
    if isinstance(index, tuple):
        return tuple(_without_lists(part) for part in index)
    if isinstance(index, list) and len(index) == 1 and type(index[0]) is int:
        return slice(index[0], index[0] + 1 or None)
    return index


def zero_mask(batch_size: int, q_length: int, kv_length: int, *args: Any, **keywords: Any) -> Tensor:
    """The mask function of `WRITTEN_OUT`: [b, 1, q, kv] zeros, because the operator is causal by itself."""
    return torch.zeros(batch_size, 1, q_length, kv_length, dtype=keywords["dtype"], device=keywords.get("device"))


AttentionMaskInterface.register(WRITTEN_OUT, zero_mask)
