"""Gathers of rows by an index; source and target may be encoded."""

from __future__ import annotations

from collections.abc import Sequence

from sscc.ir.operations import GatherRows
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.codegen.encoded_rows import copy_bytes, write_row
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.figures import ROW_BLOCK
from sscc.runtime.backends.cpu.codegen.indices import report_index
from sscc.runtime.backends.cpu.codegen.mlir import I64, Function, Value
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand, Phase
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, address, check_strides, zero_row


@executes(GatherRows)
def lower_gather_rows(step: GatherRows, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `GatherRows` to one phase with units of (KV head, block of rows).

    An index beyond the source is reported. Raises InputError if a row is not contiguous.
    """
    check_strides(step.kind, operands, (step.source, step.out))
    _, heads, count, _ = operands[step.out][0]
    blocks = -(-count // ROW_BLOCK)

    def gather(context: Context) -> None:
        f = context.f
        source, index, out = (context.operands[name] for name in (step.source, step.index, step.out))
        with f.loop(context.begin, context.end) as unit:
            head, first = unit.index // blocks, unit.index % blocks * ROW_BLOCK
            with f.loop(first, f.min(first + ROW_BLOCK, count)) as row:
                position = f.load(address(f, index, head, row.index), I64)
                report_index(f, position >= source.shape[2])
                _copy_or_zero(f, source, out, (0, head), position, row.index)

    return Lowered((Phase(heads * blocks, gather),))


def _copy_or_zero(
    f: Function, source: Operand, target: Operand, outer: Sequence[Value | int], position: Value, row: Value
) -> None:
    """Copy row `position` of the source to row `row` of the target, which may be encoded; write zeros if the source has
    no such row."""
    count = source.shape[-1]
    there = address(f, target, *outer, row)
    exists = (position >= 0) & (position < source.shape[-2])
    with f.when(exists):
        here = address(f, source, *outer, position)
        if source.dtype == "i8":
            copy_bytes(f, here, there, count)
        else:
            write_row(f, here, source.dtype, there, target.dtype, count, target.shape[-1])
    with f.when((position < 0) | (position >= source.shape[-2])):
        zero_row(f, there, target.dtype, target.shape[-1])
