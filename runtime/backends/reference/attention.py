"""Attention over segments of rows: alone, and with the update of the cache that is the first one. Rows may be encoded;
they are decoded tile by tile.

Both walk the rows of all segments in tiles with a running softmax, in f32 (f64 where asked). Every tile has KEY_TILE
rows, the last one zero-padded, so results do not depend, bit for bit, on how many invalid rows follow the valid ones.
Query heads stand as [Hkv, G, ..]: head h = g * G + j reads KV head g.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from sscc.ir.schedule import CachedAttention, DecodeAttention, MoreRows, Segment
from sscc.runtime.backends.reference.cache import check_rows, gathered, update_rows
from sscc.runtime.backends.reference.encoded_rows import as_stored, check_alike, numbers
from sscc.runtime.backends.reference.interface import Bind, Fire, Interface, Views
from sscc.runtime.backends.reference.softmax import KEY_TILE, RunningSoftmax, check_groups, tiles

Fetch = Callable[[int, int], Tensor]
"""Rows begin .. end - 1 of all slots and KV heads of a segment: [B, Hkv, end - begin, ..], as they are stored."""


def compile_cached_attention(step: CachedAttention, interface: Interface) -> Bind:
    if not step.segments:
        interface.refuse(f"{step.kind} has no segment")
    sizes = interface.match(step)
    check_groups(sizes, interface)
    _check_segments(step, step.segments, interface)
    wide = interface.numerics.accumulate

    def bind(views: Views) -> Fire:
        query, out = views[step.query], views[step.out]
        segments = [_bound(segment, views) for segment in step.segments]
        masks = [views[segment.valid] for segment in step.segments]
        return lambda _: cached_attention(query, segments, masks, out, scale=step.scale, wide=wide)

    return bind


def cached_attention(
    query: Tensor,
    segments: Sequence[SegmentRows],
    masks: Sequence[Tensor],
    out: Tensor,
    *,
    scale: float,
    wide: torch.dtype,
) -> None:
    """The step `CachedAttention` (shapes there). Raises InputError where an index of a valid row is beyond its rows."""
    rows = [segment.seen(mask) for segment, mask in zip(segments, masks, strict=True)]
    keys, values = [segment.keys for segment in rows], [segment.values for segment in rows]
    out.copy_(_attend(query, rows[0].key.shape[1], keys, values, masks, out.shape[-1], scale, wide))


def compile_decode_attention(step: DecodeAttention, interface: Interface) -> Bind:
    sizes = interface.match(step)
    check_groups(sizes, interface)
    if step.sink < 0 or step.recent < 1 or step.sink + step.recent > sizes["R"]:
        interface.refuse(f"it has sink {step.sink} and recent {step.recent} in a cache of {sizes['R']} rows")
    for copy, cache in ((step.key, step.k_cache), (step.value, step.v_cache)):
        if interface.param(copy).dtype != interface.param(cache).dtype:
            interface.refuse(f"{step.kind} reads {copy!r} in place of {cache!r}, which has another dtype")
    check_alike(step.kind, interface, step.k_cache, step.v_cache)
    _check_segments(step, (step, *step.segments), interface)
    wide = interface.numerics.accumulate
    rows = (step.query, step.new_key, step.new_value, step.key, step.value, step.k_cache, step.v_cache)
    names = (*rows, step.position, step.prompt_len, step.active, step.out)

    def bind(views: Views) -> Fire:
        operands = [views[name] for name in names]
        segments = [_bound(segment, views) for segment in step.segments]
        return lambda _: decode_attention(
            *operands, segments=segments, sink=step.sink, recent=step.recent, scale=step.scale, wide=wide
        )

    return bind


def decode_attention(
    query: Tensor,
    new_key: Tensor,
    new_value: Tensor,
    key: Tensor,
    value: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    position: Tensor,
    prompt_len: Tensor,
    active: Tensor,
    out: Tensor,
    *,
    segments: Sequence[SegmentRows] = (),
    sink: int,
    recent: int,
    scale: float,
    wide: torch.dtype,
) -> None:
    """The step `DecodeAttention` (shapes there).

    Raises InputError where an active slot's row is not in the cache, or an index that is read beyond its rows.
    """
    row = torch.where(position < sink, position, sink + torch.remainder(position - sink, recent))
    check_rows(row[active], key.shape[2])
    new_key, new_value = as_stored(new_key, k_cache), as_stored(new_value, v_cache)
    counts = [key.shape[2], *(segment.count for segment in segments)]
    masks = _valid(position, prompt_len, active, sum(counts), sink + recent).split(counts, 1)
    more = [segment.seen(mask) for segment, mask in zip(segments, masks[1:], strict=True)]
    keys = [rows_with(key, new_key, row, active), *(segment.keys for segment in more)]
    values = [rows_with(value, new_value, row, active), *(segment.values for segment in more)]
    out.copy_(_attend(query, key.shape[1], keys, values, masks, out.shape[-1], scale, wide))
    update_rows(k_cache, new_key, row, active)
    update_rows(v_cache, new_value, row, active)


def _check_segments(
    step: CachedAttention | DecodeAttention,
    segments: Sequence[Segment | MoreRows | DecodeAttention],
    interface: Interface,
) -> None:
    for side in ([segment.key for segment in segments], [segment.value for segment in segments]):
        for name in side[1:]:
            if interface.param(name).dtype != interface.param(side[0]).dtype:
                interface.refuse(f"{step.kind} reads rows of {name!r} and of {side[0]!r}, which has another dtype")


def _valid(position: Tensor, prompt_len: Tensor, active: Tensor, rows: int, sink_recent: int) -> Tensor:
    """Which rows each slot sees, [B, rows]: written sinks and ring rows, and as many selected ones as its prompt has
    tokens beyond them; none if not active."""
    row = torch.arange(rows)
    written = row < (position + 1).clamp(max=sink_recent)[:, None]
    selected = (row >= sink_recent) & (row < prompt_len[:, None])
    return (written | selected) & active[:, None]


# --------------------------------------------------------------------------------------------- tiles of rows


@dataclass(frozen=True)
class SegmentRows:
    """K [B, Hkv, T, D] and V of a segment, and which rows of them it is, [B, Hkv, R]: all where None."""

    key: Tensor
    value: Tensor
    index: Tensor | None

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
        return self._of(self.value)

    def _of(self, source: Tensor) -> Fetch:
        index = self.index
        if index is None:
            return lambda begin, end: source[:, :, begin:end]
        return lambda begin, end: gathered(source, index[:, :, begin:end])


def _bound(segment: Segment | MoreRows, views: Views) -> SegmentRows:
    return SegmentRows(views[segment.key], views[segment.value], views[segment.index] if segment.index else None)


def rows_with(source: Tensor, new: Tensor, row: Tensor, active: Tensor) -> Fetch:
    """The rows of `source`, with new[b, :, 0], stored as they are, in place of row[b] for every active slot b."""
    slots = active.nonzero()[:, 0]
    rows, fresh = row[slots], new[slots, :, 0]

    def fetch(begin: int, end: int) -> Tensor:
        found = source[:, :, begin:end].clone()
        here = (rows >= begin) & (rows < end)
        found[slots[here], :, rows[here] - begin] = fresh[here]
        return found

    return fetch


def _attend(
    query: Tensor,
    kv_heads: int,
    keys: Sequence[Fetch],
    values: Sequence[Fetch],
    masks: Sequence[Tensor],
    width: int,
    scale: float,
    wide: torch.dtype,
) -> Tensor:
    """Queries [B, H, 1, D] over the rows of segments that masks [B, R] name; gives [B, H, 1, width], in the
    accumulation dtype."""
    counts, valid = [mask.shape[1] for mask in masks], torch.cat(list(masks), 1)
    queries = query.to(wide).reshape(query.shape[0], kv_heads, -1, query.shape[3])
    softmax = RunningSoftmax(tuple(queries.shape[:-1]), width, queries.dtype)
    for begin, end in tiles(valid.shape[1]):
        seen = pad(valid[:, begin:end], (0, KEY_TILE - (end - begin)))
        if not bool(seen.any()):
            continue
        key, value = (
            _tile(side, counts, begin, end, wide, dim) for side, dim in ((keys, query.shape[3]), (values, width))
        )
        scores = (queries @ key.transpose(-1, -2)) * scale
        softmax.add(scores.masked_fill(~seen[:, None, None, :], -torch.inf), value)
    return softmax.output().reshape(*query.shape[:3], width)


def _tile(
    segments: Sequence[Fetch], counts: Sequence[int], begin: int, end: int, wide: torch.dtype, dim: int
) -> Tensor:
    """Rows begin .. end - 1 of all segments as numbers, then zeros: [B, Hkv, KEY_TILE, dim]."""
    found, first = [], 0
    for fetch, count in zip(segments, counts, strict=True):
        low, high = (min(max(at - first, 0), count) for at in (begin, end))
        if low < high:
            found.append(numbers(fetch(low, high), dim).to(wide))
        first += count
    return pad(torch.cat(found, 2), (0, 0, 0, KEY_TILE - (end - begin)))
