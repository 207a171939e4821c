"""The journal of an evaluation: each example adds one JSON line, so a run that was ended goes on where it stopped."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from sscc.compiler.quality.example import Example
from sscc.ir.errors import InputError, UsageError
from sscc.ir.files import RecordingFile, output_errors, sync

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """A line: one example through one cell. The fields are those of `Example` and `ExampleResult`."""

    cell: str
    example: str
    task: str
    length: int
    index: int
    depth: float | None
    prompt_tokens: int
    prompt_sha256: str
    score: float
    said: str
    tokens: list[int]
    kept_rows: int
    seconds: float


class Journal:
    """An append-only file of records, after a first line that says with which options they were made.

    Each line is on the disk when `add` returns, or nothing of it is in the file. A last line that is not whole is of a
    run that was killed while writing, and is dropped. Use it as a context manager.

    Args:
        options: what decides the meaning of records; values as JSON has them.

    Raises:
        UsageError: the file was made with other options, or another process is writing it.
        InputError: it is no journal, or is damaged.
        OutputError: it cannot be written.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self.path = path
        self.records: dict[tuple[str, str], Record] = {}
        with output_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = RecordingFile(path, "a+b", opener=lambda name, flags: os.open(name, flags, 0o666))
        try:
            self._lock()
            with output_errors(path):
                whole = self._read(dict(options))
                os.ftruncate(self._file.fileno(), whole)
            if not whole:
                self._write({"format": FORMAT, "options": dict(options)})
                with output_errors(path):
                    sync(path.parent)
        except BaseException:
            self._file.close()
            raise

    def has(self, cell: str, example: Example) -> bool:
        """Whether the example is done. Raises UsageError where it was done with another prompt."""
        record = self.records.get((cell, example.name))
        if record is not None and record.prompt_sha256 != example.prompt_sha256:
            raise UsageError(f"{self.path} has {example.name} with another prompt: give another --output")
        return record is not None

    def add(self, record: Record) -> None:
        """Writes a line. Raises OutputError."""
        self._write(asdict(record))
        self.records[record.cell, record.example] = record

    def _write(self, value: Mapping[str, Any]) -> None:
        line = memoryview(json.dumps(value).encode() + b"\n")
        with output_errors(self.path):
            descriptor = self._file.fileno()
            size = os.fstat(descriptor).st_size
            try:
                while line:
                    line = line[self._file.write(line) :]
                os.fsync(descriptor)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise

    def _lock(self) -> None:
        """Keeps others from writing the file until it is closed."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{self.path} is being written by another process: wait for it, or end it") from None

    def _read(self, options: dict[str, Any]) -> int:
        """Takes in what is there. Returns the bytes of whole lines."""
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        lines = data[:whole].splitlines()
        if not lines:
            return 0
        self._check_options(self._parsed(lines[0], 1), options)
        for number, line in enumerate(lines[1:], 2):
            try:
                record = Record(**self._parsed(line, number))
            except TypeError:
                raise InputError(f"{self.path}:{number} is no record of an example: delete the line") from None
            self.records[record.cell, record.example] = record
        return whole

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise InputError(f"{self.path}:{number} is damaged: it is no JSON object")
        return value

    def _check_options(self, header: dict[str, Any], options: dict[str, Any]) -> None:
        if header.get("format") != FORMAT or not isinstance(header.get("options"), dict):
            raise InputError(f"{self.path} is no journal of `sscc eval` of format {FORMAT}: give another --output")
        recorded: dict[str, Any] = header["options"]
        for name in sorted({*recorded, *options}):
            if recorded.get(name) != options.get(name):
                raise UsageError(
                    f"{self.path} was made with {name} {json.dumps(recorded.get(name))}, not "
                    f"{json.dumps(options.get(name))}: give another --output, or the same options"
                )

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
