"""A module of level `kernels` or above with one entry: compiled at every level of optimisation, executed on both
interpreters, and compared with the evaluator, which runs the module itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from sscc.compiler.emit.emit import emit_program
from sscc.compiler.interpret.module import ModuleInterpreter
from sscc.ir.context import mlir, parse_module
from sscc.ir.errors import CheckError, InputError, InternalError, SsccError, UnsupportedError
from sscc.ir.levels import set_target
from sscc.ir.schedule import Program
from sscc.ir.target import Target
from sscc.passes.base import run_passes
from sscc.passes.outline_kernels import OutlineKernels
from sscc.passes.pass_pipeline import PIPELINES
from sscc.runtime.backends.cpu.codegen.refusal import NoNativeCode
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.library import make_code
from sscc.runtime.backends.reference import ReferenceInterpreter
from sscc.runtime.backends.reference.arrays import to_array, to_tensors
from sscc.runtime.validator import validate
from tests.fuzz.harness import Finding
from tests.targets import changed

Tensors = Mapping[str, torch.Tensor]
SLOW_MEMORY = 1e6
"""Bytes per second of a machine on which even tiny operands are worth cutting into tiles."""


@dataclass(frozen=True)
class FilledCall:
    """Arguments of an entry: contents by name for its inputs, weights and states, and its scalars."""

    entry: str
    contents: Tensors
    scalars: Mapping[str, int]
    ranges: Mapping[str, tuple[int, int]]


def slow_machine() -> Target:
    """The shipped machine, whose memory is so slow that stages work on tiles."""
    return changed({"hbm.bandwidth": SLOW_MEMORY})


def evaluate(text: str, call: FilledCall) -> dict[str, torch.Tensor]:
    """Outputs and states after the call, by the evaluator. Raises SsccError."""
    with mlir():
        interpreter = ModuleInterpreter(parse_module(text, "case"), call.contents)
    states = [name for name in call.contents if name in interpreter._held]
    for name in states:
        interpreter._held[name] = call.contents[name].clone()
    outputs, _ = interpreter.run(call.entry, call.contents, call.scalars)
    return {**{name: interpreter.tensor(name) for name in states}, **outputs}


def lower(text: str, opt_level: int, machine: Target, ranges: Mapping[str, tuple[int, int]]) -> Program:
    """The schedule of a module of level graph with entries, validated. Raises SsccError."""
    steps = PIPELINES[opt_level]
    first = next(index for index, step in enumerate(steps) if isinstance(step, OutlineKernels))
    with mlir():
        module = parse_module(text, "case")
        set_target(module, machine)
        run_passes(module, steps[first:])
        program = emit_program(module)
    validate(program, machine, ranges=ranges)
    return program


def execute(program: Program, call: FilledCall) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Outputs and states after the call, by each interpreter. Raises SsccError where one refuses."""
    stored = [t.name for t in program.tensors if t.role in ("weight", "constant")]
    states = [t.name for t in program.tensors if t.role == "state"]
    weights = {name: call.contents[name] for name in stored}
    inputs = {name: call.contents[name] for name in program.entry(call.entry).inputs}
    scalars = {name: call.scalars[name] for name in program.entry(call.entry).scalar_inputs}
    reference = ReferenceInterpreter(program, weights, checked=True)
    for name in states:
        reference.tensor(name).copy_(call.contents[name])
    outputs, _ = reference.run(call.entry, inputs, scalars)
    yield "reference", {**{name: reference.tensor(name).clone() for name in states}, **outputs}
    arrays = {name: to_array(value) for name, value in weights.items()}
    native = NativeInterpreter(program, arrays, code=make_code(program, optimise=0), threads=2)
    for name in states:
        native.tensor(name)[...] = to_array(call.contents[name])
    native_outputs, _ = native.run(call.entry, {name: to_array(value) for name, value in inputs.items()}, scalars)
    yield "native", to_tensors({**{name: native.tensor(name).copy() for name in states}, **native_outputs})


def compare(text: str, call: FilledCall, levels: Iterable[int] = (0, 1, 2)) -> str:
    """Return the outcome of a module: "agrees", "undefined" if the evaluator finds undefined behaviour, or the reason
    for which a level refuses it.

    Raises Finding if a schedule computes other results, does not validate, or sscc is at fault.
    """
    try:
        expected = evaluate(text, call)
    except CheckError:
        return "undefined"
    except (InputError, UnsupportedError) as error:
        return f"refused: {_reason(error)}"
    if not all(bool(value.isfinite().all()) for value in expected.values()):
        return "undefined"
    for level in levels:
        outcome = _compare_level(text, call, level, expected)
        if outcome != "agrees":
            return outcome
    return "agrees"


def _compare_level(text: str, call: FilledCall, level: int, expected: Tensors) -> str:
    try:
        program = lower(text, level, slow_machine(), call.ranges)
    except InternalError as error:
        raise Finding(f"-O{level} ends as a bug in sscc: {error}") from error
    except InputError as error:
        if level == 0:  # as the evaluator's scalars happen to be it is defined, for all others it is not
            return f"invalid: {_reason(error)}"
        raise Finding(f"-O{level} makes an invalid schedule: {error}") from error
    except UnsupportedError as error:
        return f"refused: {_reason(error)}"
    try:
        for name, actual in execute(program, call):
            for tensor, value in expected.items():
                words = _difference(actual[tensor], value)
                if words:
                    raise Finding(f"-O{level}, {name}: {tensor}: {words}")
    except InputError as error:
        if not isinstance(error.kind, NoNativeCode):
            raise
        return f"refused: {_reason(error)}"
    return "agrees"


def _difference(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """In words, where two tensors differ by more than rounding; "" where they do not."""
    if not expected.is_floating_point():
        wrong = actual != expected
    else:
        close = 3e-2 if expected.dtype is torch.bfloat16 else 1e-4
        limit = close * (1 + float(expected.abs().max() if expected.numel() else 0))
        wrong = ~((actual - expected).abs() <= limit)
    if not bool(wrong.any()):
        return ""
    place = tuple(wrong.nonzero()[0].tolist())
    numbers = f"{actual[place]} instead of {expected[place]}"
    return f"{int(wrong.sum())} of {wrong.numel()} differ, at {list(place)} {numbers}"


def _reason(error: SsccError) -> str:
    """A refusal without what differs from case to case."""
    return re.sub(r"loc\(.*?\)|[0-9]+", "#", str(error))[:120]
