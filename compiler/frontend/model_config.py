"""A model's config, from what lies in a checkpoint to transformers' class, without ever asking a hub.

Nothing here calls `from_pretrained`: a config is a dictionary, its class comes from transformers' own table, and code
that travels with a checkpoint (`auto_map`) is never run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from sscc.ir.errors import InputError, UnsupportedError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; InputError if it is missing, not JSON or not an object."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    return parse_json(data, str(path))


def parse_json(data: bytes, origin: str) -> dict[str, Any]:
    """The JSON object in `data`, which came from `origin`."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON
        raise InputError(f"{origin} is not readable JSON: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{origin} holds a JSON {type(values).__name__}, it must hold an object")
    return values


def read_config(path: Path) -> PreTrainedConfig:
    """The config in a `config.json`."""
    return config_from_dict(read_json(path), str(path))


def config_from_dict(values: Mapping[str, Any], origin: str) -> PreTrainedConfig:
    """Builds transformers' config for a Hugging Face config dictionary.

    Args:
        values: what a `config.json` holds.
        origin: where it came from, for messages.

    Raises:
        InputError: no `model_type`, or a field that transformers refuses.
        UnsupportedError: an architecture transformers does not know, an encoder-decoder, or a quantized checkpoint.
    """
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise InputError(f"{origin} has no model_type: it is not the config of a Hugging Face model")
    if model_type not in CONFIG_MAPPING:
        custom = " (its own code, named in auto_map, is never run)" if "auto_map" in values else ""
        raise UnsupportedError(
            f"{origin}: architecture {model_type!r} is not known to transformers {transformers.__version__}{custom}: "
            f"export the model yourself and bring the .pt2"
        )
    try:
        config: PreTrainedConfig = CONFIG_MAPPING[model_type].from_dict(_decoded(dict(values)))
    except Exception as error:  # transformers raises many kinds, all of them about a field of this file
        raise InputError(f"{origin} is not a valid {model_type} config: {_first_line(error)}") from error
    _refuse_foreign_forms(config, origin)
    return config


def config_to_dict(config: PreTrainedConfig) -> dict[str, Any]:
    """The config as plain data, without the two fields that say where and when it was read."""
    values: dict[str, Any] = config.to_dict()
    for name in ("transformers_version", "_name_or_path"):
        values.pop(name, None)
    return values


def config_bytes(config: PreTrainedConfig) -> bytes:
    """Canonical bytes of a config: equal for equal configs, whatever file they came from."""
    return json.dumps(config_to_dict(config), sort_keys=True, default=str).encode()


def token_ids(value: object, origin: str) -> tuple[int, ...]:
    """A token id, a list of them or nothing, as a tuple."""
    values = value if isinstance(value, (list, tuple)) else () if value is None else (value,)
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in values):
        raise InputError(f"{origin}: eos_token_id is {value!r}, it must be a token id or a list of them")
    return tuple(values)


def _decoded(values: dict[str, Any]) -> dict[str, Any]:
    """Undoes transformers' spelling of infinities and NaN in JSON ({"__float__": "Infinity"})."""

    def visit(item: Any) -> Any:
        if isinstance(item, dict):
            if set(item) == {"__float__"}:
                return float(item["__float__"])
            return {key: visit(value) for key, value in item.items()}
        return [visit(value) for value in item] if isinstance(item, list) else item

    return {key: visit(value) for key, value in values.items()}


def _refuse_foreign_forms(config: PreTrainedConfig, origin: str) -> None:
    if config.is_encoder_decoder:
        raise UnsupportedError(f"{origin}: {config.model_type} is an encoder-decoder, only decoder-only models compile")
    quantization = getattr(config, "quantization_config", None)
    if not quantization:
        return
    fields = quantization if isinstance(quantization, dict) else vars(quantization)
    method = fields.get("quant_method") or "unknown method"
    raise UnsupportedError(
        f"{origin}: the weights are quantized ({method}): dequantize them to f32, f16 or bf16 and remove "
        f"quantization_config"
    )


def _first_line(error: BaseException) -> str:
    """The whole message on one line, at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__
