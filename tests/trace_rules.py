"""What the trace-event format asks of a file, as far as Perfetto depends on it."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

TINY = 1e-3
"""Microseconds: what is lost where nanoseconds of a long time become a float."""


def checked_events(text: str | bytes) -> list[dict[str, Any]]:
    """The events of a trace, after checking fields, names, nesting and counters."""
    data = json.loads(text)
    assert set(data) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert data["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, Any]] = data["traceEvents"]
    processes = {e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"]}
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and e["args"]["name"]}
    spans: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    nests: dict[tuple[Any, ...], list[tuple[str, float]]] = defaultdict(list)
    for event in events:
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["pid"] in processes
        if event["ph"] == "M":
            continue
        assert (event["pid"], event["tid"]) in threads
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            spans[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert event["args"]
            assert all(isinstance(value, int | float) and value >= 0 for value in event["args"].values())
        else:
            nest = nests[event["pid"], event["cat"], event["id2"]["local"]]
            if event["ph"] == "b":
                assert not nest or nest[-1][1] <= event["ts"] + TINY
                nest.append((event["name"], event["ts"]))
            else:
                assert event["ph"] == "e"
                name, begin = nest.pop()
                assert name == event["name"]
                assert begin <= event["ts"] + TINY
    assert not any(nests.values()), "an asynchronous event has no end"
    for track in spans.values():
        _check_nesting(track)
    return events


def _check_nesting(track: list[tuple[float, float]]) -> None:
    ends: list[float] = []
    for begin, end in sorted(track, key=lambda span: (span[0], -span[1])):
        while ends and ends[-1] <= begin + TINY:
            ends.pop()
        assert not ends or end <= ends[-1] + TINY, "a span leaves the one that it lies in"
        ends.append(end)
