"""thread-cache: attention over the captured tokens becomes attention over a compressed KV cache.

What: in a decode layer, `kv.self_attention` becomes row, update, validity and attention over cached rows; in a
prefill layer it becomes an append to the layer's prompt scratch, full causal attention over it, and where the end of
the prompt selects rows the collection of observation queries and of their log-sum-exp. For every layer a `compress`
function is added: SnapKV scores, pooling, top-K, the positions of the cache's rows, and the rows of K and V at these,
written into a slot of the decode cache. Nothing is fused: the algorithm stands as a person would write it.

Why: a model as captured knows no cache. With the cache's size fixed here, every tensor after this pass has static
sizes that do not grow with the context.

With indexed rows (`--kv-rows indexed`) the cache holds sinks and ring alone, `compress` writes these and the selected
positions, and decode attends to two segments: the cache, and the selected rows of the prompt, which an index names.

Where every step's query chooses (`--kv-policy query`), the rows of all positions stay where prefill and decode write
them, and beside them landmarks of their keys. `compress` fills sinks and ring; decode adds the row of its position,
scores the landmarks, chooses rows, and attends to them as a second segment.

Where prompts are scored by a rule of one's own (`--kv-policy FILE`), functions of the module say how (`sscc.rule`), one
for each kind of layers. Their operations are copied into `compress`, in the place of `kv.observation_scores`, and what
they give is pooled where the rule asks for it; the functions go.

With encoded rows (`--kv-dtype int8` or `int4`) the caches are i8: `kv.gather` encodes what it puts into them, and the
row of a decode step passes `kv.quantize_rows`. Where queries choose, so do the rows of a prompt on their way into its
scratch, which is i8 too, and `kv.causal_attention` is over what they stand for. Landmarks are made of keys before that.

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
      %row = "kv.row"(%position) ..
      %k_cache1 = "kv.update"(%k_cache, %h, %row, %active) ..
      %v_cache1 = "kv.update"(%v_cache, %h, %row, %active) ..
      %valid = "kv.validity"(%position, %prompt_len, %active) ..
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
      %scores = "kv.observation_scores"(%observed, %log_sum_exp, %k_scratch, %length) ..
      %pooled = "kv.pool"(%scores, %length) ..
      %topk = arith.constant 1 : index
      %selected = "kv.select"(%pooled, %length, %topk) ..
      %kept = "kv.kept_positions"(%length) ..
      %rows = tensor.concat dim(1) %kept, %selected ..
      %k_slot = tensor.extract_slice %k_cache[%slot, 0, 0, 0] ..
      %k_rows = "kv.gather"(%k_scratch, %rows, %k_slot) ..
      %k_cache1 = tensor.insert_slice %k_rows into %k_cache[%slot, 0, 0, 0] ..
      ..
      return %k_cache1, %v_cache1, %selected : ..

Where ranks share KV heads (`kv.head_parts`, of the pass shard), they have the same rows, and choose together. At the
end of a prompt their scores are summed before they are pooled; where a step's query chooses, it is scored with those of
all of them. If they divide the slots, each has the rows of its part alone: a step sends queries to the ranks that have
the slots, by all_to_all, attends there with all heads that read a KV head, and sends back what comes of it; what
follows a prompt's last chunk is two functions then, `choose`, which all of them run, and `compress` with `own_slot` in
the place of `slot`, for the rank that has it.

A layer that shares the K and V of an earlier one (`kv.shared_attention`) has no state and no `compress` of its own: it
attends to the rows of that layer, which has updated them in this step, or appended them in its phase of a prompt, and
to those that its prompt selected. Where queries choose, it chooses by its own query and that layer's landmarks.

Layers that keep alike are a group (`kv.groups`, `sscc.layers`): those that attend within one window, and those with the
same heads and widths. A layer whose rows others share is one by itself (`sscc.shares`). A layer that attends within a
window of fewer positions than the longest sequence, which slides or is the query's chunk, keeps exactly these, in a
ring; the geometry that was asked for governs the others. An operation's `kv.group` says whose it is.

When it does not apply: a layer with other than one attention operator, layers with equal K and V but other queries, and
a layer that shares K and V but not the window or the number of heads are refused; so is `--kv-fetch` where layers
share.

Preserves: every other operation, locations, the order of arguments (new ones are appended).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, func, tensor

from sscc.ir.builders import (
    Argument,
    Offset,
    arguments_of,
    at_most,
    extract_slice,
    index_constant,
    insert_slice,
    make_function,
    not_negative,
    plus_one,
    positions_tensor,
    reshape,
    results_of,
    tensor_type,
)
from sscc.ir.choices import PLAIN_BITS
from sscc.ir.collectives import Peers
from sscc.ir.dialects import kv
from sscc.ir.errors import ErrorKind, InputError, UnsupportedError, UsageError
from sscc.ir.geometry import Geometry
from sscc.ir.landmarks import check_bits, landmark_width
from sscc.ir.layer_state.selectors import LANDMARK_SCRATCHES, LANDMARKS, RESIDENT, RESIDENT_PLACES, landmark_states
from sscc.ir.layer_state.streams import K_AND_V, LATENT, Stream
from sscc.ir.levels import RULE, GroupFacts, ProgramFacts, get_facts, set_groups, walk, with_own_budgets
from sscc.ir.locations import origin_of
from sscc.ir.operations import CachedAttention
from sscc.ir.rewriting import ValueMap, clone_all, clone_with, functions, is_rematerialised, producer
from sscc.ir.views import begins, is_view
from sscc.passes.base import Pass
from sscc.passes.latent_queries import absorbed

LAYER = "sscc.layer"
CHOOSE, COMPRESS = "choose", "compress"
"""What follows the last chunk of a prompt in a layer, as functions are called."""
OWN_SLOT = "own_slot"
"""The number of a slot among those whose rows a rank has: an input in the place of `slot` of a function that runs where
it has the slot's."""
TOPK, FIRST = BUDGET = "topk", "first"
"""Inputs of a layer where layers have different budgets: how many positions it selects, and where its rows begin in the
caches that all layers have in common."""


class ThreadCacheErrors(ErrorKind):
    OTHER_BUDGETS = UsageError, "--kv-topk-per-layer: {cause}"
    NOT_ONE_ATTENTION = UnsupportedError, "{origin}{function} has {attentions} attention operators, but a layer has one"
    OTHER_QUERIES = (
        UnsupportedError,
        "{origin}the queries have {heads} heads of width {width}, but those of another layer with the same K and V "
        "have {other_heads} of width {other_width}: the two would share one observation window",
    )
    OTHER_LATENT_HEADS = (
        UnsupportedError,
        "{origin}the latent rows are as wide as another layer's, but the K and V of the heads are not",
    )
    OTHER_IN_DECODE = UnsupportedError, "{origin}layer {layer} attends in another way in decode than in prefill"
    SOURCE_KEEPS_NOTHING = (
        UnsupportedError,
        "{origin}layer {layer} shares the K and V of layer {source}, which keeps none that it could read",
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
    BAD_LANDMARKS = UsageError, "{origin}{cause}"
    ROW_NOT_WHOLE_BYTES = (
        UnsupportedError,
        "{origin}a row of {width} codes of {bits} bits does not fill whole bytes: use --kv-dtype int8",
    )
    COMPUTED_SINKS = (
        UnsupportedError,
        "{origin}layer {layer} computes the logits of its learned sinks, but they must be a weight where --kv-fetch "
        "chooses at the end of a prompt",
    )
    COMPUTED_KEY_WEIGHT = UnsupportedError, "{origin}the matrix that makes keys of latent rows is not a weight"
    RULE_OF_LATENT_ROWS = (
        UnsupportedError,
        "{origin}layer {layer} keeps latent rows, and a rule would see neither keys nor values of a head: use "
        "--kv-policy snapstream or query",
    )
    NO_RULE = InputError, "{origin}the module has no function that scores the prompts of this layer"


@dataclass(frozen=True)
class ThreadCache(Pass):
    name: ClassVar[str] = "thread-cache"
    takes: ClassVar[tuple[str, ...]] = ("graph",)
    follows: ClassVar[tuple[str, ...]] = ("absorb-latent",)
    level: ClassVar[str] = "graph"

    def run(self, module: ir.Module) -> None:
        facts, geometry = get_facts(module)
        layers = [function for function in functions(module) if LAYER in function.attributes]
        groups = _groups(layers, geometry)
        set_groups(module, groups)
        try:
            own = with_own_budgets(groups)
        except ValueError as error:
            raise ThreadCacheErrors.OTHER_BUDGETS(cause=error) from None
        group_of = {layer: group for group in own for layer in (*group.layers, *group.sharers)}
        attending = {_place(function): attention_of(function) for function in layers}
        for function in layers:
            entry, layer = _place(function)
            group = group_of[layer]
            keeper = layer if layer in group.layers else group.layers[0]
            _Threader(module, function, facts, group, attending[entry, keeper]).rewrite()
        for function in (*layers, *_rules(module)):
            function.operation.erase()


def _rules(module: ir.Module) -> list[Any]:
    """The functions that score a prompt by a rule of one's own: one for each kind of layers."""
    return [function for function in functions(module) if RULE in function.attributes]


def attention_of(function: Any) -> ir.Operation:
    """What attends in a layer's function, as captured. Raises UnsupportedError where that is other than one."""
    attentions = [op.operation for op in function.entry_block.operations if op.operation.name in _ATTENDING]
    if len(attentions) != 1:
        raise ThreadCacheErrors.NOT_ONE_ATTENTION(
            origin=origin_of(function), function=function.name.value, attentions=len(attentions)
        )
    return attentions[0]


def _place(function: Any) -> tuple[str, int]:
    """Entry and number of a layer's function."""
    return function.attributes["sscc.entry"].value, function.attributes[LAYER].value


_ATTENDING = ("kv.self_attention", "kv.latent_attention", "kv.shared_attention")


@dataclass(frozen=True)
class _Attended:
    """What an attention operator of a layer reads.

    Attributes:
        query: with what it attends.
        rows: of what is cached of each position: K and V, or a latent row, of which V is the first numbers; none where
            another layer has cached them.
        ups: what makes K and V of a latent row, where prefill attends to such rows.
        sinks: the logits of learned sinks, if there are any.
    """

    query: ir.Value
    rows: tuple[ir.Value, ...]
    ups: tuple[ir.Value, ...] = ()
    sinks: tuple[ir.Value, ...] = ()

    @classmethod
    def by(cls, attention: ir.Operation, values: Callable[[ir.Value], ir.Value] = lambda value: value) -> _Attended:
        """Args: values: what stands for the operands."""
        operands = [values(operand) for operand in attention.operands]
        if attention.name == "kv.latent_attention":
            return cls(operands[0], (operands[1],), tuple(operands[2:4]))
        if attention.name == "kv.shared_attention":
            return cls(operands[0], (), sinks=tuple(operands[1:]))
        query, key, value, *sinks = operands
        is_window = begins(attention.operands[2], attention.operands[1])
        return cls(query, (key,) if is_window else (key, value), sinks=tuple(sinks))


def _groups(layers: Sequence[Any], geometry: Geometry) -> list[GroupFacts]:
    """The groups of layers, from the functions of both entries."""
    kinds: dict[int, tuple[Any, ...]] = {}
    queries: dict[tuple[Any, ...], tuple[int, int]] = {}
    up_shapes: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
    attending = [(_place(function)[1], attention_of(function)) for function in layers]
    sharing = [(layer, attention) for layer, attention in attending if attention.name == "kv.shared_attention"]
    sources = {layer: attention.attributes["shares"].value for layer, attention in sharing}
    for layer, attention in attending:
        if layer in sources:
            continue
        window = kv.window_of(attention).inside(geometry.max_context)
        attended = _Attended.by(attention)
        query, *rows = _heads_and_dims([attended.query, *attended.rows])
        if attended.ups:
            query = (query[0], rows[0][1])  # as the layer's query of decode, which meets the row itself
        if queries.setdefault(tuple(rows), query) != query:
            other_heads, other_width = queries[tuple(rows)]
            raise ThreadCacheErrors.OTHER_QUERIES(
                origin=origin_of(attention),
                heads=query[0],
                width=query[1],
                other_heads=other_heads,
                other_width=other_width,
            )
        kind = (window, layer if layer in sources.values() else None, query, *rows)
        shapes = [tuple(up.type.shape) for up in attended.ups]
        if shapes and up_shapes.setdefault(kind, shapes) != shapes:
            raise ThreadCacheErrors.OTHER_LATENT_HEADS(origin=origin_of(attention))
        if kinds.setdefault(layer, kind) != kind:
            raise ThreadCacheErrors.OTHER_IN_DECODE(origin=origin_of(attention), layer=layer)
    for layer, attention in sharing:
        _check_sharer(layer, attention, geometry, kinds)
    members: dict[tuple[Any, ...], list[int]] = {}
    for layer in sorted(kinds):
        members.setdefault(kinds[layer], []).append(layer)
    groups: list[GroupFacts] = []
    for (window, *_), where in members.items():
        name = _unlike(window.name, {group.name for group in groups})
        sharers = tuple(sorted(layer for layer, source in sources.items() if source in where))
        groups.append(GroupFacts(name, tuple(where), geometry.windowed(window) if window else geometry, sharers))
    return groups


def _check_sharer(
    layer: int, attention: ir.Operation, geometry: Geometry, kinds: Mapping[int, tuple[Any, ...]]
) -> None:
    """Refuse a layer that cannot read the rows of the one that it names. `kinds` are of layers that keep some."""
    source = attention.attributes["shares"].value
    place = {"origin": origin_of(attention), "layer": layer, "source": source}
    if source not in kinds or source > layer:
        raise ThreadCacheErrors.SOURCE_KEEPS_NOTHING(**place)
    window = kv.window_of(attention).inside(geometry.max_context)
    (query,) = _heads_and_dims([attention.operands[0]])
    its_window, _, its_query, *_ = kinds[source]
    if window != its_window:
        raise ThreadCacheErrors.SHARED_OTHER_WINDOW(**place, window=window, other_window=its_window)
    if query != its_query:
        raise ThreadCacheErrors.SHARED_OTHER_QUERIES(
            **place, heads=query[0], width=query[1], other_heads=its_query[0], other_width=its_query[1]
        )
    if geometry.fetch is not None and not window:
        raise ThreadCacheErrors.SHARED_WITH_FETCH(**place)


def _unlike(name: str, taken: Container[str]) -> str:
    """`name`, with a number behind it where it is taken: layers of other heads or widths are another group."""
    numbered = (f"{name or 'group'}_{number}" for number in itertools.count(2))
    return next(other for other in itertools.chain([name], numbered) if other not in taken)


def _heads_and_dims(values: Iterable[ir.Value]) -> list[tuple[int, int]]:
    """(heads, head dim) of Q, K and V."""
    return [(v.type.shape[1], v.type.shape[3]) for v in values]


class _Threader:
    """Rewrites one layer function and, for prefill, adds its `compress` function, unless it shares the rows of another
    layer. `keeper` is the attention of the layer whose rows it attends to, in the same entry."""

    def __init__(
        self, module: ir.Module, function: Any, facts: ProgramFacts, group: GroupFacts, keeper: ir.Operation
    ) -> None:
        self.module, self.function, self.facts, self.group = module, function, facts, group
        self.geometry = group.geometry
        self.attention = attention_of(function)
        self.layer = function.attributes[LAYER].value
        self.entry = function.attributes["sscc.entry"].value
        self.shares = keeper != self.attention
        self.attended, kept = _Attended.by(self.attention), _Attended.by(keeper).rows
        (self.heads, self.query_width), *rows = _heads_and_dims([self.attended.query, *kept])
        self.element, self.kv_heads = self.attended.query.type.element_type, rows[0][0]
        names = K_AND_V if len(rows) == 2 else LATENT
        self.streams = [Stream(name, width) for name, (_, width) in zip(names, rows, strict=True)]
        self.scale = self.attention.attributes["scale"]
        self.value_width = self.attention.results[0].type.shape[3]
        parts = kv.head_parts_of(keeper)
        peers = None if parts is None else Peers.with_same_part(module, parts)
        self.peers = peers if peers is not None and peers.count > 1 else None
        self.slots = facts.batch
        self.split = self.peers is not None and not self.geometry.indexed and facts.batch % self.peers.count == 0
        if self.split and self.peers is not None:  # each has the rows of its part of the slots
            self.slots //= self.peers.count

    def rewrite(self) -> None:
        if self.geometry.by_query:
            self._check_landmarks()
        if self.geometry.encoded:
            self._check_rows()
        if self.entry == "decode":
            g = self.geometry
            stores = self._rows([s.store for s in self.streams], self.facts.batch) if g.indexed else []
            indexed = [*stores, self._selected()] if g.indexed and not g.by_query else []
            far = (*stores, *self._landmarks(), *self._residents()) if g.by_query else ()
            kept = [*self._caches(), *far]
            attend = self._query_attention if g.by_query else self._decode_attention
            updated, read = ([], kept) if self.shares else (kept, [])
            self._rebuild(updated, [*read, *indexed, *self._decode_inputs()], attend)
        elif self.shares:
            rows = self._rows([s.scratch for s in self.streams], 1)
            self._rebuild([], [*rows, *self._chunk_inputs()], self._shared_prefill_attention)
        else:
            states = [*self._scratch(), *self._landmark_scratch()]
            self._rebuild(states, self._chunk_inputs(), self._prefill_attention)
            if self.split:
                self._compress_apart()
            else:
                self._compress()

    def _check_landmarks(self) -> None:
        try:
            check_bits(self.geometry.landmark_bits, self.streams[0].width)
        except UsageError as error:
            raise ThreadCacheErrors.BAD_LANDMARKS(origin=origin_of(self.attention), cause=error) from None

    def _check_rows(self) -> None:
        bits = self.geometry.row_format.bits
        for width in (stream.width for stream in self.streams):
            if width * bits % 8:
                raise ThreadCacheErrors.ROW_NOT_WHOLE_BYTES(origin=origin_of(self.attention), width=width, bits=bits)

    def _note_settings(self, function: Any) -> None:
        """Operations of a group that the module's geometry does not govern say its name, and those that make scores
        what caps them."""
        for op in walk(function):
            if op.name.startswith("kv."):
                kv.in_group(op, self.group.name)
                kv.inherit(op, self.attention)

    # ------------------------------------------------------------------------------------------ arguments

    def _state(self, name: str, shape: list[int]) -> Argument:
        return Argument("state", name, tensor_type(shape, self.element))

    def _cache(self, name: str, dim: int) -> Argument:
        rows = self.geometry.packed_rows if self.geometry.packed else self.geometry.cache_rows
        return Argument("state", name, self._stored([self.slots, self.kv_heads, rows, dim]))

    def _stored(self, shape: list[int]) -> ir.Type:
        """The type of rows [.., D] as a cache holds them."""
        if not self.geometry.encoded:
            return tensor_type(shape, self.element)
        width = self.geometry.row_format.width(shape[-1])
        return tensor_type([*shape[:-1], width], ir.IntegerType.get_signless(8))

    def _encoded(self, rows: ir.Value) -> ir.Value:
        """Rows [.., D] as a cache holds them."""
        if not self.geometry.encoded:
            return rows
        encoded: ir.Value = kv.QuantizeRows(rows, self._stored(list(rows.type.shape))).out
        return encoded

    def _caches(self) -> list[Argument]:
        return [self._cache(stream.cache, stream.width) for stream in self.streams]

    def _rows(self, names: Sequence[str], slots: int) -> list[Argument]:
        """The rows of all positions, where they stay."""
        rows = [slots, self.kv_heads, self.facts.scratch_rows(self.geometry)]
        shapes = [[*rows, stream.width] for stream in self.streams]
        encodes = self.geometry.encodes_prompts
        types = [self._stored(shape) if encodes else tensor_type(shape, self.element) for shape in shapes]
        return [Argument("state", name, type_) for name, type_ in zip(names, types, strict=True)]

    def _landmarks(self) -> list[Argument]:
        """The landmarks of every slot, where queries choose."""
        return self._landmark_states(LANDMARKS, self.facts.batch)

    def _landmark_scratch(self) -> list[Argument]:
        """Those of the slot of a prompt."""
        return self._landmark_states(LANDMARK_SCRATCHES, 1) if self.geometry.by_query else []

    def _landmark_states(self, names: Sequence[str], slots: int) -> list[Argument]:
        types = self._landmark_types(slots, self.facts.scratch_rows(self.geometry))
        there = landmark_states(names, self.geometry.landmark_bits)
        return [Argument("state", name, type_) for name, type_ in zip(there, types, strict=True)]

    def _landmark_types(self, slots: int, rows: int) -> list[ir.Type]:
        """Of codes and scales of so many keys per slot and KV head; of the keys, where these are their landmarks."""
        shape, bits = [slots, self.kv_heads, rows], self.geometry.landmark_bits
        if bits == PLAIN_BITS:
            return [tensor_type([*shape, self.streams[0].width], self.element)]
        codes = tensor_type([*shape, landmark_width(self.streams[0].width, bits)], ir.IntegerType.get_signless(8))
        return [codes, tensor_type([*shape, 1], ir.BF16Type.get())]

    def _landmarks_of(self, key: ir.Value) -> list[ir.Value]:
        """The landmarks of keys [.., J, D]."""
        if self.geometry.landmark_bits == PLAIN_BITS:
            return [key]
        landmarks = kv.Landmarks(key, *self._landmark_types(key.type.shape[0], key.type.shape[2]))
        return [landmarks.codes, landmarks.scales]

    def _residents(self) -> list[Argument]:
        """The rows of every slot that stay near, where a step may fetch only few."""
        if self.geometry.fetch is None:
            return []
        shape = [self.facts.batch, self.kv_heads, self.geometry.topk]
        i64 = ir.IntegerType.get_signless(64)
        numbers = [Argument("state", name, tensor_type(shape, i64)) for name in (RESIDENT, RESIDENT_PLACES)]
        rows = [(stream.resident, self._stored([*shape, stream.width])) for stream in self.streams]
        return [*numbers, *(Argument("state", *row) for row in rows)]

    def _selected(self) -> Argument:
        """The selected positions: of the layer's last prompt, or where rows are indexed of every slot's."""
        slots = [self.facts.batch] if self.geometry.indexed else []
        i64 = ir.IntegerType.get_signless(64)
        return Argument("state", "selected", tensor_type([*slots, self.kv_heads, self.geometry.topk], i64))

    def _decode_inputs(self) -> list[Argument]:
        slots = tensor_type([self.facts.batch], ir.IntegerType.get_signless(64))
        flags = tensor_type([self.facts.batch], ir.IntegerType.get_signless(1))
        return [
            Argument("input", "position", slots),
            Argument("input", "prompt_len", slots),
            Argument("input", "active", flags),
            *(Argument("input", name, ir.IndexType.get()) for name in self._numbers()),
        ]

    def _numbers(self) -> list[str]:
        """The inputs that say what is this layer's own, where layers differ in the number of rows that they keep."""
        return [TOPK, *([FIRST] if self.geometry.packed else [])] if self.geometry.layer_topk else []

    def _own(self, added: list[ir.Value]) -> tuple[list[ir.Value], dict[str, ir.Value]]:
        """The values of added arguments, and the last of them by name: the layer's own numbers."""
        names = self._numbers()
        count = len(added) - len(names)
        return added[:count], dict(zip(names, added[count:], strict=True))

    def _scratch(self) -> list[Argument]:
        """Of a prompt's rows, and of its last queries where they are kept."""
        return [*self._rows([s.scratch for s in self.streams], 1), *self._observed()]

    def _observed(self) -> list[Argument]:
        """Of the last queries of a prompt, and where they select of what attention found for them."""
        if not self.geometry.observes:
            return []
        window = [1, self.heads, self.geometry.obs]
        sums = Argument("state", "log_sum_exp", tensor_type([*window, 1], ir.F32Type.get()))
        queries = self._state("observed", [*window, self.query_width])
        return [queries, sums] if self.geometry.selects else [queries]

    def _chunk_inputs(self) -> list[Argument]:
        index = ir.IndexType.get()
        return [Argument("input", "start", index), Argument("input", "length", index)]

    # ---------------------------------------------------------------------------------------- the rewrite

    def _rebuild(
        self,
        states: list[Argument],
        inputs: list[Argument],
        attend: Callable[[_Attended, list[ir.Value]], tuple[ir.Value, list[ir.Value]]],
    ) -> None:
        old = self.function
        attributes = {key: old.attributes[key] for key in (LAYER, "sscc.entry")}
        name = old.name.value
        old.attributes["sym_name"] = ir.StringAttr.get(name + ".captured")
        arguments = [*arguments_of(old), *states, *inputs]
        new = make_function(self.module, name, arguments, [*results_of(old), *states], old.location, attributes)
        values: ValueMap = dict(zip(old.arguments, new.arguments, strict=False))
        added = list(new.arguments)[len(old.arguments) :]
        outputs: list[ir.Value] = []
        *body, terminator = [op.operation for op in old.entry_block.operations]
        with ir.InsertionPoint(new.entry_block):
            for op in body:
                if op == self.attention:
                    with op.location:
                        out, outputs = attend(_Attended.by(op, values.__getitem__), added)
                    values[op.results[0]] = out
                elif not is_rematerialised(op):
                    clone_with(op, values)
            with terminator.location:
                func.ReturnOp([*(values[v] for v in terminator.operands), *outputs])
        self._note_settings(new)

    def _decode_attention(self, attended: _Attended, added: list[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
        added, own = self._own(added)
        *states, position, prompt_len, active = added
        if self.split:
            attended, (position, prompt_len, active) = self._of_own_slots(attended, position, prompt_len, active)
        wholes, indexed = states[: len(self.streams)], states[len(self.streams) :]
        now = [self._window(cache, own) for cache in wholes]
        if TOPK in own:  # as many selected rows are valid as if the prompt were that long
            most = arith.AddIOp(own[TOPK], index_constant(self.geometry.sink_recent)).result
            prompt_len = at_most(prompt_len, most)
        if not self.shares:  # else the layer that keeps the rows has updated them
            row = kv.Row(position, position.type).row
            rows = zip(now, attended.rows, strict=True)
            now = [kv.Update(cache, self._encoded(new), row, active, cache.type).updated for cache, new in rows]
        flags = tensor_type([self.slots, self.geometry.budget], ir.IntegerType.get_signless(1))
        valid = kv.Validity(position, prompt_len, active, flags).valid
        *far, index = indexed or [None]
        more = [(far, index)] if index is not None else []
        out = self._attended(attended, valid, (now, None), *more)
        if self.split and self.peers is not None:
            out = self.peers.exchanged(out, split=1, join=0)
        if self.shares:
            return out, []
        if FIRST in own:
            offsets = [0, 0, own[FIRST], 0]
            now = [insert_slice(new, whole, offsets) for new, whole in zip(now, wholes, strict=True)]
        return out, now

    def _of_own_slots(
        self, attended: _Attended, *of_slots: ir.Value
    ) -> tuple[_Attended, list[ir.Value]]:
        """What this one of the ranks that share KV heads attends to, with all query heads of these and of its part of
        the slots alone; each of `of_slots` of that part. Queries go to the ranks that have the rows of their slots."""
        peers = self.peers
        assert peers is not None
        sinks = tuple(peers.gathered(logits, 0) for logits in attended.sinks)
        rows = tuple(peers.sliced(row, 0) for row in attended.rows)
        query = peers.exchanged(attended.query, split=0, join=1)
        return _Attended(query, rows, sinks=sinks), [peers.sliced(value, 0) for value in of_slots]

    def _query_attention(self, attended: _Attended, added: list[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
        """Its second segment are the rows that the query chooses, of all that the slot has."""
        query, g, batch, count = attended.query, self.geometry, self.facts.batch, len(self.streams)
        *states, position, _, active = added
        of_landmarks = len(landmark_states(LANDMARKS, g.landmark_bits))
        now, stores, landmarks, residents = _split(states, [count, count, of_landmarks])
        stored = [*stores, *landmarks]
        if not self.shares:  # else the layer that keeps the rows has updated them
            row = kv.Row(position, position.type).row
            new_landmarks = self._landmarks_of(attended.rows[0])
            rows = [self._encoded(new) for new in attended.rows]
            caches = zip(now, rows, strict=True)
            now = [kv.Update(cache, new, row, active, cache.type).updated for cache, new in caches]
            new_rows = zip(stored, (*rows, *new_landmarks), strict=True)
            stored = [kv.Update(store, new, position, active, store.type).updated for store, new in new_rows]
        flags = tensor_type([batch, g.budget], ir.IntegerType.get_signless(1))
        valid = kv.Validity(position, plus_one(position), active, flags).valid
        codes, scales = [*stored[count:], None][:2]
        asking, sinks = self._of_all_heads(query, attended.sinks)
        scores = self._landmark_scores(asking, codes, scales, position, active)
        if residents:
            none = [None] * (2 - count)
            operands = (
                asking, now[0], scores, *stored[:count], *none, position, active, *residents, *none,
                *(sinks or [None]),
            )  # fmt: skip
            types = [value.type for value in residents]
            residents = list(kv.Fetch(*operands, self.scale, *types, *none).results)
            _, index, *chosen = residents
        else:
            chosen = stored[:count]
            index = self._choose(asking, now[0], scores, position, active, sinks)
        out = self._attended(attended, valid, (now, None), (chosen, index))
        return out, [] if self.shares else [*now, *stored, *residents]

    def _of_all_heads(self, query: ir.Value, sinks: Sequence[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
        """Queries, and logits of learned sinks, of all heads that read a KV head, wherever they are: each rank that has
        the KV head chooses its rows by them."""
        if self.peers is None:
            return query, list(sinks)
        return self.peers.gathered(query, 1), [self.peers.gathered(logits, 0) for logits in sinks]

    def _landmark_scores(
        self, query: ir.Value, codes: ir.Value, scales: ir.Value | None, position: ir.Value, active: ir.Value
    ) -> ir.Value:
        slots, heads, *_ = query.type.shape
        scores_type = tensor_type([slots, heads, codes.type.shape[2]], ir.F32Type.get())
        scores: ir.Value = kv.LandmarkScores(query, codes, scales, position, active, self.scale, scores_type).scores
        return scores

    def _choose(
        self, query: ir.Value, key: ir.Value, scores: ir.Value, position: ir.Value, active: ir.Value,
        sinks: Sequence[ir.Value],
    ) -> ir.Value:  # fmt: skip
        """The positions [B, Hkv, K] that queries choose; `sinks` are the logits of learned sinks, if there are any."""
        picks = tensor_type([query.type.shape[0], self.kv_heads, self.geometry.topk], ir.IntegerType.get_signless(64))
        operands = (query, key, scores, position, active, *(sinks or [None]))
        selected: ir.Value = kv.Choose(*operands, self.scale, picks).selected
        return selected

    def _attended(
        self, attended: _Attended, valid: ir.Value, *segments: tuple[Sequence[ir.Value], ir.Value | None]
    ) -> ir.Value:
        """Attention over segments, each the rows of its streams and perhaps an index, whose rows `valid` [B, R] numbers
        through."""
        members, first = [], 0
        for rows, index in segments:
            slots, count = valid.type.shape[0], (rows[0] if index is None else index).type.shape[2]
            mask = valid if len(segments) == 1 else extract_slice(valid, [0, first], [slots, count])
            member = {**dict(zip(("key", "value"), rows, strict=False)), "valid": mask}
            members.append(member if index is None else {**member, "index": index})
            first += count
        type_ = tensor_type([*list(attended.query.type.shape)[:3], self.value_width], self.element)
        operands = (attended.query, *(attended.sinks or [None]), *kv.members(CachedAttention, *members))
        out: ir.Value = kv.CachedAttention(*operands, self.scale, type_).out
        return out

    def _window(self, cache: ir.Value, own: dict[str, ir.Value]) -> ir.Value:
        """The rows of this layer in a cache; behind them others follow, up to the most that any layer has."""
        if FIRST not in own:
            return cache
        slots, heads, _, width = cache.type.shape
        return extract_slice(cache, [0, 0, own[FIRST], 0], [slots, heads, self.geometry.cache_rows, width])

    def _prefill_attention(self, attended: _Attended, added: list[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
        *states, start, length = added
        scratches, observed, landmarks = _split(states, [len(self.streams), len(self._observed())])
        landmarks = self._landmarks_added(attended.rows[0], landmarks, start)
        out, sums, now = self._chunk_attended(attended, scratches, start, length)
        last = zip(observed, (attended.query, sums), strict=False)
        observed = [kv.Observe(kept, new, start, length, kept.type).updated for kept, new in last]
        return out, [*now, *observed, *landmarks]

    def _chunk_attended(
        self, attended: _Attended, scratches: Sequence[ir.Value], start: ir.Value, length: ir.Value
    ) -> tuple[ir.Value, ir.Value, list[ir.Value]]:
        """A chunk's attention, its log-sum-exp, and the scratches with the chunk's rows in them."""
        if attended.ups:
            type_ = self.attention.results[0].type
            sums = tensor_type([*attended.query.type.shape[:3], 1], ir.F32Type.get())
            operands = (attended.query, attended.rows[0], scratches[0], *attended.ups, start, length)
            settings = self.scale, self.attention.attributes["first"]
            chunk = kv.LatentChunkAttention(*operands, *settings, type_, sums, scratches[0].type)
            return chunk.out, chunk.log_sum_exp, [chunk.appended]
        rows = [self._encoded(row) for row in attended.rows] if self.geometry.encodes_prompts else attended.rows
        now = self._appended(rows, scratches, start)
        done = self._causal_attention(attended, now, start, length)
        return done.out, done.log_sum_exp, now

    def _shared_prefill_attention(
        self, attended: _Attended, added: list[ir.Value]
    ) -> tuple[ir.Value, list[ir.Value]]:
        """Attention to the rows of a prompt that another layer has appended, in its own phase."""
        *scratches, start, length = added
        return self._causal_attention(attended, scratches, start, length).out, []

    def _causal_attention(
        self, attended: _Attended, rows: Sequence[ir.Value], start: ir.Value, length: ir.Value
    ) -> Any:
        query, type_, sinks = attended.query, self.attention.results[0].type, attended.sinks or [None]
        sums = tensor_type([*query.type.shape[:3], 1], ir.F32Type.get())
        return kv.CausalAttention(query, *rows, start, length, *sinks, self.scale, type_, sums)

    def _appended(self, rows: Sequence[ir.Value], wholes: Sequence[ir.Value], start: ir.Value) -> list[ir.Value]:
        """States of a prompt with the rows of a chunk in them."""
        return [insert_slice(new, whole, [0, 0, start, 0]) for new, whole in zip(rows, wholes, strict=True)]

    def _landmarks_added(self, key: ir.Value, scratch: list[ir.Value], start: ir.Value) -> list[ir.Value]:
        """The scratch with the landmarks of a chunk's keys, where queries choose."""
        return self._appended(self._landmarks_of(key), scratch, start) if scratch else []

    # ----------------------------------------------------------------------------------------- compression

    def _compress(self) -> None:
        g, index_type = self.geometry, ir.IndexType.get()
        residents = self._residents()
        sinks = self._sinks() if residents else []
        absorbs = g.observes and bool(self.attended.ups)
        scratch = [*self._scratch(), *(self._landmark_scratch() if residents else [])]
        outputs = [*self._caches(), *([self._selected()] if g.selects else []), *residents]
        arguments = [
            *scratch,
            *(outputs if g.indexed else self._caches()),
            *sinks,
            *([self._up_weight()[0]] if absorbs else []),
            *(Argument("input", name, index_type) for name in ("slot", "length", *self._numbers())),
        ]
        function = self._end(COMPRESS, arguments, outputs)
        count, states = len(self.streams), list(function.arguments)[: len(scratch)]
        scratches, observed = states[:count], states[count:]
        others = list(function.arguments)[len(scratch) :]
        wholes, (others, own) = others[:count], self._own(others[count:])
        *picks, slot, length = others
        weight = picks.pop() if absorbs else None
        count = len(picks) - len(sinks)
        picks, learned = picks[:count], picks[count:]
        with ir.InsertionPoint(function.entry_block), function.location:
            selected = None
            if weight is not None:
                observed[0] = self._asked(observed[0], weight)
            if g.selects:
                selected = self._selected_by(observed, scratches, length, own.get(TOPK))
            index = self._positions(length, selected)
            offsets: list[Offset] = [slot, 0, own.get(FIRST, 0), 0]
            filled = zip(wholes, scratches, strict=True)
            caches = [self._filled(cache, offsets, scratch, index) for cache, scratch in filled]
            if selected is not None and picks:
                selected = insert_slice(selected, picks[0], [slot, 0, 0])
            near: list[ir.Value] = []
            if residents:
                ring = extract_slice(caches[0], offsets, [1, *list(wholes[0].type.shape)[1:]])
                chosen = self._last_choice(observed, ring, length, learned)
                near = self._first_residents(chosen, scratches, picks, slot)
            func.ReturnOp([*caches, *([] if selected is None else [selected]), *near])
        self._note_settings(function)

    def _compress_apart(self) -> None:
        """What follows the last chunk where ranks that share KV heads have slots of their own: all of them choose
        together (`choose`), and that which has the slot fills it (`compress`)."""
        g, index_type = self.geometry, ir.IndexType.get()
        rows = self._rows([s.scratch for s in self.streams], 1)
        selected = [self._selected()] if g.selects else []
        length = Argument("input", "length", index_type)
        if g.selects:
            weights = [self._up_weight()[0]] if self.attended.ups else []
            numbers = [Argument("input", TOPK, index_type)] if g.layer_topk else []
            function = self._end(CHOOSE, [rows[0], *self._observed(), *weights, length, *numbers], selected)
            with ir.InsertionPoint(function.entry_block), function.location:
                keys, asked, sums, *weight, end = list(function.arguments)[: 4 + len(weights)]
                if weight:
                    asked = self._asked(asked, weight[0])
                topk = list(function.arguments)[-1] if numbers else None
                func.ReturnOp([self._selected_by([asked, sums], [keys], end, topk)])
            self._note_settings(function)
        first = [Argument("input", FIRST, index_type)] if g.packed else []
        slot = Argument("input", OWN_SLOT, index_type)
        function = self._end(COMPRESS, [*rows, *self._caches(), *selected, slot, length, *first], self._caches())
        with ir.InsertionPoint(function.entry_block), function.location:
            scratches, wholes, rest = _split(list(function.arguments), [len(rows), len(rows)])
            chosen, (number, end, *begin) = rest[: len(selected)], rest[len(selected) :]
            index = self._positions(end, chosen[0] if chosen else None)
            offsets: list[Offset] = [number, 0, begin[0] if begin else 0, 0]
            filled = zip(wholes, scratches, strict=True)
            func.ReturnOp([self._filled(cache, offsets, scratch, index) for cache, scratch in filled])
        self._note_settings(function)

    def _end(self, name: str, arguments: Sequence[Argument], results: Sequence[Argument]) -> Any:
        """A function of what follows the last chunk of a prompt, empty."""
        location = ir.Location.name(f"{name}.{self.layer}", self.attention.location)
        attributes = {"sscc.entry": _text("prefill")}
        return make_function(self.module, f"prefill.{name}.{self.layer}", arguments, results, location, attributes)

    def _asked(self, queries: ir.Value, weight: ir.Value) -> ir.Value:
        """The last queries of a prompt as they meet latent rows."""
        return absorbed(queries, self._up(weight), self.attention.attributes["first"].value)

    def _selected_by(
        self, observed: Sequence[ir.Value], rows: Sequence[ir.Value], length: ir.Value, topk: ir.Value | None
    ) -> ir.Value:
        """The positions [Hkv, K] that a prompt's last queries select, `topk` of them or what the geometry says."""
        by_rule = self.geometry.rule is not None
        scores = self._scores_by_rule(observed, rows, length) if by_rule else self._scores(observed, rows[0], length)
        if not by_rule or self.geometry.pool > 1:
            scores = kv.Pool(scores, length, scores.type).pooled
        count = index_constant(self.geometry.topk) if topk is None else topk
        type_ = tensor_type([self.kv_heads, self.geometry.topk], ir.IntegerType.get_signless(64))
        selected: ir.Value = kv.Select(scores, length, count, type_).selected
        return selected

    def _sinks(self) -> list[Argument]:
        """The logits of learned sinks, as an argument of another function; none where the layer has none."""
        sinks, arguments = self.attended.sinks, list(self.function.arguments)
        if not all(value in arguments for value in sinks):
            raise ThreadCacheErrors.COMPUTED_SINKS(origin=origin_of(self.attention), layer=self.layer)
        return [arguments_of(self.function)[arguments.index(value)] for value in sinks]

    def _up_weight(self) -> tuple[Argument, ir.Value, list[ir.Operation]]:
        """The weight that makes keys of latent rows, its value in the layer, and the views of it that lead to
        `k_up`."""
        value, views = kv.operand_of(self.attention, "k_up"), list[ir.Operation]()
        while (op := producer(value)) is not None and is_view(op):
            views.insert(0, op)
            value = op.operands[0]
        if op is not None:
            raise ThreadCacheErrors.COMPUTED_KEY_WEIGHT(origin=origin_of(self.attention))
        return arguments_of(self.function)[ir.BlockArgument(value).arg_number], value, views

    def _up(self, weight: ir.Value) -> ir.Value:
        """What makes keys of latent rows, of the weight as a function takes it."""
        _, value, views = self._up_weight()
        values: ValueMap = {value: weight}
        for view in views:
            clone_with(view, values)
        return values[kv.operand_of(self.attention, "k_up")]

    def _last_choice(
        self, observed: Sequence[ir.Value], ring: ir.Value, length: ir.Value, sinks: Sequence[ir.Value]
    ) -> ir.Value:
        """The positions [1, Hkv, K] that the last query of a prompt chooses; `observed` as kept, then landmarks."""
        queries, codes, scales = [*observed, None][:3]
        one = index_constant(1)
        row = arith.SubIOp(arith.MinSIOp(length, index_constant(self.geometry.obs)).result, one).result
        query = extract_slice(queries, [0, 0, row, 0], [1, self.heads, 1, self.streams[0].width])
        query, sinks = self._of_all_heads(query, sinks)
        last = arith.SubIOp(length, one).result
        position = positions_tensor([1], last, last)
        active = not_negative(position)  # as it always is: a step takes flags
        scores = self._landmark_scores(query, codes, scales, position, active)
        return self._choose(query, ring, scores, position, active, sinks)

    def _first_residents(
        self, chosen: ir.Value, scratches: Sequence[ir.Value], states: Sequence[ir.Value], slot: ir.Value
    ) -> list[ir.Value]:
        """The resident states, in which a slot has the chosen rows of its prompt."""
        numbers, rows = states[:2], zip(states[2:], scratches, strict=True)
        places = positions_tensor(chosen.type.shape, index_constant(0), index_constant(self.geometry.topk))
        first = [insert_slice(n, state, [slot, 0, 0]) for n, state in zip((chosen, places), numbers, strict=True)]
        index = reshape(chosen, list(chosen.type.shape)[1:])
        return first + [self._filled(state, [slot, 0, 0, 0], scratch, index) for state, scratch in rows]

    def _scores(self, observed: Sequence[ir.Value], keys: ir.Value, length: ir.Value) -> ir.Value:
        scores_type = tensor_type([self.kv_heads, keys.type.shape[2]], ir.F32Type.get())
        scores: ir.Value = kv.ObservationScores(*observed, keys, length, self.scale, scores_type).scores
        if self.peers is not None:  # each has the mean over its query heads; no choice depends on how many are summed
            scores = self.peers.summed(scores)
        return scores

    def _scores_by_rule(
        self, observed: Sequence[ir.Value], rows: Sequence[ir.Value], length: ir.Value
    ) -> ir.Value:
        """Scores [Hkv, T] of a prompt's positions by the function of a rule of one's own, which is copied here."""
        if self.attended.ups or len(rows) == 1:
            raise ThreadCacheErrors.RULE_OF_LATENT_ROWS(origin=origin_of(self.attention), layer=self.layer)
        g = self.geometry
        first = arith.MaxSIOp(arith.SubIOp(length, index_constant(g.obs)).result, index_constant(0)).result
        end = arith.AddIOp(first, index_constant(g.obs)).result
        at = positions_tensor([g.obs], first, end)
        arguments = [*observed, *rows, at, positions_tensor([1], length, length), length]
        rule = self._rule([value.type for value in arguments])
        values: ValueMap = dict(zip(rule.arguments, arguments, strict=True))
        *body, terminator = [op.operation for op in rule.entry_block.operations]
        clone_all(body, values)
        return values[terminator.operands[0]]

    def _rule(self, types: Sequence[ir.Type]) -> Any:
        """The function that scores by the rule in this layer. Raises InputError where a dump has none."""
        expected = self.scale.value, kv.optional_of(self.attention, "softcap") or 0.0
        for function in _rules(self.module):
            numbers = ir.DictAttr(function.attributes[RULE])
            if list(function.type.inputs) == list(types) and expected == tuple(
                ir.FloatAttr(numbers[name]).value for name in ("scale", "softcap")
            ):
                return function
        raise ThreadCacheErrors.NO_RULE(origin=origin_of(self.attention))

    def _positions(self, length: ir.Value, selected: ir.Value | None) -> ir.Value:
        """Which position each row of the cache holds."""
        g, i64 = self.geometry, ir.IntegerType.get_signless(64)
        kept: ir.Value = kv.KeptPositions(length, tensor_type([self.kv_heads, g.sink_recent], i64)).positions
        if selected is None or g.indexed:
            return kept
        joined: ir.Value = tensor.ConcatOp(tensor_type([self.kv_heads, g.budget], i64), 1, [kept, selected]).result
        return joined

    def _filled(self, cache: ir.Value, offsets: list[Offset], scratch: ir.Value, index: ir.Value) -> ir.Value:
        """`cache` with the rows of `scratch` at `index` in it, from `offsets` on."""
        place = extract_slice(cache, offsets, [1, *index.type.shape, cache.type.shape[3]])
        return insert_slice(kv.Gather(scratch, index, place, place.type).gathered, cache, offsets)


def _split(values: Sequence[ir.Value], counts: Sequence[int]) -> list[list[ir.Value]]:
    """So many values each, and then the rest."""
    ends = [0, *itertools.accumulate(counts), len(values)]
    return [list(values[first:end]) for first, end in itertools.pairwise(ends)]


def _text(value: str) -> ir.StringAttr:
    return ir.StringAttr.get(value)
