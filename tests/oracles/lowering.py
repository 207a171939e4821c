"""One captured decoder under any cache: for oracles that compare geometries and policies of the same model."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from torch_mlir import ir

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.emit.emit import emit_program
from sscc.compiler.frontend.checkpoint_tensors import to_arrays
from sscc.compiler.interpret.module import signature_of
from sscc.compiler.options.compile_options import CompileOptions
from sscc.ir.context import mlir, parse_module, print_module
from sscc.ir.geometry import Geometry
from sscc.ir.levels import get_facts, get_looping, passes_done, set_facts
from sscc.ir.schedule import Program
from sscc.passes.base import run_passes
from sscc.passes.pass_pipeline import passes_between
from sscc.runtime.artifact.tensor_files import layout_of, reading, stack_tensors
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.reference.backend import Reference
from sscc.runtime.session.session import Session
from sscc.runtime.validator import validate
from tests.compiler.interpret.models import weights
from tests.families import random_model
from tests.torch_session import TorchSession

FAMILY = "llama3-rope"  # two layers, two KV heads of two query heads each
CONTEXT, BATCH, CHUNK = 48, 3, 8


@cache
def captured(dtype: str, chunk: int) -> str:
    """The model at level import: nothing in it but an attribute knows the cache."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        random_model(FAMILY).config.save_pretrained(folder)
        options = CompileOptions(
            folder / "config.json", folder / "out.mlir", compile_to="import", weights="none", max_context=CONTEXT,
            batch=BATCH, prefill_chunk=chunk, dtype=dtype,
        )  # fmt: skip
        compile_model(options)
        return options.output_path.read_text()


def lowered(g: Geometry, dtype: str, level: str, opt_level: int, chunk: int = CHUNK) -> ir.Module:
    """The model with a cache of this geometry, at `level`; inside an MLIR context."""
    module = parse_module(_graph(g, dtype, chunk), "the graph")
    run_passes(module, passes_between(passes_done(module), level, opt_level))
    return module


@cache
def _graph(g: Geometry, dtype: str, chunk: int) -> str:
    """The same at level graph, with which every `-O` level begins."""
    module = parse_module(captured(dtype, chunk), "the capture")
    set_facts(module, get_facts(module)[0], g)
    run_passes(module, passes_between((), "graph", 2))
    return print_module(module)


def compiled(g: Geometry, opt_level: int = 2, dtype: str = "f32", chunk: int = CHUNK) -> tuple[Program, TorchSession]:
    """A validated program and a session on it, in checked mode; made once."""
    return _compiled(g, opt_level, dtype, chunk)


@cache
def _compiled(g: Geometry, opt_level: int, dtype: str, chunk: int) -> tuple[Program, TorchSession]:
    with mlir():
        module = lowered(g, dtype, "schedule", opt_level, chunk)
        program, signature = emit_program(module), signature_of(module)
        facts = get_facts(module)[0]
        assert [item.reason for item in get_looping(module)] == ["", ""] * (opt_level == 2)
    most = CONTEXT // chunk
    limits = {"length": CONTEXT, "slot": BATCH - 1, "phase": facts.layers + 2, "chunk": most, "steps": 1 << 40}
    limits |= {"reused": most - 1, "first": most * chunk - BATCH}
    validate(program, ranges={name: (int(name in ("length", "steps")), high) for name, high in limits.items()})
    layout = {**layout_of(program, "weight"), **layout_of(program, "constant")}
    tensors = stack_tensors(layout, reading(to_arrays(weights(FAMILY, dtype)), "the model"))
    return program, TorchSession(Session(signature, Reference(program).open(tensors, Conditions(checked=True))))
