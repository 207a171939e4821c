"""Rotary frequencies that depend on the length of the text, fixed for a program at those of its longest text.

transformers selects such frequencies in every call, by the longest position: longrope (arXiv 2402.13753) has long
factors beyond the original context length, and dynamic NTK scaling a base that grows with the text beyond
`max_position_embeddings`. A program caches rotated keys and cannot rotate them again when the text grows. So it uses
the frequencies of a text that fills its context, for texts of any length.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

DYNAMIC, LONGROPE = LENGTH_DEPENDENT = ("dynamic", "longrope")
ORIGINAL = "original_max_position_embeddings"


def rope_parameters(config: PreTrainedConfig) -> list[Mapping[str, Any]]:
    """Return the parameters of rotary embeddings: one for all layers, or one for each type of layer."""
    values = getattr(config, "rope_parameters", None) or {}
    if not isinstance(values, Mapping):
        return []
    nested = all(isinstance(value, Mapping) for value in values.values())
    return list(values.values()) if nested else [values]


def first_length(config: PreTrainedConfig, values: Mapping[str, Any]) -> Any:
    """Return the length up to which these parameters give the frequencies of short texts; None if no config states it,
    or if frequencies do not depend on the length."""
    kind = values.get("rope_type")
    if kind == DYNAMIC:
        return getattr(config, "max_position_embeddings", None)
    return (values.get(ORIGINAL) or getattr(config, ORIGINAL, None)) if kind == LONGROPE else None


def stretched(config: PreTrainedConfig, context: int) -> dict[str, int]:
    """Return the types of rotary embedding for which a program of this context uses long-text frequencies for shorter
    texts too, each with the length up to which the model itself uses others."""
    return {
        values["rope_type"]: length
        for values in rope_parameters(config)
        if type(length := first_length(config, values)) is int and context > length
    }


def with_first_length(config: PreTrainedConfig, length: int) -> PreTrainedConfig:
    """Return the config with long-text frequencies beyond `length` positions."""
    shortened = copy.deepcopy(config)
    kinds = {values.get("rope_type") for values in rope_parameters(config)}
    if DYNAMIC in kinds:
        shortened.max_position_embeddings = length
    for values in rope_parameters(shortened) if LONGROPE in kinds else []:
        if values.get("rope_type") == LONGROPE:
            values[ORIGINAL] = length  # type: ignore[index]
            if getattr(shortened, ORIGINAL, None) is not None:
                setattr(shortened, ORIGINAL, length)
    return shortened


Changed = list[tuple[torch.nn.Module, dict[str, Any], dict[str, Any]]]
"""Changed modules, with their previous attributes and buffers."""


def fix_frequencies(model: torch.nn.Module, length: int) -> Changed:
    """Set the rotary embeddings of a model of transformers permanently to the frequencies of a text of `length` tokens.

    Returns:
        The previous values of the changed attributes and buffers.
    """
    changed: Changed = []
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        kinds_of = kinds if isinstance(kinds, Mapping) else {None: kinds}
        depending = {layer: kind for layer, kind in kinds_of.items() if kind in LENGTH_DEPENDENT}
        if not depending:
            continue
        changed.append((module, {"rope_type": kinds}, dict(module._buffers)))
        for layer, kind in depending.items():
            name = "inv_freq" if layer is None else f"{layer}_inv_freq"
            frequencies, _ = ROPE_INIT_FUNCTIONS[kind](module.config, "cpu", seq_len=length, layer_type=layer)
            module._buffers[name] = frequencies
        fixed = {layer: "default" if layer in depending else kind for layer, kind in kinds_of.items()}
        vars(module)["rope_type"] = fixed if isinstance(kinds, Mapping) else "default"
    return changed


@contextmanager
def fixed_frequencies(model: torch.nn.Module, length: int) -> Iterator[None]:
    """Set the frequencies to those of a text of `length` tokens inside the block, and restore them afterwards."""
    changed = fix_frequencies(model, length)
    try:
        yield
    finally:
        for module, attributes, buffers in changed:
            vars(module).update(attributes)
            module._buffers.update(buffers)
