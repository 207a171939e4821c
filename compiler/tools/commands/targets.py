"""`sscc targets`: the figures of a machine that programs are compiled for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from sscc.compiler.tools.commands.parser import CommonOptions, Parser
from sscc.ir.option import option
from sscc.ir.target import DEFAULT, FAMILY, Target, load_target, shipped_targets
from sscc.ir.terminal import listing


@dataclass(frozen=True)
class TargetsOptions:
    """Options of a listing of the machine."""

    target: str = option(FAMILY, "machine to print: rdu, rdu:NAME, or rdu:FILE", "TARGET")


def add_arguments(parser: Parser) -> None:
    parser.add_options(TargetsOptions)
    parser.add_options(CommonOptions, ["json"], json="print the description as a file, to edit for another machine")


def main(args: argparse.Namespace) -> int:
    target = load_target(args.target)
    if args.json:
        print(target.to_json(), end="")
        return 0
    print(listing(_lines(args.target, target)))
    return 0


def _lines(named: str, target: Target) -> Iterator[str]:
    yield f"{named}: {target.name}. {target.note}"
    for name, figure in target.figures.items():
        value = f"{figure.value:.10g} {figure.unit}".strip()
        yield f"  {name:16} {value:32} {figure.origin:10} {figure.note}"
    others = ", ".join(f"{FAMILY}:{name}" for name in shipped_targets() if name != DEFAULT)
    yield f"{FAMILY} is {FAMILY}:{DEFAULT}; others are {others}"
