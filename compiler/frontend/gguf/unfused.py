"""Splitting of tensors that a converter may have joined: queries, keys and values, and the gates of experts."""

from __future__ import annotations

import dataclasses
import re

from sscc.compiler.frontend.gguf.family import Family
from sscc.compiler.frontend.gguf.header import GgufHeader, StoredTensor
from sscc.compiler.frontend.gguf.model_metadata import PLAIN_TYPES, Metadata
from sscc.ir.errors import ErrorKind, InputError

FUSED = re.compile(r"blk\.(\d+)\.(attn_qkv|ffn_gate_up_exps)\.(weight|bias)")
PARTS = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps")}

GATED_QUERIES = "gated queries"
"""Value of `Family.extra`: a query projection has a gate for each number, and layers without attention have an
`attn_qkv` too."""


class GgufFusedErrors(ErrorKind):
    """Joined tensors that cannot be split."""

    ROWS = InputError, "{path}: tensor {tensor!r} of shape {shape} does not divide into rows as {parts}"
    TWICE = InputError, "{path} holds both the tensor {tensor!r} and its part {part!r}"


def unfused(header: GgufHeader, family: Family) -> GgufHeader:
    """Return a header in which tensors are split as the family has them. The parts are rows of the stored tensors, not
    copies.

    Raises:
        InputError: rows that cannot be divided, or a tensor that is present both ways.
    """
    tensors: dict[str, StoredTensor] = {}
    whole = {*family.tensors, *(part.rpartition(".")[0] for parts in family.joined.values() for part in parts)}
    for name, tensor in header.tensors.items():
        match = FUSED.fullmatch(name)
        if match is None or (f"blk.*.{match[2]}" in whole and not _attends(header, family, match[1])):
            tensors[name] = tensor
            continue
        parts = [f"blk.{match[1]}.{part}.{match[3]}" for part in PARTS[match[2]]]
        for part in parts:
            if part in header.tensors:
                raise GgufFusedErrors.TWICE(path=header.path, tensor=name, part=part)
        sizes = _shares(header, family, int(match[1]), len(parts))
        axis = -1 if match[3] == "bias" else -2
        rows = tensor.shape[axis] if len(tensor.shape) >= -axis else 0
        plain = axis == -2 or tensor.type in PLAIN_TYPES
        if not rows or not all(sizes) or rows % sum(sizes) or not plain or (axis == -1 and len(tensor.shape) > 1):
            raise GgufFusedErrors.ROWS(path=header.path, tensor=name, shape=str(list(tensor.shape)), parts=sizes)
        first, unit = 0, rows // sum(sizes)
        for part, size in zip(parts, sizes, strict=True):
            tensors[part] = tensor.part(part, first, size * unit)
            first += size * unit
    return dataclasses.replace(header, tensors=tensors)


def _attends(header: GgufHeader, family: Family, layer: str) -> bool:
    """Return True for a layer that attends in a family whose other layers have the same joined tensor as theirs."""
    return GATED_QUERIES in family.extra and f"blk.{layer}.ssm_a" not in header.tensors


def _shares(header: GgufHeader, family: Family, layer: int, parts: int) -> tuple[int, ...]:
    """Return the share of each part: heads, queries twice where they have gates, and equal ones of gates of experts."""
    if parts == 2:
        return 1, 1
    metadata = Metadata(header)
    heads = metadata.of_layers("attention.head_count") or [1]
    kv_heads = metadata.of_layers("attention.head_count_kv") or heads
    count, kv_count = (numbers[layer] if layer < len(numbers) else numbers[0] for numbers in (heads, kv_heads))
    count, kv_count = (number if type(number) is int else 0 for number in (count, kv_count))
    return count * (2 if GATED_QUERIES in family.extra else 1), kv_count, kv_count
