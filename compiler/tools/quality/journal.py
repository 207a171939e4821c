"""Journal of an evaluation: one JSON line per example, so that an interrupted run continues where it stopped."""

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

from sscc.compiler.tools.quality.example import Example
from sscc.ir.errors import ErrorKind, InputError, UsageError
from sscc.ir.files import RecordingFile, output_errors, sync

FORMAT = 1


class EvaluationJournalErrors(ErrorKind):
    OTHER_PROMPT = UsageError, "{path} contains the example {example} with another prompt: give another --output"
    BEING_WRITTEN = UsageError, "another process is writing {path}: wait for it, or stop it"
    NO_RECORD = InputError, "{path}:{line} is not a record of an example: delete the line"
    NOT_AN_OBJECT = InputError, "{path}:{line} is damaged: it is not a JSON object"
    OTHER_FORMAT = InputError, "{path} is not an `sscc eval` journal of format {format}: give another --output"
    OTHER_OPTIONS = (
        UsageError,
        "{path} was written with {option} {recorded}, not {value}: give another --output, or the same options",
    )


@dataclass(frozen=True)
class Record:
    """A line of a journal: the result of one example in one cell, with fields of `Example` and `ExampleResult`."""

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
    """An append-only file of records, after a first line with the options of the run.

    Each line is on disk when `add` returns. An incomplete last line is left by a process that was killed while
    writing, and is dropped. Use it as a context manager.

    Args:
        path: file of the journal, created if necessary.
        options: options that determine the results, as JSON values.

    Raises:
        UsageError: the file was written with other options, or another process is writing it.
        InputError: the file is not a journal, or is damaged.
        OutputError: the file cannot be written.
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
        """Return True if the journal has the example in a cell. Raises UsageError if its prompt differs."""
        record = self.records.get((cell, example.name))
        if record is not None and record.prompt_sha256 != example.prompt_sha256:
            raise EvaluationJournalErrors.OTHER_PROMPT(path=self.path, example=example.name)
        return record is not None

    def add(self, record: Record) -> None:
        """Append a record. Raises OutputError."""
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
        """Lock the file against other writers until it is closed."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise EvaluationJournalErrors.BEING_WRITTEN(path=self.path) from None

    def _read(self, options: dict[str, Any]) -> int:
        """Read the existing records. Return the number of bytes of whole lines."""
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
                raise EvaluationJournalErrors.NO_RECORD(path=self.path, line=number) from None
            self.records[record.cell, record.example] = record
        return whole

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise EvaluationJournalErrors.NOT_AN_OBJECT(path=self.path, line=number)
        return value

    def _check_options(self, header: dict[str, Any], options: dict[str, Any]) -> None:
        if header.get("format") != FORMAT or not isinstance(header.get("options"), dict):
            raise EvaluationJournalErrors.OTHER_FORMAT(path=self.path, format=FORMAT)
        recorded: dict[str, Any] = header["options"]
        for name in sorted({*recorded, *options}):
            if recorded.get(name) != options.get(name):
                raise EvaluationJournalErrors.OTHER_OPTIONS(
                    path=self.path,
                    option=name,
                    recorded=json.dumps(recorded.get(name)),
                    value=json.dumps(options.get(name)),
                )

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
