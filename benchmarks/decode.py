"""Decode speed of sscc and its peers with equal weights and threads, in interleaved repeats.

    python benchmarks/decode.py [--models m125 m1b] [--only WORD ..] [--write docs/results/speed.md] [--json]

Missing peers are skipped, and the command that installs them is printed. docs/results/speed.md explains the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks.command import parser, report, run
from benchmarks.harness import Workload

BLOCK = "benchmarks/decode.py"
CASES = ("1x128", "1x4096", "1x16384", "8x128")


def workload(case: str, steps: int) -> Workload:
    """Return the workload of `BATCHxCONTEXT`. Raises ValueError for other texts."""
    batch, context = (int(word) for word in case.split("x"))
    return Workload("decode", batch, context, steps)


def main() -> None:
    options = parser("Measure decode steps.")
    options.add_argument("--cases", nargs="+", default=CASES, metavar="BATCHxCONTEXT", help=", ".join(CASES))
    options.add_argument("--steps", type=int, default=32, help="decode steps of a measurement (32)")
    words = options.parse_args()
    report(run(words, [workload(case, words.steps) for case in words.cases], block=BLOCK), words, BLOCK)


if __name__ == "__main__":
    main()
