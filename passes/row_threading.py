"""Rows in the functions of a layer: the part of `thread-cache` that knows the algorithm.

`RowThreader` is for rows that are gathered into a cache. Its subclasses are for rows that lie elsewhere: one behind the
other where layers have different budgets, in the prompt where an index names those that steps read, and
(`sscc.passes.query_threading`) in a store of all positions from which each step's query chooses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import func

from sscc.ir.builders import (
    Argument,
    Offset,
    arguments_of,
    extract_slice,
    index_constant,
    insert_slice,
    make_function,
    results_of,
    tensor_type,
)
from sscc.ir.collectives import Peers
from sscc.ir.dialects import kv
from sscc.ir.layer_state.rows import Rows
from sscc.ir.layer_state.selectors import OBSERVED, SELECTED
from sscc.ir.layer_state.stores import FIRST, TOPK
from sscc.ir.layer_state.streams import K_AND_V, LATENT, Stream
from sscc.ir.layer_state.tensors import Extent, ProgramSizes, StateTensor
from sscc.ir.levels import GroupFacts, ProgramFacts, walk
from sscc.ir.locations import origin_of
from sscc.ir.operations import CachedAttention
from sscc.ir.rewriting import ValueMap, clone_with, is_rematerialised, producer
from sscc.ir.views import is_view
from sscc.passes.attended import LAYER, Attended, ThreadCacheErrors, attention_of, heads_and_dims
from sscc.passes.latent_queries import absorbed
from sscc.passes.prompt_selection import PromptChoice

CHOOSE, COMPRESS = "choose", "compress"
"""Names of the functions that follow the last chunk of a prompt in a layer."""
OWN_SLOT = "own_slot"
"""The number of a slot among those whose rows a rank has: an input in the place of `slot` of a function that runs where
it has the slot's."""
LOG_SUM_EXP = "log_sum_exp"
"""The state of what attention found for a prompt's last queries."""

Rewritten = tuple[ir.Value, list[ir.Value]]
"""The result of attention, and the new values of the states that the function updates."""


class RowThreader:
    """Rewrites the function of one layer whose rows are gathered into a cache, and for prefill adds the functions that
    follow the last chunk of a prompt, unless the layer shares the rows of another one.

    Args:
        keeper: the attention of the layer whose rows it attends to, in the same entry.

    Attributes:
        numbers: the inputs that say what is this layer's own, where layers differ in the number of rows that they keep.
    """

    def __init__(
        self, module: ir.Module, function: Any, facts: ProgramFacts, group: GroupFacts, keeper: ir.Operation
    ) -> None:
        self.module, self.function, self.facts, self.group = module, function, facts, group
        self.geometry = group.geometry
        self.attention = attention_of(function)
        self.layer = function.attributes[LAYER].value
        self.entry = function.attributes["sscc.entry"].value
        self.shares = keeper != self.attention
        self.attended, kept = Attended.by(self.attention), Attended.by(keeper).rows
        (self.heads, self.query_width), *rows = heads_and_dims([self.attended.query, *kept])
        self.element, self.kv_heads = self.attended.query.type.element_type, rows[0][0]
        names = K_AND_V if len(rows) == 2 else LATENT
        self.streams = [Stream(name, width) for name, (_, width) in zip(names, rows, strict=True)]
        self.scale = self.attention.attributes["scale"]
        self.value_width = self.attention.results[0].type.shape[3]
        sizes = ProgramSizes(facts.batch, facts.chunk, str(self.element), self.geometry.max_context)
        shape = len(group.layers), self.geometry, self.heads, self.kv_heads, tuple(self.streams)
        self.rows = Rows(group.name, group.name, *shape, sizes)
        self.states = self.rows.by_name
        self.numbers = tuple(self.rows.store.numbers(0))
        parts = kv.head_parts_of(keeper)
        peers = None if parts is None else Peers.with_same_part(module, parts)
        self.peers = peers if peers is not None and peers.count > 1 else None
        self.slots = facts.batch
        self.split = self.peers is not None and self.divides_slots and facts.batch % self.peers.count == 0
        if self.split and self.peers is not None:  # each has the rows of its part of the slots
            self.slots //= self.peers.count

    @property
    def divides_slots(self) -> bool:
        """True if ranks that share KV heads may each have the rows of a part of the slots alone."""
        return not self.rows.store.keeps_prompts

    def rewrite(self) -> None:
        """Replace the function."""
        self.check()
        if self.entry == "decode":
            self.rewrite_decode()
        elif self.shares:
            self.rebuild([], [*self.prompt_rows(), *self._chunk_inputs()], self._shared_prefill_attention)
        else:
            states = [*self.prompt_rows(), *self.observed(), *self.noted_states()]
            self.rebuild(states, self._chunk_inputs(), self._prefill_attention)
            if self.split:
                self._compress_apart()
            else:
                self._compress()

    def check(self) -> None:
        """Refuse rows that do not fill whole bytes as codes."""
        for stream in self.streams:
            bits = self.rows.codec.partial_bits(stream.width)
            if bits:
                raise ThreadCacheErrors.ROW_NOT_WHOLE_BYTES(
                    origin=origin_of(self.attention), width=stream.width, bits=bits
                )

    # ------------------------------------------------------------------------------------------ arguments

    def argument(self, state: StateTensor) -> Argument:
        """Return a state as the function of one layer has it: without the axis of layers."""
        front = {Extent.SLOTS: [self.slots], Extent.PACKED: [self.slots], Extent.PROMPT: [1], Extent.LAST_PROMPT: []}
        shape = [size or self.query_width for size in state.shape]
        elements = {"i8": ir.IntegerType.get_signless(8), "i64": ir.IntegerType.get_signless(64)}
        elements |= {"f32": ir.F32Type.get(), "bf16": ir.BF16Type.get()}
        return Argument("state", state.name, tensor_type([*front[state.extent], *shape], elements[state.dtype]))

    def caches(self) -> list[Argument]:
        """Return the caches of a layer."""
        return [self.argument(self.states[stream.cache]) for stream in self.streams]

    def prompt_rows(self) -> list[Argument]:
        """Return the states of the rows of the prompt in progress, as a phase of prefill has them."""
        sizes, states = self.rows.sizes, []
        for stream in self.streams:
            dtype, width = self.rows.store.prompt_codec.stored(stream.width, sizes.dtype)
            shape = (self.kv_heads, sizes.scratch_rows, width)
            states.append(StateTensor(stream.scratch, Extent.PROMPT, dtype, shape))
        return [self.argument(state) for state in states]

    def noted_states(self) -> list[Argument]:
        """Return the states of what prefill keeps of the prompt's keys beside rows."""
        return []

    def observed(self) -> list[Argument]:
        """Return the states of the last queries of a prompt, and where they select of what attention found for them."""
        if OBSERVED not in self.states:
            return []
        queries = self.argument(self.states[OBSERVED])
        if SELECTED not in self.states:
            return [queries]
        sums = tensor_type([1, self.heads, self.geometry.obs, 1], ir.F32Type.get())
        return [queries, Argument("state", LOG_SUM_EXP, sums)]

    def selected(self) -> list[Argument]:
        """Return the state of the positions that the end of a prompt selects, if it selects any."""
        return [self.argument(self.states[SELECTED])] if SELECTED in self.states else []

    def _decode_inputs(self) -> list[Argument]:
        slots = tensor_type([self.facts.batch], ir.IntegerType.get_signless(64))
        flags = tensor_type([self.facts.batch], ir.IntegerType.get_signless(1))
        return [
            Argument("input", "position", slots),
            Argument("input", "base", slots),
            Argument("input", "active", flags),
            *(Argument("input", name, ir.IndexType.get()) for name in self.numbers),
        ]

    def _own(self, added: list[ir.Value]) -> tuple[list[ir.Value], dict[str, ir.Value]]:
        """Return the values of added arguments, and the last of them by name: the layer's own numbers."""
        count = len(added) - len(self.numbers)
        return added[:count], dict(zip(self.numbers, added[count:], strict=True))

    def _chunk_inputs(self) -> list[Argument]:
        index = ir.IndexType.get()
        return [Argument("input", "start", index), Argument("input", "length", index)]

    def encoded(self, rows: ir.Value) -> ir.Value:
        """Return rows [.., D] as a cache holds them."""
        if not self.rows.codec.rounds:
            return rows
        _, width = self.rows.codec.stored(rows.type.shape[-1], self.rows.sizes.dtype)
        type_ = tensor_type([*list(rows.type.shape)[:-1], width], ir.IntegerType.get_signless(8))
        encoded: ir.Value = kv.QuantizeRows(rows, type_).out
        return encoded

    # ---------------------------------------------------------------------------------------- the rewrite

    def rebuild(
        self,
        states: list[Argument],
        inputs: list[Argument],
        attend: Callable[[Attended, list[ir.Value]], Rewritten],
    ) -> None:
        """Copy the function with more arguments, and with other attention.

        Args:
            states: that the new function updates.
            attend: makes attention and the new values of `states`, of what the old one attended to and the values of
                the added arguments.
        """
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
                        out, outputs = attend(Attended.by(op, values.__getitem__), added)
                    values[op.results[0]] = out
                elif not is_rematerialised(op):
                    clone_with(op, values)
            with terminator.location:
                func.ReturnOp([*(values[v] for v in terminator.operands), *outputs])
        self._note_settings(new)

    def _note_settings(self, function: Any) -> None:
        """Operations of a group that the module's geometry does not govern say its name, and those that make scores
        what caps them."""
        for op in walk(function):
            if op.name.startswith("kv."):
                kv.in_group(op, self.group.name)
                kv.inherit(op, self.attention)

    # ------------------------------------------------------------------------------------------ decode

    def rewrite_decode(self) -> None:
        """Replace the function of a decode step."""
        updated, read = ([], self.caches()) if self.shares else (self.caches(), [])
        self.rebuild(updated, [*read, *self.far_states(), *self._decode_inputs()], self._decode_attention)

    def far_states(self) -> list[Argument]:
        """Return the states that a step reads and does not update: of each stream rows, then the index of those."""
        return []

    def _decode_attention(self, attended: Attended, added: list[ir.Value]) -> Rewritten:
        added, own = self._own(added)
        *states, position, base, active = added
        if self.split:
            attended, (position, base, active) = self._of_own_slots(attended, position, base, active)
        wholes, indexed = states[: len(self.streams)], states[len(self.streams) :]
        now, topk = [self.window(cache, own) for cache in wholes], self.selects(own)
        if not self.shares:  # else the layer that keeps the rows has updated them
            row = kv.Row(position, base, topk, position.type).row
            rows = zip(now, attended.rows, strict=True)
            now = [kv.Update(cache, self.encoded(new), row, active, cache.type).updated for cache, new in rows]
        *far, index = indexed or [None]
        more = [(far, index)] if index is not None else []
        flags = tensor_type(
            [self.slots, self.geometry.budget + len(more) * self.geometry.topk], ir.IntegerType.get_signless(1)
        )
        valid = kv.Validity(position, active, topk, index, flags).valid
        out = self.cached_attention(attended, valid, (now, None), *more)
        if self.split and self.peers is not None:
            out = self.peers.exchanged(out, split=1, join=0)
        return out, [] if self.shares else self.replaced(wholes, now, own)

    def selects(self, own: dict[str, ir.Value]) -> ir.Value:
        """Return how many positions of a prompt this layer selects."""
        return own.get(TOPK) or index_constant(self.geometry.topk)

    def window(self, cache: ir.Value, own: dict[str, ir.Value]) -> ir.Value:
        """Return the rows of this layer in a cache."""
        return cache

    def replaced(self, wholes: list[ir.Value], now: list[ir.Value], own: dict[str, ir.Value]) -> list[ir.Value]:
        """Return caches with the new rows of this layer in them."""
        return now

    def _of_own_slots(self, attended: Attended, *of_slots: ir.Value) -> tuple[Attended, list[ir.Value]]:
        """Return what this one of the ranks that share KV heads attends to, with all query heads of these and of its
        part of the slots alone; each of `of_slots` of that part. Queries go to the ranks that have the rows of their
        slots."""
        peers = self.peers
        assert peers is not None
        sinks = tuple(peers.gathered(logits, 0) for logits in attended.sinks)
        rows = tuple(peers.sliced(row, 0) for row in attended.rows)
        query = peers.exchanged(attended.query, split=0, join=1)
        return Attended(query, rows, sinks=sinks), [peers.sliced(value, 0) for value in of_slots]

    def cached_attention(
        self, attended: Attended, valid: ir.Value, *segments: tuple[Sequence[ir.Value], ir.Value | None]
    ) -> ir.Value:
        """Return attention over segments, each the rows of its streams and perhaps an index, whose rows `valid` [B, R]
        numbers through."""
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

    # ------------------------------------------------------------------------------------------ prefill

    def _prefill_attention(self, attended: Attended, added: list[ir.Value]) -> Rewritten:
        *states, start, length = added
        scratches, observed, more = parted(states, [len(self.streams), len(self.observed())])
        more = self.noted_keys(attended.rows[0], more, start)
        out, sums, now = self._chunk_attended(attended, scratches, start, length)
        last = zip(observed, (attended.query, sums), strict=False)
        observed = [kv.Observe(kept, new, start, length, kept.type).updated for kept, new in last]
        return out, [*now, *observed, *more]

    def noted_keys(self, keys: ir.Value, states: list[ir.Value], start: ir.Value) -> list[ir.Value]:
        """Return the new values of what prefill keeps of a chunk's keys beside rows."""
        return states

    def _chunk_attended(
        self, attended: Attended, scratches: Sequence[ir.Value], start: ir.Value, length: ir.Value
    ) -> tuple[ir.Value, ir.Value, list[ir.Value]]:
        """Return a chunk's attention, its log-sum-exp, and the scratches with the chunk's rows in them."""
        if attended.ups:
            type_ = self.attention.results[0].type
            sums = tensor_type([*attended.query.type.shape[:3], 1], ir.F32Type.get())
            operands = (attended.query, attended.rows[0], scratches[0], *attended.ups, start, length)
            settings = self.scale, self.attention.attributes["first"]
            chunk = kv.LatentChunkAttention(*operands, *settings, type_, sums, scratches[0].type)
            return chunk.out, chunk.log_sum_exp, [chunk.appended]
        rows = [self.encoded(row) for row in attended.rows] if self.rows.store.prompt_codec.rounds else attended.rows
        now = appended(rows, scratches, start)
        done = self._causal_attention(attended, now, start, length)
        return done.out, done.log_sum_exp, now

    def _shared_prefill_attention(self, attended: Attended, added: list[ir.Value]) -> Rewritten:
        """Return attention to the rows of a prompt that another layer has appended, in its own phase."""
        *scratches, start, length = added
        return self._causal_attention(attended, scratches, start, length).out, []

    def _causal_attention(
        self, attended: Attended, rows: Sequence[ir.Value], start: ir.Value, length: ir.Value
    ) -> Any:
        query, type_, sinks = attended.query, self.attention.results[0].type, attended.sinks or [None]
        sums = tensor_type([*query.type.shape[:3], 1], ir.F32Type.get())
        return kv.CausalAttention(query, *rows, start, length, *sinks, self.scale, type_, sums)

    # ------------------------------------------------------------------------------- the end of a prompt

    def _compress(self) -> None:
        index_type = ir.IndexType.get()
        caches, outputs, logits = self.caches(), self.outputs(), self.logits()
        absorbs = OBSERVED in self.states and bool(self.attended.ups)
        scratch = [*self.prompt_rows(), *self.observed(), *self.asked_states()]
        arguments = [
            *scratch,
            *caches,
            *self.filled_states(),
            *logits,
            *([self._up_weight()[0]] if absorbs else []),
            *(Argument("input", name, index_type) for name in ("slot", "length", *self.numbers)),
        ]
        function = self._end(COMPRESS, arguments, [*caches, *outputs])
        count, states = len(self.streams), list(function.arguments)[: len(scratch)]
        scratches, observed = states[:count], states[count:]
        others = list(function.arguments)[len(scratch) :]
        wholes, (others, own) = others[:count], self._own(others[count:])
        *picks, slot, length = others
        weight = picks.pop() if absorbs else None
        picks, learned = picks[: len(picks) - len(logits)], picks[len(picks) - len(logits) :]
        with ir.InsertionPoint(function.entry_block), function.location:
            selected = None
            if weight is not None:
                observed[0] = self._asked(observed[0], weight)
            if SELECTED in self.states:
                selected = self._choice().positions(observed, scratches, length, self.selects(own))
            index = self.index(length, self.selects(own), selected)
            offsets: list[Offset] = [slot, 0, own.get(FIRST, 0), 0]
            pairs = zip(wholes, scratches, strict=True)
            caches_now = [self.filled(cache, offsets, scratch, index) for cache, scratch in pairs]
            more = self.kept_choice(selected, picks, slot)
            more += self.first_choice(observed, scratches, caches_now, picks, slot, length, learned, offsets)
            func.ReturnOp([*caches_now, *more])
        self._note_settings(function)

    def filled_states(self) -> list[Argument]:
        """Return the states beside caches that the end of a prompt fills for its slot."""
        return []

    def outputs(self) -> list[Argument]:
        """Return the states beside caches that the end of a prompt gives."""
        return self.selected()

    def logits(self) -> list[Argument]:
        """Return the logits of learned sinks, where the end of a prompt needs them."""
        return []

    def asked_states(self) -> list[Argument]:
        """Return the states of the prompt in progress, beside rows and last queries, that its end reads."""
        return []

    def index(self, length: ir.Value, topk: ir.Value, selected: ir.Value | None) -> ir.Value:
        """Return the position that each row of the cache holds."""
        type_ = tensor_type([self.kv_heads, self.geometry.cache_rows], ir.IntegerType.get_signless(64))
        kept: ir.Value = kv.KeptPositions(length, topk, selected, type_).positions
        return kept

    def kept_choice(self, selected: ir.Value | None, states: list[ir.Value], slot: ir.Value) -> list[ir.Value]:
        """Return the new value of the state of selected positions."""
        return [] if selected is None else [selected]

    def first_choice(
        self, observed: Sequence[ir.Value], scratches: Sequence[ir.Value], caches: Sequence[ir.Value],
        states: Sequence[ir.Value], slot: ir.Value, length: ir.Value, logits: Sequence[ir.Value],
        offsets: list[Offset],
    ) -> list[ir.Value]:  # fmt: skip
        """Return the new values of the states of rows that stay near, as the prompt's last query chooses them."""
        return []

    def _choice(self) -> PromptChoice:
        by_rule = self.rows.selector.by_rule
        return PromptChoice(
            self.module, self.attention, self.layer, self.geometry, self.kv_heads, by_rule, self.peers
        )

    def _compress_apart(self) -> None:
        """Add what follows the last chunk where ranks that share KV heads have slots of their own: all of them choose
        together (`choose`), and that which has the slot fills it (`compress`)."""
        index_type = ir.IndexType.get()
        rows, selected, caches = self.prompt_rows(), self.selected(), self.caches()
        length = Argument("input", "length", index_type)
        numbers = [Argument("input", TOPK, index_type)] if TOPK in self.numbers else []
        if selected:
            weights = [self._up_weight()[0]] if self.attended.ups else []
            function = self._end(CHOOSE, [rows[0], *self.observed(), *weights, length, *numbers], selected)
            with ir.InsertionPoint(function.entry_block), function.location:
                keys, asked, sums, *weight, end = list(function.arguments)[: 4 + len(weights)]
                if weight:
                    asked = self._asked(asked, weight[0])
                topk = self.selects({TOPK: list(function.arguments)[-1]} if numbers else {})
                func.ReturnOp([self._choice().positions([asked, sums], [keys], end, topk)])
            self._note_settings(function)
        slot = Argument("input", OWN_SLOT, index_type)
        own_numbers = [Argument("input", name, index_type) for name in self.numbers]
        function = self._end(COMPRESS, [*rows, *caches, *selected, slot, length, *own_numbers], caches)
        with ir.InsertionPoint(function.entry_block), function.location:
            scratches, wholes, rest = parted(list(function.arguments), [len(rows), len(rows)])
            chosen, (rest, own) = rest[: len(selected)], self._own(rest[len(selected) :])
            number, end = rest
            index = self.index(end, self.selects(own), chosen[0] if chosen else None)
            offsets: list[Offset] = [number, 0, own.get(FIRST, 0), 0]
            pairs = zip(wholes, scratches, strict=True)
            func.ReturnOp([self.filled(cache, offsets, scratch, index) for cache, scratch in pairs])
        self._note_settings(function)

    def _end(self, name: str, arguments: Sequence[Argument], results: Sequence[Argument]) -> Any:
        """Return a function of what follows the last chunk of a prompt, empty."""
        location = ir.Location.name(f"{name}.{self.layer}", self.attention.location)
        attributes = {"sscc.entry": ir.StringAttr.get("prefill")}
        return make_function(self.module, f"prefill.{name}.{self.layer}", arguments, results, location, attributes)

    def _asked(self, queries: ir.Value, weight: ir.Value) -> ir.Value:
        """Return the last queries of a prompt as they meet latent rows."""
        return absorbed(queries, self._up(weight), self.attention.attributes["first"].value)

    def _up_weight(self) -> tuple[Argument, ir.Value, list[ir.Operation]]:
        """Return the weight that makes keys of latent rows, its value in the layer, and the views of it that lead to
        `k_up`."""
        value, views = kv.operand_of(self.attention, "k_up"), list[ir.Operation]()
        while (op := producer(value)) is not None and is_view(op):
            views.insert(0, op)
            value = op.operands[0]
        if op is not None:
            raise ThreadCacheErrors.COMPUTED_KEY_WEIGHT(origin=origin_of(self.attention))
        return arguments_of(self.function)[ir.BlockArgument(value).arg_number], value, views

    def _up(self, weight: ir.Value) -> ir.Value:
        """Return what makes keys of latent rows, of the weight as a function takes it."""
        _, value, views = self._up_weight()
        values: ValueMap = {value: weight}
        for view in views:
            clone_with(view, values)
        return values[kv.operand_of(self.attention, "k_up")]

    def filled(self, cache: ir.Value, offsets: list[Offset], scratch: ir.Value, index: ir.Value) -> ir.Value:
        """Return `cache` with the rows of `scratch` at `index` in it, from `offsets` on."""
        place = extract_slice(cache, offsets, [1, *index.type.shape, cache.type.shape[3]])
        return insert_slice(kv.Gather(scratch, index, place, place.type).gathered, cache, offsets)


class BudgetThreader(RowThreader):
    """Layers with budgets of their own, whose rows lie one behind the other in one cache."""

    def window(self, cache: ir.Value, own: dict[str, ir.Value]) -> ir.Value:
        """Return the rows of this layer in a cache; behind them others follow, up to the most that any layer has."""
        slots, heads, _, width = cache.type.shape
        return extract_slice(cache, [0, 0, own[FIRST], 0], [slots, heads, self.geometry.cache_rows, width])

    def replaced(self, wholes: list[ir.Value], now: list[ir.Value], own: dict[str, ir.Value]) -> list[ir.Value]:
        """See `RowThreader`."""
        offsets: list[Offset] = [0, 0, own[FIRST], 0]
        return [insert_slice(new, whole, offsets) for new, whole in zip(now, wholes, strict=True)]


class IndexedThreader(RowThreader):
    """Rows that stay in the prompt, where an index names those that steps read."""

    def far_states(self) -> list[Argument]:
        """See `RowThreader`."""
        return [*(self.argument(self.states[stream.store]) for stream in self.streams), *self.selected()]

    def filled_states(self) -> list[Argument]:
        """See `RowThreader`."""
        return self.selected()

    def index(self, length: ir.Value, topk: ir.Value, selected: ir.Value | None) -> ir.Value:
        """See `RowThreader`: the selected rows of a longer prompt are not copied."""
        return super().index(length, topk, None)

    def kept_choice(self, selected: ir.Value | None, states: list[ir.Value], slot: ir.Value) -> list[ir.Value]:
        """See `RowThreader`."""
        return [] if selected is None else [insert_slice(selected, states[0], [slot, 0, 0])]


def appended(rows: Sequence[ir.Value], wholes: Sequence[ir.Value], start: ir.Value) -> list[ir.Value]:
    """Return states of a prompt with the rows of a chunk in them."""
    return [insert_slice(new, whole, [0, 0, start, 0]) for new, whole in zip(rows, wholes, strict=True)]


def parted(values: Sequence[ir.Value], counts: Sequence[int]) -> list[list[ir.Value]]:
    """Return lists of `counts` values each, and then the rest."""
    ends = [0, *itertools.accumulate(counts), len(values)]
    return [list(values[first:end]) for first, end in itertools.pairwise(ends)]
