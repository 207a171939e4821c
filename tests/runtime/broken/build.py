"""Placed schedules for the validator, and changes to one record of a schedule."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sscc.ir.kv_rows import numbers_in
from sscc.ir.opspec import Op, spec_of_step
from sscc.ir.schedule import (
    Access,
    Body,
    Buffer,
    Instr,
    Launch,
    Param,
    Port,
    Product,
    Program,
    Tensor,
    Vector,
)
from tests.runtime.schedules import read, view_of, write

Record = TypeVar("Record")
Terms = tuple[tuple[str, int], ...]


def port(name: str, shape: tuple[int, ...], per: int = 0, lag: int = 0, terms: Terms = ()) -> Port:
    return Port(view_of(name, shape, 0, *terms), per, lag)


def most_moved(step: Op, params: Sequence[Param]) -> dict[str, tuple[int, int]]:
    """Elements of each parameter that one firing of a step reads and writes at most, as its specification says."""
    spec, by_name = spec_of_step(step), {param.name: param for param in params}
    regions, sizes = spec.regions(step), dict[str, int]()
    for name, region in regions.items():
        (element, letters), param = spec.step_patterns[name], by_name[region]
        *outer, width = param.shape
        if param.dtype == "i8" and element in ("row", "encoded"):
            width = numbers_in(width, sizes.get(letters[-1]))
        sizes |= dict(zip(letters, (*outer, width), strict=True))
    amounts = {**sizes, **spec.settings(step), "valid": spec.rows(sizes), "live": sizes.get("T", 0)}
    for name, number in spec.numbers.items():
        amounts[name] = number.most(amounts)
    read, written = Counter(by_name.keys()), Counter(by_name.keys())
    for name, region in regions.items():
        counts = spec.operands[name].moved(amounts, by_name[region].shape)
        read[region] += counts[0]
        written[region] += counts[1]
    return {name: (read[name] - 1, written[name] - 1) for name in by_name}


def add_body(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> Body:
    """y = a + b, where b is of the shape of a up to axes of size 1."""
    sizes = [size for size in a if size > 1]
    assert sizes == [size for size in b if size > 1]
    program = (Instr("sum", "addf", ("in0", "in1"), "f32"),)
    step = Vector(tuple(sizes), (_squeezed("a", a), _squeezed("b", b)), _squeezed("y", a), program, "sum")
    return Body(name, (read("a", a), read("b", b), write("y", a)), (), (), (), (step,))


def _squeezed(name: str, shape: tuple[int, ...]) -> Access:
    rank = sum(1 for size in shape if size > 1)
    rows, dim = [], 0
    for size in shape:
        row = [0] * (rank + 1)
        if size > 1:
            row[dim] = 1
            dim += 1
        rows.append(tuple(row))
    return Access(name, tuple(rows))


def product_step(x: str, w: str, y: str, rows: int, outputs: int, inputs: int) -> Product:
    """y[m, n] = sum over k of x[m, k] * w[n, k]."""
    m, n, k = (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0)
    return Product((rows, outputs, inputs), (2,), Access(x, (m, k)), Access(w, (n, k)), Access(y, (m, n)))


def place(*tensors: tuple[str, tuple[int, ...], Any, Any]) -> tuple[tuple[Tensor, ...], int]:
    """Tensors (name, shape, dtype, role) side by side, weights after the arena; and the arena's size."""
    placed: list[Tensor] = []
    address = arena = 0
    for name, shape, dtype, role in sorted(tensors, key=lambda tensor: tensor[3] == "weight"):
        sources = tuple(f"{name}.{n}" for n in range(shape[0])) if role == "weight" else ()
        placed.append(Tensor(name, shape, dtype, role, "hbm", address, sources))
        address += -(-placed[-1].nbytes // 64) * 64
        arena = arena if role == "weight" else address
    return tuple(placed), arena


def sram(*buffers: tuple[str, tuple[int, ...], int]) -> tuple[Buffer, ...]:
    """Buffers (name, shape, depth) of f32, side by side."""
    placed: list[Buffer] = []
    address = 0
    for name, shape, depth in buffers:
        placed.append(Buffer(name, shape, "f32", "sram", address, depth))
        address += placed[-1].nbytes
    return tuple(placed)


def launch_of(tensors: tuple[Tensor, ...], kernel: str, *names: str, scalars: tuple[Any, ...] = ()) -> Launch:
    """A launch on whole tensors."""
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    return Launch(kernel, tuple(view_of(name, shapes[name]) for name in names), scalars)


# ------------------------------------------------------------------------------------------------- mutations


def change(program: Program, kind: type[Record], name: str, edit: Callable[[Record], Record]) -> Program:
    """The program with `edit` applied to every record of `kind` that has that name (a launch: of that kernel)."""
    hits: list[Any] = []

    def rebuilt(node: Any) -> Any:
        if isinstance(node, tuple):
            return tuple(rebuilt(item) for item in node)
        if not dataclasses.is_dataclass(node) or isinstance(node, type):
            return node
        fields = {field.name: rebuilt(getattr(node, field.name)) for field in dataclasses.fields(node)}
        copied: Any = type(node)(**fields)
        called = getattr(copied, "name", None) or getattr(copied, "kernel", None) or getattr(copied, "kind", None)
        if isinstance(copied, kind) and called == name:
            hits.append(copied)
            return edit(copied)
        return copied

    changed: Program = rebuilt(program)
    assert hits, f"no {kind.__name__} {name!r}"
    assert changed != program, f"{kind.__name__} {name!r} is not changed"
    return changed


def setting(**fields: Any) -> Callable[[Any], Any]:
    """An edit that sets fields."""
    return lambda record: dataclasses.replace(record, **fields)


def port_setting(number: int, view: Any = None, **fields: Any) -> Callable[[Any], Any]:
    """Return an edit of a stage that sets fields of one port, and of its view (a dict)."""

    def edit(stage: Any) -> Any:
        ports = list(stage.ports)
        ports[number] = dataclasses.replace(ports[number], **fields)
        ports[number] = dataclasses.replace(ports[number], view=dataclasses.replace(ports[number].view, **(view or {})))
        return dataclasses.replace(stage, ports=tuple(ports))

    return edit


def arg_setting(number: int, **fields: Any) -> Callable[[Any], Any]:
    """An edit of a launch that sets fields of one of its views."""

    def edit(launch: Any) -> Any:
        args = list(launch.args)
        args[number] = dataclasses.replace(args[number], **fields)
        return dataclasses.replace(launch, args=tuple(args))

    return edit
