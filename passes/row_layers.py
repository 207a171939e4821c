"""Layers that keep rows: arguments of their functions, and parts common to steps, chunks and ends of prompts."""

from __future__ import annotations

from typing import Any

from torch_mlir import ir

from sscc.ir.builders import Argument, arguments_of, index_constant, tensor_type
from sscc.ir.collectives import Peers
from sscc.ir.dialects import kv
from sscc.ir.layer_state.row_streams import K_AND_V, LATENT, Stream
from sscc.ir.layer_state.rows import Rows
from sscc.ir.layer_state.selectors import LOG_SUM_EXP, OBSERVED, SELECTED
from sscc.ir.layer_state.state_tensors import Extent, ProgramSizes, StateTensor
from sscc.ir.layer_state.stores import TOPK
from sscc.ir.levels import GroupFacts, ProgramFacts
from sscc.ir.locations import origin_of
from sscc.ir.rewriting import ValueMap, clone_with, producer
from sscc.ir.views import is_view
from sscc.passes.attended import Attended, ThreadCacheErrors, heads_and_dims
from sscc.passes.latent_queries import absorbed
from sscc.passes.layer_threading import LayerThreader
from sscc.passes.prompt_selection import PromptChoice


class RowLayer(LayerThreader):
    """An attention layer, and the rows that it or another layer keeps.

    Args:
        keeper: attention of the layer whose rows it attends to, in the same entry.

    Attributes:
        numbers: inputs with this layer's numbers of rows, if layers keep different ones.
        split: True if ranks that share KV heads divide the slots among themselves.
    """

    def __init__(
        self, module: ir.Module, function: Any, operator: ir.Operation, facts: ProgramFacts, group: GroupFacts,
        keeper: ir.Operation,
    ) -> None:  # fmt: skip
        super().__init__(module, function, operator, facts, group)
        self.attention = self.operator
        self.shares = keeper != self.attention
        self.attended, kept = Attended.by(self.attention), Attended.by(keeper).rows
        (self.heads, self.free_size), *rows = heads_and_dims([self.attended.query, *kept])
        self.kv_heads = rows[0][0]
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
        self.split = self.peers is not None and self.divides_slots and facts.batch % self.peers.count == 0
        if self.split and self.peers is not None:  # each rank has the rows of its part of the slots
            self.slots //= self.peers.count

    @property
    def divides_slots(self) -> bool:
        """True if ranks that share KV heads may each have the rows of a part of the slots alone."""
        return not self.rows.store.keeps_prompts

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
        """Return the states, besides rows, that prefill keeps of the prompt's keys."""
        return []

    def observed(self) -> list[Argument]:
        """Return the states of the last queries of a prompt, and of their log-sum-exp if they select rows."""
        if OBSERVED not in self.states:
            return []
        queries = self.argument(self.states[OBSERVED])
        if SELECTED not in self.states:
            return [queries]
        return [queries, self.argument(self.states[LOG_SUM_EXP])]

    def selected(self) -> list[Argument]:
        """Return the state of the positions that the end of a prompt selects, if it selects any."""
        return [self.argument(self.states[SELECTED])] if SELECTED in self.states else []

    def own_numbers(self, added: list[ir.Value]) -> tuple[list[ir.Value], dict[str, ir.Value]]:
        """Return the values of added arguments, and the last of them by name: the layer's own numbers."""
        count = len(added) - len(self.numbers)
        return added[:count], dict(zip(self.numbers, added[count:], strict=True))

    def encoded(self, rows: ir.Value) -> ir.Value:
        """Return rows [.., D] as a cache holds them."""
        if not self.rows.codec.rounds:
            return rows
        _, width = self.rows.codec.stored(rows.type.shape[-1], self.rows.sizes.dtype)
        type_ = tensor_type([*list(rows.type.shape)[:-1], width], ir.IntegerType.get_signless(8))
        encoded: ir.Value = kv.QuantizeRows(rows, type_).out
        return encoded

    def selects(self, own: dict[str, ir.Value]) -> ir.Value:
        """Return how many positions of a prompt this layer selects."""
        return own.get(TOPK) or index_constant(self.geometry.topk)

    # ------------------------------------------------------------------------------- the end of a prompt

    def choice(self) -> PromptChoice:
        """Return who chooses the positions of a prompt that stay."""
        by_rule = self.rows.selector.by_rule
        return PromptChoice(
            self.module, self.attention, self.layer, self.geometry, self.kv_heads, by_rule, self.peers
        )

    # --------------------------------------------------------------------------------------- latent rows

    def asked(self, queries: ir.Value, weight: ir.Value) -> ir.Value:
        """Return the last queries of a prompt as they meet latent rows."""
        return absorbed(queries, self.up(weight), self.attention.attributes["first"].value)

    def up_weight(self) -> tuple[Argument, ir.Value, list[ir.Operation]]:
        """Return the weight that computes keys from latent rows, its value in the layer, and the views from it to
        `k_up`."""
        value, views = kv.operand_of(self.attention, "k_up"), list[ir.Operation]()
        while (op := producer(value)) is not None and is_view(op):
            views.insert(0, op)
            value = op.operands[0]
        if op is not None:
            raise ThreadCacheErrors.COMPUTED_KEY_WEIGHT(origin=origin_of(self.attention))
        return arguments_of(self.function)[ir.BlockArgument(value).arg_number], value, views

    def up(self, weight: ir.Value) -> ir.Value:
        """Return the operand that computes keys from latent rows, from the weight as a function takes it."""
        _, value, views = self.up_weight()
        values: ValueMap = {value: weight}
        for view in views:
            clone_with(view, values)
        return values[kv.operand_of(self.attention, "k_up")]
