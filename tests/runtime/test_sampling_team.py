"""A team of threads picks what one thread picks: shared with a core, outliving it, busy, and in a forked child."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.backends.cpu.plan.plan import Barrier, Execute, PlanLoop
from sscc.runtime.session.samplers import BatchSampler
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.session import Session
from sscc.runtime.support._native import Team
from tests.runtime.backends.cpu.native.plans import Recorder, core, plan, run
from tests.runtime.fake import SIGNATURE, FakeInterpreter

ROOT = Path(__file__).parents[2]
TASKS = Path("/proc/self/task")
SLOTS, VOCABULARY = 6, 20000
WORTH_SHARING = Sampling(0.8, 0, 0.95, seed=3)


def sampler(team: Team | None, sampling: Sampling = WORTH_SHARING) -> BatchSampler:
    sampler = BatchSampler(SLOTS, VOCABULARY, team)
    for slot in range(SLOTS):
        sampler.start(slot, sampling, [])
    return sampler


def random_logits(seed: int) -> Array:
    """[SLOTS, VOCABULARY] f32."""
    logits: Array = np.random.default_rng(seed).standard_normal((SLOTS, VOCABULARY)).astype(np.float32)
    return logits


def random_sampling(random: np.random.Generator) -> Sampling:
    return Sampling(
        temperature=float(random.choice([0, 0.7, 1, 1, 1.5])),
        top_k=int(random.choice([0, 0, 5, 40, VOCABULARY // 2])),
        top_p=float(random.choice([1, 0.5, 0.9, 0.95])),
        seed=int(random.integers(2**63)),
        min_p=float(random.choice([0, 0, 0.05])),
        repetition_penalty=float(random.choice([1, 1.2])),
        frequency_penalty=float(random.choice([0, 0.5])),
        logit_bias=((7, 3.0),) if random.random() < 0.3 else (),
    )


def picks(of: BatchSampler, count: int) -> list[list[int]]:
    return [of.pick(random_logits(step), np.ones(SLOTS, bool)).tolist() for step in range(count)]


@pytest.mark.parametrize("spin_us", [0.0, 50.0])
@pytest.mark.parametrize("threads", [1, 2, 3, 9])
def test_any_team_picks_what_one_thread_picks(threads: int, spin_us: float) -> None:
    random = np.random.default_rng(threads)
    team = Team(threads, spin_us=spin_us)
    assert team.threads == threads
    for case in range(6):
        both = [BatchSampler(SLOTS, VOCABULARY, of) for of in (team, None)]
        for slot in range(SLOTS):
            sampling, prompt = random_sampling(random), random.integers(VOCABULARY, size=20)
            for each in both:
                each.start(slot, sampling, prompt, None if slot % 2 else slot)
        for step in range(5):
            logits = random_logits(step) * random.choice([1, 4])
            logits = logits.astype(np.float32 if case % 2 else ml_dtypes.bfloat16)
            active = random.random(SLOTS) < 0.8
            shared, alone = (each.pick(logits, active) for each in both)
            assert shared.tolist() == alone.tolist()
            for slot in range(SLOTS):
                assert both[0].logprobs(slot) == both[1].logprobs(slot)


@pytest.mark.skipif(not TASKS.exists(), reason="no /proc here")
def test_a_team_is_woken_only_where_that_is_worth_it() -> None:
    before = set(os.listdir(TASKS))
    team = Team(2, spin_us=0.0)
    (worker,) = set(os.listdir(TASKS)) - before

    def sleeps() -> int:
        time.sleep(0.05)
        (line,) = (x for x in (TASKS / worker / "status").read_text().splitlines() if x.startswith("voluntary"))
        return int(line.split()[1])

    asleep = sleeps()
    picks(sampler(team, Sampling()), 3)
    assert sleeps() == asleep
    picks(sampler(team), 1)
    assert sleeps() > asleep


def test_a_damaged_row_is_found_by_whoever_looks_at_it() -> None:
    shared, alone, logits = sampler(Team(3)), sampler(None), random_logits(0)
    for slot in range(SLOTS):
        bad = logits.copy()
        bad[slot:, 19999] = np.nan
        for _ in range(2):
            assert shared._pick(bad, np.ones(SLOTS, bool))[0] == slot
    assert picks(shared, 2) == picks(alone, 2)


def test_the_team_of_a_core_outlives_it() -> None:
    the_core = core(plan(Barrier()), threads=2)
    the_core.run("main")
    shared = sampler(the_core.team)
    assert the_core.team.threads == the_core.threads == 2
    del the_core
    gc.collect()
    assert picks(shared, 3) == picks(sampler(None), 3)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_within_a_hook_the_team_is_busy(threads: int) -> None:
    the_core = core(plan(Execute(0), Execute(0), runs=[run()]), Recorder(), threads=threads)
    shared, picked = sampler(the_core.team), []
    the_core.set_hook(None, lambda _label, _run: picked.extend(picks(shared, 1)))
    the_core.run("main")
    alone = sampler(None)
    assert picked == [*picks(alone, 1), *picks(alone, 1)]


@pytest.mark.parametrize("threads", [2, 3])
def test_a_core_and_two_samplers_share_a_team(threads: int) -> None:
    the_core = core(plan(PlanLoop(1, 2, 0, (Barrier(),)), inputs=[0]), threads=threads)
    picked: list[list[list[int]]] = []
    samplers = [sampler(the_core.team), sampler(the_core.team)]
    pickers = [threading.Thread(target=lambda of=of: picked.append(picks(of, 30))) for of in samplers]
    for picker in pickers:
        picker.start()
    runs = 0
    while any(picker.is_alive() for picker in pickers):
        assert the_core.run("main", [5]) == []
        runs += 1
    assert runs > 0
    assert picked == [picks(sampler(None), 30)] * 2


def test_a_forked_child_picks_alone() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    body = """
from tests.runtime.test_sampling_team import *
shared = sampler(Team(2))
picks(shared, 1)
child = os.fork()
tokens = picks(shared, 2)
del shared
if child == 0:
    print(tokens, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(tokens)
"""
    done = subprocess.run([sys.executable, "-c", body], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    child, parent = done.stdout.splitlines()
    assert child == parent


def test_a_session_lends_the_threads_of_its_interpreter() -> None:
    interpreter = FakeInterpreter()
    session = Session(SIGNATURE, interpreter)
    assert session.host_threads is None
    team = Team(1)
    lending = type("Lending", (FakeInterpreter,), {"host_threads": team})
    assert Session(SIGNATURE, lending()).host_threads is team
