"""Opening every form of checkpoint, packing, and one clear error for every damaged one."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from sscc.compiler.frontend.checkpoint import Checkpoint, CheckpointErrors, check_names, open_checkpoint, pack
from sscc.compiler.frontend.exported import ExportedErrors
from sscc.compiler.frontend.gguf.header_errors import GgufHeaderErrors
from sscc.compiler.frontend.gguf.model_metadata import GgufMetadataErrors
from sscc.compiler.frontend.model_config import ModelConfigErrors
from sscc.compiler.frontend.pt2_archive import Pt2Errors
from sscc.compiler.frontend.pt2_program import Pt2ProgramErrors
from sscc.compiler.frontend.quantization_config import QuantizationConfigErrors
from sscc.compiler.frontend.sources import SourceErrors
from sscc.compiler.frontend.stored_zip import StoredZipErrors
from sscc.compiler.frontend.tokenizer_files import TokenizerFilesErrors
from sscc.ir.errors import ErrorKind, SsccError, UnsupportedError
from sscc.ir.files import FileErrors
from tests.compiler.frontend.pt2_files import members, write
from tests.errors import raises

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 128,
}
K_PROJ = "model.layers.0.self_attn.k_proj.weight"


def tiny_llama(**changes: Any) -> transformers.LlamaForCausalLM:
    torch.manual_seed(7)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **changes)).eval()


def save_tokenizer(folder: Path) -> None:
    vocabulary = {chr(ord("a") + i): i for i in range(26)} | {"<eos>": 26}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")


@pytest.fixture(scope="module")
def model() -> transformers.LlamaForCausalLM:
    return tiny_llama()


@pytest.fixture(scope="module")
def saved(model: transformers.LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hf")
    model.save_pretrained(folder)
    save_tokenizer(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [26, 5]}))
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of the saved folder that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def sharded(model: transformers.LlamaForCausalLM, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    return tmp_path / "shards"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **keywords: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def assert_same_weights(checkpoint: Checkpoint, expected: dict[str, torch.Tensor]) -> None:
    assert set(checkpoint.names()) == set(expected)
    for name, (shape, dtype) in checkpoint.names().items():
        tensor = checkpoint.tensor(name)
        assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)
        assert tensor.equal(expected[name]), name


# ---------------------------------------------------------------------------------------------------------- forms


def test_safetensors_folder(saved: Path, model: transformers.LlamaForCausalLM) -> None:
    checkpoint = open_checkpoint(saved)
    assert_same_weights(checkpoint, model.state_dict())
    assert checkpoint.has_weights
    assert checkpoint.program is None
    assert checkpoint.config is not None
    assert checkpoint.config.model_type == "llama"
    assert checkpoint.default_dtype == torch.float32
    assert checkpoint.eos_token_ids == (26, 5, 2)
    assert set(checkpoint.tokenizer) == {
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.jinja",
    }


def test_sharded_folder(sharded: Path, saved: Path, model: transformers.LlamaForCausalLM) -> None:
    assert (sharded / "model.safetensors.index.json").is_file()
    checkpoint = open_checkpoint(sharded)
    assert_same_weights(checkpoint, model.state_dict())
    assert checkpoint.digest == open_checkpoint(saved).digest


@pytest.mark.parametrize("zipped", [True, False])
def test_pytorch_bin(folder: Path, model: transformers.LlamaForCausalLM, zipped: bool) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert_same_weights(open_checkpoint(folder), model.state_dict())


def test_sharded_pytorch_bin(folder: Path, model: transformers.LlamaForCausalLM) -> None:
    (folder / "model.safetensors").unlink()
    state = model.state_dict()
    weight_map = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(state)}
    for shard in set(weight_map.values()):
        torch.save({name: state[name] for name in state if weight_map[name] == shard}, folder / shard)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_same_weights(open_checkpoint(folder), state)


def test_pt_with_config(tmp_path: Path, model: transformers.LlamaForCausalLM) -> None:
    path = tmp_path / "model.pt"
    torch.save({"config": model.config.to_dict(), "state_dict": model.state_dict()}, path)
    checkpoint = open_checkpoint(path)
    assert_same_weights(checkpoint, model.state_dict())
    assert checkpoint.tokenizer == {}
    assert checkpoint.eos_token_ids == (model.config.eos_token_id,)


def test_bare_state_dict_takes_a_config(folder: Path, tmp_path: Path, model: transformers.LlamaForCausalLM) -> None:
    path = tmp_path / "weights.pth"
    torch.save(model.state_dict(), path)
    checkpoint = open_checkpoint(path, config=folder / "config.json")
    assert_same_weights(checkpoint, model.state_dict())
    assert "tokenizer.json" in checkpoint.tokenizer  # it lies beside the config
    with raises(CheckpointErrors.BARE_STATE_DICT):
        open_checkpoint(path)


def test_config_alone(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for path in (folder, folder / "config.json"):
        checkpoint = open_checkpoint(path, weights=False)
        assert not checkpoint.has_weights
        assert checkpoint.names() == {}
        with raises(CheckpointErrors.OPENED_WITHOUT_WEIGHTS):
            checkpoint.tensor(K_PROJ)
    with raises(CheckpointErrors.NO_WEIGHTS):
        open_checkpoint(folder)
    with raises(CheckpointErrors.CONFIG_ALONE):
        open_checkpoint(folder / "config.json")


@pytest.mark.parametrize(
    ("stored", "default"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float32),
    ],
)
def test_float_dtypes(tmp_path: Path, stored: torch.dtype, default: torch.dtype) -> None:
    tiny_llama().to(stored).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tensor(K_PROJ).dtype == stored
    assert checkpoint.default_dtype == default


def test_a_tensor_brings_no_other_into_memory(
    saved: Path, model: transformers.LlamaForCausalLM, tmp_path: Path
) -> None:
    torch.save({"config": model.config.to_dict(), "state_dict": model.state_dict()}, tmp_path / "model.pt")
    for path in (saved, tmp_path / "model.pt"):
        tensor = open_checkpoint(path).tensor(K_PROJ)
        assert tensor.untyped_storage().nbytes() == tensor.numel() * 4


# ----------------------------------------------------------------------------------------------------------- names


def test_check_names(saved: Path, model: transformers.LlamaForCausalLM) -> None:
    checkpoint = open_checkpoint(saved)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    check_names(checkpoint, shapes)
    with raises(CheckpointErrors.PARAMETERS_MISSING, count=1, parameters=22, names=["model.extra.weight"]):
        check_names(checkpoint, shapes | {"model.extra.weight": (2, 2)})
    with raises(CheckpointErrors.SHAPES_DIFFER, shape="[16, 32]", expected="[8, 32]"):
        check_names(checkpoint, shapes | {K_PROJ: (8, 32)})


def test_tied_head_is_not_asked_for(tmp_path: Path) -> None:
    model = tiny_llama(tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert "lm_head.weight" not in checkpoint.names()
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    check_names(checkpoint, shapes)
    with raises(CheckpointErrors.PARAMETERS_MISSING, names=["lm_head.weight"]):
        check_names(checkpoint, {"lm_head.weight": (64, 32)})


def test_integer_buffers_pass_until_they_are_wanted(folder: Path, model: transformers.LlamaForCausalLM) -> None:
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    save_file(dict(model.state_dict()) | {"model.attention.bias": mask}, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    with raises(CheckpointErrors.DTYPE, tensor="model.attention.bias", dtype="bool"):
        check_names(checkpoint, {"model.attention.bias": (1, 1, 4, 4)})


# --------------------------------------------------------------------------------------------------------- packing


def test_pack_round_trip(saved: Path, tmp_path: Path, model: transformers.LlamaForCausalLM) -> None:
    checkpoint = open_checkpoint(saved)
    pack(checkpoint, tmp_path / "a.pt")
    pack(checkpoint, tmp_path / "b.pt")
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "b.pt"]
    packed = open_checkpoint(tmp_path / "a.pt")
    assert_same_weights(packed, model.state_dict())
    assert packed.tokenizer == checkpoint.tokenizer
    assert packed.digest == checkpoint.digest
    assert packed.eos_token_ids == (26, 5, 2)


def test_pack_leaves_nothing_behind(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(saved)
    with raises(FileErrors.CANNOT_WRITE, reason="No such file or directory"):
        pack(checkpoint, tmp_path / "absent" / "model.pt")
    (tmp_path / "file").write_text("")
    with raises(FileErrors.CANNOT_WRITE, reason="Not a directory"):
        pack(checkpoint, tmp_path / "file" / "model.pt")
    (tmp_path / "file").unlink()
    with raises(FileErrors.CANNOT_WRITE, reason="Is a directory"):
        pack(checkpoint, _made(tmp_path / "folder.pt"))

    def full(values: object, file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with raises(FileErrors.CANNOT_WRITE, reason="No space left on device"):
        pack(checkpoint, tmp_path / "model.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.pt"]


def test_pack_on_a_full_disk(saved: Path, tmp_path: Path) -> None:
    """The real writer, stopped by a limit on the size of files as it would be by a full disk."""
    checkpoint = open_checkpoint(saved)
    before, ceiling = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores the signal that a process gets at the limit: the write fails instead.
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, ceiling))
    try:
        with raises(FileErrors.CANNOT_WRITE, path=tmp_path / "model.pt", reason="File too large"):
            pack(checkpoint, tmp_path / "model.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, ceiling))
    assert list(tmp_path.iterdir()) == []


def test_pack_refuses_what_it_cannot_pack(folder: Path, tmp_path: Path) -> None:
    with raises(CheckpointErrors.NOTHING_TO_PACK):
        pack(open_checkpoint(folder, weights=False), tmp_path / "model.pt")
    with raises(CheckpointErrors.PACKED_NAME):
        pack(open_checkpoint(folder), tmp_path / "model.bin")


# -------------------------------------------------------------------------------------------------------- bad input


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def _edit_config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def _truncate(path: Path, keep: float) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return path


class Gadget:
    """Unpickling this would run code."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, ("touch /nonexistent/sscc",)


@pytest.mark.parametrize("keep", [0.0, 0.0001, 0.5, 0.99])
def test_truncated_safetensors(folder: Path, keep: float) -> None:
    _truncate(folder / "model.safetensors", keep)
    with raises(SourceErrors.DAMAGED):
        open_checkpoint(folder)


def test_corrupted_safetensors_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[8:40] = b"\xff" * 32
    path.write_bytes(data)
    with raises(SourceErrors.DAMAGED):
        open_checkpoint(folder)


def test_missing_shards_are_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    with raises(SourceErrors.SHARDS_MISSING, missing=1, names=["model-00002-of-00003.safetensors"]):
        open_checkpoint(sharded)


def test_index_that_disagrees_with_its_shards(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    values["weight_map"]["model.ghost.weight"] = next(iter(values["weight_map"].values()))
    index.write_text(json.dumps(values))
    with raises(SourceErrors.NOT_IN_SHARD, tensor="model.ghost.weight"):
        open_checkpoint(sharded)
    values["weight_map"]["model.ghost.weight"] = "../outside.safetensors"
    index.write_text(json.dumps(values))
    with raises(SourceErrors.SHARD_ELSEWHERE):
        open_checkpoint(sharded)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.uint8])
def test_quantized_weights_are_refused(folder: Path, model: transformers.LlamaForCausalLM, dtype: torch.dtype) -> None:
    state = dict(model.state_dict())
    state[K_PROJ] = state[K_PROJ].to(dtype)
    save_file(state, folder / "model.safetensors")
    with raises(CheckpointErrors.DTYPE, tensor=K_PROJ, dtype=str(dtype).removeprefix('torch.')):
        open_checkpoint(folder)


def test_a_type_of_another_name_is_read_by_its_class(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As Kimi-K2 is published: its type is its own, and `architectures` names a class of transformers."""
    plain = open_checkpoint(folder)
    _edit_config(folder, model_type="nosuch", architectures=["LlamaForCausalLM"], own_field=3)
    renamed = open_checkpoint(folder)
    assert type(renamed.config) is transformers.LlamaConfig
    assert renamed.names() == plain.names()
    assert re.search(r"the model_type 'nosuch': .* as llama, .* LlamaForCausalLM; .* own_field$", caplog.text.strip())
    for names in (["LlamaForCausalLM", "LlamaForCausalLM"], ["LlamaModel"], "LlamaForCausalLM", [["LlamaForCausalLM"]]):
        with raises(ModelConfigErrors.UNKNOWN_ARCHITECTURE, model="nosuch"):
            open_checkpoint(_edit_config(folder, architectures=names))


def test_configs_that_are_refused(folder: Path) -> None:
    with raises(ModelConfigErrors.UNKNOWN_ARCHITECTURE, model="nosuch", version=transformers.__version__) as caught:
        open_checkpoint(
            _edit_config(
                folder, model_type="nosuch", architectures=["NoSuchLM"], auto_map={"AutoConfig": "evil.Config"}
            )
        )
    with raises(ModelConfigErrors.NOT_VALID, model="llama"):
        open_checkpoint(_edit_config(folder, model_type="llama", hidden_size="wide"))
    assert "auto_map" in caught.value.fields["hint"]
    with raises(ModelConfigErrors.NOT_VALID, model="llama", cause=re.compile("33.*multiple")):
        open_checkpoint(_edit_config(folder, hidden_size=33))
    with raises(QuantizationConfigErrors.UNKNOWN_METHOD, method="hqq"):
        open_checkpoint(_edit_config(folder, hidden_size=32, quantization_config={"quant_method": "hqq"}))
    with raises(ModelConfigErrors.ENCODER_DECODER, model="t5"):
        open_checkpoint(_edit_config(folder, model_type="t5"))
    with raises(ModelConfigErrors.NO_MODEL_TYPE):
        open_checkpoint(_edit_config(folder, model_type=None))
    (folder / "config.json").write_text("{")
    with raises(ModelConfigErrors.NOT_JSON):
        open_checkpoint(folder)
    (folder / "config.json").unlink()
    with raises(CheckpointErrors.NO_CONFIG):
        open_checkpoint(folder)


def test_paths_that_are_refused(folder: Path, tmp_path: Path) -> None:
    with raises(CheckpointErrors.MISSING):
        open_checkpoint(tmp_path / "absent")
    with raises(CheckpointErrors.PART_OF_A_FOLDER):
        open_checkpoint(folder / "model.safetensors")
    with raises(CheckpointErrors.TWO_CONFIGS):
        open_checkpoint(folder, config=folder / "config.json")


def test_pickled_modules_are_refused(tmp_path: Path, model: transformers.LlamaForCausalLM) -> None:
    path = tmp_path / "model.pt"
    torch.save(model, path)
    with raises(SourceErrors.PICKLED):
        open_checkpoint(path)
    torch.save({"state_dict": {"a": Gadget()}}, path)
    with raises(SourceErrors.PICKLED):
        open_checkpoint(path)
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    with raises(SourceErrors.TORCHSCRIPT):
        open_checkpoint(path)


def test_pickled_bin_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"a": Gadget()}, folder / "pytorch_model.bin")
    with raises(SourceErrors.PICKLED):
        open_checkpoint(folder)


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.5, 0.99])
@pytest.mark.parametrize("zipped", [True, False])
def test_truncated_pytorch_files(folder: Path, model: transformers.LlamaForCausalLM, keep: float, zipped: bool) -> None:
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save(model.state_dict(), path, _use_new_zipfile_serialization=zipped)
    _truncate(path, keep)
    kind = SourceErrors.TRUNCATED_ARCHIVE if zipped and keep else SourceErrors.NOT_PYTORCH
    with raises(kind, path=path):
        open_checkpoint(folder)
    path = path.rename(folder / "model.pt")
    with raises(kind, path=path):
        open_checkpoint(path)


def test_pt_of_another_shape(tmp_path: Path, model: transformers.LlamaForCausalLM, folder: Path) -> None:
    path, config = tmp_path / "model.pt", model.config.to_dict()
    weights = model.state_dict()
    refused: list[tuple[object, ErrorKind, dict[str, str]]] = [
        ([1, 2], CheckpointErrors.NOT_A_DICT, {"form": "list"}),
        ({"config": [1], "state_dict": weights}, CheckpointErrors.CONFIG_FORM, {"form": "list"}),
        ({"config": config, "state_dict": {"a": 1}}, SourceErrors.NOT_A_TENSOR, {"name": "a", "form": "int"}),
        ({"config": config, "state_dict": {}}, SourceErrors.EMPTY, {}),
        ({"config": config, "state_dict": {"a": torch.ones(2).to_sparse()}}, SourceErrors.NOT_DENSE, {"tensor": "a"}),
        ({"config": config, "state_dict": weights, "tokenizer": [1]}, TokenizerFilesErrors.NOT_A_DICTIONARY, {}),
        ({"config": {}, "state_dict": weights}, ModelConfigErrors.NO_MODEL_TYPE, {}),
    ]
    for values, kind, fields in refused:
        torch.save(values, path)
        with raises(kind, **fields):
            open_checkpoint(path)
    torch.save({"config": config, "state_dict": model.state_dict()}, path)
    with raises(CheckpointErrors.TWO_CONFIGS):
        open_checkpoint(path, config=folder / "config.json")


@pytest.mark.parametrize("generation", [{}, {"temperature": 1.0}, {"eos_token_id": None}, {"eos_token_id": []}])
def test_a_generation_config_without_ends(folder: Path, generation: dict[str, Any]) -> None:
    """The model's own config says them then."""
    (folder / "generation_config.json").write_text(json.dumps(generation))
    config = json.loads((folder / "config.json").read_text())
    for ends, expected in ((7, (7,)), ([7, 3], (7, 3)), (None, ())):
        (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": ends}))
        assert open_checkpoint(folder).eos_token_ids == expected


def test_unreadable_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": "end"}')
    with raises(ModelConfigErrors.BAD_TOKENS, field="eos_token_id", value="end"):
        _ = open_checkpoint(folder).eos_token_ids


# ------------------------------------------------------------------------------------------------------------ gguf


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of the rotary rows, which transformers undoes."""
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1)
    return rows.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    model: transformers.LlamaForCausalLM,
    tensors: dict[str, np.ndarray] | None = None,
    **extra: str,
) -> None:
    """A tiny llama with a byte-level vocabulary, one tensor quantized; `tensors` besides, or instead, of its own."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    tokens = [chr(ord("a") + i) for i in range(26)] + ["ab", "<eos>"] + [f"<u{i}>" for i in range(36)]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 27 + [3] * 37)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(27)
    writer.add_eos_token_id(27)
    for key, value in extra.items():
        writer.add_string(key.replace("__", "."), value)
    for name, tensor in (gguf_tensors(model) | (tensors or {})).items():
        if name == "output.weight":
            blocks = gguf.quants.quantize(tensor, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(model: transformers.LlamaForCausalLM) -> dict[str, np.ndarray]:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    tensors = {}
    for name, tensor in model.state_dict().items():
        stem, suffix = name.rsplit(".", 1)
        values = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            values = permuted(values, 4 if "q_proj" in name else 2)
        tensors[f"{names.get_name(stem)}.{suffix}"] = np.ascontiguousarray(values)
    return tensors


@pytest.fixture(scope="module")
def gguf_file(model: transformers.LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, model)
    return path


def test_gguf(gguf_file: Path, model: transformers.LlamaForCausalLM, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(gguf_file)
    state = model.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    check_names(checkpoint, shapes)
    for name, tensor in state.items():
        tolerance = 1e-3 if name == "lm_head.weight" else 0.0  # Q8_0
        assert (checkpoint.tensor(name) - tensor).abs().max() <= tolerance
    assert checkpoint.default_dtype == torch.float32
    assert checkpoint.eos_token_ids == (27,)
    assert checkpoint.config is not None
    assert checkpoint.config.head_dim == 8
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer["tokenizer.json"].decode())
    assert tokenizer.encode("abc<eos>").ids == [26, 2, 27]
    assert checkpoint.digest == open_checkpoint(gguf_file).digest
    pack(checkpoint, tmp_path / "tiny.pt")
    packed = open_checkpoint(tmp_path / "tiny.pt")
    assert_same_weights(packed, {name: checkpoint.tensor(name) for name in shapes})
    assert packed.tokenizer == checkpoint.tokenizer
    assert packed.eos_token_ids == (27,)


@pytest.mark.parametrize("keep", [0.0, 0.0005, 0.02, 0.5, 0.999])
def test_truncated_gguf(gguf_file: Path, tmp_path: Path, keep: float) -> None:
    path = Path(shutil.copy(gguf_file, tmp_path))
    with raises(GgufHeaderErrors.TRUNCATED if keep else GgufHeaderErrors.NOT_GGUF, path=path):
        open_checkpoint(_truncate(path, keep))


def test_gguf_with_metadata_that_nobody_honours(tmp_path: Path, model: transformers.LlamaForCausalLM) -> None:
    path = tmp_path / "tiny.gguf"
    for key, value in (("llama.attention.novelty", "x"), ("llama.rope.scaling.type", "x")):
        write_gguf(path, model, **{key.replace(".", "__"): value})
        with raises(GgufMetadataErrors.NOT_HONOURED, key=key, value=value):
            open_checkpoint(path)


# ------------------------------------------------------------------------------------------------------------- pt2


class PositionDecoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, 16)
        self.position = torch.nn.Embedding(128, 16)
        self.head = torch.nn.Linear(16, 64)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden = (self.embed(ids) + self.position(positions)).unsqueeze(1)
        hidden = hidden + torch.ops.sscc.attention(hidden, hidden, hidden, 0, 0.25)
        logits: torch.Tensor = self.head(hidden.squeeze(1))
        return logits


def export(path: Path, *, dynamic: bool = True, dtype: torch.dtype = torch.int64) -> None:
    import sscc.compiler.frontend.operator  # noqa: F401 - registers sscc::attention

    batch, length = torch.export.Dim("b", min=1), torch.export.Dim("s", min=1)
    shapes = {"ids": {0: batch, 1: length}, "positions": {0: batch, 1: length}} if dynamic else None
    ids = torch.zeros(2, 3, dtype=dtype)
    program = torch.export.export(PositionDecoder().eval(), (ids, ids), dynamic_shapes=shapes)
    torch.export.save(program, path)


def test_pt2(tmp_path: Path) -> None:
    path = tmp_path / "decoder.pt2"
    export(path)
    checkpoint = open_checkpoint(path)
    assert checkpoint.config is None
    assert checkpoint.program is not None
    assert checkpoint.names()["head.weight"] == ((64, 16), torch.float32)
    assert checkpoint.tensor("head.weight").shape == (64, 16)
    assert checkpoint.eos_token_ids == ()
    assert checkpoint.tokenizer == {}
    assert checkpoint.default_dtype == torch.float32
    assert checkpoint.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    with raises(CheckpointErrors.PACKED_ALREADY):
        pack(checkpoint, tmp_path / "again.pt")


def test_pt2_that_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "decoder.pt2"
    export(path, dynamic=False)
    with raises(ExportedErrors.STATIC, name="ids", dim=0, size=2):
        open_checkpoint(path)
    export(path, dtype=torch.int32)
    with raises(ExportedErrors.INPUT, name="ids"):
        open_checkpoint(path)
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), path)
    with raises(ExportedErrors.INPUTS, count=1):
        open_checkpoint(path)


@pytest.mark.parametrize(
    "config", [[], "x", {"config": []}, {"config": {"w": "../../escape"}}, {"config": {"w": None}}], ids=str
)
@pytest.mark.parametrize("name", ["weights/model_weights_config.json", "constants/model_constants_config.json"])
def test_pt2_whose_lists_of_tensors_have_another_form(tmp_path: Path, config: object, name: str) -> None:
    path = tmp_path / "decoder.pt2"
    export(path)
    contents = members(path)
    write(path, contents | {f"data/{name}": json.dumps(config).encode()})
    with pytest.raises(UnsupportedError) as caught:
        open_checkpoint(path)
    assert caught.value.kind in (Pt2ProgramErrors.VALUE, Pt2ProgramErrors.FIELD_MISSING)
    assert name in caught.value.fields["where"]


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.5, 0.99])
def test_truncated_pt2(tmp_path: Path, keep: float, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "decoder.pt2"
    export(path)
    with raises(StoredZipErrors.NO_END):
        open_checkpoint(_truncate(path, keep))
    assert "Traceback" not in capfd.readouterr().err


def test_damaged_pt2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "decoder.pt2"
    export(path)
    data = bytearray(path.read_bytes())
    middle = data.index(b'"graph_module"')
    data[middle : middle + 8] = b"XXXXXXXX"
    path.write_bytes(data)
    with raises(StoredZipErrors.CHECKSUM, name="decoder/models/model.json"):
        open_checkpoint(path)
    write(path, {"archive_format": b"pt2", "archive_version": b"0"})
    with raises(Pt2Errors.MEMBER_MISSING, name="models/model.json"):
        open_checkpoint(path)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".pt2", ".gguf", ".json"])
def test_random_bytes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"noise{suffix}"
    for seed in range(5):
        path.write_bytes(np.random.default_rng(seed).bytes(2000))
        with pytest.raises(SsccError):
            open_checkpoint(path, weights=suffix != ".json")
