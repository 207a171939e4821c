"""`sscc compile`: a model becomes an artifact."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from sscc.compiler.driver.compile_result import CompileResult
from sscc.compiler.options.compile_options import CACHE, CONTENT, GRAPH, IR, WEIGHTS, CompileOptions, parse_weights
from sscc.compiler.options.garbage import collected_rarely
from sscc.compiler.options.option import add_options, records_of
from sscc.compiler.options.progress import status
from sscc.compiler.tools.commands.noise import add_quiet_argument
from sscc.ir.errors import ErrorKind, UsageError, printable
from sscc.ir.extras import COMPILE, require
from sscc.ir.files import STANDARD
from sscc.ir.stopwatch import Stopwatch, recorded
from sscc.ir.terminal import send_log_to_stderr


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        type=Path,
        metavar="MODEL",
        help="Hugging Face folder, .gguf, .pt, .pth or .pt2 file; a config.json with --no-weights; a dumped .mlir, "
        "- for one on stdin",
    )
    add_options(parser, CompileOptions, names_in(""))
    for group in (CACHE, GRAPH):
        add_options(parser.add_argument_group(group), CompileOptions, names_in(group))
    _add_content_arguments(parser.add_argument_group(CONTENT))
    add_options(parser.add_argument_group(IR), CompileOptions, names_in(IR))
    noise = parser.add_mutually_exclusive_group()
    add_quiet_argument(noise)
    noise.add_argument("-v", "--verbose", action="store_true", help="print what each pass did")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout: path, report, warnings")


def names_in(group: str) -> list[str]:
    """Return the options under a heading of help."""
    return [name for name, record in records_of(CompileOptions).items() if record.group == group]


def _add_content_arguments(group: argparse._ArgumentGroup) -> None:
    weights = group.add_mutually_exclusive_group()
    add_options(weights, CompileOptions, ["weights"])
    weights.add_argument(
        "--no-weights", action="store_true", help="from the config alone, for models too large to load"
    )
    add_options(group, CompileOptions, [name for name in names_in(CONTENT) if name != "weights"])


def options_from(args: argparse.Namespace) -> CompileOptions:
    """The checked options of a parsed command line. Raises UsageError."""
    names = [name for name in CompileOptions.__dataclass_fields__ if hasattr(args, name)]
    values: dict[str, Any] = {name: getattr(args, name) for name in names}
    values["weights"], values["weight_format"] = parse_weights(args.weights or WEIGHTS[0])
    if args.no_weights:
        values["weights"] = "none"
    for name in ("print_ir_before", "print_ir_after", "load_pass"):
        values[name] = tuple(values[name] or ())
    return CompileOptions(**values)


class CompileCommandErrors(ErrorKind):
    JSON_BESIDE_OUTPUT = UsageError, "--json prints on stdout, where the output goes too: name a file with --output"


def main(args: argparse.Namespace) -> int:
    options = options_from(args)
    if args.json and options.output_path == STANDARD:
        raise CompileCommandErrors.JSON_BESIDE_OUTPUT()
    printing = bool(options.print_ir_before or options.print_ir_after)
    with status("starting", quiet=args.quiet or args.verbose or printing) as update:
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
    level = logging.WARNING if args.quiet else logging.DEBUG if args.verbose else logging.INFO
    send_log_to_stderr(logging.ERROR if args.quiet else logging.WARNING)
    logging.getLogger("sscc").setLevel(level)

    require(COMPILE, "sscc compile")
    with collected_rarely():
        with stopwatch.phase("imports"):
            from sscc.compiler.driver.driver import compile_model
            from sscc.compiler.frontend.quiet import quiet_libraries

        with quiet_libraries() if args.quiet else nullcontext(), recorded(stopwatch):
            return compile_model(options)
