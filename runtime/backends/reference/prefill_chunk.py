"""Steps of a prefill chunk: attention to the prompt so far, and the queries that are kept for the selection.

Attention visits keys in tiles with a running softmax, in f32 (f64 on request). Query heads are laid out as
[Hkv, G * C, ..]: head h = g * G + j reads KV head g.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sscc.ir import operations
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.geometry import Span
from sscc.ir.opspec import executes
from sscc.runtime.backends.reference.encoded_rows import as_stored, numbers
from sscc.runtime.backends.reference.softmax import RunningSoftmax, Scoring, tiles


class ReferencePromptErrors(ErrorKind):
    TOO_FEW_ROWS = InputError, "causal attention from row {start} needs {needed} key rows, but there are {rows}"


@executes(operations.CausalAttention)
def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sink_logits: Tensor | None = None,
    *,
    log_sum_exp: Tensor | None,
    start: int,
    length: int,
    scale: float,
    window: int,
    softcap: float | None = None,
    window_stride: int | None = None,
    wide: torch.dtype,
) -> None:
    """Execute the step `CausalAttention` (see it for shapes). Reads only key rows 0 .. min(start + C, length) - 1;
    padding rows of `out` and `log_sum_exp` keep their bytes.

    Raises InputError if start + C exceeds the number of rows.
    """
    live = _live(query, key, start, length)
    if live == 0:
        return
    query = query[:, :, :live]
    sides = (key, query.shape[3]), (value, out.shape[3])

    def rows(begin: int, end: int) -> tuple[Tensor, ...]:
        return tuple(numbers(side[0, :, begin:end], dim).to(wide) for side, dim in sides)

    scoring, sees = Scoring(scale, softcap, sink_logits), Span(window, window_stride or 1)
    softmax = _attend(query, key.shape[1], rows, out.shape[-1], start, scoring, sees, wide)
    out[:, :, :live] = softmax.output().reshape(*query.shape[:3], -1)
    if log_sum_exp is not None:
        log_sum_exp[:, :, :live] = softmax.log_sum_exp().reshape(query.shape[:3])


@executes(operations.Observe)
def observe(observed: Tensor, query: Tensor, *, start: int, length: int) -> None:
    """Execute the step `Observe` (see it for shapes) for rows of any kind: from [1, H, C, ..] to [1, H, obs, ..]."""
    window = observed.shape[2]
    shift = start - max(length - window, 0)  # row i belongs in row i + shift
    first = max(0, -shift)
    last = min(query.shape[2], min(window, length) - shift)
    if first < last:
        observed[:, :, first + shift : last + shift] = query[:, :, first:last]


@executes(operations.ChunkAttention)
def chunk_attention(
    query: Tensor,
    new_key: Tensor,
    new_value: Tensor,
    k_scratch: Tensor,
    v_scratch: Tensor,
    out: Tensor,
    sink_logits: Tensor | None = None,
    *,
    log_sum_exp: Tensor | None,
    start: int,
    length: int,
    scale: float,
    window: int,
    softcap: float | None = None,
    window_stride: int | None = None,
    wide: torch.dtype,
) -> None:
    """Execute the step `ChunkAttention` (see it for shapes); padding rows keep their bytes.

    Raises InputError if start + C exceeds the rows of the scratch.
    """
    live = _live(query, k_scratch, start, length)
    k_scratch[:, :, start : start + live] = as_stored(new_key[:, :, :live], k_scratch)
    v_scratch[:, :, start : start + live] = as_stored(new_value[:, :, :live], v_scratch)
    causal_attention(
        query, k_scratch, v_scratch, out, sink_logits, log_sum_exp=log_sum_exp, start=start, length=length, scale=scale,
        window=window, softcap=softcap, window_stride=window_stride, wide=wide,
    )  # fmt: skip


@executes(operations.LatentChunkAttention)
def latent_chunk_attention(
    query: Tensor,
    new_latent: Tensor,
    latent_scratch: Tensor,
    k_up: Tensor,
    v_up: Tensor,
    out: Tensor,
    *,
    log_sum_exp: Tensor | None,
    start: int,
    length: int,
    scale: float,
    first: int,
    wide: torch.dtype,
) -> None:
    """Execute the step `LatentChunkAttention` (see it for shapes); padding rows keep their bytes. Keys and values are
    rounded to the dtype of `query`.

    Raises InputError if start + C exceeds the rows of the scratch.
    """
    live, width = _live(query, latent_scratch, start, length), new_latent.shape[3]
    if live == 0:
        return
    latent_scratch[:, :, start : start + live] = as_stored(new_latent[:, :, :live], latent_scratch)
    query = query[:, :, :live]

    def rows(begin: int, end: int) -> tuple[Tensor, Tensor]:
        latent, shared = numbers(latent_scratch[0, 0, begin:end], width).to(wide).tensor_split([k_up.shape[2]], 1)
        own, values = ((latent @ up.to(wide).transpose(-1, -2)).to(query.dtype).to(wide) for up in (k_up, v_up))
        columns = shared.to(query.dtype).to(wide).expand(own.shape[0], *shared.shape).tensor_split([first], 2)
        return torch.cat([columns[0], own, columns[1]], 2), values

    softmax = _attend(query, query.shape[1], rows, out.shape[-1], start, Scoring(scale), Span(), wide)
    out[:, :, :live] = softmax.output().reshape(*query.shape[:3], -1)
    if log_sum_exp is not None:
        log_sum_exp[:, :, :live] = softmax.log_sum_exp().reshape(query.shape[:3])


def _live(query: Tensor, key: Tensor, start: int, length: int) -> int:
    """Return the number of positions of a chunk that are not padding. Raises InputError if rows for them are missing.
    """
    chunk, rows = query.shape[2], key.shape[2]
    if start < 0 or start + chunk > rows:
        raise ReferencePromptErrors.TOO_FEW_ROWS(start=start, needed=start + chunk, rows=rows)
    return max(0, min(chunk, length - start))


def _attend(
    query: Tensor,
    kv_heads: int,
    rows: Callable[[int, int], tuple[Tensor, ...]],
    width: int,
    start: int,
    scoring: Scoring,
    sees: Span,
    wide: torch.dtype,
) -> RunningSoftmax:
    """Return the attention of queries [1, Hkv * G, C, D] to key rows 0 .. start + C - 1; each query sees the rows up to
    its own position, and with a window only those inside of it. `rows` returns rows begin .. end - 1 of K and V, [Hkv,
    end - begin, ..] of dtype `wide`; a row of V has `width` numbers."""
    _, heads, chunk, depth = query.shape
    queries = query[0].to(wide).reshape(kv_heads, -1, depth)
    softmax = RunningSoftmax(tuple(queries.shape[:-1]), width, wide, scoring.sinks_of(kv_heads, chunk))
    positions = torch.arange(start, start + chunk).repeat(heads // kv_heads)[:, None]
    reached = sees.first(start)
    firsts = positions - positions % sees.stride + sees.stride - sees.size
    for begin, end in tiles(start + chunk):
        if end <= reached:
            continue
        begin = max(begin, reached)
        key, value = rows(begin, end)
        scores = scoring.scores(queries @ key.transpose(-1, -2))
        if end > start + 1:  # some query of the chunk must not see the end of this tile
            scores.masked_fill_(torch.arange(begin, end) > positions, -torch.inf)
        if sees:
            scores.masked_fill_(torch.arange(begin, end) < firsts, -torch.inf)
        softmax.add(scores, value)
    return softmax
