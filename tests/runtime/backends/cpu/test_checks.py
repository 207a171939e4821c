"""Checked mode: what leaves its bounds is noted and does no harm, what does not is as before."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sscc.ir.errors import ErrorKind
from sscc.runtime.backends.cpu.codegen import bodies
from sscc.runtime.backends.cpu.codegen.checks import CheckedModule, NativeCheckErrors
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.machine_code import Jit
from sscc.runtime.backends.cpu.codegen.mlir import F32, I1, I64, PTR, TILE_ROW, Function, Value, vector
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.library import make_code
from sscc.runtime.backends.cpu.plan.planner import plan_program
from tests.errors import raises
from tests.fuzz.corpus import CorpusProgram, load_corpus
from tests.fuzz.execution import RunResult, judge, run_native, run_reference
from tests.fuzz.schedules import situation_of
from tests.runtime.broken import bases

Emit = Callable[[Function, Value], None]
GUARD = np.float32(-7)


def execute(emit: Emit) -> np.ndarray:
    """Memory of 48 floats of which code may touch the 16 in the middle, after the code; raises what it has noted."""
    module = CheckedModule()
    f = module.function("f", [("args", PTR)], exported=True)
    f.operands("the test", [f.limit(f["args"], 64)])
    emit(f, f["args"])
    f.returns()
    jit = Jit(module, optimise=0)
    memory = np.full(48, GUARD)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(jit.addresses["f"])(memory[16:].ctypes.data)
    assert (memory[:16] == GUARD).all()
    assert (memory[32:] == GUARD).all()
    module.violations.raise_first()
    return memory[16:32]


def splat(f: Function, lanes: int = 16) -> Value:
    return f.splat(1.0, lanes)


def store_all(f: Function, to: Value) -> None:
    f.store(splat(f), to)


def store_far(f: Function, to: Value) -> None:
    f.store(splat(f, 8), to + 36)


def store_before(f: Function, to: Value) -> None:
    f.store(f.constant(1.0, F32), to + -4)


def load_far(f: Function, to: Value) -> None:
    f.store(f.load(to + 64, F32), to)


def in_a_loop(f: Function, to: Value) -> None:
    with f.loop(0, 17) as loop:
        f.store(f.constant(1.0, F32), to + loop.index * 4)


def masked(f: Function, to: Value, count: int) -> None:
    f.store_masked(splat(f), to + 32, f.first_lanes(count))


def masked_load(f: Function, to: Value, count: int) -> None:
    f.store(f.load_masked(to + 32, f.first_lanes(count), vector(F32, 16)), to)


def in_a_private_function(f: Function, to: Value, count: int) -> None:
    private = f.module.function("private", [("to", PTR), ("count", I64)])
    with private.loop(0, private["count"], 1, [private["to"]]) as loop:
        private.store(private.constant(1.0, F32), loop.state[0])
        loop.carry(loop.state[0] + 4)
    private.returns()
    f.call(private, to + 32, count)


def through_memory(f: Function, to: Value, offset: int) -> None:
    """The address lies in memory in between, as those of a list of rows do."""
    f.store(to + offset, to)
    f.store(splat(f, 4), f.load(to, PTR))


def by_choice(f: Function, to: Value, which: int) -> None:
    near, far = f.limit(to, 4), f.limit(to + 32, 32)
    f.store(splat(f, 4), f.select(f.constant(which, I1), near, far))


def with_count(emit: Callable[[Function, Value, int], None], count: int) -> Emit:
    return lambda f, to: emit(f, to, count)


RIGHT: dict[str, Emit] = {
    "all": store_all,
    "masked": with_count(masked, 8),
    "masked, nothing": with_count(masked, 0),
    "masked load": with_count(masked_load, 8),
    "private function": with_count(in_a_private_function, 8),
    "through memory": with_count(through_memory, 48),
    "by choice": with_count(by_choice, 0),
}
WRONG: dict[str, tuple[Emit, ErrorKind, dict[str, Any]]] = {
    "far": (store_far, NativeCheckErrors.OUT_OF_BOUNDS, {"place": "the test", "nbytes": 32, "begin": 36, "extent": 64}),
    "before": (
        store_before, NativeCheckErrors.OUT_OF_BOUNDS,
        {"place": "the test", "nbytes": 4, "begin": -4, "extent": 64},
    ),
    "load": (load_far, NativeCheckErrors.OUT_OF_BOUNDS, {"place": "the test", "nbytes": 4, "begin": 64, "extent": 64}),
    "loop": (in_a_loop, NativeCheckErrors.OUT_OF_BOUNDS, {"place": "the test", "nbytes": 4, "begin": 64, "extent": 64}),
    "masked": (
        with_count(masked, 9), NativeCheckErrors.OUT_OF_BOUNDS,
        {"place": "the test", "nbytes": 36, "begin": 32, "extent": 64},
    ),
    "masked load": (
        with_count(masked_load, 9), NativeCheckErrors.OUT_OF_BOUNDS,
        {"place": "the test", "nbytes": 36, "begin": 32, "extent": 64},
    ),
    "private function": (
        with_count(in_a_private_function, 9), NativeCheckErrors.OUT_OF_BOUNDS,
        {"place": "the test", "nbytes": 4, "begin": 64, "extent": 64},
    ),
    "through memory": (
        with_count(through_memory, 52), NativeCheckErrors.OUT_OF_OPERANDS,
        {"place": "the test", "nbytes": 16, "begin": 0},
    ),
    "by choice": (
        with_count(by_choice, 1), NativeCheckErrors.OUT_OF_BOUNDS,
        {"place": "the test", "nbytes": 16, "begin": 0, "extent": 4},
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_stays_within_bounds_runs(name: str) -> None:
    assert (execute(RIGHT[name]) != GUARD).any() or name == "masked, nothing"


@pytest.mark.parametrize("name", WRONG)
def test_what_leaves_its_bounds_is_named_and_touches_nothing(name: str) -> None:
    emit, kind, fields = WRONG[name]
    with raises(kind, **fields) as caught:
        execute(emit)
    access = "load" if "load" in name else "store"
    assert re.fullmatch(rf"a {access} \(test_checks.py:[0-9]+\)", caught.value.fields["access"])


@pytest.mark.skipif(not Features.of_host().bf16_tiles, reason="this CPU has no tile registers")
def test_tile_registers_are_checked_by_their_rows() -> None:
    def moved(rows: int, offset: int) -> Emit:
        def emit(f: Function, to: Value) -> None:
            f.configure_tiles([(rows, TILE_ROW)], f.stack(64))
            f.zero_tile(0)
            f.store_tile(0, to + offset, rows)
            f.load_tile(0, to, rows)
            f.release_tiles()

        return emit

    assert (execute(moved(1, 0)) == 0).all()
    with raises(NativeCheckErrors.OUT_OF_BOUNDS, nbytes=128, begin=0, extent=64):
        execute(moved(2, 0))
    with raises(NativeCheckErrors.OUT_OF_BOUNDS, nbytes=64, begin=4, extent=64):
        execute(moved(1, 4))


# --------------------------------------------------------------------------------------------- whole programs


def test_a_wrong_extent_in_a_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    program = bases.streamed_product()
    extent = bodies._Lowering._extent
    monkeypatch.setattr(bodies._Lowering, "_extent", lambda self, param: extent(self, param) - (param == "part"))
    native = NativeInterpreter(
        program, {"w": np.ones((12, 8), np.float32)}, code=make_code(program, optimise=0, checked=True), threads=1
    )
    with raises(NativeCheckErrors.OUT_OF_BOUNDS, place="body 'multiply', steps [0]"):
        native.run("main", {"x": np.ones((2, 8), np.float32)})


PROGRAMS = {item.name: item for item in load_corpus()}


def covering() -> list[str]:
    """Programs that between them have every kind of step that programs are compiled to, for every mix of dtypes."""
    kinds = {
        name: {
            (step.kind, *sorted({param.dtype for param in body.params}))
            for body in item.program.bodies
            for step in body.steps
        }
        for name, item in PROGRAMS.items()
    }
    chosen: list[str] = []
    missing = set().union(*kinds.values())
    while missing:
        chosen.append(max(kinds, key=lambda name: len(kinds[name] & missing)))
        missing -= kinds[chosen[-1]]
    return chosen


def outcomes(item: CorpusProgram) -> Iterator[RunResult]:
    situation = situation_of(item)
    reference = run_reference(item.program, situation)
    code = make_code(item.program, optimise=0, checked=True)
    for threads in (1, 2):
        native = run_native(item.program, situation, code, threads)
        # If the scores that decide a selection differ by less than rounding, results cannot be compared.
        assert judge(reference, native, item.program, situation) in ("agrees", "ill-conditioned")
        yield native


@pytest.mark.parametrize("name", covering())
def test_every_kind_of_code_stays_within_bounds(name: str) -> None:
    for outcome in outcomes(PROGRAMS[name]):
        assert not outcome.refusal


def test_code_is_checked_only_where_asked() -> None:
    program = bases.streamed_product()
    assert "check." not in plan_program(program, Features.of_host()).module.text()
    assert make_code(program, optimise=0).violations is None


# --------------------------------------------------------------------------------------------- guarded memory

TOUCH = """
import ctypes, sys
import numpy as np
from sscc.runtime.support._native import Core
from tests.runtime.backends.cpu.native.plans import plan, PlanRegion
data = np.ones(8)
of = plan(regions=[PlanRegion("x", "arena", 100), PlanRegion("w", "external", 64), PlanRegion("mine", "private", 8)])
core = Core(of.encode(), [1], [("w", data.ctypes.data, 64)], 1, guarded=True)
assert np.array_equal(np.ctypeslib.as_array((ctypes.c_double * 8).from_address(core.region("w")[0])), data)
address, nbytes = core.region(sys.argv[1])
ctypes.memset(address, 0, nbytes)
print("inside", flush=True)
ctypes.memset(address + int(sys.argv[2]), 0, 1)
"""


@pytest.mark.parametrize(("region", "offset"), [("x", 192), ("x", -4096), ("w", 128), ("mine", 64)])
def test_a_guarded_region_ends_in_memory_that_nobody_can_touch(region: str, offset: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", TOUCH, region, str(offset)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "inside\n", done.stderr
    assert done.returncode == -signal.SIGSEGV
