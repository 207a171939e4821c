"""Results as Markdown, and the blocks of a page that commands replace."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import command, table
from benchmarks.command import Measurements
from benchmarks.harness import PeerResult, Workload

DECODE = Workload("decode", 1, 128, 10)
PREFILL = Workload("prefill", 1, 2048, 1)
ROOT = Path(__file__).parents[2]


def result(peer: str, workload: Workload, seconds: list[float], error: str = "") -> PeerResult:
    result = PeerResult(peer, "bf16", "1.2", "m125", workload, 0.2e9, seconds, [30e9] * len(seconds))
    result.error = error
    return result


def test_one_row_per_peer_and_one_column_per_task() -> None:
    results = [
        result("a", DECODE, [0.1, 0.2, 0.4]),
        result("b", DECODE, [], error="it cannot"),
        result("a", PREFILL, [1.0]),
        result("b", PREFILL, [2.0]),
    ]
    lines = table.render(results, ["c is not installed: python x"], "Heading.").splitlines()
    assert lines[:2] == ["Heading.", ""]
    assert lines[2] == "| m125, tokens/s | weights | decode, batch 1, context 128 | prefill 2048 | read GB/s |"
    assert lines[4] == "| a | bf16 | 50 (best 100; 33%) | 2048 (best 2048) | 30 |"
    assert lines[5] == "| b | bf16 |  | 1024 (best 1024) | 30 |"
    assert "* b bf16, decode, batch 1, context 128: it cannot" in lines
    assert "* c is not installed: python x" in lines
    assert lines[-1] == "Versions: a 1.2, b 1.2."


def test_a_block_is_replaced_and_nothing_else() -> None:
    page = "before\n\n<!-- x: begin -->\nold\n<!-- x: end -->\n\nafter\n"
    first = table.replace_block(page, "x", "new\n")
    assert first == "before\n\n<!-- x: begin -->\n\nnew\n\n<!-- x: end -->\n\nafter\n"
    assert table.replace_block(first, "x", "new\n") == first


@pytest.mark.parametrize(
    "page", ["", "<!-- x: begin -->\n", "<!-- x: end -->\n<!-- x: begin -->\n", "<!-- y: begin -->\n<!-- y: end -->\n"]
)
def test_a_page_without_the_block_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="must have the lines"):
        table.replace_block(page, "x", "new")


@pytest.mark.parametrize(
    "block",
    [
        "benchmarks/decode.py m125",
        "benchmarks/decode.py m1b",
        "long context",
        "benchmarks/prefill.py m125",
        "benchmarks/startup.py",
        "benchmarks/query_selection.py",
        "benchmarks/files.py speed",
        "benchmarks/files.py start",
        "benchmarks/files.py perplexity",
    ],
)
def test_the_page_has_a_block_for_each_command(block: str) -> None:
    page = (ROOT / "docs" / "results" / "speed.md").read_text()
    assert "\nsomething\n" in table.replace_block(page, block, "something")


def test_write_changes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- block: begin -->\n<!-- block: end -->\n")
    words = Namespace(threads=2, repeats=3, passive=True, json=False, write=page, block="block", models=["m125"])
    command.report(Measurements([result("a", DECODE, [0.1])], []), words, "block")
    assert "| a | bf16 | 100 (best 100; 67%) | 30 |" in page.read_text()
    assert "| a | bf16 |" in capsys.readouterr().out
