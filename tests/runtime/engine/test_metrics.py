"""Metrics: buckets of durations, and each counter under its own name."""

from __future__ import annotations

from dataclasses import asdict, fields

import numpy as np

from sscc.runtime.serving.engine.metrics import (
    INTER_TOKEN_BOUNDS,
    SORTED_TOGETHER,
    WAITING_BOUNDS,
    Counters,
    Histogram,
    HistogramCounter,
)

EMPTY = (0,) * 16


def test_buckets_are_those_that_people_ask_for() -> None:
    """Bounds of buckets are labels in the queries of monitoring systems, so they must not change."""
    milliseconds = [round(1000 * bound) for bound in INTER_TOKEN_BOUNDS]
    assert milliseconds == [2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000]
    milliseconds = [round(1000 * bound) for bound in WAITING_BOUNDS]
    assert milliseconds[:9] == [5, 10, 25, 50, 100, 250, 500, 1000, 2500]
    assert milliseconds[9:] == [5000, 10_000, 25_000, 60_000, 120_000, 300_000]


def test_a_bound_is_part_of_its_bucket() -> None:
    counter = HistogramCounter((1.0, 2.0))
    assert counter.read() == Histogram((1.0, 2.0), (0, 0, 0), 0.0)
    counter.add(np.array([0.5, 1.0, 1.5, 2.0]))
    assert counter.read() == Histogram((1.0, 2.0), (2, 2, 0), 5.0)
    counter.add(np.array([2.5]))
    counter.add(np.array([]))
    for _ in range(2):
        assert counter.read() == Histogram((1.0, 2.0), (2, 2, 1), 7.5)
    assert counter.read().count == 5


def test_durations_are_sorted_before_they_are_many() -> None:
    counter = HistogramCounter((1.0,))
    for number in range(3 * SORTED_TOGETHER + 5):
        assert len(counter._added) == number % SORTED_TOGETHER
        counter.add(np.array([0.5]))
    assert counter.read().counts == (3 * SORTED_TOGETHER + 5, 0)


def test_every_counter_arrives_under_its_name() -> None:
    gauges = {"queued": 1, "running": 2, "slots": 3, "prefilling": 4, "kept_rows": 5, "evicted_rows": 6}
    zero = Histogram(WAITING_BOUNDS, EMPTY, 0.0)
    histograms = {
        "first_token_seconds": zero,
        "inter_token_seconds": Histogram(INTER_TOKEN_BOUNDS, EMPTY, 0.0),
        "queued_seconds": zero,
    }
    finished = dict.fromkeys(("eos", "stop", "length", "grammar", "prefilled", "cancelled", "timeout", "error"), 0)
    counters = Counters()
    counted = [each.name for each in fields(Counters) if each.type == "int"]
    seconds = [name.replace("_ns", "_seconds") for name in counted]
    assert asdict(counters.read(**gauges)) == asdict(Counters().read(**gauges))
    start = counters.read(**gauges)
    expected: dict[str, object] = {**gauges, **dict.fromkeys(seconds, 0), **histograms, "finished": finished}
    for each in fields(start):
        assert getattr(start, each.name) == expected[each.name]
    for number, name in enumerate(counted):
        setattr(counters, name, 10 + number)
    read = counters.read(**gauges)
    for number, name in enumerate(counted):
        if name.endswith("_ns"):
            assert getattr(read, name.replace("_ns", "_seconds")) == (10 + number) / 1e9
        else:
            assert getattr(read, name) == 10 + number
    for number, histogram in enumerate((counters.first_token, counters.inter_token, counters.waited), 1):
        histogram.add(np.full(number, 1000.0))
    read = counters.read(**gauges)
    assert [read.first_token_seconds.sum, read.inter_token_seconds.sum, read.queued_seconds.sum] == [1e3, 2e3, 3e3]
    counters.finished["stop"] += 1
    assert read.finished["stop"] == 0  # a snapshot
