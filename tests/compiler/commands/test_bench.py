"""`sscc bench`: it measures the requested workload, and its shares follow from its other figures."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.tools.commands.bench import BenchErrors, step_bytes
from sscc.compiler.tools.commands.cli import main
from sscc.compiler.tools.commands.parser import CommandLineErrors
from sscc.ir.errors import ErrorKind
from sscc.ir.option import OptionRangeErrors
from sscc.runtime.session.artifact import Artifact
from tests.errors import check, one_line

NOT_NUMBERS = BenchErrors.NOT_NUMBERS


def test_tests_and_shares(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", str(artifact), "-p", "20,40", "-n", "3", "-d", "10,30", "-r", "2", "--threads", "1", "--json"]
    assert main(words) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    named = [(item["test"], item["tokens"], item["slots"], item["depth"]) for item in results]
    decodes = [("decode", 3, slots, depth) for depth in (10, 30) for slots in (1, 2)]
    assert named == [("prefill", 20, 1, 0), ("prefill", 40, 1, 0), *decodes]
    for item in results:
        seconds = statistics.median(item["seconds"])
        assert len(item["seconds"]) == 2
        assert item["tokens_per_second"] == pytest.approx(item["slots"] * item["tokens"] / seconds)
        if item["share"] is not None:
            read = item["bytes_per_step"] * item["tokens"] / seconds
            assert item["share"] == pytest.approx(read / item["bandwidth"])
    assert [item["share"] is None for item in results] == [True, True, False, False, False, False]


def test_bytes_of_a_step(artifact: Path) -> None:
    """Besides the weights, a step reads rows of K and V of 2 layers: the rows of each slot's prompt, at most 16."""
    loaded = Artifact.load(artifact)
    s = loaded.signature
    row = s.plan.main.kv_heads * 2 * s.plan.main.key.width * 4
    weights = step_bytes(loaded, 0, 1)
    stored = [tensor for tensor in loaded.program.tensors if tensor.role in ("weight", "constant")]
    assert 0 < weights <= sum(tensor.nbytes for tensor in stored)
    assert step_bytes(loaded, 1, 10) - weights == 2 * 10 * row
    assert step_bytes(loaded, 2, 100) - weights == 2 * 2 * 16 * row == 2 * s.read_bytes


def test_a_table_of_what_fits(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(artifact), "-r", "1", "-b", "2"]) == 0
    _, machine, _, prefill, decode = capsys.readouterr().out.splitlines()
    assert machine.startswith("native interpreter, ")
    assert prefill.startswith("prefill 128 ")
    assert decode.startswith("decode 32 at 94, 2 slots ")
    assert "% of " in decode


@pytest.mark.parametrize(
    ("words", "kind", "fields"),
    [
        (["-b", "3"], BenchErrors.TOO_MANY_SLOTS, {"asked": 3, "slots": 2}),
        (["-p", "200"], BenchErrors.PROMPT_TOO_LONG, {"tokens": 200, "context": 128}),
        (
            ["-n", "30", "-d", "100"],
            BenchErrors.TOO_MANY_STEPS,
            {"depth": 100, "steps": 30, "untimed": 2, "tokens": 132, "context": 128},
        ),
        (["-p", "many"], CommandLineErrors.INVALID_ARGUMENT, {"option": "--prompt-tokens", "cause": NOT_NUMBERS}),
        (["-n", "9" * 5_000], CommandLineErrors.INVALID_ARGUMENT, {"option": "--new-tokens", "cause": NOT_NUMBERS}),
        (["-r", "0"], OptionRangeErrors.TOO_SMALL, {"option": "--repetitions", "value": 0, "least": 1}),
    ],
)
def test_what_does_not_fit(
    words: list[str], kind: ErrorKind, fields: dict[str, Any], artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(one_line(["bench", str(artifact), *words], capsys), kind, **fields)
