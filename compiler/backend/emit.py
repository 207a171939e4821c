"""Emission: a module of level `fused` (-O0) or `placed` becomes a schedule, with an address for every tensor."""

from __future__ import annotations

from dataclasses import replace

from torch_mlir import ir

from sscc.compiler.backend.bodies import emit_body
from sscc.compiler.backend.entries import EmittedEntry, EntryEmitter
from sscc.compiler.backend.kernels import Copies, KernelEmitter
from sscc.compiler.backend.memory import pack, share
from sscc.ir.dialects import df
from sscc.ir.errors import InternalError
from sscc.ir.rewriting import functions
from sscc.passes.build_entries import entries
from sscc.passes.outline_kernels import KERNEL
from sscc.runtime.schedule import Program, Tensor


def emit_program(module: ir.Module) -> Program:
    """The schedule of `module`, which is left as it is.

    Raises:
        UnsupportedError: for an operation that a schedule cannot express, with its source line.
    """
    copies = Copies()
    bodies = {f.name.value: emit_body(f) for f in functions(module) if df.BODY in f.attributes}
    kernels = {
        f.name.value: KernelEmitter(f, bodies=bodies, copies=copies).emit()
        for f in functions(module)
        if KERNEL in f.attributes
    }
    emitted = [EntryEmitter(function, kernels=kernels, copies=copies).emit() for function in entries(module)]
    tensors, arena = _place(emitted)
    return Program(
        tuple(tensors),
        tuple(copies.bodies.by_name.values()),
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
