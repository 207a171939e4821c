"""Whatever is wrong with a schedule: the validator refuses it, with an error of ours. What it accepts is compiled, at
once, and computes what the reference does, or is refused by name: never an internal error."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sscc.ir.errors import InputError
from sscc.ir.schedule import Program
from sscc.ir.target import load_target
from sscc.runtime.backends.cpu.codegen.features import GENERIC
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.library import make_code
from sscc.runtime.backends.cpu.plan.planner import plan_program
from sscc.runtime.backends.reference import ReferenceInterpreter
from sscc.runtime.backends.reference.arrays import TORCH_DTYPES, to_array
from sscc.runtime.validator import validate
from tests.runtime.backends.cpu.plan_reader import decode_plan
from tests.runtime.broken import bases
from tests.runtime.broken.mutations import BROKEN, Broken

MACHINE = load_target("rdu")
BASES = (bases.streamed_product, bases.looped_layers, bases.chunked_prefill, bases.chained_launches)
CALLS = {"length": 9, "slot": 1}
EXECUTED = 4
"""Number of changed schedules of each base that are executed; compiling one takes half a second."""
HUGE = 1 << 40
"""A number too large for memory, or for a loop that a test waits for: such a schedule is planned, not executed."""
Path = tuple[Any, ...]


def plan_or_refuse(program: Program) -> str:
    """Return the outcome of a schedule: "invalid", "planned" or "refused". Checks that a plan can be stored."""
    if not _is_valid(program):
        return "invalid"
    start = time.process_time()
    try:
        plan = plan_program(program, GENERIC).plan
        assert decode_plan(plan.encode()) == plan
        outcome = "planned"
    except InputError:
        outcome = "refused"
    assert time.process_time() - start < 10
    return outcome


def _is_valid(program: Program) -> bool:
    try:
        validate(program, MACHINE, ranges=bases.RANGES)
    except InputError:
        return False
    return True


@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: b.name)
def test_broken_schedules(broken: Broken) -> None:
    assert plan_or_refuse(broken.program()) == "invalid"


@pytest.mark.parametrize("base", BASES, ids=lambda b: b.__name__)
def test_what_is_in_a_schedule_may_be_anything(base: Callable[[], Program]) -> None:
    """Numbers, names and lists changed at random, one or two at a time; of those that are planned some are executed."""
    draw, text = random.Random(base.__name__), base().to_json()
    assert plan_or_refuse(base()) == "planned"
    execute(base())
    outcomes: Counter[str] = Counter()
    for _ in range(150):
        data = json.loads(text)
        for _ in range(draw.randint(1, 2)):
            _change(data, draw)
        try:
            program = Program.from_json(json.dumps(data))
        except InputError:
            outcomes["malformed"] += 1
            continue
        outcome = plan_or_refuse(program)
        outcomes[outcome] += 1
        small = str(HUGE) not in program.to_json()
        if outcome == "planned" and program != base() and small and outcomes["executed"] < EXECUTED:
            execute(program)
            outcomes["executed"] += 1
    assert outcomes["invalid"] > 20
    assert outcomes["executed"] == EXECUTED


def execute(program: Program) -> None:
    """Every entry, on both interpreters, with the same numbers in everything that memory holds."""
    generator = torch.Generator().manual_seed(0)
    contents = {tensor.name: _contents(tensor, generator) for tensor in program.tensors}
    weights = {t.name: contents[t.name] for t in program.tensors if t.role in ("weight", "constant")}
    arrays = {name: to_array(value) for name, value in weights.items()}
    reference = ReferenceInterpreter(program, weights)
    native = NativeInterpreter(program, arrays, code=make_code(program, optimise=0), threads=2)
    for entry in program.entries:
        scalars = {name: CALLS[name] for name in entry.scalar_inputs}
        inputs = {name: contents[name] for name in entry.inputs}
        expected, ends = reference.run(entry.name, inputs, scalars)
        actual, native_ends = native.run(entry.name, {n: to_array(value) for n, value in inputs.items()}, scalars)
        assert tuple(ends) == tuple(native_ends)
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], to_array(value), rtol=2e-5, atol=2e-5, err_msg=name)
    for tensor in program.tensors:
        if tensor.role == "state":
            golden = to_array(reference.tensor(tensor.name))
            np.testing.assert_allclose(native.tensor(tensor.name), golden, rtol=2e-5, atol=2e-5, err_msg=tensor.name)


def _contents(tensor: Any, generator: torch.Generator) -> torch.Tensor:
    if tensor.dtype == "f32":
        return torch.randn(tensor.shape, generator=generator)
    return torch.ones(tensor.shape, dtype=TORCH_DTYPES[tensor.dtype])


def _change(data: Any, draw: random.Random) -> None:
    paths = [path for path in _paths(data) if path]
    *inside, last = draw.choice(paths)
    holder = _at(data, tuple(inside))
    old = holder[last]
    if isinstance(old, str):
        names = [_at(data, path) for path in paths if path[-1] == last]
        holder[last] = draw.choice([*(name for name in names if isinstance(name, str)), "", "lost"])
    elif isinstance(old, list):
        holder[last] = draw.choice([old[:-1], old[1:], old + old[:1]])
    else:
        holder[last] = draw.choice([0, 1, -1, 2, old + 1, old - 1, old * 2, HUGE])


def _paths(node: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every number, name and list."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _paths(value, (*path, key))
        return
    yield path
    if isinstance(node, list):
        for number, value in enumerate(node):
            yield from _paths(value, (*path, number))


def _at(node: Any, path: Path) -> Any:
    for key in path:
        node = node[key]
    return node
