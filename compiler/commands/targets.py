"""`sscc targets`: every figure of the machine that a program is compiled for."""

from __future__ import annotations

import argparse

from sscc.ir.target import DEFAULT, FAMILY, load_target, shipped_targets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default=FAMILY, help="rdu, rdu:NAME, or rdu:FILE for one's own")
    parser.add_argument("--json", action="store_true", help="the description's file form, to start one's own from")


def main(args: argparse.Namespace) -> int:
    target = load_target(args.target)
    if args.json:
        print(target.to_json(), end="")
        return 0
    print(f"{args.target}: {target.name}. {target.note}")
    for name, figure in target.figures.items():
        value = f"{figure.value:.10g} {figure.unit}".strip()
        print(f"  {name:16} {value:32} {figure.origin:10} {figure.note}")
    others = ", ".join(f"{FAMILY}:{name}" for name in shipped_targets() if name != DEFAULT)
    print(f"{FAMILY} is {FAMILY}:{DEFAULT}; there are {others} too")
    return 0
