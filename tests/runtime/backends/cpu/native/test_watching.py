"""Timing, hooks, interrupts and forks of the core."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

from sscc.runtime.backends.cpu.plan.plan import Barrier, Execute, NativePlan, PlanLoop
from sscc.runtime.support.native_errors import NativeErrors
from tests.errors import raises
from tests.runtime.backends.cpu.native.plans import Recorder, core, plan, run

ROOT = Path(__file__).parents[5]
PAUSE = 0.002


def staged() -> NativePlan:
    """`n` times (run 0 of stage 0, barrier, run 1 of stage 1 by thread 0 alone, barrier)."""
    runs = [run(units=4), run(mode="serial", label=1)]
    body = (Execute(0), Barrier(), Execute(1), Barrier())
    return plan(PlanLoop(1, 2, 0, body), runs=runs, inputs=[0], outputs=[1])


# -- timing


def test_a_trace_says_who_did_what_when() -> None:
    kernel = Recorder(does=lambda call: time.sleep(PAUSE if call.end - call.begin == 2 else 10 * PAUSE))
    the_core = core(staged(), kernel, threads=2)
    the_core.run("main", [1])
    assert the_core.events() == the_core.totals() == []
    the_core.trace(True)
    begin = time.monotonic_ns()
    the_core.run("main", [3])
    end = time.monotonic_ns()
    events = the_core.events()
    assert events == sorted(events, key=lambda event: event[2])
    assert all(begin <= event[2] <= event[3] <= end for event in events)
    for thread in (0, 1):
        assert [label for label, by, *_ in events if by == thread] == [0, -1, 1, -1] * 3
    for first, second in zip(*([e for e in events if e[1] == t and e[0] == 0] for t in (0, 1)), strict=True):
        assert min(first[3] - first[2], second[3] - second[2]) >= PAUSE * 1e9 * 0.9
    waits = [end - start for label, by, start, end in events if (label, by) == (-1, 1)]
    assert sum(waits) >= 3 * PAUSE * 1e9  # for thread 0's stage, which takes ten times as long


def test_totals_are_sums_of_events_and_of_those_that_are_forgotten() -> None:
    the_core = core(staged(), Recorder(), threads=2)
    the_core.trace(True)
    the_core.run("main", [5])
    sums: dict[tuple[int, int], list[int]] = {}
    for label, thread, start, end in the_core.events():
        entry = sums.setdefault((label, thread), [0, 0])
        entry[0] += 1
        entry[1] += end - start
    assert {(label, thread): [count, ns] for label, thread, count, ns in the_core.totals()} == sums
    the_core.trace(True, capacity=3)
    the_core.run("main", [5])
    assert [e[0] for e in the_core.events() if e[1] == 0] == [-1, 1, -1]
    assert {(label, thread): count for label, thread, count, _ in the_core.totals()} == {
        (-1, 0): 10,
        (-1, 1): 10,
        (0, 0): 5,
        (0, 1): 5,
        (1, 0): 5,
        (1, 1): 5,
    }


def test_a_trace_can_be_ended_and_begun_anew() -> None:
    the_core = core(staged(), Recorder(), threads=2)
    the_core.trace(True)
    the_core.run("main", [1])
    the_core.trace(False)
    kept = the_core.events()
    the_core.run("main", [1])
    assert the_core.events() == kept
    assert len(kept) == 8
    the_core.trace(True, capacity=0)
    the_core.run("main", [1])
    assert the_core.events() == []
    assert len(the_core.totals()) == 6
    assert the_core.labels == ["stage 0", "stage 1"]


# -- hooks


@pytest.mark.parametrize("threads", [1, 3])
def test_hooks_come_after_their_stage_is_complete(threads: int) -> None:
    kernel = Recorder()
    the_core = core(staged(), kernel, threads=threads)
    calls = min(threads, 4)
    seen: list[tuple[str, int, int, int]] = []

    def hook(label: str, index: int) -> None:
        assert threading.get_ident() == owner
        seen.append((label, index, the_core.registers()[1], len(kernel.calls)))

    owner = threading.get_ident()
    the_core.set_hook(None, hook)
    the_core.run("main", [2])
    first, second = calls, calls + 1
    assert seen == [
        ("stage 0", 0, 0, first),
        ("stage 1", 1, 0, second),
        ("stage 0", 0, 1, first + second),
        ("stage 1", 1, 1, 2 * second),
    ]
    seen.clear()
    the_core.set_hook(["stage 1"], hook)
    the_core.run("main", [2])
    assert [label for label, *_ in seen] == ["stage 1"] * 2
    seen.clear()
    the_core.set_hook(None, None)
    the_core.run("main", [2])
    assert not seen


@pytest.mark.parametrize("threads", [1, 3])
def test_what_a_hook_raises_ends_the_entry(threads: int) -> None:
    the_core = core(staged(), Recorder(), threads=threads)

    def hook(label: str, index: int) -> None:
        raise ZeroDivisionError(f"{label} {index}")

    the_core.set_hook(["stage 1"], hook)
    for _ in range(5):
        with pytest.raises(ZeroDivisionError, match="stage 1 1"):
            the_core.run("main", [2])
    the_core.set_hook(None, None)
    assert the_core.run("main", [2]) == [1]


def test_hooks_must_not_run_entries() -> None:
    the_core = core(staged(), Recorder(), threads=2)
    the_core.set_hook(None, lambda _label, _run: the_core.run("main", [1]))
    with raises(NativeErrors.CORE_BUSY):
        the_core.run("main", [1])


def test_unknown_stages_are_refused() -> None:
    the_core = core(staged(), Recorder())
    with raises(NativeErrors.NO_STAGE, stage="stage 2"):
        the_core.set_hook(["stage 1", "stage 2"], lambda *_: None)
    with raises(NativeErrors.HOOK_WITHOUT_STAGES):
        the_core.set_hook([], lambda *_: None)


def test_a_hook_that_refers_to_its_core_keeps_nothing_alive() -> None:
    class Witness:
        pass

    witness = Witness()
    gone = weakref.ref(witness)
    the_core = core(staged(), Recorder())
    the_core.set_hook(None, lambda _label, _run, the_core=the_core, witness=witness: None)
    del the_core, witness
    gc.collect()
    assert gone() is None


# -- interrupts, and processes


def finished(process: subprocess.Popen[str]) -> str:
    """Return the output of a process that ends without an error."""
    try:
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    return output


def script(body: str) -> subprocess.Popen[str]:
    """A Python process that knows what this module knows."""
    text = "from tests.runtime.backends.cpu.native.test_watching import *\n" + body
    return subprocess.Popen([sys.executable, "-c", text], cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("body", ["Execute(0), Barrier()", "Barrier()", ""])
def test_interrupts_end_an_entry_and_the_core_goes_on(threads: int, body: str) -> None:
    process = script(f"""
made = core(plan(PlanLoop(1, 2, 0, ({body}{"," if body else ""})), runs=[run(units=0)], inputs=[0]), threads={threads})
made.run("main", [1])
try:
    print("ready", flush=True)
    made.run("main", [1 << 60])
except KeyboardInterrupt:
    made.run("main", [1000])
    print("interrupted")
""")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert finished(process) == "interrupted\n"


def test_forked_children_are_told_to_make_their_own() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    process = script("""
from sscc.ir.errors import UsageError
made = core(plan(Barrier()), threads=2)
made.run("main")
child = os.fork()
if child == 0:
    try:
        made.run("main")
    except UsageError as error:
        print(error)
    del made
    core(plan(Barrier()), threads=2).run("main")
    print("child", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
made.run("main")
print("parent")
""")
    refusal, *rest = finished(process).splitlines()
    assert "fork" in refusal
    assert rest == ["child", "parent"]


def test_other_python_threads_run_meanwhile() -> None:
    the_core = core(plan(PlanLoop(1, 2, 0, (Barrier(),)), inputs=[0]), threads=2)
    ticks = 0
    done = threading.Event()

    def count() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    counter = threading.Thread(target=count)
    counter.start()
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        the_core.run("main", [20_000])
    done.set()
    counter.join()
    assert ticks > 3
