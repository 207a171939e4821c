"""Attention over segments of rows: alone, and with the update of the cache that is the first one. Rows may be encoded;
they are decoded tile by tile.

Both walk the rows of all segments in tiles with a running softmax, in f32 (f64 where asked). Every tile has KEY_TILE
rows, the last one zero-padded, so results do not depend, bit for bit, on how many invalid rows follow the valid ones.
Query heads stand as [Hkv, G, ..]: head h = g * G + j reads KV head g.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sscc.ir.schedule import CachedAttention, DecodeAttention
from sscc.runtime.backends.reference.cache import check_rows, gathered, update_rows
from sscc.runtime.backends.reference.encoded_rows import as_stored, numbers
from sscc.runtime.backends.reference.interface import Interface
from sscc.runtime.backends.reference.operands import Members
from sscc.runtime.backends.reference.softmax import KEY_TILE, RunningSoftmax, Scoring, tiles
from sscc.runtime.backends.reference.views import MalformedKind


class ReferenceAttentionErrors(MalformedKind):
    DTYPES_DIFFER = "{step} reads rows of {param!r} ({dtype}) and of {other!r} ({other_dtype}): they need one dtype"

Fetch = Callable[[int, int], Tensor]
"""Rows begin .. end - 1 of all slots and KV heads of a segment: [B, Hkv, end - begin, ..], as they are stored."""


def check_dtypes(step: CachedAttention | DecodeAttention, interface: Interface) -> None:
    """The rows of all segments are of one dtype, and so are a cache and the copy of it that is read in its place."""
    keys, values = [segment.key for segment in step.segments], [segment.value for segment in step.segments]
    if isinstance(step, DecodeAttention):
        keys, values = [step.k_cache, step.key, *keys], [step.v_cache, step.value, *values]
    for first, *others in filter(all, (keys, values)):
        for name in others:
            if interface.params[name].dtype != interface.params[first].dtype:
                raise ReferenceAttentionErrors.DTYPES_DIFFER(
                    where=interface.where,
                    step=step.kind,
                    param=name,
                    dtype=interface.params[name].dtype,
                    other=first,
                    other_dtype=interface.params[first].dtype,
                )


def cached_attention_step(
    query: Tensor, segments: Members, out: Tensor, sink_logits: Tensor | None, *, scale: float, softcap: float | None,
    wide: torch.dtype,
) -> None:  # fmt: skip
    """The step `CachedAttention` (shapes there)."""
    rows, masks = [SegmentRows.of(segment) for segment in segments], [segment["valid"] for segment in segments]
    cached_attention(query, rows, masks, out, scoring=Scoring(scale, softcap, sink_logits), wide=wide)


def decode_attention_step(*, segments: Members, wide: torch.dtype, **others: Any) -> None:
    """The step `DecodeAttention` (shapes there)."""
    decode_attention(segments=[SegmentRows.of(segment) for segment in segments], wide=wide, **others)


def cached_attention(
    query: Tensor,
    segments: Sequence[SegmentRows],
    masks: Sequence[Tensor],
    out: Tensor,
    *,
    scoring: Scoring,
    wide: torch.dtype,
) -> None:
    """Attention over those rows of segments that masks name. Raises InputError where an index is beyond the rows."""
    rows = [segment.seen(mask) for segment, mask in zip(segments, masks, strict=True)]
    keys = [segment.keys for segment in rows]
    values = None if rows[0].value is None else [segment.values for segment in rows]
    out.copy_(_attend(query, rows[0].key.shape[1], keys, values, masks, out.shape[-1], scoring, wide))


def decode_attention(
    query: Tensor,
    new_key: Tensor,
    new_value: Tensor | None,
    key: Tensor,
    value: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    position: Tensor,
    prompt_len: Tensor,
    active: Tensor,
    out: Tensor,
    sink_logits: Tensor | None = None,
    *,
    segments: Sequence[SegmentRows] = (),
    sink: int,
    recent: int,
    scale: float,
    softcap: float | None = None,
    window_stride: int | None = None,
    wide: torch.dtype,
) -> None:
    """The step `DecodeAttention` (shapes there).

    Raises InputError where an active slot's row is not in the cache, or an index that is read beyond its rows.
    """
    row = torch.where(position < sink, position, sink + torch.remainder(position - sink, recent))
    check_rows(row[active], key.shape[2])
    new_key = as_stored(new_key, k_cache)
    counts = [key.shape[2], *(segment.count for segment in segments)]
    ring = (sink + recent, window_stride)
    masks = _valid(position, prompt_len, active, sum(counts), *ring).split(counts, 1)
    more = [segment.seen(mask) for segment, mask in zip(segments, masks[1:], strict=True)]
    keys = [rows_with(key, new_key, row, active), *(segment.keys for segment in more)]
    values = None
    if new_value is not None and value is not None and v_cache is not None:
        new_value = as_stored(new_value, v_cache)
        values = [rows_with(value, new_value, row, active), *(segment.values for segment in more)]
    scoring = Scoring(scale, softcap, sink_logits)
    out.copy_(_attend(query, key.shape[1], keys, values, masks, out.shape[-1], scoring, wide))
    update_rows(k_cache, new_key, row, active)
    if new_value is not None and v_cache is not None:
        update_rows(v_cache, new_value, row, active)


def _valid(
    position: Tensor, prompt_len: Tensor, active: Tensor, rows: int, sink_recent: int, stride: int | None
) -> Tensor:
    """Which rows each slot sees, [B, rows]: written sinks and ring rows, where there is a stride those of its chunk,
    and as many selected ones as its prompt has tokens beyond them; none if not active."""
    row = torch.arange(rows)
    newest = position if stride is None else torch.remainder(position, stride)
    written = row < (newest + 1).clamp(max=sink_recent)[:, None]
    selected = (row >= sink_recent) & (row < prompt_len[:, None])
    return (written | selected) & active[:, None]


# --------------------------------------------------------------------------------------------- tiles of rows


@dataclass(frozen=True)
class SegmentRows:
    """K [B, Hkv, T, D] and V of a segment, None where these are the first numbers of K, and which rows of them it is,
    [B, Hkv, R]: all where None."""

    key: Tensor
    value: Tensor | None
    index: Tensor | None

    @classmethod
    def of(cls, segment: Mapping[str, Tensor]) -> SegmentRows:
        """Of the operands of a step's segment."""
        return cls(segment["key"], segment.get("value"), segment.get("index"))

    @property
    def count(self) -> int:
        """R."""
        return self.key.shape[2] if self.index is None else self.index.shape[2]

    def seen(self, mask: Tensor) -> SegmentRows:
        """Without the rows that a slot does not see (`mask` [B, R]), so that these are not read: zeros instead."""
        index = torch.arange(self.count).expand(*self.key.shape[:2], -1) if self.index is None else self.index
        return replace(self, index=torch.where(mask[:, None], index, -1))

    @property
    def keys(self) -> Fetch:
        return self._of(self.key)

    @property
    def values(self) -> Fetch:
        assert self.value is not None
        return self._of(self.value)

    def _of(self, source: Tensor) -> Fetch:
        index = self.index
        if index is None:
            return lambda begin, end: source[:, :, begin:end]
        return lambda begin, end: gathered(source, index[:, :, begin:end])


def rows_with(source: Tensor, new: Tensor, row: Tensor, active: Tensor) -> Fetch:
    """The rows of `source`, with new[b, :, 0], stored as they are, in place of row[b] for every active slot b."""
    slots = active.nonzero()[:, 0]
    rows, fresh = row[slots], new[slots, :, 0]

    def fetch(begin: int, end: int) -> Tensor:
        block = source[:, :, begin:end].clone()
        here = (rows >= begin) & (rows < end)
        block[slots[here], :, rows[here] - begin] = fresh[here]
        return block

    return fetch


def _attend(
    query: Tensor,
    kv_heads: int,
    keys: Sequence[Fetch],
    values: Sequence[Fetch] | None,
    masks: Sequence[Tensor],
    width: int,
    scoring: Scoring,
    wide: torch.dtype,
) -> Tensor:
    """Queries [B, H, 1, D] over the rows of segments that masks [B, R] name; gives [B, H, 1, width], in the
    accumulation dtype. Without values these are the first numbers of keys."""
    counts, valid = [mask.shape[1] for mask in masks], torch.cat(list(masks), 1)
    queries = query.to(wide).reshape(query.shape[0], kv_heads, -1, query.shape[3])
    softmax = RunningSoftmax(tuple(queries.shape[:-1]), width, queries.dtype, scoring.sinks_of(kv_heads))
    for begin, end in tiles(valid.shape[1]):
        seen = pad(valid[:, begin:end], (0, KEY_TILE - (end - begin)))
        if not bool(seen.any()):
            continue
        key = _tile(keys, counts, begin, end, wide, query.shape[3])
        value = key[..., :width] if values is None else _tile(values, counts, begin, end, wide, width)
        scores = scoring.scores(queries @ key.transpose(-1, -2))
        softmax.add(scores.masked_fill(~seen[:, None, None, :], -torch.inf), value)
    return softmax.output().reshape(*query.shape[:3], width)


def _tile(
    segments: Sequence[Fetch], counts: Sequence[int], begin: int, end: int, wide: torch.dtype, dim: int
) -> Tensor:
    """Rows begin .. end - 1 of all segments as numbers, then zeros: [B, Hkv, KEY_TILE, dim]."""
    blocks, first = [], 0
    for fetch, count in zip(segments, counts, strict=True):
        low, high = (min(max(at - first, 0), count) for at in (begin, end))
        if low < high:
            blocks.append(numbers(fetch(low, high), dim).to(wide))
        first += count
    return pad(torch.cat(blocks, 2), (0, 0, 0, KEY_TILE - (end - begin)))
