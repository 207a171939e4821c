"""The native interpreter against the reference interpreter, on every kind of schedule that the compiler makes.

Both execute the same schedule; only the order of sums and roundings may differ.
"""

from __future__ import annotations

import pytest
import torch

from sscc.runtime.backends.cpu.codegen.features import AVX2, GENERIC, Features
from tests.families import GEOMETRY, Compiler, greedy, numbers, random_tokens
from tests.native import native_session
from tests.test_levels import CASES, difference, run, steps_of

F32 = 2e-5
"""||a - b|| / ||b|| of one step's logits in f32. Measured: 4e-6 at most."""

STATES = 1e-4
"""The same of a cache, where rows are the same ones."""


@pytest.mark.parametrize("opt_level", [0, 1, 2])
@pytest.mark.parametrize("case", CASES)
def test_every_level_runs_natively_as_on_the_reference(case: str, opt_level: int, compiled: Compiler) -> None:
    expected = run(compiled, case, opt_level)
    program = CASES[case].compiled(compiler=compiled, opt_level=opt_level)
    session = native_session(program.artifact)
    steps = dict(steps_of(session))
    assert steps.keys() == expected.logits.keys()
    for step, logits in steps.items():
        normwise, words = difference(logits.float(), expected.logits[step])
        assert normwise <= CASES[case].tolerance(F32), f"{step}: {words}"
    for name, state in expected.states.items():
        native_state = numbers(session.interpreter.tensor(name))
        if state.dtype is torch.int64:
            assert torch.equal(native_state, state), name
        else:
            normwise, words = difference(native_state, state)
            assert normwise <= CASES[case].tolerance(STATES), f"{name}: {words}"


# Families whose kernels no case of the levels has: those that are left out compute other rotary tables, which are
# constants, or are another one's layers with other sizes.
KERNELS = ("llama", "llama-tied-biased", "llama-wide-heads", "qwen2", "phi3", "olmo2", "starcoder2")


@pytest.mark.parametrize("family", KERNELS)
def test_every_family_runs_natively(family: str, compiled: Compiler) -> None:
    program = compiled(family)
    prompt = random_tokens(GEOMETRY.sink_recent + 40)
    tokens, expected = greedy(program.session(), prompt, 8)
    session = native_session(program.artifact)
    rows = [session.prefill(0, prompt), *(session.decode({0: token})[0] for token in tokens[:-1])]
    for step, (row, expected_row) in enumerate(zip(rows, expected, strict=True)):
        normwise, words = difference(row, expected_row)
        assert normwise <= F32, f"step {step}: {words}"


@pytest.mark.parametrize("features", [GENERIC, AVX2], ids=["generic", "avx2"])
@pytest.mark.parametrize("case", ["llama3-rope", "llama-bf16", "int8-rows"])
def test_other_cpus_run_it_too(case: str, features: Features, compiled: Compiler) -> None:
    expected = run(compiled, case, 2)
    session = native_session(CASES[case].compiled(compiled, 2).artifact, features=features)
    for step, logits in steps_of(session):
        normwise, words = difference(logits.float(), expected.logits[step])
        assert normwise <= CASES[case].tolerance(F32), f"{step}: {words}"


@pytest.mark.parametrize("case", ["llama3-rope", "llama-bf16", "int8-rows"])
def test_the_number_of_threads_changes_no_bit(case: str, compiled: Compiler) -> None:
    artifact = CASES[case].compiled(compiled, 2).artifact
    alone = dict(steps_of(native_session(artifact, threads=1)))
    for threads in (2, 3):
        for step, logits in steps_of(native_session(artifact, threads=threads)):
            assert torch.equal(logits, alone[step]), f"{threads} threads: {step}"


@pytest.mark.parametrize("case", ["llama3-rope", "llama-bf16", "int8-rows"])
def test_a_slot_does_not_depend_on_its_company(case: str, compiled: Compiler) -> None:
    artifact = CASES[case].compiled(compiled, 2).artifact
    prompt, tokens = random_tokens(29, seed=5), random_tokens(9, seed=6)
    alone = native_session(artifact)
    expected = [alone.prefill(1, prompt), *(alone.decode({1: t})[1] for t in tokens)]
    full = native_session(artifact)
    full.prefill(0, random_tokens(40, seed=7))
    rows = [full.prefill(1, prompt)]
    full.prefill(2, random_tokens(3, seed=8))
    rows += [full.decode({0: 3, 1: t, 2: 5} if i % 2 else {1: t, 2: 9})[1] for i, t in enumerate(tokens)]
    for step, (a, b) in enumerate(zip(rows, expected, strict=True)):
        assert torch.equal(a, b), f"step {step}"
