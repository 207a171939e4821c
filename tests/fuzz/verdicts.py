"""The validator's verdicts on the first mutated schedules: a weaker or a stricter check shows as another verdict.

The target `schedules` has judged these cases, by executing what is accepted. Their verdicts are kept as kinds of
errors: a new sentence changes none of them, and a change of the validator shows which seeds it decides otherwise.
``python -m tests.fuzz.verdicts`` writes them anew: read the difference, and run the target on the seeds that it names.
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
ACCEPTED = "accepted"


def verdicts(seeds: range) -> Iterator[str]:
    """Yield the verdict on each seed: the code of the error's kind, or `ACCEPTED`."""
    target = Schedules(Path())
    for seed in seeds:
        base, program, _, error = target.case(seed)
        if program is not None:
            try:
                admit(program, base.situation)
            except InputError as refusal:
                error = refusal
        yield ACCEPTED if error is None else _code(error)


def _code(error: InputError) -> str:
    assert error.kind is not None, error
    return error.kind.code


def recorded() -> list[str]:
    """Return the verdicts on record, by seed."""
    codes: list[str] = json.loads(gzip.decompress(FILE.read_bytes()))
    return codes


if __name__ == "__main__":
    text = json.dumps(list(verdicts(range(SEEDS))), indent=0)
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))
