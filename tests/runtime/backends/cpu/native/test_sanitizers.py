"""The core and the sampler under the compiler's sanitizers, driven without Python: threads, errors, stops, damaged
plans; any logits and options."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sscc.runtime.backends.cpu.plan.plan import (
    Barrier,
    Branch,
    Compute,
    Execute,
    NativePlan,
    PlanArgument,
    PlanLoop,
    PlanRegion,
)
from tests.runtime.backends.cpu.native.plans import plan, run

HERE = Path(__file__).parent
NATIVE = HERE.parents[4] / "runtime" / "backends" / "cpu" / "native"
CORE = ("core", "exchange", "machine", "memory", "plan", "team", "walk")
SAMPLER = ("sampler", "sampler_selector")
SOURCES = [
    *(NATIVE / f"{name}.cpp" for name in (*CORE, *SAMPLER)),
    *(HERE / f"{name}.cpp" for name in ("core_driver", "sampler_driver", "driver")),
]
SANITIZERS = ("address,undefined", "thread")
WIDTHS: dict[int, list[str]] = {4: []}  # of the sampler's vectors: the compiler's options, as in CMakeLists.txt
if platform.machine() in ("x86_64", "AMD64"):
    WIDTHS |= {8: ["-mavx2"], 16: ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]}
WORDS = 24

Driver = Callable[..., list[str]]


@pytest.fixture(scope="module")
def executables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The driver with each of the sanitizers, compiled side by side: all in one piece but the sampler's passes."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler here")
    folder = tmp_path_factory.mktemp("driver")
    whole = folder / "whole.cpp"
    whole.write_text("".join(f'#include "{source}"\n' for source in SOURCES))
    flags = ["-std=c++20", "-Og", "-pthread", "-ffp-contract=off", "-fno-sanitize-recover=all", f"-I{NATIVE}"]
    compilations, links = [], []
    paths = {}
    for sanitizer in SANITIZERS:
        command = [compiler, *flags, f"-fsanitize={sanitizer}"]
        sources: dict[str, list[str]] = {"whole": [str(whole)]} | {
            f"passes{width}": [str(NATIVE / "sampler_passes.cpp"), f"-DSSCC_WIDTH={width}", *options]
            for width, options in WIDTHS.items()
        }
        objects = {name: str(folder / f"{name}-{sanitizer}.o") for name in sources}
        for name, words in sources.items():
            compilations.append(subprocess.Popen([*command, *words, "-c", "-o", objects[name]]))
        paths[sanitizer] = folder / sanitizer
        links.append([*command, *objects.values(), "-o", str(paths[sanitizer])])
    assert [process.wait() for process in compilations] == [0] * len(compilations)
    for link in links:
        subprocess.run(link, check=True)
    return paths


def drive(executable: Path, *words: object) -> str:
    line = [str(executable), *map(str, words)]
    if setarch := shutil.which("setarch"):
        line = [setarch, "-R", *line]  # the thread sanitizer of older compilers dislikes much randomness
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(params=SANITIZERS)
def driver(request: pytest.FixtureRequest, executables: dict[str, Path], tmp_path: Path) -> Driver:
    """`driver(command, plan, *arguments)`: the lines that the core's driver prints."""

    def drive_core(command: str, of: NativePlan, *arguments: object) -> list[str]:
        path = tmp_path / "plan"
        path.write_bytes(of.encode())
        return drive(executables[request.param], "core", command, path, *arguments).splitlines()

    return drive_core


def mirrored(steps: int) -> NativePlan:
    """`steps` times b = reverse(a) + 1, a = reverse(b) + 1: units read what other threads wrote. Gives the steps."""
    both = [PlanArgument(region, 0, WORDS * 8) for region in (0, 1)]
    runs = [run(units=WORDS, arguments=arguments, scalars=[3, 4]) for arguments in (both, both[::-1])]
    body = (Execute(0), Barrier(), Execute(1), Barrier(), Compute("add", 7, (7, 4)))
    return plan(
        PlanLoop(6, 1, 2, body),
        runs=runs,
        regions=[PlanRegion("a", "arena", WORDS * 8), PlanRegion("b", "arena", WORDS * 8)],
        constants=[(2, steps), (3, WORDS - 1), (4, 1)],
        outputs=[7],
        scratch_bytes=8,
        functions=["mirror"],
    )


def counted(firings: int, room: int) -> NativePlan:
    """Each of `firings` firings adds 1 to its own word of a region with `room` words, and a barrier."""
    firing = run(grid=[(1, firings)], arguments=[PlanArgument(0, 0, 8, ((1, 8),))])
    regions = [PlanRegion("words", "arena", room * 8)]
    return plan(Execute(0), Barrier(), runs=[firing], regions=regions, functions=["count"])


def everything() -> NativePlan:
    """A plan with each thing that a plan can have."""
    regions = [PlanRegion("w", "external", 4096), PlanRegion("x", "arena", 1024), PlanRegion("mine", "private", 256)]
    hidden, mine = PlanArgument(0, 64, 128, ((1, 64), (2, 8))), PlanArgument(2, 0, 256)
    arguments = [hidden, PlanArgument(1, 0, 64, ((3, 16),)), mine]
    runs = [
        run(units=5, grid=[(2, 3), (3, 4)], arguments=arguments, scalars=[1, 2]),
        run(mode="replicated", units=4, arguments=arguments[2:], label=1),
        run(mode="serial", units=1, arguments=arguments[1:], scalars=[4]),
    ]
    body = (
        Execute(0),
        Barrier(),
        Compute("mod", 6, (1, 7)),
        Branch(6, (Execute(1), PlanLoop(5, 4, 6, (Execute(2), Compute("max", 4, (4, 5)))), Barrier())),
        Compute("select", 4, (6, 1, 7)),
    )
    return plan(
        Compute("floordiv", 6, (0, 7)),
        PlanLoop(1, 8, 9, body),
        Branch(6, (Barrier(), Execute(0))),
        runs=runs,
        regions=regions,
        constants=[(7, 2), (9, 3)],
        inputs=[0],
        outputs=[4, 6],
        registers=10,
        scratch_bytes=128,
    )


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_what_is_written_before_a_barrier_is_read_after_it(driver: Driver, threads: int) -> None:
    steps, repeats = 20, 3
    lines = driver("run", mirrored(steps), threads, repeats, "main")
    assert lines[:repeats] == [f"outputs {steps}"] * repeats
    total = 2 * steps * repeats
    a, b = (f"{name} " + " ".join([str(value)] * WORDS) for name, value in (("a", total), ("b", total - 1)))
    assert lines[repeats:] == [a, b, f"hooks {total}"]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_thread_that_fails_ends_the_entry_for_all(driver: Driver, threads: int) -> None:
    repeats = 10
    lines = driver("run", counted(8, 7), threads, repeats, "main")
    error = "error: OUT_OF_REGION stage=stage 0 argument=0 bytes=8 region=words region_bytes=56"
    assert lines[:repeats] == [error] * repeats
    assert lines[repeats:] == ["words " + " ".join([str(repeats)] * 7), "hooks 0"]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_entry_can_be_stopped(driver: Driver, threads: int) -> None:
    assert driver("stop", mirrored(1 << 40), threads, 3, "main")[:3] == ["stopped"] * 3


def test_the_plan_of_everything_is_one(driver: Driver) -> None:
    of = everything()
    without_external = NativePlan(**{**vars(of), "regions": (PlanRegion("w", "arena", 4096), *of.regions[1:])})
    assert driver("run", without_external, 3, 1, "main", 5)[0] == "outputs 2 0"


@pytest.mark.parametrize("threads", [1, 3])
def test_damaged_plans_are_refused_or_run(driver: Driver, threads: int) -> None:
    (line,) = driver("fuzz", everything(), threads, 4000, 20 + threads)
    plans, refused = (int(part.split()[0]) for part in line.split(","))
    assert plans + refused == 4000
    assert min(plans, refused) > 100


# ------------------------------------------------------------------------------------------------- the sampler


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_any_logits_and_calls_give_the_same_on_every_machine(executables: dict[str, Path], sanitizer: str) -> None:
    """The checksum is that of GCC 12, -O0 to -O3 and for any x86 machine."""
    told = drive(executables[sanitizer], "sampler", "fuzz", "7", "300")
    assert told == "5330 picks, 1286 refused, 74f3be4c74cb0433\n"


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_pick_the_same_or_are_refused(executables: dict[str, Path], sanitizer: str) -> None:
    assert drive(executables[sanitizer], "sampler", "threads", "7", "400") == "1600 picks\n"


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_a_team_that_others_use_too_picks_the_same(executables: dict[str, Path], sanitizer: str) -> None:
    assert drive(executables[sanitizer], "sampler", "team", "7", "12") == "36 picks\n"
