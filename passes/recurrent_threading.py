"""Threading of the state of a gated linear recurrence.

A decode step updates the state of every slot (`kv.recurrent_step`), a chunk of a prompt updates that of the prompt in
progress (`kv.recurrent_chunk`), and the end of a prompt copies it into its slot. Where a step may have drafted tokens,
the inputs of tokens that may be rejected stay beside the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, func

from sscc.ir.builders import Argument, elementwise, insert_slice, tensor_type
from sscc.ir.dialects import kv
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.recurrent import Recurrent, state_geometry
from sscc.ir.layer_state.row_streams import PENDING, RECURRENT, Stream
from sscc.ir.layer_state.state_tensors import ProgramSizes
from sscc.ir.levels import GroupFacts, ProgramFacts
from sscc.ir.operations import pending_width
from sscc.passes.layer_threading import COMPRESS, Rewritten, StateThreader, Values

OPERANDS = ("query", "key", "value", "decay")
OPTIONAL = ("rate", "beta")


class RecurrentThreader(StateThreader):
    """Threads the state of a layer's recurrence.

    Attributes:
        state: states of the slots.
        prompt: state of the prompt in progress.
        pending: inputs of tokens that are not in the states, and the number of those that are; none where no step has
            drafted tokens.
    """

    group_name: ClassVar[str] = "recurrence"

    @staticmethod
    def sizes_of(operator: ir.Operation) -> tuple[int, ...]:
        """See `StateThreader`: heads, numbers of a key and of a value, and decays."""
        _, _, heads, width = kv.operand_of(operator, "value").type.shape
        depth, decays = (kv.operand_of(operator, name).type.shape[3] for name in ("key", "decay"))
        return heads, depth, width, decays

    @staticmethod
    def geometry_of(geometry: Geometry, sizes: Sequence[int]) -> Geometry:
        """See `StateThreader`."""
        return state_geometry(geometry)

    def __init__(
        self, module: ir.Module, function: Any, operator: ir.Operation, facts: ProgramFacts, group: GroupFacts
    ) -> None:
        super().__init__(module, function, operator, facts, group)
        heads, depth, width, decays = self.sizes_of(self.operator)
        sizes = ProgramSizes(facts.batch, facts.chunk, facts.dtype, self.geometry.max_context)
        streams = [Stream(RECURRENT[0], width, depth)]
        if self.geometry.spare:
            streams.append(Stream(PENDING[1], pending_width(depth, width, decays)))
        state = Recurrent(group.name, group.name, len(group.layers), self.geometry, heads, heads, tuple(streams), sizes)
        self.state, self.prompt, *self.pending = map(self.argument, state.tensors())

    def rewrite(self) -> Any:
        """See `LayerThreader`."""
        if self.is_step:
            position, _, active = self.step_inputs()
            positions = [position] if self.pending else []
            return self.rebuild([self.state, *self.pending], [active, *positions], self._step)
        function = self.rebuild([self.prompt], self.chunk_inputs(), self._chunk)
        self._add_end()
        return function

    def _operands(self, values: Values) -> tuple[list[ir.Value], list[ir.Value | None]]:
        operands = kv.operands_of(self.operator)
        optional = [values(operands[name]) if name in operands else None for name in OPTIONAL]
        return [values(operands[name]) for name in OPERANDS], optional

    def _step(self, values: Values, added: list[ir.Value]) -> Rewritten:
        inputs, optional = self._operands(values)
        state, *pending = added[: 1 + len(self.pending)]
        active, *positions = added[1 + len(self.pending) :]
        behind = [*pending, *positions] if pending else [None] * 3
        types = [value.type for value in pending] if pending else [None] * 2
        step = kv.RecurrentStep(
            *inputs, state, active, *optional, *behind, self.operator.results[0].type, state.type, *types
        )
        return step.out, list(step.results)[1:]

    def _chunk(self, values: Values, added: list[ir.Value]) -> Rewritten:
        (state, *numbers), (inputs, optional) = added, self._operands(values)
        chunk = kv.RecurrentChunk(*inputs, state, *numbers, *optional, self.operator.results[0].type, state.type)
        return chunk.out, [chunk.updated]

    def _add_end(self) -> None:
        """Add the function that copies the state after a prompt into its slot."""
        names = ("slot", "length") if self.pending else ("slot",)
        numbers = [Argument("input", name, ir.IndexType.get()) for name in names]
        kept = [self.state, *self.pending[1:]]
        function = self.end_function(COMPRESS, [self.prompt, *kept, *numbers], kept)
        prompt, state, *others = function.arguments
        with ir.InsertionPoint(function.entry_block), function.location:
            slot = others[len(kept) - 1]
            results = [insert_slice(prompt, state, [slot, 0, 0, 0])]
            if self.pending:
                held, _, length = others
                i64 = held.type.element_type

                def positions() -> ir.Value:
                    return arith.IndexCastOp(i64, length).result

                whole = elementwise([], tensor_type([1, held.type.shape[1]], i64), positions)
                results.append(insert_slice(whole, held, [slot, 0]))
            func.ReturnOp(results)
        self.note_settings(function)
