"""outline-kernels: computations become kernels, and entries sequences of calls.

What: with `granularity=layer`, each function that an entry calls (embedding, each layer, head) becomes a kernel, with
its own calls inlined. With `granularity=operation`, everything is inlined into the entry, and every operation that
computes becomes a kernel, called in its place, with those of its results that are read. Reshapes, slices and transposes
stay in the entry: they move no data, but are strided windows of the tensors that a kernel reads or writes.

Why: a kernel is the unit that the machine loads and launches. One kernel per layer keeps intermediate values on the
chip. One per operation (-O0) is slow and simple: the baseline with which every other level must agree.

Before::

    func.func private @decode.layer.0(%h: tensor<2x8xf32> {sscc.input = "hidden"},
                                      %w: tensor<9x8xf32> {sscc.weight = "w"}) -> tensor<2x9xf32> {
      %zero = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<8x9xf32>
      %t = linalg.transpose ins(%w : tensor<9x8xf32>) outs(%e : tensor<8x9xf32>) permutation = [1, 0]
      %s = tensor.empty() : tensor<2x9xf32>
      %z = linalg.fill ins(%zero : f32) outs(%s : tensor<2x9xf32>) -> tensor<2x9xf32>
      %p = linalg.matmul ins(%h, %t : tensor<2x8xf32>, tensor<8x9xf32>) outs(%z : tensor<2x9xf32>) -> tensor<2x9xf32>
      %o = linalg.add ins(%p, %p : tensor<2x9xf32>, tensor<2x9xf32>) outs(%s : tensor<2x9xf32>) -> tensor<2x9xf32>
      return %o : tensor<2x9xf32>
    }
    func.func public @decode(%h: tensor<2x8xf32> {sscc.input = "hidden"}, %w: tensor<9x8xf32> {sscc.weight = "w"})
        -> (tensor<2x9xf32> {sscc.output = "logits"}) {
      %0 = func.call @decode.layer.0(%h, %w) : (tensor<2x8xf32>, tensor<9x8xf32>) -> tensor<2x9xf32>
      return %0 : tensor<2x9xf32>
    }

After, with `granularity=layer`::

    func.func private @decode.layer.0(%h: .. "hidden"}, %w: .. "w"}) -> tensor<2x9xf32> attributes {sscc.kernel} {
      ..
      %p = linalg.matmul ins(%h, %t : ..
      %o = linalg.add ins(%p, %p : ..
      return %o : tensor<2x9xf32>
    }
    func.func public @decode(%h: .. "hidden"}, %w: .. "w"}) -> (.. "logits"}) {
      %0 = call @decode.layer.0(%h, %w) ..
      return %0 : tensor<2x9xf32>
    }

After, with `granularity=operation`::

    func.func public @decode(%h: .. "hidden"}, %w: .. "w"}) -> (.. "logits"}) {
      %e = tensor.empty() : tensor<8x9xf32>
      %t = linalg.transpose ins(%w : ..
      %p = call @matmul.0(%h, %t) ..
      %o = call @add.1(%p) ..
      return %o : tensor<2x9xf32>
    }
    func.func private @matmul.0(%h: .. "x0"}, %t: .. "x1"}) -> (.. "y0"}) attributes {sscc.kernel} {
      %zero = arith.constant 0.000000e+00 : f32
      %s = tensor.empty() : tensor<2x9xf32>
      %z = linalg.fill ins(%zero : f32) outs(%s : tensor<2x9xf32>) -> tensor<2x9xf32>
      %p = linalg.matmul ins(%h, %t : ..
      return %p : tensor<2x9xf32>
    }
    ..

When it does not apply: it always applies. Any other granularity is refused; operations that cannot be emitted are
refused by the backend.

Preserves: program order, locations, the entries' signatures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import func

from sscc.ir.builders import STORED, Argument, arguments_of, make_function
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.levels import walk
from sscc.ir.rewriting import ValueMap, clone_all, clone_with, functions, is_rematerialised, outer_values, producer
from sscc.ir.views import computes, is_view, root_of
from sscc.passes.base import Pass, count
from sscc.passes.build_entries import entries

KERNEL = "sscc.kernel"
GRANULARITIES = ("operation", "layer")


class OutlineKernelsErrors(ErrorKind):
    UNKNOWN_GRANULARITY = UsageError, "granularity must be one of {choices}, got {granularity!r}"


@dataclass(frozen=True)
class OutlineKernels(Pass):
    name: ClassVar[str] = "outline-kernels"
    takes: ClassVar[tuple[str, ...]] = ("graph",)
    follows: ClassVar[tuple[str, ...]] = ("build-entries",)
    level: ClassVar[str] = "kernels"

    granularity: str = "operation"

    def run(self, module: ir.Module) -> None:
        if self.granularity not in GRANULARITIES:
            raise OutlineKernelsErrors.UNKNOWN_GRANULARITY(granularity=self.granularity, choices=GRANULARITIES)
        parts = {function.name.value: function for function in functions(module)}
        if self.granularity == "layer":
            _mark_called(module, parts)
        else:
            _outline_everything(module, parts)


def _mark_called(module: ir.Module, parts: dict[str, Any]) -> None:
    """Mark the functions that an entry calls as kernels, with their own calls inlined."""
    calls = (op for entry in entries(module) for op in walk(entry) if op.name == "func.call")
    called = {op.attributes["callee"].value for op in calls}
    for name, function in parts.items():
        if name in called:
            count("kernels")
            inline_calls(function, parts)
            function.attributes[KERNEL] = ir.UnitAttr.get()
    for name, function in parts.items():
        if name not in called and function.visibility.value != "public":
            function.operation.erase()


def _outline_everything(module: ir.Module, parts: dict[str, Any]) -> None:
    for entry in list(entries(module)):
        inline_calls(entry, parts)
    count("kernels", len(outline_operations(module)))
    for function in parts.values():
        if function.visibility.value != "public":
            function.operation.erase()


def outline_operations(module: ir.Module) -> list[str]:
    """Make every operation that computes in an entry a kernel. Return the kernels' names."""
    names: list[str] = []
    for entry in list(entries(module)):
        for op in [op for op in walk(entry) if computes(op)]:
            names.append(f"{verb(op)}.{len(names)}")
            outline(module, op, names[-1])
    for entry in entries(module):
        _erase_unused(entry)
    return names


def inline_calls(entry: Any, parts: dict[str, Any]) -> None:
    """Inline the calls of `parts` in `entry`, recursively."""
    calls = [op for op in walk(entry) if op.name == "func.call" and op.attributes["callee"].value in parts]
    for op in calls:
        callee = parts[op.attributes["callee"].value]
        values: ValueMap = dict(zip(callee.arguments, op.operands, strict=True))
        *body, terminator = [inner.operation for inner in callee.entry_block.operations]
        with ir.InsertionPoint(op):
            clone_all(body, values)
        for old, returned in zip(op.results, terminator.operands, strict=True):
            source = producer(returned)
            if returned not in values and source is not None:
                with ir.InsertionPoint(op):
                    clone_with(source, values)
            old.replace_all_uses_with(values[returned])
        op.erase()
    if calls:
        inline_calls(entry, parts)


def outline(module: ir.Module, op: ir.Operation, name: str, *, named: bool = False) -> None:
    """Make `op`, with nested operations, a kernel, which is called in its place. The kernel returns the results that
    are read.

    Args:
        name: name of the kernel.
        named: True if parts of weights and constants are arguments with their role and name.
    """
    inputs = [value for value in outer_values(op) if not _follows(value)]
    arguments = [Argument("input", f"x{index}", value.type) for index, value in enumerate(inputs)]
    if named:
        arguments = [_stored(value) or plain for value, plain in zip(inputs, arguments, strict=True)]
    read = [index for index, value in enumerate(op.results) if any(True for _ in value.uses)]
    read = read or list(range(len(op.results)))  # a dump may contain an operation without readers
    results = [Argument("output", f"y{number}", op.results[index].type) for number, index in enumerate(read)]
    kernel = make_function(module, name, arguments, results, op.location, {KERNEL: ir.UnitAttr.get()})
    values: ValueMap = dict(zip(inputs, kernel.arguments, strict=True))
    with ir.InsertionPoint(kernel.entry_block), op.location:
        clone = clone_with(op, values)
        func.ReturnOp([clone.results[index] for index in read])
    with ir.InsertionPoint(op), op.location:
        call = func.CallOp([result.type for result in results], name, inputs)
    for index, new in zip(read, call.results, strict=True):
        op.results[index].replace_all_uses_with(new)
    op.erase()


def _stored(value: ir.Value) -> Argument | None:
    """Return the role and name of the weight or constant that `value` is a part of; None for other values."""
    root = root_of(value)
    if not isinstance(root.owner, ir.Block) or root.owner.owner.operation.name != "func.func":
        return None
    function = root.owner.owner
    whole = arguments_of(function)[list(function.arguments).index(root)]
    return Argument(whole.role, whole.name, value.type) if whole.role in STORED else None


def _follows(value: ir.Value) -> bool:
    source = producer(value)
    return source is not None and is_rematerialised(source)


def verb(op: ir.Operation) -> str:
    """Return a readable name: the last operation in the body of a generic operation, or the operation itself."""
    if op.name != "linalg.generic":
        return str(op.name).partition(".")[2]
    body = [str(inner.operation.name) for inner in op.regions[0].blocks[0].operations]
    return body[-2].partition(".")[2] if len(body) > 1 else "copy"


def _erase_unused(entry: Any) -> None:
    """Erase constants, empty tensors and views whose readers moved into kernels."""
    for op in reversed(list(walk(entry))):
        removable = is_view(op) or is_rematerialised(op) or op.name.startswith("arith.")
        if removable and not any(True for result in op.results for _ in result.uses):
            op.erase()
