"""Inputs that are not what they look like: the error, or the warning, names the reason."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from examples.own_decoder import Decoder, export
from sscc.compiler.frontend.checkpoint import CheckpointErrors, CheckpointWarnings, check_names, open_checkpoint
from sscc.compiler.frontend.exported import ExportedErrors
from sscc.compiler.frontend.sources import POINTER, SourceErrors
from sscc.compiler.options.warning import collecting
from sscc.ir.errors import ErrorKind
from tests.compiler.frontend.test_checkpoint import tiny_llama
from tests.errors import check, raises

LFS = POINTER + b"v1\noid sha256:00\nsize 4000000000\n"
LARGE_HEADER = 100_000
LARGE_SECONDS = 10.0  # of processor time, for that many tensors; 2 s on an idle core


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hf")
    tiny_llama().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    own = tmp_path / "model"
    own.mkdir()
    for path in saved.iterdir():
        (own / path.name).write_bytes(path.read_bytes())
    return own


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_git_lfs_pointer_in_a_folder(folder: Path, name: str) -> None:
    (folder / name).write_bytes(LFS)
    with raises(SourceErrors.POINTER, path=folder / name):
        _ = open_checkpoint(folder).tokenizer


@pytest.mark.parametrize("name", ["a.gguf", "a.pt", "a.pth", "a.pt2"])
def test_a_git_lfs_pointer_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(LFS)
    with raises(SourceErrors.POINTER, path=tmp_path / name):
        open_checkpoint(tmp_path / name)


def test_a_git_lfs_pointer_among_shards(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "a.bin")}))
    (folder / "a.bin").write_bytes(LFS)
    with raises(SourceErrors.POINTER):
        open_checkpoint(folder)


@pytest.mark.parametrize("where", ["quantization", "quantization_config"])
def test_an_mlx_folder(folder: Path, where: str) -> None:
    config = json.loads((folder / "config.json").read_text()) | {where: {"group_size": 64, "bits": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    with raises(CheckpointErrors.MLX, bits=4, group_size=64):
        open_checkpoint(folder)


def test_an_adapter_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "someone/base"}))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with raises(CheckpointErrors.ADAPTER, base="someone/base"):
        open_checkpoint(tmp_path)
    tiny_llama().config.save_pretrained(tmp_path)
    with raises(CheckpointErrors.ADAPTER, base="someone/base"):
        open_checkpoint(tmp_path)


def test_an_adapter_beside_a_model_is_named(folder: Path) -> None:
    with collecting() as warnings:
        open_checkpoint(folder)
        assert not warnings
        (folder / "adapter_config.json").write_text("{}")
        open_checkpoint(folder)
    (warning,) = warnings
    check(warning, CheckpointWarnings.ADAPTER_BESIDE, path=str(folder))


def test_the_name_of_a_model_on_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with raises(CheckpointErrors.NOT_DOWNLOADED, name="Someone/Model-1B", folder="Model-1B") as caught:
        open_checkpoint(Path("Someone/Model-1B"))
    assert "hf download Someone/Model-1B" in str(caught.value)
    for name in ("folder/model.gguf", "/a/b", "a/b/c", "model"):
        with raises(CheckpointErrors.MISSING):
            open_checkpoint(Path(name))


def test_tensors_without_a_place_are_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    harmless = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    strange = {f"model.layers.0.self_attn.gate_{number}.weight": torch.zeros(4) for number in range(7)}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    with collecting() as warnings:
        save_file({**tensors, **harmless}, folder / "model.safetensors")
        check_names(open_checkpoint(folder), shapes)
        assert not warnings
        save_file({**tensors, **harmless, **strange}, folder / "model.safetensors")
        check_names(open_checkpoint(folder), shapes)
    (warning,) = warnings
    check(warning, CheckpointWarnings.UNUSED, path=str(folder), count=7)
    named = warning.fields["names"]
    assert "gate_0.weight" in named
    assert "and 2 more" in named
    assert "inv_freq" not in named


SPECIAL: dict[str, ErrorKind] = {
    "a.gguf": CheckpointErrors.NOT_A_FILE,
    "a.pt": CheckpointErrors.NOT_A_FILE,
    "a.pt2": CheckpointErrors.NOT_A_FILE,
    "a.json": CheckpointErrors.NOT_A_FILE,
}


@pytest.mark.parametrize("name", SPECIAL)
def test_pipes_are_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with raises(SPECIAL[name], path=tmp_path / name):
        open_checkpoint(tmp_path / name)


def test_pipes_in_a_folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with raises(CheckpointErrors.NO_WEIGHTS):
        open_checkpoint(folder)
    with raises(CheckpointErrors.NOT_A_FILE):
        open_checkpoint(folder / "a.pt", config=folder / "model.safetensors")
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with raises(CheckpointErrors.NO_CONFIG):
        open_checkpoint(folder)


def test_a_name_that_no_file_can_have() -> None:
    with raises(CheckpointErrors.UNREADABLE):
        open_checkpoint(Path("a" * 5000))


def test_a_large_header_is_read_in_time_that_grows_with_it(folder: Path) -> None:
    header, place = {}, 0
    for number in range(LARGE_HEADER):
        name = f"model.layers.{number}.mlp.up_proj.weight"
        header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [place, place + 4]}
        place += 4
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(place))
    began = time.process_time()
    assert len(open_checkpoint(folder).names()) == LARGE_HEADER
    assert time.process_time() - began < LARGE_SECONDS


class Half(Decoder):
    """The example, whose rotary tables have the dtype of its weights."""

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = positions[:, :, None].float() * self.frequencies.float()
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def test_a_decoder_in_a_dtype_that_programs_do_not_have(tmp_path: Path) -> None:
    path = tmp_path / "half.pt2"
    torch.export.save(export(Half(layers=1).half()), path)
    with raises(ExportedErrors.DTYPE, path=path, dtype="float16"):
        open_checkpoint(path)
    torch.export.save(export(Half(layers=1).bfloat16()), path)
    assert open_checkpoint(path).default_dtype == torch.bfloat16
