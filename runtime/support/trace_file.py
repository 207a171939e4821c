"""Files in the trace-event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is "Trace Event Format" of the Chromium project, as a JSON object. Times are microseconds. Complete events
(`X`) of one track are nested or disjoint; asynchronous ones (`b`, `e`) with the same category and identity form one
nest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from sscc.ir.files import STANDARD, replacing

Event = dict[str, Any]
MOST_EVENTS = 1_000_000
"""Maximum number of events of a file: some 150 MB, which a browser can still open."""


def write_events(file: BinaryIO, events: Iterable[Event], facts: Mapping[str, Any], most: int = MOST_EVENTS) -> None:
    """Write a trace to a file (`trace_file`).

    Args:
        events: in any order, except that the end of an asynchronous event must follow its beginning.
        facts: facts behind the trace, for `otherData` of the file. The number of omitted events is added.
        most: maximum number of events; later ones are omitted, except ends of events that have begun.
    """
    file.write(b'{"displayTimeUnit":"ns","traceEvents":[')
    kept = _Kept(most)
    for number, event in enumerate(kept.of(events)):
        file.write((",\n" if number else "\n").encode() + json.dumps(event, separators=(",", ":")).encode())
    metadata = {**facts, "left_out": f"{kept.left_out} events, beyond {most}"} if kept.left_out else facts
    file.write(b'\n],"otherData":' + json.dumps(metadata).encode() + b"}\n")


@contextmanager
def trace_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for a trace, which is at `path` when the block ends, complete or not at all; stdout for "-". Raises
    OutputError if it cannot be written."""
    if path == STANDARD:
        stdout = sys.stdout.buffer  # sys.stdout may be replaced during the block
        yield stdout
        stdout.flush()
        return
    with replacing(path) as file:
        yield file


class _Kept:
    def __init__(self, most: int) -> None:
        self._room = most
        self._open: set[str] = set()
        self.left_out = 0

    def of(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            identity = f"{event.get('cat')} {event.get('id')} {event.get('id2')} {event['pid']} {event['name']}"
            if event["ph"] == "e" and identity in self._open:
                self._open.discard(identity)
            elif self._room <= 0 or event["ph"] == "e":
                self.left_out += 1
                continue
            elif event["ph"] == "b":
                self._open.add(identity)
            self._room -= event["ph"] != "M"
            yield event


def complete(tid: int, name: str, begin: float, duration: float, args: Mapping[str, Any]) -> Event:
    """Return a span of a track; times in microseconds."""
    return {"ph": "X", "tid": tid, "name": name, "ts": begin, "dur": duration, "args": dict(args)}


def process_name(pid: int, name: str) -> Iterator[Event]:
    """Yield the events that name a process, and sort processes by number."""
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}}


def thread_name(pid: int, tid: int, name: str) -> Iterator[Event]:
    """Yield the events that name a track, and sort tracks by number."""
    yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}
