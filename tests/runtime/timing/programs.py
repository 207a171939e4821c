"""Schedules whose times can be worked out by hand: tiles that are loaded, multiplied and stored.

On `MACHINE` a byte of HBM takes 1 ns, a floating-point operation of all 10 units 1 ns, and SRAM,
element-wise work and firing as such take no time.
"""

from __future__ import annotations

from typing import Any

from sscc.ir.schedule import (
    Access,
    Body,
    Buffer,
    Entry,
    Item,
    Kernel,
    Launch,
    Param,
    Pipeline,
    Port,
    Product,
    Program,
    Scalar,
    ScalarOperand,
    Stage,
    Tensor,
    Vector,
    View,
)
from tests.runtime.schedules import view_of
from tests.targets import changed

NS = 1e-9
TILE = 100  # elements of a tile, all of them bf16


MACHINE = changed(
    {
        "pcus": 10,
        "pmu_bytes": 1000,
        "bf16_flops": 1e9,
        "f32_flops": 1e9,
        "simd_lanes": 1e12,
        "sram.capacity": 10 * 1000,
        "sram.bandwidth": 1e30,
        "hbm.bandwidth": 1e9,
        "ddr.bandwidth": 1e8,
        "launch_seconds": 1000 * NS,
        "firing_seconds": 1e-30,
        "boundary_seconds": 500 * NS,
    }
)


COPY = Body(
    "copy",
    (Param("x", (TILE,), "bf16", "read"), Param("y", (TILE,), "bf16", "write")),
    (),
    (),
    (),
    (Vector((TILE,), (Access("x", ((1, 0),)),), Access("y", ((1, 0),)), (), "in0"),),
)


def product(flops: int, outputs: int = 1) -> Body:
    """Return a body that reads a tile (a part of it below 200 operations per output) and writes `outputs` elements."""
    reduced = flops // (2 * outputs)
    return Body(
        f"product{flops}",
        (Param("w", (TILE,), "bf16", "read"), Param("y", (outputs,), "bf16", "write")),
        (),
        (),
        (),
        (
            Product(
                (outputs, reduced),
                (1,),
                Access("w", ((0, 0, 0),)),
                Access("w", ((0, 1, 0),) if reduced <= TILE else ((0, 0, TILE - 1),)),
                Access("y", ((1, 0, 0),)),
            ),
        ),
    )


def load(
    name: str, param: str, buffer: str, trips: int, *, when: Any = "each", offset: tuple[tuple[str, int], ...] = ()
) -> Stage:
    """Return a stage that copies tile after tile of a parameter [tiles, TILE] into a buffer."""
    ports = (Port(View(param, (TILE,), (1,), 0, (*offset, ("t0", TILE)))), Port(view_of(buffer, (TILE,)), per=1))
    return Stage(name, "copy", (trips,), ports, (), (buffer,), when)


def consume(name: str, body: Body, buffer: str, out: str, trips: int, *, per: int = 1, pcus: int = 10) -> Stage:
    """Return a stage that fires a body on each tile of a buffer; `out` is a parameter of `outputs` elements."""
    outputs = body.params[1].shape[0]
    ports = (Port(view_of(buffer, (TILE,)), per=per), Port(view_of(out, (outputs,))))
    return Stage(name, body.name, (trips,), ports, (), (buffer,), "each", pcus)


def tiles(name: str, depth: int, address: int = 0) -> Buffer:
    return Buffer(name, (TILE,), "bf16", "sram", address, depth)


def kernel(
    stages: tuple[Stage, ...],
    buffers: tuple[Buffer, ...],
    params: tuple[Param, ...],
    *,
    upper: ScalarOperand = 1,
    scalars: tuple[str, ...] = (),
    computed: tuple[Scalar, ...] = (),
    name: str = "k",
) -> Kernel:
    body: tuple[Item, ...] = (Pipeline("p", "i", 0, upper, computed, buffers, stages),)
    return Kernel(name, params, scalars, body, "model.layers.0")


def program(
    kernels: tuple[Kernel, ...],
    bodies: tuple[Body, ...],
    body: tuple[Item, ...] | None = None,
    *,
    tiers: dict[str, Any] | None = None,
    inputs: tuple[str, ...] = (),
    tensors: tuple[Tensor, ...] | None = None,
) -> Program:
    """Entry "main" launches each kernel once (or runs `body`); every parameter of a kernel is a tensor of its name."""
    params = {param.name: param for kernel in kernels for param in kernel.params}
    named = tuple(
        Tensor(
            p.name, p.shape, p.dtype, "weight" if p.access == "read" else "state", (tiers or {}).get(p.name, "hbm"), 0
        )
        for p in params.values()
    )
    launches = tuple(Launch(k.name, tuple(view_of(p.name, p.shape) for p in k.params), k.scalars) for k in kernels)
    entry = Entry("main", (), (), inputs, (), launches if body is None else body)
    return Program(named if tensors is None else tensors, bodies, kernels, (entry,), 0)


def streamed(
    count: int, flops: int, *, depth: int = 2, iterations: int = 1, outputs: int = 1
) -> tuple[tuple[Kernel, ...], tuple[Body, ...]]:
    """Return a program with `count` tiles per iteration; each takes 200 ns to load and `flops` ns to multiply."""
    body = product(flops, outputs)
    params = (Param("w", (iterations * count, TILE), "bf16", "read"), Param("y", (outputs,), "bf16", "write"))
    stages = (
        load("load", "w", "b", count, offset=(("i", count * TILE),)),
        consume("multiply", body, "b", "y", count),
    )
    return (kernel(stages, (tiles("b", depth),), params, upper=iterations),), (COPY, body)
