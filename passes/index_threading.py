"""A learned index in the functions of a layer: its keys, and the rows of all positions that it chooses from.

Steps and chunks do the same: they put the keys and rows of their tokens to those of the slot's earlier ones, choose
positions for each token, and attend to their rows. Nothing follows the last chunk of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, linalg

from sscc.ir.builders import elementwise, index_constant, reshape, tensor_type
from sscc.ir.dialects import kv
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.index_keys import IndexKeys, index_geometry
from sscc.ir.layer_state.streams import INDEX, Stream
from sscc.ir.layer_state.tensors import Extent, ProgramSizes, StateTensor
from sscc.ir.levels import GroupFacts, ProgramFacts
from sscc.passes.attended import Attended
from sscc.passes.layer_threading import Rewritten, StateThreader, Values, appended, slot_inputs
from sscc.passes.row_layers import RowLayer


class IndexThreader(StateThreader):
    """Threads the keys of a layer's index.

    Attributes:
        keys, prompt: the keys of all slots, and those of the slot of the prompt in progress.
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
        if self.entry == "decode":
            position, _, active = slot_inputs(self.facts)
            return self.rebuild([self.keys], [position, active], self._step)
        return self.rebuild([self.prompt], self.chunk_inputs(), self._chunk)

    def _step(self, values: Values, added: list[ir.Value]) -> Rewritten:
        keys, position, active = added
        now = kv.UpdateRows(keys, self._new_keys(values), position, active, keys.type).updated

        def of_slot(number: ir.Value, is_active: ir.Value) -> ir.Value:
            return arith.SelectOp(is_active, number, arith.ConstantOp(number.type, -1).result).result

        tokens = reshape(elementwise([position, active], position.type, of_slot), [self.facts.batch, 1])
        last = index_constant(keys.type.shape[2] - 1)
        return self._choose(values, now, tokens, last), [now]

    def _chunk(self, values: Values, added: list[ir.Value]) -> Rewritten:
        prompt, start, length = added
        (now,) = appended([self._new_keys(values)], [prompt], start)
        i64 = ir.IntegerType.get_signless(64)

        def of_token() -> ir.Value:
            """Return the position of a token, -1 behind the prompt's end."""
            position = arith.AddIOp(start, linalg.IndexOp(1).result).result
            inside = arith.CmpIOp(arith.CmpIPredicate.slt, position, length).result
            number = arith.IndexCastOp(i64, position).result
            return arith.SelectOp(inside, number, arith.ConstantOp(i64, -1).result).result

        tokens = elementwise([], tensor_type([1, self.facts.chunk], i64), of_token)
        return self._choose(values, now, tokens, start), [now]

    def _new_keys(self, values: Values) -> ir.Value:
        key = values(kv.operand_of(self.operator, "key"))
        slots, tokens, width = key.type.shape
        return reshape(key, [slots, 1, tokens, width])

    def _choose(self, values: Values, keys: ir.Value, tokens: ir.Value, start: ir.Value) -> ir.Value:
        operands = kv.operands_of(self.operator)
        weight = values(operands["weight"]) if "weight" in operands else None
        settings = [self.operator.attributes[name] for name in ("block", "local")]
        inputs = values(operands["query"]), keys, tokens, start, weight
        chosen: ir.Value = kv.ChooseByIndex(*inputs, *settings, self.operator.results[0].type).chosen
        return chosen


class ChosenThreader(RowLayer):
    """Threads the rows of all positions through a layer that attends to those that an index chooses."""

    def rewrite(self) -> Any:
        """See `LayerThreader`."""
        if self.entry == "decode":
            stores = [self.argument(self.states[stream.store]) for stream in self.streams]
            position, _, active = slot_inputs(self.facts)
            return self.rebuild(stores, [position, active], self._step)
        return self.rebuild(self.prompt_rows(), self.chunk_inputs(), self._chunk)

    def _step(self, values: Values, added: list[ir.Value]) -> Rewritten:
        *stores, position, active = added

        def put(rows: list[ir.Value]) -> list[ir.Value]:
            pairs = zip(stores, rows, strict=True)
            return [kv.UpdateRows(store, new, position, active, store.type).updated for store, new in pairs]

        return self._attend(values, put)

    def _chunk(self, values: Values, added: list[ir.Value]) -> Rewritten:
        *prompts, start, _ = added
        return self._attend(values, lambda rows: appended(rows, prompts, start))

    def _attend(self, values: Values, put: Callable[[list[ir.Value]], list[ir.Value]]) -> Rewritten:
        """Return attention to chosen rows, and the rows of all positions.

        Args:
            put: gives these, with rows of new tokens in them.
        """
        attended = Attended.by(self.attention, values)
        now = put([self.encoded(row) for row in attended.rows])
        sides = now if len(now) == 2 else [*now, None]
        sinks = list(attended.sinks) or [None]
        inputs = attended.query, *sides, attended.chosen, *sinks
        out: ir.Value = kv.AttendChosen(*inputs, self.scale, self.attention.results[0].type).out
        return out, now
