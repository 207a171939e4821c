"""The `df` dialect: kernels as graphs of dataflow stages joined by streams.

A stage is a call of a body (a private function marked `df.body`) from a kernel's function. The results of the call are
streams that other stages read. Executed in order, as ordinary tensor operations, the stages compute the kernel's
results. Streams, tiles and buffers do not change these results; they describe how the machine computes them, in these
attributes:

* on a call: ``df.stage``, the stage's name (`q_proj`, `attention`), and ``df.pcus``, its number of compute units;
* on an scf.for around a call: ``df.tiles``: the stage fires once per iteration, on tiles that are sliced from its
  operands, and its results are tiles inserted into the loop's results. Around several calls: each call but the first
  reads a tile of the one before it, and the last one's tiles are inserted;
* on an scf.for over stages: ``df.pipelined``: its iterations overlap; ``df.carried``, the iteration arguments that
  stay on the chip;
* on a `df.load`: ``df.stage``; inside a tile loop the load fetches one tile per firing, elsewhere the whole tensor;
  with ``df.early`` once, before the first iteration of the pipelined loop that follows;
* on every operation that produces streams (a load, a tile loop, or a call outside of a tile loop or whose tiles the
  next call in the loop reads): ``df.buffers``, a `BufferPlace` per result.

(One operation with a region would be the obvious form of a stage, but a dialect declared from Python cannot have
variadic operands of different types.)
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch_mlir import ir
from torch_mlir.dialects import ext

from sscc.ir.attributes import read_record, write_record

BODY = "df.body"
BOUNDED = "df.bounded"
"""Attribute of a body whose intermediate values do not fit on the chip, so that its stages have to be cut into tiles.
"""
TOGETHER = "df.together"
"""Attribute of consecutive operations of a kernel that read and update one state: they form one stage, in which they
run in order."""
STAGE = "df.stage"
TILES = "df.tiles"
PIPELINED = "df.pipelined"
CARRIED = "df.carried"
EARLY = "df.early"
PCUS = "df.pcus"
BUFFERS = "df.buffers"

StreamKind = Literal["tile", "whole", "early", "between", "carried"]
"""Contents of a stream. "tile": loaded for one firing, or produced for one firing of the next stage; "whole": loaded
for an iteration; "early": loaded once before the first iteration, for all of them; "between": produced for other stages
of the same iteration; "carried": passed from one iteration to the next."""


class Df(ext.Dialect, name="df"):
    """Dataflow stages."""


class Load(Df.Operation, name="load", traits=[ext.Pure]):
    """A copy of a tensor, or of a tile of one, from memory into a stream."""

    source: ext.Operand[ir.RankedTensorType]
    stream: ext.Result[ir.RankedTensorType]

    @classmethod
    def verify_invariants(cls, op: Any) -> bool:
        types = [value.type for value in (*op.operation.operands, *op.operation.results)]
        if len(set(types)) > 1:
            op.location.emit_error(f"'{op.OPERATION_NAME}' stream is {types[-1]}, expected source's type {types[0]}")
            return False
        return True


@dataclass(frozen=True)
class BufferPlace:
    """The place of a stream on the chip.

    Attributes:
        depth: number of slots, each for one whole value (or one tile, for a load in a tile loop); 0 if the result is an
            operand that the stage updates in memory.
        address: byte address in SRAM, -1 until placed.
    """

    depth: int
    address: int = -1


def buffers_of(op: ir.Operation) -> list[BufferPlace]:
    """Return the buffer of each result of a placed stage, tile loop or load."""
    fields: dict[str, type] = dict.fromkeys(BufferPlace.__dataclass_fields__, int)
    return [BufferPlace(**read_record(item, fields)) for item in ir.ArrayAttr(op.attributes[BUFFERS])]


def set_buffers(op: ir.Operation, places: Sequence[BufferPlace]) -> None:
    op.attributes[BUFFERS] = ir.ArrayAttr.get([write_record(asdict(place)) for place in places])


def stage_name(op: ir.Operation) -> str:
    """Return the name of a stage or a load."""
    return str(ir.StringAttr(op.attributes[STAGE]).value)


def is_stage(op: ir.Operation) -> bool:
    """Return True if `op` is the call of a stage's body."""
    return bool(op.name == "func.call" and STAGE in op.attributes)
