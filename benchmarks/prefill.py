"""Prefill speed of sscc and its peers with equal weights and threads, in interleaved repeats.

    python benchmarks/prefill.py [--models m125 m1b] [--only WORD ..] [--write docs/results/speed.md] [--json]

Missing peers are skipped, and the command that installs them is printed. docs/results/speed.md explains the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks.command import parser, report, run
from benchmarks.harness import Workload

BLOCK = "benchmarks/prefill.py"


def main() -> None:
    options = parser("Measure prefill.")
    options.add_argument("--tokens", nargs="+", type=int, default=[2048], metavar="N", help="prompt lengths (2048)")
    words = options.parse_args()
    report(run(words, [Workload("prefill", 1, count, 1) for count in words.tokens]), words, BLOCK)


if __name__ == "__main__":
    main()
