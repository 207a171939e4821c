"""build-entries: the entry points `prefill`, `decode` and `score` are built, as control flow around the layers.

What: `decode` and `verify` run embedding, layers and head once for all slots. `score` runs the head of `decode` on the
hidden states of the last prefilled prompt, at one position per slot, so that it adds only a call to the program; it is
omitted if there are more slots than positions of a prompt. `prefill` runs one sequence layer by layer, phase after
phase (embedding, every layer, head), and within a phase chunk after chunk of the prompt; after the last chunk of a
layer, that layer is compressed into its slot of the decode cache.

A prompt may share a prefix with an earlier one: its first `reused` chunks are skipped, because their rows are already
in the states of the slot, or in the scratch if the layers have no such states.

Positions of tokens in the text are an input of both entries. Rows of a cache are counted in tokens that were prefilled
and fed, so that some tokens of a prompt can be left out (speculative prefill) while the others keep their rotation.

If ranks divide the slots among themselves (`own_slot`), the number of the rank determines its slots, and only this rank
compresses a layer into such a slot.

Both entries are straight-line sequences of calls. A phase is a function that contains its loop over chunks. Prefill is
resumable: the caller's cursor (phase, chunk) and a number of steps become a range [begin, end) of chunk steps, counted
from the start of the prompt, and every phase executes those of its steps that lie in that range.

Why: the full-length K/V scratch exists for one layer at a time, trip counts follow the prompt's actual length, and
`kernel-looping` can loop straight-line calls.

Before::

    func.func private @decode.embed(tensor<2x1xi64> {sscc.input = "ids"}, tensor<2x1xi64> {sscc.input = "positions"})
      -> (tensor<2x1x8xf32> {sscc.output = "hidden"})
    func.func private @decode.layer.0(tensor<2x1x8xf32> {sscc.input = "hidden"}, tensor<8xf32> {sscc.weight = "w"},
      tensor<2x1x4x8xf32> {sscc.state = "k_cache"}, tensor<2x1x4x8xf32> {sscc.state = "v_cache"},
      tensor<2xi64> {sscc.input = "position"}, tensor<2xi64> {sscc.input = "base"},
      tensor<2xi1> {sscc.input = "active"}) -> (tensor<2x1x8xf32> {sscc.output = "hidden"},
      tensor<2x1x4x8xf32> {sscc.state = "k_cache"}, tensor<2x1x4x8xf32> {sscc.state = "v_cache"})
    func.func private @decode.head(tensor<2x1x8xf32> {sscc.input = "hidden"})
      -> (tensor<2x1x9xf32> {sscc.output = "logits"})
    func.func private @prefill.embed(tensor<1x4xi64> {sscc.input = "ids"}, tensor<1x4xi64> {sscc.input = "positions"})
      -> (tensor<1x4x8xf32> {sscc.output = "hidden"})
    func.func private @prefill.layer.0(tensor<1x4x8xf32> {sscc.input = "hidden"}, tensor<8xf32> {sscc.weight = "w"},
      tensor<1x1x8x8xf32> {sscc.state = "k_scratch"}, tensor<1x1x8x8xf32> {sscc.state = "v_scratch"},
      tensor<1x1x1x8xf32> {sscc.state = "observed"}, index {sscc.input = "start"}, index {sscc.input = "length"})
      -> (tensor<1x4x8xf32> {sscc.output = "hidden"}, tensor<1x1x8x8xf32> {sscc.state = "k_scratch"},
      tensor<1x1x8x8xf32> {sscc.state = "v_scratch"}, tensor<1x1x1x8xf32> {sscc.state = "observed"})
    func.func private @prefill.compress.0(tensor<1x1x8x8xf32> {sscc.state = "k_scratch"},
      tensor<1x1x8x8xf32> {sscc.state = "v_scratch"}, tensor<1x1x1x8xf32> {sscc.state = "observed"},
      tensor<2x1x4x8xf32> {sscc.state = "k_cache"}, tensor<2x1x4x8xf32> {sscc.state = "v_cache"},
      index {sscc.input = "slot"}, index {sscc.input = "length"}) -> (tensor<2x1x4x8xf32> {sscc.state = "k_cache"},
      tensor<2x1x4x8xf32> {sscc.state = "v_cache"}, tensor<1x1xi64> {sscc.state = "selected"})
    func.func private @prefill.head(tensor<1x4x8xf32> {sscc.input = "hidden"}, tensor<1xi64> {sscc.input = "last"})
      -> (tensor<1x1x9xf32> {sscc.output = "logits"})

After, a layer's phase of prefill::

    func.func private @prefill.phase.layer.0(%begin: .. "begin"}, %end: .. "end"}, %chunks: .. "chunks"}, ..
      %lo:3 = call @progress(%begin, %end, %chunks, %number, %chunks) ..
      ..
      %from = arith.addi %lo#0, %reused : index
      %first = arith.minsi %from, %all : index
      %to = arith.addi %lo#1, %reused : index
      %last = arith.minsi %to, %all : index
      %done:4 = scf.for %chunk = %first to %last step %step iter_args(%hidden1 = %hidden, ..
        %start = arith.muli %chunk, %size : index
        %h = tensor.extract_slice %hidden1[0, %start, 0] [1, 4, 8] [1, 1, 1] ..
        %results:4 = func.call @prefill.layer.0(%h, ..
        %hidden2 = tensor.insert_slice %results#0 into %hidden1[0, %start, 0] ..
        scf.yield %hidden2, %results#1, %results#2, %results#3 : ..
      }
      %cache:3 = scf.if %lo#2 -> ..
        %kept:3 = func.call @prefill.compress.0(%done#1, %done#2, %done#3, %k_cache, %v_cache, %slot, %length) ..
        scf.yield %kept#0, %kept#1, %kept#2 : ..
      } else {
        scf.yield %k_cache, %v_cache, %selected : ..
      }

After, the call of that phase in prefill::

    func.func public @prefill(%tokens: .. "tokens"}, %ids: .. "position_ids"}, %length: .. "length"}, ..
      ..
      %embedded = call @prefill.phase.embed(%begin, %end, %chunks, %zero, %length, %reused, %tokens, %ids, %hidden) ..
      %k = tensor.extract_slice %k_cache[0, 0, 0, 0, 0] [1, 2, 1, 4, 8] ..
      %v = tensor.extract_slice %v_cache[0, 0, 0, 0, 0] [1, 2, 1, 4, 8] ..
      ..
      %results:7 = call @prefill.phase.layer.0(%begin, %end, %chunks, %one, %length, %slot, %reused, %embedded, ..
      %k_cache1 = tensor.insert_slice %results#4 into %k_cache[0, 0, 0, 0, 0] ..
      ..
      %logits = call @prefill.phase.head(%begin, %end, %chunks, %two, %length, %results#0, ..

After, decode::

    func.func public @decode(%token: .. "token"}, %id: .. "position_id"}, %position: .. "position"}, ..
      %h = call @decode.embed(%token, %id) ..
      %k = tensor.extract_slice %k_cache[0, 0, 0, 0, 0] [1, 2, 1, 4, 8] ..
      %v = tensor.extract_slice %v_cache[0, 0, 0, 0, 0] [1, 2, 1, 4, 8] ..
      %results:3 = call @decode.layer.0(%h, %w, %k, %v, %position, %base, %active) ..
      %k_cache1 = tensor.insert_slice %results#1 into %k_cache[0, 0, 0, 0, 0] ..
      %v_cache1 = tensor.insert_slice %results#2 into %v_cache[0, 0, 0, 0, 0] ..
      %logits = call @decode.head(%results#0) ..
      %flat = tensor.collapse_shape %logits ..
      return %flat, %k_cache1, %v_cache1 : ..

When it does not apply: a table whose token axis cannot be told from the two captures is refused.

Preserves: the layer functions. States are threaded as values; every update is in place by construction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, func, scf

from sscc.ir.builders import (
    STORED,
    Argument,
    Offset,
    arguments_of,
    elementwise,
    extract_slice,
    index_constant,
    insert_slice,
    make_function,
    positions_tensor,
    reshape,
    results_of,
    tensor_type,
)
from sscc.ir.cache_plan import STATELESS, CachePlan, LayerGroup, stateless_group
from sscc.ir.choices import CURSOR, FIRST, POSITION_ID, POSITION_IDS, RANK, REUSED, SCORE, STEPS, step_tensor
from sscc.ir.collectives import rank_of_this_one
from sscc.ir.errors import ErrorKind, UnsupportedError
from sscc.ir.layer_state.row_streams import CACHES, INDEX, SCRATCHES, STORES, Stream, state_name, streams_of
from sscc.ir.layer_state.rows import store_of
from sscc.ir.layer_state.selectors import QUANTIZED_KEY_SCRATCHES, QUANTIZED_KEYS
from sscc.ir.layer_state.state_tensors import Extent
from sscc.ir.levels import GroupFacts, ProgramFacts, get_facts, get_groups
from sscc.ir.rewriting import functions
from sscc.passes.base import Pass
from sscc.passes.layer_threading import CHOOSE, COMPRESS, OWN_SLOT, end_name, slot_inputs
from sscc.passes.split_layers import CHOICE, LAYER_INPUT

PROGRESS = "progress"
TOKENS_OF_CHOICE = 2
"""Axis of tokens of a choice, [1, Hc, C, Top]."""
_INDEX = Stream(*INDEX, width=0)
KEPT = dict(zip((*SCRATCHES, *QUANTIZED_KEY_SCRATCHES), (*STORES, *QUANTIZED_KEYS), strict=True)) | {
    _INDEX.scratch: _INDEX.cache
}
"""For indexed rows, the state that holds each slot's prompt, by the scratch that is a view of one slot."""


def kept_name(scratch: str) -> str | None:
    """Return the name of the state of which a scratch is one slot's part, for indexed rows; None if it is not part of
    any. Both names end with that of the group, for a group beside another one."""
    name, dot, group = scratch.partition(".")
    return f"{KEPT[name]}{dot}{group}" if name in KEPT else None


class BuildEntriesErrors(ErrorKind):
    NO_TOKEN_AXIS = (
        UnsupportedError,
        "the token axis of {tensor} cannot be told from its shapes [{prefill}] in prefill and [{decode}] in decode: "
        "try another --prefill-chunk",
    )


@dataclass(frozen=True)
class BuildEntries(Pass):
    name: ClassVar[str] = "build-entries"
    takes: ClassVar[tuple[str, ...]] = ("graph",)
    follows: ClassVar[tuple[str, ...]] = ("thread-cache", "quantize-weights")
    level: ClassVar[str] = "graph"

    def run(self, module: ir.Module) -> None:
        facts, geometry = get_facts(module)
        parts = {function.name.value: function for function in functions(module)}
        groups = get_groups(module)
        _build_progress(module)
        rows = facts.scratch_rows(geometry)
        prefill = _PrefillBuilder(module, parts, facts, rows, groups)
        prefill.build()
        for name in STEPS:
            if f"{name}.embed" in parts:
                _StepBuilder(module, parts, facts, groups, name).build()
        if facts.batch <= rows:
            _ScoreBuilder(module, parts, facts, groups).build(prefill.embedded[0], prefill.axes["hidden"])


def _build_progress(module: ir.Module) -> None:
    """Build ``progress(begin, end, chunks, number, limit) -> (lo, hi, done)``. Phase `number` begins after number *
    chunks steps and has `limit` steps; its steps lo .. hi - 1 lie in [begin, end). `done` is true if its last step is
    among them."""
    index, flag = ir.IndexType.get(), ir.IntegerType.get_signless(1)
    arguments = [Argument("input", name, index) for name in ("begin", "end", "chunks", "number", "limit")]
    results = [Argument("output", name, type_) for name, type_ in (("lo", index), ("hi", index), ("done", flag))]
    location = ir.Location.name(PROGRESS)
    function = make_function(module, PROGRESS, arguments, results, location)
    begin, end, chunks, number, limit = function.arguments
    with ir.InsertionPoint(function.entry_block), location:
        first, zero = arith.MulIOp(number, chunks).result, index_constant(0)
        lo, hi = (
            arith.MinSIOp(arith.MaxSIOp(arith.SubIOp(edge, first).result, zero).result, limit).result
            for edge in (begin, end)
        )
        some = arith.CmpIOp(arith.CmpIPredicate.slt, lo, hi).result
        ended = arith.CmpIOp(arith.CmpIPredicate.eq, hi, limit).result
        func.ReturnOp([lo, hi, arith.AndIOp(some, ended).result])


class _Function:
    """A function under construction: its arguments by (role, name), and calls of parts by argument names."""

    def __init__(
        self, module: ir.Module, name: str, arguments: Sequence[Argument], results: Sequence[Argument]
    ) -> None:
        self.location = ir.Location.name(name)
        self.function = make_function(module, name, arguments, results, self.location)
        self.values = {
            (argument.role, argument.name): value
            for argument, value in zip(arguments, self.function.arguments, strict=True)
        }

    def values_of(self, role: str) -> dict[str, ir.Value]:
        return {name: value for (its_role, name), value in self.values.items() if its_role == role}

    def call(self, function: Any, named_operands: dict[str, ir.Value]) -> dict[str, ir.Value]:
        """Call a part: inputs and states by name from `named_operands`, weights from this function's arguments."""
        operands = []
        for argument in arguments_of(function):
            stored = argument.role in STORED
            operands.append(self.values[argument.role, argument.name] if stored else named_operands[argument.name])
        results = results_of(function)
        with function.location:
            call = func.CallOp([r.type for r in results], function.name.value, operands)
        return {result.name: value for result, value in zip(results, call.results, strict=True)}


def _weights(parts: Iterable[Any]) -> list[Argument]:
    """Return the weights and constants of `parts`, in order of first use."""
    weights: dict[tuple[str, str], Argument] = {}
    for part in parts:
        for argument in arguments_of(part):
            if argument.role in STORED:
                weights.setdefault((argument.role, argument.name), argument)
    return list(weights.values())


@dataclass(frozen=True)
class _LayerState:
    """A state of a layer, and its place among the states of the entry.

    Attributes:
        argument: the state as an argument of the layer's function, or of its phase.
        name: name of the entry's state that contains it.
        layers, index: number of layers stacked in that state, and the index of this one; 0 if the layer takes the whole
            state: a scratch that all layers use in turn, or a cache that has the rows of all layers.
    """

    argument: Argument
    name: str
    layers: int = 0
    index: int = 0

    @property
    def whole(self) -> Argument:
        """The entry's state."""
        type_ = self.argument.type
        if self.layers:
            type_ = tensor_type([self.layers, *type_.shape], type_.element_type)
        return Argument("state", self.name, type_)

    def take(self, states: dict[str, ir.Value]) -> ir.Value:
        """Return the layer's part of the entry's states."""
        if not self.layers:
            return states[self.name]
        shape = list(self.argument.type.shape)
        return extract_slice(states[self.name], [self.index] + [0] * len(shape), [1, *shape], drop=1)

    def put(self, part: ir.Value, states: dict[str, ir.Value]) -> None:
        """Replace the layer's part of the entry's states by `part`."""
        if self.layers:
            part = insert_slice(part, states[self.name], [self.index] + [0] * self.argument.type.rank)
        states[self.name] = part


@dataclass(frozen=True)
class _Layer:
    """A decoder layer.

    Attributes:
        group: its first group.
        index: its index in that group; for a sharer, the index of the layer whose rows it reads.
        scratch: group whose prompt scratch it uses.
        beside: its other groups, with its index in each.
    """

    number: int
    group: LayerGroup
    index: int
    scratch: LayerGroup
    beside: tuple[tuple[LayerGroup, int], ...] = ()

    @property
    def part(self) -> str:
        return f"layer.{self.number}"

    def stacked(self, argument: Argument) -> _LayerState:
        """Return a state in which each layer of the group has a part, stacked or packed."""
        beside = self._beside(argument)
        if beside is not None:
            group, index = beside
            return _LayerState(argument, argument.name, len(group.layers), index)
        name = self.group.state(argument.name)
        if store_of(self.group.geometry).cache_extent is Extent.PACKED and argument.name in CACHES:
            return _LayerState(argument, name)
        return _LayerState(argument, name, len(self.group.layers), self.index)

    def shared(self, argument: Argument) -> _LayerState:
        """Return a state that layers use in turn."""
        of_others = self._beside(argument) is not None
        return _LayerState(argument, argument.name if of_others else self.scratch.state(argument.name))

    def _beside(self, argument: Argument) -> tuple[LayerGroup, int] | None:
        """Return which of the other groups a state is of, whose name it ends with; None for the first group."""
        return next((place for place in self.beside if argument.name.endswith(f".{place[0].name}")), None)

    @property
    def budget(self) -> dict[str, int]:
        """Per-layer sizes of the layer's rows, by name; empty if all layers have the same."""
        return store_of(self.group.geometry).numbers(self.index)

    @property
    def keeps(self) -> bool:
        """True if it keeps rows."""
        return self.number in self.group.layers

    def is_kept(self, scratch: Argument) -> bool:
        """Return True if a scratch is a part of a state that outlives the prefill."""
        group, _ = self._beside(scratch) or (self.group, 0)
        return store_of(group.geometry).keeps_prompts and kept_name(scratch.name) is not None


def _is_per_layer(argument: Argument) -> bool:
    """Return True if this result of the embedding has a slice for every layer."""
    return argument.name.startswith(f"{LAYER_INPUT}.")


def _slice(whole: ir.Value, number: int) -> ir.Value:
    """Return one layer's part of a value [L, ..]."""
    shape = list(whole.type.shape)[1:]
    return extract_slice(whole, [number] + [0] * len(shape), [1, *shape], drop=1)


def _plan(parts: dict[str, Any], groups: Sequence[GroupFacts]) -> CachePlan:
    """Return the groups, with sizes taken from the states of their layers."""
    known = []
    for group in groups:
        shapes = {a.name: a.type.shape for a in _states(parts[f"prefill.layer.{group.layers[0]}"])}
        g = group.geometry
        if group.name == STATELESS:
            known.append(stateless_group(group.layers, g))
            continue
        names = [state_name(name, group.name) if group.beside else name for name in SCRATCHES]
        streams = streams_of(names, shapes, store_of(g).prompt_codec)
        kv_heads = next(shapes[name][1] for name in names if name in shapes)
        # The number of query heads occurs only in the observed queries, which layers share if they share K and V.
        known.append(
            LayerGroup(
                group.name, group.layers, g, 0, kv_heads, streams, group.sharers, beside=group.beside
            )
        )
    return CachePlan(tuple(known))


def _of_one_layer(embedded: Argument) -> Argument:
    """Return the argument of a layer's phase for a result of the embedding: all of it, or the layer's slice."""
    if not _is_per_layer(embedded):
        return embedded
    return replace(embedded, type=tensor_type(list(embedded.type.shape)[1:], embedded.type.element_type))


def _states(function: Any) -> list[Argument]:
    return [argument for argument in arguments_of(function) if argument.role == "state"]


class _EntryBuilder:
    """Base of the builders of both entries: parts by name, and the states of all layers, stacked by group."""

    name: str

    def __init__(
        self, module: ir.Module, parts: dict[str, Any], facts: ProgramFacts, groups: Sequence[GroupFacts]
    ) -> None:
        self.module, self.parts, self.facts, self.groups = module, parts, facts, groups

    @functools.cached_property
    def plan(self) -> CachePlan:
        """The groups of layers."""
        return _plan(self.parts, self.groups)

    @functools.cached_property
    def layers(self) -> list[_Layer]:
        """All layers, in order."""
        places = [self.plan.all_of(number) for number in range(self.plan.layers)]
        return [
            _Layer(number, *first, self.plan.scratch(first[0]), tuple(others))
            for number, (first, *others) in enumerate(places)
        ]

    def part(self, suffix: str) -> Any:
        return self.parts[f"{self.name}.{suffix}"]

    def logits_of(self, head: Any, tokens: int) -> Argument:
        """Return the result of an entry that calls the head for several tokens."""
        logits = results_of(head)[0].type
        return Argument("output", "logits", tensor_type([tokens, logits.shape[-1]], logits.element_type))

    def firsts(self) -> list[_Layer]:
        """The first layer of each group."""
        firsts = {group.layers[0] for group in self.plan}
        return [layer for layer in self.layers if layer.number in firsts]

    def start(self, arguments: Sequence[Argument], results: Sequence[Argument]) -> _Function:
        entry = _Function(self.module, self.name, arguments, results)
        entry.function.attributes["sym_visibility"] = ir.StringAttr.get("public")
        return entry

    def call(self, entry: _Function, function: Any, layer: _Layer, own: Sequence[_LayerState],
             states: dict[str, ir.Value], named_operands: dict[str, ir.Value]) -> dict[str, ir.Value]:  # fmt: skip
        """Call a layer with its own states and budget. Update the states, and return its other results."""
        budget = {name: index_constant(number) for name, number in layer.budget.items()}
        parts = {state.argument.name: state.take(states) for state in own}
        parts |= {
            argument.name: _slice(named_operands[argument.name], layer.number)
            for argument in arguments_of(function)
            if _is_per_layer(argument)
        }
        results = entry.call(function, {**named_operands, **parts, **budget})
        for state in own:
            if state.argument.name in results:
                state.put(results.pop(state.argument.name), states)
        return results


class _StepBuilder(_EntryBuilder):
    """An entry that feeds tokens to every active slot: `decode` one each, `verify` several."""

    def __init__(
        self, module: ir.Module, parts: dict[str, Any], facts: ProgramFacts, groups: Sequence[GroupFacts], name: str
    ) -> None:
        super().__init__(module, parts, facts, groups)
        self.name = name

    def build(self) -> None:
        firsts = [(first, self.part(first.part)) for first in self.firsts()]
        (ids,) = (argument.type for argument in arguments_of(self.part("embed")) if argument.name == "ids")
        token, position_id = Argument("input", "token", ids), Argument("input", POSITION_ID, ids)
        all_states = [first.stacked(argument) for first, part in firsts for argument in _states(part)]
        states = list({state.name: state for state in all_states}.values())
        updated = {first.stacked(result).name for first, part in firsts for result in results_of(part)}
        out = self.logits_of(self.part("head"), ids.shape[0])
        inputs = [token, position_id, *slot_inputs(ids.shape[0])]
        weights = _weights(self.part(name) for name in ("embed", *(layer.part for layer in self.layers), "head"))
        results = [state.whole for state in states if state.name in updated]
        named = [replace(argument, name=step_tensor(self.name, argument.name)) for argument in (*inputs, out)]
        entry = self.start([*named[:-1], *(state.whole for state in states), *weights], [named[-1], *results])
        with ir.InsertionPoint(entry.function.entry_block), entry.location:
            func.ReturnOp(self._body(entry, inputs, [result.name for result in results]))

    def _body(self, entry: _Function, named: Sequence[Argument], updated: Sequence[str]) -> list[ir.Value]:
        inputs = {each.name: entry.values["input", step_tensor(self.name, each.name)] for each in named}
        states = entry.values_of("state")
        positions = inputs.pop(POSITION_ID)
        values = entry.call(self.part("embed"), {"ids": inputs.pop("token"), "positions": positions})
        for layer in self.layers:
            part = self.part(layer.part)
            own = [layer.stacked(argument) for argument in _states(part)]
            values |= self.call(entry, part, layer, own, states, {**values, **inputs, "positions": positions})
        logits = entry.call(self.part("head"), values)["logits"]
        return [reshape(logits, [logits.type.shape[0], logits.type.shape[2]]), *(states[name] for name in updated)]


class _ScoreBuilder(_EntryBuilder):
    """The entry `score`: logits after `batch` positions of the last prefilled prompt, by the head of a decode step."""

    name = SCORE

    def build(self, hidden: Argument, axis: int) -> None:
        """Build the entry.

        Args:
            hidden: state with the hidden states of a whole prompt.
            axis: its axis of positions.
        """
        head = self.parts["decode.head"]
        sizes, out = list(hidden.type.shape), self.logits_of(head, self.facts.batch)
        row = next(argument.type for argument in arguments_of(head) if argument.name == "hidden")
        first = Argument("input", FIRST, ir.IndexType.get())
        several = None
        if any(size != 1 for size in sizes[:axis]):  # the rows of a position are not contiguous
            several = self._copied(sizes, axis, hidden.type.element_type)
        entry = self.start([first, hidden, *_weights([head])], [out])
        with ir.InsertionPoint(entry.function.entry_block), entry.location:
            offsets: list[Offset] = [0] * len(sizes)
            offsets[axis], sizes[axis] = entry.values["input", FIRST], self.facts.batch
            taken = extract_slice(entry.values["state", "hidden"], offsets, sizes)
            if several:
                taken = entry.call(several, {"hidden": taken})["hidden"]
            taken = reshape(reshape(taken, [size for size in sizes if size != 1]), list(row.shape))
            found = entry.call(head, {"hidden": taken})["logits"]
            func.ReturnOp([reshape(found, list(out.type.shape))])

    def _copied(self, sizes: Sequence[int], axis: int, element: ir.Type) -> Any:
        """Return a function that copies the rows of several hidden states. It adds zero, because a plain copy would be
        folded away."""
        shape = [*sizes[:axis], self.facts.batch, *sizes[axis + 1 :]]
        rows = tensor_type(shape, element)
        arguments, results = ([Argument(role, "hidden", rows)] for role in ("input", "output"))
        function = make_function(self.module, f"{self.name}.rows", arguments, results, ir.Location.name(self.name))
        with ir.InsertionPoint(function.entry_block), ir.Location.name(self.name):
            zero = arith.ConstantOp(element, 0.0).result
            func.ReturnOp([elementwise([function.arguments[0]], rows, lambda x: arith.AddFOp(x, zero).result)])
        return function


@dataclass(frozen=True)
class _PrefillStates:
    """The states of a layer in prefill, as its phase takes them.

    Attributes:
        scratch: states that layers use in turn.
        caches: states that the end of a prompt writes.
        prompts: scratches that are kept, by their names in the layer's function: the states of all slots.
        updated: names of those in the layer's function that it updates; a layer that shares the rows of another one
            only reads them.
    """

    scratch: list[Argument]
    caches: list[Argument]
    prompts: dict[str, Argument]
    updated: frozenset[str]

    @property
    def lasting(self) -> list[Argument]:
        """All of them, in the order in which a phase takes them."""
        return [*self.scratch, *self.caches, *self.prompts.values()]

    @property
    def results(self) -> list[Argument]:
        """States that a phase returns, in this order."""
        scratch = [argument for argument in self.scratch if argument.name in self.updated]
        return [*scratch, *self.caches, *self.kept_prompts.values()]

    @property
    def kept_prompts(self) -> dict[str, Argument]:
        """The states of `prompts` that are updated."""
        return {name: whole for name, whole in self.prompts.items() if name in self.updated}

    def of(self, layer: _Layer) -> list[_LayerState]:
        """Return the places of the layer's states in the entry."""
        own = [*self.caches, *self.prompts.values()]
        return [*map(layer.shared, self.scratch), *map(layer.stacked, own)]


class _PrefillBuilder(_EntryBuilder):
    """The entry `prefill`: one sequence, layer by layer over chunks, resumable."""

    name = "prefill"

    def __init__(
        self, module: ir.Module, parts: dict[str, Any], facts: ProgramFacts, rows: int, groups: Sequence[GroupFacts]
    ) -> None:
        super().__init__(module, parts, facts, groups)
        self.rows = rows

    def build(self) -> None:
        self.axes = self._token_axes()
        self.ranks = {result.name: result.type.rank for result in results_of(self.part("embed"))}
        index = ir.IndexType.get()
        self.embedded = embedded = [self._full_length(result) for result in results_of(self.part("embed"))]
        own = [state for first in self.firsts() for state in self._states(first).of(first)]
        own = sorted(own, key=lambda state: state.layers > 0)  # scratches first
        wholes = {state.name: state.whole for state in own}
        made = (result for layer in self.layers for result in results_of(self.part(layer.part)))
        choice = next((result for result in made if result.name == CHOICE), None)
        self.choice = None if choice is None else self._choice(choice)
        phases = [self._embed(embedded)]
        phases += [self._layer(layer, embedded) for layer in self.layers]
        phases.append(self._head(embedded[0]))
        scalars = [Argument("input", name, index) for name in ("length", "slot", *CURSOR, "steps", REUSED)]
        passed = [self.choice] if self.choice else []
        logits, states = self._logits(), [*embedded, *passed, *wholes.values()]
        results = [logits, *(Argument("output", name, index) for name in CURSOR), *states]
        entry = self.start([self._tokens, self._position_ids, *scalars, logits, *states, *_weights(phases)], results)
        with ir.InsertionPoint(entry.function.entry_block), entry.location:
            func.ReturnOp(self._body(entry, phases))

    @property
    def _tokens(self) -> Argument:
        """Return the tokens of the prompt, zero-padded."""
        return Argument("input", "tokens", tensor_type([1, self.rows], ir.IntegerType.get_signless(64)))

    @property
    def _position_ids(self) -> Argument:
        """Return the position of each token in its text."""
        return Argument("input", POSITION_IDS, tensor_type([1, self.rows], ir.IntegerType.get_signless(64)))

    def _of_chunk(self, tokens: ir.Value, start: ir.Value) -> ir.Value:
        """Return an input's values for the tokens of a chunk, [1, C]."""
        return extract_slice(tokens, [0, start], [1, self.facts.chunk])

    def _states(self, layer: _Layer) -> _PrefillStates:
        scratch = _states(self.part(layer.part))
        prompts = {a.name: self._of_all_slots(a) for a in scratch if layer.is_kept(a)}
        caches = [replace(result, role="state") for end in self._ends(layer) for result in results_of(end)]
        updated = frozenset(result.name for result in results_of(self.part(layer.part)))
        return _PrefillStates([a for a in scratch if a.name not in prompts], caches, prompts, updated)

    def _ends(self, layer: _Layer) -> list[Any]:
        """Return the functions that follow the last chunk of a prompt."""
        names = [end_name(what, layer.number) for what in (CHOOSE, COMPRESS)] if layer.keeps else []
        names += [end_name(COMPRESS, layer.number, group.name) for group, _ in layer.beside]
        names = [f"{self.name}.{name}" for name in names]
        return [self.parts[name] for name in names if name in self.parts]

    def _of_all_slots(self, scratch: Argument) -> Argument:
        shape = [self.facts.batch, *list(scratch.type.shape)[1:]]
        return Argument("state", str(kept_name(scratch.name)), tensor_type(shape, scratch.type.element_type))

    def _token_axes(self) -> dict[str, int]:
        """Return the axis of tokens of each embedding result: the one with C elements in prefill and 1 in decode."""
        decoded = {result.name: result.type.shape for result in results_of(self.parts["decode.embed"])}
        return {
            result.name: self._token_axis(result.name, result.type.shape, decoded.get(result.name, []))
            for result in results_of(self.part("embed"))
        }

    def _token_axis(self, name: str, chunk: Sequence[int], row: Sequence[int]) -> int:
        axes = [axis for axis, sizes in enumerate(zip(chunk, row, strict=False)) if sizes == (self.facts.chunk, 1)]
        if len(axes) != 1 or len(chunk) != len(row):
            raise BuildEntriesErrors.NO_TOKEN_AXIS(tensor=name, prefill=list(chunk), decode=list(row))
        return axes[0]

    def _full_length(self, result: Argument) -> Argument:
        shape = list(result.type.shape)
        shape[self.axes[result.name]] = self.rows
        return Argument("state", result.name, tensor_type(shape, result.type.element_type))

    def _choice(self, result: Argument) -> Argument:
        """Return the choices for the tokens of a whole prompt, which later layers reuse."""
        self.axes[CHOICE], self.ranks[CHOICE] = TOKENS_OF_CHOICE, result.type.rank
        return self._full_length(result)

    def _passed(self, part: Any) -> list[Argument]:
        """Return the choice as a list, if a layer's function reads it or returns it."""
        named = {argument.name for argument in (*arguments_of(part), *results_of(part))}
        return [self.choice] if self.choice is not None and CHOICE in named else []

    def _logits(self) -> Argument:
        logits = results_of(self.part("head"))[0].type
        return Argument("output", "prefill_logits", tensor_type([1, logits.shape[-1]], logits.element_type))

    # ------------------------------------------------------------------------------------------------ the entry

    def _body(self, entry: _Function, phases: list[Any]) -> list[ir.Value]:
        inputs, state = entry.values_of("input"), entry.values_of("state")
        size, count = index_constant(self.facts.chunk), self.facts.layers + 2
        left = arith.SubIOp(arith.CeilDivSIOp(inputs["length"], size).result, inputs[REUSED]).result
        chunks = arith.MaxSIOp(left, index_constant(1)).result
        begin = arith.AddIOp(arith.MulIOp(inputs["phase"], chunks).result, inputs["chunk"]).result
        before_head = arith.MulIOp(index_constant(count - 1), chunks).result
        total = arith.AddIOp(before_head, index_constant(1)).result
        end = arith.MinSIOp(arith.AddIOp(begin, inputs["steps"]).result, total).result
        common = {**inputs, **entry.values_of("output"), "chunks": chunks, "begin": begin, "end": end}
        if any(self._has_own_slots(self._ends(layer)) for layer in self.layers):
            common[RANK] = rank_of_this_one()
        first, *layered, last = phases
        state |= entry.call(first, {**common, **state, "number": index_constant(0)})
        for layer, phase in zip(self.layers, layered, strict=True):
            number = index_constant(layer.number + 1)
            own = self._states(layer).of(layer)
            state |= self.call(entry, phase, layer, own, state, {**common, **state, "number": number})
        logits = entry.call(last, {**common, **state, "number": index_constant(len(phases) - 1)})["prefill_logits"]
        finished = arith.CmpIOp(arith.CmpIPredicate.eq, end, total).result
        reached = arith.FloorDivSIOp(end, chunks).result
        inside = arith.SubIOp(end, arith.MulIOp(reached, chunks).result).result
        phase_after = arith.SelectOp(finished, index_constant(count), reached).result
        chunk_after = arith.SelectOp(finished, index_constant(0), inside).result
        return [logits, phase_after, chunk_after, *state.values()]

    # ----------------------------------------------------------------------------------------------- the phases

    def _phase(self, name: str, inputs: Sequence[str], states: Sequence[Argument], results: Sequence[Argument],
               parts: Sequence[Any]) -> _Function:  # fmt: skip
        """Return a function of the progress, further scalar `inputs`, `states`, and the weights of `parts`."""
        scalars = [Argument("input", n, ir.IndexType.get()) for n in ("begin", "end", "chunks", "number", *inputs)]
        return _Function(self.module, f"prefill.phase.{name}", [*scalars, *states, *_weights(parts)], results)

    def _progress(self, phase: _Function, limit: ir.Value) -> list[ir.Value]:
        """Return lo, hi and done of a phase with `limit` steps."""
        index, flag = ir.IndexType.get(), ir.IntegerType.get_signless(1)
        progress = [phase.values["input", name] for name in ("begin", "end", "chunks", "number")]
        return list(func.CallOp([index, index, flag], PROGRESS, [*progress, limit]).results)

    def _chunks(self, phase: _Function, states: dict[str, ir.Value], step: Callable[..., dict[str, ir.Value]]) -> Any:
        """Run ``step(states, start)`` for the chunks in turn. Return the final states, and `done`."""
        lo, hi, done = self._progress(phase, phase.values["input", "chunks"])
        one, size = index_constant(1), index_constant(self.facts.chunk)
        skipped, all_chunks = phase.values["input", REUSED], self._all_chunks(phase)
        lo, hi = (arith.MinSIOp(arith.AddIOp(edge, skipped).result, all_chunks).result for edge in (lo, hi))
        loop = scf.ForOp(lo, hi, one, list(states.values()))
        with ir.InsertionPoint(loop.body):
            start = arith.MulIOp(loop.induction_variable, size).result
            results = step(dict(zip(states, loop.inner_iter_args, strict=True)), start)
            scf.YieldOp([results[name] for name in states])
        return dict(zip(states, loop.results, strict=True)), done

    def _all_chunks(self, phase: _Function) -> ir.Value:
        """Return the number of chunks of the prompt, including skipped ones."""
        return arith.CeilDivSIOp(phase.values["input", "length"], index_constant(self.facts.chunk)).result

    def _embed(self, embedded: Sequence[Argument]) -> Any:
        part = self.part("embed")
        given = [self._tokens, self._position_ids]
        phase = self._phase("embed", ["length", REUSED], [*given, *embedded], embedded, [part])

        def step(states: dict[str, ir.Value], start: ir.Value) -> dict[str, ir.Value]:
            ids, positions = (self._of_chunk(phase.values["input", argument.name], start) for argument in given)
            results = phase.call(part, {"ids": ids, "positions": positions})
            return {name: self._write_chunk(name, value, states[name], start) for name, value in results.items()}

        with ir.InsertionPoint(phase.function.entry_block), phase.location:
            states, _ = self._chunks(phase, phase.values_of("state"), step)
            func.ReturnOp([states[result.name] for result in embedded])
        return phase.function

    def _layer(self, layer: _Layer, embedded: Sequence[Argument]) -> Any:
        part = self.part(layer.part)
        ends = self._ends(layer)
        own, embedded = self._states(layer), [*map(_of_one_layer, embedded)]
        scratch = [argument for argument in _states(part) if argument.name in own.updated]
        caches, prompts = own.caches, own.prompts
        passed = self._passed(part)
        made = [whole for whole in passed if CHOICE in {result.name for result in results_of(part)}]
        results = [embedded[0], *made, *own.results]
        slots = ["slot", *([RANK] if self._has_own_slots(ends) else [])] if caches or prompts else []
        scalars = ["length", *slots, REUSED, *(layer.budget if caches else [])]
        given = [self._position_ids] if any(argument.name == "positions" for argument in arguments_of(part)) else []
        phase = self._phase(layer.part, scalars, [*given, *embedded, *passed, *own.lasting], results, [part, *ends])
        inputs, before = phase.values_of("input"), phase.values_of("state")
        tables = [argument.name for argument in embedded[1:]]

        def step(states: dict[str, ir.Value], start: ir.Value) -> dict[str, ir.Value]:
            chunk = {name: self._read_chunk(name, before[name], start) for name in tables}
            if passed and not made:
                chunk[CHOICE] = self._read_chunk(CHOICE, before[CHOICE], start)
            hidden = self._read_chunk("hidden", states["hidden"], start)
            for argument in given:
                chunk["positions"] = self._of_chunk(inputs[argument.name], start)
            scalars = {"start": start, "length": inputs["length"]}
            after = phase.call(part, {**before, **states, **chunk, "hidden": hidden, **scalars})
            written = ["hidden", *([CHOICE] if made else [])]
            return {**after, **{name: self._write_chunk(name, after[name], states[name], start) for name in written}}

        with ir.InsertionPoint(phase.function.entry_block), phase.location:
            of_slot: list[Offset] = [inputs["slot"], 0, 0, 0] if prompts else []
            for name, whole in prompts.items():
                before[name] = extract_slice(before[whole.name], of_slot, [1, *list(whole.type.shape)[1:]])
            states, done = self._chunks(phase, {a.name: before[a.name] for a in (embedded[0], *made, *scratch)}, step)
            now = {**before, **states}
            for end in ends:
                now |= self._at_the_end(phase, end, done, now)
            kept = own.kept_prompts.items()
            now |= {whole.name: insert_slice(states[n], before[whole.name], of_slot) for n, whole in kept}
            func.ReturnOp([now[result.name] for result in results])
        return phase.function

    def _at_the_end(
        self, phase: _Function, end: Any, done: ir.Value, states: dict[str, ir.Value]
    ) -> dict[str, ir.Value]:
        """Return the states that a function at the end of a prompt writes. With `own_slot`, only the rank that has the
        prompt's slot writes."""
        inputs, written = phase.values_of("input"), results_of(end)
        if self._has_own_slots([end]):
            slots = written[0].type.shape[0]
            inputs[OWN_SLOT], owned = self._own_slot(inputs["slot"], inputs[RANK], slots)
            done = arith.AndIOp(done, owned).result
        branch = scf.IfOp(done, [argument.type for argument in written], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            results = phase.call(end, {**states, **inputs})
            scf.YieldOp([results[argument.name] for argument in written])
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp([states[argument.name] for argument in written])
        return dict(zip([argument.name for argument in written], branch.results, strict=True))

    def _has_own_slots(self, ends: Sequence[Any]) -> bool:
        return any(argument.name == OWN_SLOT for end in ends for argument in arguments_of(end))

    def _own_slot(self, slot: ir.Value, rank: ir.Value, slots: int) -> tuple[ir.Value, ir.Value]:
        """Return the index of a slot among the `slots` slots of a rank, clamped to them, and whether it is one of them.
        Groups of neighbouring ranks have all slots, divided in order."""
        count = index_constant(self.facts.batch // slots)
        group = arith.MulIOp(arith.FloorDivSIOp(rank, count).result, count).result
        first = arith.MulIOp(arith.SubIOp(rank, group).result, index_constant(slots)).result
        number = arith.SubIOp(slot, first).result
        inside = arith.MaxSIOp(number, index_constant(0)).result
        inside = arith.MinSIOp(inside, index_constant(slots - 1)).result
        return inside, arith.CmpIOp(arith.CmpIPredicate.eq, number, inside).result

    def _head(self, hidden: Argument) -> Any:
        """Build the phase of the head, which runs once, on the chunk that holds the last token."""
        part, logits = self.part("head"), self._logits()
        phase = self._phase("head", ["length"], [hidden, logits], [logits], [part])
        with ir.InsertionPoint(phase.function.entry_block), phase.location:
            before = phase.values["output", logits.name]
            size, one = index_constant(self.facts.chunk), index_constant(1)
            chunks = self._all_chunks(phase)
            *_, done = self._progress(phase, one)
            branch = scf.IfOp(done, [logits.type], has_else=True)
            with ir.InsertionPoint(branch.then_block):
                start = arith.MulIOp(arith.SubIOp(chunks, one).result, size).result
                last = arith.SubIOp(arith.SubIOp(phase.values["input", "length"], one).result, start).result
                chunk = self._read_chunk("hidden", phase.values["state", "hidden"], start)
                last_logits = phase.call(part, {"hidden": chunk, "last": positions_tensor([1], last, last)})["logits"]
                scf.YieldOp([insert_slice(reshape(last_logits, [1, last_logits.type.shape[2]]), before, [0, 0])])
            with ir.InsertionPoint(branch.else_block):
                scf.YieldOp([before])
            func.ReturnOp(list(branch.results))
        return phase.function

    # ---------------------------------------------------------------------------------------- a chunk of a state

    def _read_chunk(self, name: str, whole: ir.Value, start: ir.Value) -> ir.Value:
        shape = list(whole.type.shape)
        shape[self._axis(name, whole)] = self.facts.chunk
        return extract_slice(whole, self._chunk_offsets(name, whole, start), shape)

    def _write_chunk(self, name: str, value: ir.Value, whole: ir.Value, start: ir.Value) -> ir.Value:
        return insert_slice(value, whole, self._chunk_offsets(name, whole, start))

    def _chunk_offsets(self, name: str, whole: ir.Value, start: ir.Value) -> list[Offset]:
        offsets: list[Offset] = [0] * whole.type.rank
        offsets[self._axis(name, whole)] = start
        return offsets

    def _axis(self, name: str, whole: ir.Value) -> int:
        """Return the token axis of a result of the embedding, or of a layer's slice of it."""
        missing: int = self.ranks[name] - whole.type.rank
        return self.axes[name] - missing


def entries(module: ir.Module) -> Iterator[Any]:
    """Return the public functions of a module, which are its entries."""
    for function in functions(module):
        if function.visibility.value == "public":
            yield function
