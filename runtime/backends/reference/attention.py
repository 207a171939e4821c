"""Attention over segments of rows, alone or together with the update of the cache in the first segment. Rows may be
encoded; they are decoded tile by tile.

Both visit the rows of all segments in tiles with a running softmax, in f32 (f64 on request). Every tile has KEY_TILE
rows, the last one zero-padded, so results are the same, bit for bit, however many invalid rows follow the valid ones.
Query heads are laid out as [Hkv, G, ..]: head h = g * G + j reads KV head g.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sscc.ir.operations import CachedAttention, DecodeAttention
from sscc.ir.opspec import executes
from sscc.runtime.backends.reference.encoded_rows import as_stored, numbers
from sscc.runtime.backends.reference.interface import Interface
from sscc.runtime.backends.reference.kv_cache import ReferenceCacheErrors, check_rows, gathered, update_rows
from sscc.runtime.backends.reference.operands import Members, checked_by
from sscc.runtime.backends.reference.softmax import KEY_TILE, RunningSoftmax, Scoring, tiles
from sscc.runtime.backends.reference.views import MalformedKind


class ReferenceAttentionErrors(MalformedKind):
    DTYPES_DIFFER = (
        "{step} reads rows of {param!r} ({dtype}) and {other!r} ({other_dtype}), but they need the same dtype"
    )

Fetch = Callable[[int, int], Tensor]
"""Rows begin .. end - 1 of all slots and KV heads of a segment: [B, Hkv, end - begin, ..], in their stored form."""


def check_dtypes(step: CachedAttention | DecodeAttention, interface: Interface) -> None:
    """Check that the rows of all segments have one dtype, and so do a cache and the copy that is read in its place."""
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


@executes(CachedAttention)
@checked_by(check_dtypes)
def cached_attention_step(
    query: Tensor, segments: Members, out: Tensor, sink_logits: Tensor | None, *, scale: float, softcap: float | None,
    wide: torch.dtype,
) -> None:  # fmt: skip
    """Execute the step `CachedAttention` (see it for shapes)."""
    rows, masks = [SegmentRows.of(segment) for segment in segments], [segment["valid"] for segment in segments]
    cached_attention(query, rows, masks, out, scoring=Scoring(scale, softcap, sink_logits), wide=wide)


@executes(DecodeAttention)
@checked_by(check_dtypes)
def decode_attention_step(
    *, segments: Members, position: Tensor, base: Tensor, active: Tensor, key: Tensor, topk: int, sink: int,
    recent: int, window_stride: int | None, spare: int, wide: torch.dtype, **others: Any,
) -> None:  # fmt: skip
    """Execute the step `DecodeAttention` (see it for shapes)."""
    most = key.shape[2] - sink - recent - spare
    if not 0 <= topk <= most:
        raise ReferenceCacheErrors.TOO_MANY(topk=topk, most=most)
    row = ring_row(position, base, sink, topk, recent + spare)
    seen = cache_seen(position, base, active, row, key.shape[2], sink, topk, recent, spare, window_stride)
    selected = [InPlace(SegmentRows.of(segment), slice(sink, sink + segment["index"].shape[2])) for segment in segments]
    decode_attention(
        key=key, position=position, active=active, row=row, masks=[seen], selected=selected, wide=wide, **others
    )


def ring_row(position: Tensor, base: Tensor, sink: int, topk: int, recent: int) -> Tensor:
    """Return the row of each slot's position [B], where rings begin at `base` [B]."""
    first = base.clamp(sink, sink + topk)
    ring = sink + topk + recent - first
    return torch.where(position < first, position, first + torch.remainder(position - first, ring))


def cache_seen(
    position: Tensor, base: Tensor, active: Tensor, row: Tensor, rows: int, sink: int, topk: int, recent: int,
    spare: int, window_stride: int | None = None,
) -> Tensor:  # fmt: skip
    """Return a mask [Q, rows] of the rows of a cache that each token sees (`sscc.ir.operations.Validity`).

    Args:
        row: [Q], row of each token (`ring_row`).
        rows: number of rows of the cache.
    """
    first, end = base.clamp(sink, sink + topk), sink + topk + recent
    newest = position - first if window_stride is None else torch.remainder(position, window_stride)
    number = torch.arange(rows)
    return ring_seen(number, position, row, first, (newest + 1).minimum(end - first), end + spare) & active[:, None]


def rows_seen(written: Tensor, active: Tensor, end: int, rows: int) -> Tensor:
    """Return a mask [B, rows] of the rows that each slot sees: the first `written` [B] rows that lie before `end`; none
    if the slot is not active."""
    return (torch.arange(rows) < written.clamp(max=end)[:, None]) & active[:, None]


def ring_seen(
    number: Tensor, position: Tensor, row: Tensor, base: Tensor, newest: Tensor, end: int
) -> Tensor:
    """Return a mask [B, R] of the rows that the query of each slot sees: those before its ring as far as they are
    written, and in the ring those of the newest positions.

    Args:
        number: [R], numbers of the rows.
        position: [B], position of each query.
        row: [B], row of that position.
        base: [B], first row of each ring, which ends before row `end`.
        newest: [B], number of positions that a query sees in the ring.
    """
    age = torch.remainder(row[:, None] - number, (end - base)[:, None])
    in_ring = (number >= base[:, None]) & (number < end) & (age < newest[:, None])
    return (number < base.minimum(position + 1)[:, None]) | in_ring


def cached_attention(
    query: Tensor,
    segments: Sequence[SegmentRows],
    masks: Sequence[Tensor],
    out: Tensor,
    *,
    scoring: Scoring,
    wide: torch.dtype,
) -> None:
    """Compute attention over the rows of segments where masks are true. Raises InputError if an index is beyond the
    rows."""
    for own in each_token(query, segments[0].key):
        seen = [mask[own] for mask in masks]
        rows = [segment.of_tokens(own, len(query)).seen(mask) for segment, mask in zip(segments, seen, strict=True)]
        keys = [segment.keys for segment in rows]
        values = None if rows[0].value is None else [segment.values for segment in rows]
        out[own] = _attend(query[own], rows[0].key.shape[1], keys, values, seen, out.shape[-1], scoring, wide)


def each_token(query: Tensor, cache: Tensor) -> Iterator[slice]:
    """Yield, for the first, second, .. token of each slot, the tokens [Q] of a step over a cache of B slots."""
    count = len(query) // len(cache)
    return (slice(token, None, count) for token in range(count))


def decode_attention(
    query: Tensor,
    new_key: Tensor,
    new_value: Tensor | None,
    key: Tensor,
    value: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    position: Tensor,
    active: Tensor,
    out: Tensor,
    sink_logits: Tensor | None = None,
    *,
    row: Tensor,
    masks: Sequence[Tensor],
    behind: Sequence[SegmentRows] = (),
    selected: Sequence[InPlace] = (),
    scale: float,
    softcap: float | None = None,
    wide: torch.dtype,
) -> None:
    """Compute attention over a cache with a new row, then write the row to the cache.

    Args:
        row: [B], row of the cache that the new row takes.
        masks: for the rows of the cache and for those behind it, whether each slot sees them.
        behind: rows that follow those of the cache.
        selected: rows that replace some rows of the cache.

    Raises InputError if the row of an active slot is not in the cache, or an index that is read is beyond its rows.
    """
    check_rows(row[active], key.shape[2])
    new_key = as_stored(new_key, k_cache)
    if new_value is not None and v_cache is not None:
        new_value = as_stored(new_value, v_cache)
    scoring = Scoring(scale, softcap, sink_logits)
    for own in each_token(query, key):
        seen = [mask[own] for mask in masks]
        more = [s.of_tokens(own, len(query)).seen(mask) for s, mask in zip(behind, seen[1:], strict=True)]
        there = [part.seen(seen[0]) for part in selected]
        keys = [_replaced(rows_with(key, new_key, row, active), [(part, part.rows.key) for part in there])]
        keys += [segment.keys for segment in more]
        values = None
        if new_value is not None and value is not None:
            sources = [(part, part.rows.value) for part in there if part.rows.value is not None]
            values = [_replaced(rows_with(value, new_value, row, active), sources)]
            values += [segment.values for segment in more]
        out[own] = _attend(query[own], key.shape[1], keys, values, seen, out.shape[-1], scoring, wide)
    update_rows(k_cache, new_key, row, active)
    if new_value is not None and v_cache is not None:
        update_rows(v_cache, new_value, row, active)


# --------------------------------------------------------------------------------------------- tiles of rows


@dataclass(frozen=True)
class SegmentRows:
    """K [B, Hkv, T, D] and V of a segment, V being None if its rows are the first numbers of K, and an index [B, Hkv,
    R] of the rows that are used; None for all."""

    key: Tensor
    value: Tensor | None
    index: Tensor | None

    @classmethod
    def of(cls, segment: Mapping[str, Tensor]) -> SegmentRows:
        """Return the rows of the operands of one segment of a step."""
        return cls(segment["key"], segment.get("value"), segment.get("index"))

    @property
    def count(self) -> int:
        """Return R."""
        return self.key.shape[2] if self.index is None else self.index.shape[2]

    def of_tokens(self, own: slice, tokens: int) -> SegmentRows:
        """Return the segment with the index of one token of each slot, if each of all `tokens` has its own."""
        if self.index is None or len(self.index) != tokens:
            return self
        return replace(self, index=self.index[own])

    def seen(self, mask: Tensor) -> SegmentRows:
        """Mark rows that a slot does not see (`mask` [B, R]), so that they are not read: they become zeros."""
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


@dataclass(frozen=True)
class InPlace:
    """Rows by an index [B, Hkv, K] that replace rows of a cache where the index is not negative."""

    rows: SegmentRows
    place: slice

    def seen(self, mask: Tensor) -> InPlace:
        """Mark rows that a slot does not see (`mask` [B, R], over the rows of the cache), so that they are not read."""
        assert self.rows.index is not None
        count = self.place.stop - self.place.start
        index = torch.where(mask[:, None, self.place], self.rows.index[..., :count], -1)
        return replace(self, rows=replace(self.rows, index=index))


def _replaced(cache: Fetch, sources: Sequence[tuple[InPlace, Tensor]]) -> Fetch:
    """Return the rows of a cache, some of them replaced by rows of sources."""

    def fetch(begin: int, end: int) -> Tensor:
        block = cache(begin, end)
        for part, source in sources:
            first, last = max(begin, part.place.start), min(end, part.place.stop)
            if first < last and part.rows.index is not None:
                index = part.rows.index[:, :, first - part.place.start : last - part.place.start]
                where = slice(first - begin, last - begin)
                block[:, :, where] = torch.where(index[..., None] < 0, block[:, :, where], gathered(source, index))
        return block

    return fetch if sources else cache


def rows_with(source: Tensor, new: Tensor, row: Tensor, active: Tensor) -> Fetch:
    """Return the rows of `source` with new[q, :, 0], in its stored form, as row[q] of the slot of each active token."""
    tokens = active.nonzero()[:, 0]
    slots, rows, fresh = tokens // (len(new) // len(source)), row[tokens], new[tokens, :, 0]

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
    """Return [B, H, 1, width], the attention of queries [B, H, 1, D] to the rows of segments where masks [B, R] are
    true, in the accumulation dtype. Without `values`, values are the first numbers of keys."""
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
    """Return rows begin .. end - 1 of all segments as numbers, then zeros: [B, Hkv, KEY_TILE, dim]."""
    blocks, first = [], 0
    for fetch, count in zip(segments, counts, strict=True):
        low, high = (min(max(at - first, 0), count) for at in (begin, end))
        if low < high:
            blocks.append(numbers(fetch(low, high), dim).to(wide))
        first += count
    return pad(torch.cat(blocks, 2), (0, 0, 0, KEY_TILE - (end - begin)))
