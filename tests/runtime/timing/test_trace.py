"""Chrome traces: valid JSON, events inside one another, and durations that are those of the timing."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from sscc.ir.files import FileErrors
from sscc.ir.schedule import Launch
from sscc.runtime.timing import Timing, time_entry, write_trace
from sscc.runtime.timing.trace import TimelineErrors
from tests.errors import raises
from tests.runtime.schedules import view_of
from tests.runtime.timing.programs import MACHINE, TILE, program, streamed
from tests.trace_rules import checked_events


def recorded(sockets: int = 1) -> Timing:
    """A trace of three launches of five iterations of four tiles."""
    kernels, bodies = streamed(4, 100, iterations=5)
    launch = Launch("k", (view_of("w", (20, TILE)), view_of("y", (1,))))
    target = MACHINE.with_sockets(sockets)
    return time_entry(program(kernels, bodies, (launch,) * 3), "main", target, record=True)


def events(timing: Timing, folder: Path) -> list[dict[str, Any]]:
    write_trace(folder / "trace.json", timing)
    assert [path.name for path in folder.iterdir()] == ["trace.json"]
    return checked_events((folder / "trace.json").read_text())


def track_names(trace: list[dict[str, Any]]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in trace if event["name"] == "thread_name"}


def test_durations_are_those_of_the_timing(tmp_path: Path) -> None:
    timing = recorded()
    trace = events(timing, tmp_path)
    names = track_names(trace)
    total: dict[str, float] = defaultdict(float)
    for event in trace:
        if event["ph"] == "X" and (names[event["tid"]] != "kernels" or event["name"] == "k"):
            total[names[event["tid"]]] += event["dur"] / 1e6
    assert total["kernels"] == pytest.approx(timing.seconds)
    assert total["HBM"] == pytest.approx(timing.nbytes["hbm"] / 1e9)
    for index, stage in enumerate(timing.launches[0].kernel.pipelines[0].stages):
        shown = total[f"k: {('load', 'multiply')[index]}"]  # what sharing a tier adds is shown too
        assert 3 * stage.busy_seconds <= shown * (1 + 1e-9) <= 1.01 * 3 * stage.busy_seconds
    last = max(event["ts"] + event["dur"] for event in trace if event["ph"] == "X")
    assert last == pytest.approx(timing.seconds * 1e6)


def test_iterations_overlap(tmp_path: Path) -> None:
    iterations = [event for event in events(recorded(), tmp_path) if event.get("cat") == "iteration"]
    begins = {event["id2"]["local"]: event["ts"] for event in iterations if event["ph"] == "b"}
    ends = {event["id2"]["local"]: event["ts"] for event in iterations if event["ph"] == "e"}
    assert begins.keys() == ends.keys()
    assert len(begins) == 3 * 5
    assert begins["0.0.1"] < ends["0.0.0"]  # loads of the second run ahead


def test_the_counter_goes_up_to_what_is_placed_and_back_to_nothing(tmp_path: Path) -> None:
    timing = recorded()
    values = [event["args"]["bytes"] for event in events(timing, tmp_path) if event["ph"] == "C"]
    assert max(values) == timing.on_chip_bytes
    assert min(values) == values[-1] == 0


def test_one_process_per_socket(tmp_path: Path) -> None:
    trace = events(recorded(2), tmp_path)
    named = {event["pid"]: event["args"]["name"] for event in trace if event["name"] == "process_name"}
    assert named == {0: "socket 0", 1: "socket 1"}
    first, second = ([{**e, "pid": 0} for e in trace if e["pid"] == pid and e["ph"] != "M"] for pid in (0, 1))
    assert first == second


def test_firings_without_a_gap_are_one_event(tmp_path: Path) -> None:
    trace = events(recorded(), tmp_path)
    names = track_names(trace)
    loads = [event for event in trace if event["ph"] == "X" and names[event["tid"]] == "k: load"]
    assert sum(event["args"]["count"] for event in loads) == 3 * 5 * 4
    assert len(loads) == 3 * 5


def test_refusals(tmp_path: Path) -> None:
    kernels, bodies = streamed(1, 100)
    with raises(TimelineErrors.NOT_RECORDED):
        write_trace(tmp_path / "trace.json", time_entry(program(kernels, bodies), "main", MACHINE))
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "none" / "trace.json"
    with raises(FileErrors.CANNOT_WRITE, path=path, reason="No such file or directory"):
        write_trace(path, recorded())
