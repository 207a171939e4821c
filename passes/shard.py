"""shard: one program for all ranks, each with a part of the heads, feed-forward, expert and vocabulary weights.

What: every rank runs the same program on its own tensors (single program, multiple data). An output axis of a weight is
cut in blocks, one per rank; values computed from it element by element are cut in the same way; and if a product sums
over a cut axis, each rank has a partial sum, which a collective adds up. Axes that cannot be divided are computed by
every rank.

Why: a step is limited by reading weights and rows of the cache, and ranks read their parts concurrently.

How it is decided: by the captured operations, not by names. A cut of one axis of one value has consequences: operands
that correspond along this axis are cut too, backwards to the weights and forwards to a product that sums over it. A cut
is made only if all of its consequences are possible: none may reach a value that all ranks need whole (the hidden
state, tables, positions), or an operation that mixes elements along the axis by anything but a sum. Heads of attention
are tried first, then the result of every product, in order.

Before, on two ranks::

    func.func private @decode.layer.0(%x: tensor<1x4xf32> {sscc.input = "hidden"},
        %up: tensor<8x4xf32> {sscc.weight = "up"}, %down: tensor<4x8xf32> {sscc.weight = "down"})
        -> (tensor<1x4xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
      %zero = arith.constant 0.0 : f32
      %e0 = tensor.empty() : tensor<1x8xf32>
      %z0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<1x8xf32>) -> tensor<1x8xf32>
      %a = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
          affine_map<(m, n, k) -> (m, n)>]
          ins(%x, %up : tensor<1x4xf32>, tensor<8x4xf32>) outs(%z0 : tensor<1x8xf32>) -> tensor<1x8xf32>
      %b = math.tanh %a : tensor<1x8xf32>
      %e1 = tensor.empty() : tensor<1x4xf32>
      %z1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<1x4xf32>) -> tensor<1x4xf32>
      %c = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
          affine_map<(m, n, k) -> (m, n)>]
          ins(%b, %down : tensor<1x8xf32>, tensor<4x8xf32>) outs(%z1 : tensor<1x4xf32>) -> tensor<1x4xf32>
      %d = arith.addf %x, %c : tensor<1x4xf32>
      return %d : tensor<1x4xf32>
    }

After, with `ranks=2`::

    shard.grid @ranks(shape = 2)
    func.func private @decode.layer.0(%hidden: .. %up: tensor<4x4xf32> {sscc.cut = "0:8/2", .. %down: .. "1:8/2", ..
      ..
      %a = linalg.matmul .. ins(%hidden, %up : tensor<1x4xf32>, tensor<4x4xf32>) outs(%zeros : tensor<1x4xf32>) ..
      %b = math.tanh %a : tensor<1x4xf32>
      %c = linalg.matmul .. ins(%b, %down : tensor<1x4xf32>, tensor<4x4xf32>) outs(%zeros : tensor<1x4xf32>) ..
      %sum = shard.all_reduce %c on @ranks grid_axes = [0] ..
      %d = arith.addf %hidden, %sum : tensor<1x4xf32>
      return %d : tensor<1x4xf32>

A product whose whole result is needed, by a norm or a choice, is cut too if that pays: each rank computes a part, and
the parts are gathered behind it. The decision compares the time saved in a decode step (the longer of reading the
weight and computing with it, except for a rank's own part) with the latency of a message and the time for sending a
rank's part.

Partial sums are exchanged as they are accumulated, in f32, and the sum is rounded once. With `sums=model` each rank
rounds its partial sum if the model rounds the sum, and sums that the model adds up before using them are exchanged
together: for a bf16 model this is half the bytes or less, at the cost of rounding each partial sum.

If a large sum is rounded before any other use, each rank adds up and rounds its part of it, along the first axis that
divides, and the rounded parts are gathered: `shard.reduce_scatter`, and `shard.all_gather` behind the rounding. The
bits are the same, and for bf16 a rank sends three quarters of the bytes. Two such sums that are added up next are added
up in parts, and gathered once. This is done if a link would take longer to send the rest than a message's latency: for
prompts and steps of many slots, not for a single token.

If there are fewer KV heads than ranks, each KV head is on several neighbouring ranks, which have parts of the query
heads that read it (`kv.head_parts`, from which thread-cache builds the collectives that keep their rows equal). Sums
over axes with fewer parts than ranks are over one rank per part, along the first axes of the grid of ranks.

When it does not apply: an axis that the number of ranks does not divide stays whole, and so do its weights; so do heads
of attention if neither of the numbers of KV heads and of ranks divides the other. A model in which nothing can be cut
is refused. A product whose whole result is needed stays whole if it takes less time than an exchange.

Preserves: every operation, its order and location; a rank computes a part of each cut value.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch_mlir import ir

from sscc.ir.builders import STORED, arguments_of
from sscc.ir.choices import SUMS
from sscc.ir.collectives import Peers, make_grid, shape_of_grid
from sscc.ir.dialects import kv
from sscc.ir.errors import ErrorKind, UnsupportedError, UsageError
from sscc.ir.levels import walk
from sscc.ir.rewriting import clone_with, functions, is_rematerialised, producer, resized
from sscc.ir.sharding import Cut, within
from sscc.ir.suggestions import check_choice
from sscc.passes.base import Pass, count
from sscc.passes.cut_consequences import GATHERING, VIEWS, box_of, decide_cuts, parts_in, parts_of_sum
from sscc.passes.gathered_products import cut_where_it_pays
from sscc.passes.iteration_space import Space, is_sum, space_of
from sscc.passes.scattered_sums import ScatteredSums, axis_of, gather_sums_once


class ShardErrors(ErrorKind):
    AFTER_ENTRIES = UsageError, "the pass shard changes arguments of functions: run it before build-entries"
    NOTHING_TO_CUT = UnsupportedError, "no part of this model can be sharded over {ranks} ranks: lower --tp"


@dataclass(frozen=True)
class Shard(Pass):
    name: ClassVar[str] = "shard"
    takes: ClassVar[tuple[str, ...]] = ("graph",)
    follows: ClassVar[tuple[str, ...]] = ("split-layers",)
    level: ClassVar[str] = "graph"

    ranks: int = 1
    sums: str = SUMS[0]

    def run(self, module: ir.Module) -> None:
        check_choice("sums", self.sums, SUMS)
        if any(op.name == "func.call" for op in walk(module)):
            raise ShardErrors.AFTER_ENTRIES()
        if self.ranks == 1:
            return
        cuts = cut_where_it_pays(module, self.ranks, decide_cuts(module, self.ranks))
        if not cuts:
            raise ShardErrors.NOTHING_TO_CUT(ranks=self.ranks)
        shape = shape_of_grid(self.ranks, parts_in(cuts))
        assert shape is not None  # `decide_cuts` makes only cuts that have a common grid
        make_grid(module, shape)
        split_tensors = _cut_apart(module, cuts)
        _note_parts(module, cuts)
        scattered = ScatteredSums.on(module, self.ranks)
        for function in functions(module):
            _Rewriter(module, function, cuts, split_tensors, scattered, self.sums == "model").rewrite()
            gather_sums_once(function)


def _note_parts(module: ir.Module, cuts: Mapping[ir.Value, Cut]) -> None:
    """Record on each attention with sharded heads the number of ranks over which its KV heads, or those of the layer
    whose K and V it shares, are cut."""
    attentions = [op for op in walk(module) if op.name in kv.ATTENDING and op.results[0] in cuts]
    keys = {
        op.attributes["layer"].value: cuts.get(kv.operand_of(op, "key"))
        for op in attentions
        if "shares" not in op.attributes
    }
    for op in attentions:
        cut = keys[op.attributes["shares" if "shares" in op.attributes else "layer"].value]
        kv.note_head_parts(op, 1 if cut is None else cut.segments[0].parts)


def _cut_apart(module: ir.Module, cuts: Mapping[ir.Value, Cut]) -> set[str]:
    """Return the names of stored tensors that different functions cut differently, such as an embedding that is also
    the head: each function gets a separate tensor."""
    ways: dict[str, set[str]] = {}
    for function in functions(module):
        for value, argument in zip(function.arguments, arguments_of(function), strict=True):
            if argument.role in STORED:
                ways.setdefault(argument.name, set()).add(str(cuts.get(value, "")))
    return {name for name, texts in ways.items() if len(texts) > 1}


class _Rewriter:
    """Rewriter of a function: values get their sizes on a rank, and collectives are inserted at partial sums. With
    `rounds` each rank rounds its partial sum if the sum would be rounded."""

    def __init__(
        self,
        module: ir.Module,
        function: Any,
        cuts: Mapping[ir.Value, Cut],
        split_tensors: Set[str],
        scattered: ScatteredSums,
        rounds: bool,
    ) -> None:
        self.module, self.function, self.split_tensors = module, function, split_tensors
        self.scattered, self.rounds = scattered, rounds
        results = [result for op in function.entry_block.operations for result in op.operation.results]
        self.values = [*function.arguments, *results]
        self.cuts = {value: cuts[value] for value in self.values if value in cuts}
        self.ops = [op.operation for op in function.entry_block.operations]

    def rewrite(self) -> None:
        if not self.cuts:
            return
        spaces = {index: space_of(op) for index, op in enumerate(self.ops) if self._meets(op)}
        for index, space in spaces.items():
            self._resize_made_anew(self.ops[index], space)
        partial: dict[ir.Value, int] = {}  # values that are partial sums, with the number of parts
        summed: dict[ir.Value, int] = {}
        for index, op in enumerate(self.ops):
            if op.name == "tensor.extract_slice":
                self._resize_slice(op)
            if op.name == "tensor.expand_shape" and op.results[0] in self.cuts:
                shape = self.cuts[op.results[0]].local_shape(op.results[0].type.shape)
                op.attributes["static_output_shape"] = ir.DenseI64ArrayAttr.get(shape)
            for value in op.operands:
                if value in partial and not all(self._keeps_parts(use.owner.operation, partial) for use in value.uses):
                    summed[value] = partial.pop(value)
            own = parts_of_sum(spaces[index], self.cuts) if index in spaces else set()
            own |= {partial[value] for value in op.operands if value in partial}
            if own:
                (parts,) = own
                partial |= dict.fromkeys(op.results, parts)
        for value, cut in self.cuts.items():
            value.set_type(ir.RankedTensorType.get(cut.local_shape(value.type.shape), value.type.element_type))
        for value, parts in summed.items():
            self._reduce(value, parts)
        self._gather_products()
        self._gather_results()
        self._describe()

    def _meets(self, op: ir.Operation) -> bool:
        touched = any(value in self.cuts for value in (*op.operands, *op.results))
        captured = op.name == "linalg.generic" and any(v in self.cuts for inner in walk(op) for v in inner.operands)
        views = op.name in VIEWS or op.name == "func.return" or GATHERING in op.attributes
        return (touched or captured) and not views

    def _keeps_parts(self, op: ir.Operation, partial: Mapping[ir.Value, int]) -> bool:
        """Return True if the op is linear, so that it can run on partial sums before they are reduced."""
        numbers = {partial[value] for value in op.operands if value in partial}
        whole = not any(value in self.cuts for value in (*op.operands, *op.results))
        return whole and len(numbers) == 1 and _is_linear(op, partial, self.rounds)

    def _resize_made_anew(self, op: ir.Operation, space: Space) -> None:
        """Give new tensors (empty, filled) the size of the values with which they are combined."""
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
                    op.operands[index] = resized(source, shape)

    def _resize_slice(self, op: ir.Operation) -> None:
        source, result = op.operands[0], op.results[0]
        if source not in self.cuts:
            return
        cut, box = self.cuts[source], box_of(op)
        assert box is not None
        offsets, sizes = (list(op.attributes[f"static_{name}"]) for name in ("offsets", "sizes"))
        axis, offset, size, step = box[cut.axis]
        begin = 0 if step > 1 else offset
        ahead = within(cut.segments, 0, begin) if begin else []
        inside = within(cut.segments, begin, size * step)
        offsets[cut.axis] = sum(segment.local for segment in ahead) + (offset if step > 1 else 0)
        sizes[cut.axis] = sum(segment.local for segment in inside) // step
        for name, numbers in (("offsets", offsets), ("sizes", sizes)):
            op.attributes[f"static_{name}"] = ir.DenseI64ArrayAttr.get(numbers)
        if result not in self.cuts:  # segments that every rank has whole
            assert sizes[cut.axis] == result.type.shape[axis]

    def _reduce(self, value: ir.Value, parts: int) -> None:
        source = producer(value)
        assert source is not None  # an argument is never a partial sum
        peers = Peers.with_each_part(self.module, parts)
        count("sums over ranks")
        rounding = self.scattered.rounding_of(value, peers)
        if rounding is not None:
            self._scatter(value, peers, rounding)
            return
        with ir.InsertionPoint.after(source), source.location:
            total = peers.summed(value)
        value.replace_all_uses_except(total, total.owner.operation)

    def _scatter(self, value: ir.Value, peers: Peers, rounding: ir.Operation) -> None:
        """Round each rank's part of a sum, and gather the rounded parts."""
        axis, made_anew = axis_of(value, peers), producer(rounding.operands[1])
        assert axis is not None  # checked by `rounding_of`
        assert made_anew is not None  # a rounding writes to a new tensor
        with ir.InsertionPoint(rounding), rounding.location:
            piece = peers.scattered_sum(value, axis)
            new = {value: piece, rounding.operands[1]: resized(made_anew, piece.type.shape)}
            rounded = clone_with(rounding, new).results[0]
            rounded.set_type(ir.RankedTensorType.get(piece.type.shape, rounded.type.element_type))
            whole = peers.gathered(rounded, axis)
        rounding.results[0].replace_all_uses_with(whole)
        self.ops.remove(rounding)
        rounding.erase()
        count("sums in parts")

    def _gather_products(self) -> None:
        for op in [op for op in self.ops if GATHERING in op.attributes]:
            with ir.InsertionPoint(op), op.location:
                whole = self._gathered(op.operands[0])
            op.results[0].replace_all_uses_with(whole)
            op.erase()

    def _gathered(self, value: ir.Value) -> ir.Value:
        cut = self.cuts[value]
        (segment,) = cut.segments
        count("gatherings")
        return Peers.with_each_part(self.module, segment.parts).gathered(value, cut.axis)

    def _gather_results(self) -> None:
        terminator = self.function.entry_block.operations[len(self.function.entry_block.operations) - 1].operation
        for index, value in enumerate(terminator.operands):
            if value in self.cuts:
                with ir.InsertionPoint(terminator), value.owner.location:
                    terminator.operands[index] = self._gathered(value)

    def _describe(self) -> None:
        arguments = arguments_of(self.function)
        for index, (value, argument) in enumerate(zip(self.function.arguments, arguments, strict=True)):
            if value in self.cuts:
                cut = self.cuts[value]
                name = f"{argument.name}.cut{cut.axis}" if argument.name in self.split_tensors else argument.name
                sources = argument.made_of if name != argument.name else argument.sources
                arguments[index] = replace(argument, name=name, sources=sources, cut=str(cut))
        self.function.attributes["arg_attrs"] = ir.ArrayAttr.get([argument.attributes() for argument in arguments])
        types = [value.type for value in self.function.arguments]
        type_ = ir.FunctionType.get(types, list(self.function.type.results))
        self.function.attributes["function_type"] = ir.TypeAttr.get(type_)


def _is_linear(op: ir.Operation, partial: Mapping[ir.Value, int], rounds: bool) -> bool:
    """Return True if an operation on partial sums is a view, a sum of partial sums, or a product with whole values, or,
    with `rounds`, one of these and rounding."""
    if op.name in VIEWS - {"tensor.concat"} or op.name == "linalg.transpose":
        return True
    if op.name != "linalg.generic":
        return False
    block = op.regions[0].blocks[0]
    inside = {a for a, v in zip(block.arguments, op.operands, strict=True) if v in partial}
    sums = is_sum(op)
    always = {"arith.extf", "arith.truncf"} if rounds else {"arith.extf"}
    for inner in block.operations:
        operation = inner.operation
        which = [value in inside for value in operation.operands]
        if operation.name == "linalg.yield":
            return all(which)
        linear = operation.name in always or (operation.name == "arith.mulf" and sum(which) == 1)
        onto_sum = sums and block.arguments[-1] in list(operation.operands)
        linear |= operation.name == "arith.addf" and (all(which) or onto_sum)
        if any(which):
            if not linear:
                return False
            inside.update(operation.results)
    return False
