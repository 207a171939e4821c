"""`sscc targets`: every figure of the machine that a program is compiled for."""

from __future__ import annotations

import argparse

from sscc.ir.target import FAMILY, load_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default=FAMILY, help="rdu (default), or rdu:FILE for a description of one's own")
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
    return 0
