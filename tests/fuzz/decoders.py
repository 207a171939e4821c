"""Fuzzing target: random tiny decoders against eager SnapStream on the model, at -O2 and in turns at -O0 or -O1."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch

from sscc.compiler.emit.emit import emit_program
from sscc.compiler.frontend.capture import capture
from sscc.compiler.frontend.checkpoint_tensors import to_arrays
from sscc.compiler.frontend.eager import EagerSnapStream
from sscc.compiler.frontend.importer import import_capture
from sscc.compiler.interpret.module import signature_of
from sscc.ir.context import mlir, parse_module, print_module
from sscc.ir.errors import InputError, InternalError, SsccError
from sscc.ir.geometry import Geometry
from sscc.ir.levels import ProgramFacts, set_target
from sscc.ir.schedule import Program
from sscc.passes.base import run_passes
from sscc.passes.pass_pipeline import PIPELINES
from sscc.runtime.artifact.contract import Protocol
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import layout_of, reading, stack_tensors
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.library import make_code
from sscc.runtime.backends.reference.backend import Reference
from sscc.runtime.session.session import Session
from sscc.runtime.validator import validate
from tests.fuzz.harness import Finding, Target
from tests.fuzz.lowering import slow_machine
from tests.fuzz.random_decoder import CONTEXT, VOCABULARY, DecoderShape, RandomDecoder, exported
from tests.torch_session import TorchSession

GEOMETRY = Geometry(sink=2, recent=4, topk=3, obs=3, pool=3, pool_mode="avg", max_context=CONTEXT)
CHUNK, PROMPT, STEPS = 5, 17, 4
TOLERANCE = 1e-4
"""Largest error as a share of a row's norm, in f32, as in `sscc run --check`."""


class Decoders(Target):
    name: ClassVar[str] = "decoders"
    seconds: ClassVar[float] = 50.0  # of which it takes 5 to 10: a model is captured once and compiled three times

    def __init__(self, folder: Path) -> None:
        del folder

    def run(self, seed: int) -> str:
        draw = random.Random(seed)
        shape, rows = DecoderShape.drawn(draw), draw.choice(("compact", "compact", "indexed"))
        torch.manual_seed(seed)
        model = RandomDecoder(shape).requires_grad_(False)
        try:
            return _compare(model, replace(GEOMETRY, rows=rows), seed)
        except Finding as finding:
            raise Finding(f"{finding}\n{shape}, rows {rows}") from None


def _compare(model: RandomDecoder, geometry: Geometry, seed: int) -> str:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (PROMPT + STEPS,), generator=generator).tolist()
    eager = EagerSnapStream(model, geometry)
    expected = [eager.prefill(tokens[:PROMPT]), *(eager.decode(token) for token in tokens[PROMPT:])]
    captured = capture(exported(model), batch=1, chunk=CHUNK, max_context=CONTEXT, kinds=None)
    facts = ProgramFacts(1, CHUNK, "f32", model.s.layers, VOCABULARY, "{}", "", ())
    text = _text(import_capture(captured, facts, geometry))
    tensors = to_arrays({**model.state_dict(), **captured.constants})
    for level in (seed % 2, 2):
        try:
            program, signature = _lower(text, level, facts)
        except (InternalError, InputError) as error:
            raise Finding(f"-O{level} ends as a bug in sscc: {error}") from error
        except SsccError as error:
            return f"refused: {str(error)[:80]}"
        weights = stack_tensors(
            {**layout_of(program, "weight"), **layout_of(program, "constant")}, reading(tensors, "the model")
        )
        sessions = {"reference": TorchSession(Session(signature, Reference(program).open(weights, Conditions())))}
        if level == 2:
            native = NativeInterpreter(program, weights, code=make_code(program, optimise=0), threads=1)
            sessions["native"] = TorchSession(Session(signature, native))
        for name, session in sessions.items():
            _check(session, tokens, expected, f"-O{level}, {name}")
    return "agrees"


def _text(module: object) -> str:
    with mlir():
        return print_module(module)  # type: ignore[arg-type]  # a module


def _lower(text: str, level: int, facts: ProgramFacts) -> tuple[Program, Signature]:
    machine = slow_machine()
    with mlir():
        module = parse_module(text, "case")
        set_target(module, machine)
        run_passes(module, PIPELINES[level], verify_each=False)
        program, signature = emit_program(module), signature_of(module)
    validate(program, machine, ranges=Protocol(signature).ranges())
    return program, signature


def _check(session: TorchSession, tokens: list[int], expected: list[torch.Tensor], where: str) -> None:
    rows = [session.prefill(0, tokens[:PROMPT])]
    rows += [session.decode({0: token})[0].clone() for token in tokens[PROMPT:]]
    for step, (ours, theirs) in enumerate(zip(rows, expected, strict=True)):
        distance = float((ours - theirs.flatten()).norm() / theirs.norm())
        if not distance <= TOLERANCE:
            raise Finding(f"{where}: the logits of step {step} are {distance:.2e} of their norm from eager's")
