"""Checks that everything a schedule names exists, and is passed in the right number: planning relies on both.

Whether the schedule is a valid one is the validator's business (sscc.runtime.validator).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import NoReturn

from sscc.ir.errors import InputError
from sscc.ir.opspec import spec_of_step
from sscc.ir.schedule import (
    DTYPE_BYTES,
    Access,
    Body,
    Kernel,
    Param,
    Pipeline,
    Product,
    Program,
    Reduction,
    Stage,
    Vector,
    View,
    launches,
    pipelines,
)

Ranks = Mapping[str, int]
"""Dimensions of parameters, locals and windows, by name."""

_TYPES = {*DTYPE_BYTES, "i32", "index"}
"""The types that values of a vector program may have."""


def check_names(program: Program) -> None:
    """Raises InputError where two tensors share a name, or something names what is not there or passes too little."""
    tensors = {t.name for t in program.tensors}
    if len(tensors) < len(program.tensors):
        _refuse("two tensors share a name")
    bodies = {b.name: b for b in program.bodies}
    kernels = {k.name: k for k in program.kernels}
    for body in program.bodies:
        _check_body(body)
    for kernel in program.kernels:
        for pipeline in pipelines(kernel.body):
            _check_pipeline(kernel, pipeline, bodies)
    for entry in program.entries:
        for launch in launches(entry.body):
            where = f"a launch in entry {entry.name!r}"
            _check_known([launch.kernel], kernels, where)
            _check_count(launch.args, kernels[launch.kernel].params, where, "tensors")
            _check_count(launch.scalars, kernels[launch.kernel].scalars, where, "scalars")
            _check_known((view.tensor for view in launch.args), tensors, where)
            for view, param in zip(launch.args, kernels[launch.kernel].params, strict=True):
                _check_view(view, param, where)


def _check_pipeline(kernel: Kernel, pipeline: Pipeline, bodies: Mapping[str, Body]) -> None:
    params, buffers = {p.name for p in kernel.params}, {b.name for b in pipeline.buffers}
    shapes = [p.shape for p in kernel.params] + [b.shape for b in pipeline.buffers]
    _check_sizes([*shapes, *(s.grid for s in pipeline.stages)], f"{kernel.name}.{pipeline.name}")
    for stage in pipeline.stages:
        where = f"stage {stage.name!r} of {kernel.name}.{pipeline.name}"
        _check_known([stage.body], bodies, where)
        _check_stage(stage, bodies[stage.body], where)
        _check_known((p.view.tensor for p in stage.ports if p.per == 0), params, where)
        _check_known((p.view.tensor for p in stage.ports if p.per != 0), buffers, where)


def _check_stage(stage: Stage, body: Body, where: str) -> None:
    _check_count(stage.ports, body.params, where, "ports")
    _check_count(stage.scalars, body.scalars, where, "scalars")
    for port, param in zip(stage.ports, body.params, strict=True):
        _check_view(port.view, param, where)
        if port.per < 0:
            _refuse(f"{where} fires {port.per} times on a slot")


def _check_view(view: View, param: Param, where: str) -> None:
    if view.shape != param.shape or len(view.strides) != len(param.shape):
        _refuse(f"{where} passes {list(view.shape)} as {param.name!r}, which is {list(param.shape)}")


def _check_body(body: Body) -> None:
    where = f"body {body.name!r}"
    ranks = {p.name: len(p.shape) for p in body.params} | {x.name: len(x.shape) for x in body.locals}
    _check_known((w.view.tensor for w in body.windows), ranks, where)
    ranks |= {w.name: len(w.view.shape) for w in body.windows}
    for window in body.windows:
        _check_count(window.view.strides, window.view.shape, where, "strides of a window")
    _check_sizes([*(p.shape for p in body.params), *(x.shape for x in body.locals)], where)
    for step in body.steps:
        if isinstance(step, Vector | Reduction | Product):
            _check_affine(step, body, ranks, where)
        else:
            spec = spec_of_step(step)
            _check_known(spec.regions(step).values(), ranks, where)
            _check_known((getattr(step, name) for name in spec.numbers), body.scalars, where)


def _check_affine(step: Vector | Reduction | Product, body: Body, ranks: Ranks, where: str) -> None:
    _check_sizes([step.dims], where)
    inputs = (step.a, step.b) if isinstance(step, Product) else step.inputs
    for number, access in enumerate((*inputs, step.output)):
        _check_access(access, len(step.dims), ranks, where)
        if access.indirect is not None:
            _check_access(access.indirect.index, len(step.dims), ranks, where)
            _check_known([access.indirect.axis], range(ranks[access.param]), where)
            if not (isinstance(step, Product) and number == 1) or access.indirect.index.indirect is not None:
                _refuse(f"{where} has an indirect axis of {access.param!r}, which cannot have one")
    if not isinstance(step, Vector):
        _check_known(step.reduce, range(len(step.dims)), where)
        if any(row[d] for row in step.output.map for d in step.reduce):
            _refuse(f"{where} writes an element for each of what it combines")
    if not isinstance(step, Product):
        _check_program(step, body, ranks, where)


def _check_program(step: Vector | Reduction, body: Body, ranks: Ranks, where: str) -> None:
    known = {*body.scalars, *(f"in{n}" for n in range(len(step.inputs)))}
    for instr in step.body:
        args = list(instr.args)
        _check_known([instr.type], _TYPES, where)
        if instr.op == "load":
            _check_known(args[:1], ranks, where)
            _check_count(args[1:], range(ranks[str(args.pop(0))]), where, "indices")
        elif instr.op == "index":
            _check_known(args, range(len(step.dims)), where)
        _check_known((a for a in args if isinstance(a, str)), known, where)
        known.add(instr.name)
    _check_known([step.result], known, where)


def _check_sizes(shapes: Iterable[tuple[int, ...]], where: str) -> None:
    if any(size < 1 for shape in shapes for size in shape):
        _refuse(f"{where} has an extent below 1")


def _check_access(access: Access, dims: int, ranks: Ranks, where: str) -> None:
    _check_known([access.param], ranks, where)
    _check_count(access.map, range(ranks[access.param]), where, "rows of a map")
    for row in access.map:
        _check_count(row, range(dims + 1), where, "coefficients")


def _check_known(names: Iterable[object], known: Iterable[object], where: str) -> None:
    there = set(known)
    for name in names:
        if name not in there:
            _refuse(f"{where} names {name!r}, which does not exist")


def _check_count(actual: Sized, expected: Sized, where: str, what: str) -> None:
    if len(actual) != len(expected):
        _refuse(f"{where} passes {len(actual)} {what}, {len(expected)} are wanted")


def _refuse(why: str) -> NoReturn:
    raise InputError(f"the schedule is malformed: {why}")
