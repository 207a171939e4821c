"""SnapStream in plain torch: the one readable definition of the algorithm that sscc compiles.

SnapStream (arXiv 2511.03092) keeps a fixed number of rows of K and V per layer and sequence: the first tokens
(attention sinks) and a ring of the newest ones, as StreamingLLM does (arXiv 2309.17453), and the prompt positions that
the last queries of the prompt attend to most, as SnapKV does (arXiv 2404.14469)::

    row:   0 .......... sink-1 | sink ........ sink+topk-1 | sink+topk ..... budget-1
           attention sinks     | kept: top-K of the prompt | recent ring (rotates)

While a sequence has at most `budget` tokens, position p is in row p. The ring of a shorter prompt begins at the end of
the prompt (`base`), so that no row stays empty while positions are evicted. A ring may have `spare` rows more than a
query sees (ours), so that rows of rejected drafts overwrite nothing.

If the papers are silent or contradict their own examples, the rule is ours, and the docstring says so.

The code is written for readability: one sequence, one layer, no static shapes, no tricks. It shares nothing with an
interpreter. Notation: n prompt tokens, H query heads, Hkv KV heads, D head width (Dv for values), R = g.budget +
g.spare rows. Query head h belongs to KV head h // (H // Hkv). Keys carry their rotary embedding at their true position;
nothing is ever rotated again (unlike StreamingLLM, which re-indexes by row).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sscc.ir.geometry import Geometry, Span

# -------------------------------------------------------------------------------------------------- the softmax


@dataclass(frozen=True)
class Softmax:
    """Softmax of attention, with optional cap and learned sinks.

    Attributes:
        softcap: cap of the scores, above 0 (Gemma 2, arXiv 2408.00118); None for none.
        sinks: [H], a learned logit per query head that is part of its softmax and has no row (GPT-OSS, arXiv
            2508.10925); None for none.
    """

    softcap: float | None = None
    sinks: Tensor | None = None

    def scores(self, products: Tensor) -> Tensor:
        """Return scores from scaled products: ``softcap * tanh(products / softcap)``, or the products without a cap."""
        return products if self.softcap is None else torch.tanh(products / self.softcap) * self.softcap

    def weights(self, scores: Tensor, heads: Tensor | int) -> Tensor:
        """Return attention weights from scores [.., s, t], for query heads with the numbers `heads` [..]."""
        if self.sinks is None:
            return scores.softmax(dim=-1)
        sinks = self.sinks[heads][..., None, None].to(scores.dtype).expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]


PLAIN = Softmax()
EVERY_POSITION = Span()

# ------------------------------------------------------------------------------------------- rows and validity


def base(n: int, g: Geometry) -> int:
    """Return the first row of the ring after a prompt of `n` tokens: ``clamp(n, sink, sink + topk)``.

    Rows before it are never overwritten. SnapStream's ring has `recent` rows for every prompt; using the rows that a
    short prompt leaves empty is ours.
    """
    return min(max(n, g.sink), g.sink + g.topk)


def row(position: int, base: int, g: Geometry) -> int:
    """Return the row of an absolute position (0-based): the position itself before `base`, else its place in the ring.

    SnapStream's Eq. 4 and Listing 5 use other offsets and contradict its worked example (sink 1, recent 4: the
    ring after index 26 is [25, 26, 23, 24] and token 27 replaces 23). This rule is ours and reproduces the example.
    """
    if position < base:
        return position
    return base + (position - base) % (g.budget + g.spare - base)


def row_positions(selected: Tensor, n: int, g: Geometry) -> Tensor:
    """Return the absolute position in each row after a prompt of `n` tokens: [Hkv, R] i64, -1 for an empty row.

    A prompt of at most R tokens has position p in row p. A longer one leaves sinks, the selected positions, and
    the newest ``recent`` positions, each in its `row`.

    Args:
        selected: [Hkv, topk] i64 from `select`.
        n: tokens of the prompt.
        g: cache geometry.
    """
    rows = torch.arange(g.budget + g.spare).repeat(selected.shape[0], 1)
    if n <= g.budget:
        return torch.where(rows < n, rows, -1)
    rows[:, g.sink : g.sink + g.topk] = selected
    rows[:, g.sink + g.topk :] = -1
    newest = torch.arange(n - g.recent, n)
    rows[:, [row(int(position), base(n, g), g) for position in newest]] = newest
    return rows


def valid_rows(position: int, base: int, g: Geometry) -> Tensor:
    """Return the rows that the query at `position` sees, its own token included: [R] bool.

    They are the rows before `base`, and those of the ring with the newest `budget - base` positions, or with a chunked
    window, whose size is `recent`, those of the query's chunk. Without spare rows this is ``row < min(position + 1,
    R)``, because rows in use come first. The order inside the ring does not matter, because keys carry their own
    rotation.
    """
    first = max(position - position % g.recent if g.sees.chunked else position - (g.budget - base) + 1, base)
    seen = torch.arange(g.budget + g.spare) < min(position + 1, base)
    seen[[row(p, base, g) for p in range(first, position + 1)]] = True
    return seen


# --------------------------------------------------------------------------------------------------- selection


def observation_scores(
    queries: Tensor, keys: Tensor, scale: float, g: Geometry, softmax: Softmax = PLAIN
) -> Tensor:
    """Return the attention that the end of the prompt pays to each prompt position.

    ``S[h, i, t] = softmax over t <= pos(i) of Q[h, i] . K[t] * scale``, summed over the observation queries i and
    averaged over the query heads of a KV group; then zero for ``t >= n - min(obs, recent)``, so that pooling never
    spreads the columns of the window. The observation window is SnapKV's; using all keys, and the mean over the group,
    are ours. If a model caps its scores, or has learned sinks, so do these weights.

    Args:
        queries: [H, w, D], the last ``w = min(obs, n)`` positions of the prompt.
        keys: [Hkv, n, D], every position of the prompt.
        scale: factor on the dot products.
        g: cache geometry.
        softmax: conversion of the products to weights.

    Returns:
        [Hkv, n] f32 (f64 for f64 inputs).
    """
    kv_heads, n = keys.shape[0], keys.shape[1]
    heads, window = queries.shape[0], queries.shape[1]
    wide = _accumulator(queries)
    grouped = queries.to(wide).reshape(kv_heads, heads // kv_heads, window, -1)
    logits = softmax.scores(torch.einsum("ghid,gtd->ghit", grouped, keys.to(wide)) * scale)
    query_positions = torch.arange(n - window, n)
    future = torch.arange(n)[None, :] > query_positions[:, None]
    numbers = torch.arange(heads).reshape(kv_heads, -1)
    attention = softmax.weights(logits.masked_fill(future, float("-inf")), numbers)
    scores = attention.sum(dim=2).mean(dim=1)
    scores[:, max(n - min(g.obs, g.recent), 0) :] = 0.0
    return scores


def pool_scores(scores: Tensor, g: Geometry) -> Tensor:
    """Smooth scores over neighbouring positions, so that whole phrases are kept: [Hkv, n] to [Hkv, n].

    Kernel ``pool``, stride 1, padding ``pool // 2`` (SnapKV). The average always divides by ``pool``, also at the
    edges; the maximum ignores the padding.
    """
    padding = g.pool // 2
    if g.pool_mode == "avg":
        pooled = torch.nn.functional.avg_pool1d(scores[None], g.pool, 1, padding, count_include_pad=True)
    else:
        pooled = torch.nn.functional.max_pool1d(scores[None], g.pool, 1, padding)
    return pooled[0]


def select(scores: Tensor, n: int, g: Geometry) -> Tensor:
    """Select the prompt positions that stay, per KV head.

    Nothing is selected for a prompt of at most `budget` tokens, because all of it has rows. Otherwise candidates are
    the positions in ``[sink, n - recent)``: neither sinks nor recent. The first ``topk`` by (score descending, position
    ascending) are selected, then sorted ascending. The order and the rule for ties are ours; the selection is made
    once, from the whole prompt.

    Args:
        scores: [Hkv, n], pooled.
        n: tokens of the prompt.
        g: cache geometry.

    Returns:
        [Hkv, topk] i64: positions in ascending order; -1 if nothing is selected.
    """
    selected = torch.full((scores.shape[0], g.topk), -1, dtype=torch.int64)
    if n <= g.budget:
        return selected
    candidates = scores[:, g.sink : n - g.recent]
    order = torch.sort(candidates, dim=1, descending=True, stable=True).indices
    return (order[:, : g.topk] + g.sink).sort(dim=1).values


# --------------------------------------------------------------------------------------------------- the cache


def assemble(x: Tensor, positions: Tensor) -> Tensor:
    """Build the cache rows of one tensor after a prompt.

    Args:
        x: [Hkv, n, D], K (after RoPE) or V of every prompt position.
        positions: [Hkv, R] i64 from `row_positions`; negative means an empty row.

    Returns:
        [Hkv, R, D] of x's dtype; empty rows are zero.
    """
    index = positions.clamp(min=0)[:, :, None].expand(-1, -1, x.shape[2])
    return torch.where(positions[:, :, None] >= 0, x.gather(1, index), 0)


def stored(rows: Tensor, g: Geometry) -> Tensor:
    """Return rows after storing them in a cache: unchanged, or if it is encoded, codes times a scale.

    There is a scale for every 128 numbers of a row, ``max |x| / 127``, and codes are ``x / scale`` rounded half to
    even, all in f32 (symmetric, per token and KV head; ours: SnapStream stores rows unencoded). Codes of 4 bits have a
    scale for every 32 numbers, ``max |x| / 7`` rounded to bf16.

    Args:
        rows: [.., D].
        g: cache geometry.

    Returns:
        [.., D], of rows' dtype, or f32 if the cache is encoded.
    """
    if not g.encoded:
        return rows
    if g.dtype == "int4":
        return torch.cat([_rounded(part, 7, torch.bfloat16) for part in rows.split(32, -1)], -1)
    return torch.cat([_rounded(part, 127, torch.float32) for part in rows.split(128, -1)], -1)


def _rounded(x: Tensor, largest: int, scales: torch.dtype) -> Tensor:
    """Return numbers [.., n] that share a scale after rounding to codes of at most `largest`, in f32."""
    x = x.to(torch.float32)
    scale = x.abs().amax(-1, keepdim=True) * torch.tensor(1 / largest, dtype=torch.float32)
    scale = scale.to(scales).to(torch.float32)
    tiny = scale < torch.finfo(torch.float32).tiny
    codes = torch.where(tiny, 0.0, x * (1 / scale)).round().clamp(-largest, largest)
    return torch.where(tiny, 0.0, codes * scale)


def compress(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    g: Geometry,
    softmax: Softmax = PLAIN,
    rule: Callable[..., Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compress one layer at the end of prefill: score, pool, select, assemble K and V.

    Args:
        queries: [H, n, D], of every prompt position; only the last ``min(obs, n)`` are read.
        keys: [Hkv, n, D].
        values: [Hkv, n, Dv].
        scale: factor on the dot products.
        g: cache geometry.
        softmax: conversion of the products to weights.
        rule: scoring function that replaces `observation_scores`; it maps the previous arguments to [Hkv, n].

    Returns:
        (K rows [Hkv, R, D], V rows [Hkv, R, Dv], as they are stored; selected [Hkv, topk] i64).
    """
    n = keys.shape[1]
    if rule is None:
        scores = observation_scores(queries[:, n - min(g.obs, n) :], keys, scale, g, softmax)
    else:
        scores = rule(queries, keys, values, scale, g, softmax)
    selected = select(pool_scores(scores, g), n, g)
    positions = row_positions(selected, n, g)
    return stored(assemble(keys, positions), g), stored(assemble(values, positions), g), selected


# --------------------------------------------------------------------------------------------------- attention


def cached_attention(
    q: Tensor, k: Tensor, v: Tensor, valid: Tensor, scale: float, softmax: Softmax = PLAIN
) -> Tensor:
    """Attention of one query over the valid rows of a cache.

    Args:
        q: [H, D].
        k: [Hkv, R, D].
        v: [Hkv, R, Dv].
        valid: [R] bool; other rows must hold finite numbers too (0 * NaN is NaN).
        scale: factor on the dot products.
        softmax: conversion of the products to weights.

    Returns:
        [H, Dv] of q's dtype, computed in f32 (f64 for f64) and rounded once; zeros if no row is valid.
    """
    if not bool(valid.any()):
        return q.new_zeros(q.shape[0], v.shape[2])
    return _attention(q[:, None], k, v, valid[None], scale, softmax)[:, 0]


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: Span = EVERY_POSITION, softmax: Softmax = PLAIN
) -> Tensor:
    """Causal attention of a whole sequence: the query at position i sees keys 0..i, or with a sliding window the last
    `window.size` of these (Mistral, arXiv 2310.06825), or with a chunked window those of its chunk (Llama 4).

    Args:
        q: [H, n, D].
        k: [Hkv, n, D].
        v: [Hkv, n, Dv].
        scale: factor on the dot products.
        window: span of positions that a query sees.
        softmax: conversion of the products to weights.

    Returns:
        [H, n, Dv] of q's dtype, computed in f32 (f64 for f64) and rounded once.
    """
    n = q.shape[1]
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    if window.chunked:
        chunk = torch.arange(n) // window.size
        seen &= chunk[:, None] == chunk[None, :]
    elif window:
        seen &= ~torch.ones(n, n, dtype=torch.bool).tril(-window.size)
    return _attention(q, k, v, seen, scale, softmax)


def _attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float, softmax: Softmax) -> Tensor:
    """Return softmax(q k^T scale) v, masked by `visible` [s, t]; one query head at a time, to limit memory to s * t."""
    wide = _accumulator(q)
    group = q.shape[0] // k.shape[0]
    out = q.new_empty(q.shape[0], q.shape[1], v.shape[2])
    for head in range(q.shape[0]):
        logits = softmax.scores(q[head].to(wide) @ k[head // group].to(wide).T * scale)
        weights = softmax.weights(logits.masked_fill(~visible, float("-inf")), head)
        out[head] = (weights @ v[head // group].to(wide)).to(q.dtype)
    return out


def _accumulator(x: Tensor) -> torch.dtype:
    """Return f32 numbers; f64 inputs are unchanged."""
    return torch.promote_types(x.dtype, torch.float32)
