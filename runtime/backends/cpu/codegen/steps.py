"""The functions that generate native code, by the kind of step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.operations import Dequantize, LookUp
from sscc.ir.opspec import Op, functions_of
from sscc.runtime.backends.cpu.attention import (
    decode_attention,
    latent_prefill,
    learned_index,
    observation_scores,
    prefill_attention,
    quantized_keys,
    query_attention,
    row_source,
)
from sscc.runtime.backends.cpu.codegen import encoded_rows, gather_rows, recurrence, topk
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.phases import Lowered
from sscc.runtime.backends.cpu.codegen.row_copies import Meta
from sscc.runtime.backends.cpu.products.packing import Panels
from sscc.runtime.backends.cpu.products.quantized_packing import QuantizedPanels
from sscc.runtime.backends.cpu.products.stored_numbers import lower_stored

MODULES = (
    *(decode_attention, encoded_rows, gather_rows, quantized_keys, latent_prefill, learned_index, observation_scores),
    *(prefill_attention, query_attention, recurrence, row_source, topk),
)
LOWERINGS: Mapping[type, Callable[[Any, dict[str, Meta], Features], Lowered]] = functions_of(*map(vars, MODULES))
STORED = (Dequantize, LookUp)
"""Steps whose code depends on the packing of their operands."""


class NativeStepErrors(ErrorKind):
    UNKNOWN = InputError, "the step {step} has no native code"


def lower_step(
    step: Op,
    operands: Mapping[str, Meta],
    features: Features,
    packed: Mapping[str, Panels | QuantizedPanels] = MappingProxyType({}),
) -> Lowered:
    """Return the phases of a step that is not a vector program, reduction or product.

    Args:
        packed: packing of operands, by the names that the step uses.

    Raises InputError for a step without native code, or unsupported operands.
    """
    if isinstance(step, STORED):
        return lower_stored(step, operands, features, packed)
    if type(step) not in LOWERINGS:
        raise NativeStepErrors.UNKNOWN(step=step.kind)
    return LOWERINGS[type(step)](step, dict(operands), features)
