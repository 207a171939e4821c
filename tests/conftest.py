"""Hooks and fixtures for the whole suite. Nothing heavy is imported before a test asks for it."""

from __future__ import annotations

import atexit
import gc
import os
import random
import signal
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import torch

from tests import process_logs

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

    from tests.families import Compiler

pytest_plugins = ["sscc.compiler.tools.testing.plugin"]  # .mlir files are tests

# Tests of native code ask for it; the others need none of it in their artifacts, and where they run some, how fast it
# is does not matter.
os.environ["SSCC_NATIVE_CODE"] = "0"
os.environ["SSCC_NATIVE_OPTIMISE"] = "0"
# Random cases are the same ones in every run, whatever the machine is busy with.
hypothesis.settings.register_profile("sscc", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("sscc")
torch.set_num_threads(1)  # everything here is tiny: more threads only wait for each other
# A shell without job control starts background processes with interrupts ignored; tests of interrupts would then fail.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SAME_MODELS = {
    "compiled": (
        *(f"tests/test_{name}.py" for name in ("levels", "native")),
        "tests/runtime/backends/cpu/test_positions.py",
        "tests/runtime/test_watching.py",
    ),
    "forked": ("tests/fuzz/test_fuzz.py", "tests/fuzz/test_harness.py"),
    "windows": tuple(f"tests/compiler/test_{name}.py" for name in ("windows", "layer_budgets", "query_policy")),
    "options": tuple(f"tests/compiler/test_{name}.py" for name in ("quantized_weights", "kv_rows", "kv_dtype")),
}
"""Files whose tests compile the same models in the same shapes, or whose cases run in processes that one server forks,
which takes seconds to import what they need: those of a line share a process."""

LONGEST = (
    "tests/test_families.py",
    *SAME_MODELS["windows"],
    *(f"tests/compiler/test_{name}.py" for name in ("learned_indexes", "recurrent_states", "kept_weights")),
    "tests/test_smollm2.py",
    *SAME_MODELS["options"],
    "tests/compiler/test_several_operators.py",
    "tests/passes/test_shard.py",
    "tests/models/tiny/test_compiled.py",
    "tests/fuzz/test_fuzz.py",
    *(f"tests/compiler/test_{name}.py" for name in ("prefixes", "shared_rows", "short_convolution")),
    "tests/oracles/test_query_policy.py",
    "tests/test_geometries.py",
    "tests/compiler/fleet/test_replicas.py",
    *(f"tests/compiler/frontend/test_{name}.py" for name in ("gguf_models", "capture")),
    *(f"tests/runtime/backends/cpu/{name}.py" for name in ("test_query_attention", "native/test_sanitizers")),
    "tests/compiler/test_driver.py",
    "tests/runtime/test_artifact_faults.py",
    "tests/runtime/engine/test_company.py",
    "tests/test_soak.py",
)
"""Files with long tests. No process should begin one of them when the others are about to finish."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens", "--update-golden", action="store_true", help="write the files under tests/goldens again"
    )
    parser.addoption("--shuffle", metavar="SEED", help="run files, and the tests of each, in a random order")


def pytest_configure(config: pytest.Config) -> None:
    """Give each of several processes its share of the processors. Native code runs on teams of threads, with barriers
    between what they do: a thread on a processor that another process keeps busy would be waited for at every one."""
    process_logs.register(config)
    worker = getattr(config, "workerinput", None)
    if worker is not None and hasattr(os, "sched_setaffinity"):
        number, processes = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, processors[number::processes] or [processors[number % len(processors)]])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Shares files out to processes: those of a line of SAME_MODELS together, the others one by one."""
    from xdist.scheduler import LoadScopeScheduling

    scopes = {file: scope for scope, files in SAME_MODELS.items() for file in files}

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return scopes.get(file, file)

    config.option.loadscopereorder = False  # it would put the files with the most tests first
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In one of several processes, files that take long come first. `--shuffle` keeps the tests of a file together,
    because fixtures of a module would be made again and again."""
    seed = config.getoption("shuffle")
    if seed is not None:
        keys = {name: random.Random(f"{seed} {name}").random() for item in items for name in (_file(item), item.nodeid)}
        items.sort(key=lambda item: (keys[_file(item)], keys[item.nodeid]))
    elif hasattr(config, "workerinput"):
        order = {file: number for number, file in enumerate([*SAME_MODELS["compiled"], *LONGEST])}
        items.sort(key=lambda item: order.get(_file(item), len(order)))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def pytest_collection_finish() -> None:
    """Imported objects stay, so the garbage collector does not need to examine them again and again."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # or bindings complain at exit of what is left; pytest collects five times before


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    """Start a fixture that several tests share from the same random state, whichever test asks for it first."""
    if fixturedef.scope != "function":
        torch.manual_seed(0)
    return (yield)


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> None:
    """Undo what commands and other tests leave in torch: the number of threads, which `sscc run` sets to the number of
    cores, and the state of random numbers, so that a test draws the same ones alone and after others."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the cache of the person who runs the suite."""
    os.environ["SSCC_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def _exports_kept() -> Iterator[None]:
    """All tests of a process share the result of torch.export for one model in one shape."""
    if "sscc.compiler.frontend.capture" not in sys.modules:  # no test that was collected captures
        yield
        return
    from tests.captures import exports_kept

    with exports_kept():
        yield


@pytest.fixture(autouse=True, scope="session")
def _functions_kept() -> Iterator[None]:
    """Native code that is not optimised is made once for all programs of a process that have the same functions."""
    if "sscc.runtime.backends.cpu.plan.library" not in sys.modules:  # no test that was collected makes native code
        yield
        return
    from tests.functions import functions_kept

    with functions_kept():
        yield


@pytest.fixture
def exports_anew() -> Iterator[None]:
    """Export every model again in this test."""
    from tests.captures import exports_anew

    with exports_anew():
        yield


@pytest.fixture
def code_in_the_cache() -> Iterator[None]:
    """In this test sessions take native code from the user's cache, and write it there."""
    from tests.functions import code_in_the_cache

    with code_in_the_cache():
        yield


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """`compiled(family, geometry, batch=, chunk=, dtype=, opt_level=, target=)`: a tiny model, compiled once."""
    from tests.families import Compiler

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    folder.mkdir(exist_ok=True)
    return Compiler(folder)
