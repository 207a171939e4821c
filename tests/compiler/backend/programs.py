"""One entry in MLIR text, compiled to a schedule and run by the reference interpreter."""

from __future__ import annotations

from typing import Any

import torch

from sscc.compiler.emit.emit import emit_program
from sscc.ir.context import mlir, parse_module
from sscc.ir.geometry import Geometry
from sscc.ir.schedule import For, If, Item, Launch, Program
from sscc.passes.base import run_passes, run_upstream
from sscc.passes.form_stages import GENERALISE, FormStages
from sscc.passes.merge_equal_kernels import MergeEqualKernels
from sscc.passes.outline_kernels import OutlineKernels
from sscc.runtime.backends.reference import ReferenceInterpreter

GEOMETRY = Geometry(sink=2, recent=4, topk=3, obs=2, pool=3, pool_mode="avg", max_context=20)


def module_text(body: str, geometry: Geometry = GEOMETRY) -> str:
    fields = ", ".join(
        f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value} : i64"
        for name, value in geometry.to_dict().items()
    )
    return f'module attributes {{sscc.level = "graph", kv.geometry = {{{fields}}}}} {{\n{body}\n}}'


def emit(body: str, geometry: Geometry = GEOMETRY) -> Program:
    """Return the schedule that -O0 makes of functions with public entries, after writing and reading it."""
    with mlir():
        module = parse_module(module_text(body, geometry), "the test")
        run_passes(module, [OutlineKernels(), MergeEqualKernels(), FormStages(fuse=False)])
        return Program.from_json(emit_program(module).to_json())


def emit_placed(text: str) -> Program:
    """The schedule of functions that the passes have placed already: kernels, bodies and public entries."""
    with mlir():
        module = parse_module(module_text(text), "the test")
        run_upstream(module, GENERALISE, "generalisation of bodies")
        return Program.from_json(emit_program(module).to_json())


def entry(arguments: str, result: str, work: str, scalars: str = "") -> str:
    """A public function `main` of arguments like ``x: 2x3xf32`` that returns %out."""
    typed_names = [item.split(": ") for item in arguments.split(", ") if item]
    listed = [f'%{name}: tensor<{type_}> {{sscc.input = "{name}"}}' for name, type_ in typed_names]
    listed += [f'%{name}: index {{sscc.input = "{name}"}}' for name in scalars.split()]
    return (
        f"func.func public @main({', '.join(listed)}) -> (tensor<{result}> {{sscc.output = \"out\"}}) {{\n"
        f"{work}\nreturn %out : tensor<{result}>\n}}"
    )


def run(program: Program, scalars: dict[str, int] | None = None, **inputs: torch.Tensor) -> torch.Tensor:
    """The output `out` of entry `main`, with reads of unwritten temporaries refused."""
    interpreter = ReferenceInterpreter(program, {}, checked=True)
    outputs, _ = interpreter.run("main", inputs, scalars or {})
    return outputs["out"]


def steps(program: Program) -> list[Any]:
    """All steps of all bodies in order, those left out that only copy a window."""
    return [step for body in program.bodies if not body.name.startswith("copy.") for step in body.steps]


def launched(items: tuple[Item, ...]) -> list[str]:
    """The kernels that an entry's body names, in order, control flattened."""
    names: list[str] = []
    for item in items:
        if isinstance(item, Launch):
            names.append(item.kernel)
        elif isinstance(item, For | If):
            names += launched(item.body)
    return names
