"""A decode step whose query chooses the rows that it attends to: quantized keys, their scores, the choice, and a fused
step of all three.

`sscc.ir.quantized_keys` defines the arithmetic of quantized keys. Query heads are laid out as [Hkv, G, ..]: head
h = g * G + j reads KV head g.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sscc.ir import operations, quantized_keys, resident_rows
from sscc.ir.choices import PLAIN_BITS
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.opspec import executes
from sscc.runtime.backends.reference.attention import (
    SegmentRows,
    cache_seen,
    decode_attention,
    ring_row,
    rows_seen,
    rows_with,
)
from sscc.runtime.backends.reference.encoded_rows import as_stored, numbers
from sscc.runtime.backends.reference.kv_cache import check_rows, update_rows
from sscc.runtime.backends.reference.softmax import Scoring


class ReferenceQueryErrors(ErrorKind):
    TOO_FEW_KEYS = InputError, (
        "position {position} of slot {slot} needs the quantized keys of all candidates, but there are only {rows}"
    )
    BAD_PLACES = (
        InputError,
        "the places of resident rows of KV head {head} must contain each row once, but they are {places}",
    )

# --------------------------------------------------------------------------------------------------- quantized keys


@executes(operations.QuantizeKeys)
def quantize_keys(key: Tensor, codes: Tensor, scales: Tensor, *, bits: int) -> None:
    """Execute the step `QuantizeKeys` (see it for shapes)."""
    for target, rows in zip((codes, scales), quantized_keys_of(key, bits), strict=True):
        target.copy_(rows)


def quantized_keys_of(key: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the codes [B, Hkv, J, D * bits / 8] i8 and scales [B, Hkv, J, 1] bf16 of keys."""
    codes, scales = quantized_keys.encode(key.to(torch.float32).numpy(), bits)
    return torch.from_numpy(codes).view(torch.int8), torch.from_numpy(scales).to(torch.bfloat16)[..., None]


# ------------------------------------------------------------------------------------------------------ scores


@executes(operations.QuantizedKeyScores)
def score_quantized_keys(
    query: Tensor,
    codes: Tensor,
    scales: Tensor | None,
    position: Tensor,
    active: Tensor,
    scores: Tensor,
    *,
    scale: float,
    sink: int,
    recent: int,
    bits: int,
    softcap: float | None = None,
    wide: torch.dtype,
) -> None:
    """Execute the step `QuantizedKeyScores` (see it for shapes)."""
    for token, begin, end in _candidates(position, active, sink, recent, codes.shape[2]):
        rows = _quantized_keys_at(token // (len(query) // len(codes)), begin, end, codes, scales)
        scores[token, :, begin:end] = _scores(query[token], rows, bits, Scoring(scale, softcap), wide)


def _quantized_keys_at(slot: int, begin: int, end: int, codes: Tensor, scales: Tensor | None) -> list[Tensor]:
    return [rows[slot, :, begin:end] for rows in (codes, scales) if rows is not None]


def _scores(query: Tensor, rows: list[Tensor], bits: int, scoring: Scoring, wide: torch.dtype) -> Tensor:
    """Return the scores of a query [H, 1, D] with candidates, by codes and scales or by keys."""
    if bits == PLAIN_BITS:
        return exact_scores(query, rows[0], scoring, wide).to(torch.float32)
    codes, scales = rows
    return quantized_key_scores(query, codes, scales, bits, scoring)


def exact_scores(query: Tensor, keys: Tensor, scoring: Scoring, wide: torch.dtype) -> Tensor:
    """Return the scores [H, n] of dtype `wide` of a query [H, 1, D] with keys [Hkv, n, D]."""
    queries = query.to(wide).reshape(keys.shape[0], -1, query.shape[2])
    return scoring.scores(queries @ keys.to(wide).transpose(-1, -2)).reshape(query.shape[0], -1)


def quantized_key_scores(query: Tensor, codes: Tensor, scales: Tensor, bits: int, scoring: Scoring) -> Tensor:
    """Return the scores [H, n] f32 of a query [H, 1, D] with quantized keys: codes [Hkv, n, E] and scales
    [Hkv, n, 1]."""
    kv_heads = codes.shape[0]
    grouped = query.reshape(kv_heads, -1, query.shape[2]).to(torch.float32).numpy()
    queries, query_scales = quantized_keys.encode_query(grouped)
    levels = quantized_keys.decode(codes.view(torch.uint8).numpy(), bits)
    of_rows = scales[..., 0].to(torch.float32).numpy()
    logits = quantized_keys.logits(queries, query_scales, levels, of_rows, bits, scoring.scale)
    return scoring.capped(torch.from_numpy(logits)).reshape(query.shape[0], -1)


def _candidates(
    position: Tensor, active: Tensor, sink: int, recent: int, rows: int
) -> list[tuple[int, int, int]]:
    """Yield (token, begin, end) of the candidates of every active token that has any. Raises InputError if candidates
    are beyond the rows of the quantized keys."""
    candidates = []
    for slot in active.nonzero()[:, 0].tolist():
        begin, end = sink, int(position[slot]) + 1 - recent
        if end > rows:
            raise ReferenceQueryErrors.TOO_FEW_KEYS(slot=slot, position=int(position[slot]), rows=rows)
        if begin < end:
            candidates.append((slot, begin, end))
    return candidates


# ---------------------------------------------------------------------------------------------------- the choice


@executes(operations.ChooseRows)
def choose_rows(
    query: Tensor,
    key: Tensor,
    scores: Tensor,
    position: Tensor,
    active: Tensor,
    selected: Tensor,
    sink_logits: Tensor | None = None,
    *,
    scale: float,
    sink: int,
    recent: int,
    softcap: float | None = None,
    spare: int,
    wide: torch.dtype,
) -> None:
    """Execute the step `ChooseRows` (see it for shapes)."""
    selected.fill_(-1)
    scoring, near = Scoring(scale, softcap, sink_logits), _seen(position, active, sink, recent, spare)
    for token, begin, end in _candidates(position, active, sink, recent, scores.shape[2]):
        candidate_scores, topk = scores[token, :, begin:end], selected.shape[2]
        keys = numbers(key[token // (len(query) // len(key))][:, near[token]], query.shape[3])
        picks = choose(query[token], keys, candidate_scores, topk, scoring, wide)
        selected[token, :, : picks.shape[1]] = picks + begin


def _seen(position: Tensor, active: Tensor, sink: int, recent: int, spare: int) -> Tensor:
    """Return the rows of sinks and ring that each token sees, [Q, SR] i1."""
    row = ring_row(position, position, sink, 0, recent + spare)
    return cache_seen(position, position, active, row, sink + recent + spare, sink, 0, recent, spare)


def choose(query: Tensor, key: Tensor, scores: Tensor, topk: int, scoring: Scoring, wide: torch.dtype) -> Tensor:
    """Return the candidates with the largest mean probability over the heads of a group, ascending: [Hkv, min(topk,
    n)].

    Args:
        query: [H, 1, D].
        key: [Hkv, SR, D], the rows of sinks and ring that the query sees.
        scores: [H, n], scores of the candidates.
    """
    mass = masses(query, key, scores, scoring, wide)
    order = torch.sort(mass, dim=1, descending=True, stable=True).indices[:, :topk]
    return order.sort(1).values


def masses(query: Tensor, key: Tensor, scores: Tensor, scoring: Scoring, wide: torch.dtype) -> Tensor:
    """Return the mean probability of each candidate, [Hkv, n]; arguments as for `choose`."""
    kv_heads = key.shape[0]
    exact = exact_scores(query, key, scoring, wide).reshape(kv_heads, -1, key.shape[1])
    approximate = scores.to(wide).reshape(kv_heads, -1, scores.shape[1])
    sinks = [] if scoring.sinks is None else [scoring.sinks.to(wide).reshape(kv_heads, -1, 1)]
    total = torch.cat([exact, approximate, *sinks], 2).logsumexp(2, keepdim=True)
    return (approximate - total).exp().mean(1)


@executes(operations.FetchRows)
def fetch_rows(
    query: Tensor,
    key: Tensor,
    scores: Tensor,
    k_store: Tensor,
    v_store: Tensor | None,
    position: Tensor,
    active: Tensor,
    resident: Tensor,
    places: Tensor,
    k_resident: Tensor,
    v_resident: Tensor | None,
    sink_logits: Tensor | None = None,
    *,
    scale: float,
    sink: int,
    recent: int,
    fetch: int,
    softcap: float | None = None,
    wide: torch.dtype,
) -> None:
    """Execute the step `FetchRows` (see it for shapes)."""
    states = [state for state in (resident, places, k_resident, v_resident, k_store, v_store) if state is not None]
    scoring = Scoring(scale, softcap, sink_logits)
    for slot, begin, end in _candidates(position, active, sink, recent, scores.shape[2]):
        mass = masses(query[slot], numbers(key[slot], query.shape[3]), scores[slot, :, begin:end], scoring, wide)
        update_residents(mass, sink, fetch, [state[slot] for state in states])


def update_residents(mass: Tensor, sink: int, limit: int, states: Sequence[Tensor]) -> None:
    """Update the resident set of a slot in place.

    Args:
        mass: [Hkv, n], mean probabilities of the candidates, from position `sink` on.
        states: positions and places [Hkv, K], rows of each stream [Hkv, K, ..], then those of the store [Hkv, T, ..].
    """
    resident, places, *rows = states
    near, far = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    for head, weights in enumerate(mass.to(torch.float64).numpy()):
        if places[head].sort().values.tolist() != list(range(places.shape[1])):
            raise ReferenceQueryErrors.BAD_PLACES(head=head, places=places[head].tolist())
        done = resident_rows.fetch(resident[head].numpy(), places[head].numpy(), weights, sink, limit)
        resident[head], places[head] = torch.from_numpy(done.resident), torch.from_numpy(done.places)
        for place, position in done.rows:
            for target, store in zip(near, far, strict=True):
                target[head, place] = store[head, position]


# ---------------------------------------------------------------------------------------------------- all in one


@executes(operations.QueryAttention)
def query_attention(
    query: Tensor,
    new_key: Tensor,
    new_value: Tensor | None,
    key: Tensor,
    value: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    k_store: Tensor,
    v_store: Tensor | None,
    codes: Tensor,
    scales: Tensor | None,
    position: Tensor,
    active: Tensor,
    out: Tensor,
    resident: Tensor | None,
    places: Tensor | None,
    k_resident: Tensor | None,
    v_resident: Tensor | None,
    sink_logits: Tensor | None = None,
    *,
    scale: float,
    sink: int,
    recent: int,
    topk: int,
    bits: int,
    fetch: int,
    softcap: float | None = None,
    spare: int,
    wide: torch.dtype,
) -> None:
    """Execute the step `QueryAttention` (see it for shapes)."""
    check_rows(position[active], k_store.shape[2])
    scoring = Scoring(scale, softcap, sink_logits)
    selected, per_slot = torch.full((len(query), key.shape[1], topk), -1), len(query) // len(key)
    residents = [state for state in (resident, places, k_resident, v_resident) if state is not None]
    far = [store for store in (k_store, v_store) if store is not None]
    row = ring_row(position, position, sink, 0, recent + spare)
    ring = rows_with(key, as_stored(new_key, key), row, active)(0, key.shape[2])
    near = _seen(position, active, sink, recent, spare)
    for token, begin, end in _candidates(position, active, sink, recent, codes.shape[2]):
        slot = token // per_slot
        quantized = _quantized_keys_at(slot, begin, end, codes, scales)
        candidate_scores = _scores(query[token], quantized, bits, scoring, wide)
        keys = numbers(ring[slot][:, near[token]], query.shape[3])
        if residents:
            mass = masses(query[token], keys, candidate_scores, scoring, wide)
            update_residents(mass, sink, fetch, [state[slot] for state in (*residents, *far)])
        else:
            picks = choose(query[token], keys, candidate_scores, topk, scoring, wide)
            selected[token, :, : picks.shape[1]] = picks + begin
    new_quantized = [new_key] if bits == PLAIN_BITS else quantized_keys_of(new_key, bits)
    new = [as_stored(new_key, k_store), *new_quantized]
    if new_value is not None and v_store is not None:
        new.insert(1, as_stored(new_value, v_store))
    stores = [store for store in (*far, codes, scales) if store is not None]
    for store, rows in zip(stores, new, strict=True):
        update_rows(store, rows, position, active)
    chosen = SegmentRows(k_store, v_store, selected)
    if k_resident is not None:
        chosen = SegmentRows(k_resident, v_resident, places)
    behind = rows_seen(position + 1 - (sink + recent), active, topk, topk)
    decode_attention(
        query, new_key, new_value, key, value, k_cache, v_cache, position, active, out, sink_logits, row=row,
        masks=[near, behind], behind=[chosen], scale=scale, softcap=softcap, wide=wide,
    )  # fmt: skip
