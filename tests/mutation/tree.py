"""A copy of the sources in which one file at a time is wrong."""

from __future__ import annotations

import compileall
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

from tests.mutation.mutants import Mutant

ROOT = Path(__file__).parents[2]
PARTS = ("compiler", "ir", "passes", "runtime")
COPIED = (*PARTS, "tests", "docs", "examples", "benchmarks", "pyproject.toml", "README.md", "CMakeLists.txt")
PACKAGE = ("__init__.py", "py.typed")
SLACK = 60.0
"""Seconds that tests may take beyond three times what they take without a fault."""


ONLY_THE_COPY = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable")]
"""
"""An editable install finds its modules before any path is searched, in every process that tests start."""


class BrokenBaseline(Exception):
    """The tests fail, or find nothing to run, without any fault."""


@dataclass(frozen=True)
class Verdict:
    """Result of a mutant: "noticed" by a failing test, "timeout", or "survived"; with pytest's message."""

    outcome: str
    tests: str
    seconds: float


class Tree:
    """A copy of the sources under `folder`, importable as `sscc`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, folder / name)
        module = importlib.util.find_spec("sscc.runtime.support._native")
        if module is not None and module.origin is not None:
            shutil.copy(module.origin, folder / "runtime")
        package = folder / "links" / "sscc"
        package.mkdir(parents=True)
        for name in PACKAGE:
            (package / name).symlink_to(folder / "compiler" / "package" / name)
        for name in PARTS:
            (package / name).symlink_to(folder / name)
        (folder / "links" / "sitecustomize.py").write_text(ONLY_THE_COPY)
        # By hash, and not by the time and size that a mutant may have in common with the source.
        compileall.compile_dir(folder, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        self._usual: dict[tuple[str, ...], float] = {}
        self._server = self._started()

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stdin.close()
        self._server.wait()

    def judge(self, mutant: Mutant, stages: Iterable[tuple[str, ...]]) -> Verdict:
        """Run the stages of tests until one fails on the mutant."""
        path = self.folder / mutant.file
        source = path.read_bytes()
        seconds = 0.0
        for stage in stages:
            limit = 3 * self._baseline(stage) + SLACK
            path.write_bytes(mutant.apply(source))
            try:
                code, took = self._run(stage, limit)
            finally:
                path.write_bytes(source)
            seconds += took
            if code != 0:
                return Verdict("timeout" if code is None else "noticed", " ".join(stage), seconds)
        return Verdict("survived", "", seconds)

    def _baseline(self, stage: tuple[str, ...]) -> float:
        """Return the seconds of a stage without a fault. Raises BrokenBaseline if it fails."""
        if stage not in self._usual:
            code, took = self._run(stage, 3600)
            if code != 0:
                raise BrokenBaseline(f"pytest {' '.join(stage)} ends with {code} without any fault")
            self._usual[stage] = took
        return self._usual[stage]

    def _run(self, stage: tuple[str, ...], limit: float) -> tuple[int | None, float]:
        """pytest's exit code, None where it does not end in time, and the seconds it took."""
        began = time.monotonic()
        words = ["-x", "-q", "-p", "no:cacheprovider", *stage]
        self._server.stdin.write(json.dumps([words, limit]) + "\n")
        self._server.stdin.flush()
        code: int | None = json.loads(self._server.stdout.readline())
        return code, time.monotonic() - began

    def _started(self) -> Any:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.folder / "links"), str(self.folder)]),
            "SSCC_CACHE": str(self.folder / "cache"),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        words = [sys.executable, "-m", "tests.mutation.server"]
        return subprocess.Popen(
            words, cwd=self.folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
