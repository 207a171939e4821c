"""The func and scf dialects: calls, loops with carried values, branches. Dataflow stages of `df` are calls and loops
too."""

from __future__ import annotations

import torch
from torch_mlir import ir

from sscc.compiler.interpret.build import (
    Builder,
    Compute,
    Fire,
    Frame,
    Handler,
    Several,
    UndefinedKind,
    several,
    single,
    undefined,
)


class ControlUndefinedErrors(UndefinedKind):
    BAD_STEP = "has step {step}, which must be at least 1"
    CONDITION_VARIES = "has a condition that differs between points of the enclosing linalg operation"


def _call(op: ir.Operation, b: Builder) -> Several:
    return b.function(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)


def _for(op: ir.Operation, b: Builder) -> Fire:
    lower, upper, step, *starts = b.slots(op.operands)
    block = op.regions[0].blocks[0]
    body = b.block(block)
    index, *carried = b.slots(block.arguments)
    results = b.slots(op.results)
    dtype = b.types.dtype(op.operands[0].type)

    def fire(frame: Frame) -> None:
        values = [frame[slot] for slot in starts]
        by = int(frame[step])
        if by < 1:
            undefined(ControlUndefinedErrors.BAD_STEP, step=int(by))
        for number in range(int(frame[lower]), int(frame[upper]), by):
            frame[index] = torch.tensor(number, dtype=dtype)
            for slot, value in zip(carried, values, strict=True):
                frame[slot] = value
            values = body(frame)
        for slot, value in zip(results, values, strict=True):
            frame[slot] = value

    return fire


def _if(op: ir.Operation, b: Builder) -> Fire:
    (condition,) = b.slots(op.operands)
    branches = [b.block(region.blocks[0]) if len(region.blocks) else None for region in op.regions]
    results = b.slots(op.results)

    def fire(frame: Frame) -> None:
        if frame[condition].numel() != 1:
            undefined(ControlUndefinedErrors.CONDITION_VARIES)
        branch = branches[0] if bool(frame[condition]) else branches[1]
        values = [] if branch is None else branch(frame)
        for slot, value in zip(results, values, strict=True):
            frame[slot] = value

    return fire


def _load(op: ir.Operation, b: Builder) -> Compute:
    return lambda value: value


HANDLERS: dict[str, Handler] = {
    "func.call": several(_call),
    "scf.for": _for,
    "scf.if": _if,
    "df.load": single(_load),
}
