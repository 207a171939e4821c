"""Steps of a prefill chunk: attention over the prompt so far, and the queries that are kept for selection.

Attention walks the keys in tiles with a running softmax, in f32 (f64 where asked). Query heads stand as
[Hkv, G * C, ..]: head h = g * G + j reads KV head g.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sscc.ir.errors import InputError
from sscc.ir.schedule import CausalAttention, ChunkAttention, Observe
from sscc.runtime.backends.reference.encoded_rows import as_stored, check_alike, numbers
from sscc.runtime.backends.reference.interface import Bind, Fire, Interface, Views
from sscc.runtime.backends.reference.softmax import RunningSoftmax, check_groups, tiles


def compile_causal_attention(step: CausalAttention, interface: Interface) -> Bind:
    sizes = interface.match(step)
    check_groups(sizes, interface)
    check_alike(step.kind, interface, step.key, step.value)
    start, wide = interface.scalar(step.start), interface.numerics.accumulate

    def bind(views: Views) -> Fire:
        operands = [views[name] for name in (step.query, step.key, step.value, step.out)]
        sums = views[step.log_sum_exp] if step.log_sum_exp else None
        return lambda scalars: causal_attention(
            *operands, log_sum_exp=sums, start=scalars[start], scale=step.scale, window=step.window, wide=wide
        )

    return bind


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    *,
    log_sum_exp: Tensor | None,
    start: int,
    scale: float,
    window: int,
    wide: torch.dtype,
) -> None:
    """The step `CausalAttention` (shapes there). Reads key rows 0 .. start + C - 1, no other.

    Raises InputError where start + C exceeds the rows that exist.
    """
    _check_chunk(start, query.shape[2], key.shape[2])
    softmax = _attend(query, key, value, out.shape[-1], start, scale, window, wide)
    out.copy_(softmax.output().reshape(out.shape))
    if log_sum_exp is not None:
        log_sum_exp.copy_(softmax.log_sum_exp().reshape(log_sum_exp.shape))


def compile_observe(step: Observe, interface: Interface) -> Bind:
    interface.match(step)
    start, length = interface.scalar(step.start), interface.scalar(step.length)

    def bind(views: Views) -> Fire:
        observed, query = views[step.observed], views[step.query]
        return lambda scalars: observe(observed, query, start=scalars[start], length=scalars[length])

    return bind


def observe(observed: Tensor, rows: Tensor, *, start: int, length: int) -> None:
    """The step `Observe` (shapes there), for rows of any kind: [1, H, C, ..] into [1, H, obs, ..]."""
    window = observed.shape[2]
    shift = start - max(length - window, 0)  # row i belongs in row i + shift
    first = max(0, -shift)
    last = min(rows.shape[2], min(window, length) - shift)
    if first < last:
        observed[:, :, first + shift : last + shift] = rows[:, :, first:last]


def compile_chunk_attention(step: ChunkAttention, interface: Interface) -> Bind:
    sizes = interface.match(step)
    check_groups(sizes, interface)
    check_alike(step.kind, interface, step.k_scratch, step.v_scratch)
    start, length, wide = interface.scalar(step.start), interface.scalar(step.length), interface.numerics.accumulate
    names = (step.query, step.new_key, step.new_value, step.k_scratch, step.v_scratch, step.observed)

    def bind(views: Views) -> Fire:
        operands = [views[name] for name in (*names, step.log_sum_exp, step.out)]
        return lambda scalars: chunk_attention(
            *operands, start=scalars[start], length=scalars[length], scale=step.scale, window=step.window, wide=wide
        )

    return bind


def chunk_attention(
    query: Tensor,
    new_key: Tensor,
    new_value: Tensor,
    k_scratch: Tensor,
    v_scratch: Tensor,
    observed: Tensor,
    log_sum_exp: Tensor,
    out: Tensor,
    *,
    start: int,
    length: int,
    scale: float,
    window: int,
    wide: torch.dtype,
) -> None:
    """The step `ChunkAttention` (shapes there); rows of `out` that are padding keep their bytes.

    Raises InputError where start + C exceeds the rows of the scratch.
    """
    _check_chunk(start, query.shape[2], k_scratch.shape[2])
    live = max(0, min(query.shape[2], length - start))
    if live == 0:
        return
    query = query[:, :, :live]
    k_scratch[:, :, start : start + live] = as_stored(new_key[:, :, :live], k_scratch)
    v_scratch[:, :, start : start + live] = as_stored(new_value[:, :, :live], v_scratch)
    softmax = _attend(query, k_scratch, v_scratch, out.shape[-1], start, scale, window, wide)
    out[:, :, :live] = softmax.output().reshape(*query.shape[:3], -1)
    observe(observed, query, start=start, length=length)
    observe(log_sum_exp, softmax.log_sum_exp().reshape(query.shape[:3]), start=start, length=length)


def _check_chunk(start: int, chunk: int, rows: int) -> None:
    if start < 0 or start + chunk > rows:
        raise InputError(f"causal attention from row {start} needs {start + chunk} key rows, there are {rows}")


def _attend(
    query: Tensor, key: Tensor, value: Tensor, width: int, start: int, scale: float, window: int, wide: torch.dtype
) -> RunningSoftmax:
    """The softmax of queries [Hkv, G * C, D] over key rows 0 .. start + C - 1, each up to its own position, and where
    there is a window over the last `window` of these. `width` numbers are in a row of `value`."""
    _, heads, chunk, depth = query.shape
    kv_heads = key.shape[1]
    queries = query[0].to(wide).reshape(kv_heads, -1, depth)
    softmax = RunningSoftmax(tuple(queries.shape[:-1]), width, wide)
    positions = torch.arange(start, start + chunk).repeat(heads // kv_heads)[:, None]
    reached = max(start - window + 1, 0) if window else 0
    for begin, end in tiles(start + chunk):
        if end <= reached:
            continue
        begin = max(begin, reached)
        scores = (queries @ numbers(key[0, :, begin:end], depth).to(wide).transpose(-1, -2)) * scale
        if end > start + 1:  # some query of the chunk must not see the end of this tile
            scores.masked_fill_(torch.arange(begin, end) > positions, -torch.inf)
        if window:
            scores.masked_fill_(torch.arange(begin, end) <= positions - window, -torch.inf)
        softmax.add(scores, numbers(value[0, :, begin:end], width).to(wide))
    return softmax
