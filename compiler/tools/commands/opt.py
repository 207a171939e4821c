"""`sscc opt`: passes on a dump, one at a time or as a pipeline, for people who work on the compiler."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.compiler.tools.commands.compile import add_excerpt_arguments
from sscc.ir.errors import ErrorKind, InternalError, SsccError, UsageError, printable

if TYPE_CHECKING:
    from torch_mlir import ir

    from sscc.compiler.driver.printing import Excerpt
    from sscc.passes.base import Pass, PassTime


class OptCommandErrors(ErrorKind):
    NO_FILE = UsageError, "give the .mlir file to run passes on, or --list-passes or --explain PASS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE.mlir", help="a dump of `sscc compile`; - for stdin")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="- for stdout, too (default: stdout)")
    parser.add_argument(
        "--pass-pipeline",
        metavar="PASSES",
        help="'name,name{option=value}', of ours and MLIR's own, see --list-passes (default: none)",
    )
    parser.add_argument(
        "--no-verify-each",
        dest="verify_each",
        action="store_false",
        help="check the IR and its level after the last pass only, not after each",
    )
    parser.add_argument("--list-passes", action="store_true", help="every pass with its level and summary")
    parser.add_argument("--explain", metavar="PASS", help="what a pass does, when it does not apply, and its options")
    parser.add_argument(
        "--print-ir-before", action="append", default=[], metavar="PASS", help="on stderr; a name or all"
    )
    parser.add_argument(
        "--print-ir-after", action="append", default=[], metavar="PASS", help="on stderr; a name, all or change"
    )
    add_excerpt_arguments(parser)
    parser.add_argument("--timing", action="store_true", help="seconds of each pass, on stderr")
    parser.add_argument("--pass-statistics", action="store_true", help="what each pass counted, on stderr")
    parser.add_argument(
        "--reproducer", type=Path, default=Path("sscc-reproducer"), metavar="DIR", help="where a failing pass is kept"
    )


def main(args: argparse.Namespace) -> int:
    if args.list_passes:
        return _list_passes()
    if args.explain is not None:
        return _explain(args.explain)
    if args.file is None:
        raise OptCommandErrors.NO_FILE()
    return _run(args)


def _list_passes() -> int:
    from sscc.passes.base import summary_of
    from sscc.passes.pass_pipeline import REGISTRY
    from sscc.passes.upstream import UPSTREAM

    for name, kind in REGISTRY.items():
        print(f"{name:26} {kind.level:8} {summary_of(kind)}")
    for name, other in UPSTREAM.items():
        print(f"{name:26} {'any':8} {inspect.getdoc(other)} (MLIR's own)")
    return 0


def _explain(name: str) -> int:
    from sscc.passes.base import options_of
    from sscc.passes.pass_pipeline import pass_by_name
    from sscc.passes.upstream import UPSTREAM

    kind = pass_by_name(name)
    if name in UPSTREAM:
        print(f"{name}: {inspect.getdoc(kind)}.\n\nA pass of MLIR's own, which no compilation runs.\n\nNo options.")
        return 0
    print(inspect.getdoc(inspect.getmodule(kind)))
    print(f"\nTakes a module of level {' or '.join(kind.takes)}, and leaves one of level {kind.level}.")
    options = options_of(kind)
    print("\nOptions:" if options else "\nNo options.")
    for option, (type_, default) in options.items():
        print(f"  {option} ({type_.__name__}, default {default})")
    return 0


def _run(args: argparse.Namespace) -> int:
    from sscc.compiler.driver.dumps import read_dump
    from sscc.compiler.driver.printing import Excerpt
    from sscc.ir.context import mlir
    from sscc.passes.pass_pipeline import parse_pipeline

    excerpt = Excerpt(args.ir_function, args.ir_locations)
    passes = parse_pipeline(args.pass_pipeline or "")
    with mlir():
        module = read_dump(args.file)
        times = _run_passes(module, passes, args, excerpt)
        result = excerpt.of_result(module)
    for item in times:
        if args.timing:
            print(f"{item.seconds:9.4f} s  {item.name}", file=sys.stderr)
        if args.pass_statistics:
            for what, number in item.statistics.items():
                print(printable(f"{number:9d}  {item.name}: {what}"), file=sys.stderr)
    if args.output is None:
        sys.stdout.write(result)
    else:
        from sscc.compiler.options.outputs import write_text

        write_text(args.output, result)
    return 0


def _run_passes(
    module: ir.Module, passes: Sequence[Pass], args: argparse.Namespace, excerpt: Excerpt
) -> list[PassTime]:
    """Runs the passes; a failure that is not the model's fault leaves a reproducer behind."""
    from sscc.compiler.driver.printing import IrPrinter
    from sscc.compiler.driver.reproducer import LastStep, write_reproducer
    from sscc.passes.base import run_passes
    from sscc.passes.pass_pipeline import pipeline_text

    last = LastStep()
    printer = IrPrinter(module, args.print_ir_before, args.print_ir_after, sys.stderr, excerpt)
    try:
        return run_passes(module, passes, [last, printer], verify_each=args.verify_each)
    except Exception as error:
        if isinstance(error, SsccError) and not isinstance(error, InternalError):
            raise
        names = [item.name for item in passes]
        rest = pipeline_text(passes[names.index(last.name) :])
        command = write_reproducer(args.reproducer / last.name, last.text, rest, error)
        print(f"the pass {last.name} failed; this shows it again:\n  {command}", file=sys.stderr)
        raise
