"""docs/reference is what docs/generate.py makes of the sources now."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from sscc.passes.pass_pipeline import PIPELINES, REGISTRY, pipeline_text

GENERATE = Path(__file__).parent.parent / "docs" / "generate.py"
PAGES: dict[Path, str] = runpy.run_path(str(GENERATE))["pages"]()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_committed_files_are_up_to_date(path: Path) -> None:
    assert path.read_text() == PAGES[path], "run python docs/generate.py"


def test_nothing_else_lies_there() -> None:
    assert sorted(path.name for path in (GENERATE.parent / "reference").iterdir()) == sorted(p.name for p in PAGES)


def test_check_exits_with_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy without its pages is out of date; written, it is not."""
    copy = tmp_path / "generate.py"
    copy.write_text(GENERATE.read_text())
    results = []
    for words in (["--check"], [], ["--check"]):
        monkeypatch.setattr(sys, "argv", [str(copy), *words])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(copy), run_name="__main__")
        results.append((end.value.code, capsys.readouterr().out))
    assert [code for code, _ in results] == [1, 0, 0]
    assert "kv.md is out of date: run python docs/generate.py" in results[0][1]
    assert {path.name: path.read_text() for path in (tmp_path / "reference").iterdir()} == {
        path.name: text for path, text in PAGES.items()
    }


def test_every_pass_operation_and_record_is_there() -> None:
    text = {path.name: page for path, page in PAGES.items()}
    assert all(f"\n## {name}\n" in text["passes.md"] for name in REGISTRY)
    assert all(f"\n## {name}\n" in text["kv.md"] for name in ("kv.self_attention", "kv.gather", "kv.decode_attention"))
    assert all(f"\n## {name}\n" in text["df.md"] for name in ("df.load", "BufferPlace"))
    assert all(f"\n## {name}\n" in text["artifact.md"] for name in ("Manifest", "WeightsRecord", "LayerGroup"))
    assert all(f"\n## {name}\n" in text["machine.md"] for name in ("Target", "Figure", "rdu:sn40l", "rdu:sn40l-16"))
    assert "| `hbm.capacity` | 68719476736 | bytes per socket | published |" in text["machine.md"]
    records = ("Tensor", "Launch (`launch`)", "Product (`product`)", "Pipeline (`pipeline`)", "Stage", "Program")
    assert all(f"\n## {name}\n" in text["schedule.md"] for name in records)


def test_what_every_level_of_optimisation_runs_is_there() -> None:
    (text,) = (page for path, page in PAGES.items() if path.name == "passes.md")
    levels = re.findall(r"^\* `-O(\d)`: (.*)$", text, re.MULTILINE)
    pipelines = {int(level): ",".join(re.findall(r"\[(.*?)\]\(#", links)) for level, links in levels}
    assert pipelines == {level: pipeline_text(items) for level, items in PIPELINES.items()}
    assert "*Option* `fuse` (bool), default `true`." in text
