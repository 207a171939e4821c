"""The kv dialect: each operation of the compressed cache from its definition in `sscc.ir.dialects.kv`, slot by slot.

Letters as there: B slots, H query heads, Hkv KV heads, D head dim, R budget rows, T scratch rows, C chunk tokens. Query
head h reads KV head h // (H // Hkv).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch_mlir import ir

from sscc.compiler.interpret.build import Builder, Compute, Several, UndefinedKind, undefined
from sscc.compiler.interpret.types import Types
from sscc.ir import operations, quantized_keys, resident_rows
from sscc.ir.dialects import kv
from sscc.ir.dialects.kv import geometry_of
from sscc.ir.geometry import Geometry, Span
from sscc.ir.kv_rows import INT8, RowFormat
from sscc.ir.layer_state.codecs import CodedRows, RowCodec, codec_of
from sscc.ir.layer_state.rows import selector_of, store_of
from sscc.ir.opspec import Members, executes


class CacheUndefinedErrors(UndefinedKind):
    ROW_OUT_OF_BOUNDS = "writes row {row} of slot {slot}, but a cache has {rows}"
    CHUNK_OUT_OF_BOUNDS = "uses rows {first} .. {last} of a scratch of {rows}"
    NO_SCORES = "pools {length} scores"
    TOO_MANY = "selects {topk} positions, but there is room for {most}"
    SCRATCH_OUT_OF_BOUNDS = "reads row {row} of a scratch of {rows}"
    TOO_FEW_KEYS = "needs the quantized keys of all candidates at position {position}, but there are {rows}"

Segment = Mapping[str, Tensor]
"""Rows that attention covers: `key` [B, Hkv, T, D], `valid` [Q, R], optional `index` [B, Hkv, R], and optional `value`
[B, Hkv, T, Dv], by default the first numbers of keys."""
Operands = Mapping[str, Tensor]
"""Operands of an operation, by name."""
Result = TypeVar("Result")

# ------------------------------------------------------------------------------------------ rows of the cache


def rows(position: Tensor, base: Tensor, topk: int, g: Geometry) -> Tensor:
    """Return the row of each absolute position [B], for rings that begin at `base` [B]."""
    _check_topk(topk, g)
    first = base.clamp(g.sink, g.sink + topk)
    ring = g.sink + topk + g.ring_rows - first
    return torch.where(position < first, position, first + (position - first).remainder(ring))


def _check_topk(topk: int, g: Geometry) -> None:
    if not 0 <= topk <= g.topk:
        undefined(CacheUndefinedErrors.TOO_MANY, topk=topk, most=g.topk)


def updated(cache: Tensor, new: Tensor, row: Tensor, active: Tensor) -> Tensor:
    """Return `cache` [B, Hkv, R, D] with `new` [Q, Hkv, 1, D] in row[q] of the slot of every active token."""
    result, tokens = cache.clone(), new.shape[0] // cache.shape[0]
    for token in active.nonzero()[:, 0].tolist():
        slot, at = token // tokens, int(row[token])
        if not 0 <= at < cache.shape[2]:
            undefined(CacheUndefinedErrors.ROW_OUT_OF_BOUNDS, row=at, slot=slot, rows=cache.shape[2])
        result[slot, :, at] = new[token, :, 0]
    return result


def validity(
    position: Tensor, base: Tensor, active: Tensor, topk: int, g: Geometry, index: Tensor | None = None
) -> Tensor:
    """Return the rows that the query at `position` [Q] may see, for rings that begin at `base` [Q]: [Q, R] i1, or
    [Q, R + K] if an `index` [B, Hkv, K] names rows that replace some of the cache's."""
    _check_topk(topk, g)
    if g.by_query:
        return torch.cat([_seen(position, base, active, 0, g), _seen_of_chosen(position, active, g)], 1)
    seen = _seen(position, base, active, topk, g)
    if index is None:
        return seen
    kept = slice(g.sink, g.sink + g.topk)
    selected = seen[:, kept] & (index[:, 0].repeat_interleave(len(position) // len(index), 0) >= 0)
    seen[:, kept] &= ~selected
    return torch.cat([seen, selected], 1)


def _seen(position: Tensor, base: Tensor, active: Tensor, topk: int, g: Geometry) -> Tensor:
    """Return the rows of the cache that each query sees, [Q, R] i1."""
    row, at, end = torch.arange(g.cache_rows), position[:, None], g.sink + topk + g.ring_rows
    first = base.clamp(g.sink, g.sink + topk)[:, None]
    newest = g.written_of_ring(at, first).minimum(end - g.spare - first)
    age = (at - row).remainder(end - first)
    in_ring = (row >= first) & (row < end) & (age < newest)
    return torch.where(at < first, row <= at, (row < first) | in_ring) & active[:, None]


def _seen_of_chosen(position: Tensor, active: Tensor, g: Geometry) -> Tensor:
    """Return which of the selected rows each query sees, [Q, K] i1: one for each candidate, up to K."""
    return (torch.arange(g.topk) <= position[:, None] - g.sink_recent) & active[:, None]


def encoded(rows: Tensor, row_format: RowFormat = INT8) -> Tensor:
    """Return rows [.., D] of floats as codes and the bytes of their scales, i8."""
    return torch.from_numpy(row_format.encode(rows.to(torch.float32).numpy()))


def decoded(rows: Tensor, row_format: RowFormat = INT8) -> Tensor:
    """Return the numbers of rows: unchanged floats, or f32 decoded from i8."""
    return torch.from_numpy(row_format.decode(rows.numpy())) if rows.dtype == torch.int8 else rows


# --------------------------------------------------------------------------------------------------- attention


def grouped(query: Tensor, kv_heads: int) -> Tensor:
    """Return query heads by the KV head that they read: [H, S, D] to [Hkv, H / Hkv, S, D]."""
    return query.reshape(kv_heads, query.shape[0] // kv_heads, *query.shape[1:])


@dataclass(frozen=True)
class Scoring:
    """Conversion of products of queries and keys to scores and weights: a factor, a cap above 0 or None, and the logits
    of learned sinks [H] or None."""

    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None

    @classmethod
    def of(cls, op: ir.Operation) -> Scoring:
        return cls(float(op.attributes["scale"].value), kv.optional_of(op, "softcap"))

    def capped(self, scaled: Tensor) -> Tensor:
        return scaled if self.softcap is None else (scaled / self.softcap).tanh() * self.softcap

    def with_sinks(self, x: Operands) -> Scoring:
        """Return this conversion with the sinks among an operation's operands, if there are any."""
        return replace(self, sinks=x.get("sink_logits"))

    def columns(self, scores: Tensor) -> Tensor:
        """Return scores [Hkv, H / Hkv, S, N], followed by those of the learned sinks, if there are any."""
        if self.sinks is None:
            return scores
        sinks = self.sinks.to(scores.dtype).reshape(*scores.shape[:2], 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, sinks], 3)


def scores_of(query: Tensor, key: Tensor, scoring: Scoring, dtype: torch.dtype) -> Tensor:
    """Return scores in `dtype`: query [H, S, D], key [Hkv, N, D] to [Hkv, H / Hkv, S, N]."""
    products = torch.einsum("hgsd,hnd->hgsn", grouped(query.to(dtype), key.shape[0]), key.to(dtype))
    return scoring.capped(products * scoring.scale)


def attention(
    query: Tensor, key: Tensor, value: Tensor, scoring: Scoring, hidden: Tensor | None, types: Types
) -> tuple[Tensor, Tensor]:
    """Return softmax(query key^T scale) value, [H, S, Dv], and the log-sum-exp of the scores, [H, S, 1].

    Args:
        query: [H, S, D].
        key: [Hkv, N, D].
        value: [Hkv, N, Dv].
        hidden: [S, N] i1, keys that a query does not see; None if it sees all.

    Computed in f32 or wider; the attention is rounded once to the dtype of `query`.
    """
    dtype = types.sums(query.dtype)
    scores = scores_of(query, key, scoring, dtype)
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    columns = scoring.columns(scores)
    weights = columns.softmax(-1)[..., : key.shape[1]]
    out = torch.einsum("hgsn,hnd->hgsd", weights, value.to(dtype))
    heads, count = query.shape[:2]
    sums = columns.logsumexp(-1).to(types.accumulate)
    return out.reshape(heads, count, value.shape[2]).to(query.dtype), sums.reshape(heads, count, 1)


def cached_attention(
    query: Tensor, segments: Sequence[Segment], width: int, scoring: Scoring, types: Types, row_format: RowFormat = INT8
) -> Tensor:
    """Return the attention of each token's query over the valid rows of segments, [Q, H, 1, width]; zeros without a
    valid row. Rows of i8 are encoded in `row_format`."""
    out = query.new_zeros(*query.shape[:3], width)
    for token in range(query.shape[0]):
        if any(segment["valid"][token].any() for segment in segments):
            names = [name for name in ("key", "value") if name in segments[0]]
            sides = ([rows_of(segment, side, token) for segment in segments] for side in names)
            k, *values = (decoded(torch.cat(rows, 1), row_format) for rows in sides)
            v = values[0] if values else k[..., :width]
            out[token], _ = attention(query[token], k, v, scoring, None, types)
    return out


def rows_of(segment: Segment, side: str, token: int) -> Tensor:
    """Return the rows of a token's slot that it sees, as stored, [Hkv, N, ..]."""
    valid = segment["valid"][token]
    slot = token // (len(segment["valid"]) // len(segment[side]))
    rows = segment[side][slot]
    if "index" not in segment:
        return rows[:, valid]
    index = segment["index"]
    return gather(rows[None], index[token // (len(segment["valid"]) // len(index))][:, valid])[0]


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, start: int, scoring: Scoring, window: Span, types: Types,
    row_format: RowFormat = INT8,
) -> tuple[Tensor, Tensor]:
    """Return the attention [1, H, C, Dv] of queries at position start + i over rows 0 .. start + i within `window`, and
    its log-sum-exp. Rows of i8 are encoded in `row_format`."""
    end = _check_chunk(start, query.shape[2], key.shape[2])
    row, position = torch.arange(end)[None, :], torch.arange(start, end)[:, None]
    hidden = row > position
    if window:
        hidden |= row < torch.tensor([[window.first(p)] for p in range(start, end)])
    k, v = (decoded(rows[0, :, :end], row_format) for rows in (key, value))
    out, sums = attention(query[0], k, v, scoring, hidden, types)
    return out[None], sums[None]


def appended(scratch: Tensor, new: Tensor, start: int) -> Tensor:
    """Return `scratch` [1, Hkv, T, D] with `new` [1, Hkv, C, D] in rows start .. start + C - 1."""
    end = _check_chunk(start, new.shape[2], scratch.shape[2])
    result = scratch.clone()
    result[:, :, start:end] = new
    return result


def _check_chunk(start: int, chunk: int, scratch_rows: int) -> int:
    if not 0 <= start <= scratch_rows - chunk:
        undefined(CacheUndefinedErrors.CHUNK_OUT_OF_BOUNDS, first=start, last=start + chunk - 1, rows=scratch_rows)
    return start + chunk


# ------------------------------------------------------------------------------------------------ observation


def observe(observed: Tensor, query: Tensor, start: int, length: int, g: Geometry) -> Tensor:
    """Return `observed` [1, H, obs, D] with the chunk's queries that are among the last of the prompt.

    They may also be one number for each query: [1, H, obs, 1] and [1, H, C, 1].
    """
    result = observed.clone()
    for i in range(query.shape[2]):
        row = start + i - max(length - g.obs, 0)
        if 0 <= row < min(g.obs, length):
            result[0, :, row] = query[0, :, i]
    return result


def observation_scores(
    observed: Tensor, log_sum_exp: Tensor, key: Tensor, length: int, scoring: Scoring, g: Geometry, types: Types
) -> Tensor:
    """Return the attention of the observed queries to each position, [Hkv, T]; 0 from length - min(obs, recent) on.

    Args:
        observed: [1, H, obs, D], rows 0 .. min(obs, length) - 1 hold the last queries of the prompt.
        log_sum_exp: [1, H, obs, 1], of the scaled scores of these queries over the keys that they see.
        key: [1, Hkv, T, D].
    """
    count = min(g.obs, length)
    scores = scores_of(observed[0, :, :count], key[0, :, :length], scoring, types.accumulate)
    weights = (scores - grouped(log_sum_exp[0, :, :count], key.shape[1])).exp()
    positions = torch.arange(length - count, length)
    later = torch.arange(length)[None, :] > positions[:, None]
    result = torch.zeros(key.shape[1], key.shape[2], dtype=types.accumulate)
    candidates = max(length - min(g.obs, g.recent), 0)
    result[:, :candidates] = weights.masked_fill(later, 0.0).sum(2).mean(1)[:, :candidates]
    return result


def pooled(scores: Tensor, length: int, g: Geometry) -> Tensor:
    """Return scores [Hkv, T] pooled along their first `length` positions, stride 1, padding pool // 2; 0 behind them.

    The average divides by the kernel's width everywhere; the maximum is over positions of the prompt.
    """
    if length < 1:
        undefined(CacheUndefinedErrors.NO_SCORES, length=length)
    half = g.pool // 2
    filler = 0.0 if g.pool_mode == "avg" else float("-inf")
    padded = torch.nn.functional.pad(scores[:, :length], (half, half), value=filler)
    windows = padded.unfold(1, g.pool, 1)
    result = torch.zeros_like(scores)
    result[:, :length] = windows.sum(2) / g.pool if g.pool_mode == "avg" else windows.amax(2)
    return result


def select(scores: Tensor, length: int, topk: int, g: Geometry) -> Tensor:
    """Return the `topk` best candidates in [sink, length - recent), ties to the earlier, ascending, then -1: [Hkv, K]
    i64; all -1 if all positions have rows."""
    selected = torch.full((scores.shape[0], g.topk), -1)
    _check_topk(topk, g)
    if topk and length > g.sink + topk + g.recent:
        candidates = scores[:, g.sink : length - g.recent]
        best = torch.argsort(candidates, dim=1, descending=True, stable=True)[:, :topk]
        selected[:, :topk] = best.sort(1).values + g.sink
    return selected


def kept_positions(length: int, topk: int, selected: Tensor | None, shape: Sequence[int], g: Geometry) -> Tensor:
    """Return the position in each row of the cache after a prompt of `length` tokens, -1 for none: [Hkv, R] i64, of
    this `shape`. `selected` [Hkv, K] are the selected positions of a longer prompt."""
    _check_topk(topk, g)
    row, ring, last = torch.arange(shape[1]), g.sink + topk, length - 1
    if length <= ring + g.recent:
        return torch.where(row < length, row, -1).repeat(shape[0], 1)
    newest = last - (last - row).remainder(g.ring_rows)
    empty = (row < ring) | (row >= ring + g.ring_rows) | (newest < length - g.recent)
    rows = torch.where(row < g.sink, row, torch.where(empty, -1, newest)).repeat(shape[0], 1)
    if selected is not None:
        rows[:, g.sink : ring] = selected[:, :topk]
    return rows


def gather(source: Tensor, index: Tensor) -> Tensor:
    """Return rows of `source` [1, Hkv, T, D] at `index` [Hkv, J], without decoding; zeros for a negative index."""
    if index.numel() and int(index.max()) >= source.shape[2]:
        undefined(CacheUndefinedErrors.SCRATCH_OUT_OF_BOUNDS, row=int(index.max()), rows=source.shape[2])
    rows = source[0].gather(1, index.clamp(min=0)[:, :, None].expand(*index.shape, source.shape[3]))
    return torch.where(index[:, :, None] < 0, torch.zeros((), dtype=source.dtype), rows)[None]


# ------------------------------------------------------------------------------------------- rows that queries choose


def quantized_keys_of(key: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Quantize keys [.., D]: codes [.., D * bits / 8] i8 and scales [.., 1] bf16."""
    codes, scales = quantized_keys.encode(key.to(torch.float32).numpy(), bits)
    return torch.from_numpy(codes).view(torch.int8), torch.from_numpy(scales).to(torch.bfloat16)[..., None]


def quantized_key_scores(
    query: Tensor, codes: Tensor, scales: Tensor, position: Tensor, active: Tensor, scoring: Scoring, g: Geometry
) -> Tensor:
    """Return the scores of each active token's query [Q, H, 1, D] by the quantized keys of its candidates, [Q, H, T]
    f32; zeros elsewhere."""
    queries, bits = grouped_numbers(query, codes.shape[1]), selector_of(g).key_bits
    codes, scales = (rows.repeat_interleave(len(query) // len(rows), 0) for rows in (codes, scales))
    levels = quantized_keys.decode(codes.view(torch.uint8).numpy(), bits)
    of_rows = scales[..., 0].to(torch.float32).numpy()
    logits = quantized_keys.logits(*quantized_keys.encode_query(queries), levels, of_rows, bits, scoring.scale)
    return _of_candidates(scoring.capped(torch.from_numpy(logits)), position, active, g)


def key_scores(
    query: Tensor, keys: Tensor, position: Tensor, active: Tensor, scoring: Scoring, g: Geometry, types: Types
) -> Tensor:
    """Return the same scores for quantized keys that are the keys [B, Hkv, T, D]."""
    keys = keys.repeat_interleave(len(query) // len(keys), 0)
    exact = [scores_of(q, rows, scoring, types.accumulate) for q, rows in zip(query, keys, strict=True)]
    return _of_candidates(torch.stack(exact).to(torch.float32), position, active, g)


def _of_candidates(scores: Tensor, position: Tensor, active: Tensor, g: Geometry) -> Tensor:
    """Return scores [B, Hkv, .., T] of all rows by query heads, [B, H, T], with zeros for rows that are not candidates.
    """
    rows = scores.shape[-1]
    if bool((position[active] >= rows).any()):
        undefined(CacheUndefinedErrors.TOO_FEW_KEYS, position=int(position[active].max()), rows=rows)
    return torch.where(_candidates(position, active, rows, g)[:, None], scores.reshape(len(scores), -1, rows), 0.0)


def grouped_numbers(query: Tensor, kv_heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return queries [B, H, 1, D] by the KV head that they read, [B, Hkv, H / Hkv, D]."""
    slots, _, _, dim = query.shape
    numbers: np.ndarray[Any, np.dtype[np.float32]] = query.to(torch.float32).reshape(slots, kv_heads, -1, dim).numpy()
    return numbers


def _candidates(position: Tensor, active: Tensor, rows: int, g: Geometry) -> Tensor:
    """Return the positions that an active slot may select, [B, T] i1."""
    row = torch.arange(rows)
    return (row >= g.sink) & (row < (position + 1 - g.recent)[:, None]) & active[:, None]


def choose(
    query: Tensor, key: Tensor, scores: Tensor, position: Tensor, active: Tensor, scoring: Scoring, g: Geometry,
    types: Types,
) -> Tensor:  # fmt: skip
    """Return the positions that each token attends to besides sinks and ring, [Q, Hkv, K]; `key` [B, Hkv, R, D] has the
    rows of these."""
    selected, per_slot = torch.full((len(query), key.shape[1], g.topk), -1), len(query) // len(key)
    seen = _seen(position, position, active, 0, g)
    for token, places in _candidates_of_tokens(position, active, scores.shape[2], g):
        near = decoded(key[token // per_slot][:, seen[token]], format_of(g))
        weights = masses(query[token], near, scores[token][:, places], scoring, types)
        best = torch.argsort(weights, dim=1, descending=True, stable=True)[:, : g.topk]
        selected[token, :, : best.shape[1]] = places[best.sort(1).values]
    return selected


def _candidates_of_tokens(position: Tensor, active: Tensor, rows: int, g: Geometry) -> list[tuple[int, Tensor]]:
    """Yield the candidates of each token that has any."""
    candidates = [(token, row.nonzero()[:, 0]) for token, row in enumerate(_candidates(position, active, rows, g))]
    return [(token, places) for token, places in candidates if len(places)]


def masses(query: Tensor, key: Tensor, scores: Tensor, scoring: Scoring, types: Types) -> Tensor:
    """Return the mean probability of each candidate of a slot, [Hkv, n]. Query [H, 1, D], key [Hkv, SR, D], scores [H,
    n]."""
    exact = scores_of(query, key, scoring, types.accumulate)
    candidate_scores = scores.reshape(*exact.shape[:3], -1).to(types.accumulate)
    columns = scoring.columns(torch.cat([candidate_scores, exact], 3))[:, :, 0]
    return columns.softmax(2)[:, :, : scores.shape[1]].mean(1)


def fetched(x: Operands, scoring: Scoring, g: Geometry, types: Types) -> tuple[Tensor, ...]:
    """Return resident positions, their places, K and V after a step; operands as those of `FetchRows`."""
    most = selector_of(g).fetch
    assert most is not None
    after = tuple(x[name].clone() for name in ("resident", "places", "k_resident", "v_resident") if name in x)
    resident, places, *rows = after
    scoring = scoring.with_sinks(x)
    for slot, known in _candidates_of_tokens(x["position"], x["active"], x["scores"].shape[2], g):
        key = decoded(x["key"][slot], format_of(g))
        weights = masses(x["query"][slot], key, x["scores"][slot][:, known], scoring, types)
        for head in range(x["key"].shape[1]):
            held, where = (x[name][slot, head].numpy() for name in ("resident", "places"))
            step = resident_rows.fetch(held, where, weights[head].numpy(), g.sink, most)
            resident[slot, head], places[slot, head] = map(torch.from_numpy, (step.resident, step.places))
            for place, at in step.rows:
                for near, store in zip(rows, ("k_store", "v_store"), strict=False):
                    near[slot, head, place] = x[store][slot, head, at]
    return after


# ------------------------------------------------------------------------------------------------- the operations


def format_of(g: Geometry) -> RowFormat:
    """Return the format of rows of i8; None without such rows."""
    codec = codec_of(g)
    return codec.format if isinstance(codec, CodedRows) else INT8


def stored(rows: Tensor, codec: RowCodec) -> Tensor:
    """Return rows [.., D] of floats in a codec's stored form."""
    return encoded(rows, codec.format) if isinstance(codec, CodedRows) else rows


@executes(operations.Row)
def _row(op: ir.Operation, b: Builder) -> Compute:
    g = geometry_of(op)
    return lambda position, base, topk: rows(position, base, int(topk), g)


@executes(operations.Validity)
def _validity(op: ir.Operation, b: Builder) -> Compute:
    g = geometry_of(op)
    return lambda position, base, active, topk, index=None: validity(position, base, active, int(topk), g, index)


@executes(operations.UpdateRows)
def _update(op: ir.Operation, b: Builder) -> Compute:
    return updated


@executes(operations.QuantizeRows)
def _quantize_rows(op: ir.Operation, b: Builder) -> Compute:
    row_format = format_of(geometry_of(op))
    return lambda source: encoded(source, row_format)


def named(op: ir.Operation, compute: Callable[[Operands], Result]) -> Callable[..., Result]:
    """Return a function that passes the operands of an operation to `compute` by name."""
    names = kv.spec_of_op(op).inputs
    return lambda *values: compute(dict(zip(names, values, strict=True)))


def _segments(members: Members, x: Operands) -> list[Segment]:
    """Return the members of an operation's group."""
    return [{name: x[f"segments[{number}].{name}"] for name in names} for number, names in enumerate(members)]


@executes(operations.CachedAttention)
def _cached_attention(op: ir.Operation, b: Builder) -> Compute:
    scoring, types, members, row_format = Scoring.of(op), b.types, kv.spec_of_op(op).members, format_of(geometry_of(op))
    width = op.results[0].type.shape[3]
    return named(
        op,
        lambda x: cached_attention(x["query"], _segments(members, x), width, scoring.with_sinks(x), types, row_format),
    )


@executes(operations.CausalAttention)
def _causal_attention(op: ir.Operation, b: Builder) -> Several:
    scoring, g, types = Scoring.of(op), geometry_of(op), b.types
    return named(
        op,
        lambda x: causal_attention(
            x["query"], x["key"], x["value"], int(x["start"]), scoring.with_sinks(x), g.sees, types, format_of(g)
        ),
    )


@executes(operations.Observe)
def _observe(op: ir.Operation, b: Builder) -> Compute:
    g = geometry_of(op)
    return lambda observed, query, start, length: observe(observed, query, int(start), int(length), g)


@executes(operations.ObservationScores)
def _observation_scores(op: ir.Operation, b: Builder) -> Compute:
    scoring, g, types = Scoring.of(op), geometry_of(op), b.types
    return lambda observed, log_sum_exp, key, length: observation_scores(
        observed, log_sum_exp, key, int(length), scoring, g, types
    )


@executes(operations.Pool)
def _pool(op: ir.Operation, b: Builder) -> Compute:
    g = geometry_of(op)
    return lambda scores, length: pooled(scores, int(length), g)


@executes(operations.Select)
def _select(op: ir.Operation, b: Builder) -> Compute:
    g = geometry_of(op)
    return lambda scores, length, topk: select(scores, int(length), int(topk), g)


@executes(operations.KeptPositions)
def _kept_positions(op: ir.Operation, b: Builder) -> Compute:
    g, shape = geometry_of(op), list(op.results[0].type.shape)
    return lambda length, topk, selected=None: kept_positions(int(length), int(topk), selected, shape, g)


@executes(operations.GatherRows)
def _gather(op: ir.Operation, b: Builder) -> Compute:
    codec = store_of(geometry_of(op)).gather_codec
    return lambda source, index, out: stored(gather(source, index), codec)


@executes(operations.DecodeAttention)
def _decode_attention(op: ir.Operation, b: Builder) -> Several:
    scoring, g, types, members = Scoring.of(op), geometry_of(op), b.types, kv.spec_of_op(op).members
    width, codec = op.results[0].type.shape[3], codec_of(g)

    def decode(x: Operands) -> tuple[Tensor, ...]:
        position, active, topk = x["position"], x["active"], int(x["topk"])
        row = rows(position, x["base"], topk, g)
        new = {side: stored(x[f"new_{side}"], codec) for side in ("key", "value") if side in x}
        cache = {side: updated(x[side], item, row, active) for side, item in new.items()}
        parts = [cache, *_segments(members, x)]
        valid = validity(position, x["base"], active, topk, g, parts[-1].get("index"))
        counts = [part.get("index", part["key"]).shape[2] for part in parts]
        seen = [{**part, "valid": mask} for part, mask in zip(parts, valid.split(counts, 1), strict=True)]
        out = cached_attention(x["query"], seen, width, scoring.with_sinks(x), types, format_of(g))
        caches = {"key": "k_cache", "value": "v_cache"}
        return out, *(updated(x[caches[side]], item, row, active) for side, item in new.items())

    return named(op, decode)


@executes(operations.ChunkAttention)
def _chunk_attention(op: ir.Operation, b: Builder) -> Several:
    scoring, g, types = Scoring.of(op), geometry_of(op), b.types
    codec = store_of(g).prompt_codec

    def chunk(x: Operands) -> tuple[Tensor, ...]:
        start, key, value = int(x["start"]), stored(x["new_key"], codec), stored(x["new_value"], codec)
        k, v = appended(x["k_scratch"], key, start), appended(x["v_scratch"], value, start)
        return *causal_attention(x["query"], k, v, start, scoring.with_sinks(x), g.sees, types, format_of(g)), k, v

    return named(op, chunk)


def of_heads(rows: Tensor, k_up: Tensor, v_up: Tensor, first: int, types: Types) -> tuple[Tensor, Tensor]:
    """Return keys [H, T, D] and values [H, T, Dv] computed from latent rows [T, L]; k_up [H, N, P], v_up [H, Dv, P]."""
    wide = types.sums(k_up.dtype)
    latent, shared = rows.to(wide)[:, : k_up.shape[2]], rows.to(wide)[:, k_up.shape[2] :]
    own, values = (torch.einsum("tp,hnp->htn", latent, up.to(wide)) for up in (k_up, v_up))
    columns = shared.expand(own.shape[0], *shared.shape).tensor_split([first], 2)
    return torch.cat([columns[0], own, columns[1]], 2), values


@executes(operations.LatentChunkAttention)
def _latent_chunk_attention(op: ir.Operation, b: Builder) -> Several:
    scoring, g, types = Scoring.of(op), geometry_of(op), b.types
    first, codec = int(op.attributes["first"].value), store_of(g).prompt_codec

    def chunk(x: Operands) -> tuple[Tensor, ...]:
        start, new, dtype = int(x["start"]), x["new_latent"], x["query"].dtype
        rows = appended(x["latent_scratch"], stored(new, codec), start)
        numbers = decoded(rows[0, 0], format_of(g))
        k, v = (side.to(dtype)[None] for side in of_heads(numbers, x["k_up"], x["v_up"], first, types))
        return *causal_attention(x["query"], k, v, start, scoring, g.sees, types), rows

    return named(op, chunk)


@executes(operations.QuantizeKeys)
def _quantized_keys(op: ir.Operation, b: Builder) -> Several:
    bits = selector_of(geometry_of(op)).key_bits
    return lambda key: quantized_keys_of(key, bits)


@executes(operations.QuantizedKeyScores)
def _quantized_key_scores(op: ir.Operation, b: Builder) -> Compute:
    scoring, g, types = Scoring.of(op), geometry_of(op), b.types
    if not selector_of(g).rounds_keys:
        return lambda query, keys, position, active: key_scores(query, keys, position, active, scoring, g, types)
    return lambda query, codes, scales, position, active: quantized_key_scores(
        query, codes, scales, position, active, scoring, g
    )


@executes(operations.ChooseRows)
def _choose(op: ir.Operation, b: Builder) -> Compute:
    scoring, g, types = Scoring.of(op), geometry_of(op), b.types
    return named(
        op,
        lambda x: choose(
            x["query"], x["key"], x["scores"], x["position"], x["active"], scoring.with_sinks(x), g, types
        ),
    )


@executes(operations.FetchRows)
def _fetch(op: ir.Operation, b: Builder) -> Several:
    scoring, g, types = Scoring.of(op), geometry_of(op), b.types
    return named(op, lambda x: fetched(x, scoring, g, types))


@executes(operations.QueryAttention)
def _query_attention(op: ir.Operation, b: Builder) -> Several:
    scoring, g, types = Scoring.of(op), geometry_of(op), b.types
    selector, width, codec = selector_of(g), op.results[0].type.shape[3], codec_of(g)
    exact = not selector.rounds_keys

    def attend(x: Operands) -> tuple[Tensor, ...]:
        position, active, key = x["position"], x["active"], x["new_key"]
        row, valid = rows(position, position, 0, g), validity(position, position, active, g.topk, g)
        quantized_key = (key,) if exact else quantized_keys_of(key, selector.key_bits)
        new_rows = {side: stored(x[f"new_{side}"], codec) for side in ("key", "value") if f"new_{side}" in x}
        ring = {side: updated(x[side], item, row, active) for side, item in new_rows.items()}
        new = dict(zip(("k_store", "v_store"), new_rows.values(), strict=False))
        new |= dict(zip(("codes", "scales"), quantized_key, strict=False))
        kept = {name: updated(x[name], rows_of_step, position, active) for name, rows_of_step in new.items()}
        if exact:
            scores = key_scores(x["query"], x["codes"], position, active, scoring, g, types)
        else:
            scores = quantized_key_scores(x["query"], x["codes"], x["scales"], position, active, scoring, g)
        near: Sequence[Tensor] = ()
        if selector.fetch is None:
            chosen = dict(zip(new_rows, kept.values(), strict=False))
            index = choose(x["query"], ring["key"], scores, position, active, scoring.with_sinks(x), g, types)
            chosen["index"] = index
        else:
            near = fetched({**x, **kept, "key": ring["key"], "scores": scores}, scoring, g, types)
            chosen = dict(zip(("index", "key", "value"), near[1:], strict=False))
        masks = valid.split([g.cache_rows, g.topk], 1)
        seen = [{**part, "valid": mask} for part, mask in zip((ring, chosen), masks, strict=True)]
        out = cached_attention(x["query"], seen, width, scoring.with_sinks(x), types, format_of(g))
        caches = zip(("k_cache", "v_cache"), new_rows.values(), strict=False)
        return out, *(updated(x[name], item, row, active) for name, item in caches), *kept.values(), *near

    return named(op, attend)
