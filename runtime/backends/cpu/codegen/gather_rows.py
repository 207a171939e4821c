"""Gathers of rows by an index; source and target may be encoded."""

from __future__ import annotations

from sscc.ir.operations import GatherRows
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.codegen.encoded_rows import put_row
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.indices import report_index
from sscc.runtime.backends.cpu.codegen.mlir import Value
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, row_phase
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, address, check_rows, load_element, zero_row


@executes(GatherRows)
def lower_gather_rows(step: GatherRows, operands: dict[str, Meta], features: Features) -> Lowered:
    """Lower `GatherRows` to one phase with units of (KV head, block of rows).

    An index beyond the source is reported. Raises InputError if a row is not contiguous.
    """
    check_rows(step, operands)
    _, heads, count, _ = operands[step.out][0]

    def gather(context: Context, place: list[Value], row: Value) -> None:
        f, (head,) = context.f, place
        source, index, out = (context.operands[name] for name in (step.source, step.index, step.out))
        position = load_element(f, index, head, row)
        report_index(f, position >= source.shape[2])
        exists = (position >= 0) & (position < source.shape[2])
        with f.when(exists):
            put_row(f, source, (0, head, position), out, (0, head, row))
        with f.when((position < 0) | (position >= source.shape[2])):
            zero_row(f, address(f, out, 0, head, row), out.dtype, out.shape[3])

    return Lowered((row_phase((heads,), count, gather),))
