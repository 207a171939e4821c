"""A decode step whose query chooses the rows that it attends to: landmarks, scores by them, the choice, and all in one.

The arithmetic of landmarks is that of `sscc.ir.landmarks`. Query heads stand as [Hkv, G, ..]: head h = g * G + j reads
KV head g.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sscc.ir import landmarks
from sscc.ir.errors import InputError
from sscc.ir.schedule import ChooseRows, Landmarks, LandmarkScores, QueryAttention
from sscc.runtime.backends.reference.attention import SegmentRows, decode_attention, rows_with
from sscc.runtime.backends.reference.cache import check_rows, update_rows
from sscc.runtime.backends.reference.encoded_rows import as_stored, check_alike, numbers
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


# ------------------------------------------------------------------------------------------------------ scores


def compile_landmark_scores(step: LandmarkScores, interface: Interface) -> Bind:
    sizes = interface.match(step)
    check_groups(sizes, interface)
    _check_codes(step.kind, step.bits, sizes, interface)
    _check_ring(step, interface)

    def bind(views: Views) -> Fire:
        query, codes, scales = views[step.query], views[step.codes], views[step.scales]
        position, active, scores = views[step.position], views[step.active], views[step.scores]

        def fire(_: object) -> None:
            for slot, begin, end in _candidates(position, active, step.sink, step.recent, codes.shape[2]):
                rows = codes[slot, :, begin:end], scales[slot, :, begin:end]
                scores[slot, :, begin:end] = landmark_scores(query[slot], *rows, step.bits, step.scale)

        return fire

    return bind


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
                ring = numbers(key[slot], query.shape[3])
                found = scores[slot, :, begin:end]
                picks = choose(query[slot], ring, found, selected.shape[2], step.scale, wide)
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
    kv_heads = key.shape[0]
    queries = query.to(wide).reshape(kv_heads, -1, query.shape[2])
    exact = (queries @ key.to(wide).transpose(-1, -2)) * scale
    approximate = scores.to(wide).reshape(kv_heads, -1, scores.shape[1])
    total = torch.cat([exact, approximate], 2).logsumexp(2, keepdim=True)
    mass = (approximate - total).exp().mean(1)
    order = torch.sort(mass, dim=1, descending=True, stable=True).indices[:, :topk]
    return order.sort(1).values


def _check_ring(step: LandmarkScores | ChooseRows | QueryAttention, interface: Interface) -> None:
    if step.sink < 0 or step.recent < 1:
        interface.refuse(f"{step.kind} has sink {step.sink} and recent {step.recent}")


# ---------------------------------------------------------------------------------------------------- all in one


def compile_query_attention(step: QueryAttention, interface: Interface) -> Bind:
    sizes = interface.match(step)
    check_groups(sizes, interface)
    _check_codes(step.kind, step.bits, sizes, interface)
    _check_ring(step, interface)
    if step.sink + step.recent != sizes["R"]:
        interface.refuse(f"it has sink {step.sink} and recent {step.recent} in a cache of {sizes['R']} rows")
    check_alike(step.kind, interface, step.key, step.value, step.k_cache, step.v_cache, step.k_store, step.v_store)
    wide = interface.numerics.accumulate

    def bind(views: Views) -> Fire:
        query, new_key, new_value = views[step.query], views[step.new_key], views[step.new_value]
        key, codes, scales = views[step.key], views[step.codes], views[step.scales]
        k_store, v_store = views[step.k_store], views[step.v_store]
        position, active, out = views[step.position], views[step.active], views[step.out]
        value, k_cache, v_cache = views[step.value], views[step.k_cache], views[step.v_cache]

        def fire(_: object) -> None:
            check_rows(position[active], k_store.shape[2])
            selected = torch.full((*key.shape[:2], step.topk), -1)
            row = torch.where(position < step.sink, position, step.sink + (position - step.sink) % step.recent)
            ring = rows_with(key, as_stored(new_key, key), row, active)(0, key.shape[2])
            for slot, begin, end in _candidates(position, active, step.sink, step.recent, codes.shape[2]):
                of_rows = codes[slot, :, begin:end], scales[slot, :, begin:end]
                found = landmark_scores(query[slot], *of_rows, step.bits, step.scale)
                picks = choose(query[slot], numbers(ring[slot], query.shape[3]), found, step.topk, step.scale, wide)
                selected[slot, :, : picks.shape[1]] = picks + begin
            new = (as_stored(new_key, k_store), as_stored(new_value, v_store), *landmarks_of(new_key, step.bits))
            decode_attention(
                query, new_key, new_value, key, value, k_cache, v_cache, position, position + 1, active, out,
                segments=[SegmentRows(k_store, v_store, selected)], sink=step.sink, recent=step.recent,
                scale=step.scale, wide=wide,
            )  # fmt: skip
            for store, rows in zip((k_store, v_store, codes, scales), new, strict=True):
                update_rows(store, rows, position, active)

        return fire

    return bind
