"""Sources of docs/results/quality.md: every run is a command that `sscc eval` takes, every table has its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.quality import RUNS, block
from benchmarks.table import replace_block
from sscc.compiler.tools.commands.eval import options_from
from sscc.compiler.tools.commands.parser import build_parser

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", RUNS)
def test_runs_are_commands(name: str) -> None:
    words = RUNS[name].options.format(tiny="recall.jsonl", essays="essays.txt", draft="draft.rdu").split()
    args = build_parser("eval").parse_args(["eval", "model.pt", "-o", "results", *words])
    assert options_from(args).threads is None


@pytest.mark.parametrize("name", RUNS)
def test_tables_have_a_place_in_the_page(name: str) -> None:
    page = (ROOT / "docs" / "results" / "quality.md").read_text()
    assert "| a |" in replace_block(page, name, "| a |")


def test_a_report_without_its_heading(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("# model\n\nWords.\n\n| a |\n| --- |\n\nMore.\n\n| b |\n\n![plot](plot.svg)\n")
    assert block(tmp_path) == "| a |\n| --- |\n\n| b |"


def test_the_check_by_kvpress_finds_the_metrics() -> None:
    """The script runs in kvpress's environment, so its path of the metrics is read, not imported."""
    source = (ROOT / "benchmarks" / "peers" / "quality_kvpress.py").read_text()
    found = re.search(r"^METRICS_FILE = ROOT / (.*)$", source, re.MULTILINE)
    assert found is not None
    assert ROOT.joinpath(*re.findall(r'"([^"]+)"', found[1])).is_file()
