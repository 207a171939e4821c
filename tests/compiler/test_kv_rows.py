"""`--kv-rows`: from the option to what `sscc inspect`, `sscc run` and goldens say of it."""

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
from sscc.ir.levels import get_facts
from sscc.ir.sizes import align
from sscc.ir.suggestions import ChoiceErrors
from sscc.runtime.artifact.golden import Golden
from sscc.runtime.artifact.manifest import Manifest, ManifestErrors
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.golden_replay import replay
from tests.compiler.kv_options import CACHE, G, compile_each
from tests.errors import check, like, one_line, raises
from tests.families import random_tokens
from tests.targets import described

SR, BUDGET, SCRATCH = 7, 13, 50  # 48 tokens are 5 chunks of 10
ROW = 2 * 2 * 2 * 8 * 4  # bytes of a row: K and V of two layers with two KV heads of 8 in f32
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def artifacts(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model compiled both ways; the one with indexed rows has goldens."""
    return compile_each(model, tmp_path_factory.mktemp("rows"), "--kv-rows", "compact", "indexed")


# --------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize("values", [{}, {"kv_topk": 6}, {"kv_budget": 48}])
def test_rows_are_compact_unless_asked_for(values: dict[str, Any]) -> None:
    shape = CompileOptions(model=Path("m"), **values).resolve(128)
    assert (shape.geometry.rows, shape.geometry.indexed) == ("compact", False)
    assert shape.geometry.cache_rows == shape.geometry.budget
    geometry = CompileOptions(model=Path("m"), kv_rows="indexed", **values).resolve(128).geometry
    assert geometry == Geometry(**{**shape.geometry.to_dict(), "rows": "indexed"})
    assert (geometry.budget, geometry.cache_rows) == (shape.geometry.budget, shape.geometry.budget)


@pytest.mark.parametrize(
    ("values", "kind", "fields"),
    [
        (
            {"kv_rows": "paged"}, ChoiceErrors.UNKNOWN,
            {"option": "--kv-rows", "value": "paged", "choices": ["compact", "indexed"]},
        ),
        ({"kv_rows": "indexed", "kv_topk": 0}, GeometryErrors.INDEXED_WITHOUT_TOPK, {}),
        ({"kv_rows": "indexed", "kv_budget": 43}, GeometryErrors.INDEXED_WITHOUT_TOPK, {}),
        (
            {"kv_rows": "indexed", "max_context": 8}, GeometryErrors.INDEXED_WITHOUT_TOPK, {}
        ),  # everything fits into the ring
        ({"kv_rows": "indexed", "compile_from": "graph"}, OptionErrors.RECORDED, {"option": "--kv-rows"}),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        CompileOptions(model=Path("m"), **values).resolve(128)


def test_topk_0_is_refused_by_the_command_line(model: Path, capsys: Capture) -> None:
    words = ["compile", str(model), "--kv-topk", "0", "--kv-rows", "indexed", "-q"]
    check(one_line(words, capsys), GeometryErrors.INDEXED_WITHOUT_TOPK)


@pytest.fixture(scope="module")
def dump(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of level graph with indexed rows, made by the Python API."""
    rows = {"kv_sink": 2, "kv_recent": 5, "kv_topk": 6, "kv_obs": 4, "kv_pool": 3, "kv_rows": "indexed"}
    shape = {"max_context": 48, "batch": 2, "prefill_chunk": 10, "opt_level": 1}
    path = tmp_path_factory.mktemp("dump") / "graph.mlir"
    sscc.compile(model, output=path, compile_to="graph", **rows, **shape)
    return path


def test_a_dump_remembers_it(model: Path, dump: Path, tmp_path: Path) -> None:
    with mlir():
        assert get_facts(parse_module(dump.read_text(), "the dump"))[1].indexed
    sscc.compile(dump, output=tmp_path / "out.rdu", compile_from="graph", checkpoint=model, opt_level=1)
    assert Artifact.load(tmp_path / "out.rdu").signature.geometry.rows == "indexed"


# -------------------------------------------------------------------------------------------------------- artifacts


def test_the_manifest_says_it(artifacts: dict[str, Path]) -> None:
    for rows, path in artifacts.items():
        assert json.loads((path / "manifest.json").read_text())["geometry"]["rows"] == rows
        assert Artifact.load(path).signature.geometry == Geometry(**{**G.to_dict(), "rows": rows})


def test_a_manifest_without_it_means_compact_rows_and_an_unknown_one_is_refused(artifacts: dict[str, Path]) -> None:
    data = json.loads((artifacts["indexed"] / "manifest.json").read_text())
    del data["geometry"]["rows"]
    assert not Manifest.from_json(json.dumps(data)).signature.geometry.indexed
    data["geometry"]["rows"] = "paged"
    with raises(ManifestErrors.GEOMETRY, field="geometry", cause=like(GeometryErrors.ROWS, rows="paged")):
        Manifest.from_json(json.dumps(data))


def test_inspect_shows_what_is_held_for_what_is_read(artifacts: dict[str, Path], capsys: Capture) -> None:
    reports, text = {}, {}
    for rows, path in artifacts.items():
        assert cli.main(["inspect", str(path), "--json"]) == 0
        reports[rows] = json.loads(capsys.readouterr().out)
        assert cli.main(["inspect", str(path)]) == 0
        text[rows] = capsys.readouterr().out
    compact, indexed = reports["compact"], reports["indexed"]
    assert compact["held_kv_bytes"] == compact["kv_bytes"] == indexed["kv_bytes"] == BUDGET * ROW
    assert indexed["held_kv_bytes"] == (BUDGET + SCRATCH) * ROW
    index = 2 * 2 * 2 * 6 * 8  # of two layers, slots and heads: 6 positions
    assert indexed["decode_traffic_bytes"] == compact["decode_traffic_bytes"] + index
    # The row that a step writes stands beside those that it reads; of a cache that is read whole it is one of these.
    assert indexed["decode_floor_bytes"] == compact["decode_floor_bytes"] + 2 * ROW
    scratch, picks = SCRATCH * ROW // 2, index // 2  # of one layer; of one slot
    more = 2 * SCRATCH * ROW - scratch + index - picks
    assert indexed["state_bytes"] - compact["state_bytes"] == pytest.approx(more, abs=1)
    assert "KV         3.25 KiB a sequence, 12 KiB uncompressed (3.7x)\n" in text["compact"]
    assert "cache      13 rows = sink 2 + recent 5 + topk 6, for 48 tokens\n" in text["compact"]
    assert "topk 6, for 48 tokens; the topk rows stay in the prompt's K and V\n" in text["indexed"]
    assert (
        "KV         15.75 KiB a sequence (3.25 KiB of rows, 12.5 KiB of prompt), of which a step reads the "
        "3.25 KiB that compact rows would take; 12 KiB uncompressed (3.7x)\n" in text["indexed"]
    )
    assert "decode_attention" in text["indexed"]


def test_a_session_and_run_count_the_prompt(artifacts: dict[str, Path], capsys: Capture) -> None:
    results = {}
    for rows, path in artifacts.items():
        session = sscc.load(path)
        session.prefill(0, random_tokens(20))
        assert session.kept(0).kv_bytes == {"compact": BUDGET, "indexed": BUDGET + SCRATCH}[rows] * ROW
        assert session.kept(0).kept == BUDGET
        tokens = ",".join(map(str, random_tokens(20)))
        assert cli.main(["run", str(path), "--token-ids", tokens, "--max-new-tokens", "12", "--json"]) == 0
        results[rows] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert results["compact"]["tokens"] == results["indexed"]["tokens"]
    assert len(results["indexed"]["tokens"]) == 12
    assert results["indexed"]["kv_bytes"] == (BUDGET + SCRATCH) * ROW


def test_prompts_are_the_first_to_go_to_ddr(model: Path, artifacts: dict[str, Path], tmp_path: Path) -> None:
    """A step fetches few of their rows, so they come last to HBM: where a byte is missing, one of them leaves it."""
    needed = sum(align(tensor.nbytes) for tensor in Artifact.load(artifacts["indexed"]).program.tensors)
    (tmp_path / "small.json").write_text(json.dumps(described({"hbm.capacity": needed - 1})))
    words = ["compile", str(model), "-o", str(tmp_path / "out.rdu"), *CACHE, "--kv-rows", "indexed", "-q"]
    assert cli.main([*words, "--target", f"rdu:{tmp_path / 'small.json'}"]) == 0
    session = sscc.load(tmp_path / "out.rdu")
    tensors = Artifact.load(tmp_path / "out.rdu").program.tensors
    assert [tensor.name for tensor in tensors if tensor.tier == "ddr"] == ["v_store"]
    plain = sscc.load(artifacts["compact"])
    for each in (session, plain):
        each.prefill(1, random_tokens(30))
    assert np.array_equal(session.decode({1: 3})[1], plain.decode({1: 3})[1])


# ---------------------------------------------------------------------------------------------------------- goldens


def test_eager_pytorch_agrees(artifacts: dict[str, Path]) -> None:
    artifact = Artifact.load(artifacts["indexed"])
    golden = artifact.golden()
    assert golden is not None
    assert golden.tensors["k_cache.0"].shape[1] == BUDGET
    report = replay(sscc.load(artifacts["indexed"]), golden)
    assert report.passed, report.summary()
    assert len(report.checks) == 2 * 3 + 1 + 9


def changed(golden: Golden, name: str, edit: Any) -> Golden:
    array = golden.tensors[name].copy()
    edit(array)
    return Golden(golden.prompt, golden.new_tokens, {**golden.tensors, name: array})


def test_a_wrong_row_or_pick_is_found(artifacts: dict[str, Path]) -> None:
    golden = Artifact.load(artifacts["indexed"]).golden()
    assert golden is not None
    session = sscc.load(artifacts["indexed"])
    for row in (0, SR - 1, SR, BUDGET - 1):
        wrong = changed(golden, "v_cache.1", lambda rows, row=row: np.add(rows[1, row], 1.0, out=rows[1, row]))
        failure = replay(session, wrong).first_failure
        assert failure is not None
        assert failure.name == "v_cache.1"
    failure = replay(session, changed(golden, "selected.1", lambda picks: np.add(picks, 100, out=picks))).first_failure
    assert failure is not None
    assert failure.name == "selected.1"


def test_a_near_tie_takes_the_goldens_pick(artifacts: dict[str, Path]) -> None:
    """Another position is picked and all its rows are there: the logits compare like with like."""
    golden = Artifact.load(artifacts["indexed"]).golden()
    assert golden is not None
    session = sscc.load(artifacts["indexed"])
    replay(session, golden)
    picks = session.interpreter.tensor("selected")[0, 0, 0].tolist()
    other = next(p for p in range(G.sink, len(golden.prompt) - G.recent) if p not in picks)
    swapped = np.array(sorted([other, *picks[1:]]))
    report = replay(session, changed(golden, "selected.0", lambda all_picks: np.copyto(all_picks[0], swapped)))
    assert report.excused == 1
    assert session.interpreter.tensor("selected")[0, 0, 0].tolist() == swapped.tolist()
    assert session.interpreter.tensor("selected")[0, 0, 1].tolist() == golden.tensors["selected.0"][1].tolist()


# ----------------------------------------------------------------------------------------------------------- bisect


def test_bisect_takes_the_option(model: Path, capsys: Capture) -> None:
    words = ["bisect", str(model), "--kv-topk", "0", "--kv-rows", "indexed"]
    check(one_line(words, capsys), GeometryErrors.INDEXED_WITHOUT_TOPK)
