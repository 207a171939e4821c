"""Threading of the inputs of a short causal convolution.

A step reads the previous inputs from a ring of K rows, in which the input of position p is in row p mod K, and then
writes its own: K = taps - 1, and V + 1 more in a program whose steps have V drafted tokens. A chunk of a
prompt is convolved together with the inputs before it; its last inputs are kept for the next chunk, and the end of a
prompt writes them into the ring. Both sum from the oldest tap to the newest:

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
    with_axis_split,
    with_first_axes_joined,
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
        """Return the convolution of the tokens of a step [Q, channels, 1], and the ring with their inputs."""
        ring, position, active = added
        slots, tokens, channels = self.facts.batch, self.tokens, self.channels
        x = reshape(transposed(values(kv.operand_of(self.operator, "x")), TOKENS_LAST), [slots * tokens, channels])
        block = ir.InsertionPoint.current.block
        first = len(block.operations)
        rows = [extract_slice(ring, [0, 0, row, 0], [slots, 1, 1, channels]) for row in range(self.geometry.cache_rows)]
        rows = [reshape(row, [slots, channels]) for row in rows]
        new = [self._of_token(x, token) for token in range(tokens)]
        outs = [
            self._convolved_token(values, self._of_token(position, token), rows, new[: token + 1])
            for token in range(tokens)
        ]
        out = outs[0]
        if tokens > 1:
            parts = [reshape(part, [slots, 1, channels]) for part in outs]
            whole = tensor.ConcatOp(tensor_type([slots, tokens, channels], self.element), 1, parts).result
            out = with_first_axes_joined(whole)
        row = kv.Row(position, position, index_constant(0), position.type).row
        ring = kv.UpdateRows(ring, reshape(x, [slots * tokens, 1, 1, channels]), row, active, ring.type).updated
        _put_together(block, first)
        return transposed(reshape(out, [slots * tokens, 1, channels]), TOKENS_LAST), [ring]

    def _of_token(self, values: ir.Value, token: int) -> ir.Value:
        """Return the part [B, ..] of a value [Q, ..] that belongs to token number `token` of each slot."""
        if self.tokens == 1:
            return values
        slots, each = self.facts.batch, list(values.type.shape)[1:]
        split = with_axis_split(values, 0, slots)
        return reshape(extract_slice(split, [0, token, *[0] * len(each)], [slots, 1, *each]), [slots, *each])

    def _convolved_token(
        self, values: Values, position: ir.Value, rows: Sequence[ir.Value], new: Sequence[ir.Value]
    ) -> ir.Value:
        """Return the convolution [B, channels] of one token of each slot.

        Args:
            position: [B], its position.
            rows: [B, channels] each, the rows of the ring before the step.
            new: [B, channels] each, inputs of the step's tokens up to this one.
        """
        i64, count = position.type.element_type, len(rows)
        own = new[-self.taps :]

        def inputs(at: ir.Value, *numbers: ir.Value) -> list[ir.Value]:
            """Return the inputs of all taps of one channel, of its rows and its new inputs."""
            in_order = []
            for back in range(self.kept, len(own) - 1, -1):
                ahead = arith.AddIOp(at, arith.ConstantOp(i64, count - back).result).result
                row = arith.RemSIOp(ahead, arith.ConstantOp(i64, count).result).result
                in_order.append(_selected(row, numbers[:count]))
            return [*in_order, *numbers[count:]]

        given, each = [position, *rows, *own], [[0], *[[0, 1]] * (count + len(own))]
        return self._convolved(values, given, each, inputs, [self.facts.batch, self.channels])

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
        i64, rows = ir.IntegerType.get_signless(64), self.geometry.cache_rows
        with ir.InsertionPoint(function.entry_block), function.location:

            def place() -> ir.Value:
                """Return the number of the input in a row: (row - length + kept) mod K, or any for a spare row."""
                laps = arith.MulIOp(length, index_constant(rows - 1)).result
                ahead = arith.AddIOp(linalg.IndexOp(1).result, laps).result
                ahead = arith.AddIOp(ahead, index_constant(self.kept)).result
                number = arith.RemSIOp(ahead, index_constant(rows)).result
                return arith.IndexCastOp(i64, arith.MinSIOp(number, index_constant(self.kept - 1)).result).result

            offsets: list[Offset] = [slot, 0, 0, 0]
            if rows > 1:
                ring = filled(ring, offsets, before, elementwise([], tensor_type([1, rows], i64), place))
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
