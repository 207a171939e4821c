"""Names that are commands of a terminal: no table, no listing and no error writes them as they are."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, ClassVar

from tests.fuzz.artifacts import DamagedArtifact, compiled
from tests.fuzz.harness import Finding, Target

COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
SEQUENCES = (
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x1b]52;c;ZWNobyBoaQ==\x07",
    "\x1bP+q544e\x1b\\",
    "\x9b31m",
    "\x9d0;x\x9c",
    "\r",
    "\x08\x08",
    "\x00",
    "\x7f",
    "\x0b\x0c",
    "\u202e",
    "\u2066",
    "\u2028",
    "\n",
    "\ud800",
    "sscc: error: \n",
    "%s%n",
    "{0}",
    "x" * 5_000,
)
WORDS = (
    ["inspect", "CASE"],
    ["diff", "CASE", "BASE"],
    ["diff", "BASE", "CASE", "--all"],
    ["targets", "--target", "rdu:CASE/machine.json"],
    ["print", "CASE"],
    ["print", "CASE", "--ir-function", "*"],
)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Listings(Target):
    """An artifact of which one to five texts (names of model, machine, tensors, kernels, files) hold escape sequences,
    as `sscc inspect`, `diff`, `targets` and `print` show it on a terminal."""

    name = "listings"
    memory: ClassVar[int] = 256 << 20
    seconds: ClassVar[float] = 2.0

    def __init__(self, folder: Path) -> None:
        self._base = compiled(folder / "base")
        self._folder = folder / "case.rdu"
        for words in WORDS:  # imports what they need
            self._shown([*words, "--traceback"], self._base)

    def run(self, seed: int) -> str:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._base, self._folder)
        case = DamagedArtifact(self._folder, seed)
        for _ in range(case.random.choice((1, 1, 2, 5))):
            _change(case)
        words = case.random.choice(WORDS)
        code, out, err = self._shown(words, self._folder)
        for name, text in (("stdout", out), ("stderr", err)):
            found = COMMANDS.search(text)
            if found is not None:
                raise Finding(f"{words[0]} writes {found[0]!r} to {name}: {text[max(found.start() - 80, 0) :][:200]!r}")
        if code not in (0, *range(2, 7)):
            raise Finding(f"{words} ends with {code}: {err[-500:]}")
        return f"{words[0]}: {'shown' if code == 0 else f'exit code {code}'}"

    def _shown(self, words: list[str], case: Path) -> tuple[int, str, str]:
        from sscc.compiler.tools.commands import cli

        given = [word.replace("CASE", str(case)).replace("BASE", str(self._base)) for word in words]
        out, err, stdout = _Terminal(), _Terminal(), sys.stdout
        err.isatty = lambda: False  # type: ignore[method-assign]  # nothing is drawn
        sys.stdout = out
        try:
            with redirect_stderr(err):
                code = cli.main([*given, *(["--color", "never"] if words[0] == "print" else [])])
        finally:
            sys.stdout = stdout
        return code, out.getvalue(), err.getvalue()


def _change(case: DamagedArtifact) -> None:
    """Put a sequence into a text of one of the JSON files, most often of the manifest; keys are texts too."""
    name = case.random.choice(("manifest.json", "manifest.json", "machine.json", "schedule.json"))
    path = case.folder / name
    value = json.loads(path.read_text())
    if name == "manifest.json" and case.random.random() < 0.5:  # the texts that are shown
        sequence = _sequence(case, "llama")
        value.setdefault("model", {})["model_type"] = value["target"] = value["sscc"] = sequence
        value["looping"] = [{"entry": "decode", "kernel": sequence, "layers": 2, "reason": sequence}]
    elif name == "machine.json" and case.random.random() < 0.5:
        value["name"] = value["note"] = _sequence(case, "machine")
    else:
        texts = list(_texts(value))
        inside, key, is_key = case.random.choice(texts)
        if is_key:
            inside[_sequence(case, key)] = inside.pop(key)
        else:
            inside[key] = _sequence(case, inside[key])
    path.write_text(json.dumps(value))
    if name != "manifest.json":
        case.vouch(path)


def _sequence(case: DamagedArtifact, text: str) -> str:
    at = case.random.randrange(len(text) + 1)
    return f"{text[:at]}{case.random.choice(SEQUENCES)}{text[at:]}"


def _texts(value: Any) -> list[tuple[Any, Any, bool]]:
    """Return every string below a JSON value: its container, its key, and True if the key itself is the string."""
    found: list[tuple[Any, Any, bool]] = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        if isinstance(value, dict):
            found.append((value, key, True))
        if isinstance(item, str):
            found.append((value, key, False))
        found += _texts(item)
    return found
