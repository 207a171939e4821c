"""shard: one program for all ranks, each with its part of the heads, feed-forward, experts' and vocabulary's weights.

What: every rank runs the same program on tensors of its own (single program, multiple data). An axis of a weight that
products make is cut in blocks, one for each rank; whatever is computed from it element by element is cut alike; and
where a product sums over a cut axis each rank has a part of the sum, which a collective adds up. What does not divide is
computed by every rank.

Why: a step reads weights and rows of the cache, and ranks read their parts side by side.

How it is decided: by what is captured, not by names. A cut of one axis of one value has consequences: operands that meet
along this axis are cut alike, backwards to the weights and forwards to where a product sums over it. All consequences of
a cut are either possible, and then it is made, or it is not: none reaches a value that ranks have in common (the hidden
state, tables, positions), or an operation that mixes what lies along the axis in another way than by a sum. Heads of
attention are tried first, then the result of every product, in order. KV heads fewer than ranks are on several ranks
each.

Before, on two ranks::

    func.func private @decode.layer.0(%x: tensor<1x4xf32> {sscc.input = "hidden"},
        %up: tensor<8x4xf32> {sscc.weight = "up"}, %down: tensor<4x8xf32> {sscc.weight = "down"})
        -> (tensor<1x4xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
      %zero = arith.constant 0.0 : f32
      %e0 = tensor.empty() : tensor<1x8xf32>
      %z0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<1x8xf32>) -> tensor<1x8xf32>
      %a = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
        affine_map<(m, n, k) -> (m, n)>] ins(%x, %up : tensor<1x4xf32>, tensor<8x4xf32>) outs(%z0 : tensor<1x8xf32>) -> tensor<1x8xf32>
      %b = math.tanh %a : tensor<1x8xf32>
      %e1 = tensor.empty() : tensor<1x4xf32>
      %z1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<1x4xf32>) -> tensor<1x4xf32>
      %c = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
        affine_map<(m, n, k) -> (m, n)>] ins(%b, %down : tensor<1x8xf32>, tensor<4x8xf32>) outs(%z1 : tensor<1x4xf32>) -> tensor<1x4xf32>
      %d = arith.addf %x, %c : tensor<1x4xf32>
      return %d : tensor<1x4xf32>
    }

After::

    shard.grid @ranks(shape = 2)
    func.func private @decode.layer.0(%hidden: .., %up: tensor<4x4xf32> {sscc.cut = "0:8/2", sscc.weight = "up"},
        %down: tensor<4x4xf32> {sscc.cut = "1:8/2", sscc.weight = "down"}) ..
      ..
      %a = linalg.matmul .. ins(%hidden, %up : tensor<1x4xf32>, tensor<4x4xf32>) outs(%z0 : tensor<1x4xf32>) ..
      %b = math.tanh %a : tensor<1x4xf32>
      ..
      %c = linalg.matmul .. ins(%b, %down : tensor<1x4xf32>, tensor<4x4xf32>) outs(%z1 : tensor<1x4xf32>) ..
      %sum = shard.all_reduce %c on @ranks grid_axes = [0] ..
      %d = arith.addf %hidden, %sum : tensor<1x4xf32>
      return %d : tensor<1x4xf32>

When it does not apply: an axis that the number of ranks does not divide stays whole, and so do its weights. A model of
which nothing can be cut is refused.

Preserves: every operation, its order and location; what a rank computes of a cut value is that part of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import linalg, shard

from sscc.ir.builders import CUT, STORED, Argument, arguments_of
from sscc.ir.dialects import kv
from sscc.ir.errors import UnsupportedError, UsageError
from sscc.ir.levels import walk
from sscc.ir.rewriting import clone_with, fill_value, functions, is_rematerialised, producer
from sscc.ir.sharding import Cut, Segment, boundaries
from sscc.passes.base import Pass, count
from sscc.passes.split_layers import ATTENTION
from sscc.passes.tiling import is_contraction

GRID = "ranks"
_OPEN = 0  # parts of a segment of which nothing is known yet


@dataclass(frozen=True)
class Shard(Pass):
    name: ClassVar[str] = "shard"
    level: ClassVar[str] = "graph"

    ranks: int = 1

    def run(self, module: ir.Module) -> None:
        if any(op.name == "func.call" for op in walk(module)):
            raise UsageError(f"{self.name} changes arguments: it has to run before build-entries")
        if self.ranks == 1:
            return
        cuts = _decide(module, self.ranks)
        if not cuts:
            raise UnsupportedError(f"nothing of this model can be cut over {self.ranks} ranks")
        with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown():
            shard.GridOp(GRID, [self.ranks])
        for function in functions(module):
            _Rewriter(function, cuts, self.ranks).rewrite()


# ------------------------------------------------------------------------------------------------------- what is cut


class _Conflict(Exception):
    """A cut has a consequence that cannot be."""


def _decide(module: ir.Module, ranks: int) -> dict[ir.Value, Cut]:
    """How values are cut; those that every rank has whole are not there."""
    program = _Program(module)
    cuts: dict[ir.Value, Cut] = {}
    for value, axis in program.candidates():
        if value in cuts or value.type.shape[axis] % ranks:
            continue
        try:
            cuts = _Consequences(program, ranks, cuts).of(value, axis)
        except _Conflict:
            count("cuts that are not possible")
        else:
            count("cuts")
    return cuts


class _Program:
    """The functions of a module, and which of their values are one and the same tensor."""

    def __init__(self, module: ir.Module) -> None:
        self.functions = list(functions(module))
        self.roles: dict[ir.Value, str] = {}
        self.twins: dict[ir.Value, list[ir.Value]] = {}
        groups: dict[tuple[str, str], list[ir.Value]] = {}
        for function in self.functions:
            part = function.name.value.partition(".")[2]  # of its entry: embed, layer.0, head
            for value, argument in zip(function.arguments, arguments_of(function), strict=True):
                self.roles[value] = argument.role
                if argument.role in STORED:
                    same = groups.setdefault((part, argument.name), [])
                    same.append(value)
                    self.twins[value] = same

    def candidates(self) -> Iterator[tuple[ir.Value, int]]:
        """Values and axes that may be cut: heads of attention, then what products with weights make."""
        ops = [op.operation for function in self.functions for op in function.entry_block.operations]
        for op in ops:
            if op.name == ATTENTION:
                yield op.results[0], 1
        for op in ops:
            if op.name == "kv.expert_product":
                yield op.results[0], 2
            elif is_contraction(op):
                dims = linalg.infer_contraction_dimensions(op)
                written = _dims(list(linalg.get_indexing_maps(op))[-1])
                yield from ((op.results[0], written.index(dim)) for dim in dims.n)
            elif op.name == "linalg.generic" and _lookups(op):
                yield op.results[0], op.results[0].type.rank - 1


class _Consequences:
    """What follows from a cut, on top of `cuts`."""

    def __init__(self, program: _Program, ranks: int, cuts: Mapping[ir.Value, Cut]) -> None:
        self.program, self.ranks = program, ranks
        self.cuts = dict(cuts)
        self.pending: deque[ir.Operation] = deque()
        self.touched: dict[ir.Operation, None] = {}

    def of(self, value: ir.Value, axis: int) -> dict[ir.Value, Cut]:
        """All cuts there are with this one. Raises _Conflict where one of them cannot be."""
        self.require(value, axis, [Segment(value.type.shape[axis], self.ranks)])
        self._settle()
        # What nothing was learnt of is whole. That has consequences too.
        for known, cut in list(self.cuts.items()):
            if any(segment.parts == _OPEN for segment in cut.segments):
                closed = [Segment(s.size, s.parts or 1) for s in cut.segments]
                self.require(known, cut.axis, closed)
        self._settle()
        for op in self.touched:
            self._check_sum(op)
        return {value: cut for value, cut in self.cuts.items() if not cut.whole}

    def _settle(self) -> None:
        while self.pending:
            op = self.pending.popleft()
            self.touched[op] = None
            self._propagate(op)

    def require(self, value: ir.Value, axis: int, segments: Sequence[Segment]) -> None:
        """Cuts `value`, if it is not cut so already. Raises _Conflict where it cannot be cut so."""
        source = producer(value)
        if source is not None and is_rematerialised(source):
            if any(segment.parts not in (_OPEN, 1) for segment in segments) and not _in_any_size(source):
                raise _Conflict
            return
        before = self.cuts.get(value)
        if before is None and all(segment.parts in (_OPEN, 1) for segment in segments):
            return
        if before is not None and before.axis != axis:
            if all(segment.parts in (_OPEN, 1) for segment in segments):
                return
            raise _Conflict
        merged = _merged(before.segments, segments) if before is not None else _joined(segments)
        if before is not None and merged == before.segments:
            return
        if any(segment.parts and segment.size % segment.parts for segment in merged):
            raise _Conflict
        if source is None and self.program.roles[value] not in STORED:
            raise _Conflict  # ranks have it in common
        self.cuts[value] = Cut(axis, merged)
        if source is not None:
            self.pending.append(source)
        self.pending += [_outermost(use.owner.operation) for use in value.uses]
        for twin in self.program.twins.get(value, ()):
            if twin != value:
                self.require(twin, axis, merged)

    def _propagate(self, op: ir.Operation) -> None:
        if op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
            self._through_reshape(op)
        elif op.name == "tensor.extract_slice":
            self._through_slice(op)
        elif op.name == "tensor.concat":
            self._through_concat(op)
        elif op.name == "func.return":
            if "sscc.layer" in op.parent.operation.attributes and any(value in self.cuts for value in op.operands):
                raise _Conflict
        else:
            self._through_space(op)

    # Operations along whose axes values meet.

    def _through_space(self, op: ir.Operation) -> None:
        space = _space_of(op)
        known: dict[str, tuple[Segment, ...]] = {}
        for value, letters in space.values:
            cut = self.cuts.get(value)
            if cut is not None:
                letter = letters[cut.axis]
                known[letter] = _merged(known[letter], cut.segments) if letter in known else cut.segments
        if {"H", "Hkv"} <= space.letters and op.name.startswith("kv."):
            self._share_heads(space, known)
        for letter, segments in known.items():
            if letter in space.fixed and any(segment.parts not in (_OPEN, 1) for segment in segments):
                raise _Conflict
            for value, letters in space.values:
                for axis, other in enumerate(letters):
                    if other == letter:
                        self.require(value, axis, segments)

    def _share_heads(self, space: _Space, known: dict[str, tuple[Segment, ...]]) -> None:
        """Query heads and the KV heads that they read are on the same ranks."""
        heads, kv_heads = space.size("H"), space.size("Hkv")
        if not known.keys() & {"H", "Hkv"}:
            return
        if heads % self.ranks or (kv_heads % self.ranks and self.ranks % kv_heads):
            raise _Conflict
        for letter, size, parts in (("H", heads, self.ranks), ("Hkv", kv_heads, min(self.ranks, kv_heads))):
            known[letter] = _merged(known.get(letter, (Segment(size, _OPEN),)), (Segment(size, parts),))
            if len(known[letter]) > 1:
                raise _Conflict  # joined of several: heads would not lie beside those that they belong to

    def _check_sum(self, op: ir.Operation) -> None:
        """Raises _Conflict where a cut axis is reduced in another way than by a sum, or a part of it twice."""
        if op.name in _VIEWS or op.name == "func.return":
            return
        space = _space_of(op)
        for value, letters in space.values:
            cut = self.cuts.get(value)
            if cut is not None and not cut.whole and letters[cut.axis] in space.reduced:
                if not space.sums or any(segment.parts != self.ranks for segment in cut.segments):
                    raise _Conflict

    # Views.

    def _through_reshape(self, op: ir.Operation) -> None:
        short, long = op.operands[0], op.results[0]
        if op.name == "tensor.collapse_shape":
            short, long = long, short
        groups = [[int(axis.value) for axis in group] for group in op.attributes["reassociation"]]
        shape = long.type.shape
        if long in self.cuts:
            cut = self.cuts[long]
            axis = next(number for number, group in enumerate(groups) if cut.axis in group)
            before = _product(shape[a] for a in groups[axis] if a < cut.axis)
            behind = _product(shape[a] for a in groups[axis] if a > cut.axis)
            self.require(short, axis, [Segment(s.size * behind, s.parts) for s in cut.segments] * before)
        if short in self.cuts:
            cut = self.cuts[short]
            if not self._split(cut, long, groups[cut.axis]):
                self._refine(short, cut, [shape[a] for a in groups[cut.axis] if shape[a] > 1])

    def _split(self, cut: Cut, long: ir.Value, group: Sequence[int]) -> bool:
        """Cuts the longer shape where one of the axes that `cut`'s axis becomes can be; says whether it can."""
        shape = long.type.shape
        for axis in group:
            before = _product(shape[a] for a in group if a < axis)
            behind = _product(shape[a] for a in group if a > axis)
            if shape[axis] == 1:
                continue
            copy = _copies(cut.segments, before)
            if copy is not None and all(s.size % (behind * (s.parts or 1)) == 0 for s in copy):
                self.require(long, axis, [Segment(s.size // behind, s.parts) for s in copy])
                return True
        return False

    def _refine(self, value: ir.Value, cut: Cut, sizes: Sequence[int]) -> None:
        """Cuts `value` in as many segments as the first of the axes that it becomes has elements, if that is new."""
        step = cut.size // sizes[0]
        self.require(value, cut.axis, [Segment(step, _OPEN)] * sizes[0])
        if self.cuts[value] == cut:
            raise _Conflict

    def _through_slice(self, op: ir.Operation) -> None:
        source, result = op.operands[0], op.results[0]
        if source not in self.cuts and result not in self.cuts:
            return
        box = _box(op)
        if box is None:
            raise _Conflict
        if source in self.cuts:
            cut = self.cuts[source]
            if cut.axis not in box:
                if any(segment.parts not in (_OPEN, 1) for segment in cut.segments):
                    raise _Conflict
                return
            axis, offset, size, step = box[cut.axis]
            if step > 1 and (offset >= step or size * step != cut.size):
                raise _Conflict
            begin = 0 if step > 1 else offset
            inside = _window(cut.segments, begin, size * step)
            if any(segment.size % (step * (segment.parts or 1)) for segment in inside):
                raise _Conflict
            self.require(source, cut.axis, _placed(inside, begin, cut.size))
            self.require(result, axis, [Segment(s.size // step, s.parts) for s in inside])
        if result in self.cuts:
            cut = self.cuts[result]
            for source_axis, (axis, offset, _, step) in box.items():
                if axis == cut.axis:
                    scaled = [Segment(s.size * step, s.parts) for s in cut.segments]
                    self.require(source, source_axis, _placed(scaled, 0 if step > 1 else offset, source.type.shape[source_axis]))

    def _through_concat(self, op: ir.Operation) -> None:
        joined, result = op.attributes["dim"].value, op.results[0]
        offset = 0
        for value in op.operands:
            size = value.type.shape[joined]
            for one, other in ((value, result), (result, value)):
                cut = self.cuts.get(one)
                if cut is None:
                    continue
                if cut.axis != joined:
                    self.require(other, cut.axis, cut.segments)
                elif one == value:
                    self.require(result, joined, _placed(cut.segments, offset, result.type.shape[joined]))
                else:
                    self.require(value, joined, _window(cut.segments, offset, size))
            offset += size


_VIEWS = frozenset({"tensor.expand_shape", "tensor.collapse_shape", "tensor.extract_slice", "tensor.concat"})


def _outermost(op: ir.Operation) -> ir.Operation:
    """The operation of a function's own block that `op` is, or is a part of."""
    while op.parent.operation.name != "func.func":
        op = op.parent.operation
    return op


def _merged(one: Sequence[Segment], other: Sequence[Segment]) -> tuple[Segment, ...]:
    """What two cuts of one axis say together. Raises _Conflict where they disagree."""
    edges = sorted({*boundaries(one), *boundaries(other)})
    segments = []
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
        parts = {_parts_at(one, begin), _parts_at(other, begin)} - {_OPEN}
        if len(parts) > 1:
            raise _Conflict
        segments.append(Segment(end - begin, parts.pop() if parts else _OPEN))
    return tuple(segments)


def _in_any_size(op: ir.Operation) -> bool:
    """Whether an operation makes a tensor anew that `_resized` can make in another size."""
    return op.name == "tensor.empty" or fill_value(op) is not None


def _joined(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    return tuple(segments)


def _parts_at(segments: Sequence[Segment], position: int) -> int:
    return next(s.parts for s, end in zip(segments, boundaries(segments)[1:], strict=True) if position < end)


def _placed(segments: Sequence[Segment], offset: int, size: int) -> list[Segment]:
    """Segments of a part of an axis of `size` elements, as those of the axis."""
    behind = size - offset - sum(segment.size for segment in segments)
    around = [Segment(offset, _OPEN)] * bool(offset), [Segment(behind, _OPEN)] * bool(behind)
    return [*around[0], *segments, *around[1]]


def _window(segments: Sequence[Segment], offset: int, size: int) -> list[Segment]:
    """The segments of a part of an axis."""
    edges = boundaries(segments)
    pairs = [(max(b, offset), min(e, offset + size), s.parts)
             for s, b, e in zip(segments, edges[:-1], edges[1:], strict=True)]  # fmt: skip
    return [Segment(end - begin, parts) for begin, end, parts in pairs if begin < end]


def _copies(segments: Sequence[Segment], number: int) -> tuple[Segment, ...] | None:
    """The segments of one of `number` equal runs that an axis consists of; None where runs are not equal."""
    size = sum(segment.size for segment in segments) // number
    edges = set(boundaries(segments))
    if any(size * run not in edges for run in range(number)):
        return None
    try:
        copy: tuple[Segment, ...] = (Segment(size, _OPEN),)
        for run in range(number):
            copy = _merged(copy, _window(segments, size * run, size))
    except _Conflict:
        return None
    return copy


def _product(sizes: Iterable[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def _box(op: ir.Operation) -> dict[int, tuple[int, int, int, int]] | None:
    """Of a slice, by the source's axis: the result's axis, offset, size and step; None for a dynamic one."""
    if len(op.operands) > 1:
        return None
    offsets, sizes, steps = (list(op.attributes[f"static_{name}"]) for name in ("offsets", "sizes", "strides"))
    result = list(op.results[0].type.shape)
    box: dict[int, tuple[int, int, int, int]] = {}
    axis = 0
    for source, size in enumerate(sizes):
        if axis < len(result) and result[axis] == size:
            box[source] = axis, offsets[source], size, steps[source]
            axis += 1
        elif size != 1:
            return None
    return box if axis == len(result) else None


@dataclass(frozen=True)
class _Space:
    """Along which axes the values of an operation meet.

    Attributes:
        values: operands and results, with a letter for each axis; axes of equal letters meet. A letter that no other
            axis has is not cut.
        reduced: letters that the result does not have.
        fixed: letters along which nothing can be cut.
        sums: whether what is reduced is summed, from zero.
    """

    values: tuple[tuple[ir.Value, tuple[str, ...]], ...]
    reduced: frozenset[str]
    fixed: frozenset[str]
    sums: bool

    @property
    def letters(self) -> set[str]:
        return {letter for _, letters in self.values for letter in letters}

    def size(self, letter: str) -> int:
        """Elements along a letter."""
        return next(int(v.type.shape[ls.index(letter)]) for v, ls in self.values if letter in ls)


_PARALLEL = frozenset({"H", "Hkv", "O", "B"})
_SUMMED = frozenset({"I"})


def _space_of(op: ir.Operation) -> _Space:
    """Raises _Conflict for an operation of which nothing is known."""
    if op.name.startswith("kv."):
        return _space_of_kv(op)
    if op.name.startswith("linalg."):
        return _space_of_linalg(op)
    tensors = [v for v in (*op.operands, *op.results) if isinstance(v.type, ir.RankedTensorType)]
    if op.name.partition(".")[0] in ("arith", "math") and len({tuple(v.type.shape) for v in tensors}) == 1:
        letters = tuple(f"d{axis}" for axis in range(tensors[0].type.rank))
        return _Space(tuple((value, letters) for value in tensors), frozenset(), frozenset(), True)
    raise _Conflict


def _space_of_kv(op: ir.Operation) -> _Space:
    spec = kv.spec_of_op(op)
    named = zip((*spec.inputs, *spec.results), (*op.operands, *op.results), strict=True)
    values = tuple((value, spec.operands[name].dims) for name, value in named if name in spec.operands)
    letters = {letter for _, dims in values for letter in dims}
    reduced = letters & _SUMMED if spec.record.op == "expert_product" else set()
    return _Space(values, frozenset(reduced), frozenset(letters - _PARALLEL - reduced), True)


def _space_of_linalg(op: ir.Operation) -> _Space:
    maps = [ir.AffineMapAttr(attribute).value for attribute in linalg.get_indexing_maps(op)]
    values = list(zip(op.operands, map(_letters, maps), strict=True))
    written = values[-1][1]
    values += [(result, written) for result in op.results]
    fixed = {f"d{dim}" for affine in maps for e in affine.results for dim in _composite(e)}
    indexed = {inner.results[0]: f"d{inner.attributes['dim'].value}" for inner in walk(op) if inner.name == "linalg.index"}
    for inner in walk(op):
        places = list(inner.operands)[1:] if inner.name == "tensor.extract" else []
        if places:
            letters = tuple(indexed.get(place, f"?{number}") for number, place in enumerate(places))
            values.append((inner.operands[0], letters))
            fixed |= {letter for letter in letters if letter.startswith("?")}
        else:
            fixed |= {indexed[value] for value in inner.operands if value in indexed}
    tensors = tuple((v, letters) for v, letters in values if isinstance(v.type, ir.RankedTensorType))
    reduced = {letter for _, letters in tensors for letter in letters} - set(written) - fixed
    return _Space(tensors, frozenset(reduced), frozenset(fixed), is_contraction(op) or _is_sum(op))


def _letters(affine: ir.AffineMap) -> tuple[str, ...]:
    """A letter for each axis that a map reads: that of the dimension, or one of its own."""
    return tuple(
        f"d{ir.AffineDimExpr(e).position}" if isinstance(e, ir.AffineDimExpr) else f"c{number}"
        for number, e in enumerate(affine.results)
    )


def _dims(attribute: ir.Attribute) -> list[int]:
    return [ir.AffineDimExpr(e).position for e in ir.AffineMapAttr(attribute).value.results]


def _composite(expression: Any) -> Iterator[int]:
    """The dimensions in an expression that is neither a dimension nor a constant."""
    if isinstance(expression, ir.AffineBinaryExpr):
        for side in (expression.lhs, expression.rhs):
            yield from [ir.AffineDimExpr(side).position] if isinstance(side, ir.AffineDimExpr) else _composite(side)


def _lookups(op: ir.Operation) -> bool:
    """Whether an operation looks rows up in a table."""
    return any(inner.name == "tensor.extract" for inner in walk(op))


def _is_sum(op: ir.Operation) -> bool:
    """Whether a linalg.generic adds something to its result, which was zero."""
    if op.name != "linalg.generic" or len(op.results) != 1:
        return False
    block = op.regions[0].blocks[0]
    *_, last = block.operations
    total = producer(last.operands[0])
    return total is not None and total.name == "arith.addf" and block.arguments[-1] in list(total.operands) and _is_zero(op.operands[-1])


def _is_zero(value: ir.Value) -> bool:
    op = producer(value)
    filler = fill_value(op) if op is not None else None
    source = producer(filler) if filler is not None else None
    return source is not None and source.name == "arith.constant" and ir.FloatAttr(source.attributes["value"]).value == 0


# --------------------------------------------------------------------------------------------------- what is changed


class _Rewriter:
    """Gives the values of a function their sizes on a rank, and puts collectives where parts of sums are."""

    def __init__(self, function: Any, cuts: Mapping[ir.Value, Cut], ranks: int) -> None:
        self.function, self.ranks = function, ranks
        self.values = [*function.arguments, *(r for op in function.entry_block.operations for r in op.operation.results)]
        self.cuts = {value: cuts[value] for value in self.values if value in cuts}
        self.ops = [op.operation for op in function.entry_block.operations]

    def rewrite(self) -> None:
        if not self.cuts:
            return
        spaces = {index: _space_of(op) for index, op in enumerate(self.ops) if self._meets(op)}
        for index, space in spaces.items():
            self._resize_made_anew(self.ops[index], space)
        partial: set[ir.Value] = set()
        summed: list[ir.Value] = []
        for index, op in enumerate(self.ops):
            if op.name == "tensor.extract_slice":
                self._resize_slice(op)
            if op.name == "tensor.expand_shape" and op.results[0] in self.cuts:
                shape = self.cuts[op.results[0]].local_shape(op.results[0].type.shape)
                op.attributes["static_output_shape"] = ir.DenseI64ArrayAttr.get(shape)
            parts = [value for value in op.operands if value in partial]
            if parts and _keeps_parts(op, partial):
                partial.update(op.results)
                continue
            for value in parts:
                summed.append(value)
                partial.discard(value)
            space = spaces.get(index)
            if space is not None and self._sums_parts(space):
                partial.update(op.results)
        for value, cut in self.cuts.items():
            value.set_type(ir.RankedTensorType.get(cut.local_shape(value.type.shape), value.type.element_type))
        for value in dict.fromkeys(summed):
            self._reduce(value)
        self._gather_results()
        self._describe()

    def _meets(self, op: ir.Operation) -> bool:
        touched = any(value in self.cuts for value in (*op.operands, *op.results))
        captured = op.name == "linalg.generic" and any(v in self.cuts for inner in walk(op) for v in inner.operands)
        return (touched or captured) and op.name not in _VIEWS and op.name != "func.return"

    def _sums_parts(self, space: _Space) -> bool:
        cut = [letters[self.cuts[value].axis] for value, letters in space.values if value in self.cuts]
        return any(letter in space.reduced for letter in cut)

    def _resize_made_anew(self, op: ir.Operation, space: _Space) -> None:
        """Tensors that are made anew (empty, filled) are made in the size of what they meet."""
        cuts = {letters[self.cuts[v].axis]: self.cuts[v] for v, letters in space.values if v in self.cuts}
        for index, value in enumerate(op.operands):
            source = producer(value)
            if source is None or not isinstance(value.type, ir.RankedTensorType) or not is_rematerialised(source):
                continue
            letters = next(letters for other, letters in space.values if other == value)
            shape = [cuts[letter].local if letter in cuts else size
                     for letter, size in zip(letters, value.type.shape, strict=True)]  # fmt: skip
            if shape != list(value.type.shape):
                with ir.InsertionPoint(op), op.location:
                    op.operands[index] = _resized(source, shape)

    def _resize_slice(self, op: ir.Operation) -> None:
        source, result = op.operands[0], op.results[0]
        if source not in self.cuts:
            return
        cut, box = self.cuts[source], _box(op)
        assert box is not None
        offsets, sizes, steps = (list(op.attributes[f"static_{name}"]) for name in ("offsets", "sizes", "strides"))
        axis, offset, size, step = box[cut.axis]
        begin = 0 if step > 1 else offset
        ahead = _window(cut.segments, 0, begin) if begin else []
        inside = _window(cut.segments, begin, size * step)
        offsets[cut.axis] = sum(segment.local for segment in ahead) + (offset if step > 1 else 0)
        sizes[cut.axis] = sum(segment.local for segment in inside) // step
        for name, numbers in (("offsets", offsets), ("sizes", sizes)):
            op.attributes[f"static_{name}"] = ir.DenseI64ArrayAttr.get(numbers)
        if result not in self.cuts:  # a segment that every rank has whole
            assert sizes[cut.axis] == result.type.shape[axis]

    def _reduce(self, value: ir.Value) -> None:
        with ir.InsertionPoint.after(producer(value)), producer(value).location:
            total = shard.all_reduce(value.type, GRID, value, grid_axes=_axes())
        value.replace_all_uses_except(total, total.owner.operation)
        count("sums over ranks")

    def _gather_results(self) -> None:
        terminator = self.function.entry_block.operations[len(self.function.entry_block.operations) - 1].operation
        for index, value in enumerate(terminator.operands):
            cut = self.cuts.get(value)
            if cut is None:
                continue
            with ir.InsertionPoint(terminator), value.owner.location:
                type_ = ir.RankedTensorType.get(
                    [*value.type.shape[: cut.axis], cut.size, *value.type.shape[cut.axis + 1 :]], value.type.element_type
                )
                terminator.operands[index] = shard.all_gather(type_, GRID, value, cut.axis, grid_axes=_axes())
            count("gatherings")

    def _describe(self) -> None:
        attributes = list(self.function.attributes["arg_attrs"])
        for index, value in enumerate(self.function.arguments):
            if value in self.cuts:
                entries = {entry.name: entry.attr for entry in ir.DictAttr(attributes[index])}
                attributes[index] = ir.DictAttr.get({**entries, CUT: ir.StringAttr.get(str(self.cuts[value]))})
        self.function.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
        types = [value.type for value in self.function.arguments]
        type_ = ir.FunctionType.get(types, list(self.function.type.results))
        self.function.attributes["function_type"] = ir.TypeAttr.get(type_)


def _keeps_parts(op: ir.Operation, partial: set[ir.Value]) -> bool:
    """Whether an operation of parts of sums gives parts of a sum: views, sums of parts, products with whole numbers."""
    if op.name in _VIEWS - {"tensor.concat"} or op.name == "linalg.transpose":
        return True
    if op.name != "linalg.generic":
        return False
    block = op.regions[0].blocks[0]
    inside = {a for a, v in zip(block.arguments, op.operands, strict=True) if v in partial}
    sums = _is_sum(op)
    for inner in block.operations:
        operation = inner.operation
        which = [value in inside for value in operation.operands]
        if operation.name == "linalg.yield":
            return all(which)
        linear = operation.name in ("arith.extf",) or (operation.name == "arith.mulf" and sum(which) == 1)
        linear |= operation.name == "arith.addf" and (all(which) or (sums and block.arguments[-1] in list(operation.operands)))
        if any(which):
            if not linear:
                return False
            inside.update(operation.results)
    return False


def _resized(source: ir.Operation, shape: Sequence[int]) -> ir.Value:
    """A tensor made anew as `source` makes it, in another shape."""
    values: dict[ir.Value, ir.Value] = {}
    if source.name != "tensor.empty":
        for operand in source.operands:
            inner = producer(operand)
            if isinstance(operand.type, ir.RankedTensorType) and inner is not None:
                values[operand] = _resized(inner, shape)
    copy = clone_with(source, values)
    result: ir.Value = copy.results[0]
    result.set_type(ir.RankedTensorType.get(list(shape), result.type.element_type))
    return result


def _axes() -> ir.Attribute:
    """The grid's one axis."""
    return ir.Attribute.parse("array<i16: 0>")
