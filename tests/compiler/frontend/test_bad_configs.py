"""Configs that come from outside and that no model has: each is refused in words, before anything is allocated."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from sscc.compiler.driver.driver import CompilationErrors
from sscc.compiler.frontend import construction
from sscc.compiler.frontend.admission import AdmissionErrors
from sscc.compiler.frontend.capture import CaptureErrors, capture, stateful_operators
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.construction import ConstructionErrors, build_model, build_skeleton, canonical_names
from sscc.compiler.frontend.model_config import MAX_DEPTH, ModelConfigErrors, config_from_dict, parse_json
from sscc.ir.errors import ErrorKind
from tests.errors import check, raises, refusal, reported
from tests.families import SHAPE

LLAMA: dict[str, Any] = {"model_type": "llama", **SHAPE, "num_key_value_heads": 2}
SECONDS = 60.0  # of processor time: a hang would exceed it, a capture on a busy machine does not


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA | changes))
    return path


TOO_MANY_LAYERS, NOT_VALID = ModelConfigErrors.TOO_MANY_LAYERS, ModelConfigErrors.NOT_VALID
OVERFLOW = "Storage size calculation overflowed with sizes="
STATEFUL = AdmissionErrors.STATEFUL(model="rwkv")
BIASES = AdmissionErrors.LEARNED_BIASES(field="position_bias_num_buckets", value=512)


@pytest.mark.parametrize(
    ("changes", "kind", "fields"),
    [
        (
            {"rope_parameters": {"rope_type": ["yarn"], "rope_theta": 1e4}},
            AdmissionErrors.BAD_ROPE_TYPE,
            {"value": "['yarn']"},
        ),
        ({"num_hidden_layers": 2**63}, TOO_MANY_LAYERS, {"field": "num_hidden_layers", "layers": 2**63, "most": 1024}),
        ({"num_hidden_layers": 1025}, TOO_MANY_LAYERS, {"field": "num_hidden_layers", "layers": 1025, "most": 1024}),
        ({"num_hidden_layers": 0}, CaptureErrors.NO_LAYERS, {"model": "llama", "layers": 0}),
        ({"num_hidden_layers": -3}, CaptureErrors.NO_LAYERS, {"model": "llama", "layers": -3}),
        ({"hidden_size": 2**40}, ConstructionErrors.NOT_BUILT, {"cause": f"{OVERFLOW}[{2**40}, {2**40}]"}),
        (
            {"vocab_size": 2**50},
            ConstructionErrors.TOO_LARGE,
            {"largest": "model.embed_tokens.weight", "shape": [2**50, 32]},
        ),
        ({"intermediate_size": 2**60}, ConstructionErrors.NOT_BUILT, {"cause": f"{OVERFLOW}[{2**60}, 32]"}),
        ({"num_attention_heads": 0}, NOT_VALID, {"model": "llama", "cause": "integer division or modulo by zero"}),
        (
            {"pad_token_id": 96},
            ConstructionErrors.NOT_BUILT,
            {"type": "AssertionError", "hint": " (pad_token_id is 96, the vocabulary has 96 tokens)"},
        ),
        (
            {"hidden_act": "no-such-function"},
            ConstructionErrors.NOT_BUILT,
            {"type": "KeyError", "cause": "'no-such-function'"},
        ),
        ({"eos_token_id": -1}, ModelConfigErrors.BAD_TOKENS, {"field": "eos_token_id", "value": -1}),
        ({"eos_token_id": "x"}, NOT_VALID, {}),
        ({"max_position_embeddings": "many"}, NOT_VALID, {}),
        ({"model_type": "rwkv"}, AdmissionErrors.REFUSED, {"model": "rwkv", "reasons": [STATEFUL]}),
        ({"model_type": "cpmant"}, AdmissionErrors.REFUSED, {"model": "cpmant", "reasons": [BIASES]}),
        (
            {"model_type": "blt"},
            CompilationErrors.NOT_CAPTURED_BECAUSE,
            {"model": "blt", "reasons": [AdmissionErrors.NO_ATTENTION_INTERFACE()]},
        ),
        ({"model_type": ["llama"]}, ModelConfigErrors.NO_MODEL_TYPE, {}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_each_is_one_line_and_an_exit_code(
    changes: dict[str, Any], kind: ErrorKind, fields: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, **changes)
    start = time.process_time()
    error = reported(["compile", str(path), "--no-weights", "-o", str(tmp_path / "config.rdu"), "--max-context", "32"])
    assert time.process_time() - start < SECONDS
    assert capsys.readouterr().err.splitlines()[-1] == f"sscc: error: {error}"
    check(error, kind, **fields)
    if kind is NOT_VALID and "cause" not in fields:
        assert f"'{next(iter(changes))}'" in error.fields["cause"]
    assert not (tmp_path / "config.rdu").exists()


@pytest.mark.parametrize("auto_map", [False, {}, None, ["x"], {"AutoModelForCausalLM": "evil.Evil"}])
def test_auto_map_is_never_looked_at(auto_map: Any, tmp_path: Path) -> None:
    config = open_checkpoint(write(tmp_path, auto_map=auto_map), weights=False).config
    assert config is not None
    assert type(build_model(config, torch.float32)).__name__ == "LlamaForCausalLM"


def test_tables_larger_than_memory_are_refused_before_they_are_made() -> None:
    config = config_from_dict({"model_type": "gpt_bigcode", "n_positions": 1 << 17, "n_embd": 8, "n_head": 1}, "it")
    with raises(
        ConstructionErrors.LARGE_TABLES, size="16 GiB", most="1 GiB", table="transformer.bias", table_size="16 GiB"
    ):
        build_model(config, torch.float32)


def test_a_model_of_endless_parameters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(construction, "MAX_MODULE_PARAMETERS", 1000)
    config = config_from_dict({"model_type": "xmod", "languages": [str(i) for i in range(2000)], **SHAPE}, "it")
    with raises(ConstructionErrors.TOO_MANY_PARAMETERS, most=1000):
        build_skeleton(config)


@pytest.mark.parametrize("opening", ['{"a":', "["])
def test_json_that_is_nested_without_end(opening: str) -> None:
    closing = {"[": "]", '{"a":': "}"}[opening]

    def nested(depth: int) -> bytes:
        return ('{"x":' + opening * depth + "1" + closing * depth + "}").encode()

    assert parse_json(nested(MAX_DEPTH - 2), "it")
    for depth in (MAX_DEPTH, 400):
        with raises(ModelConfigErrors.TOO_DEEP):
            parse_json(nested(depth), "it")
    refused = refusal(parse_json, nested(100_000), "it")  # by Python's parser, or after it
    assert refused is not None
    assert refused.kind in (ModelConfigErrors.TOO_DEEP, ModelConfigErrors.NOT_JSON)


def test_a_config_that_holds_itself() -> None:
    """As a pickle may: its levels never end, and here each has twice the items of the one before."""
    values: dict[str, Any] = dict(LLAMA)
    values["one"] = values["other"] = values
    with raises(ModelConfigErrors.TOO_DEEP, depth=64):
        config_from_dict(values, "it")


def test_a_config_of_things_that_are_no_json() -> None:
    with raises(ModelConfigErrors.NOT_VALID, model="llama"):
        config_from_dict(LLAMA | {"extra": torch.zeros(1)}, "it")


def test_tied_parameters_have_the_name_that_a_checkpoint_holds() -> None:
    """Camembert registers its head first, and ties it to the embedding; the head's bias likewise."""
    config = config_from_dict({"model_type": "camembert", **SHAPE, "is_decoder": True, "pad_token_id": 1}, "it")
    names = canonical_names(build_skeleton(config))
    embedding = "roberta.embeddings.word_embeddings.weight"
    assert names["lm_head.decoder.weight"] == names[embedding] == embedding
    assert names["lm_head.decoder.bias"] == names["lm_head.bias"] == "lm_head.bias"
    untied = config_from_dict(LLAMA | {"tie_word_embeddings": False}, "it")
    names = canonical_names(build_skeleton(untied))
    assert names == {name: name for name in names}


def test_a_class_with_a_table_of_attentions_of_its_own() -> None:
    config = config_from_dict({"model_type": "gptj", "n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4}, "it")
    captured = capture(build_model(config, torch.float32), batch=1, chunk=4, max_context=32)
    for program in (captured.prefill, captured.decode):
        assert [layer for layer, _ in stateful_operators(program)] == [0, 1]
