"""Every ``tests/**/*.mlir`` is a pytest file, and each case in it a test: IR in, passes, IR out (or an error).

A file is cut at lines ``// -----``. A first part without a module holds attribute aliases for all the others; every
other part is one case, and starts with

    // CASE: what it shows, which is the test's name
    // PASSES: split-layers,thread-cache       to run after parsing (as `sscc opt` takes them, options in braces);
                                               without it the IR is only parsed and verified
    // ERROR: InputError: 'kv.row' row is ..   the class and the end of the message; a line more goes on with it
    // LOCATIONS                               print locations, for CHECK lines about them

A case without ERROR has CHECK lines, which FileCheck compares with the printed module. Whatever is printed is also
parsed and printed again, because a dump must be compilable onward.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

from sscc.ir import errors
from sscc.ir.context import mlir, parse_module, print_module
from sscc.passes.base import run_passes
from sscc.passes.pipeline import parse_pipeline

_CUT = re.compile(r"^// -----.*\n", re.MULTILINE)
_DIRECTIVE = re.compile(r"^\s*// ([A-Z]+)(?::\s*(.*?))?\s*$", re.MULTILINE)


@dataclass(frozen=True)
class FileCheckCase:
    """One part of a file; `line` is where it starts, from 1."""

    name: str
    line: int
    aliases: str
    text: str
    passes: tuple[str, ...]
    error: str
    locations: bool


class WrongOutput(Exception):
    """A case did not give what it says; the message is for a person."""


def read_cases(text: str) -> list[FileCheckCase]:
    """The cases of a file. Raises ValueError for one that has no name or checks nothing."""
    starts = [0, *(match.end() for match in _CUT.finditer(text))]
    ends = [*(match.start() for match in _CUT.finditer(text)), len(text)]
    parts = [(text[:start].count("\n") + 1, text[start:end]) for start, end in zip(starts, ends, strict=True)]
    shared = "" if _holds_module(parts[0][1]) else parts.pop(0)[1]
    aliases = "".join(line + "\n" for line in shared.splitlines() if not line.lstrip().startswith("//"))
    return [_read_case(aliases, line, part) for line, part in parts]


def _holds_module(part: str) -> bool:
    return re.search(r"^(module|func\.func)", part, re.MULTILINE) is not None


def _read_case(aliases: str, line: int, text: str) -> FileCheckCase:
    directives: dict[str, list[str]] = {}
    for match in _DIRECTIVE.finditer(text):
        directives.setdefault(match.group(1), []).append(match.group(2) or "")
    error = " ".join(directives.get("ERROR", []))
    if "CASE" not in directives:
        raise ValueError(f"line {line}: the case has no // CASE: line")
    if bool(error) == ("// CHECK" in text):
        raise ValueError(f"line {line}: a case has either // ERROR: or // CHECK lines")
    passes = tuple(name.strip() for listed in directives.get("PASSES", []) for name in listed.split(","))
    return FileCheckCase(directives["CASE"][0], line, aliases, text, passes, error, "LOCATIONS" in directives)


def run_ir(text: str, passes: tuple[str, ...] = (), locations: bool = False) -> str:
    """Parses `text`, runs `passes` (names, with options in braces), and prints the result; what is printed must parse
    to the same."""
    with mlir():
        module = parse_module(text, "the input")
        run_passes(module, parse_pipeline(",".join(passes)))
        printed = print_module(module)
        if print_module(parse_module(printed, "the output")) != printed:
            raise WrongOutput("the printed module prints differently once parsed")
        result: str = module.operation.get_asm(enable_debug_info=locations)
        return _inline_locations(result) if locations else result


def _inline_locations(text: str) -> str:
    """Puts what ``#loc7 = loc(..)`` says where ``#loc7`` stands, so that a CHECK line can ask for it."""
    locations = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))
    body = re.sub(r"^#loc\d* = .*\n", "", text, flags=re.MULTILINE)
    while re.search(r"#loc\d*\b", body):
        body = re.sub(r"#loc\d*\b", lambda match: locations[match.group()], body)
    return body


def check_case(case: FileCheckCase, path: str) -> None:
    """Runs one case. Raises WrongOutput; an error that no case expects passes through."""
    expected, _, message = case.error.partition(": ")
    try:
        output = run_ir(case.aliases + case.text, case.passes, case.locations)
    except errors.SsccError as error:
        if not case.error:
            raise
        if type(error).__name__ != expected or not str(error).endswith(message):
            raise WrongOutput(f"expected {case.error}\n   found {type(error).__name__}: {error}") from None
        return
    if case.error:
        raise WrongOutput(f"expected {case.error}\nbut the module was accepted:\n{output}")
    match_checks("\n" * (case.line - 1) + case.text, output, path)


def match_checks(checks: str, output: str, path: str) -> None:
    """FileCheck: compares `output` with the CHECK lines in `checks`. Raises WrongOutput with its report."""
    options = Options(match_filename=path)
    parser = Parser(options, io.StringIO(checks), *pattern_for_opts(options))
    matcher = Matcher(options, FInput("output", output), parser)
    matcher.stderr = io.StringIO()
    if matcher.run() != 0:
        raise WrongOutput(f"{matcher.stderr.getvalue()}\nthe output was:\n{output}")


# ------------------------------------------------------------------------------------------------------ pytest


class IrFile(pytest.File):
    def collect(self) -> Iterator[IrItem]:
        for case in read_cases(self.path.read_text()):
            yield IrItem.from_parent(self, name=case.name, case=case)


class IrItem(pytest.Item):
    def __init__(self, *, case: FileCheckCase, **parent: object) -> None:
        super().__init__(**parent)
        self.case = case

    def runtest(self) -> None:
        check_case(self.case, str(self.path))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: str | None = None) -> object:
        if isinstance(excinfo.value, (WrongOutput, errors.SsccError)):
            return f"{self.path}:{self.case.line}: {self.case.name}\n{excinfo.value}"
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.case.line - 1, self.case.name


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> IrFile | None:
    if file_path.suffix == ".mlir":
        return IrFile.from_parent(parent, path=file_path)
    return None
