"""Kernels that cannot be pipelines of stages become kernels of one operation each, as at -O0.

Operations of the algorithm (`kv`) define an order between updates and reads of memory, and some write only a part of
their result. A fused operation does both by itself. As stages of one pipeline, joined by streams that are filled once,
separate operations cannot: only launches order two accesses of the same memory.

A loop of such a kernel whose operations need no order is kept and becomes a kernel of stages: for example the loop over
the chunks of a prompt, if only operations after the last chunk need order.
"""

from __future__ import annotations

from typing import Any

from torch_mlir import ir

from sscc.ir.dialects import df, kv
from sscc.ir.levels import walk
from sscc.ir.rewriting import functions, producer
from sscc.ir.views import computes, is_view, root_of
from sscc.passes.base import count
from sscc.passes.build_entries import entries
from sscc.passes.merge_equal_kernels import MergeEqualKernels
from sscc.passes.outline_kernels import KERNEL, inline_calls, outline, outline_operations

PLAIN = "sscc.plain"
"""Attribute of a kernel that is one operation, which reads and writes memory."""
UNFUSED = frozenset(f"kv.{name}" for name in ("row", "update", "quantized_key_scores", "choose", "fetch"))
"""Operations of unfused attention over the cache, except for attention itself: in a layer that shares the rows of
another one it only reads rows that its kernel does not update, and can be a stage."""
WHOLE = "sscc.whole"
"""Attribute of a loop that becomes a separate kernel, and prefix of this kernel's name."""


def is_plain(function: Any) -> bool:
    return PLAIN in function.attributes


def make_plain(module: ir.Module) -> None:
    """Split kernels into plain ones if they contain unfused operations of the algorithm, or operations that read memory
    that others update."""
    kernels = {f.name.value: f for f in functions(module) if KERNEL in f.attributes}
    unfused = {name: kernel for name, kernel in kernels.items() if any(map(_needs_order, walk(kernel)))}
    calls = (op for entry in entries(module) for op in walk(entry) if op.name == "func.call")
    called = {op.attributes["callee"].value for op in calls}
    unfused = {name: kernel for name, kernel in unfused.items() if name in called}
    if not unfused:
        return
    for kernel in unfused.values():
        _mark_loops(kernel.entry_block, f"{kernel.name.value}.loop")
    for entry in entries(module):
        inline_calls(entry, unfused)
    for kernel in unfused.values():
        kernel.operation.erase()
    loops = [op for entry in entries(module) for op in walk(entry) if WHOLE in op.attributes]
    for number, loop in enumerate(loops):
        name = loop.attributes[WHOLE].value
        del loop.attributes[WHOLE]
        outline(module, loop, f"{name}.{number}", named=True)
    for name in outline_operations(module):
        next(f for f in functions(module) if f.name.value == name).attributes[PLAIN] = ir.UnitAttr.get()
    count("kernels made plain", len(unfused))
    MergeEqualKernels().run(module)


def _mark_loops(block: ir.Block, name: str) -> None:
    """Mark with `name` the outermost loops whose operations compute and need no order."""
    for op in [op.operation for op in block.operations]:
        inner = list(walk(op)) if op.name == "scf.for" else []
        if any(map(computes, inner)) and not any(map(_needs_order, inner)):
            op.attributes[WHOLE] = ir.StringAttr.get(name)
        elif op.name in ("scf.for", "scf.if"):
            for region in op.regions:
                _mark_loops(region.blocks[0], name)


def _needs_order(op: ir.Operation) -> bool:
    """Return True if `op` is one of `UNFUSED`, or updates a tensor that another operation of the kernel reads, writes
    or copies. Operations that form one stage are ordered by it."""
    if op.name in UNFUSED and df.TOGETHER not in op.attributes:
        return True
    if op.name == "tensor.insert_slice":
        return _is_read(op.results[0], op)
    tied = kv.ties_of(op)
    updated = [root_of(op.operands[index]) for index in tied.values()]
    sources = [source for source in map(producer, updated) if source is not None and computes(source)]
    moved = any(_is_moved(op.results[result], op.operands[operand]) for result, operand in tied.items())
    return bool(sources) or moved or any(_is_read(v, op) for v in [*(op.results[index] for index in tied), *updated])


def _is_moved(updated: ir.Value, before: ir.Value) -> bool:
    """Return True if an updated part is inserted at another place than the one from which it was extracted."""
    taken = producer(before)
    for insertion in (use.owner.operation for use in updated.uses):
        if insertion.name != "tensor.insert_slice" or insertion.operands[0] != updated:
            continue
        if taken is None or taken.name != "tensor.extract_slice" or _is_elsewhere(taken, insertion):
            return True
        if list(taken.attributes["static_offsets"]) != list(insertion.attributes["static_offsets"]):
            return True
        if _first_version(taken.operands[0]) != _first_version(insertion.operands[1]):
            return True
    return False


def _first_version(value: ir.Value) -> ir.Value:
    """Return the value before insertions into it."""
    source = producer(value)
    while source is not None and source.name == "tensor.insert_slice":
        value = source.operands[1]
        source = producer(value)
    return value


def _is_read(value: ir.Value, by_itself: ir.Operation) -> bool:
    """Return True if an operation other than `by_itself` computes from `value`, or from the part that `by_itself`
    wrote."""
    readers = [use.owner.operation for use in value.uses if use.owner.operation != by_itself]
    if df.TOGETHER in by_itself.attributes:
        readers = [op for op in readers if df.TOGETHER not in op.attributes]
    views = [op for op in readers if is_view(op) and op.name != "tensor.insert_slice"]
    views = [op for op in views if not _is_elsewhere(op, by_itself)]
    return any(map(computes, readers)) or any(_is_read(op.results[0], by_itself) for op in views)


def _is_elsewhere(part: ir.Operation, insertion: ir.Operation) -> bool:
    """Return True if a slice has another offset than an insertion: another layer, as far as that is known statically.
    """
    if part.name != "tensor.extract_slice" or insertion.name != "tensor.insert_slice":
        return False
    return list(part.operands)[1:] != list(insertion.operands)[2:]
