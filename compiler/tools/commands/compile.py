"""`sscc compile`: compilation of a model to an artifact."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from contextlib import nullcontext
from dataclasses import dataclass

from sscc.compiler.driver.compile_result import CompileResult
from sscc.compiler.options.compile_options import CONTENT, WEIGHTS, CompileOptions, parse_weights
from sscc.compiler.options.garbage import collected_rarely
from sscc.compiler.options.progress import status
from sscc.compiler.tools.commands.parser import CommonOptions, Parser
from sscc.ir.errors import ErrorKind, UsageError, printable
from sscc.ir.extras import COMPILE, require
from sscc.ir.files import STANDARD
from sscc.ir.option import option, options_of
from sscc.ir.stopwatch import Stopwatch, recorded
from sscc.ir.terminal import send_log_to_stderr


@dataclass(frozen=True)
class WeightlessOption:
    """The option that replaces `weights` in compilations without weights."""

    no_weights: bool = option(
        False, "compile from the config alone, for models too large to load", group=CONTENT, one_of="weights"
    )


def add_arguments(parser: Parser) -> None:
    parser.add_options(CompileOptions)
    parser.add_options(WeightlessOption)
    parser.add_options(CommonOptions, json="print one JSON object on stdout: path, report, warnings")


def options_from(args: argparse.Namespace) -> CompileOptions:
    """Return the checked options of a parsed command line. Raises UsageError."""
    weights, weight_format = parse_weights(args.weights or WEIGHTS[0])
    return options_of(
        CompileOptions, args, weights="none" if args.no_weights else weights, weight_format=weight_format
    )


class CompileCommandErrors(ErrorKind):
    JSON_BESIDE_OUTPUT = UsageError, "--json and --output - both write to stdout: give a file name to --output"


def main(args: argparse.Namespace) -> int:
    options = options_from(args)
    if args.json and options.output_path == STANDARD:
        raise CompileCommandErrors.JSON_BESIDE_OUTPUT()
    printing = bool(options.print_ir_before or options.print_ir_after)
    with status("starting", quiet=args.quiet or printing) as update:
        result = _compile(args, options, Stopwatch(args.began, update))
    if not args.quiet:
        for line in result.report:
            print(printable(line), file=sys.stderr)
        if result.path != STANDARD:
            print(f"sscc: wrote {result.path}", file=sys.stderr)
    if args.json:
        warnings = [warning.as_json() for warning in result.warnings]
        print(json.dumps({"path": str(result.path), "report": list(result.report), "warnings": warnings}))
    return 0


def _compile(args: argparse.Namespace, options: CompileOptions, stopwatch: Stopwatch) -> CompileResult:
    level = logging.WARNING if args.quiet else logging.INFO
    send_log_to_stderr(logging.ERROR if args.quiet else logging.WARNING)
    logging.getLogger("sscc").setLevel(level)

    require(COMPILE, "sscc compile")
    with collected_rarely():
        with stopwatch.phase("imports"):
            from sscc.compiler.driver.driver import compile_model
            from sscc.compiler.frontend.quiet import quiet_libraries

        with quiet_libraries() if args.quiet else nullcontext(), recorded(stopwatch):
            return compile_model(options)
