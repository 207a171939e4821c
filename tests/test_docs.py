"""The documentation holds: links lead somewhere, options exist, examples print their outputs, maps are complete."""

from __future__ import annotations

import argparse
import doctest
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sscc.compiler.frontend.gguf.families import FAMILIES
from sscc.compiler.tools.commands.parser import REMOVED, build_parser, command_parsers
from sscc.ir import errors, schedule, target
from sscc.runtime.artifact import manifest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
HAND_WRITTEN = [page for page in PAGES if page.is_relative_to(ROOT / "docs") and page.parent.name != "reference"]

_FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_OPTION = re.compile(r"(?<![\w/=-])(-[A-Za-z](?=\d?\b)|--[a-z][a-z0-9-]*[a-z0-9])")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FOREIGN = {
    "--update-goldens",  # the tests'
    "--version",  # sscc itself
}
PERSONAL = "Users|data|home|mnt|root|srv|tmp|work|workspace"
_ABSOLUTE = re.compile(r"(?<![\w.:/~$}*)\]<>%@\\-])/(?:" + PERSONAL + r")/\w+")
_OUTSIDE = re.compile(r"\.\./" + "shared")


def subcommands() -> dict[str, argparse.ArgumentParser]:
    return command_parsers(build_parser())


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


ALL_OPTIONS = {option for parser in subcommands().values() for option in options(parser)}
GONE = {words.split()[-1] for words in REMOVED}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert target.resolve().is_relative_to(ROOT), f"{page.name} links out of the repository: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}: no such heading"


def commands(text: str) -> list[str]:
    """Every command line that starts with sscc, up to a pipe, a comment or the end of its code span."""
    return [match.strip() for match in re.findall(r"(?:^|[`$ ])(sscc [a-z]+\b[^`|#\n]*)", text, re.MULTILINE)]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_and_their_options_exist(page: Path) -> None:
    parsers = subcommands()
    for command in commands(page.read_text()):
        _, name, *words = command.split()
        names = [word.partition("=")[0] for word in words if _OPTION.fullmatch(word.partition("=")[0])]
        if name not in parsers:
            assert not names, f"{page.name}: {command}"  # prose about sscc
            continue
        unknown = [option for option in names if option not in options(parsers[name]) and option not in FOREIGN]
        assert not unknown, f"{page.name}: `{command}`: no option {unknown}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_options_in_code_spans_exist(page: Path) -> None:
    """A long option that stands by itself in a code span is one of ours."""
    for span in re.findall(r"`(--[^`]+)`", page.read_text()):
        for option in re.findall(r"--[a-z][a-z0-9-]*", span):
            removed = GONE if page.name == "CHANGELOG.md" else set()
            assert option in ALL_OPTIONS | FOREIGN | removed, f"{page.name}: {option}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_examples_give_what_they_say(page: Path) -> None:
    failed, _ = doctest.testfile(str(page), module_relative=False, verbose=False)
    assert failed == 0


def test_every_exit_code_is_documented() -> None:
    page = (ROOT / "docs" / "faq.md").read_text()
    for code in sorted({kind.exit_code for kind in errors.SsccError.__subclasses__()}):
        assert re.search(rf"^\| {code} \|", page, re.MULTILINE), f"exit code {code}"


def test_the_readme_is_short_and_counts_the_architectures() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 260
    assert f"GGUF files of {len(FAMILIES)} architectures" in readme


def test_the_changelog_names_the_formats() -> None:
    versions = f"artifact {manifest.FORMAT_VERSION}, schedule {schedule.FORMAT_VERSION}"
    line = f"Formats: {versions}, machine description {target.FORMAT_VERSION}."
    assert line in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_lists_every_top_level_folder() -> None:
    section = (ROOT / "README.md").read_text().partition("## The repository")[2].partition("\n## ")[0]
    listed = re.findall(r"^    ([a-z]+)/ ", section, re.MULTILINE)
    top = {path.relative_to(ROOT).parts[0] for path in tracked() if path.parent != ROOT}
    assert sorted(listed) == sorted(name for name in top if not name.startswith("."))


READERS = re.compile(r"^\*For [A-Za-z]")


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_begin_with_their_reader(page: Path) -> None:
    title, _, body = page.read_text().partition("\n\n")
    assert title.startswith("# ")
    assert READERS.match(body), f"{page.name} begins with {body[:60]!r}"


def tracked() -> list[Path]:
    """Files that are, or are about to be, in the repository."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git repository")
    listed = subprocess.run(
        [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_nothing_points_out_of_the_repository() -> None:
    """No absolute path of somebody's machine, no relative one that leaves the repository."""
    paths = []
    for path in tracked():
        data = path.read_bytes()
        if b"\0" in data:
            continue
        text = data.decode()
        foreign = _ABSOLUTE.findall(text) + _OUTSIDE.findall(text)
        paths += [(str(path.relative_to(ROOT)), name) for name in foreign]
    assert not paths


def test_the_directory_map_lists_every_folder() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    listed = re.findall(r"^\| `([a-z_/]+)/` \|", page.partition("## Directory map")[2], re.MULTILINE)
    top = [ROOT / name for name in ("compiler", "ir", "passes", "runtime")]
    holders = {path.parent for folder in top for path in folder.rglob("*.*") if "__pycache__" not in path.parts}
    empty = {path for path in holders if not any(file.stat().st_size for file in path.glob("*.*"))}
    inside = {str(path.relative_to(ROOT)) for path in holders - empty}
    assert sorted({*listed} - {"runtime/serving", "compiler/tools"}) == sorted(inside)
