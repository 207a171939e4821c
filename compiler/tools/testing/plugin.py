"""The hooks of `sscc.pytest_plugin`.

* `*.mlir` files with `// CASE:` lines: one test per case (`sscc.compiler.tools.testing.ir_cases`).
* `golden/*.toml`: one test per case and interpreter (golden_cases.py). The option `sscc_golden` in pytest's ini file
  replaces this pattern.

The ini option `sscc_load_pass` lists files with user-defined passes, relative to pytest's root folder, or passes of
installed packages, which cases can then use.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sscc.compiler.tools.testing.ir_cases import IrCase, WrongOutput, check_case, holds_cases, read_cases
from sscc.ir.errors import SsccError

if TYPE_CHECKING:
    from sscc.compiler.tools.testing.golden_cases import GoldenCase, GoldenFile, Programs

GOLDEN_FILES = "golden/*.toml"
_PROGRAMS = pytest.StashKey["Programs"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("sscc_golden", "patterns of files with golden cases", type="args", default=[GOLDEN_FILES])
    parser.addini("sscc_load_pass", "files with passes for IR cases", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    sources: list[str] = config.getini("sscc_load_pass")
    if sources:
        from sscc.passes.pass_pipeline import load

        load([str(config.rootpath / source) if source.endswith(".py") else source for source in sources])


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    if file_path.suffix == ".mlir" and holds_cases(file_path.read_text(errors="replace")):
        return IrFile.from_parent(parent, path=file_path)
    if any(file_path.match(pattern) for pattern in parent.config.getini("sscc_golden")):
        return GoldenItems.from_parent(parent, path=file_path)
    return None


def pytest_unconfigure(config: pytest.Config) -> None:
    programs = config.stash.get(_PROGRAMS, None)
    if programs is not None:
        programs.close()


class _Item(pytest.Item):
    """A test whose failures are reported as a message without a traceback."""

    line = 1

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, WrongOutput | SsccError):
            excerpt = getattr(excinfo.value, "excerpt", "")
            return "\n".join(filter(None, [f"{self.path}:{self.line}: {self.name}", str(excinfo.value), excerpt]))
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.line - 1, self.name


class _File(pytest.File):
    """A test file whose errors are reported without a traceback."""

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        return str(excinfo.value) if isinstance(excinfo.value, SsccError) else super().repr_failure(excinfo)


# ----------------------------------------------------------------------------------------------------------- IR


class IrFile(_File):
    def collect(self) -> Iterator[IrItem]:
        for case in read_cases(self.path.read_text()):
            yield IrItem.from_parent(self, name=case.name, case=case)


class IrItem(_Item):
    def __init__(self, *, case: IrCase, **parent: Any) -> None:
        super().__init__(**parent)
        self.case, self.line = case, case.line

    def runtest(self) -> None:
        check_case(self.case, self.path)


# ------------------------------------------------------------------------------------------------------- goldens


class GoldenItems(_File):
    def collect(self) -> Iterator[GoldenItem]:
        from sscc.compiler.tools.testing.golden_cases import REPLAY, read_golden_file

        file = read_golden_file(self.path)
        for interpreter in file.interpreters:
            several = f"[{interpreter}]" if len(file.interpreters) > 1 else ""
            make = partial(GoldenItem.from_parent, self, file=file, interpreter=interpreter)
            if file.replay:
                yield make(name=REPLAY + several, case=None)
            for case in file.cases:
                yield make(name=case.name + several, case=case)


class GoldenItem(_Item):
    def __init__(self, *, file: GoldenFile, case: GoldenCase | None, interpreter: str, **parent: Any) -> None:
        super().__init__(**parent)
        self._file, self._case, self._interpreter = file, case, interpreter

    def runtest(self) -> None:
        from sscc.compiler.tools.testing.golden_cases import check_case, replay

        programs = _programs(self.config)
        if self._case is None:
            replay(programs.artifact(self._file), self._interpreter)
        else:
            check_case(self._case, programs.llm(self._file, self._interpreter))


def _programs(config: pytest.Config) -> Programs:
    """Return the opened programs that the tests of this process share."""
    from sscc.compiler.tools.testing.golden_cases import Programs

    if _PROGRAMS not in config.stash:
        factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
        config.stash[_PROGRAMS] = Programs(lambda: factory.mktemp("sscc"))
    return config.stash[_PROGRAMS]
