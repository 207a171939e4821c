"""Models that capture refuses, and the captured IR: without weights, with a source line for every operation."""

from __future__ import annotations

import json
import logging
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_mlir import ir
from transformers import AutoModelForCausalLM, DiffLlamaConfig, FalconConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from sscc.compiler.driver.driver import CompilationErrors, compile_model
from sscc.compiler.frontend import capture as frontend
from sscc.compiler.frontend.admission import AdmissionErrors
from sscc.compiler.frontend.capture import CaptureErrors, capture, check_attention, check_tables
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.construction import build_model
from sscc.compiler.frontend.probe import PROBE_TOLERANCE, ProbeErrors, probe
from sscc.compiler.options.compile_options import CompileOptions
from sscc.ir.context import mlir, parse_module
from sscc.ir.dialects import df
from sscc.ir.errors import ErrorKind
from sscc.ir.geometry import Geometry
from sscc.ir.levels import MAX_LITERAL_BYTES, walk
from sscc.ir.locations import module_path
from sscc.ir.rewriting import functions
from sscc.passes.split_layers import SplitLayersErrors
from sscc.runtime.artifact.tensor_files import TensorSpec
from sscc.runtime.session.artifact import Artifact, ArtifactErrors
from sscc.runtime.session.session import Session
from tests.compiler.frontend.strange import StrangeConfig
from tests.errors import Like, check, like, one_line, raises
from tests.families import FAMILIES, SHAPE, Compiler

CACHE: dict[str, Any] = {"kv_sink": 2, "kv_recent": 6, "kv_topk": 4, "kv_obs": 4, "kv_pool": 3, "max_context": 32}
GEOMETRY = Geometry(2, 6, 4, 4, 3, "avg", 32)
SOURCE_LINE = re.compile(r'"transformers/(models/llama/modeling_llama|activations)\.py":\d+')


def write_config(config: PreTrainedConfig, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(config.to_dict()))
    return path


def compile_config(config: PreTrainedConfig, folder: Path, **options: Any) -> Path:
    """Compiles a bare config without weights; the path of the result."""
    output = folder / "out"
    model = write_config(config, folder)
    compile_model(CompileOptions(model=model, output=output, weights="none", prefill_chunk=8, **{**CACHE, **options}))
    return output


def strange(twist: str) -> StrangeConfig:
    return StrangeConfig(**SHAPE, num_key_value_heads=2, twist=twist)


# --------------------------------------------------------------------------------------------------- refusals


BYPASSES = like(CaptureErrors.LAYERS_BYPASS, total=2, layers=[1])
ATTENDS_TWICE = like(CaptureErrors.LAYERS_ATTEND_TWICE, total=2, layers=[1])


@pytest.mark.parametrize(
    ("twist", "kind", "fields"),
    [
        ("without-attention", CompilationErrors.NOT_CAPTURED, {"cause": BYPASSES}),
        ("own-attention", CompilationErrors.NOT_CAPTURED, {"cause": BYPASSES}),
        ("two-attentions", CompilationErrors.NOT_CAPTURED, {"cause": ATTENDS_TWICE}),
        ("token-ids", SplitLayersErrors.READS_EMBEDDING, {"stage": "layer 1"}),
        ("state", CompilationErrors.NOT_CAPTURED, {"cause": like(CaptureErrors.STATE, name="model.layers.1.calls")}),
        ("own-positions", CaptureErrors.COUNTS_TOKENS, {"module": "model"}),
        ("table-positions", CaptureErrors.COUNTS_TOKENS, {"module": "model"}),
    ],
)
def test_layers_that_are_not_understood_are_refused(
    twist: str, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path
) -> None:
    with raises(kind, **fields):
        compile_config(strange(twist), tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_refusal_of_prefill_comes_before_decode_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, export = [], frontend._export

    def noted(entry: Any, shape: tuple[int, int], *arguments: Any) -> frontend.Captured:
        shapes.append(shape)
        return export(entry, shape, *arguments)

    monkeypatch.setattr(frontend, "_export", noted)
    with raises(CompilationErrors.NOT_CAPTURED, cause=ATTENDS_TWICE):
        compile_config(strange("two-attentions"), tmp_path)
    assert shapes == [(1, 8)]


def test_a_decoder_of_ones_own_that_keeps_the_rules_compiles(tmp_path: Path) -> None:
    assert Artifact.load(compile_config(strange("none"), tmp_path)).signature.layers == 2


def strange_checkpoint(twist: str, folder: Path) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(strange(twist)).save_pretrained(folder)
    return folder


def test_the_probe_finds_a_bias_that_the_attention_interface_never_sees(tmp_path: Path) -> None:
    """The graph of this model is that of a plain decoder: only a run of both shows the difference."""
    options = {**CACHE, "prefill_chunk": 8}
    honest = strange_checkpoint("none", tmp_path / "honest")
    compile_model(CompileOptions(model=honest, output=tmp_path / "honest.rdu", **options))
    biased = strange_checkpoint("hidden-bias", tmp_path / "biased")
    with raises(ProbeErrors.CAPTURED_DIFFERS, tokens=24):
        compile_model(CompileOptions(model=biased, output=tmp_path / "biased.rdu", **options))
    assert not (tmp_path / "biased.rdu").exists()


@pytest.mark.parametrize("twist", ["counting-besides", "token-shift"])
def test_the_probe_finds_what_only_pieces_show(twist: str, tmp_path: Path) -> None:
    """Over a whole text these models give the results of the untouched ones, but a compiled program runs chunks and
    steps."""
    checkpoint = open_checkpoint(strange_checkpoint(twist, tmp_path / "model"))
    with raises(ProbeErrors.PIECES_DIFFER, tokens=24):
        probe(checkpoint, torch.float32, GEOMETRY, 96)


@pytest.mark.parametrize("twist", ["no-positions", "skip-connection"])
def test_what_only_looks_strange_compiles(twist: str, tmp_path: Path) -> None:
    """A layer may read what the embedding made, and a model may look at no positions."""
    model = strange_checkpoint(twist, tmp_path / "model")
    compile_model(CompileOptions(model=model, output=tmp_path / "out.rdu", prefill_chunk=8, **CACHE))
    assert Artifact.load(tmp_path / "out.rdu").signature.layers == 2


@pytest.mark.parametrize("model_type", ["bart", "pegasus", "marian"])
def test_decoders_that_count_their_positions_are_given_them(model_type: str, tmp_path: Path) -> None:
    """They attend through transformers' interface, once per layer, and take `position_ids` without a word."""
    sizes = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "vocab_size": 96}
    sizes |= {"pad_token_id": 0, "max_position_embeddings": 64}
    config = CONFIG_MAPPING[model_type](**sizes, is_decoder=True, is_encoder_decoder=False)
    assert Artifact.load(compile_config(config, tmp_path)).signature.layers == 2


WHISPER = {
    **{"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "vocab_size": 96},
    **{"encoder_layers": 1, "encoder_attention_heads": 4, "max_target_positions": 24, "is_encoder_decoder": False},
    "eos_token_id": None,
}


def test_a_context_beyond_a_table_of_positions(tmp_path: Path) -> None:
    """If the config does not state the context, the tables of positions limit it; weights are read up to the limit."""
    config = CONFIG_MAPPING["whisper"](**WHISPER, pad_token_id=0)
    short = {**CACHE, "max_context": 24}
    captured = capture(build_model(config, torch.float32), batch=1, chunk=8, max_context=24)
    check_tables(captured.prefill, 24)
    with raises(CaptureErrors.TABLE_TOO_SHORT, context=25, rows=24):
        check_tables(captured.prefill, 25)
    assert Artifact.load(compile_config(config, tmp_path, **short)).signature.layers == 2
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    checkpoint = open_checkpoint(tmp_path / "model")
    geometry = replace(GEOMETRY, max_context=24)
    probe(checkpoint, torch.float32, geometry, 96)
    with raises(ProbeErrors.CONTEXT, context=25):
        probe(checkpoint, torch.float32, replace(geometry, max_context=25), 96)


@pytest.mark.parametrize("model_type", ["roberta", "camembert", "ernie", "roc_bert"])
def test_what_is_looked_up_at_a_position_is_no_position(model_type: str) -> None:
    """Types of tokens are read at the positions, and a table of two rows at the types."""
    config = CONFIG_MAPPING[model_type](**{**SHAPE, "max_position_embeddings": 64, "is_decoder": True})

    def check(prefill: frontend.Captured) -> None:
        """Ends the capture before decode is exported."""
        check_tables(prefill, 64)
        check_tables(prefill, 65)

    with raises(CaptureErrors.TABLE_TOO_SHORT, context=65, rows=64):
        capture(build_model(config, torch.float32), batch=1, chunk=8, max_context=64, check=check)


def test_a_shape_that_depends_on_values_is_named(tmp_path: Path) -> None:
    config = CONFIG_MAPPING["xmod"](**SHAPE, is_decoder=True, default_language="en_XX")
    cause = like(CaptureErrors.SHAPE_NOT_STATIC, module="roberta.encoder.layer.0.output")
    reasons = [like(AdmissionErrors.LANGUAGE_ADAPTERS, languages=["en_XX"])]
    with raises(CompilationErrors.NOT_CAPTURED_BECAUSE, reasons=reasons, cause=cause):
        compile_config(config, tmp_path)


def test_where_bf16_rounds_too_much_the_probe_decides_in_f32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROBE_TOLERANCE, torch.bfloat16, 0.0)
    honest = strange_checkpoint("none", tmp_path / "honest")
    probe(open_checkpoint(honest), torch.bfloat16, GEOMETRY, 96)
    biased = strange_checkpoint("hidden-bias", tmp_path / "biased")
    with raises(ProbeErrors.CAPTURED_DIFFERS, difference=re.compile("at most 1e-03 is rounding")):
        probe(open_checkpoint(biased), torch.bfloat16, GEOMETRY, 96)


SILENT: dict[str, tuple[PreTrainedConfig, ErrorKind, Like]] = {
    "falcon": (  # rounds the slopes, and so the addends of its scores, to bf16
        FalconConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=16, alibi=True),
        CompilationErrors.NOT_CAPTURED_BECAUSE,
        like(CaptureErrors.LAYERS_BYPASS, total=2, layers=[0, 1]),
    ),
    "diffllama": (
        DiffLlamaConfig(
            vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2,
        ),
        CompilationErrors.NOT_CAPTURED,
        like(CaptureErrors.LAYERS_ATTEND_TWICE, total=2, layers=[0, 1], calls=2),
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_models_that_would_export_and_be_wrong_are_refused(name: str, tmp_path: Path) -> None:
    config, kind, cause = SILENT[name]
    with raises(kind, cause=cause) as caught:
        compile_config(config, tmp_path)
    assert caught.value.exit_code == 3
    reasons = caught.value.fields.get("reasons", [])
    assert (AdmissionErrors.ALIBI.code in [reason["kind"] for reason in reasons]) == (name == "falcon")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["falcon", "diffllama"])
def test_capture_alone_would_refuse_them_too(name: str) -> None:
    """The second line of defence: a model like these that admission does not recognise."""
    config, _, refusal = SILENT[name]
    with raises(refusal.kind, **refusal.fields):
        capture(
            build_model(config, torch.float32), batch=1, chunk=8, max_context=32,
            check=lambda prefill: check_attention(prefill, 2),
        )  # fmt: skip


def test_of_a_failed_export_nothing_is_printed_but_our_line(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch logs to the stderr at the time of its import; here its log is redirected to this test's stderr."""
    for logger in map(logging.getLogger, [*logging.root.manager.loggerDict]):
        for handler in logger.handlers:
            if type(handler) is logging.StreamHandler:  # pytest's handlers only record
                monkeypatch.setattr(handler, "stream", sys.stderr)
    model = write_config(strange("wrong-shapes"), tmp_path)
    error = one_line(["compile", str(model), "--no-weights", "-q", "-o", str(tmp_path / "out")], capfd)
    check(error, CompilationErrors.NOT_CAPTURED, model="strange", cause=CaptureErrors.NOT_EXPORTED)
    assert [str(warning.message) for warning in recwarn] == []


# ------------------------------------------------------------------------------------------ without any weights


def sources(artifact: Artifact) -> dict[str, TensorSpec]:
    """Return the tensors that a checkpoint must contain to run on the artifact."""
    return {name: stack.source for stack in artifact.layout.values() for name in stack.sources}


def test_a_bare_config_compiles_and_has_no_weights(tmp_path: Path) -> None:
    artifact = Artifact.load(compile_config(FAMILIES["llama"], tmp_path))
    assert artifact.signature.vocab_size == 96
    assert "lm_head.weight" in sources(artifact)
    with raises(ArtifactErrors.NO_WEIGHTS):
        Session.from_artifact(artifact)


@pytest.mark.usefixtures("exports_anew")
def test_the_same_program_with_and_without_weights(compiled: Compiler, tmp_path: Path) -> None:
    """Weights are arguments: a checkpoint without weights gives the same schedule."""
    bare = compile_config(FAMILIES["qwen2"], tmp_path)
    full = tmp_path / "full.rdu"
    model = compiled.checkpoint("qwen2")
    compile_model(CompileOptions(model=model, output=full, prefill_chunk=8, **CACHE))
    assert (bare / "schedule.json").read_bytes() == (full / "schedule.json").read_bytes()


def test_a_model_too_large_to_load_can_be_studied(tmp_path: Path) -> None:
    """Two layers of a 70B model, 7.6 GB in f32: none of it is ever touched."""
    sizes = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "vocab_size": 32000}
    config = CONFIG_MAPPING["llama"](**(SHAPE | sizes), num_key_value_heads=8)
    text = compile_config(config, tmp_path, compile_to="graph").read_text()
    assert "tensor<28672x8192xf32>" in text
    assert len(text) < 500_000


# ------------------------------------------------------------------------------------------------- in the IR


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Name -> text of every dump of a model with constants, biases, norms and tied embeddings."""
    folder = tmp_path_factory.mktemp("dumps")
    compile_config(FAMILIES["llama3-rope"], folder, dump_ir_dir=folder / "ir")
    return {path.name: path.read_text() for path in sorted((folder / "ir").glob("*.mlir"))}


def test_no_weight_is_in_the_ir(dumps: dict[str, str]) -> None:
    assert len(dumps) >= 6
    with mlir():
        for name, text in dumps.items():
            assert "dense_resource" not in text, name
            module = parse_module(text, name)
            for op in walk(module):
                literals = [op.attributes[key] for key in op.attributes]
                sizes = [len(str(value)) for value in literals if isinstance(value, ir.DenseElementsAttr)]
                assert max(sizes, default=0) <= MAX_LITERAL_BYTES, f"{name}: {op.name}"


def test_every_operation_of_the_graph_keeps_its_line_in_the_model(dumps: dict[str, str]) -> None:
    """Whatever works on tensors inside a part of the model. Not: constants, which operations share, the bodies of named
    linalg operations, which their text does not show, and the entries and phases, which are the compiler's own."""
    graph = next(text for name, text in dumps.items() if "build-entries" in name)
    seen, count = set(), 0
    with mlir():
        module = parse_module(graph, "graph")
        names = {function.name.value: function for function in functions(module)}
        parts = [function for name, function in names.items() if "." in name and ".phase." not in name]
        for op in [op.operation for part in parts for op in part.entry_block.operations]:
            if op.name in ("func.return", "arith.constant"):
                continue
            location = str(op.location)
            assert SOURCE_LINE.search(location), f"{op.name} {location}"
            seen.add(module_path(op.location))
            count += 1
    assert count > 300
    assert {"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj", "model.norm", "lm_head"} <= seen


def test_every_body_of_a_placed_program_names_its_line_in_the_model(dumps: dict[str, str]) -> None:
    placed = next(text for name, text in dumps.items() if "place-stages" in name)
    with mlir():
        module = parse_module(placed, "placed")  # its operations live as long as it does
        bodies = [f for f in functions(module) if df.BODY in f.attributes]
        assert len(bodies) > 20
        for body in bodies:
            assert SOURCE_LINE.search(str(body.location)), f"{body.name.value} {body.location}"


def test_the_vocabulary_and_the_weights_are_the_models(tmp_path: Path) -> None:
    families = ("llama", "llama3-rope")
    program, tied = (Artifact.load(compile_config(FAMILIES[name], tmp_path / name)) for name in families)
    assert program.signature.vocab_size == 96
    assert sources(program)["model.embed_tokens.weight"].shape == (96, 32)
    assert "lm_head.weight" in sources(program)
    assert "lm_head.weight" not in sources(tied)
