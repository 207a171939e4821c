"""Runs what a page of the documentation shows, and compares what it says, or writes it into the page.

python docs/executed.py docs/tutorial.md            exit 1 where a command says something else than the page
python docs/executed.py docs/tutorial.md --write    write what the commands say into the page

A block ```console has commands behind `$ `, each followed by what it says, stdout and stderr together. A line `...` of
the page stands for any lines, and an error of rounding (6.54e-07) for any other of less than 1e-5: it is the CPU's. A
block ```python whose first line is `# NAME.py` becomes that file, for a command to run. All of a page runs in one
folder, which holds tests/models/tiny as `recall`: what the page tells a reader to put there.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from sscc.compiler.tools.commands import cli

ROOT = Path(__file__).resolve().parents[1]
ANY = "..."
_ROUNDING = re.compile(r"\b\d\.\d+e-(?:0[6-9]|[1-9]\d)\b")
ENVIRONMENT = {"NO_COLOR": "1", "COLUMNS": "120"}

_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs what a page shows, and compares what it says.")
    parser.add_argument("page", type=Path)
    parser.add_argument("--write", action="store_true", help="write what the commands say into the page")
    arguments = parser.parse_args()
    before = arguments.page.read_text()
    with tempfile.TemporaryDirectory() as folder:
        after = executed(before, Path(folder))
    if arguments.write:
        arguments.page.write_text(after)
        return 0
    sys.stdout.writelines(difference := list(differences(before, after)))
    return 1 if difference else 0


def executed(page: str, folder: Path) -> str:
    """`page` with what its commands say in `folder`. A page's `...` stays where the lines around it agree."""
    shutil.copytree(ROOT / "tests" / "models" / "tiny", folder / "recall", ignore=shutil.ignore_patterns("*.py", "__*"))

    def run(block: re.Match[str]) -> str:
        kind, text = block.groups()
        if kind == "python":
            if name := re.match(r"# (\w+\.py)\n", text):
                (folder / name[1]).write_text(text)
            return block[0]
        parts = re.split(r"^(\$ .*\n)", text, flags=re.MULTILINE)
        said = [parts[0]]
        for command, shown in zip(parts[1::2], parts[2::2], strict=True):
            lines = _say(command.removeprefix("$ "), folder)
            said += [command, shown if _stands_for(shown.rstrip("\n"), lines) else lines + "\n" * bool(lines), ""]
            if shown.endswith("\n\n") and not said[-2].endswith("\n\n"):
                said.append("\n")
        return f"```console\n{''.join(said)}```"

    return _BLOCK.sub(run, page)


def differences(before: str, after: str) -> Iterator[str]:
    return difflib.unified_diff(before.splitlines(True), after.splitlines(True), "the page", "what it says now")


def _say(command: str, folder: Path) -> str:
    """What a line says. `sscc ..` that it is or begins a pipe with runs in this process: every new one would import
    torch again."""
    words, pipe, rest = command.partition(" | ")
    if re.match(r"sscc ", words) and not re.search(r"[;&<>$`|]", re.sub(r"'[^']*'", "", words)):
        said, errors, code = _run_sscc(shlex.split(words)[1:], folder)
        if pipe:
            after, code = _run_shell(rest, folder, said)
            said = errors + after
        else:
            said = errors + said
    else:
        said, code = _run_shell(command, folder)
    return said.rstrip("\n") + (f"\n(exit code {code})" if code else "")


def _run_sscc(words: list[str], folder: Path) -> tuple[str, str, int]:
    """What a command prints, the errors that it prints, and its exit code."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, ENVIRONMENT),
        mock.patch.object(logging.getLogger(), "handlers", []),  # a command says where its warnings go
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        try:
            code = cli.main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return output.getvalue(), errors.getvalue(), code


def _run_shell(line: str, folder: Path, text: str = "") -> tuple[str, int]:
    """What a line of bash prints, errors included, and its exit code."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, **ENVIRONMENT, "PATH": path}
    bash = ["bash", "-c", f"exec 2>&1\n{line}"]
    result = subprocess.run(bash, cwd=folder, env=environment, input=text, stdout=subprocess.PIPE, text=True)
    return result.stdout, result.returncode


def _stands_for(shown: str, lines: str) -> bool:
    """Whether a page's text is what was said, where a line `...` is any lines, and one error of rounding any other of
    less than 1e-5."""
    return re.fullmatch("\n".join(map(_pattern, shown.split("\n"))), lines, re.DOTALL) is not None


def _pattern(line: str) -> str:
    if line == ANY:
        return ".*"
    return _ROUNDING.pattern.join(map(re.escape, _ROUNDING.split(line)))


if __name__ == "__main__":
    sys.exit(main())
