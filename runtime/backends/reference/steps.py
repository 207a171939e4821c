"""The table of the reference interpreter: which function executes which kind of step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sscc.ir import schedule
from sscc.runtime.backends.reference import attention, cache, encoded_rows, product, prompt, query, selection, vector
from sscc.runtime.backends.reference.interface import Bind, Interface

STEPS: dict[type, Callable[[Any, Interface], Bind]] = {
    schedule.Vector: vector.compile_vector,
    schedule.Reduction: vector.compile_reduction,
    schedule.Product: product.compile_product,
    schedule.UpdateRows: cache.compile_update_rows,
    schedule.QuantizeRows: encoded_rows.compile_quantize_rows,
    schedule.GatherRows: cache.compile_gather_rows,
    schedule.CachedAttention: attention.compile_cached_attention,
    schedule.DecodeAttention: attention.compile_decode_attention,
    schedule.Landmarks: query.compile_landmarks,
    schedule.LandmarkScores: query.compile_landmark_scores,
    schedule.ChooseRows: query.compile_choose_rows,
    schedule.FetchRows: query.compile_fetch_rows,
    schedule.QueryAttention: query.compile_query_attention,
    schedule.CausalAttention: prompt.compile_causal_attention,
    schedule.Observe: prompt.compile_observe,
    schedule.ChunkAttention: prompt.compile_chunk_attention,
    schedule.ObservationScores: selection.compile_observation_scores,
    schedule.Pool: selection.compile_pool,
    schedule.Select: selection.compile_select,
}
