"""A short soak; ``python -m tests.soak`` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import Options, soak, tiny_artifact


@pytest.mark.slow
def test_good_and_hostile_clients_at_once(tmp_path: Path) -> None:
    """The bounds of time and memory are wide, as other tests may run beside it: what must not be is a server that
    stalls, and one that keeps what it was sent."""
    options = Options(requests=120, minutes=2, health_ms=10_000, growth=1.0, speculate="lookup")
    report = soak(tiny_artifact(tmp_path), options)
    assert report.problems == []
    assert report.requests == 120
    assert report.good_answers > 30
    assert report.health_probes > 10
