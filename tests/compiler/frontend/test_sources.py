"""Sources of tensors: the file that is used, the type names of each format, and wrong indexes."""

from __future__ import annotations

import hashlib
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sscc.compiler.frontend.model_config import ModelConfigErrors
from sscc.compiler.frontend.sources import (
    SAFETENSORS_DTYPES,
    DictSource,
    SourceErrors,
    TensorSource,
    load_weights_only,
    open_folder_weights,
    raw_bytes,
    state_dict,
)
from sscc.ir.errors import ErrorKind
from tests.errors import raises

INDEX = "model.safetensors.index.json"
BIN_INDEX = "pytorch_model.bin.index.json"
A, B = torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])


def opened(folder: Path) -> TensorSource:
    source = open_folder_weights(folder)
    assert source is not None
    return source


def digest(source: TensorSource) -> str:
    sha = hashlib.sha256()
    source.update_digest(sha)
    return sha.hexdigest()


def save_safetensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file(tensors, str(path))


def index_of(folder: Path, weight_map: object, name: str = INDEX) -> None:
    (folder / name).write_text(json.dumps({"weight_map": weight_map}))


# ------------------------------------------------------------------------------------------------------------ types


@pytest.mark.parametrize(
    "dtype", [dtype for dtype in SAFETENSORS_DTYPES.values() if dtype != torch.float8_e8m0fnu], ids=str
)
def test_a_header_says_what_reading_gives(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.zeros(2, 3).to(dtype)
    save_safetensors({"a": values}, tmp_path / "model.safetensors")
    source = opened(tmp_path)
    assert source.names() == {"a": ((2, 3), dtype)}
    assert source.tensor("a").dtype == dtype
    assert source.tensor("a").shape == (2, 3)


def test_a_type_without_a_name_in_torch_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    with raises(SourceErrors.DTYPE, tensor="a", dtype="F4"):
        opened(tmp_path)


# ------------------------------------------------------------------------------------------------------------ digest


@pytest.mark.parametrize(
    "other",
    [
        {"a": A, "c": B},
        {"a": A, "b": B.reshape(1)},
        {"a": A, "b": B + 1},
        {"a": A.to(torch.float64), "b": B},
        {"a": A.view(torch.int32), "b": B},
        {"a": B.reshape(1), "b": A},
        {"a": A},
        {"a": A, "b": B, "c": B},
    ],
    ids=["name", "shape", "value", "width", "type of equal bytes", "order", "missing", "extra"],
)
def test_a_digest_tells_tensors_apart(other: dict[str, torch.Tensor]) -> None:
    assert digest(DictSource({"a": A, "b": B})) != digest(DictSource(other))


def test_a_digest_knows_no_order_and_no_strides() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    turned = values.t().contiguous().t()
    assert not turned.is_contiguous()
    assert digest(DictSource({"a": A, "b": values})) == digest(DictSource({"b": turned, "a": A}))
    assert bytes(raw_bytes(turned)) == values.numpy().tobytes()
    assert bytes(raw_bytes(torch.tensor(1.0, dtype=torch.bfloat16))) == b"\x80\x3f"


def test_a_digest_is_the_same_for_every_form(tmp_path: Path) -> None:
    forms = {"one": tmp_path / "one", "shards": tmp_path / "shards", "bin": tmp_path / "bin", "bins": tmp_path / "bins"}
    for folder in forms.values():
        folder.mkdir()
    save_safetensors({"a": A, "b": B}, forms["one"] / "model.safetensors")
    save_safetensors({"b": B}, forms["shards"] / "1.safetensors")
    save_safetensors({"a": A}, forms["shards"] / "2.safetensors")
    index_of(forms["shards"], {"b": "1.safetensors", "a": "2.safetensors"})
    torch.save({"b": B, "a": A}, forms["bin"] / "pytorch_model.bin")
    torch.save({"b": B}, forms["bins"] / "1.bin")
    torch.save({"a": A}, forms["bins"] / "2.bin")
    index_of(forms["bins"], {"b": "1.bin", "a": "2.bin"}, BIN_INDEX)
    assert len({digest(opened(folder)) for folder in forms.values()}) == 1


# --------------------------------------------------------------------------------------------------- which file counts


def test_the_order_of_preference(tmp_path: Path) -> None:
    """A single file comes before shards, and safetensors before pickles, as in transformers."""
    assert open_folder_weights(tmp_path) is None
    torch.save({"bins": A}, tmp_path / "1.bin")
    index_of(tmp_path, {"bins": "1.bin"}, BIN_INDEX)
    assert set(opened(tmp_path).names()) == {"bins"}
    torch.save({"bin": A}, tmp_path / "pytorch_model.bin")
    assert set(opened(tmp_path).names()) == {"bin"}
    save_safetensors({"shards": A}, tmp_path / "1.safetensors")
    index_of(tmp_path, {"shards": "1.safetensors"})
    assert set(opened(tmp_path).names()) == {"shards"}
    save_safetensors({"one": A}, tmp_path / "model.safetensors")
    assert set(opened(tmp_path).names()) == {"one"}


@pytest.mark.parametrize(("save", "index"), [(save_safetensors, INDEX), (torch.save, BIN_INDEX)])
def test_the_index_says_which_shard_counts(
    tmp_path: Path, save: Callable[[dict[str, torch.Tensor], Path], None], index: str
) -> None:
    """Both shards contain both tensors. Each is read from the shard in the index, and a tensor not in the index is
    absent."""
    save({"a": A, "b": B, "left": A + 1}, tmp_path / "1")
    save({"a": A + 10, "b": B + 10}, tmp_path / "2")
    index_of(tmp_path, {"a": "2", "b": "1"}, index)
    source = opened(tmp_path)
    assert set(source.names()) == {"a", "b"}
    assert source.tensor("a").equal(A + 10)
    assert source.tensor("b").equal(B)


@pytest.mark.parametrize("index", [INDEX, BIN_INDEX])
def test_an_index_that_places_a_tensor_twice(tmp_path: Path, index: str) -> None:
    for name in ("1", "2"):
        save_safetensors({"a": A}, tmp_path / name)
    (tmp_path / index).write_text('{"weight_map": {"a": "1", "a": "2"}}')
    with raises(ModelConfigErrors.NOT_JSON, origin=tmp_path / index, cause="'a' is in it twice"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "kind", "fields"),
    [
        (None, SourceErrors.NO_WEIGHT_MAP, {}),
        ({}, SourceErrors.NO_WEIGHT_MAP, {}),
        ([["a", "1"]], SourceErrors.NO_WEIGHT_MAP, {}),
        ({"a": None}, SourceErrors.SHARD_ELSEWHERE, {"tensor": "a"}),
        ({"a": ["1"]}, SourceErrors.SHARD_ELSEWHERE, {"tensor": "a", "shard": ["1"]}),
        ({"a": "../1"}, SourceErrors.SHARD_ELSEWHERE, {"tensor": "a"}),
        ({"a": "inner/1"}, SourceErrors.SHARD_ELSEWHERE, {"tensor": "a"}),
        ({"a": "/etc/passwd"}, SourceErrors.SHARD_ELSEWHERE, {"tensor": "a"}),
        ({"a": "1\x00"}, SourceErrors.SHARD_ELSEWHERE, {"tensor": "a"}),
        ({"a": ".."}, SourceErrors.SHARDS_MISSING, {"missing": 1, "shards": 1}),
        ({"a": ""}, SourceErrors.SHARDS_MISSING, {"missing": 1, "shards": 1}),
        ({"a": "1", "b": "2"}, SourceErrors.SHARDS_MISSING, {"missing": 1, "shards": 2, "names": ["2"]}),
        (
            {"a": "1", **{str(n): f"{n}x" for n in range(10, 20)}}, SourceErrors.SHARDS_MISSING,
            {"missing": 10, "shards": 11},
        ),
        ({"a": "1", "ghost": "1"}, SourceErrors.NOT_IN_SHARD, {"tensor": "ghost"}),
    ],
)
@pytest.mark.parametrize(("save", "index"), [(save_safetensors, INDEX), (torch.save, BIN_INDEX)])
def test_indexes_that_are_refused(
    tmp_path: Path,
    save: Callable[[dict[str, torch.Tensor], Path], None],
    index: str,
    weight_map: object,
    kind: ErrorKind, fields: dict[str, Any],
) -> None:
    (tmp_path / "inner").mkdir()
    for path in (tmp_path / "1", tmp_path / "inner" / "1"):
        save({"a": A}, path)
    index_of(tmp_path, weight_map, index)
    with raises(kind, **fields):
        opened(tmp_path)


def test_a_shard_that_is_damaged_is_named(tmp_path: Path) -> None:
    save_safetensors({"a": A}, tmp_path / "1")
    (tmp_path / "2").write_bytes((tmp_path / "1").read_bytes()[:-1])
    index_of(tmp_path, {"a": "1", "b": "2"})
    with raises(SourceErrors.DAMAGED, path=tmp_path / "2"):
        opened(tmp_path)


# ------------------------------------------------------------------------------------------------------ PyTorch files


@pytest.mark.parametrize(
    ("values", "kind", "fields"),
    [
        ([A], SourceErrors.NO_STATE_DICT, {"path": "FILE", "form": "list"}),
        ({}, SourceErrors.EMPTY, {"path": "FILE"}),
        ({1: A}, SourceErrors.NOT_A_TENSOR, {"path": "FILE", "name": 1, "form": "Tensor"}),
        ({"a": [1.0]}, SourceErrors.NOT_A_TENSOR, {"path": "FILE", "name": "a", "form": "list"}),
        ({"a": A.to_sparse()}, SourceErrors.NOT_DENSE, {"path": "FILE", "tensor": "a"}),
        ({"a": torch.empty(2, device="meta")}, SourceErrors.NOT_DENSE, {"path": "FILE", "tensor": "a"}),
    ],
)
def test_what_is_no_state_dict(values: Any, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        state_dict(values, "FILE")


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
def test_a_quantized_tensor_is_not_dense() -> None:
    with raises(SourceErrors.NOT_DENSE, tensor="a"):
        state_dict({"a": torch.quantize_per_tensor(A, 0.1, 0, torch.qint8)}, "FILE")


def test_parameters_are_read_as_tensors() -> None:
    weight = torch.nn.Parameter(A.clone())
    read = DictSource(state_dict({"a": weight}, "FILE")).tensor("a")
    assert read.equal(A)
    assert not read.requires_grad


def test_an_archive_that_lost_its_end(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"a": A}, path)
    path.write_bytes(path.read_bytes()[:-30])
    with raises(SourceErrors.TRUNCATED_ARCHIVE):
        load_weights_only(path)


@pytest.mark.parametrize(
    ("error", "kind", "fields"),
    [
        (
            pickle.UnpicklingError("WeightsUnpickler error: Unsupported global: GLOBAL a.b was not"),
            SourceErrors.PICKLED,
            {"what": "a.b"},
        ),
        (pickle.UnpicklingError("Unsupported class c.D"), SourceErrors.PICKLED, {"what": "c.D"}),
        (pickle.UnpicklingError("unsupported class c.D"), SourceErrors.PICKLED, {"what": "c.D"}),
        (pickle.UnpicklingError("an instance of type <class 'e.F'>"), SourceErrors.PICKLED, {"what": "e.F"}),
        (pickle.UnpicklingError("a Global of some kind"), SourceErrors.PICKLED, {"what": "an object"}),
        (
            pickle.UnpicklingError("pickle  data was\ntruncated"),
            SourceErrors.NOT_PYTORCH,
            {"cause": "pickle data was truncated"},
        ),
        (RuntimeError("TorchScript archive"), SourceErrors.TORCHSCRIPT, {}),
        (RuntimeError("x" * 300), SourceErrors.NOT_PYTORCH, {"cause": "x" * 300}),
        (RuntimeError("x" * 301), SourceErrors.NOT_PYTORCH, {"cause": "x" * 300}),
        (
            RuntimeError("no\n zip. This is an internal error. Sorry"),
            SourceErrors.NOT_PYTORCH,
            {"cause": "no zip"},
        ),
        (EOFError(), SourceErrors.NOT_PYTORCH, {"cause": "EOFError"}),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_torch_says_of_a_file(
    error: Exception, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    path = tmp_path / "model.pt"
    torch.save({"a": A}, path)
    monkeypatch.setattr(torch, "load", fail)
    with raises(kind, path=path, **fields):
        load_weights_only(path)


@pytest.mark.parametrize("archive", [True, False])
def test_weights_are_mapped_and_nothing_is_run_or_warned_of(
    archive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    asked: list[dict[str, Any]] = []

    def load(path: Path, **options: Any) -> dict[str, torch.Tensor]:
        asked.append(options)
        warnings.warn("a warning of torch's", stacklevel=1)
        return {"a": A}

    path = tmp_path / "model.pt"
    torch.save({"a": A}, path, _use_new_zipfile_serialization=archive)
    monkeypatch.setattr(torch, "load", load)
    assert load_weights_only(path) == {"a": A}
    assert asked == [{"map_location": "cpu", "weights_only": True, "mmap": archive}]
    assert len(recwarn) == 0


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with raises(SourceErrors.UNREADABLE):
        load_weights_only(tmp_path / "absent.pt")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with raises(SourceErrors.DAMAGED):
        opened(tmp_path)


def test_a_tensor_that_is_lost_after_the_header_was_read(tmp_path: Path) -> None:
    save_safetensors({"a": A}, tmp_path / "model.safetensors")
    source = opened(tmp_path)
    del source.names()["a"]
    source.names()["b"] = ((2,), torch.float32)
    source._files["b"] = source._files.pop("a")  # type: ignore[attr-defined]
    with raises(SourceErrors.TENSOR_UNREADABLE, tensor="b"):
        source.tensor("b")
