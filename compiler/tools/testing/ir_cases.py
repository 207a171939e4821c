"""IR cases: input text, passes or a command of sscc, and an output text (checked by FileCheck) or an error.

A file is split at lines ``// -----``. If the first part has neither a module nor directives of a case, it contains
attribute aliases for all other parts. Every other part is a case and begins with

    // CASE: name of the test
    // PASSES: split-layers,thread-cache       passes to run after parsing (in the syntax of `sscc opt`, with options
                                               in braces). Without PASSES the IR is only parsed and verified. A module
                                               without a level (`sscc.level`) gets the first level that the first pass
                                               accepts
    // ERROR: split-layers.no-layer entry=decode    kind of the expected error and some of its fields (quoted as in a
                                               shell if they contain spaces); more ERROR lines may follow
    // ERROR: InputError: 'kv.row' row is ..   or its class and the end of its message
    // LOCATIONS                               print locations, so that CHECK lines can match them

PASSES may be replaced by commands, in which ``%s`` is the file, ``%S`` its folder and ``%t`` a path for a result:

    // RUN: sscc compile %S/model --no-weights --compile-to looped -o -
    // RUN: not sscc opt %s --pass-pipeline=fuse     the command must fail, and its stderr is checked

A case without ERROR has CHECK lines, which FileCheck compares with the printed module, or with the output of the last
command. After passes, the printed module is also parsed and printed again, because dumps must be parseable.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sscc.ir.errors import ErrorKind, SsccError, UsageError
from sscc.ir.extras import PYTEST, require

SHOWN_LINES = 200
"""Maximum number of lines shown of a wrong output."""

SEPARATOR = "// -----"
_CUT = re.compile(rf"^{SEPARATOR}.*\n", re.MULTILINE)
_KIND = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+( |$)")
_DIRECTIVE = re.compile(r"^\s*// ([A-Z]+)(?::\s*(.*?))?\s*$", re.MULTILINE)


class IrCaseErrors(ErrorKind):
    NO_NAME = UsageError, "line {line}: the case has no // CASE: line"
    CHECKS_AND_ERROR = UsageError, "line {line}: a case has either // ERROR: or // CHECK lines"
    RUN_WITH_OTHERS = (
        UsageError,
        "line {line}: a case with // RUN: needs CHECK lines, and cannot have PASSES, ERROR or LOCATIONS",
    )
    UNREADABLE_COMMAND = UsageError, "line {line}: // RUN: {command}: {reason}"
    NOT_SSCC = UsageError, "line {line}: // RUN: {command}: a command must begin with sscc or not sscc"
    PIPE = (
        UsageError,
        "line {line}: // RUN: {command}: pipes are not supported; FileCheck reads the output of the last command",
    )


@dataclass(frozen=True)
class IrCase:
    """One case of a file.

    Attributes:
        line: first line, from 1.
        aliases: attribute aliases of the file, which precede the text.
        passes: names of passes, with options in braces; empty if the case has commands.
        error: expected kind and fields, or class and end of the message; "" for none.
        locations: True to print locations.
        commands: commands of sscc, as written in the file; "not" before one that must fail.
    """

    name: str
    line: int
    aliases: str
    text: str
    passes: tuple[str, ...]
    error: str
    locations: bool
    commands: tuple[str, ...] = ()


class WrongOutput(Exception):
    """A wrong result of a case, which the message describes."""


def holds_cases(text: str) -> bool:
    """Return True if a file has directives of a case, False for a mere dump."""
    return re.search(r"^\s*// (CASE|RUN|ERROR|CHECK[A-Z-]*):", text, re.MULTILINE) is not None


def read_cases(text: str) -> list[IrCase]:
    """Return the cases of a file. Raises UsageError for a case without a name, without a check, or with contradictory
    directives."""
    parts = parts_of(text)
    shared = "" if _is_case(parts[0][1]) else parts.pop(0)[1]
    aliases = "".join(line + "\n" for line in shared.splitlines() if not line.lstrip().startswith("//"))
    return [_read_case(aliases, line, part) for line, part in parts]


def parts_of(text: str) -> list[tuple[int, str]]:
    """Return the parts of a text between lines that begin with SEPARATOR, each with the number of its first line."""
    starts = [0, *(match.end() for match in _CUT.finditer(text))]
    ends = [*(match.start() for match in _CUT.finditer(text)), len(text)]
    return [(text[:start].count("\n") + 1, text[start:end]) for start, end in zip(starts, ends, strict=True)]


def _is_case(part: str) -> bool:
    return holds_cases(part) or re.search(r"^(module|func\.func)", part, re.MULTILINE) is not None


def _read_case(aliases: str, line: int, text: str) -> IrCase:
    directives: dict[str, list[str]] = {}
    for match in _DIRECTIVE.finditer(text):
        directives.setdefault(match.group(1), []).append(match.group(2) or "")
    error = " ".join(directives.get("ERROR", []))
    commands = tuple(directives.get("RUN", []))
    if "CASE" not in directives:
        raise IrCaseErrors.NO_NAME(line=line)
    if bool(error) == ("// CHECK" in text):
        raise IrCaseErrors.CHECKS_AND_ERROR(line=line)
    if commands and (error or "PASSES" in directives or "LOCATIONS" in directives):
        raise IrCaseErrors.RUN_WITH_OTHERS(line=line)
    for command in commands:
        _words(command, line)
    passes = tuple(name.strip() for listed in directives.get("PASSES", []) for name in listed.split(","))
    return IrCase(directives["CASE"][0], line, aliases, text, passes, error, "LOCATIONS" in directives, commands)


def _words(command: str, line: int) -> list[str]:
    """Return the words of a command. Raises UsageError unless it begins with "sscc" or "not sscc"."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise IrCaseErrors.UNREADABLE_COMMAND(line=line, command=command, reason=error) from None
    if words[:1] != ["sscc"] and words[:2] != ["not", "sscc"]:
        raise IrCaseErrors.NOT_SSCC(line=line, command=command)
    if "|" in words:
        raise IrCaseErrors.PIPE(line=line, command=command)
    return words


def run_ir(text: str, passes: tuple[str, ...] = (), locations: bool = False) -> str:
    """Return the printed module after passes.

    Args:
        text: module to parse.
        passes: names of passes, with options in braces.
        locations: print locations.

    Raises:
        WrongOutput: parsing the result and printing it again gives another text.
        SsccError: an error of parsing or of a pass.
    """
    from sscc.ir.context import mlir, parse_module, print_module
    from sscc.ir.levels import LEVEL, set_level
    from sscc.passes.base import run_passes
    from sscc.passes.pass_pipeline import parse_pipeline

    with mlir():
        module = parse_module(text, "the input")
        steps = parse_pipeline(",".join(passes))
        if LEVEL not in module.operation.attributes and steps and steps[0].takes:
            set_level(module, steps[0].takes[0])
        run_passes(module, steps)
        printed = print_module(module)
        if print_module(parse_module(printed, "the output")) != printed:
            raise WrongOutput("parsing the printed module and printing it again gives another text")
        result: str = module.operation.get_asm(enable_debug_info=locations)
        return _inline_locations(result) if locations else result


def _inline_locations(text: str) -> str:
    """Replace ``#loc7`` with its definition ``#loc7 = loc(..)``, so that a CHECK line can match it."""
    locations = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))
    body = re.sub(r"^#loc\d* = .*\n", "", text, flags=re.MULTILINE)
    while re.search(r"#loc\d*\b", body):
        body = re.sub(r"#loc\d*\b", lambda match: locations[match.group()], body)
    return body


def run_commands(commands: tuple[str, ...], path: Path, line: int = 1) -> str:
    """Run commands of sscc in this process, in an empty folder. Return the stdout of the last command, or its stderr if
    it must fail. Raises WrongOutput if a command unexpectedly fails or succeeds."""
    output = ""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        places = {"%s": str(path.resolve()), "%S": str(path.resolve().parent), "%t": f"{folder}/result"}
        for command in commands:
            words = _words(command, line)
            fails = words[0] == "not"
            replaced = [re.sub("%[sSt]", lambda match: places[match[0]], word) for word in words[1 + fails :]]
            code, out, error = _run_command(replaced)
            if (code != 0) != fails:
                wrong = "succeeded, but must fail" if fails else f"ended with exit code {code}"
                raise WrongOutput(f"{command}\n{wrong}:\n{error}{out if fails else ''}")
            output = error if fails else out
    return output


def _run_command(words: list[str]) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr."""
    from sscc.compiler.tools.commands.cli import main

    buffers = io.BytesIO(), io.BytesIO()
    out, error = (io.TextIOWrapper(buffer, "utf-8", write_through=True) for buffer in buffers)
    handlers = logging.root.handlers[:]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = main(words)
        except SystemExit as end:  # raised by argparse
            code = end.code if isinstance(end.code, int) else 1
        finally:
            logging.root.handlers[:] = handlers  # a command may have added one for the temporary stderr
    return code, buffers[0].getvalue().decode(), buffers[1].getvalue().decode()


def check_case(case: IrCase, path: Path) -> None:
    """Run a case. Raises WrongOutput for a wrong result, and any error of sscc that the case does not expect."""
    if case.commands:
        match_checks("\n" * (case.line - 1) + case.text, run_commands(case.commands, path, case.line), str(path))
        return
    try:
        output = run_ir(case.aliases + case.text, case.passes, case.locations)
    except SsccError as error:
        if not case.error:
            raise
        if not _is_expected(error, case.error):
            raise WrongOutput(f"expected {case.error}\n   found {_described(error)}") from None
        return
    if case.error:
        raise WrongOutput(f"expected {case.error}\nbut the module was accepted:\n{output}")
    match_checks("\n" * (case.line - 1) + case.text, output, str(path))


def _is_expected(error: SsccError, expected: str) -> bool:
    """Return True if an error has the expected kind and fields, or class and end of the message."""
    if _KIND.match(expected) is None:
        name, _, message = expected.partition(": ")
        return type(error).__name__ == name and str(error).endswith(message)
    code, *fields = shlex.split(expected)
    pairs = (field.partition("=") for field in fields)
    known = {name: _as_text(value) for name, value in error.fields.items()}
    return error.kind is not None and error.kind.code == code and all(known.get(k) == v for k, _, v in pairs)


def _as_text(value: object) -> str:
    """Return a field in the syntax of cases, with commas between the items of a list."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _described(error: SsccError) -> str:
    if error.kind is None:
        return f"{type(error).__name__}: {error}"
    fields = " ".join(f"{name}={shlex.quote(_as_text(value))}" for name, value in error.fields.items())
    return f"{error.kind.code} {fields}\n{type(error).__name__}: {error}"


def match_checks(checks: str, output: str, path: str) -> None:
    """Compare an output with CHECK lines. Raises WrongOutput with FileCheck's report, and UsageError if FileCheck is
    not installed.

    Args:
        checks: text with CHECK lines.
        output: text to compare with them.
        path: name of the file with the case.
    """
    require(PYTEST, "a file with CHECK lines")
    from filecheck.finput import FInput
    from filecheck.matcher import Matcher
    from filecheck.options import Options
    from filecheck.parser import Parser, pattern_for_opts

    options = Options(match_filename=path)
    parser = Parser(options, io.StringIO(checks), *pattern_for_opts(options))
    matcher = Matcher(options, FInput("output", output), parser)
    matcher.stderr = io.StringIO()
    if matcher.run() != 0:
        raise WrongOutput(f"{_beginning(output)}\n{matcher.stderr.getvalue()}")


def _beginning(output: str) -> str:
    """Return the first lines of an output, for the report of a failure."""
    lines = output.splitlines()
    left = f"\n.. and {len(lines) - SHOWN_LINES} lines more" if len(lines) > SHOWN_LINES else ""
    return "\n".join(["the output was:", *lines[:SHOWN_LINES]]) + left
