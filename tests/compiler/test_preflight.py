"""Refusals that need no captured model come before the capture, which takes minutes where a model is large."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.driver import driver
from sscc.compiler.driver.driver import CompilationErrors, compile_model
from sscc.compiler.driver.preflight import PreflightErrors
from sscc.compiler.frontend.admission import AdmissionErrors
from sscc.compiler.frontend.checkpoint import CheckpointErrors, open_checkpoint
from sscc.compiler.frontend.special_tokens import TokenErrors
from sscc.compiler.options.compile_options import CompileOptions
from sscc.compiler.options.layer_topk import LayerTopkErrors
from sscc.ir.errors import ErrorKind, InputError, OutputError, SsccError, UsageError
from sscc.ir.files import FileErrors
from sscc.passes.pass_pipeline import PassPipelineErrors
from sscc.runtime.artifact.artifact_files import MANIFEST
from tests.errors import check
from tests.models.tiny_llama import END, byte_tokenizer, save_tiny_llama


@pytest.fixture(autouse=True)
def capturing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the model was captured")

    monkeypatch.setattr(driver, "capture", refuse)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_llama(tmp_path / "model", tokenizer=byte_tokenizer(), max_position_embeddings=64)


def refused(error: type[SsccError], model: Path, **options: Any) -> SsccError:
    options = {"output": model.parent / "out.rdu", "native_code": False} | options
    with pytest.raises(error) as caught:
        compile_model(CompileOptions(model, **options))
    assert not (model.parent / "out.rdu").exists()
    return caught.value


def edit(path: Path, **values: Any) -> None:
    held = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(held | values))


# ------------------------------------------------------------------------------------------------------------ outputs


def a_file(path: Path) -> Path:
    path.write_text("mine")
    return path


def a_folder(path: Path) -> Path:
    path.mkdir()
    (path / "mine").write_text("")
    return path


def a_locked_folder(path: Path) -> Path:
    path.mkdir(mode=0o500)
    return path / "x.rdu"


OUTPUTS: dict[str, tuple[Callable[[Path], dict[str, Any]], ErrorKind | None]] = {
    "no folder": (lambda p: {"output": p / "nowhere" / "x.rdu"}, PreflightErrors.NO_FOLDER),
    "below a file": (lambda p: {"output": a_file(p / "file") / "x.rdu"}, PreflightErrors.NOT_A_FOLDER),
    "a file": (lambda p: {"output": a_file(p / "file")}, None),
    "a folder of another kind": (lambda p: {"output": a_folder(p / "folder")}, None),
    "text in a folder's place": (
        lambda p: {"output": a_folder(p / "folder"), "compile_to": "graph"},
        PreflightErrors.IS_A_FOLDER,
    ),
    "text in no folder": (
        lambda p: {"output": p / "nowhere" / "x.mlir", "compile_to": "graph"},
        PreflightErrors.NO_FOLDER,
    ),
    "dumps below a file": (lambda p: {"dump_ir_dir": a_file(p / "file") / "a" / "b"}, PreflightErrors.NOT_A_FOLDER),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_outputs_that_cannot_be_written(case: str, model: Path, tmp_path: Path) -> None:
    options, kind = OUTPUTS[case]
    error = refused(OutputError, model, **options(tmp_path))
    if kind is not None:
        check(error, kind)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_that_may_not_be_written(model: Path, tmp_path: Path) -> None:
    check(refused(OutputError, model, output=a_locked_folder(tmp_path / "locked")), PreflightErrors.NO_PERMISSION)


def test_an_output_that_may_not_be_written_as_the_system_says(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    check(refused(OutputError, model), PreflightErrors.NO_PERMISSION, folder=tmp_path)


# ------------------------------------------------------------------------------------------------------------ options


def test_a_pass_that_does_not_exist(model: Path) -> None:
    check(refused(UsageError, model, print_ir_after=("nosuch",)), PassPipelineErrors.UNKNOWN_PASS, name="nosuch")


def test_weights_that_are_stored_as_numbers_cannot_be_kept(model: Path) -> None:
    from sscc.ir.weight_formats.registry import KEEP

    check(refused(UsageError, model, weight_format=KEEP), PreflightErrors.NOTHING_TO_KEEP, path=model)


def test_as_many_budgets_as_layers(model: Path) -> None:
    error = refused(UsageError, model, kv_topk_per_layer="4,4,4", kv_sink=1, kv_recent=40)
    check(error, LayerTopkErrors.OTHER_LAYERS, numbers=3, layers=2)


def test_a_rule_that_has_nothing_to_select(model: Path) -> None:
    from sscc import Policy

    class Sums(Policy):
        def scores(self, prompt: Any) -> Any:
            return prompt.keys.sum(-1)

    error = refused(UsageError, model, kv_policy=Sums, kv_topk=0, kv_sink=1, kv_recent=40)
    check(error, CompilationErrors.NOTHING_TO_SELECT, rule="Sums")


# ------------------------------------------------------------------------------------------------------------- golden


def test_a_golden_prompt_is_read_first(model: Path, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt"
    golden: dict[str, Any] = {"save_golden": True, "golden_prompt_file": prompt}
    check(refused(InputError, model, **golden), FileErrors.CANNOT_READ, path=prompt)
    prompt.write_text("a" * 60)
    check(refused(UsageError, model, **golden), PreflightErrors.GOLDEN_TOO_LONG, prompt=60, tokens=16, context=64)
    error = refused(UsageError, model, save_golden=True, golden_tokens=64)
    check(error, PreflightErrors.NO_ROOM_FOR_GOLDEN, tokens=64, context=64)
    (model / "tokenizer.json").unlink()
    check(refused(UsageError, model, **golden), PreflightErrors.NO_TOKENIZER)


def test_a_golden_prompt_with_a_token_that_the_model_lacks(model: Path, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|new|>"])
    tokenizer.save(str(model / "tokenizer.json"))
    (tmp_path / "prompt").write_text("ab<|new|>")
    error = refused(UsageError, model, save_golden=True, golden_prompt_file=tmp_path / "prompt")
    check(error, PreflightErrors.UNKNOWN_TOKEN, token=END + 1, text="<|new|>", last=END)


# --------------------------------------------------------------------------------------------------------- checkpoint


def test_tokens_beyond_the_vocabulary(model: Path) -> None:
    edit(model / "generation_config.json", eos_token_id=END + 1)
    check(refused(InputError, model), TokenErrors.END_BEYOND_VOCABULARY, token=END + 1, last=END)


def test_a_parameter_of_another_shape(model: Path) -> None:
    edit(model / "config.json", intermediate_size=48)
    gate = {"tensor": "model.layers.0.mlp.gate_proj.weight", "shape": "[64, 32]", "expected": "[48, 32]"}
    check(refused(InputError, model), CheckpointErrors.SHAPES_DIFFER, path=model, count=6, **gate)


def test_a_parameter_that_is_missing(model: Path) -> None:
    edit(model / "config.json", num_hidden_layers=3)
    error = refused(InputError, model)
    check(error, CheckpointErrors.PARAMETERS_MISSING, path=model, count=9)
    assert all(name.startswith("model.layers.2.") for name in error.fields["names"])


def test_a_context_beyond_the_model_s(model: Path) -> None:
    check(refused(UsageError, model, max_context=65), AdmissionErrors.CONTEXT_TOO_LONG, context=65, limit=64)


def test_an_artifact_is_no_model(tmp_path: Path) -> None:
    from sscc.compiler.frontend.model_config import ModelConfigErrors

    folder = tmp_path / "model"
    folder.mkdir()
    (folder / MANIFEST).write_text('{"format": 1, "sscc": "1"}')
    check(refused(UsageError, folder), ModelConfigErrors.ARTIFACT, path=folder)
    with pytest.raises(UsageError) as caught:
        open_checkpoint(folder / MANIFEST, weights=False)
    check(caught.value, ModelConfigErrors.ARTIFACT, path=folder)
