"""The attention operator through which every captured model calls SnapStream.

A transformers decoder loaded with ``attn_implementation="sscc"`` calls `torch.ops.sscc.attention` once per layer,
with Q, K and V after RoPE and without a cache in the signature; the compiler threads cache and scratch through it.
Run eagerly it is full causal attention over its operands, unless an observer is installed, which then computes each
layer instead (see `sscc.compiler.frontend.eager`).

Importing this module registers the operator and the attention implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from sscc.compiler.frontend.algorithm import Softmax, causal_attention
from sscc.compiler.frontend.chosen_rows import CausalMask, Choice
from sscc.compiler.frontend.model_config import attention_chunk, listed_layer_types
from sscc.ir.errors import ErrorKind, UnsupportedError
from sscc.ir.geometry import Span

IMPLEMENTATION = "sscc"

# Called as observer(q [b, H, s, D], k [b, Hkv, s, D], v [b, Hkv, s, Dv], layer, scale, window, softmax), returns
# [b, H, s, Dv].
Observer = Callable[[Tensor, Tensor, Tensor, int, float, Span, Softmax], Tensor]

_observer: ContextVar[Observer | None] = ContextVar("sscc_observer", default=None)
_context: ContextVar[int | None] = ContextVar("sscc_context", default=None)

# Keywords that models pass along but that do not change causal attention over the given Q, K and V.
HARMLESS_KEYWORDS = frozenset(
    {
        "cache",
        "cache_position",
        "deterministic",
        "layer_idx",
        "layer_past",
        "logits_to_keep",
        "num_items_in_batch",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)
CHOICES = ("indices", "block_indices")
"""Keywords by which models pass the positions that an index selects to their attention."""
INDEXED_LAYERS = frozenset({"indexed_attention", "minimax_m3_sparse"})
"""Types of layers that attend to such positions, in configs."""
# Keywords that are harmless with one value only.
HARMLESS_VALUES = {"is_causal": True, "is_cross_attention": False}


# -------------------------------------------------------------------------------------------------- the operator


class AttentionErrors(ErrorKind):
    NO_LAYER = UnsupportedError, "{type} has no layer_idx, so it is unknown which layer it belongs to"
    MASK = (
        UnsupportedError,
        "layer {layer} passes an attention mask, but sscc compiles only plain causal attention: leave attention_mask "
        "out, and use a model that builds no mask of its own",
    )
    DROPOUT = UnsupportedError, "layer {layer} uses dropout {dropout}: call model.eval() first"
    OTHER_KEYS = (
        UnsupportedError,
        "layer {layer} attends from {queries} queries to {keys} keys: cross-attention and caches of the model's own "
        "are not supported; run it with use_cache=False",
    )
    KEYWORD = (
        UnsupportedError,
        "layer {layer} passes {keyword}={value} to its attention, which sscc would compile incorrectly; only models "
        "with causal attention, within a sliding window or not, are supported",
    )
    WINDOW_AND_MASK = (
        UnsupportedError,
        "layer {layer} passes sliding_window={window!r} to its attention, and a mask of a window of {mask} positions: "
        "sscc compiles one or the other",
    )
    BAD_WINDOW = UnsupportedError, "layer {layer} attends with {keyword}={value!r}, expected a number of positions"
    WINDOW_AND_CHUNK = (
        UnsupportedError,
        "layer {layer} attends within a chunk (attention_chunk_size = {size}) and passes sliding_window={window!r} to "
        "its attention: sscc compiles one or the other",
    )
    WINDOW_AND_CHOICE = (
        UnsupportedError,
        "layer {layer} attends within a window of {window} positions, and to positions that an index chooses: sscc "
        "compiles one or the other",
    )
    CHOICES = (
        UnsupportedError,
        "layer {layer} chooses positions for {choices} groups of heads, but its {kv_heads} KV heads cannot be "
        "divided into {choices} groups",
    )
    BAD_SOFTCAP = UnsupportedError, "layer {layer} caps its scores at softcap={softcap!r}, expected a number above 0"
    BAD_SINKS = (
        UnsupportedError,
        "layer {layer} has learned sinks (s_aux) of {sinks}, expected one for each of {heads} heads",
    )


@torch.library.custom_op("sscc::attention", mutates_args=())
def attention(
    q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: int = 0, softcap: float = 0.0,
    sinks: Tensor | None = None, stride: int = 1,
) -> Tensor:  # fmt: skip
    """Causal attention of decoder layer `layer`, with grouped KV heads; softmax and sums in f32.

    Args:
        q: [b, H, s, D], after RoPE.
        k: [b, Hkv, s, D], after RoPE; H is a multiple of Hkv.
        v: [b, Hkv, s, Dv].
        layer: index of the decoder layer.
        scale: factor on the dot products.
        window: maximum number of positions that a query sees, its own included; 0 for all earlier ones.
        softcap: cap of scores, see `Softmax`; 0 for none.
        sinks: [H], a learned logit per head without a row, see `Softmax`.
        stride: step of the window in positions, see `Span`.

    Returns:
        [b, H, s, Dv] of q's dtype. Eagerly, without an observer: every sequence sees exactly its s tokens.
    """
    observer, seen, softmax = _observer.get(), Span(window, stride), Softmax(softcap or None, sinks)
    if observer is not None:
        return observer(q, k, v, layer, scale, seen, softmax)
    return torch.stack([causal_attention(*one, scale, seen, softmax) for one in zip(q, k, v, strict=True)])


@attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: int = 0, softcap: float = 0.0,
    sinks: Tensor | None = None, stride: int = 1,
) -> Tensor:  # fmt: skip
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Let `observer` compute every `sscc::attention` that runs eagerly inside the block."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


@contextmanager
def context_limit(max_context: int) -> Iterator[None]:
    """Set the longest sequence that will be run, in tokens: a sliding window of at least this size has no effect."""
    token = _context.set(max_context)
    try:
        yield
    finally:
        _context.reset(token)


def stated_context() -> int | None:
    """Return the longest sequence that will be run, in tokens; None if it is not set."""
    return _context.get()


# ------------------------------------------------------------------------------- registration with transformers


@dataclass(frozen=True)
class WindowMask:
    """Passed to a model in place of a mask that limits how far back its queries see; the model passes it to its
    attention.

    Attributes:
        size: maximum number of positions that a query sees, its own included.
    """

    size: int


def attention_function(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | WindowMask | CausalMask | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """The transformers attention implementation named "sscc": one call of `sscc::attention`, or of
    `sscc::chosen_attention` if an index selects positions.

    Args:
        module: attention module; its `layer_idx` is the number of the layer.
        query: [b, H, s, D], after RoPE.
        key: [b, Hkv, s, D].
        value: [b, Hkv, s, Dv].
        attention_mask: None, or the result of `window_mask`.
        scaling: factor on the dot products; D ** -0.5 if None.
        dropout: must be zero.
        sliding_window: maximum number of positions that a query sees, its own included; None for all earlier ones.
        softcap: cap of scores; None for none.
        s_aux: [H], a learned logit per head that is part of its softmax and has no row; None for none.
        keywords: all other keywords that the model passes; see `check_keywords`.

    Returns:
        (output [b, s, H, Dv] contiguous, None).

    Raises:
        UnsupportedError: an argument would change the result; the message names the layer and the keyword.
    """
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise AttentionErrors.NO_LAYER(type=type(module).__name__)
    mask = attention_mask if isinstance(attention_mask, WindowMask) else None
    if attention_mask is not mask and not isinstance(attention_mask, CausalMask):
        raise AttentionErrors.MASK(layer=layer)
    if dropout:
        raise AttentionErrors.DROPOUT(layer=layer, dropout=dropout)
    if key.shape[2] != query.shape[2]:
        raise AttentionErrors.OTHER_KEYS(layer=layer, queries=query.shape[2], keys=key.shape[2])
    choices = [keywords.pop(name) for name in CHOICES if isinstance(keywords.get(name), Choice)]
    check_keywords(layer, {"is_causal": getattr(module, "is_causal", None), **keywords})
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    window = bounded_window(layer, sliding_window, getattr(module, "config", None), mask)
    cap, sinks = _softcap(layer, softcap), _sinks(layer, s_aux, query)
    if choices and key.shape[1] % choices[0].chosen.shape[1]:
        raise AttentionErrors.CHOICES(layer=layer, choices=choices[0].chosen.shape[1], kv_heads=key.shape[1])
    if choices and window:
        raise AttentionErrors.WINDOW_AND_CHOICE(layer=layer, window=window.size)
    if choices:
        out = torch.ops.sscc.chosen_attention(query, key, value, choices[0].chosen, sinks, layer, scale, cap)
    else:
        out = torch.ops.sscc.attention(query, key, value, layer, scale, window.size, cap, sinks, window.stride)
    return out.transpose(1, 2).contiguous(), None


def check_keywords(layer: int, keywords: dict[str, Any]) -> None:
    """Refuse any keyword that could change the result of attention.

    None always passes, and so do names in `HARMLESS_KEYWORDS`.

    Raises:
        UnsupportedError: naming the layer, the keyword and its value.
    """
    for name, value in keywords.items():
        if value is None or name in HARMLESS_KEYWORDS:
            continue
        if name in HARMLESS_VALUES and value == HARMLESS_VALUES[name]:
            continue
        shown = f"a {type(value).__name__}" if isinstance(value, Tensor) else repr(value)
        raise AttentionErrors.KEYWORD(layer=layer, keyword=name, value=shown)


def bounded_window(layer: int, sliding_window: Any, config: Any, mask: WindowMask | None = None) -> Span:
    """Return the window of a layer; no window if the longest sequence fits in it.

    A sliding window is passed as a keyword, a mask, or both. A mask does not show whether its window is chunked; the
    config decides this, and the probe, whose text spans several chunks, compares the result with the model's own mask.
    """
    size = attention_chunk(config, layer)
    if mask is not None and size is None:
        if sliding_window not in (None, mask.size):
            raise AttentionErrors.WINDOW_AND_MASK(layer=layer, window=sliding_window, mask=mask.size)
        sliding_window = mask.size
    for name, value in (("sliding_window", sliding_window), ("attention_chunk_size", size)):
        if value is not None and (type(value) is not int or value < 1):
            raise AttentionErrors.BAD_WINDOW(layer=layer, keyword=name, value=value)
    if size is not None and sliding_window is not None:
        raise AttentionErrors.WINDOW_AND_CHUNK(layer=layer, size=size, window=sliding_window)
    window = Span(sliding_window or 0) if size is None else Span(size, size)
    limit = _context.get()
    return window if limit is None else window.inside(limit)


def window_mask(
    *args: Any, local_size: int | None = None, config: Any = None, **keywords: Any
) -> WindowMask | CausalMask | None:
    """The mask function of the "sscc" implementation. It returns the length of a window, because operators are causal
    by themselves. Models with an index add the mask to its scores, and get one that is only causal."""
    if local_size is not None:
        return WindowMask(local_size)
    indexed = config is not None and INDEXED_LAYERS & set(listed_layer_types(config))
    return CausalMask() if indexed else None


def _softcap(layer: int, softcap: Any) -> float:
    """Return the cap of a layer's scores; 0 for none, for which transformers passes None."""
    if softcap is None:
        return 0.0
    if type(softcap) not in (int, float) or not 0 < softcap < float("inf"):
        raise AttentionErrors.BAD_SOFTCAP(layer=layer, softcap=softcap)
    return float(softcap)


def _sinks(layer: int, sinks: Any, query: Tensor) -> Tensor | None:
    """Return the logits of a layer's learned sinks [H], in the dtype of its queries [b, H, s, D]; None without sinks.
    """
    heads = query.shape[1]
    if sinks is None:
        return None
    if isinstance(sinks, Tensor) and tuple(sinks.shape) == (heads,):
        return sinks if sinks.dtype == query.dtype else sinks.to(query.dtype)
    shown = list(sinks.shape) if isinstance(sinks, Tensor) else repr(sinks)
    raise AttentionErrors.BAD_SINKS(layer=layer, sinks=str(shown), heads=heads)


AttentionInterface.register(IMPLEMENTATION, attention_function)
AttentionMaskInterface.register(IMPLEMENTATION, window_mask)
