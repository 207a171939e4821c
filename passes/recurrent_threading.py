"""Threading of the state of a gated linear recurrence.

A decode step updates the state of every slot (`kv.recurrent_step`), a chunk of a prompt updates that of the prompt in
progress (`kv.recurrent_chunk`), and the end of a prompt copies it into its slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import func

from sscc.ir.builders import Argument, insert_slice
from sscc.ir.dialects import kv
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.recurrent import Recurrent, state_geometry
from sscc.ir.layer_state.row_streams import RECURRENT, Stream
from sscc.ir.layer_state.state_tensors import ProgramSizes
from sscc.ir.levels import GroupFacts, ProgramFacts
from sscc.passes.layer_threading import COMPRESS, Rewritten, StateThreader, Values

OPERANDS = ("query", "key", "value", "decay")
OPTIONAL = ("rate", "beta")


class RecurrentThreader(StateThreader):
    """Threads the state of a layer's recurrence.

    Attributes:
        state: states of the slots.
        prompt: state of the prompt in progress.
    """

    group_name: ClassVar[str] = "recurrence"

    @staticmethod
    def sizes_of(operator: ir.Operation) -> tuple[int, ...]:
        """See `StateThreader`: heads, numbers of a key and of a value."""
        _, _, heads, width = kv.operand_of(operator, "value").type.shape
        return heads, kv.operand_of(operator, "key").type.shape[3], width

    @staticmethod
    def geometry_of(geometry: Geometry, sizes: Sequence[int]) -> Geometry:
        """See `StateThreader`."""
        return state_geometry(geometry)

    def __init__(
        self, module: ir.Module, function: Any, operator: ir.Operation, facts: ProgramFacts, group: GroupFacts
    ) -> None:
        super().__init__(module, function, operator, facts, group)
        heads, depth, width = self.sizes_of(self.operator)
        sizes = ProgramSizes(facts.batch, facts.chunk, facts.dtype, self.geometry.max_context)
        streams = (Stream(RECURRENT[0], width, depth),)
        state = Recurrent(group.name, group.name, len(group.layers), self.geometry, heads, heads, streams, sizes)
        self.state, self.prompt = map(self.argument, state.tensors())

    def rewrite(self) -> Any:
        """See `LayerThreader`."""
        if self.is_step:
            _, _, active = self.step_inputs()
            return self.rebuild([self.state], [active], self._step)
        function = self.rebuild([self.prompt], self.chunk_inputs(), self._chunk)
        self._add_end()
        return function

    def _operands(self, values: Values) -> tuple[list[ir.Value], list[ir.Value | None]]:
        operands = kv.operands_of(self.operator)
        optional = [values(operands[name]) if name in operands else None for name in OPTIONAL]
        return [values(operands[name]) for name in OPERANDS], optional

    def _step(self, values: Values, added: list[ir.Value]) -> Rewritten:
        (state, active), (inputs, optional) = added, self._operands(values)
        step = kv.RecurrentStep(*inputs, state, active, *optional, self.operator.results[0].type, state.type)
        return step.out, [step.updated]

    def _chunk(self, values: Values, added: list[ir.Value]) -> Rewritten:
        (state, *numbers), (inputs, optional) = added, self._operands(values)
        chunk = kv.RecurrentChunk(*inputs, state, *numbers, *optional, self.operator.results[0].type, state.type)
        return chunk.out, [chunk.updated]

    def _add_end(self) -> None:
        """Add the function that copies the state after a prompt into its slot."""
        slot = Argument("input", "slot", ir.IndexType.get())
        function = self.end_function(COMPRESS, [self.prompt, self.state, slot], [self.state])
        prompt, state, number = function.arguments
        with ir.InsertionPoint(function.entry_block), function.location:
            func.ReturnOp([insert_slice(prompt, state, [number, 0, 0, 0])])
        self.note_settings(function)
