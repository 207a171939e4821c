"""The journal: whole lines count, options must be the same, prompts too."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.journal import EvaluationJournalErrors, Journal, Record
from sscc.ir.errors import ErrorKind, OutputError, SsccError
from sscc.ir.files import FileErrors
from tests.errors import check, raises
from tests.faults import CODES, fails, faults, killed_at

OPTIONS = {"seed": 0, "tasks": ["a"]}
EXAMPLE = Example("a", 10, 0, (1, 2), ("x",), "string_match_all", 4)
RECORD = Record("full", "a@10#0", "a", 10, 0, 0.5, 2, EXAMPLE.prompt_sha256, 1.0, "x", [3], 2, 0.1)


def test_records_are_there_again(tmp_path: Path) -> None:
    path = tmp_path / "made" / "records.jsonl"
    with Journal(path, OPTIONS) as journal:
        assert not journal.has("full", EXAMPLE)
        journal.add(RECORD)
        assert path.read_bytes().count(b"\n") == 2  # on the disk at once
    with Journal(path, OPTIONS) as journal:
        assert journal.has("full", EXAMPLE)
        assert not journal.has("snapkv 8", EXAMPLE)
        assert journal.records["full", "a@10#0"] == RECORD


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_that_is_not_whole_is_dropped(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with Journal(path, OPTIONS) as journal:
        journal.add(RECORD)
        journal.add(replace(RECORD, cell="snapkv 8"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with Journal(path, OPTIONS) as journal:
        assert [cell for cell, _ in journal.records] == ["full"]
        journal.add(replace(RECORD, cell="snapkv 8"))
    assert path.read_bytes() == whole


def test_a_file_that_ended_within_its_first_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"format": 1, "opt')
    with Journal(path, OPTIONS) as journal:
        assert not journal.records
    assert json.loads(path.read_text()) == {"format": 1, "options": OPTIONS}


def test_other_options_and_prompts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with Journal(path, OPTIONS) as journal:
        journal.add(RECORD)
        with raises(EvaluationJournalErrors.OTHER_PROMPT):
            journal.has("full", replace(EXAMPLE, prompt=(1, 3)))
    with raises(EvaluationJournalErrors.OTHER_OPTIONS, option="seed", recorded="0", value="1"):
        Journal(path, OPTIONS | {"seed": 1})


def test_two_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with Journal(path, OPTIONS), raises(EvaluationJournalErrors.BEING_WRITTEN):
        Journal(path, OPTIONS)
    with Journal(path, OPTIONS):
        pass


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        ("hello\n", EvaluationJournalErrors.NOT_AN_OBJECT, {"line": 1}),
        ('{"a": 1}\n', EvaluationJournalErrors.OTHER_FORMAT, {"format": 1}),
        (
            '{"format": 1, "options": {"seed": 0, "tasks": ["a"]}}\n[1]\n', EvaluationJournalErrors.NOT_AN_OBJECT,
            {"line": 2},
        ),
        (
            '{"format": 1, "options": {"seed": 0, "tasks": ["a"]}}\n{"cell": "full"}\n',
            EvaluationJournalErrors.NO_RECORD, {"line": 2},
        ),
    ],
)
def test_damaged_files_are_refused(text: str, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(text)
    with raises(kind, **fields):
        Journal(path, OPTIONS)


# --------------------------------------------------------------------------------------------------- what goes wrong


def two_lines(path: Path) -> None:
    with Journal(path, OPTIONS) as journal:
        journal.add(RECORD)
        journal.add(replace(RECORD, cell="snapkv 8"))


def cells(path: Path) -> list[str]:
    with Journal(path, OPTIONS) as journal:
        return [cell for cell, _ in journal.records]


@pytest.mark.parametrize("code", CODES)
def test_a_line_that_cannot_be_written_is_one_error_and_not_there(tmp_path: Path, code: int) -> None:
    path, step = tmp_path / "records.jsonl", 0
    while True:
        refused: SsccError | None = None
        with faults(step, fails(code)) as taken:
            try:
                two_lines(path)
            except OutputError as error:
                refused = error
        if len(taken.names) <= step:
            break
        # The folder is there: that it cannot be made does not matter.
        if refused is not None or taken.names[step] != "mkdir":
            check(refused, FileErrors.CANNOT_WRITE, path=path, reason=os.strerror(code))
        data = path.read_bytes() if path.exists() else b""
        assert data == b"" or data.endswith(b"\n"), taken.names[step]
        assert cells(path) == ["full", "snapkv 8"][: max(0, data.count(b"\n") - 1)]
        path.unlink()
        step += 1
    assert step > 6
    assert cells(path) == ["full", "snapkv 8"]


def test_a_run_that_is_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path, step, seen = tmp_path / "records.jsonl", 0, set()
    while killed_at(step, lambda: two_lines(path)):
        before = cells(path)
        assert before == ["full", "snapkv 8"][: len(before)]
        with Journal(path, OPTIONS) as journal:
            journal.add(replace(RECORD, cell="last"))
        assert cells(path) == [*before, "last"]
        seen.add(len(before))
        path.unlink()
        step += 1
    assert seen == {0, 1, 2}


def test_after_a_failed_line_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with Journal(path, OPTIONS) as journal:
        with faults(0, fails(CODES[0])), pytest.raises(OutputError):
            journal.add(RECORD)
        assert not journal.has("full", EXAMPLE)
        journal.add(RECORD)
    assert cells(path) == ["full"]
