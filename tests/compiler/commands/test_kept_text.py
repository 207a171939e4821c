"""`sscc run --show-kept` and `--show-needed`: the text in marks and in colours, as JSON, and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.tools.commands import cli
from sscc.compiler.tools.commands.kept_text import Part, ShownPartErrors, shaded
from sscc.compiler.tools.commands.parser import CommandLineErrors
from sscc.compiler.tools.commands.run import RunErrors
from sscc.compiler.tools.inspection.kept_tokens import Token, lost_spans
from sscc.compiler.tools.inspection.needed import NeededTextErrors
from sscc.ir.errors import ErrorKind
from tests.errors import check, one_line

Capture = pytest.CaptureFixture[str]
PROMPT = "The quick brown fox\njumps over the lazy dog and the 中 cat."
WORDS = ["--prompt", PROMPT, "--max-new-tokens", "4", "--ignore-eos"]


def test_marks_stand_below_their_tokens(artifact: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert cli.main(["run", str(artifact), *WORDS, "--show-kept=1:0"]) == 0
    out = capsys.readouterr().out
    n = len(PROMPT.encode()) + 3  # a token is a byte, and the last one is not fed
    begin = out.index(f"kept by layer 1, KV head 0: 16 of {n} tokens by every one, 0 by some, {n - 16} by none")
    lines = out[begin:].splitlines()[4:]
    text, marks = lines[::2], lines[1::2]
    assert text[0] == "The quick brown fox\\n"
    assert marks[0].startswith("SS")
    counted = "".join(marks)
    assert (counted.count("S"), counted.count("#")) == (2, 6)
    assert "\x1b" not in out


def test_json_has_every_token(artifact: Path, capsys: Capture) -> None:
    assert cli.main(["run", str(artifact), *WORDS, "--show-kept", "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)["kept"]
    assert (kept["layer"], kept["head"]) == (None, None)
    assert "".join(token["text"] for token in kept["tokens"]).startswith(PROMPT)
    shares = [token["share"] for token in kept["tokens"]]
    assert shares[:2] == [1, 1]
    assert sum(shares) == pytest.approx(16)


def test_what_the_answer_would_have_needed(artifact: Path, checkpoint: Path, capsys: Capture) -> None:
    words = ["run", str(artifact), *WORDS, "--show-needed", "--checkpoint", str(checkpoint)]
    assert cli.main([*words, "--json"]) == 0
    needed = json.loads(capsys.readouterr().out)["kept"]["needed"]
    assert needed["queries"] == 3
    assert 0 < needed["evicted_share"] < 1
    assert sum(needed["by_position"]) == pytest.approx(needed["evicted_share"])
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert re.search(r"needed   \d+\.\d% of the attention of 3 answer tokens .*\n +\d+\.\d+%  position", out)


@pytest.mark.parametrize(
    ("words", "kind", "fields"),
    [
        (["--show-kept=7", "--prompt", "a"], ShownPartErrors.NO_LAYER, {"layer": 7, "last": 1}),
        (["--show-kept=0:9", "--prompt", "a"], ShownPartErrors.NO_HEAD, {"layer": 0, "head": 9, "last": 1}),
        (["--show-kept", "--check"], RunErrors.KEPT_AND_CHECK, {}),
        (["--show-needed", "--prompt", "a"], NeededTextErrors.NO_MODEL, {}),
    ],
)
def test_refusals(words: list[str], kind: ErrorKind, fields: dict[str, Any], artifact: Path, capsys: Capture) -> None:
    check(one_line(["run", str(artifact), *words], capsys), kind, **fields)


@pytest.mark.parametrize("text", ["x", "1:", "-1", "1" * 10])
def test_a_part_is_a_layer_or_a_head_of_one(text: str, capsys: Capture) -> None:
    error = one_line(["run", "m.rdu", "--prompt", "a", f"--show-kept={text}"], capsys)
    check(error, CommandLineErrors.INVALID_ARGUMENT, option="--show-kept", cause=ShownPartErrors.UNREADABLE)
    assert error.fields["cause"]["fields"] == {"text": text}


def test_colours_and_what_a_terminal_must_not_get() -> None:
    tokens = [Token("a\x1b[2J", "sink", 1.0), Token("b", "selected", 0.1), Token("c", "evicted", 0.0)]
    lines = list(shaded(tokens, Part(), 80, colours=True, fetched_each_step=False))
    assert lines[-1].startswith("\x1b[48;5;75m\x1b[38;5;16ma\N{REPLACEMENT CHARACTER}[2J\x1b[0m\x1b[48;5;230m")
    assert lines[-1].endswith("\x1b[2mc\x1b[0m")
    stored = list(shaded([Token("a", "stored", 0.0)], Part(), 80, colours=False, fetched_each_step=True))
    assert stored[-1] == "-"
    assert any("recorded with --kv-fetch only" in line for line in stored)


def test_lost_parts_are_joined_and_ranked() -> None:
    lost = [0, 0.1, 0, 0.2, 0, 0, 0, 0.25, 0.01]
    tokens = [Token("x", "evicted", 0.0, share) for share in lost]
    assert [(begin, end) for begin, end, _ in lost_spans(tokens)] == [(1, 4), (7, 8)]
