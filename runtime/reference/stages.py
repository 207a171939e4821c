"""The table of the reference interpreter: which function executes which kind of stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sscc.runtime import schedule
from sscc.runtime.reference import attention, cache, product, vector
from sscc.runtime.reference.interface import Bind, Interface

STAGES: dict[type, Callable[[Any, Interface], Bind]] = {
    schedule.Vector: vector.compile_vector,
    schedule.Reduction: vector.compile_reduction,
    schedule.Product: product.compile_product,
    schedule.UpdateRows: cache.compile_update_rows,
    schedule.CachedAttention: attention.compile_cached_attention,
    schedule.CausalAttention: attention.compile_causal_attention,
    schedule.Observe: cache.compile_observe,
    schedule.ObservationScores: attention.compile_observation_scores,
    schedule.Pool: cache.compile_pool,
    schedule.Select: cache.compile_select,
    schedule.GatherRows: cache.compile_gather_rows,
}
