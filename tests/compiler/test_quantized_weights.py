"""Programs with quantized weights, compared with eager PyTorch on the dequantized weights, and level by level."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM
from transformers.pytorch_utils import Conv1D

import sscc
from sscc.compiler.options.compile_options import OptionErrors
from sscc.compiler.tools.commands import cli
from sscc.ir.errors import ErrorKind
from sscc.ir.geometry import Geometry
from sscc.ir.operations import Dequantize
from sscc.ir.schedule import Body, Product, Program, pipelines
from sscc.ir.weight_formats.groups import GroupFormatErrors
from sscc.ir.weight_formats.registry import Encoding, format_named
from sscc.ir.weight_formats.weight_format import WeightFormat
from sscc.passes.pass_pipeline import PassPipelineErrors
from sscc.runtime.artifact.tensor_files import TensorErrors
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from sscc.runtime.support.quantization import round_trip
from tests.errors import check, one_line, raises
from tests.families import Compiler, random_model, random_tokens
from tests.oracles.independent import IndependentSnapStream
from tests.torch_session import TorchSession

CONTEXT = 64
G = Geometry(sink=2, recent=9, topk=7, obs=4, pool=3, pool_mode="avg", max_context=CONTEXT)
ROWS = {name: getattr(G, name.removeprefix("kv_")) for name in ("kv_sink", "kv_recent", "kv_topk", "kv_obs", "kv_pool")}
SHAPE: dict[str, Any] = {"max_context": CONTEXT, "prefill_chunk": 10, "batch": 2, **ROWS}
SLOW_MEMORY = {"hbm.bandwidth": 1e9}  # even these tiny weights are worth cutting into tiles
F32_TOLERANCE = 1e-5
"""||a - b|| / ||b|| of a step's logits. Weights are the same numbers in both; sums run in another order. Measured 2e-6
at most. The weights' own error is four orders above it."""

FORMATS = ["int8:16", "int4:16", "int4:16:zero-point"]
CASES = [("llama3-rope", "int8:16"), ("gpt2", "int4:16"), ("llama3-rope", "int4:16:zero-point")]
"""Llama's head is tied to the embedding, GPT-2's weights are [K, N]."""

DTYPES = ["f32", "bf16", "f32"]
GOLDEN: dict[str, Any] = {"save_golden": True, "golden_tokens": 4}

Build = Callable[..., Artifact]


@pytest.fixture(scope="module")
def build(compiled: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """`build(family, weights, **options)`: an artifact, compiled once, from a capture that all share."""
    folder, done = tmp_path_factory.mktemp("quantized"), dict[str, Artifact]()
    shape = {**SHAPE, "target": compiled.target(SLOW_MEMORY)}

    def build(family: str, weights: str, **options: Any) -> Artifact:
        key = repr((family, weights, sorted(options.items())))
        if key not in done:
            model, output = compiled.checkpoint(family), folder / f"{len(done)}.rdu"
            dump = folder / f"{family}.import.mlir"
            if not dump.exists():
                sscc.compile(model, output=dump, compile_to="import", **shape)
            options |= {"compile_from": "import", "checkpoint": model, "weights": weights}
            done[key] = Artifact.load(sscc.compile(dump, output=output, **options).path)
        return done[key]

    return build


def session(artifact: Artifact, **options: Any) -> TorchSession:
    return TorchSession(Session.from_artifact(artifact, interpreter="reference", **options))


def logits(running: TorchSession) -> Tensor:
    rows = [running.prefill(1, random_tokens(31))]
    rows += [running.decode({1: token})[1].clone() for token in random_tokens(5, seed=1)]
    return torch.stack([row.float() for row in rows])


def quantized_model(family: str, weight_format: WeightFormat) -> PreTrainedModel:
    """Return the model with the dequantized values in every weight of a product; the embedding is unchanged."""
    model = deepcopy(random_model(family))
    for module in model.modules():
        if not isinstance(module, torch.nn.Linear | Conv1D):
            continue
        encoding = Encoding(weight_format, "values", transposed=isinstance(module, Conv1D))
        weight = round_trip(module.weight.detach().numpy(), encoding)
        module.weight = torch.nn.Parameter(torch.from_numpy(np.ascontiguousarray(weight)), requires_grad=False)
    return model


def expected_logits(model: PreTrainedModel) -> Tensor:
    oracle = IndependentSnapStream(
        model, sink=G.sink, recent=G.recent, topk=G.topk, obs=G.obs, pool=G.pool, pool_mode=G.pool_mode
    )
    rows = [oracle.prefill(random_tokens(31))] + [oracle.decode(token) for token in random_tokens(5, seed=1)]
    return torch.stack(rows)


def difference(a: Tensor, b: Tensor) -> float:
    """The largest ||a - b|| / ||b|| of a row."""
    return float(((a - b).norm(dim=-1) / b.norm(dim=-1)).max())


# ------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize(("family", "weights"), CASES)
def test_programs_agree_with_eager_pytorch(family: str, weights: str, build: Build) -> None:
    expected = expected_logits(quantized_model(family, format_named(weights)))
    assert difference(logits(session(build(family, weights, **GOLDEN), checked=True)), expected) <= F32_TOLERANCE
    assert difference(expected_logits(random_model(family)), expected) > 100 * F32_TOLERANCE


@pytest.mark.parametrize(
    ("level", "family", "weights", "dtype"), [(level, *case, DTYPES[level]) for level, case in enumerate(CASES)]
)
def test_levels_agree(
    level: int, family: str, weights: str, dtype: str, compiled: Compiler, capsys: pytest.CaptureFixture[str]
) -> None:
    """The module after every pass, as the evaluator runs it, and the schedule. In bf16 numbers are rounded to it once,
    in every level at the same place."""
    model = str(compiled.checkpoint(family))
    rows = [f"--{name.replace('_', '-')}={value}" for name, value in ROWS.items()]
    arguments = [
        "bisect",
        model,
        f"-O{level}",
        "--weights",
        weights,
        "--prefill-chunk",
        "10",
        "--batch",
        "2",
        "--max-context",
        "64",
        "--dtype",
        dtype,
    ]
    assert cli.main([*arguments, *rows, "--target", compiled.target(SLOW_MEMORY)]) == 0
    assert f"all agree within {'0.05' if dtype == 'bf16' else '1e-05'}" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------- the schedule


def stored(program: Program) -> dict[str, tuple[str, tuple[int, ...], str]]:
    return {t.name: (t.dtype, t.shape, t.encoding) for t in program.tensors if t.role == "weight"}


def test_what_is_stored(build: Build) -> None:
    weights = stored(build("llama3-rope", "int4:16:zero-point").program)
    assert weights["model.embed_tokens.weight"] == ("f32", (96, 32), "")
    encoding = "int4:16:zero-point"
    assert weights["model.embed_tokens.weight.values"] == ("i8", (96, 16), f"{encoding}/values")
    assert weights["model.layers.0-1.mlp.down_proj.weight.values"] == ("i8", (2, 32, 24), f"{encoding}/values")
    assert weights["model.layers.0-1.mlp.down_proj.weight.scales"] == ("i8", (2, 32, 6), f"{encoding}/scales")
    assert weights["model.layers.0-1.mlp.down_proj.weight.zeros"] == ("i8", (2, 32, 3), f"{encoding}/zeros")
    assert weights["model.layers.0-1.input_layernorm.weight"] == ("f32", (2, 32), "")
    assert "model.layers.0-1.mlp.down_proj.weight" not in weights


@pytest.mark.parametrize("weights", FORMATS)
def test_numbers_exist_inside_of_stages_only(weights: str, build: Build) -> None:
    """No buffer and no tensor of memory holds a dequantized weight, or a tile of one."""
    plain = build("llama3-rope", "embed").program
    program = build("llama3-rope", weights).program
    slots = [buffer for kernel in program.kernels for pipeline in pipelines(kernel.body) for buffer in pipeline.buffers]
    assert {buffer.dtype for buffer in slots if ".weight.values" in buffer.name} == {"i8"}
    assert any(".weight.scales" in buffer.name for buffer in slots)
    assert not [buffer.name for buffer in slots if buffer.name.endswith("proj.weight")]
    temporaries = [sum(t.nbytes for t in p.tensors if t.role == "temporary") for p in (plain, program)]
    assert temporaries[0] == temporaries[1]
    assert len(forms(program)) >= 7


def forms(program: Program) -> list[tuple[Dequantize, Product]]:
    """Every product of a quantized weight, with the step that computes its second operand."""
    return [pair for body in program.bodies for pair in _forms_of(body)]


def _forms_of(body: Body) -> list[tuple[Dequantize, Product]]:
    roots = {window.name: window.view.tensor for window in body.windows}
    steps = {roots.get(step.out, step.out): step for step in body.steps if isinstance(step, Dequantize)}
    products = [step for step in body.steps if isinstance(step, Product)]
    pairs = [(steps.get(roots.get(step.b.param, step.b.param)), step) for step in products]
    return [(dequantize, product) for dequantize, product in pairs if dequantize is not None]


@pytest.mark.parametrize("weights", FORMATS)
def test_the_form_of_a_quantized_product(weights: str, build: Build) -> None:
    """Guarantees to a code generator: one step per weight with the parts of its format, then a product along one
    axis."""
    weight_format = format_named(weights)
    for dequantize, product in forms(build("llama3-rope", weights).program):
        assert dequantize.format == weight_format.name
        assert len(dequantize.parts) == len(weight_format.parts)
        assert np.prod([product.dims[dim] for dim in product.reduce]) % weight_format.block == 0


# --------------------------------------------------------------------------------------------------- artifacts


def test_weights_of_every_origin(build: Build, compiled: Compiler, tmp_path: Path) -> None:
    """Weights are embedded, referred to, or come from another checkpoint, which is quantized while it is loaded."""
    embedded, referred = build("llama3-rope", "int4:16"), build("llama3-rope", "reference,int4:16")
    assert embedded.manifest.weights.digest == referred.manifest.weights.digest
    expected = logits(TorchSession(sscc.load(embedded.path, interpreter="reference")))
    assert torch.equal(logits(TorchSession(sscc.load(referred.path, interpreter="reference"))), expected)
    other = tmp_path / "other"
    model = deepcopy(random_model("llama3-rope"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
    model.save_pretrained(other)
    changed = logits(TorchSession(sscc.load(embedded.path, checkpoint=other, interpreter="reference")))
    result = sscc.compile(
        other, output=tmp_path / "other.rdu", weights="int4:16", target=compiled.target(SLOW_MEMORY), **SHAPE
    )
    assert torch.equal(changed, logits(TorchSession(sscc.load(result.path, interpreter="reference"))))
    assert difference(changed, expected) > 0.01


@pytest.mark.parametrize(("family", "weights"), CASES)
def test_goldens_are_of_the_quantized_weights(family: str, weights: str, build: Build) -> None:
    """Within the tolerance of any golden, although the model itself is far from it."""
    artifact = build(family, weights, **GOLDEN)
    words = ["--check", "--interpreter", "reference", "--threads", "1"]
    assert cli.main(["run", str(artifact.path), *words]) == 0
    golden = artifact.golden()
    assert golden is not None
    with torch.no_grad():
        plain = random_model(family)(torch.tensor([golden.prompt])).logits[0, -1].numpy()
    assert np.linalg.norm(golden.tensors["prefill_logits"] - plain) > 1e-3 * np.linalg.norm(plain)


def test_the_report(compiled: Compiler, tmp_path: Path) -> None:
    model = compiled.checkpoint("llama3-rope")
    lines = sscc.compile(model, output=tmp_path / "a.rdu", weights="int4:32", **SHAPE).report
    summary, *kinds = lines[3:]
    # 72 KiB without the 12 of down_proj, whose rows of 48 no group of 32 fits; of these 4.5 / 32 are left.
    beginning = "quantized: int4:32, 8.438 KiB instead of 60 KiB, 4.50 bits per weight; ||W' - W|| / ||W|| = "
    assert summary.startswith(beginning)
    names = [line.split()[0] for line in kinds]
    assert names[0] == "model.embed_tokens.weight"
    assert "model.layers.*.mlp.gate_proj.weight" in names
    assert any("at most" in line and "(model.layers." in line for line in kinds)
    assert kinds[-2:] == [
        "  model.embed_tokens.weight stays f32: it is used for look-ups; matmuls use a quantized copy",
        "  model.layers.*.mlp.down_proj.weight stays f32: it is not only used in matmuls, or groups of 32 do not "
        "divide [32, 48]",
    ]


def test_from_the_config_alone(compiled: Compiler, tmp_path: Path) -> None:
    config = compiled.checkpoint("llama3-rope") / "config.json"
    result = sscc.compile(config, output=tmp_path / "a.rdu", weights="none,int8:16", **SHAPE)
    assert result.report[3] == "quantized: int8:16, 20.25 KiB instead of 72 KiB, 9.00 bits per weight"


def test_a_weight_that_is_not_finite_is_named(build: Build, tmp_path: Path) -> None:
    model = deepcopy(random_model("llama3-rope"))
    model.model.layers[1].mlp.up_proj.weight.data[3, 4] = float("inf")
    model.save_pretrained(tmp_path / "bad")
    result = build("llama3-rope", "int8:16")
    with raises(TensorErrors.NOT_ENCODED, tensor="model.layers.1.mlp.up_proj.weight"):
        sscc.load(result.path, checkpoint=tmp_path / "bad", interpreter="reference")


# ------------------------------------------------------------------------------------------------------- options


def test_dumps_remember_the_format(compiled: Compiler, tmp_path: Path) -> None:
    model = compiled.checkpoint("llama3-rope")
    graph, whole = tmp_path / "graph.mlir", tmp_path / "whole.rdu"
    sscc.compile(model, output=graph, weights="int8:16", compile_to="graph", **SHAPE)
    sscc.compile(model, output=whole, weights="int8:16", **SHAPE)
    resumed = sscc.compile(graph, output=tmp_path / "resumed.rdu", compile_from="graph", checkpoint=model)
    schedules = [json.loads((path / "schedule.json").read_text()) for path in (whole, resumed.path)]
    assert schedules[0] == schedules[1]
    with raises(PassPipelineErrors.STORED_WEIGHTS, stored="int8:16", weights="int4:16"):
        sscc.compile(graph, output=tmp_path / "x", compile_from="graph", checkpoint=model, weights="int4:16")


def test_a_dump_with_entries_cannot_be_quantized(compiled: Compiler, tmp_path: Path) -> None:
    model, graph = compiled.checkpoint("llama3-rope"), tmp_path / "graph.mlir"
    sscc.compile(model, output=graph, compile_to="graph", **SHAPE)
    with raises(PassPipelineErrors.PLAIN_WEIGHTS, weights="int4:32"):
        sscc.compile(graph, output=tmp_path / "x", compile_from="graph", checkpoint=model, weights="int4")


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        ("embed,reference", OptionErrors.WEIGHTS_TWICE, {"first": "embed", "second": "reference"}),
        ("int8,int4", OptionErrors.WEIGHTS_TWICE, {"first": "int8", "second": "int4"}),
        ("int5", GroupFormatErrors.UNKNOWN, {"text": "int5"}),
        (
            "copy",
            OptionErrors.UNKNOWN_WEIGHTS,
            {"word": "copy"},
        ),
        ("int4:33", GroupFormatErrors.GROUP, {"group": 33}),
    ],
)
def test_options_that_make_no_sense(
    text: str, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(one_line(["compile", str(tmp_path), "--weights", text], capsys), kind, **fields)


# ---------------------------------------------------------------------------------------------------- biased linears


@pytest.mark.parametrize(("weights", "opt_level"), [("int8", 0), ("int4", 2)])
def test_no_matrix_stays_but_one_that_is_looked_up(weights: str, opt_level: int, tmp_path: Path) -> None:
    """Queries, keys and values have biases, which a product of bf16 is widened for."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = Qwen2ForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.to(torch.bfloat16).save_pretrained(tmp_path / "model")
    options: dict[str, Any] = {**SHAPE, "weights": weights, "dtype": "bf16", "opt_level": opt_level, **GOLDEN}
    artifact = Artifact.load(sscc.compile(tmp_path / "model", output=tmp_path / "x.rdu", **options).path)
    stays = {
        source
        for stack in artifact.layout.values()
        if not stack.encoding and len(stack.source.shape) > 1
        for source in stack.sources
    }
    assert stays == {"model.embed_tokens.weight"}
    for interpreter in ("reference", "native"):
        assert cli.main(["run", str(artifact.path), "--check", "--interpreter", interpreter]) == 0
