"""place-stages: streams get buffers, and stages get compute units.

What: every stream of a pipeline gets a buffer in SRAM: a depth in slots, and an address. Every stage gets compute
units, at least one. If iterations overlap, their number is proportional to the stage's work, its time on one unit: then
all stages take the same time, and the shortest possible. If stages wait for each other (a straight run, or a loop that
carries a value on the chip), it is proportional to the square root of the work, which minimises the sum of the stages'
times for a given number of units.

Depths: 2 for loads, so that the next tile, or the next iteration's value, arrives while the current one is in use; 2
for a value that one iteration passes to the next; 2 for streams between stages if iterations may overlap, 1 if they
cannot (a straight run, or a loop that carries a value on the chip); 1 for values that are loaded once. If that does not
fit, streams between stages get 1, then loads of whole values; then the largest weights get no buffer: their stages read
them from memory (a vocabulary size without divisors makes the whole head one tile). If a stage exchanges values with
other ranks, the streams of tiles behind it, in a loop of all its stages, get a slot per tile, so that whole matrices
can be loaded ahead; if that does not fit half of them, and so on.

Why: with two slots a load runs ahead of the stage that reads it. While a stage waits for other ranks, those behind it
wait too, and two tiles of each of their matrices are soon loaded: main memory would idle until the exchange is over. To
keep it busy, more tiles need room.

Before::

    func.func private @k(%h: tensor<2x64xf32> {sscc.input = "h"}, %w: tensor<64x32xf32> {sscc.weight = "w"})
        -> (tensor<2x32xf32> {sscc.output = "y"}) attributes {sscc.kernel} {
      %hs = "df.load"(%h) {df.stage = "h"} : (tensor<2x64xf32>) -> tensor<2x64xf32>
      %a = func.call @body.tanh(%hs) {df.stage = "tanh"} : (tensor<2x64xf32>) -> tensor<2x64xf32>
      %ws = "df.load"(%w) {df.stage = "w"} : (tensor<64x32xf32>) -> tensor<64x32xf32>
      %y = func.call @body.proj(%a, %ws) {df.stage = "proj"}
        : (tensor<2x64xf32>, tensor<64x32xf32>) -> tensor<2x32xf32>
      return %y : tensor<2x32xf32>
    }
    func.func private @body.tanh(%x: tensor<2x64xf32> {sscc.input = "x0"}) -> (tensor<2x64xf32> {sscc.output = "y0"})
        attributes {df.body} {
      %e = tensor.empty() : tensor<2x64xf32>
      %y = linalg.tanh ins(%x : tensor<2x64xf32>) outs(%e : tensor<2x64xf32>) -> tensor<2x64xf32>
      return %y : tensor<2x64xf32>
    }
    func.func private @body.proj(%a: tensor<2x64xf32> {sscc.input = "x0"}, %w: tensor<64x32xf32> {sscc.input = "x1"})
        -> (tensor<2x32xf32> {sscc.output = "y0"}) attributes {df.body} {
      %zero = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<2x32xf32>
      %z = linalg.fill ins(%zero : f32) outs(%e : tensor<2x32xf32>) -> tensor<2x32xf32>
      %y = linalg.matmul ins(%a, %w : tensor<2x64xf32>, tensor<64x32xf32>) outs(%z : tensor<2x32xf32>)
        -> tensor<2x32xf32>
      return %y : tensor<2x32xf32>
    }

After::

    func.func private @k(%h: .. "h"}, %w: .. "w"}) -> (.. "y"}) attributes {sscc.kernel} {
      %hs = "df.load"(%h) {df.buffers = [{address = 0 : i64, depth = 2 : i64}], df.stage = "h"} ..
      %a = call @body.tanh(%hs) {df.buffers = [{address = 1024 : i64, depth = 1 : i64}], df.pcus = 244 .. "tanh"} ..
      %ws = "df.load"(%w) {df.buffers = [{address = 1536 : i64, depth = 2 : i64}], df.stage = "w"} ..
      %y = call @body.proj(%a, %ws) {df.buffers = [{address = 17920 : i64, depth = 1 : i64}], df.pcus = 795 ..
      return %y : tensor<2x32xf32>
    }

When it does not apply: a pipeline that needs more SRAM than the machine has, or has more stages than the machine has
compute units, is refused with the numbers.

Preserves: everything; it only adds attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, ClassVar

from torch_mlir import ir

from sscc.ir.builders import STORED, arguments_of
from sscc.ir.dialects import df
from sscc.ir.errors import ErrorKind, UnsupportedError
from sscc.ir.levels import get_target
from sscc.ir.rewriting import functions
from sscc.ir.sizes import align
from sscc.ir.target import MemoryLevel, Target
from sscc.ir.views import bytes_of, is_view
from sscc.passes.base import Pass, count
from sscc.passes.form_stages import StageBody, body_blocks
from sscc.passes.outline_kernels import KERNEL
from sscc.passes.plain_kernels import is_plain
from sscc.passes.stage_work import exchanges, work_of
from sscc.passes.tile_stages import carried_on_chip


class PlaceStagesErrors(ErrorKind):
    TOO_LARGE = (
        UnsupportedError,
        "the kernel {kernel} needs {required:,} bytes of {memory} for its buffers, but the machine has {capacity:,}; "
        "its largest buffers are {largest} of {sizes:,} bytes: a smaller --batch, --prefill-chunk or --kv-obs needs "
        "less, and -O0 keeps them in memory",
    )
    TOO_MANY_STAGES = (
        UnsupportedError,
        "the kernel {kernel} has {stages} stages at a time, but the machine has {units} PCUs, one for each",
    )


@dataclass(frozen=True)
class PlaceStages(Pass):
    name: ClassVar[str] = "place-stages"
    takes: ClassVar[tuple[str, ...]] = ("placed",)
    follows: ClassVar[tuple[str, ...]] = ("tile-stages",)
    level: ClassVar[str] = "placed"

    def run(self, module: ir.Module) -> None:
        target = get_target(module)
        for kernel in functions(module):
            if KERNEL in kernel.attributes and not is_plain(kernel):
                for pipeline in _pipelines(kernel):
                    pipeline.place(target, kernel.name.value)


_Depths = dict[df.StreamKind, int]
"""Minimum number of slots of a buffer, by the kind of its stream."""


@dataclass
class _Stream:
    """A result that needs a buffer.

    Attributes:
        op, index: operation, and index of its result.
        slot: bytes of a slot.
        ahead: number of slots for loading tiles ahead, if there is room.
    """

    op: ir.Operation
    index: int
    slot: int
    kind: df.StreamKind
    ahead: int = 0

    @property
    def name(self) -> str:
        return df.stage_name(_call(self.op))

    def depth(self, depths: _Depths, part: int) -> int:
        """Return the number of slots, if 1 / `part` of those for loading ahead are used."""
        return max(depths[self.kind], self.ahead // part)


@dataclass
class _Pipeline:
    """Stages that are on the chip together.

    Attributes:
        stages: calls of the stages.
        givers: operations with their results: stages, or the tile loops around them.
        handed: values that an iteration of a loop passes to the next on the chip.
        loops: True for a loop, False for a straight run.
    """

    streams: list[_Stream] = field(default_factory=list)
    stages: list[ir.Operation] = field(default_factory=list)
    givers: list[ir.Operation] = field(default_factory=list)
    handed: list[ir.Value] = field(default_factory=list)
    loops: bool = False

    @property
    def overlaps(self) -> bool:
        """True if an iteration may begin before the previous one ends."""
        return self.loops and not self.handed

    def look_ahead(self) -> None:
        """Find the tiles that can be loaded while a stage waits for other ranks."""
        exchanging = [index for index, stage in enumerate(self.stages) if exchanges(StageBody.of(stage).ops)]
        waiting = self.stages[0 if self.loops else exchanging[0] :] if exchanging else []
        loops = [stage.parent for stage in waiting if df.TILES in stage.parent.attributes]
        for stream in self.streams:
            if stream.kind == "tile" and stream.op.name == "df.load" and stream.op.parent in loops:
                stream.ahead = _tiles(stream.op.parent)

    def place(self, target: Target, kernel: str) -> None:
        self._buffers(target, kernel)
        self._units(target, kernel)

    def _buffers(self, target: Target, kernel: str) -> None:
        between = (2, 1) if self.overlaps else (1,)
        fixed: _Depths = {"tile": 2, "early": 1, "carried": 2}
        choices: list[_Depths] = [{**fixed, "whole": whole, "between": n} for whole in (2, 1) for n in between]
        room = target.nearest.capacity.value
        none = 1 + max((stream.ahead for stream in self.streams), default=0)
        depths = next((d for d in choices if self._bytes(d, none) <= room), choices[-1])
        while self._bytes(depths, none) > room:
            if not self._leave_in_memory(depths):
                self._refuse(depths, target.nearest, kernel)
        part = 1
        while part < none and self._bytes(depths, part) > room:
            part *= 2
        address = 0
        places = {}
        for stream in self.streams:
            depth = stream.depth(depths, part)
            places[id(stream.op), stream.index] = df.BufferPlace(depth, address)
            address += align(depth * stream.slot)
        count("buffers", len(self.streams))
        count("bytes on the chip, all pipelines", address)
        for op in dict.fromkeys([*self.givers, *(stream.op for stream in self.streams)]):
            updated = df.BufferPlace(0)
            carried = df.BufferPlace(depths["carried"])  # it replaces the value that the loop carries
            results = [carried if result in self.handed else updated for result in op.results]
            df.set_buffers(op, [places.get((id(op), index), other) for index, other in enumerate(results)])

    def _leave_in_memory(self, depths: _Depths) -> bool:
        """Remove the buffer of the largest weight, whose stage then reads it from memory. Return False if there is
        none."""
        loads = [stream for stream in self.streams if stream.kind in ("tile", "whole") and _is_weight(stream.op)]
        if not loads:
            return False
        largest = max(loads, key=lambda stream: depths[stream.kind] * stream.slot)
        self.streams.remove(largest)
        count("weights read from memory")
        largest.op.results[0].replace_all_uses_with(largest.op.operands[0])
        largest.op.erase()
        return True

    def _bytes(self, depths: _Depths, part: int) -> int:
        return sum(align(stream.depth(depths, part) * stream.slot) for stream in self.streams)

    def _refuse(self, depths: _Depths, memory: MemoryLevel, kernel: str) -> None:
        largest = sorted(self.streams, key=lambda s: -depths[s.kind] * s.slot)[:3]
        raise PlaceStagesErrors.TOO_LARGE(
            kernel=kernel,
            required=sum(depths[s.kind] * s.slot for s in self.streams),
            memory=memory.label,
            capacity=int(memory.capacity.value),
            largest=[s.name for s in largest],
            sizes=[depths[s.kind] * s.slot for s in largest],
        )

    def _units(self, target: Target, kernel: str) -> None:
        """Return the compute units of each stage, by work, at least one each."""
        work = [work_of(StageBody.of(op).ops, target.units) * _firings(op) for op in self.stages]
        units = int(target.units.pcus.value)
        if len(self.stages) > units:
            raise PlaceStagesErrors.TOO_MANY_STAGES(kernel=kernel, stages=len(self.stages), units=units)
        shares = work if self.overlaps else [sqrt(each) for each in work]
        spare, total = units - len(self.stages), sum(shares) or 1.0
        i64 = ir.IntegerType.get_signless(64)
        for op, share in zip(self.stages, shares, strict=True):
            op.attributes[df.PCUS] = ir.IntegerAttr.get(i64, 1 + int(spare * share / total))


def _pipelines(kernel: Any) -> Iterator[_Pipeline]:
    """Yield the pipelines of a kernel: every pipelined loop with the loads before it, and every straight run."""
    for block in body_blocks(kernel):
        parent = block.owner.operation
        if df.TILES in parent.attributes:
            continue
        if df.PIPELINED in parent.attributes:
            carried = carried_on_chip(parent)
            yielded = list(list(block.operations)[-1].operation.operands)
            pipeline = _Pipeline(handed=[yielded[index] for index in carried], loops=True)
            inits = [parent.operands[3 + index] for index in carried]
            for op in [op.operation for op in parent.block.operations if df.EARLY in op.operation.attributes]:
                kind: df.StreamKind = "carried" if op.results[0] in inits else "early"
                pipeline.streams.append(_Stream(op, 0, bytes_of(op.results[0]), kind))
        else:
            pipeline = _Pipeline()
        _collect(block, pipeline)
        if pipeline.stages:
            pipeline.look_ahead()
            yield pipeline


def _collect(block: ir.Block, pipeline: _Pipeline) -> None:
    """Add the stages of a block, and the streams of stages and loads."""
    for op in [op.operation for op in block.operations]:
        if df.EARLY in op.attributes:
            continue
        if op.name == "df.load":
            pipeline.streams.append(_Stream(op, 0, bytes_of(op.results[0]), "whole"))
        elif df.TILES in op.attributes:
            stages = _stages_of(op)
            for inner in [inner.operation for inner in op.regions[0].blocks[0].operations]:
                if inner.name == "df.load" or inner in stages[:-1]:  # the last one's are the loop's results
                    pipeline.streams.append(_Stream(inner, 0, bytes_of(inner.results[0]), "tile"))
            pipeline.stages += stages
            _add_results(op, pipeline)
        elif df.is_stage(op):
            pipeline.stages.append(op)
            _add_results(op, pipeline)


def _add_results(op: ir.Operation, pipeline: _Pipeline) -> None:
    """Add buffers for results that are not updates in memory; a value carried by the loop shares the buffer of its
    source."""
    pipeline.givers.append(op)
    tied = StageBody.of(_call(op)).tied
    for index, result in enumerate(op.results):
        if index not in tied and result not in pipeline.handed:
            pipeline.streams.append(_Stream(op, index, bytes_of(result), "between"))


def _is_weight(load: ir.Operation) -> bool:
    """Return True if a load reads a part of a weight."""
    value = load.operands[0]
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        if not is_view(op) or op.name == "tensor.insert_slice":
            return False
        value = op.operands[0]
    function = value.owner.owner
    if function.operation.name != "func.func":
        return False
    return arguments_of(function)[list(value.owner.arguments).index(value)].role in STORED


def _call(op: ir.Operation) -> ir.Operation:
    """Return the operation that produces the results of a tile loop, its last stage; for a stage or a load, itself."""
    return op if df.TILES not in op.attributes else _stages_of(op)[-1]


def _stages_of(loop: ir.Operation) -> list[ir.Operation]:
    """Return the stages that fire in a tile loop, in order."""
    inside = (inner.operation for inner in loop.regions[0].blocks[0].operations)
    return [inner for inner in inside if df.is_stage(inner)]


def _firings(stage: ir.Operation) -> int:
    """Return the number of firings of a stage per iteration: that of the tile loop around it, or 1."""
    loop = stage.parent.operation
    return _tiles(loop) if df.TILES in loop.attributes else 1


def _tiles(loop: ir.Operation) -> int:
    """Return the number of iterations of a loop over tiles."""
    return int(loop.operands[1].owner.operation.attributes["value"].value)
