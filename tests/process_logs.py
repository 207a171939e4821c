"""A log of every process that runs tests, kept where the process does not end as it should.

The log names each test that begins, with the process's memory, and on a fatal signal it gets the stacks of all Python
threads. A process that ends deletes its log, so one that is left belongs to a process that crashed or was killed: its
last test is the one that ran. Core dumps have the shell's limit: under `ulimit -c unlimited` a crash leaves one too.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path
from typing import IO, Any

import pytest

FOLDER = Path(".pytest_cache", "crashes")
KEPT = 20
"""Logs of earlier runs that are kept, the newest ones."""


class ProcessLog:
    """Plugin of one process: writes the log.

    Args:
        file: path of the log, which no other process has.
    """

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = file.open("w", buffering=1)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Name the test. Stacks are sent here before each one, because pytest's own plugin, also that of a pytest that
        a test runs in this process, sends them to stderr."""
        faulthandler.enable(self._file)
        self._file.write(f"{_resident_mib():5} MiB  {nodeid}\n")

    def pytest_unconfigure(self) -> None:
        if faulthandler.is_enabled():
            faulthandler.disable()
        self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


class CrashReport:
    """Plugin of the process that pytest was started as: reports workers that did not end as they should."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ends: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error is None:
            return
        code = node.gateway._io.wait()
        how = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
        logs = sorted(self._folder.glob(f"{node.gateway.id}-*.log"), key=os.path.getmtime)
        self._ends.append(f"{node.gateway.id} ended with {how}; log: {logs[-1] if logs else 'none'}")
        self._ends += logs[-1].read_text().splitlines()[-60:] if logs else []

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._ends:
            terminalreporter.section("crashed workers")
            terminalreporter.write("\n".join([*self._ends, ""]))


def register(config: pytest.Config) -> None:
    """Add the plugins to a process's pytest."""
    folder = config.rootpath / FOLDER
    worker = getattr(config, "workerinput", None)
    if worker is None:
        for file in sorted(folder.glob("*.log"), key=os.path.getmtime)[:-KEPT]:
            file.unlink(missing_ok=True)
        config.pluginmanager.register(CrashReport(folder))
    name = "main" if worker is None else worker["workerid"]
    config.pluginmanager.register(ProcessLog(folder / f"{name}-{os.getpid()}.log"))


def _resident_mib() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20
