"""``python -m tests.mutation [GROUP ..] [--sample N] [--jobs N] [--journal FILE] [--again]``: do the tests notice?

Every mutant is one small fault: a comparison or a condition turned round, a boundary or a constant moved, a statement
dropped, `and` for `or`, a result lost. It is put into a copy of the sources, and the tests of its group run until one
fails. Survivors are listed; exit code 1 where there are any that are not known to be equivalent (equivalent.txt).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue

from tests.mutation.groups import GROUPS
from tests.mutation.mutants import Mutant, lines_of, mutants
from tests.mutation.tree import ROOT, Tree, Verdict

EQUIVALENT = Path(__file__).parent / "equivalent.txt"
WANTED = 0.95


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--file", action="append", help="only mutants of this file; may be given again")
    parser.add_argument("--sample", type=int, help="mutants of each group (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the sources that are tested side by side")
    parser.add_argument("--journal", type=Path, default=Path("mutation.jsonl"), help="results, which are not run again")
    parser.add_argument("--again", action="store_true", help="run survivors of earlier runs again")
    options = parser.parse_args()
    unknown = [name for name in options.groups if name not in GROUPS]
    if unknown:
        parser.error(f"there is no group {unknown[0]!r}, there are {', '.join(GROUPS)}")
    chosen = {name: sample(name, options.sample, options.seed, options.file) for name in options.groups or GROUPS}
    known = read_journal(options.journal)
    if options.again:
        known = {key: outcome for key, outcome in known.items() if outcome != "survived"}
    equivalent = read_equivalent(EQUIVALENT)
    open_ = [(name, m) for name, group in chosen.items() for m in group if m.key not in known | equivalent]
    with options.journal.open("a") as journal:
        for mutant, verdict in _judge(open_, options.jobs):
            known[mutant.key] = verdict.outcome
            journal.write(json.dumps({"key": mutant.key, **asdict(verdict)}) + "\n")
            journal.flush()
            print(f"{verdict.outcome:8} {verdict.seconds:5.0f} s  {mutant.key}", flush=True)
    return _report(chosen, known, equivalent)


def sample(group: str, count: int | None, seed: int, files: list[str] | None = None) -> list[Mutant]:
    """Mutants of a group: all, or `count` of them drawn at random."""
    sources = [file for file in GROUPS[group].sources(ROOT) if files is None or file in files]
    candidates = [mutant for file in sources for mutant in mutants(file, (ROOT / file).read_text())]
    if count is None or count >= len(candidates):
        return candidates
    return random.Random(seed).sample(candidates, count)


def read_journal(path: Path) -> dict[str, str]:
    """Outcome by key; the last one counts."""
    if not path.exists():
        return {}
    rows = map(json.loads, path.read_text().splitlines())
    return {row["key"]: row["outcome"] for row in rows}


def read_equivalent(path: Path) -> dict[str, str]:
    """Reason by key: lines "KEY | REASON", and comments. Raises ValueError for a line without a reason."""
    reasons = {}
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        key, bar, reason = line.rpartition(" | ")
        if not bar or not reason.strip():
            raise ValueError(f"{path.name}: this mutant has no reason: {line}")
        reasons[key.strip()] = reason.strip()
    return reasons


def _judge(items: list[tuple[str, Mutant]], jobs: int) -> Iterator[tuple[Mutant, Verdict]]:
    """Verdicts as they come."""
    with tempfile.TemporaryDirectory(prefix="sscc-mutation-") as folder, contextlib.ExitStack() as opened:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(min(jobs, len(items))):
            trees.put(opened.enter_context(Tree(Path(folder) / str(number))))

        def judge(group: str, mutant: Mutant) -> tuple[Mutant, Verdict]:
            tree = trees.get()
            try:
                return mutant, tree.judge(mutant, GROUPS[group].tests(tree.folder, mutant.file))
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(max(1, jobs)) as pool:
            try:
                for done in as_completed([pool.submit(judge, *item) for item in items]):
                    yield done.result()
            finally:  # what failed is told before the rest is run
                pool.shutdown(wait=False, cancel_futures=True)


def _report(chosen: dict[str, list[Mutant]], known: dict[str, str], equivalent: dict[str, str]) -> int:
    survivors = []
    for name, group_mutants in chosen.items():
        counted = [mutant for mutant in group_mutants if mutant.key not in equivalent]
        outcomes = Counter(known.get(mutant.key, "not run") for mutant in counted)
        noticed = outcomes["noticed"] + outcomes["timeout"]
        share = noticed / len(counted) if counted else 1.0
        others = len(group_mutants) - len(counted)
        print(f"{name}: {noticed} of {len(counted)} noticed ({100 * share:.1f} %, wanted {100 * WANTED:g} %), "
              f"{others} more are equivalent")  # fmt: skip
        survivors += [mutant for mutant in counted if known.get(mutant.key) == "survived"]
    for mutant in survivors:
        print("\n".join(["", *lines_of(mutant)]))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
