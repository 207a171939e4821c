"""A worker that crashes or is killed leaves a log, and the report quotes it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = """
from tests.process_logs import register

def pytest_configure(config):
    register(config)
"""
TESTS = """
import os, signal

def test_before():
    pass

def test_that_ends_the_process():
    {}
"""


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, end: str) -> tuple[str, list[Path]]:
    """pytest's report on a worker that runs the tests, and the logs that it leaves."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # installed plugins take seconds to import
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS.format(end))
    result = pytester.runpytest_subprocess("-p", "xdist", "-n", "1", "--max-worker-restart", "0")
    return "\n".join(result.outlines), list((pytester.path / ".pytest_cache" / "crashes").iterdir())


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("signal.raise_signal(signal.SIGSEGV)", "SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("os._exit(0)", "exit code 0"),
    ],
)
def test_a_worker_that_ends_leaves_its_log(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, end: str, how: str
) -> None:
    report, (log,) = run(pytester, monkeypatch, end)
    before, last, *stacks = log.read_text().splitlines()
    assert before.endswith("::test_before")
    assert last.endswith("::test_that_ends_the_process")
    assert f"gw0 ended with {how}; log: {log}" in report
    assert last in report
    assert any("test_that_ends_the_process" in line for line in stacks) == (how == "SIGSEGV")


def test_processes_that_end_as_they_should_leave_none(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, logs = run(pytester, monkeypatch, "pass")
    assert "2 passed" in report
    assert logs == []
