"""The table of the reference interpreter: which function executes which kind of step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sscc.ir import schedule
from sscc.runtime.backends.reference import (
    attention,
    cache,
    collectives,
    encoded_rows,
    product,
    prompt,
    query,
    selection,
    topk,
    vector,
)
from sscc.runtime.backends.reference.interface import Bind, Interface
from sscc.runtime.backends.reference.operands import step_of

STEPS: dict[type, Callable[[Any, Interface], Bind]] = {
    schedule.Vector: vector.compile_vector,
    schedule.Reduction: vector.compile_reduction,
    schedule.Product: product.compile_product,
    schedule.AllReduce: collectives.compile_all_reduce,
    schedule.ReduceScatter: collectives.compile_reduce_scatter,
    schedule.AllGather: collectives.compile_all_gather,
    schedule.AllSlice: collectives.compile_all_slice,
    schedule.AllToAll: collectives.compile_all_to_all,
    schedule.UpdateRows: step_of(cache.update_rows),
    schedule.QuantizeRows: step_of(encoded_rows.quantize_rows),
    schedule.GatherRows: step_of(cache.gather_rows),
    schedule.CachedAttention: step_of(attention.cached_attention_step, attention.check_dtypes),
    schedule.DecodeAttention: step_of(attention.decode_attention_step, attention.check_dtypes),
    schedule.Landmarks: step_of(query.make_landmarks),
    schedule.LandmarkScores: step_of(query.score_landmarks),
    schedule.ChooseRows: step_of(query.choose_rows),
    schedule.FetchRows: step_of(query.fetch_rows),
    schedule.QueryAttention: step_of(query.query_attention),
    schedule.CausalAttention: step_of(prompt.causal_attention),
    schedule.Observe: step_of(prompt.observe),
    schedule.ChunkAttention: step_of(prompt.chunk_attention),
    schedule.LatentChunkAttention: step_of(prompt.latent_chunk_attention),
    schedule.ObservationScores: step_of(selection.score_positions),
    schedule.Pool: step_of(selection.pool),
    schedule.Select: step_of(selection.select),
    schedule.TopK: step_of(topk.topk),
}
