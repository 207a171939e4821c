"""tile-stages: stages work on tiles, and their inputs from memory arrive as streams.

What: a stage whose weights or cached rows come from memory becomes a loop over tiles of them, each fetched by a
`df.load` while the stage works on the previous tile; all other inputs from memory are loaded whole, once for all stages
that read them. Straight runs of stages, and loops over such runs, are marked as pipelines. Before a pipelined loop of
known length, values that every iteration loads are loaded once (`df.early`), as are values that the loop carries on the
chip.

The axis is the one along which the most bytes from memory are cut. The number of tiles n minimises bytes / (n *
bandwidth of main memory) + n * firing cost: the load of the first tile, which nothing hides, and the cost of n firings.
n divides the axis. Tiles of matrices have a multiple of the backend's tile rows (16, for example) if that costs no more
than a quarter of the load: a backend that multiplies that many rows at once, such as the CPU's, would otherwise have
groups split between two tiles.

A stage with intermediate values that are too large for the chip (`df.bounded`) has enough tiles to make them small.

If ranks exchange the result of a product, several stages may be in one loop: the product, the stages behind it, and the
exchange, each on a tile of the previous one. One tile is sent while the next is computed, and values between stages
exist for one tile only. This is done if it takes less time: every tile pays for a message's latency
(`sscc.passes.communication_overlap` has the estimate). An expert's matrix is cut along its rows there.

Why: a weight matrix does not fit on the chip beside all others, and a stage that waited for all of it would idle. With
tiles, loading and computing overlap.

Before::

    func.func private @k(%h: tensor<2x64xf32> {sscc.input = "h"}, %w: tensor<64x4096xf32> {sscc.weight = "w"})
        -> (tensor<2x4096xf32> {sscc.output = "y"}) attributes {sscc.kernel} {
      %y = func.call @body.proj(%h, %w) {df.stage = "proj"}
        : (tensor<2x64xf32>, tensor<64x4096xf32>) -> tensor<2x4096xf32>
      return %y : tensor<2x4096xf32>
    }
    func.func private @body.proj(%h: tensor<2x64xf32> {sscc.input = "x0"}, %w: tensor<64x4096xf32> {sscc.input = "x1"})
        -> (tensor<2x4096xf32> {sscc.output = "y0"}) attributes {df.body} {
      %zero = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<2x4096xf32>
      %z = linalg.fill ins(%zero : f32) outs(%e : tensor<2x4096xf32>) -> tensor<2x4096xf32>
      %y = linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (k, j)>,
          affine_map<(i, j, k) -> (i, j)>], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%h, %w : tensor<2x64xf32>, tensor<64x4096xf32>) outs(%z : tensor<2x4096xf32>) {
        ^bb0(%a: f32, %b: f32, %c: f32):
        %m = arith.mulf %a, %b : f32
        %s = arith.addf %c, %m : f32
        linalg.yield %s : f32
      } -> tensor<2x4096xf32>
      return %y : tensor<2x4096xf32>
    }

After, the kernel::

    func.func private @k(%h: .. "h"}, %w: .. "w"}) -> (.. "y"}) attributes {sscc.kernel} {
      %hs = "df.load"(%h) {df.stage = "h"} : (tensor<2x64xf32>) -> tensor<2x64xf32>
      %e = tensor.empty() : tensor<2x4096xf32>
      %zero = arith.constant 0 : index
      %n = arith.constant 4 : index
      %one = arith.constant 1 : index
      %y = scf.for %t = %zero to %n step %one iter_args(%acc = %e) -> (tensor<2x4096xf32>) {
        ..
        %o = arith.muli %t, ..
        %wt = tensor.extract_slice %w[0, %o] [64, 1024] [1, 1] : tensor<64x4096xf32> to tensor<64x1024xf32>
        %ws = "df.load"(%wt) {df.stage = "w"} : (tensor<64x1024xf32>) -> tensor<64x1024xf32>
        %yt = func.call @body.proj.tile.0(%hs, %ws) {df.stage = "proj"} : ..
        %acc1 = tensor.insert_slice %yt into %acc[0, %o] [2, 1024] [1, 1] : tensor<2x1024xf32> into tensor<2x4096xf32>
        scf.yield %acc1 : tensor<2x4096xf32>
      } {df.tiles}
      return %y : tensor<2x4096xf32>
    }

After, the body::

    func.func private @body.proj.tile.0(%h: tensor<2x64xf32> .. %w: tensor<64x1024xf32> .. attributes {df.body} {
      ..
      %y = linalg.generic .. ins(%h, %w : tensor<2x64xf32>, tensor<64x1024xf32>) outs(%z : tensor<2x1024xf32>) {

When it does not apply: a stage that no axis cuts, or whose tiles would not pay for their firings, fires once, on whole
values. Operands that are updated in place, or fetched row by row (tables, the prompt's scratch), are accessed in memory
without a stream. Nothing is loaded early before a loop whose length depends on the prompt, because it may be empty.
Stages do not exchange tiles along the axis on which ranks have their parts (logits, which are gathered), nor if a stage
between needs more than one tile (a norm), or a product would read its weight again for every tile.

Preserves: results; a product's sums run over the same elements in the same order for every tile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd, prod, sqrt
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, func, linalg, scf, tensor

from sscc.ir.builders import (
    arguments_of,
    extract_slice,
    index_constant,
    index_of,
    insert_slice,
    make_function,
    results_of,
    short_name,
    tensor_type,
)
from sscc.ir.collectives import grid_of
from sscc.ir.dialects import df
from sscc.ir.errors import ErrorKind, InternalError
from sscc.ir.levels import get_target, get_tile_rows, walk
from sscc.ir.locations import origin_of
from sscc.ir.rewriting import ValueMap, clone_with, fill_value, functions, is_rematerialised, producer
from sscc.ir.structure import structure
from sscc.ir.target import Target
from sscc.ir.views import RESHAPES, bytes_of, is_view
from sscc.passes.base import Pass, count, run_upstream
from sscc.passes.communication_overlap import Link, find
from sscc.passes.form_stages import StageBody, body_blocks, calls_of_bodies, look_outside
from sscc.passes.large_values import held, is_large, parts_of
from sscc.passes.outline_kernels import KERNEL
from sscc.passes.plain_kernels import is_plain
from sscc.passes.tiling import WHOLE, NotTileable, Tiling, tile_back


class TileStagesErrors(ErrorKind):
    CONSTANT_OPERAND = InternalError, "{origin}'{op}' reads a constant tensor"


@dataclass(frozen=True)
class TileStages(Pass):
    name: ClassVar[str] = "tile-stages"
    takes: ClassVar[tuple[str, ...]] = ("fused",)
    follows: ClassVar[tuple[str, ...]] = ("form-stages",)
    level: ClassVar[str] = "placed"

    def run(self, module: ir.Module) -> None:
        target = get_target(module)
        bodies = {f.name.value: f for f in functions(module) if df.BODY in f.attributes}
        tiler = _Tiler(module, target, get_tile_rows(module), bodies)
        for kernel in functions(module):
            if is_plain(kernel):
                tiler.used |= {op.attributes["callee"].value for op in walk(kernel) if df.is_stage(op)}
            elif KERNEL in kernel.attributes:
                _mark_pipelines(kernel)
                for block in body_blocks(kernel):
                    tiler.block(block, kernel)
                for loop in [op for op in walk(kernel) if df.PIPELINED in op.attributes]:
                    _hoist(loop, kernel)
        calls = calls_of_bodies(module)
        for name in tiler.tiled.values():
            look_outside(bodies[name], calls[name], all_shapes=False)
        for body in bodies.values():
            if body.name.value not in tiler.used:
                body.operation.erase()


def _is_matrix(shape: Sequence[int]) -> bool:
    """Return True if a shape has two axes, apart from those of one element."""
    return sum(size != 1 for size in shape) == 2


def _mark_pipelines(kernel: Any) -> None:
    """Mark loops over stages without inner control flow as pipelines."""
    for op in walk(kernel):
        if op.name == "scf.for":
            inside = [inner.operation for inner in op.regions[0].blocks[0].operations]
            if any(map(df.is_stage, inside)) and not any(inner.name in ("scf.for", "scf.if") for inner in inside):
                op.attributes[df.PIPELINED] = ir.UnitAttr.get()


def _hoist(loop: ir.Operation, kernel: Any) -> None:
    """Move loads that are the same in every iteration, and values carried on the chip, in front of a loop of known
    length."""
    lower, upper = list(loop.operands)[:2]
    if any(index_of(bound) is None for bound in (lower, upper)):
        return
    for op in [op.operation for op in loop.regions[0].blocks[0].operations]:
        if is_view(op) and all(_is_outside(value, loop) for value in op.operands):
            op.move_before(loop)
        elif op.name == "df.load" and _is_outside(op.operands[0], loop):
            op.move_before(loop)
            op.attributes[df.EARLY] = ir.UnitAttr.get()
    for index in carried_on_chip(loop):
        init = loop.operands[3 + index]
        with ir.InsertionPoint(loop), loop.location:
            stream = _load(init, _load_name(init, kernel, loop))
        stream.owner.attributes[df.EARLY] = ir.UnitAttr.get()
        loop.operands[3 + index] = stream


def _is_outside(value: ir.Value, loop: ir.Operation) -> bool:
    """Return True if `value` is defined before `loop`."""
    owner = value.owner
    block = owner if isinstance(owner, ir.Block) else owner.operation.block
    return bool(block != loop.regions[0].blocks[0])


def in_memory(value: ir.Value) -> bool:
    """Return True if a value of a kernel lies in memory and not on the chip: its parameters, and in-place updates of
    them."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        parent = owner.owner.operation
        if parent.name == "func.func":
            return True
        position = list(owner.arguments).index(value) - 1
        return position not in carried_on_chip(parent) and in_memory(list(parent.operands)[3 + position])
    op = owner.operation
    index = list(op.results).index(value)
    if is_view(op):
        return in_memory(op.operands[1 if op.name == "tensor.insert_slice" else 0])
    if op.name == "scf.for":
        return index not in carried_on_chip(op) and in_memory(list(op.operands)[3 + index])
    if op.name == "scf.if":
        return in_memory(list(op.regions[1].blocks[0].operations)[-1].operation.operands[index])
    if df.is_stage(op):
        return index in StageBody.of(op).tied
    return False


def _may_overlap(value: ir.Value) -> bool:
    """Return True if a value is several rows of a tensor, from an offset on that is known only at run time."""
    op = producer(value)
    if op is None or op.name != "tensor.extract_slice":
        return False
    pairs = zip(op.attributes["static_offsets"], op.attributes["static_sizes"], strict=True)
    return any(offset == ir.ShapedType.get_dynamic_size() and size > 1 for offset, size in pairs)


def carried_on_chip(loop: ir.Operation) -> list[int]:
    """Return the iteration arguments of a loop that stay on the chip."""
    return list(ir.DenseI64ArrayAttr(loop.attributes[df.CARRIED])) if df.CARRIED in loop.attributes else []


@dataclass
class _Plan:
    """Tiling of a stage: the number of tiles, and the cut axis of each operand and result."""

    count: int = 1
    operands: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    tiling: Tiling = field(default_factory=Tiling)


@dataclass
class _Step:
    """A stage to be tiled.

    Attributes:
        streamed: operands that it reads from memory through streams.
        own: those of them that no other stage reads.
        operands: its new operands.
        link: its place in a chain of stages that fire in turn.
    """

    op: ir.Operation
    body: StageBody
    plan: _Plan
    streamed: set[int]
    own: set[int]
    link: Link | None = None
    operands: list[ir.Value] = field(init=False)

    def __post_init__(self) -> None:
        self.operands = list(self.op.operands)

    def erase(self) -> None:
        """Erase the stage, and the views of its inputs."""
        self.op.erase()
        for view in reversed(self.link.views if self.link is not None else ()):
            view.erase()


@dataclass
class _Tiler:
    """Tiler of the stages of a module.

    Attributes:
        tile_rows: see `get_tile_rows`.
        bodies: bodies of stages by name, those of tiles included.
        used: names of the bodies that are called in the end.
        tiled: names of the bodies of tiles, by their structure.
    """

    module: ir.Module
    target: Target
    tile_rows: int
    bodies: dict[str, Any]
    used: set[str] = field(default_factory=set)
    tiled: dict[str, str] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """Bytes of on-chip memory."""
        return int(self.target.nearest.capacity.value)

    def block(self, block: ir.Block, kernel: Any) -> None:
        """Tile the stages of one block, and stream their inputs from memory: an input of several stages is loaded
        whole, once."""
        stages = [op.operation for op in block.operations if df.is_stage(op.operation)]
        chains = find({op: self._body(op) for op in stages}, self.target, grid_of(self.module), self.tile_rows)
        streamed = [self._streamed(op) for op in stages]
        readers = Counter(op.operands[index] for op, indices in zip(stages, streamed, strict=True) for index in indices)
        shared = {value for value, count in readers.items() if count > 1}
        bounded = [op for op in stages if self._is_bounded(op)]  # they must not read a whole value
        shared -= {value for op in bounded for value in op.operands if is_large(value, self.room)}
        loaded: dict[ir.Value, ir.Value] = {}
        places = {op: index for index, op in enumerate(stages)}
        members = [[places[link.op] for link in chain.links] for chain in chains]
        chained = {index for indices in members for index in indices}
        ending = {indices[-1]: (chain, indices) for chain, indices in zip(chains, members, strict=True)}
        for index, op in enumerate(stages):
            if index in ending:  # the chain ends here: shared inputs of its earlier stages are loaded in front of it
                chain, indices = ending[index]
                pairs = zip(chain.links, indices, strict=True)
                steps = [self._link(link, streamed[number], shared, chain.count) for link, number in pairs]
                count("chains of stages around exchanges")
                self._stage(steps, loaded, kernel)
            elif index not in chained:
                self._stage([self._step(op, streamed[index], shared)], loaded, kernel)

    def _body(self, op: ir.Operation) -> StageBody:
        return StageBody(self.bodies[op.attributes["callee"].value])

    def _is_bounded(self, op: ir.Operation) -> bool:
        return df.BOUNDED in self._body(op).function.attributes

    def _streamed(self, op: ir.Operation) -> set[int]:
        """Return the operands that a stage reads from memory through a stream.

        An operand that the stage also updates is excluded if it overlaps with the views of other iterations: a stream
        would read it ahead of the update.
        """
        body = self._body(op)
        updated = [op.operands[index] for index in body.tied.values()]
        return {
            index
            for index, value in enumerate(op.operands)
            if isinstance(value.type, ir.RankedTensorType)
            and index not in body.fetched
            and in_memory(value)
            and not (value in updated and _may_overlap(value))
        }

    def _step(self, op: ir.Operation, streamed: set[int], shared: set[ir.Value]) -> _Step:
        """Return a step for a single stage."""
        body = self._body(op)
        own = {index for index in streamed if op.operands[index] not in shared}
        return _Step(op, body, self._plan(body, own), streamed, own)

    def _link(self, link: Link, streamed: set[int], shared: set[ir.Value], tiles: int) -> _Step:
        """Return a step for a stage of a chain."""
        own = {index for index in streamed if link.op.operands[index] not in shared}
        operands = [link.tiling.axes.get(argument, WHOLE) for argument in link.body.function.arguments]
        plan = _Plan(tiles, operands, [link.axis], link.tiling)
        return _Step(link.op, link.body, plan, streamed, own, link)

    def _stage(self, steps: list[_Step], loaded: dict[ir.Value, ir.Value], kernel: Any) -> None:
        """Tile a stage, or several in one loop, and stream their inputs from memory."""
        last = steps[-1].op
        for step in steps:
            for index in step.streamed:
                value = step.operands[index]
                if index in step.own and step.plan.count > 1 and step.plan.operands[index] != WHOLE:
                    continue
                if value not in loaded:
                    with ir.InsertionPoint(last), step.op.location:
                        loaded[value] = _load(value, _load_name(value, kernel, step.op))
                step.operands[index] = loaded[value]
        if steps[0].plan.count > 1:
            self._loop(steps, kernel)
            return
        (step,) = steps
        self.used.add(step.body.function.name.value)
        for index, value in enumerate(step.operands):
            step.op.operands[index] = value

    # --------------------------------------------------------------------------------------------------- the plan

    def _plan(self, body: StageBody, streamed: set[int]) -> _Plan:
        """Return the tiling that streams the most bytes, preferring those that keep values within a tile small; one
        tile if no axis streams any."""
        returned = body.returned
        bounded = df.BOUNDED in body.function.attributes
        least = parts_of(held(body.ops, returned), self.room) if bounded else 1
        best, most = _Plan(), (1, 0)
        for axis in range(min((value.type.rank for value in returned), default=0)):
            try:
                tiling = tile_back(body.ops, [(value, axis) for value in returned])
            except NotTileable:
                continue
            operands = [tiling.axes.get(argument, WHOLE) for argument in body.function.arguments]
            nbytes = sum(bytes_of(body.function.arguments[i]) for i in streamed if operands[i] != WHOLE)
            limit = gcd(*tiling.lengths())
            worth = min(limit, least), nbytes
            if worth > most and limit > 1:
                most = worth
                arguments = [(body.function.arguments[i].type.shape, operands[i]) for i in streamed]
                rows = [shape[cut] for shape, cut in arguments if cut != WHOLE and _is_matrix(shape)]
                best = _Plan(self._count(nbytes, limit, gcd(*rows), least), operands, [axis] * len(returned), tiling)
        return best

    def _count(self, nbytes: int, limit: int, rows: int, least: int) -> int:
        """Return the divisor of `limit` that minimises the time that is not hidden, preferably at least `least`. The
        tiles cut `rows` of matrices."""
        load = self.target.seconds({self.target.main.name: nbytes})
        firing = self.target.costs.firing_seconds.value
        optimum = sqrt(load / firing)

        def cost(n: int) -> tuple[float, float]:
            return load / n + n * firing, abs(n - optimum)

        divisors = [n for n in range(min(least, limit), limit + 1) if limit % n == 0]
        best = min(divisors, key=cost)
        even = min((n for n in divisors if n > 1 and rows % (n * self.tile_rows) == 0), key=cost, default=best)
        return even if best > 1 and cost(even)[0] - cost(best)[0] <= load / 4 else best

    # --------------------------------------------------------------------------------------------------- the loop

    def _loop(self, steps: list[_Step], kernel: Any) -> None:
        """Build a loop in which each step fires once per iteration on a tile; the last one's tiles are the loop's
        results."""
        last, tiles = steps[-1], steps[-1].plan.count
        op, tied = last.op, last.body.tied
        callees = [self._tile_body(step.body, step.plan) for step in steps]
        with ir.InsertionPoint(op), op.location:
            inits = [
                op.operands[tied[index]]
                if index in tied
                else tensor.EmptyOp(list(result.type.shape), result.type.element_type).result
                for index, result in enumerate(op.results)
            ]
            loop = scf.ForOp(index_constant(0), index_constant(tiles), index_constant(1), inits)
            with ir.InsertionPoint(loop.body):
                accumulated = list(loop.inner_iter_args)
                position = {tied[index]: value for index, value in enumerate(accumulated) if index in tied}
                made: list[ir.Value] = []
                for step, callee in zip(steps, callees, strict=True):
                    made = self._fire(step, callee, made, position if step is last else {}, loop, kernel)
                next_accumulated = [
                    self._put(tile, into, axis, loop)
                    for tile, into, axis in zip(made, accumulated, last.plan.results, strict=True)
                ]
                scf.YieldOp(next_accumulated)
        loop.operation.attributes[df.TILES] = ir.UnitAttr.get()
        count("tiled stages", len(steps))
        count("tiles", tiles)
        for old, new in zip(op.results, loop.results, strict=True):
            old.replace_all_uses_with(new)
        for step in reversed(steps):
            step.erase()

    def _fire(self, step: _Step, callee: Any, made: list[ir.Value], position: dict[int, ir.Value], loop: Any,
              kernel: Any) -> list[ir.Value]:  # fmt: skip
        """Build a step's call on tiles in a loop, and return its result tiles. One of its operands may be the tile that
        the previous step has `made`."""
        with step.op.location:
            tiles: list[ir.Value] = []
            for index, value in enumerate(step.operands):
                if step.link is not None and index == step.link.source:
                    tiles.append(self._seen(step.link, made[0], step.plan.count))
                    continue
                tile = self._cut(position.get(index, value), step.plan.operands[index], step.plan.count, loop)
                if index in step.own and step.plan.operands[index] != WHOLE:
                    tile = _load(tile, _load_name(step.op.operands[index], kernel, step.op))
                tiles.append(tile)
            call = func.CallOp(list(callee.type.results), callee.name.value, tiles)
            call.operation.attributes[df.STAGE] = step.op.attributes[df.STAGE]
            return list(call.results)

    def _seen(self, link: Link, tile: ir.Value, tiles: int) -> ir.Value:
        """Return a tile after the reshapes in front of a link."""
        if not link.views:
            return tile
        values: ValueMap = {link.views[0].operands[0]: tile}
        for view in link.views:
            _clone_tiled(view, values, link.cut.axes, tiles)
        return values[link.views[-1].results[0]]

    def _cut(self, value: ir.Value, axis: int, count: int, loop: Any) -> ir.Value:
        if axis == WHOLE:
            return value
        sizes = list(value.type.shape)
        sizes[axis] //= count
        return extract_slice(value, self._offsets(len(sizes), axis, sizes[axis], loop), sizes)

    def _put(self, tile: ir.Value, into: ir.Value, axis: int, loop: Any) -> ir.Value:
        shape = list(tile.type.shape)
        return insert_slice(tile, into, self._offsets(len(shape), axis, shape[axis], loop))

    def _offsets(self, rank: int, axis: int, size: int, loop: Any) -> list[Any]:
        offset = arith.MulIOp(loop.induction_variable, index_constant(size)).result
        return [offset if index == axis else 0 for index in range(rank)]

    # ------------------------------------------------------------------------------------------- bodies of one tile

    def _tile_body(self, body: StageBody, plan: _Plan) -> Any:
        """Return a copy of `body` for one tile. Equal copies are created once."""
        old = body.function
        axes, count = plan.tiling.axes, plan.count
        arguments, results = arguments_of(old), results_of(body.function)
        tiled = [_with_type(a, tile_type(v, axes, count)) for a, v in zip(arguments, old.arguments, strict=True)]
        outputs = [_with_type(r, tile_type(v, axes, count)) for r, v in zip(results, body.returned, strict=True)]
        name = f"{old.name.value}.tile"
        new = make_function(self.module, f"{name}.{len(self.tiled)}", tiled, outputs, old.location,
                            {df.BODY: ir.UnitAttr.get()})  # fmt: skip
        values: ValueMap = dict(zip(old.arguments, new.arguments, strict=True))
        with ir.InsertionPoint(new.entry_block):
            for op in body.all_ops:
                _clone_tiled(op, values, axes, count)
            with old.location:
                func.ReturnOp([values[value] for value in body.returned])
        run_upstream(new, "func.func(linalg-generalize-named-ops)", "generalisation of a tile's body")
        kept = self.tiled.setdefault(structure(new), new.name.value)
        if kept != new.name.value:
            new.operation.erase()
        else:
            self.bodies[kept] = new
        self.used.add(kept)
        return self.bodies[kept]


def _with_type(argument: Any, type_: ir.Type) -> Any:
    return type(argument)(argument.role, argument.name, type_)


def tile_type(value: ir.Value, axes: dict[ir.Value, int], count: int) -> ir.Type:
    axis = axes.get(value, WHOLE)
    if axis == WHOLE:
        return value.type
    shape = list(value.type.shape)
    shape[axis] //= count
    return tensor_type(shape, value.type.element_type)


def _clone_tiled(op: ir.Operation, values: ValueMap, axes: dict[ir.Value, int], count: int) -> None:
    """Clone `op` with the types of its tiles, and update attributes that repeat a shape. Constants are cloned to their
    readers, in the shape that these need."""
    if is_rematerialised(op):
        return
    types = [tile_type(result, axes, count) for result in op.results]
    attributes = {name: op.attributes[name] for name in op.attributes}
    for name in ("static_output_shape", "static_sizes"):
        if name in attributes:
            attributes[name] = ir.DenseI64ArrayAttr.get(_static_shape(op, name, types[0], axes))
    clone = ir.Operation.create(
        op.name,
        results=types,
        operands=[_tiled_operand(op, index, types, values) for index in range(len(op.operands))],
        attributes=attributes,
        regions=len(list(op.regions)),
        loc=op.location,
    )
    for old, new in zip(op.regions, clone.regions, strict=True):
        for block in old.blocks:
            types_of_arguments = [argument.type for argument in block.arguments]
            new_block = new.blocks.append(*types_of_arguments, arg_locs=[op.location] * len(types_of_arguments))
            inner: ValueMap = {**values, **dict(zip(block.arguments, new_block.arguments, strict=True))}
            with ir.InsertionPoint(new_block):
                for nested in block.operations:
                    _clone_scalar(nested.operation, inner)
    values.update(zip(op.results, clone.results, strict=True))


def _tiled_operand(op: ir.Operation, index: int, types: list[ir.Type], values: ValueMap) -> ir.Value:
    operand = op.operands[index]
    source = producer(operand)
    if source is None or not is_rematerialised(source):
        return values[operand]
    if not isinstance(operand.type, ir.RankedTensorType):
        return clone_with(source, {}).results[0]
    if index < len(op.operands) - len(types):
        raise TileStagesErrors.CONSTANT_OPERAND(origin=origin_of(op), op=op.name)
    return _initial(source, types[index - len(op.operands)])


def _initial(source: ir.Operation, type_: Any) -> ir.Value:
    """Return an empty or filled tensor like the result of `source`, of another type."""
    with source.location:
        empty: ir.Value = tensor.EmptyOp(list(type_.shape), type_.element_type).result
        filled = source
        while filled.name in RESHAPES:
            filled = filled.operands[0].owner.operation
        value = fill_value(filled)
        if value is None:
            return empty
        constant = clone_with(value.owner.operation, {}).results[0]
        result: ir.Value = linalg.fill(constant, outs=[empty])
        return result


def _clone_scalar(op: ir.Operation, values: ValueMap) -> None:
    clone = op.clone().operation
    for index, operand in enumerate(op.operands):
        if operand not in values:
            source = producer(operand)
            assert source is not None  # a constant of the enclosing block
            with ir.InsertionPoint(clone):
                clone_with(source, values)
        clone.operands[index] = values[operand]
    values.update(zip(op.results, clone.results, strict=True))


def _static_shape(op: ir.Operation, name: str, type_: Any, axes: dict[ir.Value, int]) -> list[int]:
    """Return the shape attribute of an expand_shape or a slice for the tile."""
    if name == "static_output_shape":
        return list(type_.shape)
    sizes = list(op.attributes[name])
    axis = axes.get(op.operands[0], WHOLE)
    if axis != WHOLE:
        sizes[axis] = sizes[axis] * prod(type_.shape) // prod(op.results[0].type.shape)
    return sizes


# ------------------------------------------------------------------------------------------------------------- loads


def _load(value: ir.Value, name: str) -> ir.Value:
    count("loads")
    load = df.Load(value, value.type)
    load.operation.attributes[df.STAGE] = ir.StringAttr.get(name)
    stream: ir.Value = load.stream
    return stream


def _load_name(value: ir.Value, kernel: Any, op: ir.Operation) -> str:
    """Return a name for a load: the kernel's name for the value, without the prefix that all layers share."""
    source: Any = value
    while source.owner != kernel.entry_block:
        if isinstance(source.owner, ir.Block):  # a value that a loop carries in memory
            loop = source.owner.owner.operation
            source = loop.operands[3 + list(source.owner.arguments).index(source) - 1]
            continue
        producing = source.owner.operation
        if producing.name == "scf.for":
            source = producing.operands[3 + list(producing.results).index(source)]
        elif is_view(producing):
            source = producing.operands[1 if producing.name == "tensor.insert_slice" else 0]
        else:
            return f"{df.stage_name(op)}.in"
    return short_name(arguments_of(kernel)[list(kernel.arguments).index(source)].name)
