"""`sscc print`: IR or a schedule as a readable listing."""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import MISSING, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from sscc.compiler.tools.commands.parser import Parser
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.files import STANDARD, is_folder
from sscc.ir.option import option
from sscc.ir.suggestions import did_you_mean
from sscc.ir.terminal import terminal_text

COLOURS = ("auto", "always", "never")
_SCHEDULE_PART = re.compile(r"^(?=[A-Z]{4,} )", re.MULTILINE)
_TOKENS = re.compile(
    r"(?P<comment>//.*|  ;.*|-- .*)|(?P<value>[%&][\w.']+)|(?P<symbol>@[\w.]+)"
    r"|(?P<word>\b(?:entry|kernel|body|stage|for|in|carrying|next|if|else|return|yield|call|load|sum|max|over|with|"
    r"where|reshape|transpose|by|KERNEL|ENTRY|BODY|MEMORY|pipeline|buffer|waits)\b)"
    r"|(?P<type>\b(?:\d+x)*(?:f64|f32|bf16|f16|i64|i32|i8|i1|index)\b)"
)
_STYLES = {"comment": "2", "value": "36", "symbol": "33", "word": "1;35", "type": "32"}


class PrintCommandErrors(ErrorKind):
    OPTION_OF_DUMPS = (
        UsageError,
        "--locations and --weights apply to dumps only: the schedule of the artifact {artifact} always shows both",
    )
    NO_FUNCTION = UsageError, "there is no function {name}; the functions are {names}{similar_hint}"
    NO_PART = UsageError, "there is no kernel, entry or body {name}; there are {names}{similar_hint}"


@dataclass(frozen=True)
class PrintOptions:
    """Options of a listing."""

    file: Path = option(MISSING, "dump (.mlir), - for stdin, or artifact", "FILE", positional=True)
    output: Path | None = option(
        None, "file to write; - for stdout", "FILE", flags=("-o", "--output"), default="stdout"
    )
    ir_function: str | None = option(
        None, "functions or kernels to print: a name, or a pattern with * and ?", "NAME", default="all"
    )
    locations: bool = option(False, "show the model's source location of every line of a dump")
    weights: bool = option(False, "list the weights that a dump passes to functions")
    color: str = option("auto", f"use of colours: {', '.join(COLOURS)}", "WHEN", choices=COLOURS)


def add_arguments(parser: Parser) -> None:
    parser.add_options(PrintOptions)


def main(args: argparse.Namespace) -> int:
    from sscc.compiler.options.outputs import write_text

    is_dump = args.file == STANDARD or not is_folder(args.file)
    if not is_dump and (args.locations or args.weights):
        raise PrintCommandErrors.OPTION_OF_DUMPS(artifact=args.file)
    text = terminal_text(_dump(args) if is_dump else _schedule(args))
    to_stdout = args.output is None or args.output == STANDARD
    if args.color == "always" or (args.color == "auto" and to_stdout and _takes_colour()):
        text = coloured(text)
    if to_stdout:
        sys.stdout.write(text)
    else:
        write_text(args.output, text)
    return 0


def _dump(args: argparse.Namespace) -> str:
    from sscc.compiler.driver.pretty import pretty
    from sscc.ir.context import mlir, parse_module
    from sscc.ir.files import read_text, shown_name
    from sscc.ir.rewriting import functions

    with mlir():
        module = parse_module(read_text(args.file), shown_name(args.file))
        names = [function.name.value for function in functions(module)]
        shown = None if args.ir_function is None else _chosen(names, args.ir_function, PrintCommandErrors.NO_FUNCTION)
        return pretty(module, shown=shown, locations=args.locations, weights=args.weights)


def _schedule(args: argparse.Namespace) -> str:
    from sscc.compiler.emit.listing import list_program
    from sscc.runtime.session.artifact import Artifact

    text = list_program(Artifact.load(args.file, verify=False).program)
    if args.ir_function is None:
        return text
    parts = {part.split()[1].partition("(")[0]: part for part in _SCHEDULE_PART.split(text)[1:]}
    del parts[""]  # the map of memory
    return "".join(parts[name] for name in _chosen([*parts], args.ir_function, PrintCommandErrors.NO_PART))


def _chosen(names: list[str], pattern: str, missing: PrintCommandErrors) -> list[str]:
    """Return the names that match a pattern. Raises `missing` if none does."""
    chosen = [name for name in names if fnmatchcase(name, pattern)]
    if not chosen:
        raise missing(name=pattern, names=names, similar_hint=did_you_mean(pattern, names))
    return chosen


def _takes_colour() -> bool:
    """Return True if stdout is a terminal with colours, and NO_COLOR is not set (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str) -> str:
    """Return the text with ANSI colour codes."""

    def paint(match: re.Match[str]) -> str:
        return f"\x1b[{_STYLES[match.lastgroup or 'value']}m{match[0]}\x1b[0m"

    return _TOKENS.sub(paint, text)
