"""Emission: a module of level `fused` (-O0) or `placed` becomes a schedule, with an address for every tensor."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from torch_mlir import ir

from sscc.compiler.emit.bodies import emit_body
from sscc.compiler.emit.entries import EmittedEntry, EntryEmitter
from sscc.compiler.emit.kernels import BodyTable, emit_kernel
from sscc.compiler.emit.layout import KernelAnalysis
from sscc.compiler.emit.memory import pack, share, spill
from sscc.ir.builders import STORED
from sscc.ir.choices import Tier
from sscc.ir.collectives import grid_of
from sscc.ir.dialects import df
from sscc.ir.errors import ErrorKind, InternalError, UnsupportedError
from sscc.ir.layer_state.row_streams import STORES, state_name
from sscc.ir.layer_state.rows import store_of
from sscc.ir.levels import PROGRAM, get_groups, get_target
from sscc.ir.opspec import Op, spec_of_step
from sscc.ir.rewriting import functions
from sscc.ir.schedule import Body, Kernel, Program, Step, Tensor, Vector, launches, pipelines
from sscc.ir.sizes import ByteCount
from sscc.ir.target import Target
from sscc.passes.build_entries import entries
from sscc.passes.outline_kernels import KERNEL


class EmissionErrors(ErrorKind):
    ENTRIES_DISAGREE = InternalError, "the entries disagree about the tensor {tensor!r}: {first} and {second}"
    MEMORY = (
        UnsupportedError,
        "the program requires {required} of memory, but the capacity of {memories} on {sockets:g} sockets is "
        "{capacities}: use more sockets or ranks, a smaller batch or context, or smaller weights",
    )


def emit_program(module: ir.Module) -> Program:
    """Return the schedule of `module`, which is not changed.

    Raises:
        UnsupportedError: an operation that a schedule cannot express, with its source line; or a program that exceeds
            the machine's memory.
    """
    emitted_bodies = {f.name.value: emit_body(f) for f in functions(module) if df.BODY in f.attributes}
    analyses = [KernelAnalysis(f, bodies=emitted_bodies) for f in functions(module) if KERNEL in f.attributes]
    layouts = {layout.name: layout for layout in (analysis.layout() for analysis in analyses)}
    bodies = BodyTable()
    kernels = [emit_kernel(layout, bodies) for layout in layouts.values()]
    copies: dict[str, Kernel] = {}
    emitted = [EntryEmitter(f, kernels=layouts, bodies=bodies, copies=copies).emit() for f in entries(module)]
    tensors, arena = _place(emitted)
    program = Program(
        tuple(tensors),
        tuple(bodies.by_name.values()),
        (*kernels, *copies.values()),
        tuple(item.entry for item in emitted),
        arena,
        grid=grid_of(module),
    )
    return _with_tiers(program, get_target(module), _stores(module))


def _place(emitted: list[EmittedEntry]) -> tuple[list[Tensor], int]:
    """Assign addresses to the tensors of all entries: states, inputs and outputs, then temporaries, then weights.

    Temporaries hold nothing between calls, so the entries share one region for them.
    """
    tensors: dict[str, Tensor] = {}
    for item in emitted:
        for name, tensor in item.tensors.items():
            if tensors.setdefault(name, tensor) != tensor:
                raise EmissionErrors.ENTRIES_DISAGREE(tensor=name, first=tensors[name], second=tensor)
    lasting = {n: t.nbytes for n, t in tensors.items() if t.role in ("input", "output", "state")}
    addresses, end = pack(lasting, 0)
    base = end
    for item in emitted:
        shared, top = share(item.lifetimes, base)
        addresses |= shared
        end = max(end, top)
    stored = {n: t.nbytes for n, t in tensors.items() if t.role in STORED}
    placed, _ = pack(stored, end)
    addresses |= placed
    kept = [replace(t, address=addresses[n]) for n, t in tensors.items() if n in addresses]
    return kept, end


def _stores(module: ir.Module) -> frozenset[str]:
    """Return the states that keep K and V of all positions, from which queries select."""
    if PROGRAM not in module.operation.attributes:
        return frozenset()  # a module without a cache
    groups = [group for group in get_groups(module) if store_of(group.geometry).lies_far]
    return frozenset(state_name(store, group.name) for group in groups for store in STORES)


def _with_tiers(program: Program, target: Target, stores: Container[str] = ()) -> Program:
    """Move tensors that exceed a memory to the next one: first tables of which few rows are read, then the choice that
    moves the fewest bytes. `stores` are always behind main memory, if there is such a memory: they grow with the
    context, and a step reads few of their rows."""
    sizes = {tensor.name: tensor.nbytes for tensor in program.tensors}
    tables = _tables(program)
    roles = {tensor.name: tensor.role in STORED for tensor in program.tensors}
    left = sorted(sizes, key=lambda name: (name in tables, roles[name], -sizes[name], name))
    waiting = [name for name in left if name in stores] if target.far else []
    left = [name for name in left if name not in waiting]
    tiers: dict[str, Tier] = {}
    for level in target.memories:
        tiers |= dict.fromkeys(left, level.name)
        left = spill(sizes, left, target.capacity(level.name)) + waiting
        waiting = []
    if left:
        raise EmissionErrors.MEMORY(
            required=ByteCount(sum(sizes.values())),
            memories=[memory.label for memory in target.memories],
            capacities=[ByteCount(target.capacity(memory.name)) for memory in target.memories],
            sockets=target.sockets.value,
        )
    return replace(program, tensors=tuple(replace(t, tier=tiers[t.name]) for t in program.tensors))


def _tables(program: Program) -> set[str]:
    """Return the tensors whose readers all fetch rows by an index. Prefill does not count: it reads many rows, but only
    once per prompt."""
    bodies = {body.name: body for body in program.bodies}
    kernels = {kernel.name: kernel for kernel in program.kernels}
    fetched: dict[str, bool] = {}
    steps = [entry for entry in program.entries if entry.name != "prefill"]
    for launch in (launch for entry in steps for launch in launches(entry.body)):
        kernel = kernels[launch.kernel]
        reads = {
            port.view.tensor: _fetches(bodies[stage.body], index)
            for pipeline in pipelines(kernel.body)
            for stage in pipeline.stages
            for index, port in enumerate(stage.ports)
        }
        for param, view in zip(kernel.params, launch.args, strict=True):
            fetched[view.tensor] = fetched.get(view.tensor, True) and reads.get(param.name, False)
    return {name for name, only in fetched.items() if only}


def _fetches(body: Body, index: int) -> bool:
    """Return True if a body reads one of its parameters only by an index."""
    return any(body.params[index].name in _sources(step) for step in body.steps)


def _sources(step: Step) -> list[object]:
    """Return the names of the tensors of which a step fetches rows by an index."""
    if isinstance(step, Vector):
        return [instr.args[0] for instr in step.body if instr.op == "load"]
    if not isinstance(step, Op):
        return []
    spec = spec_of_step(step)
    by_index = {name for name, operand in spec.operands.items() if operand.fetched and operand.by}
    return [region for name, region in spec.regions(step).items() if name in by_index]
