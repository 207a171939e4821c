"""A few seeds of every target; ``python -m tests.fuzz`` runs more of the same."""

from __future__ import annotations

import pytest

from tests.fuzz.harness import run_cases
from tests.fuzz.targets import TARGETS

SEEDS = {"decoders": 1, "near-misses": 3, "graphs": 6, "schedules": 150, "gguf": 300, "gguf-models": 60}
"""Number of seeds per target; 10 for targets that are not listed. Cases take seconds or milliseconds."""


@pytest.mark.parametrize("name", TARGETS)
def test_the_first_seeds_find_nothing(name: str) -> None:
    seeds = SEEDS.get(name, 10)
    cases = list(run_cases(TARGETS[name], 0, seeds))
    assert sorted(case.seed for case in cases) == list(range(seeds))
    for case in cases:
        assert not case.finding, f"{case.finding}\nagain: python -m tests.fuzz {name} --first {case.seed} --cases 1"
