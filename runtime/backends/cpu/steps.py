"""The table of native code: which function generates the code of which kind of step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.opspec import Op
from sscc.runtime.backends.cpu import (
    decode_attention,
    decode_attention_rows,
    encoded_rows,
    gather_rows,
    landmarks,
    latent_prefill,
    prefill_attention,
    query_attention,
    selection,
    topk,
)
from sscc.runtime.backends.cpu.features import Features
from sscc.runtime.backends.cpu.phases import Lowered
from sscc.runtime.backends.cpu.row_copies import Meta

_LOWERINGS: dict[str, Callable[[Any, dict[str, Meta], Features], Lowered]] = {
    "update_rows": decode_attention_rows.lower_update_rows,
    "cached_attention": decode_attention_rows.lower_cached_attention,
    "decode_attention": decode_attention.lower_decode_attention,
    "chunk_attention": prefill_attention.lower_chunk_attention,
    "latent_chunk_attention": latent_prefill.lower_latent_chunk_attention,
    "causal_attention": prefill_attention.lower_causal_attention,
    "observe": prefill_attention.lower_observe,
    "observation_scores": selection.lower_observation_scores,
    "pool": selection.lower_pool,
    "select": selection.lower_select,
    "quantize_rows": encoded_rows.lower_quantize_rows,
    "gather_rows": gather_rows.lower_gather_rows,
    "landmarks": landmarks.lower_landmarks,
    "landmark_scores": query_attention.lower_landmark_scores,
    "fetch_rows": query_attention.lower_fetch_rows,
    "choose_rows": query_attention.lower_choose_rows,
    "query_attention": query_attention.lower_query_attention,
    "topk": topk.lower_topk,
}


class NativeStepErrors(ErrorKind):
    UNKNOWN = InputError, "there is no native code for the step {step}"


def lower_step(step: Op, operands: Mapping[str, Meta], features: Features) -> Lowered:
    """The phases of a step that is no vector program, reduction or product.

    Raises InputError for a kind that there is no native code for, or operands that it does not take.
    """
    if step.kind not in _LOWERINGS:
        raise NativeStepErrors.UNKNOWN(step=step.kind)
    return _LOWERINGS[step.kind](step, dict(operands), features)
