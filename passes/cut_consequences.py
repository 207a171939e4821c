"""Propagation of sharding: the consequences of cutting one axis of one value over ranks (used by the pass shard)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from torch_mlir import ir
from torch_mlir.dialects import linalg

from sscc.ir.builders import STORED, arguments_of
from sscc.ir.collectives import shape_of_grid
from sscc.ir.dialects import kv
from sscc.ir.rewriting import fill_value, functions, is_rematerialised, is_splat, producer
from sscc.ir.sharding import OPEN, Cut, Segment, merged, one_of_equal, placed, within
from sscc.passes.base import count
from sscc.passes.iteration_space import NotCuttable, Space, looks_up, space_of
from sscc.passes.tiling import axis_groups, dims_of, is_contraction

RESHAPED = frozenset({"tensor.expand_shape", "tensor.collapse_shape"})
VIEWS = RESHAPED | {"tensor.extract_slice", "tensor.concat"}
RECURRENCE = "kv.recurrence"
GATHERING = "sscc.gathering"
"""Marks where the pass shard gathers parts: a `tensor.cast` to the same type, whose operand may be cut and whose result
is whole."""


def decide_cuts(module: ir.Module, ranks: int) -> dict[ir.Value, Cut]:
    """Return the cuts of values. Values without a cut are whole on every rank."""
    program = CutProgram(module)
    cuts: dict[ir.Value, Cut] = {}
    for value, axis in program.candidates():
        if value in cuts or value.type.shape[axis] % ranks:
            continue
        try:
            cuts = Consequences(program, ranks, cuts).of(value, axis)
        except NotCuttable:
            count("cuts that are not possible")
        else:
            count("cuts")
    return cuts


class CutProgram:
    """The functions of a module, and the values that must be cut in the same way: a tensor that several functions take,
    and the results of attentions to the same K and V."""

    def __init__(self, module: ir.Module) -> None:
        self.functions = list(functions(module))
        self.roles: dict[ir.Value, str] = {}
        self.twins: dict[ir.Value, list[ir.Value]] = {}
        groups: dict[tuple[str, str], list[ir.Value]] = {}
        for function in self.functions:
            part = function.name.value.partition(".")[2]  # name within its entry: embed, layer.0, head
            for value, argument in zip(function.arguments, arguments_of(function), strict=True):
                self.roles[value] = argument.role
                if argument.role in STORED:
                    same = groups.setdefault((part, argument.name), [])
                    same.append(value)
                    self.twins[value] = same
            for op in function.entry_block.operations:
                if op.operation.name in kv.STATEFUL:
                    attributes = op.operation.attributes
                    source = attributes["shares" if "shares" in attributes else "layer"].value
                    entry = function.name.value.partition(".")[0]
                    what = "rows" if op.operation.name in kv.ATTENDING else op.operation.name
                    same = groups.setdefault((entry, f"{what} of {source}"), [])
                    same.append(op.operation.results[0])
                    self.twins[op.operation.results[0]] = same

    def candidates(self) -> Iterator[tuple[ir.Value, int]]:
        """Yield values and axes to cut: heads of attention and of recurrences, channels of convolutions, then results
        of products with weights."""
        ops = [op.operation for function in self.functions for op in function.entry_block.operations]
        stateful = [op for op in ops if op.name in kv.STATEFUL]
        yield from ((op.results[0], 1) for op in stateful if op.name in kv.ATTENDING)
        yield from ((op.results[0], 2) for op in stateful if op.name == RECURRENCE)
        yield from ((op.results[0], 1) for op in stateful if op.name not in {*kv.ATTENDING, RECURRENCE})
        for op in ops:
            if op.name == "kv.expert_product":
                yield op.results[0], 2
            elif is_contraction(op):
                dims = linalg.infer_contraction_dimensions(op)
                written = dims_of(list(linalg.get_indexing_maps(op))[-1])
                yield from ((op.results[0], written.index(dim)) for dim in dims.n)
            elif op.name == "linalg.generic" and looks_up(op):
                yield op.results[0], op.results[0].type.rank - 1


class Consequences:
    """The consequences of a cut, in addition to `cuts`."""

    def __init__(self, program: CutProgram, ranks: int, cuts: Mapping[ir.Value, Cut]) -> None:
        self.program, self.ranks = program, ranks
        self.cuts = dict(cuts)
        self.pending: deque[ir.Operation] = deque()
        self.touched: dict[ir.Operation, None] = {}

    def of(self, value: ir.Value, axis: int) -> dict[ir.Value, Cut]:
        """Return all cuts together with this one. Raises NotCuttable if one of its consequences is impossible."""
        self.require(value, axis, [Segment(value.type.shape[axis], self.ranks)])
        self._settle()
        # Segments without a known division are not divided. This has consequences, too.
        for known, cut in list(self.cuts.items()):
            if any(segment.parts == OPEN for segment in cut.segments):
                closed = [Segment(s.size, s.parts or 1) for s in cut.segments]
                self.require(known, cut.axis, closed)
        self._settle()
        for op in self.touched:
            self._check_sum(op)
        cuts = {value: cut for value, cut in self.cuts.items() if not cut.whole}
        if shape_of_grid(self.ranks, parts_in(cuts)) is None:
            raise NotCuttable
        return cuts

    def _settle(self) -> None:
        while self.pending:
            op = self.pending.popleft()
            self.touched[op] = None
            self._propagate(op)

    def require(self, value: ir.Value, axis: int, segments: Sequence[Segment]) -> None:
        """Cut `value`, unless it is already cut in this way. Raises NotCuttable if it cannot be."""
        source = producer(value)
        if source is not None and is_rematerialised(source):
            if any(segment.parts not in (OPEN, 1) for segment in segments) and not _in_any_size(source):
                raise NotCuttable
            return
        before = self.cuts.get(value)
        if before is None and all(segment.parts in (OPEN, 1) for segment in segments):
            return
        if before is not None and before.axis != axis:
            if all(segment.parts in (OPEN, 1) for segment in segments):
                return
            raise NotCuttable
        merged = self._merged(before.segments, segments) if before is not None else tuple(segments)
        if before is not None and merged == before.segments:
            return
        if any(segment.parts and segment.size % segment.parts for segment in merged):
            raise NotCuttable
        if source is None and self.program.roles[value] not in STORED:
            raise NotCuttable  # all ranks need the whole value
        self.cuts[value] = Cut(axis, merged)
        if source is not None:
            self.pending.append(source)
        self.pending += [_outermost(use.owner.operation) for use in value.uses]
        for twin in self.program.twins.get(value, ()):
            if twin != value:
                self.require(twin, axis, merged)

    def _merged(self, one: Sequence[Segment], other: Sequence[Segment]) -> tuple[Segment, ...]:
        try:
            return merged(one, other)
        except ValueError:
            raise NotCuttable from None

    def _propagate(self, op: ir.Operation) -> None:
        if op.name in RESHAPED:
            self._through_reshape(op)
        elif op.name == "tensor.extract_slice":
            self._through_slice(op)
        elif op.name == "tensor.concat":
            self._through_concat(op)
        elif GATHERING in op.attributes:
            if op.results[0] in self.cuts or len(self.cuts[op.operands[0]].segments) > 1:
                raise NotCuttable
        elif op.name == "func.return":
            cut = [self.cuts[value] for value in op.operands if value in self.cuts]
            several = any(len(item.segments) > 1 for item in cut)
            if cut and (several or "sscc.layer" in op.parent.operation.attributes):
                raise NotCuttable
        else:
            self._through_space(op)

    # Operations with axes along which operands and results correspond.

    def _through_space(self, op: ir.Operation) -> None:
        space = space_of(op)
        known: dict[str, tuple[Segment, ...]] = {}
        for value, letters in space.values:
            cut = self.cuts.get(value)
            if cut is not None:
                letter = letters[cut.axis]
                known[letter] = self._merged(known[letter], cut.segments) if letter in known else cut.segments
        for shared in space.letters & {"Hkv", "G"} if "H" in space.letters and op.name.startswith("kv.") else ():
            self._share_heads(space, known, shared)
        for letter, segments in known.items():
            if letter in space.fixed and any(segment.parts not in (OPEN, 1) for segment in segments):
                raise NotCuttable
            for value, letters in space.values:
                for axis, other in enumerate(letters):
                    if other == letter:
                        self.require(value, axis, segments)

    def _share_heads(self, space: Space, known: dict[str, tuple[Segment, ...]], shared: str) -> None:
        """Cut heads so that each is on the rank of the KV head, or of the recurrence's key, that it reads. If there are
        fewer KV heads than ranks, each is on several neighbouring ranks, which have parts of its query heads and all of
        its rows."""
        heads, kv_heads = space.size("H"), space.size(shared)
        if not known.keys() & {"H", shared}:
            return
        parts = min(kv_heads, self.ranks)
        if heads % self.ranks or kv_heads % parts or self.ranks % parts:
            raise NotCuttable
        for letter, size, number in (("H", heads, self.ranks), (shared, kv_heads, parts)):
            known[letter] = self._merged(known.get(letter, (Segment(size, OPEN),)), (Segment(size, number),))
            if len(known[letter]) > 1:
                raise NotCuttable  # a concatenation: heads would be separated from their KV heads

    def _check_sum(self, op: ir.Operation) -> None:
        """Raise NotCuttable if a cut axis is reduced by something other than a sum, or parts of it unequally often."""
        if op.name in VIEWS or op.name == "func.return" or GATHERING in op.attributes:
            return
        space = space_of(op)
        numbers = parts_of_sum(space, self.cuts)
        if len(numbers) > 1 or (numbers - {1} and not space.sums):
            raise NotCuttable

    # Views.

    def _through_reshape(self, op: ir.Operation) -> None:
        short, long = op.operands[0], op.results[0]
        if op.name == "tensor.collapse_shape":
            short, long = long, short
        groups = axis_groups(op)
        shape = long.type.shape
        if long in self.cuts:
            cut = self.cuts[long]
            axis = next(number for number, group in enumerate(groups) if cut.axis in group)
            before = math.prod(shape[a] for a in groups[axis] if a < cut.axis)
            behind = math.prod(shape[a] for a in groups[axis] if a > cut.axis)
            self.require(short, axis, [Segment(s.size * behind, s.parts) for s in cut.segments] * before)
        if short in self.cuts:
            cut = self.cuts[short]
            if not self._split(cut, long, groups[cut.axis]):
                self._refine(short, cut, [shape[a] for a in groups[cut.axis] if shape[a] > 1])

    def _split(self, cut: Cut, long: ir.Value, group: Sequence[int]) -> bool:
        """Cut the longer shape along one of the axes that `cut`'s axis expands to. Return False if none can be."""
        shape = long.type.shape
        for axis in group:
            before = math.prod(shape[a] for a in group if a < axis)
            behind = math.prod(shape[a] for a in group if a > axis)
            if shape[axis] == 1:
                continue
            copy = one_of_equal(cut.segments, before)
            if copy is not None and all(s.size % (behind * (s.parts or 1)) == 0 for s in copy):
                self.require(long, axis, [Segment(s.size // behind, s.parts) for s in copy])
                return True
        return False

    def _refine(self, value: ir.Value, cut: Cut, sizes: Sequence[int]) -> None:
        """Cut `value` in one segment per element of the first axis that it expands to. Raises NotCuttable if it already
        is."""
        step = cut.size // sizes[0]
        self.require(value, cut.axis, [Segment(step, OPEN)] * sizes[0])
        if self.cuts[value] == cut:
            raise NotCuttable

    def _through_slice(self, op: ir.Operation) -> None:
        source, result = op.operands[0], op.results[0]
        if source not in self.cuts and result not in self.cuts:
            return
        box = box_of(op)
        if box is None:
            raise NotCuttable
        if source in self.cuts:
            cut = self.cuts[source]
            if cut.axis not in box:
                if any(segment.parts not in (OPEN, 1) for segment in cut.segments):
                    raise NotCuttable
                return
            axis, offset, size, step = box[cut.axis]
            if step > 1 and (offset >= step or size * step != cut.size):
                raise NotCuttable
            begin = 0 if step > 1 else offset
            inside = within(cut.segments, begin, size * step)
            if any(segment.size % (step * (segment.parts or 1)) for segment in inside):
                raise NotCuttable
            self.require(source, cut.axis, placed(inside, begin, cut.size))
            self.require(result, axis, [Segment(s.size // step, s.parts) for s in inside])
        if result in self.cuts:
            cut = self.cuts[result]
            for source_axis, (axis, offset, _, step) in box.items():
                if axis == cut.axis:
                    scaled = [Segment(s.size * step, s.parts) for s in cut.segments]
                    begin, size = 0 if step > 1 else offset, source.type.shape[source_axis]
                    self.require(source, source_axis, placed(scaled, begin, size))

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
                    self.require(result, joined, placed(cut.segments, offset, result.type.shape[joined]))
                else:
                    self.require(value, joined, within(cut.segments, offset, size))
            offset += size


def parts_in(cuts: Mapping[ir.Value, Cut]) -> set[int]:
    """Return the numbers of parts that occur."""
    return {segment.parts for cut in cuts.values() for segment in cut.segments}


def parts_of_sum(space: Space, cuts: Mapping[ir.Value, Cut]) -> set[int]:
    """Return the numbers of parts in which the summed axes of an operation are cut; empty if they are whole."""
    known = [(cuts[value], letters) for value, letters in space.values if value in cuts]
    summed = [cut for cut, letters in known if letters[cut.axis] in space.reduced]
    return {segment.parts for cut in summed for segment in cut.segments}


def _outermost(op: ir.Operation) -> ir.Operation:
    """Return the operation of a function's top-level block that is or contains `op`."""
    while op.parent.operation.name != "func.func":
        op = op.parent.operation
    return op


def _in_any_size(op: ir.Operation) -> bool:
    """Return True if an operation creates a tensor that `resized` can create in another size."""
    return op.name == "tensor.empty" or fill_value(op) is not None or is_splat(op)


def box_of(op: ir.Operation) -> dict[int, tuple[int, int, int, int]] | None:
    """Return, for each source axis of a slice, the result's axis, offset, size and step; None for a dynamic slice."""
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
