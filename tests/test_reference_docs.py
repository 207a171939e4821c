"""docs/reference is what docs/generate.py makes of the sources now."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

GENERATE = Path(__file__).parent.parent / "docs" / "generate.py"
PAGES: dict[Path, str] = runpy.run_path(str(GENERATE))["pages"]()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_committed_files_are_up_to_date(path: Path) -> None:
    assert path.read_text() == PAGES[path], "run python docs/generate.py"


def test_nothing_else_lies_there() -> None:
    assert sorted(path.name for path in (GENERATE.parent / "reference").iterdir()) == sorted(p.name for p in PAGES)


def test_check_exits_with_what_it_found(tmp_path: Path) -> None:
    """A copy without its pages is out of date; written, it is not."""
    copy = tmp_path / "generate.py"
    copy.write_text(GENERATE.read_text())
    results = [
        subprocess.run([sys.executable, str(copy), *words], capture_output=True, text=True, timeout=120)
        for words in (["--check"], [], ["--check"])
    ]
    assert [result.returncode for result in results] == [1, 0, 0]
    assert "kv.md is out of date: run python docs/generate.py" in results[0].stdout
    assert {path.name: path.read_text() for path in (tmp_path / "reference").iterdir()} == {
        path.name: text for path, text in PAGES.items()
    }


def test_every_pass_operation_and_record_is_there() -> None:
    text = {path.name: page for path, page in PAGES.items()}
    assert all(f"## {name}" in text["passes.md"] for name in ("lower-torch", "merge-equal-kernels"))
    assert all(f"## kv.{name}" in text["kv.md"] for name in ("self_attention", "select", "gather"))
    assert all(f"## {name}" in text["schedule.md"] for name in ("Tensor", "Launch", "Product", "GatherRows", "Program"))
