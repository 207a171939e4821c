"""`--kv-policy query`: from the option to what `sscc inspect`, `sscc run`, goldens and `sscc bisect` say of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sscc.compiler.frontend.eager import EagerQuerySelection
from sscc.compiler.options.compile_options import CompileOptions, OptionErrors
from sscc.compiler.options.policy import PolicyErrors
from sscc.compiler.tools.commands import cli
from sscc.ir.context import mlir, parse_module
from sscc.ir.errors import ErrorKind
from sscc.ir.geometry import Geometry, GeometryErrors, Span
from sscc.ir.levels import get_facts
from sscc.runtime.artifact.golden import Golden
from sscc.runtime.backends.cpu.codegen.features import GENERIC
from sscc.runtime.backends.cpu.plan.plan import PlanArgument, PlanRun
from sscc.runtime.backends.cpu.plan.planner import plan_program
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.golden_replay import replay
from sscc.runtime.timing.entry import TimingErrors
from tests.compiler.small_stacks import BATCH, CHUNK, CONTEXT, fed, loaded, opened
from tests.compiler.test_windows import eager_model, random_model
from tests.errors import check, one_line, raises
from tests.families import random_tokens

CACHE = "--kv-policy query --kv-sink 2 --kv-recent 5 --kv-topk 6 --max-context 48 --batch 2 --prefill-chunk 10".split()
SR, TOPK, SCRATCH, LAYERS, HEADS, DIM = 7, 6, 50, 2, 2, 8  # 48 tokens are 5 chunks of 10
ROW = LAYERS * HEADS * 2 * DIM * 4
QUANTIZED_KEY = LAYERS * HEADS * (DIM * 2 // 8 + 2)
Capture = pytest.CaptureFixture[str]
Compiled = Callable[..., Path]


@pytest.fixture(scope="module")
def artifact_of(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """`artifact_of(*words)`: the model compiled with these options too, with goldens; once."""
    folder = tmp_path_factory.mktemp("query")

    @cache
    def artifact(*words: str) -> Path:
        path = folder / ("-".join(word.strip("-") for word in words) or "plain")
        golden = ["--save-golden", "--golden-tokens", "9", "--no-native-code", "-q", "--traceback"]
        assert cli.main(["compile", str(model), "-o", str(path), *CACHE, *words, *golden]) == 0
        return path

    return artifact


# --------------------------------------------------------------------------------------------------------- options


def resolved(**values: Any) -> Geometry:
    return CompileOptions(model=Path("m"), **values).resolve(128).geometry


def test_all_rows_are_kept_and_quantized_keys_have_two_bits_unless_asked_for() -> None:
    plain, g = resolved(kv_budget=64), resolved(kv_budget=64, kv_policy="query")
    assert (plain.policy, plain.key_bits, plain.by_query) == ("snapstream", 0, False)
    assert g == Geometry(**{**plain.to_dict(), "policy": "query", "key_bits": 2, "rows": "indexed"})
    assert resolved(kv_topk=6, kv_policy="query", kv_key_bits=4).key_bits == 4
    assert Geometry.from_dict(g.to_dict()) == g
    assert "policy" not in plain.to_dict(), "what older programs wrote stays as it was"
    ring = g.windowed(Span(16))
    assert (ring.policy, ring.key_bits, ring.rows) == ("snapstream", 0, "compact")


def test_nothing_is_evicted() -> None:
    g = resolved(kv_sink=2, kv_recent=5, kv_topk=6, kv_policy="query")
    assert (g.budget, g.cache_rows, g.most_kept) == (13, 7, 128)
    assert [g.kept_rows(length) for length in (3, 13, 100)] == [3, 13, 100]


@pytest.mark.parametrize(
    ("values", "kind", "fields"),
    [
        (
            {"kv_policy": "oracle"}, PolicyErrors.UNKNOWN,
            {"option": "--kv-policy", "value": "oracle", "known": ["snapstream", "query"]},
        ),
        ({"kv_key_bits": 2}, OptionErrors.ONLY_BY_QUERY, {}),
        ({"kv_fetch": 2}, OptionErrors.ONLY_BY_QUERY, {}),
        ({"kv_policy": "query", "kv_topk": 6, "kv_fetch": 7}, GeometryErrors.FETCH, {"fetch": 7, "topk": 6}),
        (
            {"kv_policy": "query", "kv_key_bits": 3}, GeometryErrors.KEY_BITS,
            {"bits": 3, "choices": [1, 2, 4, 16]},
        ),
        ({"kv_policy": "query", "kv_rows": "compact"}, GeometryErrors.QUERY_ROWS, {}),
        ({"kv_policy": "query", "kv_topk": 0}, GeometryErrors.QUERY_WITHOUT_TOPK, {}),
        ({"kv_policy": "query", "compile_from": "graph"}, OptionErrors.RECORDED, {"option": "--kv-policy"}),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        resolved(**values)


def test_quantized_keys_of_16_bits_are_keys(artifact_of: Compiled, capsys: Capture) -> None:
    path = artifact_of("--kv-key-bits", "16")
    states = {t.name: (t.dtype, t.shape) for t in loaded(path).program.tensors if t.role == "state"}
    assert states["quantized_keys"] == states["k_store"] == ("f32", (LAYERS, 2, HEADS, SCRATCH, DIM))
    assert "quantized_key_scales" not in states
    assert cli.main(["inspect", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["held_kv_bytes"] == (SR + SCRATCH) * ROW + SCRATCH * ROW // 2
    assert report["decode_row_bytes"]["quantized keys"] == {"hbm": 2 * (48 - SR + 1) * ROW // 2}


def test_a_share_of_the_chosen_rows_may_be_said_to_stay(artifact_of: Compiled, capsys: Capture) -> None:
    path = artifact_of()
    assert cli.main(["inspect", str(path), "--json", "--staying", "0.5"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["decode_row_bytes"]["store"] == {"ddr": 2 * (TOPK // 2 + 1) * ROW}
    assert report["decode_row_bytes"]["cache"] == {"hbm": 2 * (SR + 1 + TOPK // 2) * ROW}
    assert any("0.5" in line and "query" in line for line in report["decode"]["assumptions"])
    fetching = artifact_of("--kv-fetch", "2")
    check(one_line(["inspect", str(fetching), "--staying", "0.5"], capsys), TimingErrors.NOTHING_STAYS)


def test_few_rows_come_from_the_store_and_the_others_stay(artifact_of: Compiled, capsys: Capture) -> None:
    path = artifact_of("--kv-fetch", "2")
    assert cli.main(["inspect", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["held_kv_bytes"] == (SR + TOPK + SCRATCH) * ROW + SCRATCH * QUANTIZED_KEY
    moved = report["decode_row_bytes"]
    assert moved["store"] == {"ddr": 2 * (2 + 1) * ROW}
    assert moved["resident rows"] == {"hbm": 2 * (TOPK + 2) * ROW}
    assert cli.main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert "by quantized keys of 2 bits; it fetches at most 2 rows, 6 are resident\n" in text
    session = opened(path, "reference")
    session.prefill(0, random_tokens(30))
    near = TOPK * ROW + 2 * LAYERS * HEADS * TOPK * 8
    assert session.snapshot_bytes(0) == SR * ROW + 30 * (ROW + QUANTIZED_KEY) + near


def test_a_dump_remembers_it(model: Path, tmp_path: Path) -> None:
    words = ["compile", str(model), "-o", str(tmp_path / "graph.mlir"), *CACHE, "--compile-to", "graph", "-q"]
    assert cli.main([*words, "--kv-key-bits", "1"]) == 0
    with mlir():
        geometry = get_facts(parse_module((tmp_path / "graph.mlir").read_text(), "the dump"))[1]
    assert (geometry.policy, geometry.key_bits) == ("query", 1)


# ------------------------------------------------------------------------------------------------------- artifacts


def test_inspect_says_what_is_held_and_what_is_read_and_where(artifact_of: Compiled, capsys: Capture) -> None:
    path = artifact_of()
    reports = {}
    for context in (48, 9):
        assert cli.main(["inspect", str(path), "--context", str(context), "--json"]) == 0
        reports[context] = json.loads(capsys.readouterr().out)
    assert cli.main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    report = reports[48]
    assert report["held_kv_bytes"] == (SR + SCRATCH) * ROW + SCRATCH * QUANTIZED_KEY
    assert report["kv_bytes"] == (SR + TOPK) * ROW + (48 - SR) * QUANTIZED_KEY
    slots = 2
    for context, candidates, chosen in ((48, 41, 6), (9, 2, 2)):
        assert reports[context]["decode_row_bytes"] == {
            "cache": {"hbm": slots * (SR + 1) * ROW},
            "store": {"ddr": slots * (chosen + 1) * ROW},
            "quantized keys": {"hbm": slots * (candidates + 1) * QUANTIZED_KEY},
        }
    assert "topk 6, for 48 tokens; every step selects the topk rows among all positions\n" in text
    assert "selection  every step's query, by quantized keys of 2 bits\n" in text
    parts = "1.75 KiB of sinks and ring, 800 bytes of quantized keys, 12.5 KiB of store"
    read = "of which a step reads at most 3.891 KiB; 12 KiB uncompressed (3.1x)"
    assert f"KV         15.03 KiB a sequence ({parts}), {read}\n" in text
    moved = "4 KiB of cache in HBM, 3.5 KiB of store in DDR, 1.312 KiB of quantized keys in HBM"
    assert f"rows       a step moves {moved}\n" in text
    tiers = {tensor.name: tensor.tier for tensor in loaded(path).program.tensors if tensor.role == "state"}
    assert {name for name, tier in tiers.items() if tier == "ddr"} == {"k_store", "v_store"}


@pytest.mark.parametrize(("dtype", "width"), [("int8", DIM + 4), ("int4", DIM // 2 + 2)])
def test_rows_take_fewer_bytes_encoded(dtype: str, width: int, artifact_of: Compiled, capsys: Capture) -> None:
    """In both memories; quantized keys stay what they are."""
    path, row = artifact_of("--kv-dtype", dtype), LAYERS * HEADS * 2 * width
    assert cli.main(["inspect", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["held_kv_bytes"] == (SR + SCRATCH) * row + SCRATCH * QUANTIZED_KEY
    assert report["kv_bytes"] == (SR + TOPK) * row + (48 - SR) * QUANTIZED_KEY
    assert report["decode_row_bytes"] == {
        "cache": {"hbm": 2 * (SR + 1) * row},
        "store": {"ddr": 2 * (TOPK + 1) * row},
        "quantized keys": {"hbm": 2 * (48 - SR + 1) * QUANTIZED_KEY},
    }
    session = opened(path, "reference")
    session.prefill(0, random_tokens(30))
    assert session.snapshot_bytes(0) == SR * row + 30 * (row + QUANTIZED_KEY)


def test_a_session_keeps_every_position(artifact_of: Compiled, capsys: Capture) -> None:
    path = artifact_of()
    session = opened(path, "reference")
    session.prefill(0, random_tokens(30))
    for token in range(5):
        session.decode({0: token})
    kept = session.kept(0)
    assert (kept.length, kept.kept, kept.evicted, kept.budget) == (35, 35, 0, 48)
    assert kept.kv_bytes == (SR + SCRATCH) * ROW + SCRATCH * QUANTIZED_KEY
    snapshot_rows = SR * ROW + 30 * (ROW + QUANTIZED_KEY)
    session.prefill(0, random_tokens(30))
    assert session.snapshot_bytes(0) == snapshot_rows
    tokens = ",".join(map(str, random_tokens(20)))
    words = ["run", str(path), "--token-ids", tokens, "--max-new-tokens", "12", "--interpreter", "reference"]
    assert cli.main(words) == 0
    assert "cache    31 of 31 positions kept, 0 evicted (budget 48 rows)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        (), ("-O", "0"), ("--weights", "int8"), ("--kv-key-bits", "1"),
        ("--kv-key-bits", "4", "--dtype", "bf16"), ("--kv-key-bits", "16", "--dtype", "bf16"),
        ("--kv-dtype", "int8", "-O", "0"), ("--kv-dtype", "int8", "--kv-key-bits", "16"),
        ("--kv-dtype", "int4"), ("--kv-fetch", "2", "--kv-dtype", "int8"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_goldens_are_recorded_by_the_definition_and_met(words: tuple[str, ...], artifact_of: Compiled) -> None:
    artifact = loaded(artifact_of(*words))
    golden = artifact.golden()
    assert golden is not None
    assert not [name for name in golden.tensors if name.startswith("selected")]
    assert golden.tensors["k_cache.1"].shape == (HEADS, SR, DIM)
    assert golden.tensors["v_store.1"].shape == (HEADS, len(golden.prompt), DIM)
    assert len(golden.prompt) > SR + TOPK
    for interpreter in ("reference", *(["native"] if "--kv-dtype" in words else [])):
        report = replay(opened(artifact_of(*words), interpreter), golden, quantized="--weights" in words)
        assert report.passed, report.summary()
        assert len(report.checks) == 2 * 4 + 1 + 9


def test_a_wrong_row_of_the_store_is_found(artifact_of: Compiled) -> None:
    golden = loaded(artifact_of()).golden()
    assert golden is not None
    for name in ("v_store.1", "k_cache.0"):
        wrong = golden.tensors[name].copy()
        wrong[1, 3] += 1
        failure = replay(
            opened(artifact_of(), "reference"),
            Golden(golden.prompt, golden.new_tokens, {**golden.tensors, name: wrong}),
        ).first_failure
        assert failure is not None
        assert failure.name == name


def test_bisect_runs_every_pass(model: Path, capsys: Capture) -> None:
    assert cli.main(["bisect", str(model), *CACHE, "-O", "2"]) == 0
    assert "fuse-compressed-attention" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------------- sliding windows


def test_windowed_layers_keep_their_ring_and_choose_nothing(tmp_path: Path) -> None:
    """Three layers of five keep a ring of 10."""
    random_model("gemma3").save_pretrained(tmp_path / "model")
    words = f"--max-context {CONTEXT} --batch {BATCH} --prefill-chunk {CHUNK} --dtype f32 --no-native-code -q".split()
    cache = "--kv-policy query --kv-sink 2 --kv-recent 9 --kv-topk 5".split()
    command = ["compile", str(tmp_path / "model"), "-o", str(tmp_path / "a.rdu"), *cache, *words, "--save-golden"]
    assert cli.main(command) == 0
    artifact = Artifact.load(tmp_path / "a.rdu")
    states = {tensor.name: tensor.shape for tensor in artifact.program.tensors if tensor.role == "state"}
    assert states["k_cache.window10"][:4] == (3, BATCH, 2, 10)
    assert states["quantized_keys"][0] == states["k_store"][0] == 2
    assert "quantized_keys.window10" not in states
    golden = artifact.golden()
    assert golden is not None
    assert [layer for layer in range(5) if f"k_store.{layer}" in golden.tensors] == [1, 3]
    session = opened(tmp_path / "a.rdu", "reference")
    assert replay(session, golden).passed
    prompt, tokens = random_tokens(30), random_tokens(20, seed=1)
    eager = EagerQuerySelection(eager_model("gemma3"), artifact.signature.geometry, 2)
    expected = torch.stack([eager.prefill(prompt), *(eager.decode(token) for token in tokens)]).numpy()
    session.release(0)
    got = fed(session, prompt, tokens, slot=1)
    assert np.linalg.norm(got - expected) <= 1e-4 * np.linalg.norm(expected)


# --------------------------------------------------------------------------------------------------- native plans


def test_the_weights_of_the_next_stage_can_be_asked_for_while_rows_are_scored(artifact_of: Compiled) -> None:
    plan = plan_program(Artifact.load(artifact_of()).program, GENERIC).plan

    def runs_of(stage: str) -> list[PlanRun]:
        labels = ((run, plan.labels[run.label]) for run in plan.runs)
        return [run for run, label in labels if label.startswith("decode") and label.endswith(stage)]

    def region(argument: PlanArgument) -> str:
        return plan.regions[argument.region].name

    (product,) = runs_of("o_proj")
    (weight,) = (argument for argument in product.arguments if region(argument).endswith("o_proj.weight"))
    for scoring in runs_of("query_attention"):
        streamed = scoring.arguments[-1]
        assert (region(streamed), streamed.offset) == (region(weight), weight.offset)
        assert streamed.extent == weight.extent * prod(trips for _, trips in product.grid)
        assert streamed.terms == tuple(term for term in weight.terms if term[0] not in dict(product.grid))
