"""Listing of a schedule: the same program as schedule.json, for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jinja2

from sscc.ir.schedule import (
    Access,
    Body,
    Buffer,
    Entry,
    For,
    If,
    Instr,
    Item,
    Kernel,
    Launch,
    Local,
    Param,
    Pipeline,
    Port,
    Program,
    Scalar,
    ScalarOperand,
    Step,
    Tensor,
    View,
)
from sscc.ir.sizes import dense_strides, format_bytes

SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "eq": "==", "ne": "!=", "lt": "<",
           "le": "<=", "gt": ">", "ge": ">=", "and": "and", "or": "or"}  # fmt: skip


def list_program(program: Program) -> str:
    """Return the listing, one line per tensor, parameter, step, buffer, stage and launch; ends with a newline."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sscc.compiler.emit"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    text: str = environment.get_template("schedule.txt.j2").render(
        version=program.version,
        arena=format_bytes(program.arena_bytes),
        grid="x".join(map(str, program.grid)),
        memory=[_tensor(tensor) for tensor in sorted(program.tensors, key=lambda t: (t.address, t.name))],
        bodies=[_body(body) for body in program.bodies],
        kernels=[_kernel(kernel) for kernel in program.kernels],
        entries=[_entry(entry) for entry in program.entries],
    )
    return text + "\n"


def _tensor(tensor: Tensor) -> str:
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    cut = f" (part of a rank: {tensor.cut})" if tensor.cut else ""
    return f"{tensor.tier} 0x{tensor.address:010x} {tensor.role:9} {tensor.dtype:4} {shape:20} {tensor.name}{cut}"


def _shaped(item: Param | Local | Buffer) -> str:
    return f"{item.name}: {item.dtype}[{', '.join(map(str, item.shape))}]"


def _body(body: Body) -> dict[str, Any]:
    lines = [f"{param.access:6} {_shaped(param)}" for param in body.params]
    lines += [f"scalar {name}" for name in body.scalars]
    lines += [f"local  {_shaped(local)}" for local in body.locals]
    lines += [f"window {window.name} = {_view(window.view)}" for window in body.windows]
    steps = [list(_step(step)) for step in body.steps]
    return {"name": body.name, "location": body.location, "lines": lines, "steps": steps}


def _step(step: Step) -> Iterator[str]:
    """Yield the step's kind and settings, then its access maps and instructions."""
    values = {field.name: getattr(step, field.name) for field in dataclasses.fields(step)}
    body = values.pop("body", ())
    accesses = [(name, value) for name, value in values.items() if isinstance(value, Access)]
    accesses += [(f"in{index}", access) for index, access in enumerate(values.pop("inputs", ()))]
    plain = [f"{name}={_plain(value)}" for name, value in values.items() if not isinstance(value, Access)]
    yield f"{step.kind} {' '.join(plain)}".rstrip()
    for name, access in sorted(accesses):
        yield f"{name} = {_access(access)}"
    for instruction in body:
        yield _instruction(instruction)


def _access(access: Access) -> str:
    """Return an access such as `w[expert[d0], d1, d3]`, whose first axis is indirect."""
    places = [_index(row) for row in access.map]
    if access.indirect is not None:
        places[access.indirect.axis] = _access(access.indirect.index)
    return f"{access.param}[{', '.join(places)}]"


def _plain(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _index(row: tuple[int, ...]) -> str:
    """Return an index such as `d0 + 2*d1 + 8` for one row of an access map."""
    terms = [f"d{dim}" if factor == 1 else f"{factor}*d{dim}" for dim, factor in enumerate(row[:-1]) if factor]
    if row[-1] or not terms:
        terms.append(str(row[-1]))
    return " + ".join(terms)


def _instruction(instruction: Instr) -> str:
    return f"{instruction.name}: {instruction.type} = {instruction.op}({', '.join(map(str, instruction.args))})"


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "inputs": ", ".join([*entry.inputs, *entry.scalar_inputs]),
        "outputs": ", ".join([*entry.outputs, *map(str, entry.scalar_outputs)]),
        "lines": list(_items(entry.body, "")),
    }


def _kernel(kernel: Kernel) -> dict[str, Any]:
    params = [f"{param.access:6} {_shaped(param)}" for param in kernel.params]
    params += [f"scalar {name}" for name in kernel.scalars]
    lines = list(_items(kernel.body, ""))
    return {"name": kernel.name, "location": kernel.location, "params": params, "lines": lines}


def _pipeline(pipeline: Pipeline, indent: str) -> Iterator[str]:
    """Yield scalars, buffers and stages; a stage's ports in the order of its body's parameters."""
    yield f"{indent}pipeline {pipeline.name} for {pipeline.index} in {pipeline.lower} .. {pipeline.upper}:"
    for scalar in pipeline.scalars:
        yield f"{indent}  {scalar.name} = {_scalar(scalar)}"
    for buffer in pipeline.buffers:
        size = format_bytes(buffer.nbytes)
        yield f"{indent}  buffer {_shaped(buffer)} x{buffer.depth} at {buffer.tier} 0x{buffer.address:08x}, {size}"
    for stage in pipeline.stages:
        times = "" if stage.when == "each" else f" {stage.when}"
        grid = f" x{stage.trips}" if stage.grid else ""
        units = f", {stage.pcus} PCUs" if stage.pcus else ""
        operands = ", ".join([*map(_port, stage.ports), *map(str, stage.scalars)])
        yield f"{indent}  stage {stage.name}{grid}{times}{units}: {stage.body}({operands})"
        if stage.waits:
            yield f"{indent}    waits for {', '.join(stage.waits)}"


def _port(port: Port) -> str:
    """Return a port, `&buffer` for a stream, with the firings per slot and the slots ahead unless these are 1 and 0."""
    if not port.per:
        return _view(port.view)
    rate = f" per {port.per}" if port.per > 1 else ""
    ahead = f" ahead {port.lag}" if port.lag else ""
    return f"&{_view(port.view)}{rate}{ahead}"


def _items(items: tuple[Item, ...], indent: str) -> Iterator[str]:
    for item in items:
        if isinstance(item, Scalar):
            yield f"{indent}{item.name} = {_scalar(item)}"
        elif isinstance(item, Pipeline):
            yield from _pipeline(item, indent)
        elif isinstance(item, Launch):
            scalars = [str(operand) for operand in item.scalars]
            yield f"{indent}launch {item.kernel}({', '.join([*map(_view, item.args), *scalars])})"
        elif isinstance(item, For):
            yield f"{indent}for {item.index} in {item.lower} .. {item.upper}:"
            yield from _items(item.body, indent + "  ")
        elif isinstance(item, If):
            yield f"{indent}if {item.condition}:"
            yield from _items(item.body, indent + "  ")


def _scalar(item: Scalar) -> str:
    args: tuple[ScalarOperand, ...] = item.args
    if item.op in SYMBOLS:
        return f"{args[0]} {SYMBOLS[item.op]} {args[1]}"
    return f"{item.op}({', '.join(map(str, args))})"


def _view(view: View) -> str:
    """Return `name[shape @ offset]`, with the strides unless they are row-major."""
    offset = [str(view.offset)] if view.offset else []
    offset += [name if factor == 1 else f"{factor}*{name}" for name, factor in view.terms]
    where = f" @ {' + '.join(offset)}" if offset else ""
    strides = "" if view.strides == dense_strides(view.shape) else f" strides {','.join(map(str, view.strides))}"
    return f"{view.tensor}[{'x'.join(map(str, view.shape))}{strides}{where}]"
