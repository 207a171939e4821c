"""Attention over the rows of a compressed cache: alone, with the update of the cache, and with rows of the prompt
that an index names. Rows of a cache may be encoded; they are decoded tile by tile.

All walk the rows in tiles with a running softmax, in f32 (f64 where asked). Every tile has KEY_TILE rows, the
last one zero-padded, so results do not depend, bit for bit, on how many invalid rows follow the valid ones. Query
heads stand as [Hkv, G, ..]: head h = g * G + j reads KV head g.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from sscc.ir.schedule import CachedAttention, DecodeAttention, IndexedAttention
from sscc.runtime.backends.reference.cache import check_rows, gathered, update_rows
from sscc.runtime.backends.reference.encoded_rows import as_stored, check_alike, numbers
from sscc.runtime.backends.reference.interface import Bind, Fire, Interface, Views
from sscc.runtime.backends.reference.softmax import KEY_TILE, RunningSoftmax, check_groups, tiles

Tile = Callable[[int, int], Tensor]
"""Rows begin .. end - 1 of all slots and KV heads, then zeros: [B, Hkv, KEY_TILE, D] in the accumulation dtype."""


def compile_cached_attention(step: CachedAttention, interface: Interface) -> Bind:
    sizes = interface.match(step)
    check_groups(sizes, interface)
    wide = interface.numerics.accumulate

    def bind(views: Views) -> Fire:
        operands = [views[name] for name in (step.query, step.key, step.value, step.valid, step.out)]
        return lambda _: cached_attention(*operands, scale=step.scale, wide=wide)

    return bind


def cached_attention(
    query: Tensor, key: Tensor, value: Tensor, valid: Tensor, out: Tensor, *, scale: float, wide: torch.dtype
) -> None:
    """The step `CachedAttention` (shapes there)."""
    queries = _grouped(query, key.shape[1], wide)
    out.copy_(_attend(queries, _rows(key, wide), _rows(value, wide), out.shape[-1], valid, scale).reshape(out.shape))


def compile_decode_attention(step: DecodeAttention, interface: Interface) -> Bind:
    sizes = interface.match(step)
    check_groups(sizes, interface)
    if step.sink < 0 or step.recent < 1 or step.sink + step.recent > sizes["R"]:
        interface.refuse(f"it has sink {step.sink} and recent {step.recent} in a cache of {sizes['R']} rows")
    _check_copies(step, interface)
    check_alike(step.kind, interface, step.k_cache, step.v_cache)
    wide = interface.numerics.accumulate
    rows = (step.query, step.new_key, step.new_value, step.key, step.value, step.k_cache, step.v_cache)
    names = (*rows, step.position, step.prompt_len, step.active, step.out)

    def bind(views: Views) -> Fire:
        operands = [views[name] for name in names]
        return lambda _: decode_attention(*operands, sink=step.sink, recent=step.recent, scale=step.scale, wide=wide)

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
    sink: int,
    recent: int,
    scale: float,
    wide: torch.dtype,
) -> None:
    """The step `DecodeAttention` (shapes there). Raises InputError where an active slot's row is not in the cache."""
    row = torch.where(position < sink, position, sink + torch.remainder(position - sink, recent))
    check_rows(row[active], key.shape[2])
    new_key, new_value = as_stored(new_key, k_cache), as_stored(new_value, v_cache)
    keys, values = _rows_with(key, new_key, row, active, wide), _rows_with(value, new_value, row, active, wide)
    valid = _valid(position, prompt_len, active, key.shape[2], sink + recent)
    queries = _grouped(query, key.shape[1], wide)
    out.copy_(_attend(queries, keys, values, out.shape[-1], valid, scale).reshape(out.shape))
    update_rows(k_cache, new_key, row, active)
    update_rows(v_cache, new_value, row, active)


def compile_indexed_attention(step: IndexedAttention, interface: Interface) -> Bind:
    sizes = interface.match(step)
    check_groups(sizes, interface)
    if step.sink < 0 or step.recent < 1 or step.sink + step.recent != sizes["SR"]:
        interface.refuse(f"it has sink {step.sink} and recent {step.recent} for a cache of {sizes['SR']} rows")
    _check_copies(step, interface)
    for prompt, cache in ((step.k_prompt, step.k_cache), (step.v_prompt, step.v_cache)):
        if interface.param(prompt).dtype != interface.param(cache).dtype:
            interface.refuse(f"indexed_attention reads rows of {prompt!r} and of {cache!r}, which has another dtype")
    wide = interface.numerics.accumulate
    rows = (step.query, step.new_key, step.new_value, step.key, step.value, step.k_cache, step.v_cache)
    prompts = (step.k_prompt, step.v_prompt, step.selected)
    names = (*rows, *prompts, step.position, step.prompt_len, step.active, step.out)

    def bind(views: Views) -> Fire:
        operands = [views[name] for name in names]
        return lambda _: indexed_attention(*operands, sink=step.sink, recent=step.recent, scale=step.scale, wide=wide)

    return bind


def indexed_attention(
    query: Tensor,
    new_key: Tensor,
    new_value: Tensor,
    key: Tensor,
    value: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_prompt: Tensor,
    v_prompt: Tensor,
    selected: Tensor,
    position: Tensor,
    prompt_len: Tensor,
    active: Tensor,
    out: Tensor,
    *,
    sink: int,
    recent: int,
    scale: float,
    wide: torch.dtype,
) -> None:
    """The step `IndexedAttention` (shapes there).

    Raises InputError where an active slot's row is not in the cache, or an index that is read beyond the prompt.
    """
    row = torch.where(position < sink, position, sink + torch.remainder(position - sink, recent))
    check_rows(row[active], key.shape[2])
    new_key, new_value = as_stored(new_key, k_cache), as_stored(new_value, v_cache)
    read = (torch.arange(selected.shape[2]) < (prompt_len - sink - recent)[:, None]) & active[:, None]
    selected = torch.where(read[:, None], selected, -1)  # what no query sees is not read
    keys = _rows_then(_rows_with(key, new_key, row, active, wide), key.shape[2], k_prompt, selected)
    values = _rows_then(_rows_with(value, new_value, row, active, wide), value.shape[2], v_prompt, selected)
    valid = _valid(position, prompt_len, active, key.shape[2] + selected.shape[2], sink + recent)
    queries = _grouped(query, key.shape[1], wide)
    out.copy_(_attend(queries, keys, values, out.shape[-1], valid, scale).reshape(out.shape))
    update_rows(k_cache, new_key, row, active)
    update_rows(v_cache, new_value, row, active)


def _check_copies(step: DecodeAttention | IndexedAttention, interface: Interface) -> None:
    for copy, cache in ((step.key, step.k_cache), (step.value, step.v_cache)):
        if interface.param(copy).dtype != interface.param(cache).dtype:
            interface.refuse(f"{step.kind} reads {copy!r} in place of {cache!r}, which has another dtype")


def _valid(position: Tensor, prompt_len: Tensor, active: Tensor, rows: int, sink_recent: int) -> Tensor:
    """Which rows each slot sees, [B, rows]: written sinks and ring rows, and as many selected ones as its prompt has
    tokens beyond them; none if not active."""
    row = torch.arange(rows)
    written = row < (position + 1).clamp(max=sink_recent)[:, None]
    selected = (row >= sink_recent) & (row < prompt_len[:, None])
    return (written | selected) & active[:, None]


# --------------------------------------------------------------------------------------------- tiles of rows


def _grouped(query: Tensor, kv_heads: int, wide: torch.dtype) -> Tensor:
    """[B, H, 1, D] as [B, Hkv, G, D] in the accumulation dtype."""
    return query.to(wide).reshape(query.shape[0], kv_heads, -1, query.shape[3])


def _rows(source: Tensor, wide: torch.dtype) -> Tile:
    def tile(begin: int, end: int) -> Tensor:
        rows = numbers(source[:, :, begin:end])
        slots, kv_heads, _, depth = rows.shape
        padded = torch.zeros(slots, kv_heads, KEY_TILE, depth, dtype=wide)
        padded[:, :, : end - begin] = rows
        return padded

    return tile


def _rows_with(source: Tensor, new: Tensor, row: Tensor, active: Tensor, wide: torch.dtype) -> Tile:
    """The rows of `source`, with new[b, :, 0], of its dtype, in place of row[b] for every active slot b."""
    slots = active.nonzero()[:, 0]
    rows, fresh = row[slots], numbers(new[slots, :, 0]).to(wide)
    plain = _rows(source, wide)

    def tile(begin: int, end: int) -> Tensor:
        padded = plain(begin, end)
        here = (rows >= begin) & (rows < end)
        padded[slots[here], :, rows[here] - begin] = fresh[here]
        return padded

    return tile


def _rows_then(cache: Tile, count: int, prompt: Tensor, selected: Tensor) -> Tile:
    """The first `count` rows as `cache` gives them, then those of `prompt` that `selected` [B, Hkv, topk] names."""

    def tile(begin: int, end: int) -> Tensor:
        padded = cache(min(begin, count), min(end, count))
        if end > count:
            first = max(begin, count)
            padded[:, :, first - begin : end - begin] = gathered(prompt, selected[:, :, first - count : end - count])
        return padded

    return tile


def _attend(queries: Tensor, keys: Tile, values: Tile, width: int, valid: Tensor, scale: float) -> Tensor:
    """Queries [B, Hkv, G, D] over the valid rows; gives [B, Hkv, G, width]."""
    softmax = RunningSoftmax(tuple(queries.shape[:-1]), width, queries.dtype)
    for begin, end in tiles(valid.shape[1]):
        seen = pad(valid[:, begin:end], (0, KEY_TILE - (end - begin)))
        if not bool(seen.any()):
            continue
        scores = (queries @ keys(begin, end).transpose(-1, -2)) * scale
        softmax.add(scores.masked_fill(~seen[:, None, None, :], -torch.inf), values(begin, end))
    return softmax.output()
