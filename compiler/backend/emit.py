"""Emission: a module of level `kernels` becomes a schedule, with an address for every tensor."""

from __future__ import annotations

from dataclasses import replace

from torch_mlir import ir

from sscc.compiler.backend.entries import CopyKernels, EmittedEntry, EntryEmitter
from sscc.compiler.backend.kernels import emit_kernel
from sscc.compiler.backend.memory import pack, share
from sscc.ir.errors import InternalError
from sscc.ir.rewriting import functions
from sscc.passes.base import run_upstream
from sscc.passes.build_entries import entries
from sscc.passes.outline_kernels import KERNEL
from sscc.runtime.schedule import Program, Tensor


def emit_program(module: ir.Module) -> Program:
    """The schedule of `module`, which is left as it is.

    Raises:
        UnsupportedError: for an operation that a schedule cannot express, with its source line.
    """
    copy = ir.Module.parse(module.operation.get_asm(enable_debug_info=True))
    run_upstream(copy, "builtin.module(func.func(linalg-generalize-named-ops))", "generalisation of kernels")
    kernels = {f.name.value: emit_kernel(f) for f in functions(copy) if KERNEL in f.attributes}
    copies = CopyKernels()
    emitted = [EntryEmitter(function, kernels, copies).emit() for function in entries(module)]
    tensors, arena = _place(emitted)
    return Program(
        tuple(tensors),
        (*(item.kernel for item in kernels.values()), *copies.kernels.values()),
        tuple(item.entry for item in emitted),
        arena,
    )


def _place(emitted: list[EmittedEntry]) -> tuple[list[Tensor], int]:
    """Addresses for the tensors of all entries: states, inputs and outputs, then temporaries, then weights.

    Temporaries hold nothing between calls, so the entries share one region for them.
    """
    tensors: dict[str, Tensor] = {}
    for item in emitted:
        for name, tensor in item.tensors.items():
            if tensors.setdefault(name, tensor) != tensor:
                raise InternalError(f"the entries disagree about {name}: {tensors[name]} and {tensor}")
    lasting = {n: t.nbytes for n, t in tensors.items() if t.role in ("input", "output", "state")}
    addresses, end = pack(lasting, 0)
    base = end
    for item in emitted:
        shared, top = share(item.lifetimes, base)
        addresses |= shared
        end = max(end, top)
    stored = {n: t.nbytes for n, t in tensors.items() if t.role in ("weight", "constant")}
    placed, _ = pack(stored, end)
    addresses |= placed
    kept = [replace(t, address=addresses[n]) for n, t in tensors.items() if n in addresses]
    return kept, end
