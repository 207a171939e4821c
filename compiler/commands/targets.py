"""`sscc targets`: every figure of the machine that a program is compiled for."""

from __future__ import annotations

import argparse

from sscc.ir.machine import FAMILY, load_machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default=FAMILY, help="rdu (default), or rdu:FILE for a description of one's own")
    parser.add_argument("--json", action="store_true", help="the description's file form, to start one's own from")


def main(args: argparse.Namespace) -> int:
    machine = load_machine(args.target)
    if args.json:
        print(machine.to_json(), end="")
        return 0
    print(f"{args.target}: {machine.name}. {machine.note}")
    for name, figure in machine.figures.items():
        value = f"{figure.value:.10g} {figure.unit}".strip()
        print(f"  {name:16} {value:32} {figure.origin:10} {figure.note}")
    return 0
