"""That what a schedule names is there, and in the right number: what planning takes for granted.

Whether the schedule is a valid one is the validator's business (sscc.runtime.validator).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import NoReturn

from sscc.ir.errors import InputError
from sscc.runtime.schedule import (
    Access,
    Body,
    Kernel,
    Pipeline,
    Product,
    Program,
    Reduction,
    Stage,
    Vector,
    launches,
    pipelines,
)

Ranks = Mapping[str, int]
"""Dimensions of parameters, locals and windows, by name."""


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


def _check_pipeline(kernel: Kernel, pipeline: Pipeline, bodies: Mapping[str, Body]) -> None:
    params, buffers = {p.name for p in kernel.params}, {b.name for b in pipeline.buffers}
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
        if port.view.shape != param.shape or len(port.view.strides) != len(param.shape):
            _refuse(f"{where} passes {list(port.view.shape)} as {param.name!r}, which is {list(param.shape)}")
        if port.per < 0:
            _refuse(f"{where} fires {port.per} times on a slot")


def _check_body(body: Body) -> None:
    where = f"body {body.name!r}"
    ranks = {p.name: len(p.shape) for p in body.params} | {x.name: len(x.shape) for x in body.locals}
    _check_known((w.view.tensor for w in body.windows), ranks, where)
    ranks |= {w.name: len(w.view.shape) for w in body.windows}
    for step in body.steps:
        if isinstance(step, Product):
            accesses: tuple[Access, ...] = (step.a, step.b, step.output)
        elif isinstance(step, Vector | Reduction):
            accesses = (*step.inputs, step.output)
            loads = [i.args for i in step.body if i.op == "load"]
            _check_known((str(args[0]) for args in loads), ranks, where)
            for name, *indices in loads:
                _check_count(indices, range(ranks[str(name)]), where, "indices")
        else:
            continue
        for access in accesses:
            _check_access(access, len(step.dims), ranks, where)


def _check_access(access: Access, dims: int, ranks: Ranks, where: str) -> None:
    _check_known([access.param], ranks, where)
    _check_count(access.map, range(ranks[access.param]), where, "rows of a map")
    for row in access.map:
        _check_count(row, range(dims + 1), where, "coefficients")


def _check_known(names: Iterable[str], known: Iterable[str], where: str) -> None:
    for name in names:
        if name not in set(known):
            _refuse(f"{where} names {name!r}, which does not exist")


def _check_count(given: Sized, wanted: Sized, where: str, what: str) -> None:
    if len(given) != len(wanted):
        _refuse(f"{where} passes {len(given)} {what}, {len(wanted)} are wanted")


def _refuse(why: str) -> NoReturn:
    raise InputError(f"the schedule is malformed: {why}")
