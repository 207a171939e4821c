"""Threading of a learned index: its keys, and the rows of all positions from which it selects.

Steps and chunks do the same: they append the keys and rows of their tokens to those of the slot, select positions for
each token, and attend to the selected rows. Nothing has to be done after the last chunk of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, linalg

from sscc.ir.builders import elementwise, index_constant, reshape, tensor_type
from sscc.ir.dialects import kv
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.index_keys import IndexKeys, index_geometry
from sscc.ir.layer_state.row_streams import INDEX, Stream
from sscc.ir.layer_state.state_tensors import Extent, ProgramSizes, StateTensor
from sscc.ir.levels import GroupFacts, ProgramFacts
from sscc.passes.attended import Attended
from sscc.passes.layer_threading import Rewritten, StateThreader, Values
from sscc.passes.row_layers import RowLayer


class IndexThreader(StateThreader):
    """Threads the keys of a layer's index.

    Attributes:
        keys: keys of all slots.
        prompt: keys of the slot of the prompt in progress.
    """

    group_name: ClassVar[str] = "index"

    @staticmethod
    def sizes_of(operator: ir.Operation) -> tuple[int, ...]:
        """See `StateThreader`: numbers of a key, and positions of a choice."""
        return kv.operand_of(operator, "key").type.shape[2], operator.results[0].type.shape[3]

    @staticmethod
    def geometry_of(geometry: Geometry, sizes: Sequence[int]) -> Geometry:
        """See `StateThreader`."""
        return index_geometry(geometry, min(sizes[1], geometry.max_context))

    def __init__(
        self, module: ir.Module, function: Any, operator: ir.Operation, facts: ProgramFacts, group: GroupFacts
    ) -> None:
        super().__init__(module, function, operator, facts, group)
        self.width, self.topk = self.sizes_of(self.operator)
        key = kv.operand_of(self.operator, "key").type.element_type
        sizes = ProgramSizes(facts.batch, facts.chunk, str(key), self.geometry.max_context)
        stream = Stream(INDEX[0], self.width)
        (state,) = IndexKeys(group.name, group.name, len(group.layers), self.geometry, 1, 1, (stream,), sizes).tensors()
        self.keys = self.argument(state)
        self.prompt = self.argument(StateTensor(stream.scratch, Extent.PROMPT, state.dtype, state.shape))

    def rewrite(self) -> Any:
        """See `LayerThreader`."""
        if self.is_step:
            position, _, active = self.step_inputs()
            return self.rebuild([self.keys], [position, active], self._step)
        return self.rebuild([self.prompt], self.chunk_inputs(), self._chunk)

    def _step(self, values: Values, added: list[ir.Value]) -> Rewritten:
        keys, position, active = added
        return self._choose(values, keys, step_tokens(position, active), index_constant(keys.type.shape[2] - 1))

    def _chunk(self, values: Values, added: list[ir.Value]) -> Rewritten:
        prompt, start, length = added
        return self._choose(values, prompt, chunk_tokens(self.facts, start, length), start)

    def _choose(self, values: Values, keys: ir.Value, tokens: ir.Value, start: ir.Value) -> Rewritten:
        operands = kv.operands_of(self.operator)
        weight = values(operands["weight"]) if "weight" in operands else None
        key = values(operands["key"])
        slots, count, width = key.type.shape
        new = reshape(key, [slots, 1, count, width])
        settings = [self.operator.attributes[name] for name in ("block", "local")]
        inputs = values(operands["query"]), new, keys, tokens, start, weight
        choice = kv.ChooseByIndex(*inputs, *settings, self.operator.results[0].type, keys.type)
        return choice.chosen, [choice.updated]


class ChosenThreader(RowLayer):
    """Threads the rows of all positions through a layer that attends to positions selected by an index."""

    def rewrite(self) -> Any:
        """See `LayerThreader`."""
        if self.is_step:
            stores = [self.argument(self.states[stream.store]) for stream in self.streams]
            position, _, active = self.step_inputs()
            return self.rebuild(stores, [position, active], self._step)
        return self.rebuild(self.prompt_rows(), self.chunk_inputs(), self._chunk)

    def _step(self, values: Values, added: list[ir.Value]) -> Rewritten:
        *stores, position, active = added
        return self._attend(values, stores, step_tokens(position, active))

    def _chunk(self, values: Values, added: list[ir.Value]) -> Rewritten:
        *prompts, start, length = added
        return self._attend(values, prompts, chunk_tokens(self.facts, start, length))

    def _attend(self, values: Values, stores: Sequence[ir.Value], tokens: ir.Value) -> Rewritten:
        attended = Attended.by(self.attention, values)
        new, sides = ([*rows, None][:2] for rows in (attended.rows, stores))
        types = [store.type for store in stores]
        operands = attended.query, *new, *sides, tokens, attended.chosen, *(list(attended.sinks) or [None])
        done = kv.AttendChosen(*operands, self.scale, self.attention.results[0].type, *[*types, None][:2])
        return done.out, [done.k_stored, done.v_stored][: len(types)]


def step_tokens(position: ir.Value, active: ir.Value) -> ir.Value:
    """Return the positions [B, 1] of the tokens of a step, -1 in slots that are not active."""

    def of_slot(number: ir.Value, is_active: ir.Value) -> ir.Value:
        return arith.SelectOp(is_active, number, arith.ConstantOp(number.type, -1).result).result

    return reshape(elementwise([position, active], position.type, of_slot), [position.type.shape[0], 1])


def chunk_tokens(facts: ProgramFacts, start: ir.Value, length: ir.Value) -> ir.Value:
    """Return the positions [1, C] of the tokens of a chunk, -1 behind the prompt's end."""
    i64 = ir.IntegerType.get_signless(64)

    def of_token() -> ir.Value:
        position = arith.AddIOp(start, linalg.IndexOp(1).result).result
        inside = arith.CmpIOp(arith.CmpIPredicate.slt, position, length).result
        number = arith.IndexCastOp(i64, position).result
        return arith.SelectOp(inside, number, arith.ConstantOp(i64, -1).result).result

    return elementwise([], tensor_type([1, facts.chunk], i64), of_token)
