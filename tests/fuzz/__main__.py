"""``python -m tests.fuzz NAME --cases N [--first SEED] [--jobs N] [--journal FILE]``: runs cases of a target.

Exit code 1 where a case found something. ``python -m tests.fuzz NAME --reduce SEED [--tries N]`` prints a case that
does as small as it becomes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.harness import SeedResult, load_target, run_cases
from tests.fuzz.journal import FindingsJournal
from tests.fuzz.targets import TARGETS

_SHOW_EVERY = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("name", choices=sorted(TARGETS))
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, help="the first seed (default: the journal's next one, or 0)")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--journal", type=Path, help="counts over all runs are kept here")
    parser.add_argument("--reduce", type=int, metavar="SEED", help="print this case, as small as it becomes")
    parser.add_argument("--tries", type=int, default=2000, help="for --reduce: how many smaller cases are tried")
    options = parser.parse_args()
    if options.reduce is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(load_target(TARGETS[options.name])(Path(folder)).reduced(options.reduce, options.tries))
        return 0
    journal = FindingsJournal(options.journal, options.name, options.first)
    new = 0
    began = shown = time.monotonic()
    try:
        for case in run_cases(TARGETS[options.name], journal.next, options.cases, options.jobs):
            journal.add(case)
            if case.finding:
                new += 1
                print(_words(options.name, case), flush=True)
            if time.monotonic() - shown > _SHOW_EVERY:
                shown = time.monotonic()
                print(_counts(journal), flush=True)
    except KeyboardInterrupt:
        print("stopped")
    finally:
        journal.save()
    print(f"{_counts(journal)}; {new} findings in {time.monotonic() - began:.0f} s")
    return 1 if new else 0


def _words(name: str, case: SeedResult) -> str:
    again = f"python -m tests.fuzz {name} --first {case.seed} --cases 1"
    return f"FINDING ({case.outcome}), seed {case.seed}: {case.finding}\n  again: {again}"


def _counts(journal: FindingsJournal) -> str:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in journal.outcomes.most_common())
    return f"{journal.target}: {journal.cases} cases, next seed {journal.next}: {outcomes}"


if __name__ == "__main__":
    sys.exit(main())
