"""The changes made by a pass, as shown in the report."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from sscc.compiler.tools.report import passes
from sscc.compiler.tools.report.pass_dumps import DumpFolderErrors, read_dumps
from sscc.compiler.tools.report.passes import compared
from tests.errors import raises

SCHEDULE = "{}\n"
DIGEST = hashlib.sha256(SCHEDULE.encode()).hexdigest()


def module(*functions: str, head: str = "fused") -> str:
    """A dump, with locations and maps as MLIR numbers them."""
    return "\n".join(
        [
            '#loc1 = loc("model.py":3:0)',
            "#map = affine_map<(d0) -> (d0)>",
            "#passes = [",
            f'  "{head}"',
            "]",
            f'module attributes {{sscc.level = "{head}"}} {{',
            *functions,
            '} loc("x")',
            "",
        ]
    )


def function(name: str, *operations: str) -> str:
    body = [f'    {operation} loc("{name}"(#loc1))' for operation in operations]
    begin, end = f"  func.func private @{name}(%x: tensor<4xf32>) {{", ["    return loc(#loc1)", "  } loc(#loc1)"]
    return "\n".join([begin, *body, *end])


def dumps_in(folder: Path, *texts: str, schedule: str = SCHEDULE) -> Path:
    for number, text in enumerate(texts):
        (folder / f"{number:02d}-{'import' if not number else f'pass-{number}'}.mlir").write_text(text)
    (folder / f"{len(texts):02d}-schedule.json").write_text(schedule)
    return folder


def test_what_came_went_and_changed(tmp_path: Path) -> None:
    before = module(function("a", "%0 = a.x", "%1 = a.y %0"), function("b", "%0 = b.x"))
    after = module(function("a", "%0 = a.x", "%1 = a.new", "%2 = a.y %0"), function("c", "%0 = c.x"), head="placed")
    (row,) = compared(read_dumps(dumps_in(tmp_path, before, after), DIGEST)).rows
    assert [(change.name, change.what) for change in row.changes] == [
        ("a", "changed"),
        ("c", "added"),
        ("b", "removed"),
        ("module", "changed"),
    ]
    changed = row.changes[0]
    assert [(line.kind, line.text.strip()) for line in changed.lines if line.kind != "same"] == [
        ("at", "line 1 of 6"),
        ("add", "%1 = a.new"),
    ]
    assert (row.name, row.functions, row.added, row.removed) == ("pass-1", 2, 1 + 4 + 1, 4 + 1)


def test_a_pass_that_only_says_that_it_ran_changed_nothing(tmp_path: Path) -> None:
    text = module(function("a", "%0 = a.x"))
    again = text.replace('  "fused"\n', '  "fused",\n  "other"\n').replace("#loc1", "#loc7")
    (row,) = compared(read_dumps(dumps_in(tmp_path, text, again), DIGEST)).rows
    assert row.changes == ()


def test_operands_alone(tmp_path: Path) -> None:
    """Numbers of values do not count, unless nothing else differs."""
    before = module(function("a", "%0 = a.x", "%1 = a.x", "%2 = a.y %0"))
    (row,) = compared(read_dumps(dumps_in(tmp_path, before, before.replace("a.y %0", "a.y %1")), DIGEST)).rows
    assert [line.text.strip() for line in row.changes[0].lines if line.kind == "add"] == ["%2 = a.y %1"]


def test_layers_that_change_alike_are_shown_once(tmp_path: Path) -> None:
    before = module(*(function(f"layer.{n}", f"%0 = a.x {n}") for n in range(9)))
    after = module(*(function(f"layer.{n}", f"%0 = a.z {n}") for n in range(9)))
    (row,) = compared(read_dumps(dumps_in(tmp_path, before, after), DIGEST)).rows
    (change,) = row.changes
    assert change.others == tuple(f"layer.{n}" for n in range(1, 9))
    assert (row.added, row.removed) == (9, 9)


def test_large_changes_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "LINES_OF_A_FUNCTION", 20)
    monkeypatch.setattr(passes, "FUNCTIONS_OF_A_PASS", 2)
    monkeypatch.setattr(passes, "LINES_OF_ALL", 25)
    before = module(*(function(f"f{name}", "%0 = a.x") for name in "abc"))
    texts = [[f"%{n} = a.{name}{'long ' * 99}" for n in range(40)] for name in "abc"]
    after = module(*(function(f"f{name}", *text) for name, text in zip("abc", texts, strict=True)))
    (row,) = compared(read_dumps(dumps_in(tmp_path, before, after), DIGEST)).rows
    assert [len(change.lines) for change in row.changes] == [20, 5]
    assert row.left_out == 1
    whole = [len(change.lines) + change.cut for change in row.changes]
    assert whole[0] == whole[1] > 40
    assert max(len(line.text) for change in row.changes for line in change.lines) < passes.COLUMNS + 40


def test_dumps_of_another_compilation_are_refused(tmp_path: Path) -> None:
    with raises(DumpFolderErrors.UNREADABLE):
        read_dumps(tmp_path / "missing", DIGEST)
    with raises(DumpFolderErrors.NO_DUMPS):
        read_dumps(tmp_path, DIGEST)
    with raises(DumpFolderErrors.OTHER_COMPILATION):
        read_dumps(dumps_in(tmp_path, module(), schedule="{ }"), DIGEST)
