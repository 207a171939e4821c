"""Contents of a checkpoint: its digest, its dtype, missing and additional tensors, and names with a prefix."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from sscc.compiler.frontend import checkpoint as checkpoint_module
from sscc.compiler.frontend import exported
from sscc.compiler.frontend.checkpoint import Checkpoint, CheckpointErrors, check_names, open_checkpoint, pack
from sscc.compiler.frontend.sources import DictSource
from sscc.ir.errors import ErrorKind
from tests.compiler.frontend.test_checkpoint import K_PROJ, SIZES, save_tokenizer, tiny_llama
from tests.errors import raises

CONFIG = LlamaConfig(**SIZES)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NO_WEIGHTS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.float8_e4m3fn,
              torch.complex64)  # fmt: skip


def holding(tensors: Mapping[str, torch.Tensor], config: LlamaConfig = CONFIG) -> Checkpoint:
    return Checkpoint(Path("model"), config, None, DictSource(tensors), dict)


def shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def save_folder(folder: Path, tensors: Mapping[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG.to_dict() | config))
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, str(folder / "model.safetensors"))
    return folder


# ------------------------------------------------------------------------------------------------------------ digest


def test_a_digest_covers_config_and_weights(tmp_path: Path) -> None:
    state = tiny_llama().state_dict()
    one = open_checkpoint(save_folder(tmp_path / "one", state)).digest
    assert len(bytes.fromhex(one)) == 32
    assert (
        open_checkpoint(save_folder(tmp_path / "same", state, transformers_version="1", _name_or_path="x")).digest
        == one
    )
    others = {
        "config": save_folder(tmp_path / "config", state, rms_norm_eps=1e-3),
        "value": save_folder(tmp_path / "value", state | {K_PROJ: state[K_PROJ] + 1e-3}),
        "dtype": save_folder(tmp_path / "dtype", state | {K_PROJ: state[K_PROJ].double()}),
        "extra": save_folder(tmp_path / "extra", state | {"extra": torch.ones(1)}),
        "missing": save_folder(tmp_path / "missing", {name: state[name] for name in state if name != K_PROJ}),
    }
    digests = {kind: open_checkpoint(folder).digest for kind, folder in others.items()}
    assert len({one, *digests.values()}) == 1 + len(others), digests
    assert open_checkpoint(tmp_path / "one", weights=False).digest not in {one, *digests.values()}


def test_a_digest_covers_no_tokenizer(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "one", tiny_llama().state_dict())
    before = open_checkpoint(folder).digest
    save_tokenizer(folder)
    assert open_checkpoint(folder).digest == before


# ------------------------------------------------------------------------------------------------------------ dtypes


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_float_is_a_weight(dtype: torch.dtype) -> None:
    tensors = {"a.weight": torch.ones(2, dtype=dtype)}
    checkpoint = holding(tensors)
    check_names(checkpoint, shapes(tensors))
    assert checkpoint.tensor("a.weight").dtype == dtype


@pytest.mark.parametrize("dtype", NO_WEIGHTS, ids=str)
@pytest.mark.parametrize("form", ["folder", "pt"])
def test_nothing_else_is(dtype: torch.dtype, form: str, tmp_path: Path) -> None:
    tensors = {"model.norm.weight": torch.ones(32).to(dtype), "model.mask": torch.ones(2).to(dtype)}
    fields = {"tensor": "model.norm.weight", "dtype": str(dtype).removeprefix("torch.")}
    path = tmp_path / "model.pt" if form == "pt" else save_folder(tmp_path / "model", tensors)
    if form == "pt":
        torch.save({"config": CONFIG.to_dict(), "state_dict": tensors}, path)
    with raises(CheckpointErrors.DTYPE, **fields):
        open_checkpoint(path)
    with raises(CheckpointErrors.DTYPE, **fields):
        check_names(holding(tensors), {"model.norm.weight": (32,)})
    with raises(CheckpointErrors.DTYPE, path="model", tensor="model.mask"):
        holding(tensors).tensor("model.mask")


@pytest.mark.parametrize(
    ("counts", "dtype"),
    [
        ({torch.bfloat16: 3, torch.float32: 2}, torch.bfloat16),
        ({torch.bfloat16: 2, torch.float32: 3}, torch.float32),
        ({torch.bfloat16: 2, torch.float32: 2}, torch.float32),
        ({torch.bfloat16: 2, torch.float32: 1, torch.float16: 1}, torch.float32),
        ({torch.bfloat16: 4, torch.float64: 1, torch.float16: 2}, torch.bfloat16),
    ],
)
def test_the_dtype_of_most_elements(counts: dict[torch.dtype, int], dtype: torch.dtype) -> None:
    assert holding({str(kind): torch.ones(size, dtype=kind) for kind, size in counts.items()}).default_dtype == dtype


def test_elements_count_and_not_tensors() -> None:
    many = {f"norm{n}": torch.ones(1) for n in range(4)}
    assert holding(many | {"a": torch.ones(2, 3, dtype=torch.bfloat16)}).default_dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16", None])
def test_without_weights_the_config_says_the_dtype(dtype: str | None) -> None:
    checkpoint = Checkpoint(Path("model"), LlamaConfig(**SIZES, dtype=dtype), None, None, dict)
    assert checkpoint.default_dtype == (torch.bfloat16 if dtype == "bfloat16" else torch.float32)


# ------------------------------------------------------------------------------------------- missing, extra, misshapen


HELD = {f"model.a{n}": torch.ones(n, 2) for n in range(8)}


@pytest.mark.parametrize(
    ("more_shapes", "kind", "fields"),
    [
        (
            {"b": (1,)}, CheckpointErrors.PARAMETERS_MISSING,
            {"path": "model", "count": 1, "parameters": 9, "names": ["b"]},
        ),
        (
            {f"b{n}": (1,) for n in range(5)}, CheckpointErrors.PARAMETERS_MISSING,
            {"count": 5, "parameters": 13, "names": ["b0", "b1", "b2", "b3", "b4"]},
        ),
        (
            {f"b{n}": (1,) for n in range(6)}, CheckpointErrors.PARAMETERS_MISSING,
            {"count": 6, "parameters": 14, "names": ["b0", "b1", "b2", "b3", "b4"]},
        ),
        (
            {f"b{n}": (1,) for n in range(7)}, CheckpointErrors.PARAMETERS_MISSING,
            {"count": 7, "parameters": 15, "names": ["b0", "b1", "b2", "b3", "b4"]},
        ),
        (
            {"model.a1": (2, 1)}, CheckpointErrors.SHAPES_DIFFER,
            {
                "path": "model", "count": 1, "parameters": 8, "tensor": "model.a1", "shape": "[1, 2]",
                "expected": "[2, 1]",
            },
        ),
        (
            {"model.a1": (1,)}, CheckpointErrors.SHAPES_DIFFER,
            {"path": "model", "count": 1, "tensor": "model.a1", "shape": "[1, 2]", "expected": "[1]"},
        ),
        (
            {"model.a1": (1, 2, 1)}, CheckpointErrors.SHAPES_DIFFER,
            {"path": "model", "count": 1, "tensor": "model.a1", "shape": "[1, 2]", "expected": "[1, 2, 1]"},
        ),
        ({f"model.a{n}": (9, 9) for n in range(8)}, CheckpointErrors.SHAPES_DIFFER, {"count": 8, "parameters": 8}),
        (
            {"b": (1,), "model.a1": (3,)}, CheckpointErrors.PARAMETERS_MISSING,
            {"path": "model", "count": 1, "parameters": 9, "names": ["b"]},
        ),
    ],
)  # fmt: skip
def test_parameters_that_are_not_there(
    more_shapes: dict[str, tuple[int, ...]], kind: ErrorKind, fields: dict[str, Any]
) -> None:
    checkpoint = holding(HELD | {"x": torch.ones(1), "y": torch.ones(1), "z": torch.ones(1), "zz": torch.ones(1)})
    with raises(kind, **fields):
        check_names(checkpoint, shapes(HELD) | more_shapes)


def test_three_of_the_unused_are_named() -> None:
    checkpoint = holding(HELD | {name: torch.ones(1) for name in ("x", "y", "z", "zz")})
    with raises(CheckpointErrors.PARAMETERS_MISSING, names=["b"]):
        check_names(checkpoint, shapes(HELD) | {"b": (1,)})
    with raises(CheckpointErrors.PARAMETERS_MISSING, names=["b"]):
        check_names(holding(HELD), shapes(HELD) | {"b": (1,)})


def test_extra_tensors_of_any_type_are_left_alone() -> None:
    check_names(holding(HELD | {"extra.weight": torch.ones(3, dtype=torch.int8)}), shapes(HELD))


def test_a_tensor_that_is_not_there() -> None:
    with raises(CheckpointErrors.NO_TENSOR, path="model", tensor="b"):
        holding(HELD).tensor("b")


# ------------------------------------------------------------------------------------------------------------- prefixes


@pytest.mark.parametrize("form", ["folder", "pt"])
def test_names_without_the_prefix_of_the_model(form: str, tmp_path: Path) -> None:
    """The checkpoint has the names of the base model, without its prefix."""
    state = tiny_llama().state_dict()
    bare = {name.removeprefix("model."): tensor for name, tensor in state.items()}
    path = tmp_path / "model.pt" if form == "pt" else save_folder(tmp_path / "model", bare)
    if form == "pt":
        torch.save({"config": CONFIG.to_dict(), "state_dict": bare}, path)
    checkpoint = open_checkpoint(path)
    check_names(checkpoint, shapes(state))
    assert all(checkpoint.tensor(name).equal(tensor) for name, tensor in state.items())
    assert checkpoint.digest == open_checkpoint(save_folder(tmp_path / "prefixed", state)).digest


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "base_model.model.", "model.model."])
def test_names_with_a_wrapper_s_prefix_are_named_as_they_are(prefix: str, tmp_path: Path) -> None:
    """Prefixes of torch.compile, data parallel and adapters are not guessed away; the message shows what is held."""
    state = tiny_llama().state_dict()
    checkpoint = open_checkpoint(save_folder(tmp_path / "model", {f"{prefix}{name}": state[name] for name in state}))
    with raises(CheckpointErrors.PARAMETERS_MISSING):
        check_names(checkpoint, shapes(state))


# ------------------------------------------------------------------------------------------------- opening and packing


def test_a_config_beside_a_folder_s_weights(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "model", tiny_llama().state_dict())
    config = (folder / "config.json").rename(tmp_path / "given.json")
    with raises(CheckpointErrors.NO_CONFIG):
        open_checkpoint(folder)
    checkpoint = open_checkpoint(folder, config=config)
    assert checkpoint.config is not None
    assert checkpoint.config.hidden_size == SIZES["hidden_size"]


@pytest.mark.parametrize("suffix", [".json", ".pt2", ".gguf"])
def test_forms_that_bring_a_config(suffix: str, tmp_path: Path) -> None:
    path, config = tmp_path / f"model{suffix}", tmp_path / "config.json"
    path.write_bytes(b"{}")
    config.write_text("{}")
    with raises(CheckpointErrors.TWO_CONFIGS):
        open_checkpoint(path, config=config, weights=False)


def test_a_suffix_in_capitals(tmp_path: Path) -> None:
    path = tmp_path / "MODEL.PT"
    torch.save({"config": CONFIG.to_dict(), "state_dict": tiny_llama().state_dict()}, path)
    assert open_checkpoint(path).has_weights
    with raises(CheckpointErrors.UNKNOWN_FORM):
        open_checkpoint(path.rename(tmp_path / "model.onnx"))
    with raises(CheckpointErrors.PART_OF_A_FOLDER):
        open_checkpoint((tmp_path / "model.onnx").rename(tmp_path / "model.bin"))


def test_a_state_dict_may_have_a_tensor_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"state_dict": torch.ones(1)}, path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_dict()))
    assert set(open_checkpoint(path, config=tmp_path / "config.json").names()) == {"state_dict"}


def test_an_empty_file_of_a_tokenizer_survives_packing(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "model", tiny_llama().state_dict())
    save_tokenizer(folder)
    (folder / "chat_template.jinja").write_text("")
    pack(open_checkpoint(folder), tmp_path / "model.pt")
    assert open_checkpoint(tmp_path / "model.pt").tokenizer == open_checkpoint(folder).tokenizer


def test_a_packed_tokenizer_comes_before_the_one_beside_the_config(tmp_path: Path) -> None:
    config = tmp_path / "given" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(CONFIG.to_dict()))
    (config.parent / "tokenizer.json").write_text("beside")
    values = {"state_dict": dict(tiny_llama().state_dict())}
    for held, expected in (({}, b"beside"), ({"tokenizer": {"tokenizer.json": b"packed"}}, b"packed")):
        torch.save(values | held, tmp_path / "model.pt")
        assert open_checkpoint(tmp_path / "model.pt", config=config).tokenizer == {"tokenizer.json": expected}
    torch.save(values | {"config": CONFIG.to_dict()}, tmp_path / "model.pt")
    assert open_checkpoint(tmp_path / "model.pt").tokenizer == {}


@pytest.mark.parametrize(
    ("error", "words"),
    [(OSError(5, "Input/output error"), "Input/output error"), (OSError("a word alone"), "a word alone")],
)
def test_files_that_fail_while_they_are_read(
    error: OSError, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise error

    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_dict()))
    monkeypatch.setattr(checkpoint_module, "load_weights_only", fail)
    (tmp_path / "model.pt").write_bytes(b"")
    with raises(CheckpointErrors.UNREADABLE, path=tmp_path / "model.pt", cause=words):
        open_checkpoint(tmp_path / "model.pt")
    monkeypatch.setattr(checkpoint_module, "open_folder_weights", fail)
    with raises(CheckpointErrors.UNREADABLE, path=tmp_path, cause=words):
        open_checkpoint(tmp_path)


def test_an_exported_program_s_weights_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = SimpleNamespace(state_dict={"a.weight": torch.ones(2, dtype=torch.int8)})
    monkeypatch.setattr(exported, "load_program", lambda path, trusted: program)
    (tmp_path / "model.pt2").write_bytes(b"the program")
    with raises(CheckpointErrors.DTYPE, tensor="a.weight", dtype="int8"):
        open_checkpoint(tmp_path / "model.pt2")
    bare = open_checkpoint(tmp_path / "model.pt2", weights=False)
    assert (bare.has_weights, bare.names(), bare.tokenizer, bare.eos_token_ids) == (False, {}, {}, ())
    assert bare.digest == hashlib.sha256(b"the program").hexdigest()
    with raises(CheckpointErrors.OPENED_WITHOUT_WEIGHTS, tensor="a"):
        bare.tensor("a")
    with raises(CheckpointErrors.PACKED_ALREADY):
        pack(bare, tmp_path / "out.pt")


def test_what_can_be_packed_under_which_name(tmp_path: Path) -> None:
    for name in ("out.bin", "out", "pt"):
        with raises(CheckpointErrors.PACKED_NAME):
            pack(holding({"a": torch.ones(1)}), tmp_path / name)
    with raises(CheckpointErrors.NOTHING_TO_PACK, path="model"):
        pack(Checkpoint(Path("model"), CONFIG, None, None, dict), tmp_path / "out.pt")
    assert list(tmp_path.iterdir()) == []
    for name in ("out.pt", "out.pth"):
        pack(holding({"a": torch.ones(1)}), tmp_path / name)
        assert open_checkpoint(tmp_path / name).tensor("a").equal(torch.ones(1))
