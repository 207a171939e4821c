"""Layers that select different numbers of positions: one loop over packed caches, the definition's results."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, PreTrainedConfig, PreTrainedModel

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend import algorithm, operator
from sscc.compiler.frontend.eager import EagerSnapStream
from sscc.compiler.options.compile_options import CompileOptions
from sscc.compiler.tools.commands import cli
from sscc.compiler.tools.inspection.inspection import inspect_artifact
from sscc.ir.errors import UsageError
from sscc.ir.geometry import Geometry
from sscc.ir.levels import LevelErrors
from tests.compiler import small_stacks
from tests.compiler.small_stacks import BATCH, CONTEXT, ROW, SHAPE, Artifacts, fed, loaded, opened
from tests.errors import raises
from tests.families import random_tokens

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SHAPE, num_hidden_layers=4),
    "gemma3": small_stacks.GEMMA3,  # layers 1 and 3 attend to everything
}
ALIKE = Geometry(sink=2, recent=6, topk=7, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT)
BUDGETS = {"llama": (12, 5, 9, 1), "gemma3": (3, 9)}
WAYS = {"compact": {}, "spare": {"spare": 2}, "indexed": {"rows": "indexed"}, "int8": {"dtype": "int8"}}


def geometry(family: str, way: str = "compact") -> Geometry:
    """`alike`: all layers have the same budget, larger than any of the others."""
    return replace(ALIKE, topk=20) if way == "alike" else replace(ALIKE, **WAYS[way]).with_layers(BUDGETS[family])


@cache
def random_model(family: str, dtype: str = "f32") -> PreTrainedModel:
    return small_stacks.random_model(CONFIGS[family], operator.IMPLEMENTATION, dtype)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return small_stacks.artifacts_in(tmp_path_factory.mktemp("budgets"), random_model, geometry, "compact")


@pytest.mark.parametrize("length", [40, 15, 9, 3])
@pytest.mark.parametrize(("family", "way"), [("llama", "spare"), ("llama", "indexed"), ("gemma3", "int8")])
def test_levels_agree_with_each_other_and_with_eager_pytorch(
    family: str, way: str, length: int, artifacts: Artifacts
) -> None:
    """Prompts that fill all layers' rows, some layers', none's selected ones, and not even the ring."""
    prompt, tokens = random_tokens(length), random_tokens(9, seed=1)
    levels = {2: "native"} if family == "gemma3" else {0: "reference", 2: "native"}
    levels |= {1: "native"} if way == "spare" else {}
    logits = {o: fed(opened(artifacts(family, way, o), how), prompt, tokens, slot=1) for o, how in levels.items()}
    assert np.array_equal(logits.get(1, logits[2]), logits[2])
    eager = EagerSnapStream(random_model(family), geometry(family, way))
    expected = torch.stack([eager.prefill(prompt), *(eager.decode(token) for token in tokens)]).numpy()
    tolerance = 1e-2 if way == "int8" else 1e-4
    for ours in logits.values():
        assert np.linalg.norm(ours - expected) <= tolerance * np.linalg.norm(expected)


def test_each_layer_is_as_if_all_had_its_budget() -> None:
    """Prefill attends to everything, so that what a layer keeps depends on its own budget alone."""
    prompt, family = random_tokens(40), "gemma3"
    ours = EagerSnapStream(random_model(family), geometry(family))
    ours.prefill(prompt)
    for layer, budget in zip((1, 3), BUDGETS[family], strict=True):
        alike = EagerSnapStream(random_model(family), replace(ALIKE, topk=budget))
        alike.prefill(prompt)
        assert torch.equal(ours.k_cache[layer], alike.k_cache[layer])
        assert torch.equal(ours.selected[layer], alike.selected[layer])
        assert ours.selected[layer].shape[1] == budget


def test_the_best_positions_of_a_larger_budget_contain_those_of_a_smaller_one(artifacts: Artifacts) -> None:
    """`selected` has room for the largest budget; each layer fills only the part of its own budget."""
    session = opened(artifacts("llama"))
    session.prefill(0, random_tokens(50))
    selected = session.interpreter.tensor("selected")
    assert [(layer >= 0).sum(-1).tolist() for layer in selected] == [[n] * 2 for n in BUDGETS["llama"]]
    more = opened(artifacts("llama", "alike"))
    more.prefill(0, random_tokens(50))
    for ours, theirs in zip(selected, more.interpreter.tensor("selected"), strict=True):
        for head in range(2):
            assert set(ours[head][ours[head] >= 0]) <= set(theirs[head])


@pytest.mark.parametrize(("family", "layers", "launches"), [("llama", 4, 3), ("gemma3", 4, 4)])
def test_layers_are_one_loop(family: str, layers: int, launches: int, artifacts: Artifacts) -> None:
    artifact = loaded(artifacts(family, "int8" if family == "gemma3" else "compact"))
    assert [record.layers for record in artifact.manifest.looping if record.looped] == [layers, layers]
    assert inspect_artifact(artifact).launches_per_token == launches
    if family == "llama":
        alike = loaded(artifacts(family, "alike"))
        assert len(artifact.program.kernels) == len(alike.program.kernels)


@pytest.mark.parametrize(
    ("way", "held", "read"),
    [
        # 4 layers with sinks and ring of 8; 11 rows behind those of the last one, which has 11 less than the first.
        ("compact", (4 * 8 + 27 + 11) * ROW, (4 * 8 + 27) * ROW),
        # 20 rows of the largest budget in each layer; 64 tokens are 10 chunks of 7.
        ("indexed", 4 * (20 + 70) * ROW, (4 * 8 + 27) * ROW),
    ],
)
def test_a_sequence_holds_the_sum_of_its_layers(way: str, held: int, read: int, artifacts: Artifacts) -> None:
    found = inspect_artifact(loaded(artifacts("llama", way)))
    assert (found.held_kv_bytes, found.kv_bytes) == (held, read)
    states = {tensor.name: tensor for tensor in found_states(artifacts("llama", way))}
    if way == "compact":
        assert states["k_cache"].shape == (BATCH, 2, held // ROW, 8)
    else:
        assert states["k_cache"].shape == (4, BATCH, 2, 20, 8)


def found_states(path: Path) -> list[Any]:
    return [tensor for tensor in loaded(path).program.tensors if tensor.role == "state"]


def test_inspect_prints_the_budgets(artifacts: Artifacts, capsys: pytest.CaptureFixture[str]) -> None:
    path = artifacts("gemma3", "int8")
    assert cli.main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert "cache      up to 17 rows = sink 2 + recent 6 + topk up to 9, for 64 tokens;" in text
    assert "2 of 5 layers: 4/2 heads of 8, 11 to 17 rows: sink 2, recent 6, top-K by layer 3 9\n" in text
    groups = json.loads((path / "manifest.json").read_text())["groups"]
    assert [group["geometry"].get("layer_topk") for group in groups] == [None, [3, 9]]


@pytest.mark.parametrize("way", WAYS)
def test_slots_are_apart_and_can_be_copied(way: str, artifacts: Artifacts) -> None:
    """Rows of layers lie side by side: no prompt and no step of another slot may reach them."""
    session = opened(artifacts("llama", way))
    prompt, tokens = random_tokens(40), random_tokens(9, seed=2)
    alone = fed(session, prompt, tokens, slot=1)
    session.prefill(1, prompt)
    snapshot = session.snapshot(1)
    assert snapshot.nbytes == session.snapshot_bytes(1)
    rows = []
    for token in tokens:
        session.prefill(0, random_tokens(20 + token % 30, seed=token))
        rows.append(session.decode({0: 5, 1: token})[1].copy())
    assert np.array_equal(np.stack(rows), alone[1:])
    session.restore(0, snapshot)
    assert all(np.array_equal(session.decode({0: t})[0], row) for t, row in zip(tokens, alone[1:], strict=True))


def test_goldens_are_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random_model("llama").save_pretrained(tmp_path / "m")
    words = "--kv-topk-per-layer pyramid:10,1 --kv-sink 2 --kv-recent 6 --max-context 64 --prefill-chunk 7".split()
    words += ["--save-golden", "--golden-tokens", "4", "-q", "--traceback"]
    assert cli.main(["compile", str(tmp_path / "m"), "-o", str(tmp_path / "a.rdu"), *words]) == 0
    golden = loaded(tmp_path / "a.rdu").golden()
    assert golden is not None
    assert [golden.tensors[f"selected.{layer}"].shape[1] for layer in range(4)] == [10, 7, 4, 1]
    assert cli.main(["run", str(tmp_path / "a.rdu"), "--check"]) == 0
    assert "17 golden tensors agree" in capsys.readouterr().err


def test_budgets_that_are_all_alike_are_one_number() -> None:
    assert ALIKE.with_layers((7, 7, 7)) == ALIKE
    around: dict[str, Any] = {"kv_sink": 2, "kv_recent": 6, "max_context": CONTEXT}
    shape = CompileOptions(Path("m"), kv_topk_per_layer="7,7", **around).resolve(None)
    plain = CompileOptions(Path("m"), kv_topk=7, **around).resolve(None)
    assert shape.geometry_of(2) == plain.geometry_of(2)


def test_budgets_for_another_number_of_layers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random_model("gemma3").save_pretrained(tmp_path / "m")
    words = ["compile", str(tmp_path / "m"), "-o", str(tmp_path / "a.rdu"), "--max-context", "64", "--no-weights"]
    assert cli.main([*words, "--kv-topk-per-layer", "1,2,3"]) == UsageError.exit_code
    said = capsys.readouterr().err
    assert all(word in said for word in ("--kv-topk-per-layer", "3 numbers", "2 layers"))


def test_a_dump_with_other_layers_than_budgets_is_refused(artifacts: Artifacts, tmp_path: Path) -> None:
    graph = artifacts("llama").with_name("llama.compact.f32.graph.mlir").read_text()
    assert "array<i64: 12, 5, 9, 1>" in graph
    (tmp_path / "g.mlir").write_text(graph.replace("array<i64: 12, 5, 9, 1>", "array<i64: 12, 5, 9>"))
    with raises(LevelErrors.GROUPS, cause=re.compile("3 .*budgets for 4 layers")):
        compile_model(CompileOptions(tmp_path / "g.mlir", tmp_path / "a.rdu", compile_from="graph", weights="none"))


def test_the_definition_selects_by_the_layer() -> None:
    g = ALIKE.with_layers((5, 2))
    scores = torch.rand(2, 40)
    for layer, count in enumerate((5, 2)):
        assert algorithm.select(scores, 40, g.of_layer(layer)).shape == (2, count)


def test_the_model_counts_the_rows_of_each_layer(artifacts: Artifacts) -> None:
    """A step reads the rows that each layer has, not the rows of the largest budget for all layers."""
    ours, alike = (inspect_artifact(loaded(artifacts("llama", way))) for way in ("compact", "alike"))
    rows = sum(8 + budget for budget in BUDGETS["llama"])
    assert alike.decode_traffic_bytes - ours.decode_traffic_bytes == BATCH * ROW * (4 * 28 - 4 * round(rows / 4))
