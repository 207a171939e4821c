"""Checks that a model can be compiled: every feature that would be compiled wrongly or lost is refused.

Features that follow from the config with certainty are refused here, before anything is built: a mask other than the
causal one, layers that keep another state, frequencies that change. A class of transformers is only a hint and decides
nothing: capture checks the program itself, and if it refuses it, `suspicions` explain the reason to the user.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from sscc.compiler.frontend.construction import idle_modules
from sscc.compiler.frontend.experts import expert_modules
from sscc.compiler.frontend.frequencies import (
    DYNAMIC,
    LENGTH_DEPENDENT,
    LONGROPE,
    ORIGINAL,
    first_length,
    rope_parameters,
)
from sscc.compiler.frontend.learned_index import TOPK_FIELDS
from sscc.compiler.frontend.model_config import (
    CHUNKED,
    attention_chunk,
    causal_class,
    layer_types_field,
    listed_layer_types,
    model_context,
    model_parts,
    reads_a_backbone,
)
from sscc.compiler.frontend.operator import INDEXED_LAYERS
from sscc.compiler.frontend.sparse_experts import stacked_experts
from sscc.compiler.frontend.stateful import LAYER_TYPES, OPERATORS
from sscc.ir.errors import ErrorKind, InputError, SsccError, UnsupportedError, UsageError
from sscc.ir.geometry import Span

_EXPERT_COUNTS = re.compile(r"(experts|zero_expert_num)$")
# In the name of a parameter. A router alone may select something else (Gemma 3n's selects modalities).
_EXPERTS = re.compile(r"(^|\.)\w*(experts?|moe)\.", re.IGNORECASE)
_ROUTERS = re.compile(r"(^|\.)\w*router\.", re.IGNORECASE)
STATIC_ROPE_TYPES = frozenset({"default", "linear", "llama3", "proportional", "yarn"})
SLIDING = "sliding_attention"
WINDOW_FIELDS = {SLIDING: "sliding_window", "local": "window_size"}
"""Field with the window, by the type of layers with a sliding window."""
FULL_LAYERS = frozenset({"full_attention", "attention", "global"})
HYBRID_LAYERS = frozenset({"hybrid"})
"""Types of layers with attention and another state."""
STATELESS_LAYERS = frozenset({"mlp", "moe"})
"""Types of layers that are only a feed-forward network."""
STATE_LAYERS = frozenset({"hybrid_sliding"})
COMPRESSED_LAYERS = frozenset({"compressed_sparse_attention", "heavily_compressed_attention"})
"""Types of layers that attend to positions by an index whose keys stand for several positions each."""
# Fields that may differ between layers. For all others the checks below use the single value of the config.
LAYER_FIELDS = frozenset({"head_dim", "num_key_value_heads"})


SHOWN_FIELDS = 3


class AdmissionErrors(ErrorKind):
    REFUSED = UnsupportedError, "{model} cannot be compiled: {reasons}"
    NO_CONTEXT = UsageError, "the config of {model} states no maximum context: give --max-context"
    CONTEXT_TOO_LONG = (
        UsageError,
        "--max-context {context} exceeds the {limit} positions of the model (max_position_embeddings): lower "
        "--max-context to at most {limit}",
    )
    BAD_SHARED_LAYERS = (
        InputError,
        "{model}: num_kv_shared_layers must be a number below the {layers} layers, got {shared!r:.80}",
    )
    BAD_ROPE_PARAMETERS = InputError, "{model}: rope_parameters must be an object, got {value:.80}"
    BAD_ROPE_TYPE = InputError, "{model}: rope_type must be a word, got {value:.80}"
    # Reasons of REFUSED, and suspicions for a model that capture refuses.
    APPENDED_TOKENS = (
        UnsupportedError,
        "it predicts at a special token that its generation appends to the text "
        "({type}.prepare_inputs_for_generation gives {tokens} more), and not at the last token of the text",
    )
    CONVOLUTION = UnsupportedError, "{module} is a convolution over tokens"
    EXPERTS = (
        UnsupportedError,
        "mixture of experts that do not go through transformers' interface: {module} ({type}) multiplies by them in a "
        "way of its own",
    )
    EXPERTS_OF_FIELDS = (
        UnsupportedError,
        "mixture of experts ({fields}) that do not go through transformers' interface: {module} ({type}) multiplies "
        "by them in a way of its own",
    )
    ALIBI = UnsupportedError, "ALiBi position biases (alibi)"
    LANGUAGE_ADAPTERS = UnsupportedError, "adapters that are selected by language at run time (languages = {languages})"
    STATEFUL = UnsupportedError, "state-space or recurrent layers (model_type = {model})"
    NO_ATTENTION_INTERFACE = UnsupportedError, "its attention does not go through transformers' attention interface"
    ENCODER_DECODER = UnsupportedError, "it is an encoder-decoder (is_encoder_decoder)"
    BACKBONE = UnsupportedError, "it reads the hidden states of another model (backbone_hidden_size)"
    NO_CAUSAL_CLASS = UnsupportedError, "transformers has no causal language model for it"
    NO_TEXT_DECODER = (
        UnsupportedError,
        "it is composed of several models ({parts}), and transformers has no causal language model for a text decoder "
        "of it alone",
    )
    SEVERAL_STACKS = (
        UnsupportedError,
        "it consists of several models ({parts}) instead of one stack of layers (num_hidden_layers)",
    )
    LAYERS_DIFFER = UnsupportedError, "layers that differ in more than their heads (per_layer_config: {fields})"
    NOT_CAUSAL = UnsupportedError, "its attention is not causal ({field} = {value})"
    CROSS_ATTENTION = UnsupportedError, "cross-attention ({field} = {value})"
    NO_CHUNK = (
        UnsupportedError,
        "layer {layer} has chunked attention without a chunk size (attention_chunk_size = {size})",
    )
    STATE_LAYER = (
        UnsupportedError,
        "layer {layer} is a state-space or hybrid layer ({field}[{layer}] = {type}), which keeps another state than K "
        "and V",
    )
    INDEXED_LAYER = (
        UnsupportedError,
        "layer {layer} attends to positions that an index of its own chooses ({field}[{layer}] = {type}), by keys that "
        "stand for several positions each: sscc keeps index keys of single positions",
    )
    OTHER_LAYER = UnsupportedError, "layer {layer} is not full attention ({field}[{layer}] = {type})"
    NO_WINDOW = (
        UnsupportedError,
        "layer {layer} has sliding-window attention without a window size ({field} = {window})",
    )
    UNKNOWN_WINDOW = UnsupportedError, "attention within a window ({field} = {window}, less than max-context {context})"
    LONGROPE_WITHOUT_LENGTH = UnsupportedError, "longrope with {field} = {value}, without the length of short texts"
    UNKNOWN_ROPE_TYPE = UnsupportedError, "rope_type {type} is not one of {known}"
    BLOCK_SPARSE = UnsupportedError, "block-sparse attention (attention_type = block_sparse)"
    MASK_BY_VALUES = UnsupportedError, "a mask that depends on the tokens (keep_window_size = {size})"
    LEARNED_BIASES = (
        UnsupportedError,
        "learned biases of scores by distance ({field} = {value}), which the cache has no positions for",
    )
    CHUNKED = UnsupportedError, "chunked attention (attention_chunk_size = {size})"


def longest_context(config: PreTrainedConfig) -> int | None:
    """Return the longest context that a program may have: the model's, or the one to which dynamic frequencies stretch
    it."""
    context = model_context(config)
    factors = [values.get("factor") for values in rope_parameters(config) if values.get("rope_type") == DYNAMIC]
    factor = min((factor for factor in factors if isinstance(factor, int | float) and factor > 1), default=1)
    return None if context is None else int(context * factor)


def check_config(config: PreTrainedConfig, max_context: int | None) -> None:
    """Refuse a config that cannot be compiled faithfully at `max_context` tokens (prompt plus new tokens; None if
    unknown).

    Raises:
        InputError: a field has a type or size that no model has.
        UnsupportedError: unsupported features; the message names each with its config field and the first layer.
        UsageError: `max_context` exceeds the positions of the model, or neither is known.
    """
    model = config.model_type
    reasons = {str(reason): reason for reason in _reasons(config, max_context)}
    if reasons:
        raise AdmissionErrors.REFUSED(model=model, reasons=list(reasons.values()))
    limit = longest_context(config)
    if max_context is None:
        raise AdmissionErrors.NO_CONTEXT(model=model)
    if limit is not None and max_context > limit:
        raise AdmissionErrors.CONTEXT_TOO_LONG(context=max_context, limit=limit)


def check_modules(config: PreTrainedConfig, model: torch.nn.Module) -> None:
    """Refuse a built model whose layers mix tokens by anything but attention, or have experts that are neither run
    through transformers' interface nor stacked matrices that can be applied to all tokens (`sparse_experts`).

    The class's name is not used: a class for such models with a dense config passes. Modules beside experts that use
    the interface (routers, shared experts) are captured like any other module, and modules that text alone does not run
    are ignored.

    Raises:
        UnsupportedError: naming the first such module, and the config's fields about it.
    """
    appended = _appended_tokens(model)
    if appended:
        reason = AdmissionErrors.APPENDED_TOKENS(type=type(model).__name__, tokens=appended)
        raise AdmissionErrors.REFUSED(model=config.model_type, reasons=[reason])
    idle = idle_modules(config) if model_parts(config) else frozenset[str]()
    types = set(listed_layer_types(config))
    operators = OPERATORS if (LAYER_TYPES | HYBRID_LAYERS) & types else ()
    known = {name for operator in operators for name in operator.modules(model)}
    for name, module in model.named_modules():
        if name not in idle | known and isinstance(module, torch.nn.Conv1d) and module.kernel_size != (1,):
            reason = AdmissionErrors.CONVOLUTION(module=name)
            raise AdmissionErrors.REFUSED(model=config.model_type, reasons=[reason])
    blocks = tuple(f"{name.rpartition('.')[0]}." for name in (*expert_modules(model), *stacked_experts(model)))
    counts = _expert_counts(config)
    names = (name for name, _ in model.named_parameters() if name.rpartition(".")[0] not in idle)
    others = (name for name in names if not name.startswith(blocks))
    sparse = (name for name in others if _EXPERTS.search(name) or (counts and _ROUTERS.search(name)))
    bypassing = min(sparse, key=lambda name: "router" in name, default=None)  # prefer the experts to their router
    if bypassing is not None:
        path = bypassing.rpartition(".")[0]
        reason = _bypassing_experts(config, model, path)
        raise AdmissionErrors.REFUSED(model=config.model_type, reasons=[reason])


def _bypassing_experts(config: PreTrainedConfig, model: torch.nn.Module, path: str) -> SsccError:
    """Return the reason that a module runs experts in a way of its own."""
    counts = _expert_counts(config)[:SHOWN_FIELDS]
    type_ = type(model.get_submodule(path)).__name__
    if counts:
        return AdmissionErrors.EXPERTS_OF_FIELDS(module=path, type=type_, fields=counts)
    return AdmissionErrors.EXPERTS(module=path, type=type_)


def _expert_counts(config: PreTrainedConfig) -> list[str]:
    """Return the fields with a number of experts above 1."""
    return [f"{name} = {value}" for name, value in _numbers(config) if _EXPERT_COUNTS.search(name) and value > 1]


def _appended_tokens(model: torch.nn.Module) -> int:
    """Return the number of tokens that the model's own preparation of a step appends to the text; 0 if that cannot be
    called."""
    prepare = getattr(model, "prepare_inputs_for_generation", None)
    ids = torch.ones(1, 4, dtype=torch.int64)
    try:
        prepared = prepare(ids, attention_mask=torch.ones_like(ids))["input_ids"] if prepare is not None else ids
        return int(prepared.shape[1]) - ids.shape[1]
    except Exception:  # it expects to be called by generate(); most of them append nothing
        return 0


def module_suspicions(config: PreTrainedConfig, model: torch.nn.Module) -> Iterator[SsccError]:
    """Return possible reasons why a built model cannot be captured: stacked experts that may not be applied to all
    tokens."""
    for path in stacked_experts(model)[:1]:
        yield _bypassing_experts(config, model, path)


def suspicions(config: PreTrainedConfig) -> Iterator[SsccError]:
    """Return possible reasons why a model cannot be captured, from the attributes of transformers' class. They explain
    a refusal but never cause one, because none is certain: StableLM uses the attention interface without declaring it.
    """
    cls = causal_class(config)
    if cls is None:
        return
    if any(getattr(holder, "alibi", None) for holder in (config, getattr(config, "attn_config", None))):
        yield AdmissionErrors.ALIBI()
    languages = getattr(config, "languages", None)
    if languages:
        yield AdmissionErrors.LANGUAGE_ADAPTERS(languages=list(languages))
    if cls._is_stateful and not listed_layer_types(config):
        yield AdmissionErrors.STATEFUL(model=config.model_type)
    if not cls._supports_attention_backend:
        yield AdmissionErrors.NO_ATTENTION_INTERFACE()


def _reasons(config: PreTrainedConfig, max_context: int | None) -> Iterator[SsccError]:
    if config.is_encoder_decoder:
        yield AdmissionErrors.ENCODER_DECODER()
        return
    if reads_a_backbone(config):
        yield AdmissionErrors.BACKBONE()
        return
    cls, parts = causal_class(config), model_parts(config)
    if cls is None:
        yield AdmissionErrors.NO_TEXT_DECODER(parts=parts) if parts else AdmissionErrors.NO_CAUSAL_CLASS()
        return
    if parts and not hasattr(config, "num_hidden_layers"):
        yield AdmissionErrors.SEVERAL_STACKS(parts=parts)
        return
    different = sorted(_different_attributes(config) - LAYER_FIELDS)
    if different:
        yield AdmissionErrors.LAYERS_DIFFER(fields=different)
        return
    yield from _structure(config, cls)
    yield from _layer_types(config)
    yield from _windows(config, max_context)
    yield from _rope(config)
    yield from _fields(config)


def _different_attributes(config: PreTrainedConfig) -> set[str]:
    """Return the fields in which layers differ. A per-layer config does not imply any, since all layers may have equal
    values."""
    if not config.is_heterogeneous:
        return set()
    layers = list(config.per_layer_config)
    names = config.per_layer_attributes
    return {n for n in names if any(getattr(x, n, None) != getattr(layers[0], n, None) for x in layers[1:])}


def _structure(config: PreTrainedConfig, cls: type[PreTrainedModel]) -> Iterator[SsccError]:
    """Yield reasons why a model is not one causal stack of equal decoder layers."""
    for name in ("use_bidirectional_attention", "prefix_lm"):
        if getattr(config, name, None) not in (None, False, "vision"):  # "vision": for image tokens only
            yield AdmissionErrors.NOT_CAUSAL(field=name, value=getattr(config, name))
    # GPT-NeoX has is_decoder = False but is causal: the switch counts only if the model reads it.
    if hasattr(sys.modules[cls.__module__], "create_bidirectional_mask") and not getattr(config, "is_decoder", True):
        yield AdmissionErrors.NOT_CAUSAL(field="is_decoder", value=False)
    if getattr(config, "attn_type", None) == "bi":
        yield AdmissionErrors.NOT_CAUSAL(field="attn_type", value="bi")
    if getattr(config, "add_cross_attention", False):
        yield AdmissionErrors.CROSS_ATTENTION(field="add_cross_attention", value=True)
    crossing, layers = (getattr(config, name, None) for name in ("cross_attention_layers", "num_hidden_layers"))
    if isinstance(crossing, (list, tuple)) and any(layer in range(layers or 0) for layer in crossing):
        yield AdmissionErrors.CROSS_ATTENTION(field="cross_attention_layers", value=list(crossing))
    if cls._is_stateful and not listed_layer_types(config):
        yield AdmissionErrors.STATEFUL(model=config.model_type)


def _layer_types(config: PreTrainedConfig) -> Iterator[SsccError]:
    """Yield the first layer of each kind that has neither full nor windowed attention."""
    types, field = listed_layer_types(config), layer_types_field(config)
    for kind in dict.fromkeys(types):
        layer = types.index(kind)
        fields: dict[str, Any] = {"layer": layer, "field": field, "type": kind}
        if kind in FULL_LAYERS | HYBRID_LAYERS | LAYER_TYPES | STATELESS_LAYERS:
            continue
        if kind == SLIDING or hasattr(config, WINDOW_FIELDS.get(kind, "")):
            yield from _window(config, WINDOW_FIELDS[kind], layer)
        elif kind == CHUNKED:
            size = attention_chunk(config, layer)
            if type(size) is not int or size < 1:
                yield AdmissionErrors.NO_CHUNK(layer=layer, size=size)
        elif kind in STATE_LAYERS:
            yield AdmissionErrors.STATE_LAYER(**fields)
        elif kind in INDEXED_LAYERS and any(getattr(config, name, None) for name in TOPK_FIELDS):
            continue
        elif kind in INDEXED_LAYERS | COMPRESSED_LAYERS:
            yield AdmissionErrors.INDEXED_LAYER(**fields)
        else:
            yield AdmissionErrors.OTHER_LAYER(**fields)


def _window(config: PreTrainedConfig, field: str, layer: int) -> Iterator[SsccError]:
    window = getattr(config, field, None)
    if type(window) is not int or window < 1:
        yield AdmissionErrors.NO_WINDOW(layer=layer, field=field, window=window)


def window_field(config: PreTrainedConfig, layer: int) -> str:
    """Return the field with the window of a layer; "" if the type of the layer implies full attention."""
    types = listed_layer_types(config)
    if not types:
        return "sliding_window"
    return "attention_chunk_size" if types[layer] == CHUNKED else WINDOW_FIELDS.get(types[layer], "")


def layer_window(config: PreTrainedConfig, layer: int, max_context: int) -> Span:
    """Return the window of a layer according to the config; no window if it covers all of `max_context`."""
    size = attention_chunk(config, layer)
    if size is not None:
        return Span(size, size).inside(max_context)
    window = getattr(config, window_field(config, layer), None)
    if window is None or not getattr(config, "use_sliding_window", True):
        return Span()
    return Span(int(window)).inside(max_context)


def shared_layers(config: PreTrainedConfig) -> int:
    """Return the number of layers, the last ones, that attend to the K and V of earlier ones (num_kv_shared_layers).

    Raises:
        InputError: the field is not a number, or leaves no layer before them.
    """
    shared, layers = getattr(config, "num_kv_shared_layers", None) or 0, getattr(config, "num_hidden_layers", 0)
    if type(shared) is not int or not 0 <= shared < max(layers, 1):
        raise AdmissionErrors.BAD_SHARED_LAYERS(model=config.model_type, shared=shared, layers=layers)
    return shared


def attending_layers(config: PreTrainedConfig, layers: int) -> list[int]:
    """Return the numbers of the layers, below `layers`, that attend to rows of their own."""
    types = listed_layer_types(config)
    own = range(layers - shared_layers(config))
    return [layer for layer in own if not types or types[layer] not in LAYER_TYPES | STATELESS_LAYERS]


def stateless_layers(config: PreTrainedConfig) -> frozenset[int]:
    """Return the numbers of the layers that keep nothing from token to token."""
    types = listed_layer_types(config)
    return frozenset(layer for layer, kind in enumerate(types) if kind in STATELESS_LAYERS)


def attention_softcaps(config: PreTrainedConfig) -> dict[str, float]:
    """Return the fields of a config that cap attention scores, with the caps. A cap on the logits of the head is not
    among them: it is an ordinary operation of the program."""
    return {name: value for name, value in _numbers(config) if re.search(r"att\w*soft_?cap", name) and value}


def _windows(config: PreTrainedConfig, max_context: int | None) -> Iterator[SsccError]:
    """Yield windows of models whose config does not list its layers, and windows under other names. Another name may
    repeat the window of layers, as Gemma 2's `sliding_window_size` does."""
    window, types = getattr(config, "sliding_window", None), listed_layer_types(config)
    if window is not None and not types and getattr(config, "use_sliding_window", True):
        yield from _window(config, "sliding_window", 0)
    if max_context is None:
        return
    known = {"sliding_window", *(["window_size"] if {"local", "global"} & set(types) else [])}
    kept = getattr(config, "use_sliding_window", True) and (not types or SLIDING in types)
    parts = tuple(f"{name}." for name in model_parts(config))  # text runs none of them
    for name, value in _numbers(config):
        if name in known or name.startswith(parts) or (kept and value == window):
            continue
        if re.search(r"window(_size)?$", name) and 0 < value < max_context:
            yield AdmissionErrors.UNKNOWN_WINDOW(field=name, window=value, context=max_context)


def _rope(config: PreTrainedConfig) -> Iterator[SsccError]:
    """Yield unknown types of rotary embeddings, and length-dependent ones of unknown lengths."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if not isinstance(parameters, Mapping):
        raise AdmissionErrors.BAD_ROPE_PARAMETERS(model=config.model_type, value=repr(parameters))
    for values in rope_parameters(config):
        kind = values.get("rope_type", "default")
        if not isinstance(kind, str):
            raise AdmissionErrors.BAD_ROPE_TYPE(model=config.model_type, value=repr(kind))
        if kind == LONGROPE and type(first_length(config, values)) is not int:
            yield AdmissionErrors.LONGROPE_WITHOUT_LENGTH(field=ORIGINAL, value=first_length(config, values))
        elif kind not in (*STATIC_ROPE_TYPES, *LENGTH_DEPENDENT):
            yield AdmissionErrors.UNKNOWN_ROPE_TYPE(type=kind, known=sorted((*STATIC_ROPE_TYPES, *LENGTH_DEPENDENT)))


def _fields(config: PreTrainedConfig) -> Iterator[SsccError]:
    """Yield features that a single field of the config reveals, under any of the names in use."""
    if getattr(config, "attention_type", None) == "block_sparse":
        yield AdmissionErrors.BLOCK_SPARSE()
    keep = getattr(config, "keep_window_size", None)
    if keep is not None:
        yield AdmissionErrors.MASK_BY_VALUES(size=keep)
    for name, value in _numbers(config):
        if name in ("position_bias_num_buckets", "relative_attention_num_buckets"):
            yield AdmissionErrors.LEARNED_BIASES(field=name, value=value)
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk and CHUNKED not in listed_layer_types(config):
        yield AdmissionErrors.CHUNKED(size=chunk)


def _numbers(config: PreTrainedConfig) -> list[tuple[str, int | float]]:
    """Return every numeric field, including those of sub-configs (names joined by dots)."""

    def visit(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, int | float]]:
        for name, value in values.items():
            if isinstance(value, Mapping):
                yield from visit(value, f"{prefix}{name}.")
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                yield f"{prefix}{name}", value

    return list(visit(config.to_dict(), ""))
