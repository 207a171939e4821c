"""Rotary frequencies that depend on how long the text is: fixed, for a program, at those of its longest one.

transformers chooses such frequencies in every call, by the longest position it sees: longrope (arXiv 2402.13753) has
long factors beyond the positions that it was first trained for, and dynamic NTK scaling a base that grows with the text
beyond `max_position_embeddings`. A program keeps keys that carry their rotation, and cannot rotate them again when the
text grows. So its frequencies are those of a text that fills its context, whatever the length of the text at hand.
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
    """The parameters of rotary embeddings: one for all layers, or one for each kind of them."""
    values = getattr(config, "rope_parameters", None) or {}
    if not isinstance(values, Mapping):
        return []
    nested = all(isinstance(value, Mapping) for value in values.values())
    return list(values.values()) if nested else [values]


def first_length(config: PreTrainedConfig, values: Mapping[str, Any]) -> Any:
    """Up to how many positions the frequencies of these parameters are those of short texts; None where no config
    says it, or where they do not depend on the length."""
    kind = values.get("rope_type")
    if kind == DYNAMIC:
        return getattr(config, "max_position_embeddings", None)
    return (values.get(ORIGINAL) or getattr(config, ORIGINAL, None)) if kind == LONGROPE else None


def stretched(config: PreTrainedConfig, context: int) -> dict[str, int]:
    """Return the types of rotary embedding whose frequencies a program of this context also has for shorter texts, with
    the length of a text within which the model itself has others."""
    return {
        values["rope_type"]: length
        for values in rope_parameters(config)
        if type(length := first_length(config, values)) is int and context > length
    }


def with_first_length(config: PreTrainedConfig, length: int) -> PreTrainedConfig:
    """The config with frequencies that are those of long texts beyond `length` positions."""
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
"""Modules, and attributes and buffers as they were."""


def fix_frequencies(model: torch.nn.Module, length: int) -> Changed:
    """Gives rotary embeddings of a model of transformers the frequencies of a text of `length` tokens, for ever.

    Returns:
        What was changed.
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
    """Inside the block the model has the frequencies of a text of `length` tokens, afterwards its own again."""
    changed = fix_frequencies(model, length)
    try:
        yield
    finally:
        for module, attributes, buffers in changed:
            vars(module).update(attributes)
            module._buffers.update(buffers)
