"""The documentation as a site: it has every page, links have targets, and the tutorial's output is right."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return folder


def test_pages_of_the_root_and_sources_are_part_of_it(site: Path) -> None:
    assert "<h1" in (site / "index.html").read_text()
    assert "project/SECURITY.html" in (site / "faq.html").read_text()
    assert (site / "source" / "ir" / "geometry.py.html").is_file()


def test_lists_are_lists(site: Path) -> None:
    for page in site.rglob("*.html"):
        for paragraph in re.findall(r"<p>(.*?)</p>", page.read_text(), re.DOTALL):
            assert not re.search(r"\n([*-]|\d+\.) ", paragraph), f"{page.relative_to(site)}: {paragraph[:200]}"


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?(https?:[^\" >]*)", page.read_text())
        assert not fetched, f"{page.relative_to(site)}: {fetched}"


@pytest.mark.slow
def test_the_tutorial_shows_what_is_said(tmp_path: Path) -> None:
    executed = runpy.run_path(str(ROOT / "docs" / "executed.py"))
    page = (ROOT / "docs" / "tutorial.md").read_text()
    assert list(executed["differences"](page, executed["executed"](page, tmp_path))) == []


@pytest.mark.parametrize(
    ("shown", "said", "same"),
    [
        ("x 6.54e-07 4.77e-06", "x 5.87e-07 3.81e-08", True),
        ("x 6.54e-07", "x 6.54e-05", False),
        ("x 6.54e-07", "x 0.00e+00", False),
        ("x 0.00e+00", "x 6.54e-07", False),
        ("within 1e-05", "within 1e-04", False),
        ("x\n...\ny", "x\nany\nlines\ny", True),
        ("x.y", "xzy", False),
    ],
)
def test_what_a_page_shows_may_differ_in_rounding_alone(shown: str, said: str, same: bool) -> None:
    executed = runpy.run_path(str(ROOT / "docs" / "executed.py"))
    assert executed["_stands_for"](shown, said) is same
