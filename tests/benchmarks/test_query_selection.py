"""Results that the benchmark of rows selected by query computes from measurements."""

from __future__ import annotations

import pytest

from benchmarks.query_selection import Measured, _parts_of, render

MS = 1_000_000


def test_attention_is_told_apart_by_phases() -> None:
    labels = ["q_proj", "layer.query_attention"]
    events = []
    for thread in (0, 1):
        times = [(0, 1), (1, 5), (-1, 1), (1, 2 + thread), (1, 3), (1, 1), (0, 1), (1, 5), (1, 2), (1, 3), (1, 1)]
        events += [(label, thread, 0, spent * MS) for label, spent in times]
    found = _parts_of(events, labels, layers=2)
    wanted = {"scoring": 10, "selection": 5, "attention": 6, "merging": 2, "barriers": 1, "everything else": 2}
    assert {name: round(seconds * 1e3) for name, seconds in found.items()} == wanted
    assert set(_parts_of(events[:4], labels, layers=1)) == {
        "scoring and selection", "attention", "barriers", "everything else"
    }  # fmt: skip
    with pytest.raises(ValueError, match="3 runs of attention in 1 layers"):
        _parts_of(events[:5], labels, layers=1)


def test_a_table_of_steps_and_one_of_their_parts() -> None:
    steps = {"snapstream": [0.004, 0.005, 0.006], "query": [0.008, 0.010, 0.012], "full": [0.02, 0.025, 0.03]}
    nbytes = {"snapstream": 1e8, "query": 2e8, "full": 1e9}
    one = Measured("1x64", 2, steps, nbytes, {"scoring": 0.003, "barriers": 0.001}, 40e9, {"llama.cpp (1)": 0.05})
    other = Measured("8x64", 2, steps, nbytes, {"scoring and selection": 0.004, "barriers": 0.001}, 40e9)
    lines = render([one, other], list(steps), "small").splitlines()
    cells = ["1x64", "2", "5.00 (4.00; 50%)", "10.00 (8.00; 50%)", "25.00 (20.00; 100%)"]
    assert f"| {' | '.join([*cells, '0.50 (0.50)', '2.50 (5.00)', '50.00', '40'])} |" in lines
    assert "| 8x64 | 2 |  | 4.00 | 1.00 |" in lines
    assert lines[-1] == "Versions: llama.cpp (1)."
