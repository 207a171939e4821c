"""The parser of every command: its examples, what its help says of defaults, and scripts that complete it."""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from sscc.compiler.frontend.checkpoint import CheckpointErrors
from sscc.compiler.tools.commands.cli import main
from sscc.compiler.tools.commands.examples import EXAMPLES
from sscc.compiler.tools.commands.parser import COMMANDS, build_parser, command_parsers, help_of
from sscc.ir.errors import ErrorKind
from sscc.ir.files import FileErrors, read_text
from sscc.ir.suggestions import did_you_mean
from sscc.ir.target import TargetErrors
from tests.errors import check, one_line, raises

PARSER = build_parser()


def words_of(line: str) -> list[str]:
    """Those that the program gets: what stands before a redirection."""
    words = shlex.split(line)
    return words[1 : next((at for at, word in enumerate(words) if word in ("<", ">", ">>", "|")), len(words))]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_command_lines_of_their_command(name: str) -> None:
    for _, line in EXAMPLES[name]:
        assert name == "sscc" or line.split()[:2] == ["sscc", name]
        if "--help" not in line:
            assert PARSER.parse_args(words_of(line)).command in COMMANDS


def test_every_command_has_examples_and_its_help_shows_them() -> None:
    assert set(EXAMPLES) == {"sscc", *COMMANDS}
    for name, parser in {"sscc": PARSER, **command_parsers(PARSER)}.items():
        assert all(f"\n  {line}\n" in f"{parser.format_help()}\n" for _, line in EXAMPLES[name])


def test_every_default_is_told_and_once() -> None:
    for name, parser in command_parsers(PARSER).items():
        for action in parser._actions:
            text, has_one = help_of(action), action.nargs != 0 and action.default not in (None, [], argparse.SUPPRESS)
            told = text.count("(default: ")
            assert text.count("default") == told <= 1, f"{name}: {action.option_strings}: {text}"
            assert told or not has_one, f"{name}: {action.option_strings}: {text}"


def test_a_default_in_bytes_is_told_in_words() -> None:
    (action,) = (a for a in command_parsers(PARSER)["serve"]._actions if a.dest == "max_body")
    assert help_of(action).endswith("(default: 4 MiB)")
    assert PARSER.parse_args(["serve", "m.rdu", "--prompt-cache", "1.5G"]).prompt_cache_bytes == 3 << 29


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("decod", ("prefill", "decode"), "; did you mean 'decode'?"),
        ("BF16", ("f32", "bf16"), "; did you mean 'bf16'?"),
        ("zzz", ("prefill", "decode"), ""),
        ("x" * 5000, ("x" * 4999,), ""),
    ],
)
def test_what_is_like_a_word(word: str, known: tuple[str, ...], hint: str) -> None:
    assert did_you_mean(word, known) == hint


@pytest.mark.parametrize(
    ("command", "kind"),
    [("inspect", FileErrors.MISSING), ("pack", CheckpointErrors.MISSING), ("opt", FileErrors.CANNOT_READ)],
)
def test_a_name_beside_one_that_does_not_exist(
    command: str, kind: ErrorKind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.rdu").mkdir()
    error = one_line([command, f"{tmp_path}/modl.rdu"], capsys)
    check(error, kind, path=tmp_path / "modl.rdu", similar_hint="; did you mean 'model.rdu'?")
    assert str(error).endswith(error.fields["similar_hint"])


def test_a_target_that_is_no_file_either(capsys: pytest.CaptureFixture[str]) -> None:
    error = one_line(["targets", "--target", "rdu:sn40l-61"], capsys)
    check(error, TargetErrors.UNREADABLE, name="sn40l-61", similar_hint="; did you mean 'sn40l-16'?")


def test_a_folder_that_does_not_exist_has_nothing_like_a_name(tmp_path: Path) -> None:
    missing = {"path": tmp_path / "nothing" / "here.txt", "reason": os.strerror(errno.ENOENT), "similar_hint": ""}
    with raises(FileErrors.CANNOT_READ, **missing):
        read_text(tmp_path / "nothing" / "here.txt")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_is_a_script_of_the_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in (*COMMANDS, "--kv-budget", "snapstream"))
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=60)
