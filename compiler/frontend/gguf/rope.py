"""The rotary embedding of a GGUF file as transformers' `rope_parameters`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sscc.compiler.frontend.gguf.family import Family
from sscc.compiler.frontend.gguf.model_metadata import Metadata

FREQUENCIES = "rope_freqs.weight"
FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")
TENSORS = (FREQUENCIES, *FACTORS)
"""Tensors that are not parameters: they divide the frequencies."""
DEFAULT_BASE = 10000.0
STILL = 1e29
"""Factors of at least this size stop a rotation. The converter writes 1e30."""
DEEPSEEK_LOG = 0.1
"""Factor of the logarithm in DeepSeek's files, by which the converter multiplies."""


def rope_fields(metadata: Metadata, family: Family, head_dim: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config that describe its rotary embedding.

    Args:
        head_dim: numbers of a head that may be rotated.
        values: the config's other fields.

    Raises:
        InputError, UnsupportedError: metadata that cannot be, or would be dropped.
    """
    base = float(metadata.number("rope.freq_base", DEFAULT_BASE))
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    if family.extra.get("rotated in part"):
        rope |= _in_part(metadata)
    else:
        rope |= _scaling(metadata, family, values) | family.extra.get("rope", {})
    rotated = metadata.number("rope.dimension_count", head_dim)
    if family.partial:
        rope["partial_rotary_factor"] = rotated / head_dim
    elif rotated != head_dim:
        raise metadata.not_honoured(metadata.name("rope.dimension_count"), rotated)
    near = float(metadata.number("rope.freq_base_swa", family.near_base or base))
    if family.two_ropes:
        return {"rope_parameters": {
            "full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": near}
        }}  # fmt: skip
    if near != base:
        raise metadata.not_honoured(metadata.name("rope.freq_base_swa"), near)
    original = "original_max_position_embeddings"
    own = {original: rope[original]} if original in rope and family.extra.get("original length") else {}
    return {"rope_parameters": rope, **own}


def _in_part(metadata: Metadata) -> dict[str, Any]:
    """Return the fraction of a head that is rotated: the frequencies that are divided by 1, and not by a number so
    large that nothing is rotated."""
    factors = metadata.factors(FREQUENCIES)
    count = sum(factor == 1.0 for factor in factors)
    if any(factor != 1.0 for factor in factors[:count]) or any(factor < STILL for factor in factors[count:]):
        raise metadata.not_honoured(FREQUENCIES, factors)
    return {"rope_type": "proportional", "partial_rotary_factor": count / len(factors)}


def _scaling(metadata: Metadata, family: Family, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scaling of frequencies: factors of single ones, or a method."""
    kind = metadata.get("rope.scaling.type")
    kind = "none" if kind is None else kind
    if not isinstance(kind, str):
        raise metadata.bad("rope.scaling.type", kind, "a text")
    length = metadata.number("rope.scaling.original_context_length") or values.get("max_position_embeddings")
    attention = metadata.number("rope.scaling.attn_factor")
    if FACTORS[0] in metadata.header.tensors:
        long, short = map(metadata.factors, FACTORS)
        rope: dict[str, Any] = {"rope_type": "longrope", "long_factor": long, "short_factor": short}
        rope["original_max_position_embeddings"] = length
        return rope | ({} if attention is None else {"attention_factor": attention})
    if FREQUENCIES in metadata.header.tensors:
        factors = metadata.factors(FREQUENCIES)
        if any(factor != 1.0 for factor in factors):
            rope = {"rope_type": "longrope", "long_factor": factors, "short_factor": factors}
            return rope | {"original_max_position_embeddings": length, "attention_factor": 1.0, "factor": 1.0}
    if kind == "linear":
        return {"rope_type": "linear", "factor": float(metadata.number("rope.scaling.factor", 1.0))}
    if kind == "yarn":
        return _yarn(metadata, family) | {"original_max_position_embeddings": length}
    if kind not in ("", "none", "longrope"):
        raise metadata.not_honoured(metadata.name("rope.scaling.type"), kind)
    return {"original_max_position_embeddings": length} if family.extra.get("original length") else {}


def _yarn(metadata: Metadata, family: Family) -> dict[str, Any]:
    """Return the parameters of YaRN (arXiv 2309.00071)."""
    rope: dict[str, Any] = {"rope_type": "yarn", "factor": float(metadata.number("rope.scaling.factor", 1.0))}
    names = {"yarn_attn_factor": "attention_factor", "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
    found = {name: metadata.number(f"rope.scaling.{key}") for key, name in names.items()}
    rope |= {name: float(value) for name, value in found.items() if value is not None}
    multiplier = metadata.number("rope.scaling.yarn_log_multiplier")
    if multiplier:
        all_dims = multiplier / DEEPSEEK_LOG if family.extra.get("log multiplied") else multiplier
        rope |= {"mscale": all_dims, "mscale_all_dim": all_dims}
    temperature = metadata.number("attention.temperature_scale")
    return rope | ({"llama_4_scaling_beta": temperature} if temperature else {})
