"""form-stages: the operations of a kernel become stages joined by streams.

What: operations are grouped, and each group becomes the body of a stage, a function that is called in place of the
group's last operation; equal bodies are one function. From the last operation backwards, each operation joins the
stage that reads its result, if there is only one (looking through views, which move no data). So a product is grouped
with the operations on its result (bias, rotary embedding, gating, residual), two products whose results are combined
(gate and up) become one stage, and a norm is a stage. Inside a body, element-wise operations are fused.

Values from which positions of a prompt are selected may be too large for the chip (a rule's attention matrix). The
operations that compute such a value are duplicated for each smaller value that is computed from it, and form one stage
with it (`df.bounded`), which tile-stages cuts; a sum over the cut axis becomes partial sums and their sum.

Why: values inside a stage stay in the pipeline of a compute unit; a value between stages needs a buffer.

Before::

    func.func private @k(%h: tensor<2x8xf32> {sscc.input = "h"}, %w: tensor<8x9xf32> {sscc.weight = "w"},
        %r: tensor<2x9xf32> {sscc.input = "r"}) -> (tensor<2x9xf32> {sscc.output = "y"}) attributes {sscc.kernel} {
      %e = tensor.empty() : tensor<2x8xf32>
      %a = linalg.exp ins(%h : tensor<2x8xf32>) outs(%e : tensor<2x8xf32>) -> tensor<2x8xf32>
      %zero = arith.constant 0.0 : f32
      %s = tensor.empty() : tensor<2x9xf32>
      %z = linalg.fill ins(%zero : f32) outs(%s : tensor<2x9xf32>) -> tensor<2x9xf32>
      %p = linalg.matmul ins(%a, %w : tensor<2x8xf32>, tensor<8x9xf32>) outs(%z : tensor<2x9xf32>)
        -> tensor<2x9xf32> loc("layers.0.mlp.proj")
      %y = linalg.add ins(%p, %r : tensor<2x9xf32>, tensor<2x9xf32>) outs(%s : tensor<2x9xf32>) -> tensor<2x9xf32>
      return %y : tensor<2x9xf32>
    }

After::

    func.func private @k(%h: .. "h"}, %w: .. "w"}, %r: .. "r"}) -> (.. "y"}) attributes {sscc.kernel} {
      ..
      %a = call @body.exp(%h) {df.stage = "exp"} : (tensor<2x8xf32>) -> tensor<2x8xf32>
      ..
      %y = call @body.proj(%a, %w, %r) {df.stage = "proj"} : (tensor<2x8xf32>, tensor<8x9xf32>, tensor<2x9xf32>) -> ..
      return %y : tensor<2x9xf32>
    }
    func.func private @body.exp(%h: .. "x0"}) -> (.. "y0"}) attributes {df.body} {
      ..
    func.func private @body.proj(%a: .. "x0"}, %w: .. "x1"}, %r: .. "x2"}) -> (.. "y0"}) attributes {df.body} {
      ..
      %p = linalg.generic .. ins(%a, %w : ..
      ..
      %y = linalg.generic .. ins(%p, %r : ..
      ..
      return %y : tensor<2x9xf32>
    }

After, with `fuse=false`::

    func.func private @k(%h: .. "h"}, %w: .. "w"}, %r: .. "r"}) -> (.. "y"}) attributes {sscc.kernel} {
      ..
      %a = call @body.exp(%h) {df.stage = "exp"} ..
      ..
      %p = call @body.proj(%a, %w) {df.stage = "proj"} ..
      %y = call @body.addf(%p, %r) {df.stage = "addf"} ..
      return %y : tensor<2x9xf32>
    }

When it does not apply: a value that two stages read, or that a product reads, is a stream, and its producer is a
separate stage. Operations of the `kv` dialect are stages by themselves, except for one that writes a part of its result
(the scores of a prompt's positions): it joins the operation that reads this part, since streams are filled completely.
An operation does not join a product's stage if then no axis of the result would cut the product's weights into tiles (a
norm of the product's result needs all of it).
If no strides can express a reshape of a transposed value, the transposition becomes a stage that copies; such a reshape
of another strided view is refused. A stage reads memory in its own layout: a view that is strided outside of the stage
(a part of a stream) is reshaped outside.

Preserves: the order of operations and of every sum; locations. With `fuse=false` (-O0) every operation is a stage.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import func

from sscc.ir.builders import Argument, elementwise, make_function
from sscc.ir.collectives import COLLECTIVES
from sscc.ir.dialects import df, kv
from sscc.ir.levels import get_target, walk
from sscc.ir.locations import module_path
from sscc.ir.rewriting import ValueMap, clone_with, functions, is_rematerialised, outer_values, producer
from sscc.ir.sizes import dense_strides
from sscc.ir.structure import structure
from sscc.ir.views import MOVED, RESHAPES, SLICES, computes, is_view, permutation_of, reshaped_strides, root_of
from sscc.passes.base import Pass, count, run_upstream
from sscc.passes.large_values import recompute
from sscc.passes.outline_kernels import KERNEL, verb
from sscc.passes.plain_kernels import is_plain
from sscc.passes.tiling import (
    WHOLE,
    NotTileable,
    is_cast,
    is_contraction,
    is_dequantization,
    is_reduction,
    tile_back,
)

GENERALISE = "builtin.module(func.func(linalg-generalize-named-ops))"
FUSE = "func.func(linalg-fuse-elementwise-ops,canonicalize,cse)"


@dataclass(frozen=True)
class FormStages(Pass):
    name: ClassVar[str] = "form-stages"
    takes: ClassVar[tuple[str, ...]] = ("kernels", "fused")
    follows: ClassVar[tuple[str, ...]] = ("merge-equal-kernels", "fuse-compressed-attention")
    level: ClassVar[str] = "fused"

    fuse: bool = True

    def run(self, module: ir.Module) -> None:
        run_upstream(module, GENERALISE, "generalisation of kernels")
        bodies, room = StageBodies(module), int(get_target(module).nearest.capacity.value)
        for kernel in functions(module):
            if KERNEL in kernel.attributes:
                fuse = self.fuse and not is_plain(kernel)
                if fuse:
                    _rearrange_where_needed(kernel)
                for block in body_blocks(kernel):
                    for members in recompute(block, room) if fuse else ():
                        group = _Groups(block).of(members)
                        body = StageBody.of(bodies.make_stage(group, stage_name(group))).function
                        body.attributes[df.BOUNDED] = ir.UnitAttr.get()
                    for group in _Groups(block).joined() if fuse else _Groups(block).single():
                        bodies.make_stage(group, stage_name(group))
        if self.fuse:
            fused = [body for body in functions(module) if df.BODY in body.attributes]
            if any(df.BOUNDED in body.attributes for body in fused):
                run_upstream(module, GENERALISE, "generalisation of sums of parts")
            calls = calls_of_bodies(module)
            for body in fused:
                _fuse(body)
                look_outside(body, calls[body.name.value], all_shapes=df.BOUNDED in body.attributes)


def calls_of_bodies(module: ir.Module) -> Mapping[str, list[ir.Operation]]:
    """Return the stages that call each body, by the body's name, in program order."""
    calls: dict[str, list[ir.Operation]] = defaultdict(list)
    for function in functions(module):
        for op in filter(df.is_stage, walk(function)):
            calls[op.attributes["callee"].value].append(op)
    return calls


def _fuse(body: Any) -> None:
    """Fuse element-wise operations. During fusion the numbers of quantized weights are returned from the body, and
    their readers read arguments instead, because fusion would move the reshapes of weights into the products."""
    weights = [_as_matrix(op.results[0]) for op in walk(body) if is_dequantization(op)]
    if not weights:
        run_upstream(body, FUSE, "fusion of element-wise operations")
        return
    block, results = body.entry_block, StageBody(body).returned
    inputs = list(body.type.inputs)
    for weight in weights:
        weight.replace_all_uses_with(block.add_argument(weight.type, body.location))
    _sign(body, [*inputs, *(weight.type for weight in weights)], [*results, *weights])
    run_upstream(body, FUSE, "fusion of element-wise operations")
    returned = StageBody(body).returned
    for index in reversed(range(len(weights))):
        block.arguments[len(inputs) + index].replace_all_uses_with(returned[len(results) + index])
        block.erase_argument(len(inputs) + index)
    _sign(body, inputs, returned[: len(results)])


def _as_matrix(value: ir.Value) -> ir.Value:
    """Return the numbers of a quantized weight as its readers see them: a matrix, or one per expert."""
    readers = [use.owner.operation for use in value.uses]
    return readers[0].results[0] if readers and readers[0].name == "tensor.collapse_shape" else value


def look_outside(body: Any, calls: Sequence[ir.Operation], all_shapes: bool) -> None:
    """Move reshapes of strided inputs out of a body.

    Fusion moves a reshape to the front of the fused operation, and so to an input of the body; but a tile of a matrix
    in memory is strided. For inputs that are strided outside of the body, or for all with `all_shapes`, each of the
    `calls` reshapes the input instead (see `_Groups.with_views`). A reshape that no strides can express stays in the
    body, which then copies its input.
    """
    block = body.entry_block
    moved = [
        (index, op)
        for index, argument in enumerate(block.arguments)
        for op in [use.owner.operation for use in argument.uses]
        if op.name in RESHAPES
        and (all_shapes or not all(_lies_dense(call.operands[index]) for call in calls))
        and all(_strides_of(call.operands[index], op.results[0].type.shape) is not None for call in calls)
    ]
    if not moved:
        return
    operands = [list(call.operands) for call in calls]
    for index, op in moved:
        for call, shown in zip(calls, operands, strict=True):
            with ir.InsertionPoint(call):
                shown.append(clone_with(op, {op.operands[0]: shown[index]}).results[0])
        op.results[0].replace_all_uses_with(block.add_argument(op.results[0].type, body.location))
        op.erase()
    for index in sorted({index for index, _ in moved}, reverse=True):
        if not any(True for _ in block.arguments[index].uses):
            block.erase_argument(index)
            for shown in operands:
                del shown[index]
    _sign(body, [argument.type for argument in block.arguments], StageBody(body).returned)
    for call, shown in zip(calls, operands, strict=True):
        with ir.InsertionPoint(call), call.location:
            new_call = func.CallOp([result.type for result in call.results], body.name.value, shown).operation
        new_call.attributes[df.STAGE] = call.attributes[df.STAGE]
        for old, new in zip(call.results, new_call.results, strict=True):
            old.replace_all_uses_with(new)
        call.erase()


def _sign(body: Any, inputs: Sequence[ir.Type], values: Sequence[ir.Value]) -> None:
    """Make a body take `inputs` and return `values`."""
    terminator = list(body.entry_block.operations)[-1].operation
    with ir.InsertionPoint(terminator), terminator.location:
        func.ReturnOp(list(values))
    terminator.erase()
    results = [value.type for value in values]
    body.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(list(inputs), results))
    for key, role, letter, types in (("arg_attrs", "input", "x", inputs), ("res_attrs", "output", "y", results)):
        described = [Argument(role, f"{letter}{index}", type_) for index, type_ in enumerate(types)]
        body.attributes[key] = ir.ArrayAttr.get([argument.attributes() for argument in described])


@dataclass(frozen=True)
class StageBody:
    """A stage's body function, with facts about its parameters."""

    function: Any

    @classmethod
    def of(cls, call: ir.Operation) -> StageBody:
        """Return the body that a stage calls."""
        name = call.attributes["callee"].value
        module = call.parent.operation
        while module.name != "builtin.module":
            module = module.parent.operation
        return cls(ir.SymbolTable(module)[name])

    @property
    def all_ops(self) -> list[ir.Operation]:
        """The operations in order, without the return."""
        return [op.operation for op in self.function.entry_block.operations][:-1]

    @property
    def ops(self) -> list[ir.Operation]:
        """The operations that compute or are views: no constants."""
        return [op for op in self.all_ops if op.name != "arith.constant"]

    @property
    def returned(self) -> list[ir.Value]:
        return list(list(self.function.entry_block.operations)[-1].operation.operands)

    @property
    def tied(self) -> dict[int, int]:
        """The operand that each result updates in place, by result."""
        operand_of_result = {}
        arguments = list(self.function.arguments)
        for op in self.all_ops:
            for result, operand in kv.ties_of(op).items():
                if op.results[result] in self.returned and op.operands[operand] in arguments:
                    operand_of_result[self.returned.index(op.results[result])] = arguments.index(op.operands[operand])
        return operand_of_result

    @property
    def fetched(self) -> set[int]:
        """Operands that are accessed in memory, without a stream: updated in place, or fetched row by row."""
        arguments = list(self.function.arguments)
        inside = [value for op in self.all_ops for index, value in enumerate(op.operands)
                  if index in kv.fetched_by(op)]  # fmt: skip
        inside += [op.operands[0] for op in walk(self.function) if op.name == "tensor.extract"]
        roots = [root for value in inside for root in _made_of(value)]
        return {arguments.index(value) for value in roots if value in arguments} | set(self.tied.values())


def _made_of(value: ir.Value) -> list[ir.Value]:
    """Return the value that another one is a part of, through views; of a dequantized weight its stored parts."""
    root = root_of(value)
    op = producer(root)
    if op is None or not is_dequantization(op):
        return [root]
    return [part for operand in op.operands for part in _made_of(operand)]


def body_blocks(kernel: Any) -> list[ir.Block]:
    """Return the blocks whose operations are stages: the function's, and those of its loops and branches."""
    regions = [kernel.operation, *(op for op in walk(kernel) if op.name in ("scf.for", "scf.if"))]
    return [block for op in regions for region in op.regions for block in region.blocks]


def _is_algorithm(op: ir.Operation) -> bool:
    """Return True for an operation of the `kv` dialect that is a stage by itself."""
    return op.name.startswith("kv.") and not is_dequantization(op)


def stage_name(ops: Sequence[ir.Operation]) -> str:
    """Return a readable name: the last module of the most important operation (attention, a product, a reduction), or
    the operation's name."""
    kinds = (_is_algorithm, is_contraction, is_reduction)
    named = next((group for group in ([op for op in ops if kind(op)] for kind in kinds) if group), ops[-1:])
    paths = [module_path(op.location).rpartition(".")[2] for op in named]
    known = [path for path in dict.fromkeys(paths) if path and not path.isdigit()]
    if _is_algorithm(named[-1]):
        known = [named[-1].name.partition(".")[2]]
    return "+".join(known) or verb(named[0])


# ------------------------------------------------------------------------------------------------ rearranged copies


def _rearrange_where_needed(kernel: Any) -> None:
    """Copy where a strided tensor has a reshape that no strides can express: the transposition before it becomes a
    copy, or the part that a slice shows is copied."""
    strides: dict[ir.Value, tuple[int, ...]] = {}
    for op in walk(kernel):
        if not op.results or not is_view(op) or op.name == "tensor.insert_slice":
            continue
        source, result = op.operands[0], op.results[0]
        known = strides.get(source, dense_strides(source.type.shape))
        permutation = permutation_of(op)
        if permutation is not None:
            strides[result] = tuple(known[axis] for axis in permutation)
        elif op.name == "tensor.extract_slice":
            strides[result] = _kept_strides(op, known)
        else:
            new_strides = reshaped_strides(source.type.shape, known, result.type.shape)
            if new_strides is None:
                _move(producer(source), op)
                new_strides = dense_strides(result.type.shape)
            strides[result] = new_strides


def _kept_strides(op: ir.Operation, known: Sequence[int]) -> tuple[int, ...]:
    sizes, steps = (list(op.attributes[f"static_{name}"]) for name in ("sizes", "strides"))
    result = list(op.results[0].type.shape)
    kept: list[int] = []
    for size, step, stride in zip(sizes, steps, known, strict=True):
        if len(kept) < len(result) and size == result[len(kept)]:
            kept.append(stride * step)
    return tuple(kept)


def _move(source: ir.Operation | None, reshape: ir.Operation) -> None:
    """Make the input of a reshape contiguous: a transposition becomes a copy, any other view is copied."""
    if source is None or permutation_of(source) is None:
        value = reshape.operands[0]
        with ir.InsertionPoint(reshape), reshape.location:
            copied = elementwise([value], value.type, lambda element: element)
        reshape.operands[0] = copied
        source = producer(copied)
        assert source is not None
    source.attributes[MOVED] = ir.UnitAttr.get()


# ----------------------------------------------------------------------------------------------------------- groups


class _Groups:
    """The operations of a block that compute, joined into stages.

    From the last operation to the first, each joins the stage that reads its result, if there is only one such stage,
    the stage can still be cut into tiles with it, and the operation would not feed a product: the input of a product is
    streamed into it. Casts (of a weight, for example) and dequantization do join the product; they work on its tiles.
    """

    def __init__(self, block: ir.Block) -> None:
        self.block = block
        self.ops = [op.operation for op in block.operations]
        self.work = [op for op in self.ops if computes(op)]
        self.order = {op: index for index, op in enumerate(self.ops)}
        # Facts that groups need repeatedly: the views between operations that compute, with the tensors that they show;
        # the views that change strides; and the readers of each value.
        views = [op for op in self.ops if is_view(op) and op.name != "tensor.insert_slice"]
        self.between = {op: producer(op.operands[0]) for op in views}
        self.looks = [op for op in views if op.name not in SLICES and not is_rematerialised(op)]
        self.readers: dict[ir.Value, list[ir.Operation]] = {}
        self.group = {op: [op] for op in self.work}

    def single(self) -> list[list[ir.Operation]]:
        return [[op] for op in self.work]

    def _join_runs(self) -> None:
        """Join consecutive operations that are marked as one stage."""
        for together, run in itertools.groupby(self.work, lambda op: df.TOGETHER in op.attributes):
            joined = self._sorted(list(run)) if together else []
            for member in joined:
                self.group[member] = joined

    def joined(self) -> list[list[ir.Operation]]:
        self._join_runs()
        for op in reversed(self.work):
            target = self._only_reader(op)
            if target is not None and self._may_join(op, target):
                joined = self._sorted([*self.group[op], *target])
                for member in joined:
                    self.group[member] = joined
        groups = {id(group): group for group in self.group.values()}
        return [self.with_views(group) for group in groups.values()]

    def of(self, members: Sequence[ir.Operation]) -> list[ir.Operation]:
        """Return the operations of a stage of `members`."""
        return self.with_views(self._sorted([op for op in members if op in self.group]))

    def _only_reader(self, op: ir.Operation) -> list[ir.Operation] | None:
        """Return the group that is the only reader of the result of `op`, through views; None otherwise."""
        readers = [reader for result in op.results for reader in self._readers(result)]
        if not readers or any(reader not in self.group for reader in readers):
            return None
        first = self.group[readers[0]]
        return first if all(self.group[reader] is first for reader in readers) and self.group[op] is not first else None

    def _readers(self, value: ir.Value) -> list[ir.Operation]:
        if value not in self.readers:
            readers = self.readers[value] = []
            for use in value.uses:
                user = self._outermost(use.owner.operation)
                readers += self._readers(user.results[0]) if user in self.between else [user]
        return self.readers[value]

    def _may_join(self, op: ir.Operation, target: list[ir.Operation]) -> bool:
        members = [*self.group[op], *target]
        readers = [reader for result in op.results for reader in self._readers(result)]
        if is_dequantization(op) and [reader.name for reader in readers] == ["kv.expert_product"]:
            return True
        if any(member.name in COLLECTIVES or df.TOGETHER in member.attributes for member in members):
            return False
        if any(map(_is_algorithm, members)):
            return all(kv.shares_part(op, reader) for reader in readers)
        if any(is_contraction(reader) for reader in readers) and not (is_cast(op) or is_dequantization(op)):
            return False
        return not any(map(is_contraction, members)) or self._tileable(self._sorted(members))

    def _tileable(self, ops: list[ir.Operation]) -> bool:
        """Return True if some axis of the group's result cuts the second operand, the weight, of every product."""
        result = ops[-1].results[0]
        for axis in range(result.type.rank):
            try:
                tiling = tile_back(ops, [(result, axis)])
            except NotTileable:
                continue
            products = [op for op in ops if is_contraction(op)]
            if result.type.shape[axis] > 1 and all(tiling.axes.get(op.operands[1], WHOLE) != WHOLE for op in products):
                return True
        return False

    def _sorted(self, members: Sequence[ir.Operation]) -> list[ir.Operation]:
        """Return `members` and the views between them, in program order."""
        readers, inside = set(members), set(members)
        for op, source in self.between.items():
            between = source in inside or df.TOGETHER in op.attributes
            if between and op not in inside and not readers.isdisjoint(self._readers(op.results[0])):
                inside.add(op)
        return sorted(inside, key=self.order.__getitem__)

    def with_views(self, group: Sequence[ir.Operation]) -> list[ir.Operation]:
        """Return `group` with the reshapes and transpositions that only it reads, so that the stage reads memory in its
        own layout. Such a view of a tensor that is not contiguous (a part of a stream) stays outside of the stage."""
        inside = set(group)
        for op in reversed(self.looks):
            if op not in inside:
                readers = [self._outermost(use.owner.operation) for use in op.results[0].uses]
                if readers and all(reader in inside for reader in readers):
                    inside.add(op)
        for op in [op for op in self.looks if op in inside and op not in group]:
            if self.between[op] not in inside and not _lies_dense(op.operands[0]):
                inside.remove(op)
        return sorted(inside, key=self.order.__getitem__)

    def _outermost(self, user: ir.Operation) -> ir.Operation:
        """Return the operation of this block that is or contains `user`."""
        while user not in self.order and user.name != "func.func":
            user = user.parent.operation
        return user


def _lies_dense(value: ir.Value) -> bool:
    """Return True if a value is seen in row-major order without gaps, wherever it lies."""
    return _strides_of(value, value.type.shape) == dense_strides(value.type.shape)


def _strides_of(value: ir.Value, shape: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides of a value, viewed as `shape`, within its underlying tensor; None if no strides can express
    it."""
    op, own = producer(value), list(value.type.shape)
    known: tuple[int, ...] | None
    if op is None or not is_view(op) or op.name == "tensor.insert_slice":
        known = dense_strides(own)
    else:
        source, permutation = op.operands[0], permutation_of(op)
        if permutation is None and op.name != "tensor.extract_slice":
            known = _strides_of(source, own)
        else:
            known = _strides_of(source, source.type.shape)
            if known is not None and permutation is not None:
                known = tuple(known[axis] for axis in permutation)
            elif known is not None:
                known = _kept_strides(op, known)
    return None if known is None else reshaped_strides(own, known, shape)


class StageBodies:
    """The bodies of a module's stages. Equal bodies are created once."""

    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.by_structure: dict[str, str] = {}
        self.names: set[str] = set()

    def make_stage(self, ops: Sequence[ir.Operation], name: str) -> ir.Operation:
        """Move `ops` (in program order) into the body of one stage, called in place of the last of them."""
        inputs = list(ops[0].operands) if ops[0].name in kv.DECODING else _inputs(ops)
        computed = [result for op in ops if computes(op) for result in op.results]
        results = [result for result in computed if any(not _within(use.owner, ops) for use in result.uses)]
        callee = self._body(ops, inputs, results, name)
        count("stages")
        count("operations in stages", sum(map(computes, ops)))
        with ir.InsertionPoint(ops[-1]), ops[-1].location:
            call = func.CallOp([result.type for result in results], callee, inputs)
        operation: ir.Operation = call.operation
        operation.attributes[df.STAGE] = ir.StringAttr.get(name)
        for old, new in zip(results, operation.results, strict=True):
            old.replace_all_uses_with(new)
        for op in reversed(ops):
            if not any(True for result in op.results for _ in result.uses):
                op.erase()
        return operation

    def _body(self, ops: Sequence[ir.Operation], inputs: list[ir.Value], results: list[ir.Value], name: str) -> str:
        unique = name
        while unique in self.names:
            unique = f"{name}.{len(self.names)}"
        arguments = [Argument("input", f"x{index}", value.type) for index, value in enumerate(inputs)]
        outputs = [Argument("output", f"y{index}", value.type) for index, value in enumerate(results)]
        marks: dict[str, ir.Attribute] = {df.BODY: ir.UnitAttr.get()}
        function = make_function(self.module, f"body.{unique}", arguments, outputs, ops[-1].location, marks)
        values: ValueMap = dict(zip(inputs, function.arguments, strict=True))
        with ir.InsertionPoint(function.entry_block), ops[-1].location:
            for op in ops:
                clone = clone_with(op, values)
            if len(inputs) != len(set(inputs)):  # a cache is passed twice, once to read and once to update
                for index, argument in enumerate(function.arguments):
                    clone.operands[index] = argument
            func.ReturnOp([values[result] for result in results])
        first = self.by_structure.setdefault(structure(function), function.name.value)
        if first != function.name.value:
            function.operation.erase()
        else:
            self.names.add(unique)
            count("bodies")
        return first


def _inputs(ops: Sequence[ir.Operation]) -> list[ir.Value]:
    """Return the values that `ops` read from outside, in order. Constants are cloned to their readers and excluded,
    except those that an operation of the cache takes: in a schedule a scalar of a step needs a name."""
    inside = {result for op in ops for result in op.results}
    operands = (value for op in ops if op.name.startswith("kv.") for value in op.operands)
    taken = {value for value in operands if not isinstance(value.type, ir.RankedTensorType)}
    inputs: dict[ir.Value, None] = {}
    for value in (value for op in ops for value in outer_values(op)):
        source = producer(value)
        if value not in inside and (value in taken or source is None or not is_rematerialised(source)):
            inputs.setdefault(value)
    return list(inputs)


def _within(user: Any, ops: Sequence[ir.Operation]) -> bool:
    """Return True if `user` is one of `ops` or nested in one."""
    current = user.operation
    while current.name != "func.func":
        if current in ops:
            return True
        current = current.parent.operation
    return False
