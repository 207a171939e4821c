"""Which models may be compiled: refuses every feature that would be compiled wrongly or lost in silence.

A model is judged by the fields of its config and the attributes of its transformers class, never by a list of models:
some models export cleanly without our attention operator, or lose a mask on the way, so what is not understood here
is refused. Capture refuses what only shows in the graph.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from sscc.ir.errors import UnsupportedError, UsageError

STATIC_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
STATE_LAYERS = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding"})


def check_config(config: PreTrainedConfig, max_context: int) -> None:
    """Refuses a config that cannot be honoured at `max_context` tokens (prompt plus new tokens).

    A sliding window of at least `max_context` tokens is inert and passes.

    Raises:
        UnsupportedError: naming every feature found, its config field, and the first layer where it applies.
        UsageError: `max_context` exceeds the positions the model was made for.
    """
    model = config.model_type
    reasons = list(_reasons(config, max_context))
    if reasons:
        raise UnsupportedError(f"{model} cannot be compiled: {'; '.join(dict.fromkeys(reasons))}")
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int):
        raise UnsupportedError(f"{model} cannot be compiled: its config has no max_position_embeddings")
    if max_context > limit:
        raise UsageError(
            f"max-context {max_context} exceeds the {limit} positions of the model (max_position_embeddings): "
            f"lower --max-context to at most {limit}"
        )


def _reasons(config: PreTrainedConfig, max_context: int) -> Iterator[str]:
    if config.is_encoder_decoder:
        yield "it is an encoder-decoder (is_encoder_decoder)"
        return
    parts = [name for name in config.sub_configs if hasattr(getattr(config, name, None), "num_hidden_layers")]
    if parts:
        yield f"it is composed of several models ({', '.join(parts)}): bring its text decoder alone"
        return
    if config.is_heterogeneous:
        yield f"layers of different shapes (per_layer_config: {', '.join(sorted(config.per_layer_attributes or ()))})"
        return
    yield from _structure(config)
    yield from _model_class(config)
    yield from _layer_types(config, max_context)
    yield from _windows(config, max_context)
    yield from _rope(config, max_context)
    yield from _fields(config)


def _structure(config: PreTrainedConfig) -> Iterator[str]:
    """Models that are more than one causal stack of equal decoder layers."""
    for name in ("use_bidirectional_attention", "prefix_lm"):
        if getattr(config, name, None):
            yield f"its attention is not causal ({name} = {getattr(config, name)})"
    if getattr(config, "add_cross_attention", False):
        yield "cross-attention (add_cross_attention)"
    shared = getattr(config, "num_kv_shared_layers", None)
    if shared:
        layers = getattr(config, "num_hidden_layers", shared)
        yield f"layer {layers - shared} and later ones share the K and V of earlier layers (num_kv_shared_layers)"


def _model_class(config: PreTrainedConfig) -> Iterator[str]:
    """What transformers' own class says about attention."""
    found = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    cls = found[0] if isinstance(found, tuple) else found
    if cls is None:
        yield "transformers has no causal language model for it"
        return
    module = sys.modules[cls.__module__]
    # GPT-NeoX says is_decoder = False and is causal all the same: the switch counts where the model heeds it.
    if hasattr(module, "create_bidirectional_mask") and not getattr(config, "is_decoder", True):
        yield "its attention is bidirectional (is_decoder = False)"
    if _uses_alibi(config, module):
        yield "ALiBi position biases"
    if _has_sinks(cls):
        yield "learned attention sinks"
    if getattr(cls, "_is_stateful", False):
        yield "state-space or recurrent layers"
    if not getattr(cls, "_supports_attention_backend", False):
        yield "its attention does not go through transformers' attention interface"


def _uses_alibi(config: PreTrainedConfig, module: Any) -> bool:
    """By the config's switch where there is one, else by what the modeling file defines."""
    holders: list[Any] = [config, getattr(config, "attn_config", None)]
    switches = [holder.alibi for holder in holders if hasattr(holder, "alibi")]
    if switches:
        return any(switches)
    return any("alibi" in name.lower() for name in vars(module))


def _has_sinks(cls: type) -> bool:
    """Whether a module of the model's file registers a parameter of attention sinks."""
    module = sys.modules[cls.__module__]
    inits = [vars(value).get("__init__") for value in vars(module).values() if isinstance(value, type)]
    codes = [init.__code__ for init in inits if isinstance(init, FunctionType) and init.__module__ == cls.__module__]
    names = {name for code in codes for name in code.co_names}
    return any(re.search(r"(^|_)sinks?($|_)", name) for name in names)


def _layer_types(config: PreTrainedConfig, max_context: int) -> Iterator[str]:
    """The first layer of each kind that is not full attention."""
    types = getattr(config, "layer_types", None) or getattr(config, "block_types", None) or []
    for kind in dict.fromkeys(types):
        layer = types.index(kind)
        if kind == "full_attention":
            continue
        if kind == "sliding_attention":
            yield from _window(getattr(config, "sliding_window", None), max_context, f"layer {layer}")
        elif kind == "chunked_attention":
            yield f"layer {layer} is chunked attention (attention_chunk_size = {config.attention_chunk_size})"
        elif kind in STATE_LAYERS:
            yield f"layer {layer} is a state-space or hybrid layer ({kind})"
        else:
            yield f"layer {layer} is {kind}, not full attention"


def _window(window: Any, max_context: int, where: str) -> Iterator[str]:
    if not isinstance(window, int) or window < max_context:
        yield (
            f"{where} is sliding-window attention (sliding_window = {window}, less than max-context {max_context}; "
            f"a window that covers the context is accepted)"
        )


def _windows(config: PreTrainedConfig, max_context: int) -> Iterator[str]:
    """Windows of models whose config does not list its layers, and windows under other names."""
    window = getattr(config, "sliding_window", None)
    listed = bool(getattr(config, "layer_types", None))
    if window is not None and not listed and getattr(config, "use_sliding_window", True):
        yield from _window(window, max_context, "every layer from layer 0")
    for name, value in _numbers(config):
        if name != "sliding_window" and re.search(r"window(_size)?$", name) and 0 < value < max_context:
            yield f"attention within a window ({name} = {value}, less than max-context {max_context})"


def _rope(config: PreTrainedConfig, max_context: int) -> Iterator[str]:
    """Rotary tables must not depend on how long the text has become."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = all(isinstance(value, Mapping) for value in parameters.values())
    for values in parameters.values() if nested else [parameters]:
        kind = values.get("rope_type", "default")
        if kind == "longrope":
            original = values.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None
            )
            if original is None or max_context > original:
                yield (
                    f"longrope beyond original_max_position_embeddings = {original} changes its frequencies with the "
                    f"text's length: lower --max-context from {max_context} to at most {original}"
                )
        elif kind == "dynamic":
            yield "dynamic rope, whose frequencies change with the text's length (rope_type = dynamic)"
        elif kind not in STATIC_ROPE_TYPES:
            yield f"rope_type {kind} is not one of {', '.join(sorted(STATIC_ROPE_TYPES))}, longrope"


def _fields(config: PreTrainedConfig) -> Iterator[str]:
    """Features that a single field of the config gives away, under any of the names in use."""
    for name, value in _numbers(config):
        if re.search(r"soft_?cap", name) and value:
            yield f"soft-capping ({name} = {value})"
        if re.search(r"num_(local_)?experts$|routed_experts$", name) and value > 1:
            yield f"mixture of experts{_first_sparse(config)} ({name} = {value})"
    for name in ("kv_lora_rank", "kv_a_proj_rank"):
        if getattr(config, name, None):
            yield f"multi-head latent attention (MLA) in layer 0 ({name} = {getattr(config, name)})"
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk and "chunked_attention" not in (getattr(config, "layer_types", None) or []):
        yield f"chunked attention (attention_chunk_size = {chunk})"


def _first_sparse(config: PreTrainedConfig) -> str:
    types = getattr(config, "mlp_layer_types", None) or []
    return f" from layer {types.index('sparse')}" if "sparse" in types else ""


def _numbers(config: PreTrainedConfig) -> list[tuple[str, int | float]]:
    """Every numeric field, sub-configs' included (their names joined by dots)."""

    def visit(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, int | float]]:
        for name, value in values.items():
            if isinstance(value, Mapping):
                yield from visit(value, f"{prefix}{name}.")
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                yield f"{prefix}{name}", value

    return list(visit(config.to_dict(), ""))
