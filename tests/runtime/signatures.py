"""Signatures of programs whose layers all keep alike."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sscc.ir.cache_plan import CachePlan, LayerGroup
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.row_streams import Stream
from sscc.runtime.artifact.signature import Signature


def uniform(
    geometry: Geometry,
    batch: int,
    prefill_chunk: int,
    dtype: str,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int,
    vocab_size: int,
    eos_token_ids: tuple[int, ...] = (),
) -> Signature:
    """A signature of one group of layers."""
    streams = (Stream("k", head_dim), Stream("v", value_dim))
    group = LayerGroup("", tuple(range(layers)), geometry, heads, kv_heads, streams)
    return Signature(geometry, batch, prefill_chunk, dtype, vocab_size, CachePlan((group,)), eos_token_ids)


def altered(signature: Signature, **changes: Any) -> Signature:
    """`signature`, of one group, with other arguments of `uniform`."""
    group = signature.plan.main
    widths = {"head_dim": group.streams[0].width, "value_dim": group.streams[1].width}
    before = {"heads": group.heads, "kv_heads": group.kv_heads, "layers": signature.layers, **widths}
    kept = {field.name: getattr(signature, field.name) for field in fields(signature) if field.name != "plan"}
    return uniform(**{**kept, **before, **changes})


def row_bytes(signature: Signature) -> int:
    """Bytes of one row of K and V in all layers and heads."""
    return signature.layers * signature.rows(signature.plan.main).row_bytes
