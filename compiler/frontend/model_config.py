"""A model's config, from a checkpoint's file to transformers' class, without access to a hub.

Nothing here calls `from_pretrained`: a config is a dictionary, its class comes from transformers' own table, and code
that comes with a checkpoint (`auto_map`) is never run.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import transformers
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    MODEL_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from sscc.compiler.frontend.headless import headed_class
from sscc.compiler.frontend.quantization_config import check_quantization
from sscc.compiler.frontend.quiet import one_line, quiet_libraries
from sscc.compiler.options.warning import SsccWarning, warn
from sscc.ir.errors import ErrorKind, InputError, UnsupportedError, UsageError, quoted
from sscc.ir.suggestions import similar_file
from sscc.runtime.artifact.writer import is_artifact

MAX_DEPTH = 64  # levels of a JSON file; real ones have fewer than ten
MAX_ITEMS = 1 << 20  # items of one level; a pickled dictionary may even contain itself
MAX_LAYERS = 1024
MAX_TOKEN = 1 << 31
# Older names of fields that every config class takes, and fields that are no part of a model.
_FIELDS_OF_ANY_CONFIG = frozenset(
    {"auto_map", "model_type", "quantization_config", "rope_scaling", "rope_theta", "torch_dtype"}
)
CHUNKED = "chunked_attention"
LAYER_COUNTS = re.compile(r"(^|_)(n|num|encoder|decoder|hidden|mtp|nextn|dense)_?\w*(layers?|blocks)$|^depth$")
LAYER_LISTS = ("layer_types", "block_types", "layers_block_type", "attention_layers", "attn_layers")
# Names that configs have used for the maximum number of tokens of a text.
CONTEXT_FIELDS = ("max_position_embeddings", "max_seq_len", "max_target_positions", "model_max_length")
_STATES_END = "_states_eos_token_id"
"""Attribute of a config: True if its file has an `eos_token_id`. The class's default is meaningless."""


class ModelConfigErrors(ErrorKind):
    NO_FILE = InputError, "{path} does not exist{hint}"
    NOT_READABLE = InputError, "{path} cannot be read: {reason}"
    NOT_JSON = InputError, "{origin} is not readable JSON: {cause}"
    NOT_AN_OBJECT = InputError, "{origin} must hold a JSON object, got a JSON {type}"
    TOO_DEEP = InputError, "{origin} is nested deeper than {depth} levels, or holds over {items} items"
    TOO_MANY_LAYERS = InputError, "{origin}: {field} must be at most {most}, got {layers:.6g}"
    ARTIFACT = (
        UsageError,
        "{path} is a compiled artifact, not a model: give the checkpoint from which it was compiled. `sscc run "
        "{path}` runs the artifact, `sscc inspect {path}` shows it",
    )
    NO_MODEL_TYPE = InputError, "{origin} has no model_type: it is not the config of a Hugging Face model"
    NOT_VALID = InputError, "{origin} is not a valid {model} config: {cause}"
    UNKNOWN_ARCHITECTURE = (
        UnsupportedError,
        "{origin}: transformers {version} does not know the architecture {model!r}{hint}: export the model yourself "
        "and give the .pt2",
    )
    BAD_LAYER_TYPES = InputError, "{model}: {field} must be a list of words, one per layer, got {value!r:.80}"
    BAD_TOKENS = InputError, "{origin}: {field} must be a token id or a list of token ids, got {value!r:.80}"
    ENCODER_DECODER = (
        UnsupportedError,
        "{origin}: {model} is an encoder-decoder (is_encoder_decoder = True), only decoder-only models compile",
    )


class ModelConfigWarnings(ErrorKind):
    COMPILED_AS = (
        SsccWarning,
        "{origin}: transformers {version} does not know the model_type {model!r}: it is compiled as {known}, because "
        "its architectures name the class {name}{custom_hint}{lost_hint}",
    )


def refuse_artifact(path: Path) -> None:
    """Refuse an artifact, or a file of one, in place of a model. Raises UsageError."""
    folder = path if path.is_dir() else path.parent
    named = path.is_dir() or path.suffix == ".json"
    if named and not (folder / "config.json").is_file() and is_artifact(folder):
        raise ModelConfigErrors.ARTIFACT(path=folder)


def read_json(path: Path, *, unique: bool = False) -> dict[str, Any]:
    """Return the JSON object in `path`. Raise InputError if it is missing, not JSON, not an object, or, with `unique`,
    has a duplicate name."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelConfigErrors.NO_FILE(path=path, hint=similar_file(path)) from error
    except OSError as error:
        raise ModelConfigErrors.NOT_READABLE(path=path, reason=error.strerror) from error
    return parse_json(data, str(path), unique=unique)


def parse_json(data: bytes, origin: str, *, unique: bool = False) -> dict[str, Any]:
    """Return the JSON object in `data`, which came from `origin`."""
    try:
        values = json.loads(data, object_pairs_hook=_unique if unique else None)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON
        raise ModelConfigErrors.NOT_JSON(origin=origin, cause=quoted(error)) from error
    if not isinstance(values, dict):
        raise ModelConfigErrors.NOT_AN_OBJECT(origin=origin, type=type(values).__name__)
    _check_depth(values, origin)
    return values


def _unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(items)
    if len(values) < len(items):
        twice = next(name for name, count in Counter(name for name, _ in items).items() if count > 1)
        raise ValueError(f"{twice!r} is in it twice")
    return values


def _check_depth(values: object, origin: str) -> None:
    """Refuse values nested so deeply that a reader, such as transformers, would overflow its stack."""
    level: list[object] = [values]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH or len(level) > MAX_ITEMS:
            raise ModelConfigErrors.TOO_DEEP(origin=origin, depth=MAX_DEPTH, items=MAX_ITEMS)
        level = [inner for item in level for inner in _items(item)]


def _items(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _check_layers(values: Mapping[str, Any], origin: str) -> None:
    """Refuse numbers of layers that no model has: transformers' configs create a list with an entry per layer."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            _check_layers(value, origin)
        elif not isinstance(name, str) or not LAYER_COUNTS.search(name):
            continue
        elif isinstance(value, (int, float)) and value > MAX_LAYERS:
            raise ModelConfigErrors.TOO_MANY_LAYERS(origin=origin, field=name, layers=value, most=MAX_LAYERS)


def read_config(path: Path) -> PreTrainedConfig:
    """Return the config in a `config.json`."""
    return config_from_dict(read_json(path), str(path))


def config_from_dict(values: Mapping[str, Any], origin: str) -> PreTrainedConfig:
    """Return transformers' config for a Hugging Face config dictionary.

    Args:
        values: contents of a `config.json`.
        origin: its source, for messages.

    Raises:
        InputError: no `model_type`, or a field that transformers refuses.
        UnsupportedError: an architecture that transformers does not know, an encoder-decoder, or weights quantized in
            an unsupported way.
    """
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ModelConfigErrors.NO_MODEL_TYPE(origin=origin)
    if model_type not in CONFIG_MAPPING:
        model_type = _type_by_class(values, model_type, origin)
        values = {**values, "model_type": model_type}
    _check_depth(values, origin)
    _check_layers(values, origin)
    try:
        json.dumps(values)
        with quiet_libraries():
            config: PreTrainedConfig = CONFIG_MAPPING[model_type].from_dict(_decoded(dict(values)))
    except Exception as error:  # transformers raises many types, all of them about a field of this file
        raise ModelConfigErrors.NOT_VALID(origin=origin, model=model_type, cause=one_line(error)) from error
    _refuse_foreign_forms(config, origin)
    _note_stated_end(config, values)
    return config


def _note_stated_end(config: PreTrainedConfig, values: Mapping[str, Any]) -> None:
    """Record, in a config and its sub-configs, which of them state the end token of a text."""
    setattr(config, _STATES_END, values.get("eos_token_id") is not None)
    for name in config.sub_configs:
        inner, part = getattr(config, name, None), values.get(name)
        if isinstance(inner, PreTrainedConfig):
            _note_stated_end(inner, part if isinstance(part, Mapping) else {})


def states_end(config: PreTrainedConfig) -> bool:
    """Return True if the file of a config has an `eos_token_id` that is not null."""
    return bool(getattr(config, _STATES_END, False))


def _type_by_class(values: Mapping[str, Any], model_type: str, origin: str) -> str:
    """Return the type of the class that `architectures` names, for a type that transformers does not know: a checkpoint
    may give another type name to a model whose class transformers has, as Kimi-K2 does with DeepSeek-V3. A warning
    reports this, with the fields that the class lacks.

    Raises:
        UnsupportedError: transformers has no causal language model of that name.
    """
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    types = [known for known, listed in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if name == listed]
    custom = " (its own code, named in auto_map, is never run)" if "auto_map" in values else ""
    version = transformers.__version__
    if not types:
        raise ModelConfigErrors.UNKNOWN_ARCHITECTURE(origin=origin, version=version, model=model_type, hint=custom)
    config_class: type[PreTrainedConfig] = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[types[0]]].config_class
    known = {*inspect.signature(config_class).parameters, *_FIELDS_OF_ANY_CONFIG}
    lost = sorted(name for name in values if isinstance(name, str) and name not in known)
    warn(
        ModelConfigWarnings.COMPILED_AS(
            origin=origin,
            version=version,
            model=model_type,
            known=config_class.model_type,
            name=name,
            custom_hint=custom,
            lost_hint=f"; fields that this class does not have: {', '.join(lost)}" if lost else "",
        )
    )
    return str(config_class.model_type)


def causal_class(config: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """Return transformers' class of causal language models for a config; None if it has none.

    The config of a text decoder inside a composite model may have a class that transformers lists only for the whole
    (Emu3's), or a model to which the whole adds the head (Qwen2.5-VL's, see `headless`).
    """
    listed = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if listed is None:
        package = type(config).__module__.rpartition(".")[0].rpartition(".")[2]
        model_types = [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if model_type_to_module_name(name) == package]
        classes = [MODEL_FOR_CAUSAL_LM_MAPPING.get(CONFIG_MAPPING[name], None) for name in model_types]
        listed = next((cls for cls in classes if getattr(cls, "config_class", None) is type(config)), None)
    cls: type[PreTrainedModel] | None = listed[0] if isinstance(listed, tuple) else listed
    return headed_class(config) if cls is None else cls


def composite_class(config: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """Return transformers' class of the composite model with this config; None if it has none."""
    for mapping in (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING, MODEL_MAPPING):
        cls = mapping.get(type(config), None)
        if isinstance(cls, type):
            return cls
    return None


def model_parts(config: PreTrainedConfig) -> list[str]:
    """Return the fields of a config that hold configs of whole models."""
    return [name for name in config.sub_configs if hasattr(getattr(config, name, None), "num_hidden_layers")]


def reads_a_backbone(config: PreTrainedConfig) -> bool:
    """Return True if a model continues the hidden states of another one, as drafting heads do."""
    return getattr(config, "backbone_hidden_size", None) is not None


def text_decoder(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the config of the text decoder inside a composite model (such as vision and language); `config` itself if
    it is not that of a composite model, or transformers cannot build the text decoder alone."""
    text = getattr(config, "text_config", None)
    if text is None or "text_config" not in model_parts(config) or causal_class(text) is None:
        return config
    if reads_a_backbone(config):
        return config
    text = deepcopy(text)
    text.tie_word_embeddings = getattr(config, "tie_word_embeddings", False)  # decided by the whole
    text.dtype = text.dtype or config.dtype
    decoder: PreTrainedConfig = text
    return decoder


def layer_types_field(config: PreTrainedConfig) -> str:
    """Return the field of the config with the type of each layer; "" if there is none."""
    return next((name for name in LAYER_LISTS if getattr(config, name, None)), "")


def listed_layer_types(config: PreTrainedConfig) -> list[str]:
    """Return the types of layers in the config; empty if it has none. Raises InputError if the field is not a list of
    words."""
    name = layer_types_field(config)
    types = getattr(config, name) if name else []
    if not isinstance(types, (list, tuple)) or not all(isinstance(kind, str) for kind in types):
        raise ModelConfigErrors.BAD_LAYER_TYPES(model=config.model_type, field=name, value=types)
    return list(types)


def attention_chunk(config: PreTrainedConfig | None, layer: int) -> Any:
    """Return the chunk size of a layer's attention according to the config; None for layers without chunked attention.
    """
    types = [] if config is None else listed_layer_types(config)
    chunked = layer < len(types) and types[layer] == CHUNKED
    return getattr(config, "attention_chunk_size", None) or 0 if chunked else None


def config_to_dict(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the config as plain data, without the fields about where, when and how it was read, and how weights are
    stored."""
    values: dict[str, Any] = _without_notes(config.to_dict())
    for name in ("transformers_version", "_name_or_path", "quantization_config"):
        values.pop(name, None)
    return values


def file_form(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the config in the form of a file, from which `config_from_dict` reads an equal one: without end tokens
    that the original file did not state."""
    return _with_stated_ends(config_to_dict(config), config)


def _with_stated_ends(values: dict[str, Any], config: PreTrainedConfig) -> dict[str, Any]:
    kept = {name: value for name, value in values.items() if name != "eos_token_id" or states_end(config)}
    for name in config.sub_configs:
        inner = getattr(config, name, None)
        if isinstance(inner, PreTrainedConfig) and isinstance(kept.get(name), dict):
            kept[name] = _with_stated_ends(kept[name], inner)
    return kept


def _without_notes(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    return {name: _without_notes(value) for name, value in values.items() if name != _STATES_END}


def config_bytes(config: PreTrainedConfig) -> bytes:
    """Return canonical bytes of a config: equal for equal configs, whatever file they came from."""
    return json.dumps(config_to_dict(config), sort_keys=True, default=str).encode()


def token_ids(value: object, origin: str, field: str = "eos_token_id") -> tuple[int, ...]:
    """Return a token id, a list of them or nothing, as a tuple."""
    values = value if isinstance(value, (list, tuple)) else () if value is None else (value,)
    if not all(type(item) is int and 0 <= item < MAX_TOKEN for item in values):
        raise ModelConfigErrors.BAD_TOKENS(origin=origin, field=field, value=value)
    return tuple(values)


def _decoded(values: dict[str, Any]) -> dict[str, Any]:
    """Undo transformers' JSON form of infinities and NaN ({"__float__": "Infinity"})."""

    def visit(item: Any) -> Any:
        if isinstance(item, dict):
            if set(item) == {"__float__"}:
                return float(item["__float__"])
            return {key: visit(value) for key, value in item.items()}
        return [visit(value) for value in item] if isinstance(item, list) else item

    return {key: visit(value) for key, value in values.items()}


def _refuse_foreign_forms(config: PreTrainedConfig, origin: str) -> None:
    if config.is_encoder_decoder:
        raise ModelConfigErrors.ENCODER_DECODER(origin=origin, model=config.model_type)
    quantization = quantization_of(config)
    if quantization:
        check_quantization(quantization, origin)


def quantization_of(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the fields of `quantization_config`; empty for unquantized weights."""
    quantization: dict[str, Any] = getattr(config, "quantization_config", None) or {}
    return quantization


def model_context(config: PreTrainedConfig) -> int | None:
    """Return the longest text that the model supports, in tokens; None if its config does not state it."""
    values = (getattr(config, name, None) for name in CONTEXT_FIELDS)
    return next((value for value in values if type(value) is int and value > 0), None)
