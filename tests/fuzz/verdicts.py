"""What the validator said of the first mutated schedules: a weaker or a stricter check shows as another verdict.

The target `schedules` has judged these cases, by executing what is accepted. Their verdicts are kept, so that whoever
changes the validator sees which of them change, and in which words. ``python -m tests.fuzz.verdicts`` writes them
anew: read the difference, and run the target on the seeds that it names.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from sscc.ir.errors import InputError
from tests.fuzz.execution import admit
from tests.fuzz.schedules import Schedules

FILE = Path(__file__).with_name("verdicts.json.gz")
SEEDS = 2500


def verdicts(seeds: range) -> Iterator[str]:
    """The validator's verdict on each seed: the words of its refusal, or "accepted"."""
    target = Schedules(Path())
    for seed in seeds:
        base, program, _, reason = target.case(seed)
        try:
            if program is not None:
                admit(program, base.situation)
                reason = "accepted"
        except InputError as error:
            reason = str(error)
        yield reason


def recorded() -> list[str]:
    lines: list[str] = json.loads(gzip.decompress(FILE.read_bytes()))
    return lines


if __name__ == "__main__":
    text = json.dumps(list(verdicts(range(SEEDS))), indent=0)
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))
