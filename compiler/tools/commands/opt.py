"""`sscc opt`: passes on a dump, one at a time or as a pipeline, for compiler developers."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sscc.compiler.options.compile_options import CompileOptions
from sscc.compiler.tools.commands.parser import Parser
from sscc.compiler.tools.testing.ir_cases import SEPARATOR, parts_of
from sscc.ir.errors import CheckError, ErrorKind, InternalError, SsccError, UsageError, printable
from sscc.ir.option import option

if TYPE_CHECKING:
    from torch_mlir import ir

    from sscc.compiler.driver.printing import Excerpt
    from sscc.compiler.tools.testing.expected_diagnostics import Diagnostic
    from sscc.passes.base import Pass, PassTime

REPRODUCER = Path("sscc-reproducer")
"""Folder of the reproducers of failing passes."""


class OptCommandErrors(ErrorKind):
    NO_FILE = UsageError, "give the .mlir file to run passes on, or --list-passes or --explain PASS"
    DIAGNOSTICS_DIFFER = CheckError, "{name}: {count} unexpected or missing diagnostics"


@dataclass(frozen=True)
class OptOptions:
    """Options of `sscc opt`."""

    file: Path | None = option(None, "dump of `sscc compile`; - for stdin", "FILE.mlir", positional=True)
    output: Path | None = option(
        None, "file to write; - for stdout", "FILE", flags=("-o", "--output"), default="stdout"
    )
    pass_pipeline: str | None = option(
        None, "passes to run, 'name,name{option=value},func.func(name,..)': see --list-passes", "PASSES",
        default="none",
    )  # fmt: skip
    list_passes: bool = option(False, "list every pass with its level and summary")
    explain: str | None = option(None, "explain a pass: its work, its conditions and its options", "PASS")
    split_input_file: bool = option(
        False, f"run the passes on each module of a file in which lines {SEPARATOR} separate modules"
    )
    verify_diagnostics: bool = option(
        False, "compare the errors with the comments of the form `// expected-error@+1 {{text}}`"
    )


def add_arguments(parser: Parser) -> None:
    parser.add_options(OptOptions)
    names = ("load_pass", "print_ir_before", "print_ir_after", "ir_function", "ir_locations", "timing")
    parser.add_options(CompileOptions, [*names, "pass_statistics"], heading="")


def main(args: argparse.Namespace) -> int:
    from sscc.passes.pass_pipeline import load

    load(args.load_pass)
    if args.list_passes:
        return _list_passes()
    if args.explain is not None:
        return _explain(args.explain)
    if args.file is None:
        raise OptCommandErrors.NO_FILE()
    return _run(args)


def _list_passes() -> int:
    from sscc.passes.base import summary_of
    from sscc.passes.pass_pipeline import LOADED, REGISTRY
    from sscc.passes.upstream import UPSTREAM

    for name, kind in REGISTRY.items():
        print(f"{name:26} {kind.level:8} {summary_of(kind)}")
    for name, other in UPSTREAM.items():
        print(f"{name:26} {'any':8} {inspect.getdoc(other)} (MLIR)")
    for name, loaded in LOADED.items():
        print(printable(f"{name:26} {loaded.level or 'any':8} {summary_of(loaded)} (loaded)"))
    return 0


def _explain(name: str) -> int:
    from sscc.passes.base import options_of
    from sscc.passes.pass_pipeline import pass_by_name
    from sscc.passes.upstream import UPSTREAM

    kind = pass_by_name(name)
    if name in UPSTREAM:
        print(f"{name}: {inspect.getdoc(kind)}.\n\nA pass of MLIR that sscc compile never runs.\n\nNo options.")
        return 0
    print(inspect.getdoc(inspect.getmodule(kind)))
    takes = f"of level {' or '.join(kind.takes)}" if kind.takes else "of any level"
    print(f"\nInput: a module {takes}. Output: {f'level {kind.level}' if kind.level else 'the same level'}.")
    options = options_of(kind)
    print("\nOptions:" if options else "\nNo options.")
    for option_name, (type_, default) in options.items():
        print(f"  {option_name} ({type_.__name__}, default {default})")
    return 0


def _run(args: argparse.Namespace) -> int:
    from sscc.compiler.driver.printing import Excerpt
    from sscc.ir.context import mlir
    from sscc.ir.files import read_text, shown_name
    from sscc.passes.pass_pipeline import parse_pipeline

    excerpt = Excerpt(args.ir_function, args.ir_locations)
    passes = parse_pipeline(args.pass_pipeline or "")
    name, text = shown_name(args.file), read_text(args.file)
    parts = [each for each in parts_of(text) if each[1].strip()] if args.split_input_file else [(1, text)]
    results: list[str] = []
    wrong: list[str] = []
    with mlir():
        for first, part in parts:
            text = "\n" * (first - 1) + part  # so that errors name lines of the file
            if args.verify_diagnostics:
                wrong += _verified(text, name, passes, args, excerpt, results)
            else:
                results.append(_result(text, name, passes, args, excerpt))
    if wrong:
        for line in wrong:
            print(printable(line), file=sys.stderr)
        raise OptCommandErrors.DIAGNOSTICS_DIFFER(name=name, count=len(wrong))
    result = f"\n{SEPARATOR}\n".join(results)
    if args.output is None:
        sys.stdout.write(result)
    else:
        from sscc.compiler.options.outputs import write_text

        write_text(args.output, result)
    return 0


def _result(
    text: str, name: str, passes: Sequence[Pass], args: argparse.Namespace, excerpt: Excerpt
) -> str:
    """Return the printed module after all passes."""
    from sscc.compiler.driver.dumps import parse_dump

    module = parse_dump(text, name)
    for item in _run_passes(module, passes, args, excerpt):
        if args.timing:
            print(f"{item.seconds:9.4f} s  {item.name}", file=sys.stderr)
        if args.pass_statistics:
            for what, number in item.statistics.items():
                print(printable(f"{number:9d}  {item.name}: {what}"), file=sys.stderr)
    return excerpt.of_result(module)


def _verified(
    text: str, name: str, passes: Sequence[Pass], args: argparse.Namespace, excerpt: Excerpt, results: list[str]
) -> list[str]:
    """Run the passes on a text, append the printed module to `results` unless a pass fails, and return the differences
    between expected and actual diagnostics."""
    from sscc.compiler.tools.testing.expected_diagnostics import Diagnostic, differences, read_expected

    with _diagnostics() as found:
        try:
            results.append(_result(text, name, passes, args, excerpt))
        except SsccError as error:
            place = re.search(rf"(?:{re.escape(name)}|(?<![\w.])-):(\d+)(?::\d+)?", str(error))
            found.append(Diagnostic("error", None if place is None else int(place[1]), str(error)))
    return differences(read_expected(text), found, name)


@contextmanager
def _diagnostics() -> Iterator[list[Diagnostic]]:
    """Collect the diagnostics of MLIR that are no part of an error."""
    from torch_mlir import ir

    from sscc.compiler.tools.testing.expected_diagnostics import Diagnostic
    from sscc.ir.locations import text_place

    found: list[Diagnostic] = []

    def note(diagnostic: Any) -> bool:
        place = text_place(diagnostic.location)
        severity = str(diagnostic.severity).rpartition(".")[2].lower()
        found.append(Diagnostic(severity, None if place is None else place[0], str(diagnostic.message)))
        return True

    handler = ir.Context.current.attach_diagnostic_handler(note)
    try:
        yield found
    finally:
        handler.detach()


def _run_passes(
    module: ir.Module, passes: Sequence[Pass], args: argparse.Namespace, excerpt: Excerpt
) -> list[PassTime]:
    """Run the passes. Write a reproducer if a pass fails for another reason than invalid input."""
    from sscc.compiler.driver.printing import IrPrinter
    from sscc.compiler.driver.reproducer import LastStep, write_reproducer
    from sscc.passes.base import run_passes
    from sscc.passes.pass_pipeline import pipeline_text

    last = LastStep()
    printer = IrPrinter(module, args.print_ir_before, args.print_ir_after, sys.stderr, excerpt)
    try:
        return run_passes(module, passes, [last, printer])
    except Exception as error:
        if isinstance(error, SsccError) and not isinstance(error, InternalError):
            raise
        names = [item.name for item in passes]
        rest = pipeline_text(passes[names.index(last.name) :])
        command = write_reproducer(REPRODUCER / last.name, last.text, rest, error, args.load_pass)
        print(f"the pass {last.name} failed; to reproduce:\n  {command}", file=sys.stderr)
        raise
