"""The operands of a layer's captured attention, and the errors of `thread-cache`, which gives it a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir

from sscc.ir.dialects.kv import ATTENDING, STATEFUL
from sscc.ir.errors import ErrorKind, InputError, UnsupportedError, UsageError
from sscc.ir.locations import origin_of
from sscc.ir.views import begins

LAYER = "sscc.layer"


class ThreadCacheErrors(ErrorKind):
    OTHER_BUDGETS = UsageError, "--kv-topk-per-layer: {cause}"
    TWO_OPERATORS = (
        UnsupportedError,
        "{origin}{function} has several operators {operators}, but a layer can have only one state of each kind",
    )
    OTHER_QUERIES = (
        UnsupportedError,
        "{origin}the queries have {heads} heads of width {width}, but those of another layer with the same K and V "
        "have {other_heads} of width {other_width}: the two would share one observation window",
    )
    OTHER_LATENT_HEADS = (
        UnsupportedError,
        "{origin}the latent rows are as wide as another layer's, but the K and V of the heads are not",
    )
    OTHER_IN_DECODE = UnsupportedError, "{origin}layer {layer} attends differently in decode and in prefill"
    SOURCE_KEEPS_NOTHING = (
        UnsupportedError,
        "{origin}layer {layer} shares the K and V of layer {source}, which keeps none",
    )
    SHARED_OTHER_WINDOW = (
        UnsupportedError,
        "{origin}layer {layer} shares the K and V of layer {source}, but it attends to {window} and the other to "
        "{other_window}: what is kept for one is not what the other needs",
    )
    SHARED_OTHER_QUERIES = (
        UnsupportedError,
        "{origin}layer {layer} shares the K and V of layer {source}, but it has {heads} query heads of width {width} "
        "and the other {other_heads} of width {other_width}",
    )
    SHARED_WITH_FETCH = (
        UnsupportedError,
        "{origin}layer {layer} shares the K and V of layer {source}, but with --kv-fetch the rows that stay near are "
        "those that one layer chooses: leave --kv-fetch out",
    )
    BAD_KEY_BITS = UsageError, "{origin}{cause}"
    ROW_NOT_WHOLE_BYTES = (
        UnsupportedError,
        "{origin}a row of {width} codes of {bits} bits does not fill whole bytes: use --kv-dtype int8",
    )
    COMPUTED_SINKS = (
        UnsupportedError,
        "{origin}layer {layer} computes the logits of its learned sinks, but they must be a weight where --kv-fetch "
        "chooses at the end of a prompt",
    )
    COMPUTED_KEY_WEIGHT = UnsupportedError, "{origin}the matrix that computes keys from latent rows is not a weight"
    RULE_OF_LATENT_ROWS = (
        UnsupportedError,
        "{origin}layer {layer} keeps latent rows, from which a rule gets neither keys nor values of a head: use "
        "--kv-policy snapstream or query",
    )
    NO_RULE = InputError, "{origin}the module has no function that scores the prompts of this layer"


def operators_of(function: Any) -> list[ir.Operation]:
    """Return the operations of a layer's function that depend on earlier tokens, attention first.

    Raises:
        UnsupportedError: there are several of one kind.
    """
    operators = [op.operation for op in function.entry_block.operations if op.operation.name in STATEFUL]
    place = {"origin": origin_of(function), "function": function.name.value}
    attending = [op for op in operators if op.name in ATTENDING]
    others = [op for op in operators if op.name not in ATTENDING]
    if len(attending) > 1 or len({op.name for op in others}) < len(others):
        raise ThreadCacheErrors.TWO_OPERATORS(**place, operators=[op.name for op in operators])
    return attending + others


@dataclass(frozen=True)
class Attended:
    """The operands of a layer's attention operator.

    Attributes:
        query: queries.
        rows: cached rows of each position: K and V, or a latent row, whose first numbers are V; empty if another layer
            caches them.
        ups: weights that compute K and V from a latent row, if prefill attends to latent rows.
        sinks: logits of learned sinks; None without them.
        chosen: positions that an index selects; None if it attends to all.
    """

    query: ir.Value
    rows: tuple[ir.Value, ...]
    ups: tuple[ir.Value, ...] = ()
    sinks: tuple[ir.Value, ...] = ()
    chosen: ir.Value | None = None

    @classmethod
    def by(cls, attention: ir.Operation, values: Callable[[ir.Value], ir.Value] = lambda value: value) -> Attended:
        """Return the operands of an attention operator.

        Args:
            values: maps an operand to the value that replaces it.
        """
        operands = [values(operand) for operand in attention.operands]
        if attention.name == "kv.latent_attention":
            return cls(operands[0], (operands[1],), tuple(operands[2:4]))
        if attention.name == "kv.shared_attention":
            return cls(operands[0], (), sinks=tuple(operands[1:]))
        query, key, value, *sinks = operands
        chosen = sinks.pop(0) if attention.name == "kv.chosen_attention" else None
        is_window = begins(attention.operands[2], attention.operands[1])
        return cls(query, (key,) if is_window else (key, value), sinks=tuple(sinks), chosen=chosen)


def heads_and_dims(values: Iterable[ir.Value]) -> list[tuple[int, int]]:
    """Return (heads, head dim) of Q, K and V."""
    return [(v.type.shape[1], v.type.shape[3]) for v in values]
