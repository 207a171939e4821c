"""Run the commands of a documentation page, and compare their output with the page or write it into the page.

python docs/executed.py docs/tutorial.md            exit 1 if a command's output differs from the page
python docs/executed.py docs/tutorial.md --write    write the output into the page
python docs/executed.py docs/tour.md --put .demo/SmolLM2-135M-Instruct.Q4_1.gguf examples/passkey.txt

A ```console block has commands after `$ `, each followed by its output, stdout and stderr together. A line `...` of
the page stands for any lines, and a rounding error (6.54e-07) for any other below 1e-5, because it depends on the CPU.
A ```python block whose first line is `# NAME.py` becomes that file. All commands of a page run in one temporary folder
with a cache of its own. The folder holds tests/models/tiny as `recall`, and the files of --put.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from sscc.compiler.tools.commands import cli

ROOT = Path(__file__).resolve().parents[1]
ANY = "..."
_ROUNDING = re.compile(r"\b\d\.\d+e-(?:0[6-9]|[1-9]\d)\b")
ENVIRONMENT = {"NO_COLOR": "1", "COLUMNS": "120"}
CACHE = "SSCC_CACHE"

_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the commands of a page and compare their output with it.")
    parser.add_argument("page", type=Path)
    parser.add_argument("--write", action="store_true", help="write the output into the page")
    parser.add_argument("--put", type=Path, nargs="+", default=[], help="files that the page's commands read")
    arguments = parser.parse_args()
    before = arguments.page.read_text()
    with tempfile.TemporaryDirectory() as folder:
        after = executed(before, Path(folder), arguments.put)
    if arguments.write:
        arguments.page.write_text(after)
        return 0
    sys.stdout.writelines(difference := list(differences(before, after)))
    return 1 if difference else 0


def executed(page: str, folder: Path, files: Sequence[Path] = ()) -> str:
    """Return `page` with the output of its commands, run in `folder`. A `...` of the page stays if it matches."""
    for file in files:
        shutil.copy(file, folder)
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
    return difflib.unified_diff(before.splitlines(True), after.splitlines(True), "the page", "output now")


def _say(command: str, folder: Path) -> str:
    """Return the output of a command line. A leading `sscc ..` runs in this process, which has imported torch."""
    words, pipe, rest = command.partition(" | ")
    if re.match(r"sscc ", words) and not re.search(r"[;&<>$`|]", re.sub(r"'[^']*'", "", words)):
        said, errors, code = _run_sscc(shlex.split(words)[1:], folder, apart=bool(pipe))
        if pipe:
            after, code = _run_shell(rest, folder, said)
            said = errors + after
    else:
        said, code = _run_shell(command, folder)
    return said.rstrip("\n") + (f"\n(exit code {code})" if code else "")


def _run_sscc(words: list[str], folder: Path, apart: bool) -> tuple[str, str, int]:
    """Return stdout, stderr and the exit code of `sscc WORDS`; unless `apart`, stdout has both, as a terminal shows."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, {**ENVIRONMENT, CACHE: str(folder / ".cache")}),
        mock.patch.object(logging.getLogger(), "handlers", []),  # each command configures its own logging
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors if apart else output),
    ):
        try:
            code = cli.main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return output.getvalue(), errors.getvalue(), code


def _run_shell(line: str, folder: Path, text: str = "") -> tuple[str, int]:
    """Return the output of a line of bash, stderr included, and its exit code."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, **ENVIRONMENT, CACHE: str(folder / ".cache"), "PATH": path}
    bash = ["bash", "-c", f"exec 2>&1\n{line}"]
    result = subprocess.run(bash, cwd=folder, env=environment, input=text, stdout=subprocess.PIPE, text=True)
    return result.stdout, result.returncode


def _stands_for(shown: str, lines: str) -> bool:
    """Return True if output matches a page: `...` is any lines, a rounding error any other below 1e-5."""
    return re.fullmatch("\n".join(map(_pattern, shown.split("\n"))), lines, re.DOTALL) is not None


def _pattern(line: str) -> str:
    if line == ANY:
        return ".*"
    return _ROUNDING.pattern.join(map(re.escape, _ROUNDING.split(line)))


if __name__ == "__main__":
    sys.exit(main())
