"""A decode step whose query chooses the rows that it attends to: landmarks, scores by them, the choice, and all in one.

The arithmetic of landmarks is that of `sscc.ir.landmarks`. Query heads stand as [Hkv, G, ..]: head h = g * G + j reads
KV head g.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sscc.ir import landmarks, resident_rows
from sscc.ir.choices import PLAIN_BITS
from sscc.ir.errors import InputError
from sscc.ir.schedule import ChooseRows, FetchRows, Landmarks, LandmarkScores, QueryAttention
from sscc.runtime.backends.reference.attention import SegmentRows, decode_attention, rows_with
from sscc.runtime.backends.reference.cache import check_rows, update_rows
from sscc.runtime.backends.reference.encoded_rows import numbers
from sscc.runtime.backends.reference.interface import Bind, Fire, Interface, Views
from sscc.runtime.backends.reference.softmax import check_groups

# --------------------------------------------------------------------------------------------------- landmarks


def compile_landmarks(step: Landmarks, interface: Interface) -> Bind:
    _check_codes(step.kind, step.bits, interface.match(step), interface)

    def bind(views: Views) -> Fire:
        key, codes, scales = views[step.key], views[step.codes], views[step.scales]

        def fire(_: object) -> None:
            for target, found in zip((codes, scales), landmarks_of(key, step.bits), strict=True):
                target.copy_(found)

        return fire

    return bind


def landmarks_of(key: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The step `Landmarks`: codes [B, Hkv, J, D * bits / 8] i8 and scales [B, Hkv, J, 1] bf16 of keys."""
    codes, scales = landmarks.encode(key.to(torch.float32).numpy(), bits)
    return torch.from_numpy(codes).view(torch.int8), torch.from_numpy(scales).to(torch.bfloat16)[..., None]


def _check_codes(kind: str, bits: int, sizes: dict[str, int], interface: Interface) -> None:
    if bits not in landmarks.MAGNITUDES or sizes["D"] * bits != 8 * sizes["E"]:
        interface.refuse(f"{kind} keeps keys of {sizes['D']} numbers in {bits} bits, {sizes['E']} bytes")


def _check_landmarks(step: LandmarkScores | QueryAttention, sizes: dict[str, int], interface: Interface) -> None:
    exact = step.bits == PLAIN_BITS
    if exact == bool(step.scales):
        interface.refuse(f"{step.kind} has landmarks of {step.bits} bits with {'' if step.scales else 'no '}scales")
    if not exact:
        _check_codes(step.kind, step.bits, sizes, interface)
    elif sizes["D"] != sizes["E"]:
        interface.refuse(f"{step.kind} takes keys of {sizes['E']} numbers, its query has {sizes['D']}")


# ------------------------------------------------------------------------------------------------------ scores


def compile_landmark_scores(step: LandmarkScores, interface: Interface) -> Bind:
    sizes = interface.match(step)
    check_groups(sizes, interface)
    _check_landmarks(step, sizes, interface)
    _check_ring(step, interface)
    score = _scorer(step, interface)

    def bind(views: Views) -> Fire:
        query, rows = views[step.query], [views[name] for name in (step.codes, step.scales) if name]
        position, active, scores = views[step.position], views[step.active], views[step.scores]

        def fire(_: object) -> None:
            for slot, begin, end in _candidates(position, active, step.sink, step.recent, rows[0].shape[2]):
                scores[slot, :, begin:end] = score(query[slot], *(row[slot, :, begin:end] for row in rows))

        return fire

    return bind


def _scorer(step: LandmarkScores | QueryAttention, interface: Interface) -> Callable[..., Tensor]:
    """What scores candidates by their landmarks: the query [H, 1, D], then codes and scales, or keys."""
    if step.bits == PLAIN_BITS:
        wide = interface.numerics.accumulate
        return lambda query, keys: exact_scores(query, keys, step.scale, wide).to(torch.float32)
    return lambda query, codes, scales: landmark_scores(query, codes, scales, step.bits, step.scale)


def exact_scores(query: Tensor, keys: Tensor, scale: float, wide: torch.dtype) -> Tensor:
    """Scaled products of a query [H, 1, D] with keys [Hkv, n, D]: [H, n] of `wide`."""
    queries = query.to(wide).reshape(keys.shape[0], -1, query.shape[2])
    return (queries @ keys.to(wide).transpose(-1, -2) * scale).reshape(query.shape[0], -1)


def landmark_scores(query: Tensor, codes: Tensor, scales: Tensor, bits: int, scale: float) -> Tensor:
    """What a query [H, 1, D] scores by landmarks, codes [Hkv, n, E] and scales [Hkv, n, 1]: [H, n] f32."""
    kv_heads = codes.shape[0]
    grouped = query.reshape(kv_heads, -1, query.shape[2]).to(torch.float32).numpy()
    queries, query_scales = landmarks.encode_query(grouped)
    levels = landmarks.decode(codes.view(torch.uint8).numpy(), bits)
    of_rows = scales[..., 0].to(torch.float32).numpy()
    found = landmarks.logits(queries, query_scales, levels, of_rows, bits, scale)
    return torch.from_numpy(found).reshape(query.shape[0], -1)


def _candidates(
    position: Tensor, active: Tensor, sink: int, recent: int, rows: int
) -> list[tuple[int, int, int]]:
    """(slot, begin, end) of the candidates of every active slot that has any. Raises InputError where they are beyond
    the rows of the landmarks."""
    found = []
    for slot in active.nonzero()[:, 0].tolist():
        begin, end = sink, int(position[slot]) + 1 - recent
        if end > rows:
            raise InputError(f"position {int(position[slot])} of slot {slot} is scored by {rows} landmarks")
        if begin < end:
            found.append((slot, begin, end))
    return found


# ---------------------------------------------------------------------------------------------------- the choice


def compile_choose_rows(step: ChooseRows, interface: Interface) -> Bind:
    check_groups(interface.match(step), interface)
    _check_ring(step, interface)
    wide = interface.numerics.accumulate

    def bind(views: Views) -> Fire:
        query, key, scores = views[step.query], views[step.key], views[step.scores]
        position, active, selected = views[step.position], views[step.active], views[step.selected]

        def fire(_: object) -> None:
            selected.fill_(-1)
            for slot, begin, end in _candidates(position, active, step.sink, step.recent, scores.shape[2]):
                picks = choose(
                    query[slot], numbers(key[slot]), scores[slot, :, begin:end], selected.shape[2], step.scale, wide
                )
                selected[slot, :, : picks.shape[1]] = picks + begin

        return fire

    return bind


def choose(query: Tensor, key: Tensor, scores: Tensor, topk: int, scale: float, wide: torch.dtype) -> Tensor:
    """The candidates with the largest mean probability over the heads of a group, ascending: [Hkv, min(topk, n)].

    Args:
        query: [H, 1, D].
        key: [Hkv, SR, D], sinks and ring, all of which hold a position: otherwise there are no candidates.
        scores: [H, n], of the candidates.
    """
    mass = masses(query, key, scores, scale, wide)
    order = torch.sort(mass, dim=1, descending=True, stable=True).indices[:, :topk]
    return order.sort(1).values


def masses(query: Tensor, key: Tensor, scores: Tensor, scale: float, wide: torch.dtype) -> Tensor:
    """The mean probability of each candidate, [Hkv, n]; arguments as those of `choose`."""
    kv_heads = key.shape[0]
    exact = exact_scores(query, key, scale, wide).reshape(kv_heads, -1, key.shape[1])
    approximate = scores.to(wide).reshape(kv_heads, -1, scores.shape[1])
    total = torch.cat([exact, approximate], 2).logsumexp(2, keepdim=True)
    return (approximate - total).exp().mean(1)


def compile_fetch_rows(step: FetchRows, interface: Interface) -> Bind:
    check_groups(interface.match(step), interface)
    _check_ring(step, interface)
    if step.fetch < 1:
        interface.refuse(f"{step.kind} fetches {step.fetch} rows")
    wide = interface.numerics.accumulate

    def bind(views: Views) -> Fire:
        query, key, scores = views[step.query], views[step.key], views[step.scores]
        position, active = views[step.position], views[step.active]
        residents = [views[name] for name in (step.resident, step.places, step.k_resident, step.v_resident)]
        stores = views[step.k_store], views[step.v_store]

        def fire(_: object) -> None:
            for slot, begin, end in _candidates(position, active, step.sink, step.recent, scores.shape[2]):
                mass = masses(query[slot], numbers(key[slot]), scores[slot, :, begin:end], step.scale, wide)
                fetch(mass, step.sink, step.fetch, [state[slot] for state in (*residents, *stores)])

        return fire

    return bind


def fetch(mass: Tensor, sink: int, limit: int, states: Sequence[Tensor]) -> None:
    """Brings a slot's resident set up to date, in place.

    Args:
        mass: [Hkv, n] of the candidates, from position `sink` on.
        states: positions and places [Hkv, K], K and V [Hkv, K, ..], then those of the store [Hkv, T, ..].
    """
    resident, places, k_resident, v_resident, k_store, v_store = states
    for head, weights in enumerate(mass.to(torch.float64).numpy()):
        if places[head].sort().values.tolist() != list(range(places.shape[1])):
            raise InputError(f"the places of resident rows are {places[head].tolist()}")
        done = resident_rows.fetch(resident[head].numpy(), places[head].numpy(), weights, sink, limit)
        resident[head], places[head] = torch.from_numpy(done.resident), torch.from_numpy(done.places)
        for place, position in done.rows:
            k_resident[head, place], v_resident[head, place] = k_store[head, position], v_store[head, position]


def _check_ring(step: LandmarkScores | ChooseRows | FetchRows | QueryAttention, interface: Interface) -> None:
    if step.sink < 0 or step.recent < 1:
        interface.refuse(f"{step.kind} has sink {step.sink} and recent {step.recent}")


# ---------------------------------------------------------------------------------------------------- all in one


def compile_query_attention(step: QueryAttention, interface: Interface) -> Bind:
    sizes = interface.match(step)
    check_groups(sizes, interface)
    _check_landmarks(step, sizes, interface)
    _check_ring(step, interface)
    if step.sink + step.recent != sizes["R"]:
        interface.refuse(f"it has sink {step.sink} and recent {step.recent} in a cache of {sizes['R']} rows")
    near = [step.resident, step.places, step.k_resident, step.v_resident]
    if step.fetch < 0 or {bool(name) for name in near} != {step.fetch > 0} or sizes.get("K", step.topk) != step.topk:
        interface.refuse(f"it chooses {step.topk} rows and fetches {step.fetch}, with resident rows {near}")
    wide, score = interface.numerics.accumulate, _scorer(step, interface)

    def bind(views: Views) -> Fire:
        query, new_key, new_value = views[step.query], views[step.new_key], views[step.new_value]
        key, rows = views[step.key], [views[name] for name in (step.codes, step.scales) if name]
        k_store, v_store = views[step.k_store], views[step.v_store]
        position, active, out = views[step.position], views[step.active], views[step.out]
        value, k_cache, v_cache = views[step.value], views[step.k_cache], views[step.v_cache]
        residents = [views[name] for name in near if name]

        def fire(_: object) -> None:
            check_rows(position[active], k_store.shape[2])
            selected = torch.full((*key.shape[:2], step.topk), -1)
            row = torch.where(position < step.sink, position, step.sink + (position - step.sink) % step.recent)
            ring = rows_with(key, new_key.to(key.dtype), row, active)(0, key.shape[2])
            for slot, begin, end in _candidates(position, active, step.sink, step.recent, rows[0].shape[2]):
                found = score(query[slot], *(row[slot, :, begin:end] for row in rows))
                if residents:
                    mass = masses(query[slot], ring[slot], found, step.scale, wide)
                    fetch(mass, step.sink, step.fetch, [state[slot] for state in (*residents, k_store, v_store)])
                    continue
                picks = choose(query[slot], ring[slot], found, step.topk, step.scale, wide)
                selected[slot, :, : picks.shape[1]] = picks + begin
            made = (new_key,) if step.bits == PLAIN_BITS else landmarks_of(new_key, step.bits)
            chosen = SegmentRows(k_store, v_store, selected)
            if residents:
                chosen = SegmentRows(residents[2], residents[3], residents[1])
            decode_attention(
                query, new_key, new_value, key, value, k_cache, v_cache, position, position + 1, active, out,
                segments=[chosen], sink=step.sink, recent=step.recent,
                scale=step.scale, wide=wide,
            )  # fmt: skip
            for store, new in zip((k_store, v_store, *rows), (new_key, new_value, *made), strict=True):
                update_rows(store, new, position, active)

        return fire

    return bind
