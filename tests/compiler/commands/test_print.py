"""`sscc print`: the readable form of every level."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import sscc
from sscc.compiler.tools.commands.cli import main
from sscc.compiler.tools.commands.print import PrintCommandErrors, coloured
from sscc.ir.errors import ErrorKind
from sscc.ir.files import FileErrors
from sscc.ir.suggestions import ChoiceErrors
from tests.errors import check, one_line
from tests.models.tiny_llama import save_tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact, and the dump of every level."""
    folder = tmp_path_factory.mktemp("print")
    model = save_tiny_llama(folder / "model", max_position_embeddings=64)
    sizes = {"kv_sink": 2, "kv_recent": 8, "kv_topk": 6, "kv_obs": 4, "prefill_chunk": 16}
    sscc.compile(model, output=folder / "m.rdu", dump_ir_dir=folder / "ir", **sizes)  # type: ignore[arg-type]
    return folder


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["print", *map(str, words)]) == 0
    return capsys.readouterr().out


def dump(folder: Path, name: str) -> str:
    (path,) = (folder / "ir").glob(f"*-{name}.mlir")
    return str(path)


def test_every_level_is_short_and_all_of_its_values_have_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = sorted((folder / "ir").glob("*.mlir"))
    assert len(dumps) > 10
    for path in dumps:
        text = printed(capsys, str(path))
        assert text.startswith("// level "), path
        assert not re.search(r"%\d", text), f"{path}: a value that nobody names"
        assert "\x1b" not in text
        assert len(text.splitlines()) < len(path.read_text().splitlines()) / 2
        for function in text.split("\n\n")[1:]:
            results = [name for left in re.findall(r"^ *((?:%[\w.]+(?:, )?)+) = ", function, re.MULTILINE)
                       for name in left.split(", ")]  # fmt: skip
            assert len(results) == len(set(results)), f"{path}: a name stands for two values"


def test_the_loop_over_layers_is_one_screen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, dump(folder, "kernel-looping"), "--ir-function", "decode.layer.*")
    assert len(text.splitlines()) <= 65
    for line in (
        "  for %layer in 0 .. 2 carrying %hidden, %k_cache, %v_cache {",
        "    %input_layernorm.2[i, j, 0] = sum over k: %input_layernorm.1[i, j, k] : 1x1x1xf32",
        "    %self_attn.q_proj = %input_layernorm @ %self_attn.q_proj.weight[%layer].T : 1x32xf32",
        "    %mlp.act_fn.1 = 1 / (exp(-%mlp.gate_proj) + 1) : 1x1x64xf32",
        "    %k_cache[%layer] = %updated",
        "  return %hidden, %k_cache, %v_cache",
    ):
        assert line in text.splitlines()
    assert "    9 weights\n" in text
    placed = printed(capsys, dump(folder, "place-stages"), "--ir-function", "decode.layer.*")
    assert re.search(r"^    stage gate_proj\+up_proj, \d+ PCUs, buffers of 1:$", placed, re.MULTILINE)
    assert "  %mlp = %mlp.gate_proj * (1 / (exp(-%mlp.gate_proj) + 1)) * %mlp.up_proj : 1x1x64xf32\n" in placed


def test_what_is_asked_for_besides(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, dump(folder, "kernel-looping"), "--ir-function", "decode.head", "--locations", "--weights")
    assert re.search(r"%lm_head = .* // lm_head modeling_llama\.py:\d+$", text, re.MULTILINE)
    assert "2 weights: %model.norm.weight: 32xf32, %lm_head.weight: 257x32xf32" in text


def test_a_schedule(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = str(folder / "m.rdu")
    assert printed(capsys, artifact) == (folder / "m.rdu" / "schedule.txt").read_text()
    assert printed(capsys, artifact, "--ir-function", "decode").startswith("ENTRY decode(token, position")
    assert printed(capsys, artifact, "--ir-function", "decode.*").count("KERNEL ") == 3


def test_pipes_files_and_colours(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = dump(folder, "kernel-looping")
    plain = printed(capsys, path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(path).read_bytes())))
    assert printed(capsys, "-", "-o", "-") == plain
    assert printed(capsys, path, "-o", str(tmp_path / "out.txt")) == ""
    assert (tmp_path / "out.txt").read_text() == plain
    painted = printed(capsys, path, "--color", "always")
    assert painted == coloured(plain) != plain
    assert re.sub(r"\x1b\[[\d;]*m", "", painted) == plain


@pytest.mark.parametrize(
    ("words", "kind", "fields"),
    [
        (
            ["IR", "--ir-function", "decode.heads"],
            PrintCommandErrors.NO_FUNCTION,
            {"name": "decode.heads", "similar_hint": "; did you mean 'decode.head'?"},
        ),
        (
            ["ART", "--ir-function", "decod"],
            PrintCommandErrors.NO_PART,
            {"name": "decod", "similar_hint": "; did you mean 'decode'?"},
        ),
        (["ART", "--locations"], PrintCommandErrors.OPTION_OF_DUMPS, {}),
        (["none.mlir"], FileErrors.CANNOT_READ, {"path": "none.mlir", "reason": os.strerror(errno.ENOENT)}),
        (["IR", "--color", "maybe"], ChoiceErrors.UNKNOWN, {"option": "--color", "value": "maybe"}),
    ],
)
def test_mistakes(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], kind: ErrorKind, fields: dict[str, Any]
) -> None:
    places = {"IR": dump(folder, "kernel-looping"), "ART": str(folder / "m.rdu")}
    error = one_line(["print", *(places.get(word, word) for word in words)], capsys)
    check(error, kind, **fields)
    assert error.fields.get("artifact", places["ART"]) == places["ART"]
    if "names" in error.fields:
        assert "decode.head" in error.fields["names"]
