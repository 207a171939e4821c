"""`--kv-dtype`: the option, its effects, and its output in `sscc inspect`, `sscc run` and goldens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sscc
from sscc.compiler.options.compile_options import CompileOptions, OptionErrors
from sscc.compiler.tools.commands import cli
from sscc.ir.context import mlir, parse_module
from sscc.ir.errors import ErrorKind
from sscc.ir.geometry import Geometry, GeometryErrors
from sscc.ir.kv_rows import decode, encode
from sscc.ir.levels import get_facts
from sscc.ir.suggestions import ChoiceErrors
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.golden_replay import compare, replay
from tests.compiler.kv_options import compile_each
from tests.errors import raises
from tests.families import random_tokens

PLAIN_ROW, INT8_ROW = (2 * 2 * 2 * nbytes for nbytes in (8 * 4, 8 + 4))  # K and V of two layers with two KV heads of 8
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def artifacts(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model compiled both ways; the one with int8 rows has goldens."""
    return compile_each(model, tmp_path_factory.mktemp("dtype"), "--kv-dtype", "model", "int8")


@pytest.mark.parametrize("values", [{}, {"kv_topk": 6}, {"kv_budget": 48}])
def test_rows_have_the_models_dtype_unless_asked_for(values: dict[str, Any]) -> None:
    shape = CompileOptions(model=Path("m"), **values).resolve(128)
    assert (shape.geometry.dtype, shape.geometry.encoded) == ("model", False)
    geometry = CompileOptions(model=Path("m"), kv_dtype="int8", **values).resolve(128).geometry
    assert geometry == Geometry(**{**shape.geometry.to_dict(), "dtype": "int8"})


@pytest.mark.parametrize(
    ("values", "kind", "fields"),
    [
        (
            {"kv_dtype": "fp8"}, ChoiceErrors.UNKNOWN,
            {"option": "--kv-dtype", "value": "fp8", "choices": ["model", "int8", "int4"]},
        ),
        ({"kv_dtype": "int8", "kv_rows": "indexed", "kv_topk": 6}, GeometryErrors.ENCODED_INDEXED, {}),
        ({"kv_dtype": "int8", "compile_from": "graph"}, OptionErrors.RECORDED, {"option": "--kv-dtype"}),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        CompileOptions(model=Path("m"), **values).resolve(128)


def test_a_dump_remembers_it(model: Path, tmp_path: Path) -> None:
    rows = {"kv_sink": 2, "kv_recent": 5, "kv_topk": 6, "kv_dtype": "int8"}
    shape = {"max_context": 48, "batch": 2, "prefill_chunk": 10}
    sscc.compile(model, output=tmp_path / "graph.mlir", compile_to="graph", **rows, **shape)
    with mlir():
        assert get_facts(parse_module((tmp_path / "graph.mlir").read_text(), "the dump"))[1].encoded
    sscc.compile(tmp_path / "graph.mlir", output=tmp_path / "out.rdu", compile_from="graph", checkpoint=model)
    assert Artifact.load(tmp_path / "out.rdu").signature.geometry.dtype == "int8"


def test_inspect_and_run_count_codes_and_scales(artifacts: dict[str, Path], capsys: Capture) -> None:
    facts = {}
    for dtype, path in artifacts.items():
        assert cli.main(["inspect", str(path), "--json"]) == 0
        facts[dtype] = json.loads(capsys.readouterr().out)
        tokens = ",".join(map(str, random_tokens(20)))
        assert cli.main(["run", str(path), "--token-ids", tokens, "--max-new-tokens", "3", "--json"]) == 0
        facts[dtype] |= {"run": json.loads(capsys.readouterr().out.splitlines()[-1])}
    for dtype, row in (("model", PLAIN_ROW), ("int8", INT8_ROW)):
        assert facts[dtype]["kv_bytes"] == facts[dtype]["held_kv_bytes"] == facts[dtype]["run"]["kv_bytes"] == 13 * row
        assert facts[dtype]["full_kv_bytes"] == 48 * PLAIN_ROW
    saved = 2 * 13 * (PLAIN_ROW - INT8_ROW)
    assert facts["model"]["decode_floor_bytes"] - facts["int8"]["decode_floor_bytes"] == saved
    assert facts["model"]["state_bytes"] - facts["int8"]["state_bytes"] == saved
    assert cli.main(["inspect", str(artifacts["int8"])]) == 0
    text = capsys.readouterr().out
    assert "KV         1.219 KiB a sequence, 12 KiB uncompressed (9.8x)\n" in text
    assert "topk 6, for 48 tokens; rows of int8 codes and a scale\n" in text


def test_rows_are_those_of_a_plain_cache_encoded(artifacts: dict[str, Path]) -> None:
    """Prefill does not read caches, so its rows are the same numbers; they differ by half a step at most."""
    sessions = {dtype: sscc.load(path) for dtype, path in artifacts.items()}
    logits = [session.prefill(1, random_tokens(30)) for session in sessions.values()]
    assert np.array_equal(*logits)
    for name in ("k_cache", "v_cache"):
        plain, encoded = (sessions[dtype].interpreter.tensor(name)[:, 1] for dtype in ("model", "int8"))
        assert encoded.dtype == np.int8
        assert np.array_equal(encoded, encode(plain))
        assert not np.array_equal(decode(encoded), plain)
    steps = [session.decode({1: 3})[1] for session in sessions.values()]
    assert 0 < compare(steps[1], steps[0]).normwise < 0.05


def test_eager_pytorch_agrees(artifacts: dict[str, Path]) -> None:
    golden = Artifact.load(artifacts["int8"]).golden()
    assert golden is not None
    for interpreter in ("reference", "native"):
        report = replay(sscc.load(artifacts["int8"], interpreter=interpreter), golden)
        assert report.passed, report.summary()
        assert len(report.checks) == 2 * 3 + 1 + 9
    plain = replay(sscc.load(artifacts["model"]), golden)
    assert not all(check.difference.rowwise < 1e-4 for check in plain.checks)


def test_a_wrong_row_is_found(artifacts: dict[str, Path]) -> None:
    """Goldens compare dequantized rows, with a tolerance smaller than the error of a wrong row."""
    golden = Artifact.load(artifacts["int8"]).golden()
    assert golden is not None
    wrong = {**golden.tensors, "v_cache.1": golden.tensors["v_cache.1"][:, ::-1]}
    report = replay(sscc.load(artifacts["int8"]), type(golden)(golden.prompt, golden.new_tokens, wrong))
    assert report.first_failure is not None
    assert report.first_failure.name == "v_cache.1"
