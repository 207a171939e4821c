"""The sampler under the compiler's sanitizers, driven without Python: any logits and options, several threads."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[4] / "runtime" / "backends" / "cpu" / "native"
SOURCES = [
    *(NATIVE / f"{name}.cpp" for name in ("machine", "sampler", "sampler_selector", "team")),
    HERE / "sampler_driver.cpp",
]
SANITIZERS = ("address,undefined", "thread")


@pytest.fixture(scope="module")
def executables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The driver with each of the sanitizers, compiled side by side, each in one piece."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler here")
    folder = tmp_path_factory.mktemp("sampler")
    whole = folder / "whole.cpp"
    whole.write_text("".join(f'#include "{source}"\n' for source in SOURCES))
    paths = {sanitizer: folder / sanitizer for sanitizer in SANITIZERS}
    flags = ["-std=c++20", "-Og", "-pthread", "-ffp-contract=off", "-fno-sanitize-recover=all", f"-I{NATIVE}"]
    compilations = [
        subprocess.Popen([compiler, *flags, f"-fsanitize={sanitizer}", str(whole), "-o", str(executable)])
        for sanitizer, executable in paths.items()
    ]
    assert [process.wait() for process in compilations] == [0] * len(SANITIZERS)
    return paths


def drive(executable: Path, *words: str) -> str:
    line = [str(executable), *words]
    if setarch := shutil.which("setarch"):
        line = [setarch, "-R", *line]  # the thread sanitizer of older compilers dislikes much randomness
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_any_logits_and_calls_give_the_same_on_every_machine(executables: dict[str, Path], sanitizer: str) -> None:
    """The checksum is that of GCC 12, -O0 to -O3 and for any x86 machine."""
    assert drive(executables[sanitizer], "fuzz", "7", "300") == "5330 picks, 1286 refused, 74f3be4c74cb0433\n"


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_pick_the_same_or_are_refused(executables: dict[str, Path], sanitizer: str) -> None:
    assert drive(executables[sanitizer], "threads", "7", "400") == "1600 picks\n"


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_a_team_that_others_use_too_picks_the_same(executables: dict[str, Path], sanitizer: str) -> None:
    assert drive(executables[sanitizer], "team", "7", "12") == "36 picks\n"
