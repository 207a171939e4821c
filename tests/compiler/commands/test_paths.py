"""Paths that lead nowhere: every command and every option that takes one ends in one line, and not as a bug of sscc."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sscc.compiler.tools.commands import cli
from sscc.compiler.tools.commands.parser import COMMANDS, build_parser, command_parsers
from tests.limits import ordinary_rights

LONG = "x" * 5_000
USERS_FAULT = (2, 5, 6)

Capture = pytest.CaptureFixture[str]


def options_with_paths() -> Iterator[tuple[str, str]]:
    """Every (command, option or name of a positional) of type Path."""
    for name, parser in command_parsers(build_parser()).items():
        for action in parser._actions:
            if action.type is Path:
                yield name, action.option_strings[-1] if action.option_strings else action.dest


PLACES = tuple(options_with_paths())
NEEDED = {"eval": ["-o", "results"]}
"""Options that a command does not do without."""
WITHOUT_TYPE = {
    "compile --target": ["compile", "MODEL", "--target", "rdu:PATH", "-q"],
    "compile --kv-policy": ["compile", "MODEL", "--kv-policy", "PATH.py"],
    "compile --kv-topk-per-layer": ["compile", "MODEL", "--kv-topk-per-layer", "PATH"],
    "run --token-ids": ["run", "ARTIFACT", "--token-ids", "@PATH"],
    "inspect --target": ["inspect", "ARTIFACT", "--target", "rdu:PATH"],
    "report --target": ["report", "ARTIFACT", "--target", "rdu:PATH"],
    "diff --target": ["diff", "ARTIFACT", "ARTIFACT", "--target", "rdu:PATH"],
    "targets --target": ["targets", "--target", "rdu:PATH"],
    "eval --kv-policy": ["eval", "MODEL", "-o", "results", "--kv-policy", "PATH.py"],
    "bisect --target": ["bisect", "MODEL", "--target", "rdu:PATH"],
    "bisect --kv-policy": ["bisect", "MODEL", "--kv-policy", "PATH.py"],
}
"""Options whose values may hold a path among other words."""


def words_of(command: str, place: str, path: str, artifact: Path) -> list[str]:
    """A command line with `path` in one place, and an artifact in the others that it does not do without."""
    parser = command_parsers(build_parser(command))[command]
    words = [command]
    for action in parser._actions:
        positional = not action.option_strings and action.nargs != argparse.OPTIONAL
        if action.dest == place:
            words.append(path)
        elif positional:
            words.append(str(artifact))
    return words if place in [action.dest for action in parser._actions] else [*words, place, path]


def check_refused(words: list[str], capsys: Capture) -> str:
    code = cli.main(words)
    err = capsys.readouterr().err
    line = err.splitlines()[-1] if err else ""
    assert code in USERS_FAULT, f"{words[:3]}: {code} {err[-500:]}"
    assert line.startswith("sscc: error: "), err[-500:]
    assert len(line) < 3_000
    assert "this is a bug" not in err
    return line


def test_all_commands_have_been_thought_of() -> None:
    assert {command for command, _ in PLACES} == {*COMMANDS} - {"cache", "targets", "doctor", "completion"}


@pytest.mark.parametrize(("command", "place"), PLACES, ids=map(" ".join, PLACES))
@pytest.mark.parametrize("path", [LONG, "a/" * 4_000, "nul\0byte"], ids=["letters", "folders", "nul"])
def test_a_name_that_no_file_can_have(command: str, place: str, path: str, tmp_path: Path, capsys: Capture) -> None:
    words = [*words_of(command, place, path, tmp_path), *(NEEDED.get(command, []) if place != "--output" else [])]
    line = check_refused(words, capsys)
    assert path[:100].replace("\0", "\\x00") in line


@pytest.mark.parametrize("words", WITHOUT_TYPE.values(), ids=WITHOUT_TYPE)
@pytest.mark.parametrize("path", [LONG, "nul\0byte"], ids=["letters", "nul"])
def test_a_name_inside_another_word(
    words: list[str], path: str, artifact: Path, checkpoint: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    given = {"ARTIFACT": str(artifact), "MODEL": str(checkpoint)}
    check_refused([given.get(word, word.replace("PATH", path)) for word in words], capsys)


READ = tuple(
    (command, place)
    for command, place in PLACES
    if place not in ("--output", "--trace", "--dump-ir-dir")
    and (command, place) not in (("bisect", "other"), ("opt", "file"))
)


@pytest.mark.parametrize(("command", "place"), [place for place in READ if place[1].startswith("-") is False])
@pytest.mark.parametrize("kind", ["locked folder", "in a locked folder", "below a file", "loop", "pipe", "device"])
def test_a_model_or_an_artifact_that_cannot_be_opened(
    command: str, place: str, kind: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "x.rdu").mkdir()
    (tmp_path / "locked").chmod(0)
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe.gguf")
    paths = {"locked folder": "locked", "in a locked folder": "locked/x.rdu", "below a file": "file/x", "loop": "loop"}
    path = {**paths, "pipe": "pipe.gguf", "device": "/dev/null"}[kind]
    words = [*words_of(command, place, path, tmp_path), *NEEDED.get(command, [])]
    words += {"run": ["--prompt", "x"], "diff": []}.get(command, [])
    if command == "print" and kind in ("pipe", "device"):
        pytest.skip("a dump may come through a pipe")
    try:
        with ordinary_rights():
            check_refused(words, capsys)
    finally:
        (tmp_path / "locked").chmod(0o700)
