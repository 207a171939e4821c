"""thread-cache: attention over the captured tokens becomes attention over a compressed KV cache.

What: in a decode layer, `kv.self_attention` becomes row, update, validity and attention over cached rows. In a
prefill layer it becomes an append to the layer's prompt scratch and full causal attention over it. If the end of the
prompt selects rows, a prefill layer also collects the observation queries and their log-sum-exp. Each layer gets a
`compress` function: SnapKV scores, pooling, top-K, the positions of the cache's rows, and the rows of K and V at these
positions, written into a slot of the decode cache. Nothing is fused yet, so that the IR reads like the definition.

Why: a captured model has no cache. This pass fixes the cache's size, so that all later tensors have static sizes that
do not grow with the context.

With indexed rows (`--kv-rows indexed`) `compress` copies all rows of a prompt that fits the cache, or the sinks and
ring of a longer one, and writes the selected positions. Decode attends to two segments: the cache, and the selected
rows of the prompt, which an index names; `kv.validity` says which rows of the cache they replace.

If every step's query selects (`--kv-policy query`), the rows of all positions stay where prefill and decode write them,
together with quantized keys. `compress` fills sinks and ring; decode adds the row of its position, scores the
quantized keys, selects rows, and attends to them as a second segment.

If a user's rule scores prompts (`--kv-policy FILE`), the module has a function with the rule's operations (`sscc.rule`)
for each kind of layers. These operations are cloned into `compress` in place of `kv.observation_scores`, and the scores
are pooled if the rule requests it; the functions are removed.

With encoded rows (`--kv-dtype int8` or `int4`) the caches are i8: `kv.gather` encodes the rows that it copies, and the
row of a decode step passes through `kv.quantize_rows`. If queries select, so do the rows of a prompt on their way into
its scratch, which is i8 too, and `kv.causal_attention` uses the decoded rows. Quantized keys are made from unencoded
keys.

Before::

    func.func private @decode.layer.0(%h: tensor<2x4x1x8xf32> {sscc.input = "hidden"})
        -> (tensor<2x4x1x8xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
      %o = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64}
        : (tensor<2x4x1x8xf32>, tensor<2x4x1x8xf32>, tensor<2x4x1x8xf32>) -> tensor<2x4x1x8xf32>
      return %o : tensor<2x4x1x8xf32>
    }
    func.func private @prefill.layer.0(%h: tensor<1x4x4x8xf32> {sscc.input = "hidden"})
        -> (tensor<1x4x4x8xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "prefill", sscc.layer = 0 : i64} {
      %o = "kv.self_attention"(%h, %h, %h) {layer = 0 : i64, scale = 0.25 : f64}
        : (tensor<1x4x4x8xf32>, tensor<1x4x4x8xf32>, tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32>
      return %o : tensor<1x4x4x8xf32>
    }

After, in a decode layer::

    func.func private @decode.layer.0(%h: .. "hidden"}, %k_cache: .. "k_cache"}, %v_cache: .. "v_cache"}, ..
      %topk = arith.constant 1 : index
      %row = "kv.row"(%position, %base, %topk) ..
      %k_cache1 = "kv.update"(%k_cache, %h, %row, %active) ..
      %v_cache1 = "kv.update"(%v_cache, %h, %row, %active) ..
      %valid = "kv.validity"(%position, %base, %active, %topk) ..
      %o = "kv.cached_attention"(%h, %k_cache1, %v_cache1, %valid) ..
      return %o, %k_cache1, %v_cache1 : ..

After, in a prefill layer::

    func.func private @prefill.layer.0(%h: .. "hidden"}, %k_scratch: .. "k_scratch"}, %v_scratch: .. "v_scratch"}, ..
      %k_scratch1 = tensor.insert_slice %h into %k_scratch[0, 0, %start, 0] ..
      %v_scratch1 = tensor.insert_slice %h into %v_scratch[0, 0, %start, 0] ..
      %o:2 = "kv.causal_attention"(%h, %k_scratch1, %v_scratch1, %start, %length) ..
      %observed1 = "kv.observe"(%observed, %h, %start, %length) ..
      %log_sum_exp1 = "kv.observe"(%log_sum_exp, %o#1, %start, %length) ..
      return %o#0, %k_scratch1, %v_scratch1, %observed1, %log_sum_exp1 : ..

After, once per layer::

    func.func private @prefill.compress.0(%k_scratch: .. "k_scratch"}, %v_scratch: .. "v_scratch"}, %observed: ..
      %topk = arith.constant 1 : index
      %scores = "kv.observation_scores"(%observed, %log_sum_exp, %k_scratch, %length) ..
      %pooled = "kv.pool"(%scores, %length) ..
      %selected = "kv.select"(%pooled, %length, %topk) ..
      %rows = "kv.kept_positions"(%length, %topk, %selected) ..
      %k_slot = tensor.extract_slice %k_cache[%slot, 0, 0, 0] ..
      %k_rows = "kv.gather"(%k_scratch, %rows, %k_slot) ..
      %k_cache1 = tensor.insert_slice %k_rows into %k_cache[%slot, 0, 0, 0] ..
      ..
      return %k_cache1, %v_cache1, %selected : ..

Ranks that share KV heads (`kv.head_parts`, of the pass shard) have the same rows and select together. At the end of a
prompt their scores are summed before they are pooled; if a step's query selects, it is scored together with those of
the other ranks. If the ranks divide the slots among themselves, each has only the rows of its slots: a step sends
queries to the ranks that have the slots, by all_to_all, attends there with all heads that read a KV head, and sends the
results back. Two functions then run after a prompt's last chunk: `choose`, on all of these ranks, and `compress`, with
`own_slot` in place of `slot`, on the rank that has the slot.

A layer that shares the K and V of an earlier one (`kv.shared_attention`) has neither state nor `compress`: it attends
to the rows of that layer, which has updated them earlier in this step, or appended them in its phase of a prompt, and
to those that were selected for it. If queries select, it selects by its own query and that layer's quantized keys.

Layers with the same kind of cache are a group (`kv.groups`, `sscc.layers`): equal windows, heads and widths. A layer
whose rows others share is a group by itself (`sscc.shares`). A layer with a window shorter than the longest sequence,
sliding or chunked, keeps exactly the window's positions, in a ring; the other layers follow the requested geometry. An
operation's `kv.group` names its group.

A layer with a short convolution (`kv.short_convolution`) keeps its last inputs, in a group of layers of equal sizes
(`sscc.passes.input_threading`); one with a recurrence (`kv.recurrence`) keeps its state
(`sscc.passes.recurrent_threading`). If the layer has another such operator too, this is an additional group of the
layer (`sscc.beside`): the layer's function has the states of both, and a prompt ends with a `compress` for each. Layers
without such an operator are a group without state (`stateless`), and are unchanged.

When it does not apply: a layer with several operators of one kind, layers with equal K and V but different queries, and
a layer that shares K and V but not the window or the number of heads are refused; so is `--kv-fetch` with shared K and
V.

Preserves: every other operation, locations, the order of arguments (new ones are appended).
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch_mlir import ir

from sscc.ir.cache_plan import STATELESS
from sscc.ir.dialects import kv
from sscc.ir.geometry import Geometry, Span
from sscc.ir.layer_state.recurrent import state_geometry
from sscc.ir.layer_state.rows import selector_of, store_of
from sscc.ir.layer_state.stores import AllRows, ChosenRows, CompactRows, IndexedRows, PackedRows, RowStore
from sscc.ir.levels import GroupFacts, get_facts, set_groups, with_own_budgets
from sscc.ir.locations import origin_of
from sscc.ir.rewriting import functions
from sscc.passes.attended import LAYER, Attended, ThreadCacheErrors, heads_and_dims, operators_of
from sscc.passes.base import Pass
from sscc.passes.index_threading import ChosenThreader, IndexThreader
from sscc.passes.input_threading import InputThreader
from sscc.passes.layer_threading import LayerThreader, StateThreader
from sscc.passes.prompt_selection import rules
from sscc.passes.query_threading import QueryThreader
from sscc.passes.recurrent_threading import RecurrentThreader
from sscc.passes.row_layers import RowLayer
from sscc.passes.row_threading import BudgetThreader, IndexedThreader, RowThreader


@dataclass(frozen=True)
class ThreadCache(Pass):
    name: ClassVar[str] = "thread-cache"
    takes: ClassVar[tuple[str, ...]] = ("graph",)
    follows: ClassVar[tuple[str, ...]] = ("absorb-latent",)
    level: ClassVar[str] = "graph"

    def run(self, module: ir.Module) -> None:
        facts, geometry = get_facts(module)
        layers = [function for function in functions(module) if LAYER in function.attributes]
        operators = {_place(function): operators_of(function) for function in layers}
        kinds = _kinds(operators, geometry)
        groups = _groups(kinds, geometry)
        set_groups(module, [group for _, group in groups])
        try:
            own = with_own_budgets([group for _, group in groups])
        except ValueError as error:
            raise ThreadCacheErrors.OTHER_BUDGETS(cause=error) from None
        group_of = {
            (layer, kind.operator): group
            for (kind, _), group in zip(groups, own, strict=True)
            for layer in (*group.layers, *group.sharers)
        }

        def threader(function: Any) -> LayerThreader:
            """Return the threader for the first operator whose state a function still lacks."""
            (entry, layer), operator = _place(function), operators_of(function)[0]
            group = group_of[layer, _role(operator)]
            if operator.name in OTHER_THREADERS:
                return OTHER_THREADERS[operator.name](module, function, operator, facts, group)
            keeper = operator if layer in group.layers else operators[entry, group.layers[0]][0]
            return THREADERS[type(store_of(group.geometry))](module, function, operator, facts, group, keeper)

        for function in layers:
            rewritten = function
            for _ in operators[_place(function)]:
                before, rewritten = rewritten, threader(rewritten).rewrite()
                if before != function:
                    before.operation.erase()
        threaded = [function for function in layers if operators[_place(function)]]
        for function in (*threaded, *rules(module)):
            function.operation.erase()


def _place(function: Any) -> tuple[str, int]:
    """Return the entry and the number of a layer's function."""
    return function.attributes["sscc.entry"].value, function.attributes[LAYER].value


def _role(operator: ir.Operation) -> str:
    """Return the key of an operator in `Kinds`: its name, or `ATTENTION` for all that attend."""
    return operator.name if operator.name in OTHER_THREADERS else ATTENTION


THREADERS: dict[type[RowStore], type[RowLayer]] = {
    CompactRows: RowThreader,
    PackedRows: BudgetThreader,
    IndexedRows: IndexedThreader,
    AllRows: QueryThreader,
    ChosenRows: ChosenThreader,
}
"""Threader of attention layers, by the store of their rows."""
OTHER_THREADERS: dict[str, type[StateThreader]] = {
    "kv.index": IndexThreader,
    "kv.short_convolution": InputThreader,
    "kv.recurrence": RecurrentThreader,
}
"""Threader of other states, by the operator that keeps the state."""


ATTENTION = "attention"
"""Role of attention operators."""
CHOSEN = "chosen"
"""Name of a group of layers that attend to rows selected by an index."""
_EVERYTHING = Span()


@dataclass(frozen=True)
class _Kind:
    """Properties that the layers of a group have in common.

    Attributes:
        operator: `ATTENTION`, the name of the operation that keeps their state, or `STATELESS`.
        sizes: sizes of query heads and rows, or of another state (`StateThreader.sizes_of`).
        beside: True if the layers have another operator, which comes first.
        window: attention window.
        shared_layer: the group's only layer, if others share its rows.
        chosen: number of rows that an index selects for a token; 0 without an index.
    """

    operator: str
    sizes: tuple[Any, ...]
    beside: bool = False
    window: Span = _EVERYTHING
    shared_layer: int | None = None
    chosen: int = 0


Kinds = dict[tuple[int, str], _Kind]
"""Kinds by layer and role of the operator (`_role`)."""


def _kinds(operators_of_layers: Mapping[tuple[str, int], Sequence[ir.Operation]], geometry: Geometry) -> Kinds:
    """Return the kinds of states that layers keep.

    Args:
        operators_of_layers: operators of each layer's function, by entry and number.

    Raises:
        UnsupportedError: a layer keeps another state in decode than in prefill, or layers with equal rows have
            different queries or heads.
    """
    kinds: Kinds = {}
    queries: dict[tuple[Any, ...], tuple[int, int]] = {}
    up_shapes: dict[_Kind, list[tuple[int, ...]]] = {}
    operators = [
        (layer, number, operator)
        for (_, layer), of_layer in operators_of_layers.items()
        for number, operator in enumerate(of_layer)
    ]
    shared = {op.attributes["shares"].value for _, _, op in operators if op.name == "kv.shared_attention"}
    for (_, layer), of_layer in operators_of_layers.items():
        if not of_layer:
            kinds[layer, STATELESS] = _Kind(STATELESS, (0,))
    for layer, number, operator in operators:
        if operator.name == "kv.shared_attention":
            continue
        if operator.name in OTHER_THREADERS:
            sizes = OTHER_THREADERS[operator.name].sizes_of(operator)
            _note_kind(kinds, layer, _Kind(operator.name, sizes, beside=number > 0), operator)
            continue
        attended = Attended.by(operator)
        query, *rows = heads_and_dims([attended.query, *attended.rows])
        if attended.ups:
            query = (query[0], rows[0][1])  # the width of decode queries, which are multiplied with the row itself
        if queries.setdefault(tuple(rows), query) != query:
            other_heads, other_width = queries[tuple(rows)]
            raise ThreadCacheErrors.OTHER_QUERIES(
                origin=origin_of(operator),
                heads=query[0],
                width=query[1],
                other_heads=other_heads,
                other_width=other_width,
            )
        window = kv.window_of(operator).inside(geometry.max_context)
        chosen = 0 if attended.chosen is None else min(attended.chosen.type.shape[3], geometry.max_context)
        source = layer if layer in shared else None
        kind = _Kind(ATTENTION, (query, *rows), window=window, shared_layer=source, chosen=chosen)
        shapes = [tuple(up.type.shape) for up in attended.ups]
        if shapes and up_shapes.setdefault(kind, shapes) != shapes:
            raise ThreadCacheErrors.OTHER_LATENT_HEADS(origin=origin_of(operator))
        _note_kind(kinds, layer, kind, operator)
    for layer, _, operator in operators:
        if operator.name == "kv.shared_attention":
            _check_sharer(layer, operator, geometry, kinds)
            shares = _Kind(ATTENTION, (), shared_layer=operator.attributes["shares"].value)
            _note_kind(kinds, layer, shares, operator)
    return kinds


def _groups(kinds: Kinds, geometry: Geometry) -> list[tuple[_Kind, GroupFacts]]:
    """Return the groups of layers, in the order of their first ones."""
    members: dict[_Kind, list[int]] = {}
    sharers: dict[int | None, list[int]] = {}
    for (layer, _), kind in sorted(kinds.items(), key=lambda item: (item[0][0], item[1].beside)):
        if kind.sizes:
            members.setdefault(kind, []).append(layer)
        else:
            sharers.setdefault(kind.shared_layer, []).append(layer)
    groups: list[tuple[_Kind, GroupFacts]] = []
    for kind, where in members.items():
        if kind.operator in OTHER_THREADERS:
            other = OTHER_THREADERS[kind.operator]
            name, own = other.group_name, other.geometry_of(geometry, kind.sizes)
        elif kind.operator == STATELESS:
            name, own = STATELESS, state_geometry(geometry)
        elif kind.chosen:
            name, own = CHOSEN, geometry.chosen(kind.chosen)
        else:
            name, own = kind.window.name, geometry.windowed(kind.window) if kind.window else geometry
        name = _unlike(name, {group.name for _, group in groups})
        theirs = () if kind.shared_layer is None else tuple(sharers[kind.shared_layer])
        groups.append((kind, GroupFacts(name, tuple(where), own, theirs, kind.beside)))
    return groups


def _note_kind(kinds: Kinds, layer: int, kind: _Kind, operator: ir.Operation) -> None:
    """Record the state that a layer keeps. Raise UnsupportedError if its other entry has another operator."""
    if kinds.setdefault((layer, kind.operator), kind) != kind:
        raise ThreadCacheErrors.OTHER_IN_DECODE(origin=origin_of(operator), layer=layer)


def _check_sharer(layer: int, attention: ir.Operation, geometry: Geometry, kinds: Kinds) -> None:
    """Refuse a layer that cannot read the rows of the one that it names. `kinds` are those of layers that keep rows."""
    source = attention.attributes["shares"].value
    place = {"origin": origin_of(attention), "layer": layer, "source": source}
    if (source, ATTENTION) not in kinds or source > layer:
        raise ThreadCacheErrors.SOURCE_KEEPS_NOTHING(**place)
    window = kv.window_of(attention).inside(geometry.max_context)
    (query,) = heads_and_dims([attention.operands[0]])
    its_window, its_query = kinds[source, ATTENTION].window, kinds[source, ATTENTION].sizes[0]
    if window != its_window:
        raise ThreadCacheErrors.SHARED_OTHER_WINDOW(**place, window=window, other_window=its_window)
    if query != its_query:
        raise ThreadCacheErrors.SHARED_OTHER_QUERIES(
            **place, heads=query[0], width=query[1], other_heads=its_query[0], other_width=its_query[1]
        )
    if selector_of(geometry).fetch is not None and not window:
        raise ThreadCacheErrors.SHARED_WITH_FETCH(**place)


def _unlike(name: str, taken: Container[str]) -> str:
    """Return `name`, with a number appended if it is taken: layers of other heads or widths are another group."""
    numbered = (f"{name or 'group'}_{number}" for number in itertools.count(2))
    return next(other for other in itertools.chain([name], numbered) if other not in taken)
