"""The functions of the reference interpreter, by the kind of step that they execute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sscc.ir.opspec import Op, functions_of
from sscc.runtime.backends.reference import (
    attention,
    collectives,
    encoded_rows,
    kv_cache,
    learned_index,
    prefill_chunk,
    product,
    query,
    recurrence,
    selection,
    stored_weights,
    topk,
    vector,
)
from sscc.runtime.backends.reference.interface import Bind, Interface
from sscc.runtime.backends.reference.operands import step_of

MODULES = (
    *(attention, collectives, encoded_rows, kv_cache, learned_index, prefill_chunk, product, query, recurrence),
    *(selection, stored_weights, topk, vector),
)
STEPS: Mapping[type, Callable[[Any, Interface], Bind]] = {
    record: step_of(function) if issubclass(record, Op) else function
    for record, function in functions_of(*map(vars, MODULES)).items()
}
