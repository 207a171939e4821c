"""Threading of the inputs of a short causal convolution.

A decode step reads the previous inputs from a ring, in which the input of position p is in row p mod (taps - 1), and
then writes its own. A chunk of a prompt is convolved together with the inputs before it; its last inputs are kept for
the next chunk, and the end of a prompt writes them into the ring. Both sum from the oldest tap to the newest:

    y[t] = bias + sum over j < taps of weight[j] * x[t - taps + 1 + j]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, func, linalg, tensor

from sscc.ir.builders import (
    Argument,
    Offset,
    elementwise,
    extract_slice,
    index_constant,
    insert_slice,
    positions_tensor,
    reshape,
    tensor_type,
)
from sscc.ir.dialects import kv
from sscc.ir.dialects.df import TOGETHER
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.inputs import Inputs, ring_geometry
from sscc.ir.layer_state.row_streams import INPUTS, Stream
from sscc.ir.layer_state.state_tensors import ProgramSizes
from sscc.ir.levels import GroupFacts, ProgramFacts
from sscc.ir.rewriting import is_rematerialised
from sscc.passes.layer_threading import COMPRESS, Rewritten, StateThreader, Values, filled
from sscc.passes.transposes import sink_transposes, transposed

TOKENS_LAST = (0, 2, 1)
"""Permutation between [b, s, channels] and [b, channels, s]."""


class InputThreader(StateThreader):
    """Threads the last inputs of a layer's convolution.

    Attributes:
        kept: number of kept inputs.
        ring: state of each slot.
        before: state of the prompt in progress.
    """

    group_name: ClassVar[str] = "convolution"

    @staticmethod
    def sizes_of(operator: ir.Operation) -> tuple[int, ...]:
        """See `StateThreader`: channels and taps."""
        channels, _, taps = kv.operand_of(operator, "weight").type.shape
        return channels, taps

    @staticmethod
    def geometry_of(geometry: Geometry, sizes: Sequence[int]) -> Geometry:
        """See `StateThreader`."""
        return ring_geometry(geometry, sizes[-1])

    def __init__(
        self, module: ir.Module, function: Any, operator: ir.Operation, facts: ProgramFacts, group: GroupFacts
    ) -> None:
        super().__init__(module, function, operator, facts, group)
        self.channels, self.taps = self.sizes_of(self.operator)
        self.kept = self.taps - 1
        sizes = ProgramSizes(facts.batch, facts.chunk, str(self.element), self.geometry.max_context)
        streams = (Stream(INPUTS[0], self.channels),)
        state = Inputs(group.name, group.name, len(group.layers), self.geometry, 1, 1, streams, sizes)
        self.ring, self.before = map(self.argument, state.tensors())

    def rewrite(self) -> Any:
        """See `LayerThreader`."""
        if self.is_step:
            position, _, active = self.step_inputs()
            function = self.rebuild([self.ring], [position, active], self._step)
        else:
            function = self.rebuild([self.before], self.chunk_inputs(), self._chunk)
            self._add_end()
        sink_transposes(function)
        return function

    def _step(self, values: Values, added: list[ir.Value]) -> Rewritten:
        """Return the convolution of a token [B, channels, 1], and the ring with its input."""
        ring, position, active = added
        slots, channels = self.facts.batch, self.channels
        x = reshape(transposed(values(kv.operand_of(self.operator, "x")), TOKENS_LAST), [slots, channels])
        block = ir.InsertionPoint.current.block
        first = len(block.operations)
        rows = [extract_slice(ring, [0, 0, row, 0], [slots, 1, 1, channels]) for row in range(self.kept)]
        rows = [reshape(row, [slots, channels]) for row in rows]
        i64 = position.type.element_type

        def inputs(at: ir.Value, *numbers: ir.Value) -> list[ir.Value]:
            """Return the inputs of all taps of one channel, of its rows and its new input."""
            in_order = []
            for back in range(self.kept, 0, -1):
                ahead = arith.AddIOp(at, arith.ConstantOp(i64, self.kept - back).result).result
                row = arith.RemSIOp(ahead, arith.ConstantOp(i64, self.kept).result).result
                in_order.append(_selected(row, numbers[: self.kept]))
            return [*in_order, numbers[self.kept]]

        given, each = [position, *rows, x], [[0], *[[0, 1]] * (self.kept + 1)]
        out = self._convolved(values, given, each, inputs, [slots, channels])
        row = kv.Row(position, position, index_constant(0), position.type).row
        ring = kv.UpdateRows(ring, reshape(x, [slots, 1, 1, channels]), row, active, ring.type).updated
        _put_together(block, first)
        return transposed(reshape(out, [slots, 1, channels]), TOKENS_LAST), [ring]

    def _chunk(self, values: Values, added: list[ir.Value]) -> Rewritten:
        """Return the convolution of a chunk [1, channels, C], and its last inputs."""
        before, start, length = added
        x, chunk, channels = values(kv.operand_of(self.operator, "x")), self.facts.chunk, self.channels

        def none_at_first(number: ir.Value) -> ir.Value:
            follows = arith.CmpIOp(arith.CmpIPredicate.sgt, start, index_constant(0)).result
            return arith.SelectOp(follows, number, arith.ConstantOp(self.element, 0.0).result).result

        rows = reshape(transposed(x, TOKENS_LAST), [1, 1, chunk, channels])
        block = ir.InsertionPoint.current.block
        first = len(block.operations)
        earlier = elementwise([before], before.type, none_at_first)
        type_ = tensor_type([1, 1, self.kept + chunk, channels], self.element)
        inputs = tensor.ConcatOp(type_, 2, [earlier, rows]).result
        taps = [extract_slice(inputs, [0, 0, tap, 0], [1, 1, chunk, channels]) for tap in range(self.taps)]
        taps = [reshape(tap, [chunk, channels]) for tap in taps]
        out = self._convolved(values, taps, [[0, 1]] * self.taps, lambda *each: list(each), [chunk, channels])
        left = arith.SubIOp(length, start).result
        end = arith.MinSIOp(left, index_constant(chunk)).result
        index = positions_tensor([1, self.kept], end, index_constant(self.kept + chunk - 1))
        before = kv.GatherRows(inputs, index, before, before.type).gathered
        _put_together(block, first)
        return transposed(reshape(out, [1, chunk, channels]), TOKENS_LAST), [before]

    def _convolved(
        self,
        values: Values,
        given: Sequence[ir.Value],
        axes: Sequence[Sequence[int]],
        inputs: Any,
        shape: Sequence[int],
    ) -> ir.Value:
        """Return a convolution [n, channels]: the sum over taps of weights times inputs.

        Args:
            given: tensors from whose elements `inputs` computes the inputs of all taps of one element.
            axes: for each of these, the axes of the result along which it extends.
        """
        operands = kv.operands_of(self.operator)
        weight = values(operands["weight"])
        weights = [extract_slice(weight, [0, 0, tap], [self.channels, 1, 1]) for tap in range(self.taps)]
        factors = [reshape(column, [self.channels]) for column in weights]
        biases = [values(operands["bias"])] if "bias" in operands else []
        f32 = ir.F32Type.get()

        def wide(number: ir.Value) -> ir.Value:
            return number if number.type == f32 else arith.ExtFOp(f32, number).result

        def element(*numbers: ir.Value) -> ir.Value:
            of_taps = inputs(*numbers[: len(given)])
            by, bias = numbers[len(given) : len(given) + self.taps], numbers[len(given) + self.taps :]
            products = [arith.MulFOp(wide(a), wide(b)).result for a, b in zip(by, of_taps, strict=True)]
            total = products[0]
            for term in [*products[1:], *map(wide, bias)]:
                total = arith.AddFOp(total, term).result
            return total if self.element == f32 else arith.TruncFOp(self.element, total).result

        along = [*axes, *[[1]] * (self.taps + len(biases))]
        return elementwise([*given, *factors, *biases], tensor_type(shape, self.element), element, along)

    def _add_end(self) -> None:
        """Add the function that writes the last inputs of a prompt into the ring of its slot."""
        index_type = ir.IndexType.get()
        numbers = [Argument("input", name, index_type) for name in ("slot", "length")]
        function = self.end_function(COMPRESS, [self.before, self.ring, *numbers], [self.ring])
        before, ring, slot, length = function.arguments
        i64 = ir.IntegerType.get_signless(64)
        with ir.InsertionPoint(function.entry_block), function.location:

            def place() -> ir.Value:
                """Return the number of the input in a row: (row - length) mod kept."""
                laps = arith.MulIOp(length, index_constant(self.kept - 1)).result
                ahead = arith.AddIOp(linalg.IndexOp(1).result, laps).result
                return arith.IndexCastOp(i64, arith.RemSIOp(ahead, index_constant(self.kept)).result).result

            offsets: list[Offset] = [slot, 0, 0, 0]
            if self.kept > 1:
                ring = filled(ring, offsets, before, elementwise([], tensor_type([1, self.kept], i64), place))
            else:  # a ring of one row
                ring = insert_slice(before, ring, offsets)
            func.ReturnOp([ring])
        self.note_settings(function)


def _selected(number: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
    """Return the value of a number."""
    chosen = values[0]
    for index, value in enumerate(values[1:], 1):
        is_it = arith.CmpIOp(arith.CmpIPredicate.eq, number, arith.ConstantOp(number.type, index).result).result
        chosen = arith.SelectOp(is_it, value, chosen).result
    return chosen


def _put_together(block: ir.Block, first: int) -> None:
    """Make the operations of a block from number `first` on one stage."""
    for op in list(block.operations)[first:]:
        if not is_rematerialised(op.operation) and not isinstance(op.operation.results[0].type, ir.IndexType):
            op.operation.attributes[TOGETHER] = ir.UnitAttr.get()
