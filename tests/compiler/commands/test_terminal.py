"""Names of artifacts and generated text give a terminal no command, whatever they are."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from sscc.compiler.tools.commands import cli
from sscc.runtime.serving.engine import RequestHandle
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.generation import Generation
from sscc.runtime.session.samplers import Sampler
from sscc.runtime.session.session import Session
from sscc.runtime.text.tokenizer import encode, load_tokenizer
from tests.compiler.commands.chatting import with_template

HOSTILE = "x\x1b]0;title\x07\x1b[2J\r\u202ey"
SHOWN = r"x\x1b]0;title\x07\x1b[2J\r\u202ey"
IN_A_LINE = SHOWN.replace(r"\r", " ")
COMMANDS = ("\x1b", "\x07", "\r", "\u202e", "\x9b")

Capture = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def check_harmless(text: str) -> None:
    assert not [command for command in COMMANDS if command in text]


@pytest.fixture
def hostile(artifact: Path, tmp_path: Path) -> Path:
    """An artifact whose model, machine and reasons are escape sequences."""
    copy = Path(shutil.copytree(artifact, tmp_path / "hostile.rdu"))
    machine = json.loads((copy / "machine.json").read_text())
    machine["name"] = machine["note"] = HOSTILE
    (copy / "machine.json").write_text(json.dumps(machine))
    data = (copy / "machine.json").read_bytes()
    manifest: dict[str, Any] = json.loads((copy / "manifest.json").read_text())
    manifest["files"]["machine.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["target"] = manifest["model"]["model_type"] = manifest["sscc"] = HOSTILE
    manifest["looping"] = [{"entry": "decode", "kernel": HOSTILE, "layers": 2, "reason": HOSTILE}]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


@pytest.mark.parametrize(
    "words",
    [["inspect", "ARTIFACT"], ["diff", "ARTIFACT", "OTHER"], ["diff", "ARTIFACT", "OTHER", "--all"],
     ["bench", "ARTIFACT", "-p", "1", "-n", "0", "-r", "1"], ["targets", "--target", "rdu:ARTIFACT/machine.json"],
     ["print", "ARTIFACT"]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_listings(
    words: list[str], hostile: Path, artifact: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    given = [word.replace("ARTIFACT", str(hostile)).replace("OTHER", str(artifact)) for word in words]
    assert cli.main(given) == 0
    check_harmless(terminal.getvalue())
    check_harmless(capsys.readouterr().err)
    if words[0] != "print":
        assert IN_A_LINE in terminal.getvalue()


@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "pipe"])
def test_generated_text(
    command: str, is_terminal: bool, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Generated text reaches a file unchanged, and a terminal without control characters."""
    if command == "chat":
        artifact = with_template(artifact, tmp_path / "chat.rdu")
    file = Artifact.load(artifact).tokenizer_file
    assert file is not None
    said = f"one\n{HOSTILE}\ttwo"
    tokens = encode(load_tokenizer(file), said)

    picked = iter(tokens)
    sampler = cast(Sampler, SimpleNamespace(pick=lambda logits: next(picked)))

    def choose(session: Session, prompt: Any, *_: Any, **named: Any) -> Generation:
        return Generation(lambda: session.prefill(0, prompt), lambda _: np.zeros(1), sampler, (), len(tokens))

    stream = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    if command == "run":
        monkeypatch.setattr(Session, "generate", choose)
        assert cli.main(["run", str(artifact), "--prompt", "a"]) == 0
    else:
        pieces = [SimpleNamespace(text=letter) for letter in said]
        monkeypatch.setattr(RequestHandle, "pieces", lambda self: iter(pieces))
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
        assert cli.main(["chat", str(artifact), "--max-new-tokens", "1"]) == 0
    out = stream.getvalue()
    if is_terminal:
        check_harmless(out)
        assert f"one\n{SHOWN}\ttwo" in out
    else:
        assert said in out


def test_log_messages() -> None:
    """In a process of its own, as logging is set up once."""
    code = (
        "import logging; from sscc.ir.terminal import send_log_to_stderr; "
        f"send_log_to_stderr(logging.WARNING, 'sscc: %(message)s'); logging.warning({HOSTILE!r} + '\\nnext')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stderr == f"sscc: {IN_A_LINE}\nnext\n"
