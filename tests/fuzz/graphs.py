"""Fuzzing target: random programs of level `graph`, compiled at every level of optimisation and run on both
interpreters against the evaluator."""

from __future__ import annotations

import random
from pathlib import Path
from typing import ClassVar

from sscc.ir.context import mlir, parse_module, print_module
from tests.fuzz.harness import Finding, Target
from tests.fuzz.lowering import FilledCall, compare
from tests.fuzz.modules import with_entry
from tests.fuzz.near_misses import ENTRY, KERNEL, contents
from tests.fuzz.random_graphs import RandomGraph
from tests.fuzz.reduce_ir import reduced_finding


class Graphs(Target):
    name: ClassVar[str] = "graphs"

    def __init__(self, folder: Path) -> None:
        del folder

    def run(self, seed: int) -> str:
        text = program(seed)
        try:
            return compare(text, FilledCall(ENTRY, contents(text, seed), {}, {}))
        except Finding as finding:
            raise Finding(f"{finding}\n{text}") from None

    def reduced(self, seed: int, tries: int) -> str:
        """The module of a seed, as small as it becomes."""
        text = program(seed)
        call = FilledCall(ENTRY, contents(text, seed), {}, {})
        return reduced_finding(text, lambda module: compare(module, call), tries)


def program(seed: int) -> str:
    """The module of a seed."""
    draw = random.Random(seed)
    text = RandomGraph(draw).text(draw.randint(2, 9))
    with mlir():
        module = parse_module(text, "case")
        with_entry(module, KERNEL, ENTRY)
        return print_module(module)
