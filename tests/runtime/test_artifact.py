"""Artifacts: written whole or not at all, equal for equal inputs, refused when damaged."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.torch import load_file

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.files import FileErrors
from sscc.ir.geometry import GeometryErrors
from sscc.ir.looping import Looping
from sscc.ir.schedule import (
    Access,
    Body,
    Kernel,
    Launch,
    Param,
    Pipeline,
    Port,
    Program,
    Stage,
    Tensor,
    Vector,
    View,
)
from sscc.runtime.artifact import artifact_files
from sscc.runtime.artifact.artifact_files import ArtifactFileErrors
from sscc.runtime.artifact.golden import Golden
from sscc.runtime.artifact.manifest import FORMAT_VERSION, FileRecord, Manifest, ManifestErrors, WeightsRecord
from sscc.runtime.artifact.safetensors_file import SafetensorsErrors
from sscc.runtime.artifact.tensor_files import (
    SHARD_BYTES,
    Array,
    Layout,
    Stack,
    TensorErrors,
    TensorSpec,
    digest_of,
    layout_of,
    plan_shards,
    read_specs,
    read_tensors,
    reading,
    specs_of,
    stack_tensors,
    write_tensors,
)
from sscc.runtime.artifact.writer import ArtifactOutputErrors, ArtifactWriter, is_artifact
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.reference.arrays import to_array
from sscc.runtime.backends.reference.backend import Reference
from sscc.runtime.session import artifact as artifact_module
from sscc.runtime.session.artifact import Artifact, ArtifactErrors
from sscc.runtime.support.verification import VerificationErrors
from sscc.runtime.text.chat_template import ChatTemplate
from tests.errors import raises
from tests.limits import largest_memory
from tests.runtime.fake import SIGNATURE
from tests.runtime.session_program import session_program
from tests.runtime.signatures import altered

OTHERWISE = {"mode": "embedded", "digest": "", "source": None, "packer": "native", "packed": ["w"]}
READS = f"this sscc reads {FORMAT_VERSION}"
CHECKPOINT = {
    "layers.0.w": np.arange(12, dtype=np.float32).reshape(3, 4),
    "layers.1.w": np.arange(12, 24, dtype=np.float32).reshape(3, 4),
    "model.b": np.arange(4).astype(ml_dtypes.bfloat16),
    "model.scalar": np.array(2.5, np.float32),
}
STACKED = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
WEIGHTS = {"w": STACKED, "b": CHECKPOINT["model.b"], "scalar": CHECKPOINT["model.scalar"]}
CONSTANTS = {
    "inv_freq.0": np.arange(5, dtype=np.float32),
    "inv_freq.1": np.arange(5, 10, dtype=np.float32),
    "mask": np.array([True]),
}
GOLDEN = Golden(
    (1, 2), (3,), {"prefill_logits": np.ones(4, np.float32), "logits.0": np.arange(4).astype(ml_dtypes.bfloat16)}
)
LOOPING = (Looping("decode", "layer.3", 2), Looping("prefill", "layer.7", 2, "layer 1 is of another shape"))

TENSORS = (
    Tensor("w", (2, 3, 4), "f32", "weight", "hbm", 0, ("layers.0.w", "layers.1.w")),
    Tensor("b", (4,), "bf16", "weight", "hbm", 192, ("model.b",)),
    Tensor("scalar", (), "f32", "weight", "hbm", 256, ("model.scalar",)),
    Tensor("inv_freq", (2, 5), "f32", "constant", "hbm", 320, ("inv_freq.0", "inv_freq.1")),
    Tensor("mask", (1,), "i1", "constant", "hbm", 384, ("mask",)),
)


def program(tensors: Sequence[Tensor] = TENSORS) -> Program:
    """A program of which decode copies the second layer of the weight w to the begin of its logits."""
    params = (Param("x", (3, 4), "f32", "read"), Param("y", (3, 4), "f32", "update"))
    rows = ((1, 0, 0), (0, 1, 0))
    body = Body("copy", params, (), (), (), (Vector((3, 4), (Access("x", rows),), Access("y", rows), (), "in0"),))
    ports = tuple(Port(View(param.name, (3, 4), (4, 1))) for param in params)
    stage = Stage("copy", "copy", (), ports, (), ())
    kernel = Kernel("copy", params, (), (Pipeline("copy", "i", 0, 1, (), (), (stage,)),))
    launch = Launch("copy", (View("w", (3, 4), (4, 1), 12), View("logits", (3, 4), (4, 1))))
    return session_program(SIGNATURE, tensors=tensors, bodies=(body,), kernels=(kernel,), decode=(launch,))


LAYOUT = layout_of(program(), "weight")
READ = reading(CHECKPOINT, "tiny")


def write(out: Path, mode: str = "embedded", shard_bytes: int = SHARD_BYTES) -> None:
    with ArtifactWriter(out) as writer:
        writer.write_program(program(), "a listing\n")
        writer.write_constants(layout_of(program(), "constant"), reading(CONSTANTS, "tiny"))
        writer.write_text("tokenizer/tokenizer.json", "{}")
        GOLDEN.save(writer)
        if mode == "embedded":
            record = WeightsRecord(mode, writer.write_weights(LAYOUT, READ, shard_bytes=shard_bytes))
        else:
            record = WeightsRecord(mode, digest_of(LAYOUT, READ))
        model = {"model_type": "tiny", "scale": float("inf")}
        writer.finish(Manifest("0.1", {"torch": "2"}, "rdu", model, SIGNATURE, record, LOOPING))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    path = tmp_path / "m.rdu"
    write(path)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# --------------------------------------------------------------------------------------------------- round trip


def test_what_is_written_is_loaded(out: Path) -> None:
    artifact = Artifact.load(out, verify=True)
    assert artifact.program == program()
    assert artifact.signature == SIGNATURE
    assert artifact.manifest.model["scale"] == float("inf")
    assert artifact.manifest.looping == LOOPING
    assert [record.looped for record in artifact.manifest.looping] == [True, False]
    assert artifact.tokenizer == out / "tokenizer"
    weights = artifact.weights()
    constants = {"inv_freq": np.arange(10, dtype=np.float32).reshape(2, 5), "mask": CONSTANTS["mask"]}
    assert weights.keys() == {**WEIGHTS, **constants}.keys()
    for name, tensor in {**WEIGHTS, **constants}.items():
        assert np.array_equal(weights[name], tensor), name
    golden = artifact.golden()
    assert golden is not None
    assert (golden.prompt, golden.new_tokens) == (GOLDEN.prompt, GOLDEN.new_tokens)
    assert list(golden.tensors) == list(GOLDEN.tensors)
    assert np.array_equal(golden.tensors["logits.0"], GOLDEN.tensors["logits.0"])


@pytest.mark.parametrize("rows", ["compact", "indexed"])
def test_numbers_of_layers_survive_the_manifest(rows: str) -> None:
    signature = altered(SIGNATURE, geometry=replace(SIGNATURE.geometry, rows=rows).with_layers([3, 1]))
    manifest = Manifest("0.1", {}, "rdu", {}, signature, WeightsRecord("embedded", ""))
    assert Manifest.from_json(manifest.to_json()).signature == signature
    assert '"layer_topk"' not in replace(manifest, signature=SIGNATURE).to_json()


def test_a_loaded_artifact_runs(out: Path) -> None:
    artifact = Artifact.load(out)
    tensors = {tensor.name: tensor for tensor in artifact.program.tensors}
    inputs = {
        name: np.zeros(tensors[name].shape, np.bool_ if name == "active" else np.int64)
        for name in artifact.program.entry("decode").inputs
    }
    logits = Reference(artifact.program).open(artifact.weights(), Conditions()).run("decode", inputs)[0]["logits"]
    assert np.array_equal(logits.flatten(), [*CHECKPOINT["layers.1.w"].flatten(), *np.ones(10, np.float32)])


def test_machine_code_in_an_artifact_is_never_read(tmp_path: Path) -> None:
    """Artifacts of earlier versions hold some. A pipe in its place, never written to, shows that it stays closed."""
    out = tmp_path / "m.rdu"
    with ArtifactWriter(out) as writer:
        writer.write_program(program())
        writer.write_constants(layout_of(program(), "constant"), reading(CONSTANTS, "tiny"))
        record = WeightsRecord("embedded", writer.write_weights(LAYOUT, READ))
        for kind in ("json", "plan", "so"):
            writer.write_text(f"native/x86_64-0123456789abcdef.{kind}", "{}")
        writer.finish(Manifest("0.1", {}, "rdu", {}, SIGNATURE, record))
    for path in (out / "native").iterdir():
        path.unlink()
        os.mkfifo(path)
    Artifact.load(out).weights()
    shutil.rmtree(out / "native")
    Artifact.load(out).weights()


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.rdu")
    write(tmp_path / "b.rdu")
    assert contents(tmp_path / "a.rdu") == contents(tmp_path / "b.rdu")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.rdu", "b.rdu"]


def test_other_readers_read_our_safetensors(out: Path) -> None:
    tensors = load_file(out / "weights/model-00001-of-00001.safetensors")
    assert all(np.array_equal(to_array(tensors[name]), array) for name, array in WEIGHTS.items())
    assert len(tensors) == len(WEIGHTS)
    data = (out / "weights/constants.safetensors").read_bytes()
    assert (int.from_bytes(data[:8], "little") + 8) % 64 == 0


def test_shards(tmp_path: Path) -> None:
    specs = specs_of(LAYOUT)
    assert plan_shards(specs, 96) == [["b", "scalar"], ["w"]]
    assert plan_shards(specs, 1) == [["b"], ["scalar"], ["w"]]
    assert plan_shards({}) == [[]]
    write(tmp_path / "m.rdu", shard_bytes=1)
    names = [path.name for path in sorted((tmp_path / "m.rdu" / "weights").glob("model-*"))]
    assert names == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    weights = Artifact.load(tmp_path / "m.rdu").weights()
    assert np.array_equal(weights["w"], STACKED)


def test_a_stack_is_written_with_one_source_ahead(tmp_path: Path) -> None:
    """A source is read after all sources but the one before it are in the file."""
    path, written = tmp_path / "x.safetensors", []

    def read(source: str, spec: TensorSpec) -> Array:
        written.append((source, path.stat().st_size))
        return np.full(spec.shape, len(written), np.float32)

    layers = tuple(f"layers.{i}" for i in range(5))
    tensor = Tensor("w", (5, 2**14), "f32", "weight", "hbm", 0, layers)
    with path.open("wb", buffering=0) as file:
        write_tensors(file, layout_of(Program((tensor,), (), (), (), 0), "weight"), read)
    header = path.stat().st_size - tensor.nbytes
    assert [source for source, _ in written] == list(layers)
    for number, (_, size) in enumerate(written):
        assert header + max(0, number - 1) * 2**16 <= size <= header + number * 2**16
    assert read_tensors(path)["w"][:, -1].tolist() == [1, 2, 3, 4, 5]


def test_tensors_of_whole_cache_lines_are_aligned_to_them(tmp_path: Path) -> None:
    arrays = {
        "a": np.zeros(1, np.bool_),
        "b": np.zeros(3, np.int64),
        "c": np.arange(32).astype(ml_dtypes.bfloat16),
        "d": np.arange(48, dtype=np.float32),
        "e": np.zeros((0, 4), np.float32),
        "f": np.array(1.5, np.float32),
    }
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        write_tensors(file, {name: Stack(TensorSpec.of(a), (name,)) for name, a in arrays.items()}, reading(arrays, ""))
    for name, array in read_tensors(path).items():
        assert np.array_equal(array, arrays[name]), name
        assert array.dtype == arrays[name].dtype
        assert array.flags.aligned
        assert not array.flags.writeable
        assert array.nbytes % 64 != 0 or array.size == 0 or array.ctypes.data % 64 == 0, name


def test_a_stack_has_the_digest_of_its_bytes() -> None:
    whole = {name: replace(stack, sources=(name,)) for name, stack in LAYOUT.items()}
    assert digest_of(LAYOUT, READ) == digest_of(whole, reading(WEIGHTS, "memory"))
    swapped = {**LAYOUT, "w": replace(LAYOUT["w"], sources=("layers.1.w", "layers.0.w"))}
    assert digest_of(swapped, READ) != digest_of(LAYOUT, READ)


def test_loading_maps_the_stack_where_it_lies(out: Path) -> None:
    """Loaded tensors are views of the mapped file, not copies."""
    shard = out / "weights/model-00001-of-00001.safetensors"
    with shard.open("r+b") as file:
        weights = Artifact.load(out).weights()
        file.seek(-4, os.SEEK_END)  # the wide dtypes come first: b, of bf16, ends the file
        file.write(np.array([7.0, 9.0], ml_dtypes.bfloat16).tobytes())
    assert weights["b"].tolist() == [0, 1, 7, 9]


# ------------------------------------------------------------------------------------------ program and weights


@pytest.mark.parametrize(
    ("shape", "sources"), [((3, 4), ()), ((3, 4), ("a", "b")), ((3, 4), ("a",) * 4), ((), ("a", "b"))]
)
def test_sources_that_do_not_make_up_the_shape(shape: tuple[int, ...], sources: tuple[str, ...]) -> None:
    tensor = Tensor("w", shape, "f32", "weight", "hbm", 0, sources)
    with raises(TensorErrors.SOURCES_DIFFER, role="weight", tensor="w", sources=len(sources)):
        layout_of(Program((tensor,), (), (), (), 0), "weight")


def test_one_source_is_never_a_stack() -> None:
    tensor = Tensor("w", (1, 4), "f32", "weight", "hbm", 0, ("a",))
    layout = layout_of(Program((tensor,), (), (), (), 0), "weight")
    assert layout["w"].part == TensorSpec((1, 4), "f32")
    assert layout_of(Program((tensor,), (), (), (), 0), "constant") == {}


def test_referenced_weights_need_a_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "m.rdu", mode="reference")
    artifact = Artifact.load(tmp_path / "m.rdu")
    with raises(ArtifactErrors.NO_WEIGHTS):
        artifact.weights()
    asked = []

    def resolve(layout: Layout) -> Mapping[str, Array]:
        asked.append(layout)
        return WEIGHTS

    assert np.array_equal(artifact.weights(resolve)["w"], STACKED)
    assert asked == [LAYOUT]


def test_another_checkpoint_of_the_same_spec_runs(out: Path) -> None:
    artifact = Artifact.load(out)
    other = {name: np.asarray(array + 1, np.float16) for name, array in CHECKPOINT.items()}

    def resolve(layout: Layout) -> Mapping[str, Array]:
        return stack_tensors(layout, reading(other, "the other checkpoint"))

    weights = artifact.weights(resolve)
    assert np.array_equal(weights["w"], STACKED + 1)
    assert weights["w"].dtype == np.float32
    assert weights["b"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("change", "kind", "fields"),
    [
        ({"layers.1.w": None}, TensorErrors.MISSING, {"tensor": "layers.1.w", "expected": "f32 [3, 4]"}),
        (
            {"layers.1.w": np.ones((4, 3), np.float32)}, TensorErrors.OTHER_TENSOR,
            {"tensor": "layers.1.w", "dtype": "float32", "shape": [4, 3], "expected": "f32 [3, 4]"},
        ),
        (
            {"layers.0.w": STACKED}, TensorErrors.OTHER_TENSOR,
            {"tensor": "layers.0.w", "dtype": "float32", "shape": [2, 3, 4], "expected": "f32 [3, 4]"},
        ),
        (
            {"layers.1.w": np.zeros((3, 4), np.int8)}, TensorErrors.OTHER_TENSOR,
            {"tensor": "layers.1.w", "dtype": "int8", "shape": [3, 4], "expected": "f32 [3, 4]"},
        ),
        (
            {"model.b": np.zeros(4, np.bool_)}, TensorErrors.OTHER_TENSOR,
            {"tensor": "model.b", "dtype": "bool", "shape": [4], "expected": "bf16 [4]"},
        ),
    ],
)
def test_a_checkpoint_of_another_spec_is_refused(
    tmp_path: Path, change: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]
) -> None:
    tensors = {name: tensor for name, tensor in {**CHECKPOINT, **change}.items() if tensor is not None}
    read = reading(tensors, "tiny")
    with raises(kind, **fields):
        stack_tensors(LAYOUT, read)
    with raises(kind, **fields):
        digest_of(LAYOUT, read)
    with raises(kind, **fields), ArtifactWriter(tmp_path / "m.rdu") as writer:
        writer.write_weights(LAYOUT, read)
    assert list(tmp_path.iterdir()) == []


def test_a_resolver_that_lacks_a_tensor_is_refused(out: Path) -> None:
    with raises(TensorErrors.MISSING, where="the checkpoint", tensor="b", expected="bf16 [4]"):
        Artifact.load(out).weights(lambda _: {"w": STACKED})


# -------------------------------------------------------------------------------------------------------- writing


def test_an_artifact_is_replaced_and_anything_else_is_not(tmp_path: Path, out: Path) -> None:
    before = contents(out)
    (out / "stale").write_text("old")
    write(out)
    assert contents(out) == before
    for name in ("folder", "file"):
        path = tmp_path / name
        path.mkdir() if name == "folder" else path.write_text("precious")
        with raises(ArtifactOutputErrors.NOT_AN_ARTIFACT):
            write(path)
    assert (tmp_path / "file").read_text() == "precious"
    assert not is_artifact(tmp_path)
    assert is_artifact(out)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, InputError])
def test_a_failure_leaves_the_old_artifact_and_nothing_else(out: Path, error: type[BaseException]) -> None:
    before = contents(out)

    def fail() -> None:
        with ArtifactWriter(out) as writer:
            writer.write_text("schedule.json", "half")
            raise error

    with pytest.raises(error):
        fail()
    assert contents(out) == before
    assert [path.name for path in out.parent.iterdir()] == ["m.rdu"]


def test_a_place_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    with raises(FileErrors.CANNOT_WRITE, reason="No such file or directory"):
        write(tmp_path / "missing" / "m.rdu")
    (tmp_path / "file").write_text("")
    with raises(FileErrors.CANNOT_WRITE, reason="Not a directory"):
        write(tmp_path / "file" / "m.rdu")


def test_errors_of_what_is_read_while_writing_keep_their_kind(tmp_path: Path) -> None:
    def read(source: str, spec: TensorSpec) -> Array:
        raise FileNotFoundError(source)

    with pytest.raises(FileNotFoundError), ArtifactWriter(tmp_path / "m.rdu") as writer:
        writer.write_weights(LAYOUT, read)
    with raises(TensorErrors.OTHER_SPEC, tensor="model.b"), ArtifactWriter(tmp_path / "m.rdu") as writer:
        writer.write_weights(LAYOUT, lambda _, spec: np.zeros(spec.shape, np.float32))
    assert list(tmp_path.iterdir()) == []


def test_misuse_of_the_writer_is_our_bug(tmp_path: Path) -> None:
    with raises(ArtifactOutputErrors.NO_MANIFEST), ArtifactWriter(tmp_path / "m.rdu"):
        pass


@pytest.mark.parametrize("path", ["schedule.json", "manifest.json", "../x"])
def test_a_file_that_exists_or_lies_outside_is_our_bug(tmp_path: Path, path: str) -> None:
    with ArtifactWriter(tmp_path / "m.rdu") as writer:
        writer.write_program(program())
        with raises(ArtifactOutputErrors.DOUBLE_FILE):
            writer.write_text(path, "")
        record = WeightsRecord("reference", "")
        writer.finish(Manifest("0.1", {}, "rdu", {}, SIGNATURE, record))


def test_the_folder_has_ordinary_permissions(out: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(out.stat().st_mode) == 0o777 & ~umask


# -------------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("name", sorted(contents_names := [
    "schedule.json", "schedule.txt", "weights/constants.safetensors", "weights/model-00001-of-00001.safetensors",
    "golden/golden.json", "golden/golden.safetensors", "tokenizer/tokenizer.json",
]))  # fmt: skip
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_missing_or_truncated_file_is_refused(out: Path, name: str, damage: str) -> None:
    path = out / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    kind = ArtifactFileErrors.CANNOT_READ if damage == "missing" else ArtifactFileErrors.SIZE_DIFFERS
    with raises(kind, path=path):
        Artifact.load(out)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_flipped_bits_are_found(out: Path) -> None:
    shard = out / "weights/model-00001-of-00001.safetensors"
    flip(shard, -1)
    artifact = Artifact.load(out)  # sizes and headers are right; gigabytes are read when they are wanted
    with raises(VerificationErrors.DIGEST_DIFFERS, path=shard):
        artifact.weights()
    assert artifact.weights(lambda _: WEIGHTS).keys() == {*WEIGHTS, "inv_freq", "mask"}, "they are others"
    assert not np.array_equal(Artifact.load(out, verify=False).weights()["b"], WEIGHTS["b"])
    flip(shard, -1)
    Artifact.load(out).weights()
    flip(shard, 9)
    with pytest.raises(InputError):
        Artifact.load(out).weights()
    flip(shard, 9)
    flip(out / "weights/constants.safetensors", -1)
    with raises(ArtifactFileErrors.DIGEST_DIFFERS):
        Artifact.load(out, verify=False)


def edit(out: Path, *path: str | int, value: Any) -> None:
    data = json.loads((out / "manifest.json").read_text())
    target: Any = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    (out / "manifest.json").write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("path", "value", "kind", "fields"),
    [
        (
            ("format",), FORMAT_VERSION + 1, ManifestErrors.FORMAT_NEWER,
            {"version": FORMAT_VERSION + 1, "supported": FORMAT_VERSION, "writer": "0.1"},
        ),
        (("format",), 1, ManifestErrors.FORMAT_OLDER, {"version": 1, "supported": FORMAT_VERSION, "writer": "0.1"}),
        (("format",), "2", ManifestErrors.FORMAT_UNKNOWN, {"version": "2", "supported": FORMAT_VERSION}),
        (("batch",), "2", ManifestErrors.TYPE, {"field": "batch", "value": "2", "type": "int"}),
        (
            ("batch",), 0, ManifestErrors.BELOW_LEAST,
            {"field": "batch, prefill_chunk, vocab_size", "values": ["0", "8", "11"], "least": 1},
        ),
        (
            ("dtype",), "f8", ManifestErrors.DTYPE,
            {"dtype": "f8", "dtypes": ["f32", "bf16", "i64", "i8", "i1"]},
        ),
        (
            ("geometry", "sink"), -1, ManifestErrors.GEOMETRY,
            {"field": "geometry", "cause": GeometryErrors.TOO_SMALL(field="sink", value=-1, least=0)},
        ),
        (
            ("geometry", "pool"), (1 << 20) + 1, ManifestErrors.GEOMETRY,
            {"field": "geometry", "cause": GeometryErrors.LARGE_POOL(pool=1048577, most=1048575)},
        ),
        (("geometry", "extra"), 1, ManifestErrors.GEOMETRY, {"field": "geometry"}),
        (("geometry", "recent"), 4.0, ManifestErrors.GEOMETRY_VALUE, {"field": "geometry.recent", "value": "4.0"}),
        (("geometry", "sink"), True, ManifestErrors.GEOMETRY_VALUE, {"field": "geometry.sink", "value": "True"}),
        (
            ("geometry", "layer_topk"), 3, ManifestErrors.TYPE,
            {"field": "geometry.layer_topk", "value": "3", "type": "list"},
        ),
        (
            ("geometry", "layer_topk"), [4], ManifestErrors.GEOMETRY,
            {"field": "geometry", "cause": GeometryErrors.LAYER_TOPK(topk=4, most=3)},
        ),
        (
            ("geometry", "layer_topk"), [-1], ManifestErrors.BELOW_LEAST,
            {"field": "geometry.layer_topk", "values": ["-1"], "least": 0},
        ),
        (
            ("groups", 0, "geometry", "layer_topk"), "31", ManifestErrors.TYPE,
            {"field": "groups[0].geometry.layer_topk", "value": "31", "type": "list"},
        ),
        (
            ("groups", 0, "geometry", "layer_topk"), None, ManifestErrors.TYPE,
            {"field": "groups[0].geometry.layer_topk", "value": "None", "type": "list"},
        ),
        (
            ("groups", 0, "geometry", "layer_topk"), {}, ManifestErrors.TYPE,
            {"field": "groups[0].geometry.layer_topk", "value": "{}", "type": "list"},
        ),
        (
            ("groups", 0, "geometry", "layer_topk"), [3, "1"], ManifestErrors.BELOW_LEAST,
            {"field": "groups[0].geometry.layer_topk", "values": ["3", "1"], "least": 0},
        ),
        (
            ("groups", 0, "geometry", "layer_topk"), [3, True], ManifestErrors.BELOW_LEAST,
            {"field": "groups[0].geometry.layer_topk", "values": ["3", "True"], "least": 0},
        ),
        (
            ("groups", 0, "geometry", "layer_topk"), [3, 1.0], ManifestErrors.BELOW_LEAST,
            {"field": "groups[0].geometry.layer_topk", "values": ["3", "1.0"], "least": 0},
        ),
        (
            ("groups", 0, "geometry", "layer_topk"), [3, 4], ManifestErrors.GEOMETRY,
            {"field": "groups[0].geometry", "cause": GeometryErrors.LAYER_TOPK(topk=4, most=3)},
        ),
        (
            ("groups", 0, "geometry", "layer_topk"), [3], ManifestErrors.LAYER_TOPK,
            {"field": "groups[0].geometry.layer_topk", "numbers": 1, "layers": 2},
        ),
        (
            ("groups", 0, "geometry", "layer_topk"), [3, 1, 0], ManifestErrors.LAYER_TOPK,
            {"field": "groups[0].geometry.layer_topk", "numbers": 3, "layers": 2},
        ),
        (("groups",), {}, ManifestErrors.TYPE, {"field": "groups", "value": "{}", "type": "list"}),
        (("groups",), [], ManifestErrors.GROUPS, {}),
        (("groups",), [3], ManifestErrors.TYPE, {"field": "groups[0]", "value": "3", "type": "dict"}),
        (("groups", 0, "name"), None, ManifestErrors.TYPE, {"field": "groups[0].name", "value": "None", "type": "str"}),
        (
            ("groups", 0, "layers"), "01", ManifestErrors.TYPE,
            {"field": "groups[0].layers", "value": "01", "type": "list"},
        ),
        (
            ("groups", 0, "layers"), [0, True], ManifestErrors.BELOW_LEAST,
            {"field": "groups[0].layers", "values": ["0", "True"], "least": 0},
        ),
        (
            ("groups", 0, "layers"), [-1], ManifestErrors.BELOW_LEAST,
            {"field": "groups[0].layers", "values": ["-1"], "least": 0},
        ),
        (("groups", 0, "layers"), [], ManifestErrors.GROUPS, {}),
        (
            ("groups", 0, "layers"), [1], ManifestErrors.LAYERS,
            {"reason": "the groups' layers must cover 1 layers, got [[1]]"},
        ),
        (
            ("groups", 0, "layers"), [0, 0], ManifestErrors.LAYERS,
            {"reason": "the groups' layers must cover 2 layers, got [[0, 0]]"},
        ),
        (
            ("groups", 0, "layers"), [1, 0], ManifestErrors.LAYERS,
            {"reason": "the groups' layers must cover 2 layers, got [[1, 0]]"},
        ),
        (
            ("groups", 0, "sharers"), 3, ManifestErrors.TYPE,
            {"field": "groups[0].sharers", "value": "3", "type": "list"},
        ),
        (
            ("groups", 0, "sharers"), [-1], ManifestErrors.BELOW_LEAST,
            {"field": "groups[0].sharers", "values": ["-1"], "least": 0},
        ),
        (
            ("groups", 0, "sharers"), [1], ManifestErrors.LAYERS,
            {"reason": "the groups' layers must cover 3 layers, got [[0, 1, 1]]"},
        ),
        (
            ("groups", 0, "sharers"), [2], ManifestErrors.LAYERS,
            {"reason": "a group with sharers must have one layer, got [0, 1]"},
        ),
        (
            ("groups", 0, "beside"), 1, ManifestErrors.TYPE,
            {"field": "groups[0].beside", "value": "1", "type": "bool"},
        ),
        (("groups", 0, "beside"), True, ManifestErrors.GROUPS, {}),
        (("groups", 0, "heads"), "4", ManifestErrors.TYPE, {"field": "groups[0].heads", "value": "4", "type": "int"}),
        (
            ("groups", 0, "kv_heads"), 0, ManifestErrors.BELOW_LEAST,
            {"field": "groups[0].heads", "values": ["4", "0"], "least": 1},
        ),
        (
            ("groups", 0, "kv_heads"), 1000, ManifestErrors.HEADS,
            {"field": "groups[0].heads", "heads": 4, "kv_heads": 1000},
        ),
        (("groups", 0, "streams"), [], ManifestErrors.STREAMS, {"field": "groups[0].streams", "streams": []}),
        (
            ("groups", 0, "streams"), [3], ManifestErrors.TYPE,
            {"field": "groups[0].streams", "value": "3", "type": "dict"},
        ),
        (
            ("groups", 0, "streams", 0, "name"), "v", ManifestErrors.STREAMS,
            {"field": "groups[0].streams", "streams": ["v", "v"]},
        ),
        (
            ("groups", 0, "streams", 0, "name"), 3, ManifestErrors.TYPE,
            {"field": "groups[0].streams.name", "value": "3", "type": "str"},
        ),
        (
            ("groups", 0, "streams", 1, "width"), 0, ManifestErrors.BELOW_LEAST,
            {"field": "groups[0].streams.width", "values": ["0"], "least": 1},
        ),
        (
            ("groups", 0, "streams", 1, "width"), None, ManifestErrors.TYPE,
            {"field": "groups[0].streams.width", "value": "None", "type": "int"},
        ),
        (
            ("groups", 0, "geometry"), None, ManifestErrors.TYPE,
            {"field": "groups[0].geometry", "value": "None", "type": "dict"},
        ),
        (("groups", 0, "geometry"), {}, ManifestErrors.GEOMETRY, {"field": "groups[0].geometry"}),
        (
            ("groups", 0, "geometry", "recent"), 0, ManifestErrors.GEOMETRY,
            {"field": "groups[0].geometry", "cause": GeometryErrors.TOO_SMALL(field="recent", value=0, least=1)},
        ),
        (("groups", 0, "geometry", "recent"), "4", ManifestErrors.GEOMETRY, {"field": "groups[0].geometry"}),
        (
            ("groups", 0, "geometry", "window"), 1, ManifestErrors.GEOMETRY,
            {"field": "groups[0].geometry", "cause": GeometryErrors.WINDOW_RING(window=1, sink=2, recent=4, topk=3)},
        ),
        (("groups", 0, "geometry", "window"), "x", ManifestErrors.GEOMETRY, {"field": "groups[0].geometry"}),
        (("groups", 0, "geometry", "max_context"), 100000, ManifestErrors.GROUPS, {}),
        (
            ("eos_token_ids",), ["x"], ManifestErrors.BELOW_LEAST,
            {"field": "eos_token_ids", "values": ["x"], "least": 0},
        ),
        (("weights", "mode"), "none", ManifestErrors.WEIGHT_MODE, {"mode": "none"}),
        (("weights", "digest"), "../../x", ManifestErrors.DIGEST, {"digest": "../../x"}),
        (("weights", "packed"), [3], ManifestErrors.PACKED, {"packed": ["3"]}),
        (("weights", "packer"), None, ManifestErrors.TYPE, {"field": "weights.packer", "value": "None", "type": "str"}),
        (("weights", "packer"), "gpu", ArtifactErrors.NO_BACKEND, {"backend": "gpu"}),
        (("weights",), OTHERWISE, ArtifactErrors.PACKED_OTHERWISE, {"backend": "native"}),
        (("looping",), {}, ManifestErrors.TYPE, {"field": "looping", "value": "{}", "type": "list"}),
        (("looping",), [3], ManifestErrors.TYPE, {"field": "looping[0]", "value": "3", "type": "dict"}),
        (
            ("looping",), [{"entry": "decode"}], ManifestErrors.TYPE,
            {"field": "looping[0].kernel", "value": "None", "type": "str"},
        ),
        (
            ("looping", 1, "layers"), "2", ManifestErrors.TYPE,
            {"field": "looping[1].layers", "value": "2", "type": "int"},
        ),
        (
            ("looping", 1, "layers"), 0, ManifestErrors.BELOW_LEAST,
            {"field": "looping[1].layers", "values": ["0"], "least": 1},
        ),
        (("files", "../evil"), {"bytes": 0, "sha256": ""}, ManifestErrors.FILE_NAME, {"name": "../evil"}),
        (("files", "schedule.json"), None, ManifestErrors.FILE_NAME, {"name": "schedule.json"}),
        (("files", "/etc/passwd"), {"bytes": 0, "sha256": ""}, ManifestErrors.FILE_NAME, {"name": "/etc/passwd"}),
        (("files", "//x"), {"bytes": 0, "sha256": ""}, ManifestErrors.FILE_NAME, {"name": "//x"}),
        (
            ("files", "./schedule.json"), {"bytes": 0, "sha256": ""}, ManifestErrors.FILE_NAME,
            {"name": "./schedule.json"},
        ),
        (
            ("files", "golden//golden.json"), {"bytes": 0, "sha256": ""}, ManifestErrors.FILE_NAME,
            {"name": "golden//golden.json"},
        ),
        (("files", "weights/"), {"bytes": 0, "sha256": ""}, ManifestErrors.FILE_NAME, {"name": "weights/"}),
        (("files", ""), {"bytes": 0, "sha256": ""}, ManifestErrors.FILE_NAME, {"name": ""}),
        (("files", "a\0b"), {"bytes": 0, "sha256": ""}, ManifestErrors.FILE_NAME, {"name": "a\0b"}),
        (("files", "weights"), {"bytes": 0, "sha256": ""}, FileErrors.NOT_REGULAR, {}),
        (
            ("files", "missing/x"), {"bytes": 0, "sha256": ""}, ArtifactFileErrors.CANNOT_READ,
            {"reason": "No such file or directory"},
        ),
        (
            ("files", "schedule.txt/x"), {"bytes": 0, "sha256": ""}, ArtifactFileErrors.CANNOT_READ,
            {"reason": "Not a directory"},
        ),
        (("files",), {}, ArtifactErrors.NO_FILE, {"name": "schedule.json"}),
    ],
)
def test_a_malformed_manifest_is_refused(
    out: Path, path: tuple[str | int, ...], value: Any, kind: ErrorKind, fields: dict[str, Any]
) -> None:
    edit(out, *path, value=value)
    with raises(kind, **fields):
        Artifact.load(out)


@pytest.mark.parametrize(
    ("changes", "kind", "fields"),
    [
        ({"name": "", "layers": [1]}, ManifestErrors.GROUP_NAMES, {}),
        (
            {"name": "other"}, ManifestErrors.LAYERS,
            {"reason": "the groups' layers must cover 2 layers, got [[0], [0]]"},
        ),
        (
            {"name": "other", "layers": [2]}, ManifestErrors.LAYERS,
            {"reason": "the groups' layers must cover 2 layers, got [[0], [2]]"},
        ),
        (
            {"name": "other", "layers": []}, ManifestErrors.LAYERS,
            {"reason": "the groups' layers must cover 1 layers, got [[0], []]"},
        ),
        ({"name": "other", "layers": [1]}, ArtifactErrors.INVALID, {}),
        (
            {"name": "other", "layers": [1], "beside": True}, ManifestErrors.LAYERS,
            {"reason": "the groups' layers must cover 1 layers, got [[0], [1]]"},
        ),
        ({"name": "other", "beside": True}, ArtifactErrors.INVALID, {}),
    ],
)
def test_a_group_too_many_is_refused(
    out: Path, changes: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]
) -> None:
    group = json.loads((out / "manifest.json").read_text())["groups"][0]
    edit(out, "groups", value=[{**group, "layers": [0]}, {**group, "layers": [0], **changes}])
    with raises(kind, **fields):
        Artifact.load(out)


def test_what_is_no_artifact_is_refused(tmp_path: Path) -> None:
    with raises(ArtifactFileErrors.NO_MANIFEST, name="manifest.json"):
        Artifact.load(tmp_path)
    with raises(FileErrors.MISSING):
        Artifact.load(tmp_path / "missing.rdu")
    (tmp_path / "file.rdu").write_text("")
    with raises(ArtifactFileErrors.NOT_A_FOLDER):
        Artifact.load(tmp_path / "file.rdu")
    (tmp_path / "manifest.json").write_text("{")
    with raises(ManifestErrors.NOT_JSON):
        Artifact.load(tmp_path)
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe")
    with raises(ArtifactFileErrors.NOT_UTF8):
        Artifact.load(tmp_path)


def test_a_file_that_is_named_twice_is_refused(out: Path) -> None:
    path = out / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"files": {', '"files": {"schedule.json": {"bytes": 0, "sha256": ""}, ', 1))
    with raises(ManifestErrors.NAME_TWICE, name="schedule.json"):
        Artifact.load(out)


FILES = ["manifest.json", "schedule.json", "weights/constants.safetensors", "weights/model-00001-of-00001.safetensors"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", ["file", "folder"])
def test_links_are_not_followed(out: Path, tmp_path: Path, name: str, place: str) -> None:
    path = out / name if place == "file" else (out / name).parent
    if path == out:  # which may be a link: who names it on the command line means what it leads to
        path.rename(tmp_path / "moved").rename(tmp_path / "again")
        path.symlink_to("again")
        Artifact.load(out).weights()
        return
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with raises(FileErrors.LINK, path=path):
        Artifact.load(out)


@pytest.mark.parametrize("name", FILES)
def test_pipes_are_refused_at_once(out: Path, name: str) -> None:
    (out / name).unlink()
    os.mkfifo(out / name)
    with raises(FileErrors.NOT_REGULAR):
        Artifact.load(out)


@pytest.mark.parametrize("name", ["manifest.json", "schedule.json", "machine.json", "schedule.txt"])
def test_huge_files_are_refused_unread(out: Path, name: str) -> None:
    """A sparse file of 10 GB needs no disk space; reading it would need all memory."""
    nbytes = 10 * 10**9
    (out / name).touch()
    os.truncate(out / name, nbytes)
    if name != "manifest.json":
        edit(out, "files", name, value={"bytes": nbytes, "sha256": ""})
    with largest_memory(2**32), raises(ArtifactFileErrors.TOO_LARGE):
        Artifact.load(out)


def test_files_that_the_manifest_does_not_name_are_not_read(out: Path) -> None:
    for name in ("tokenizer/chat_template.jinja", "machine.json", "weights/model-00009-of-00009.safetensors"):
        os.mkfifo(out / name)
    artifact = Artifact.load(out)
    assert artifact.weights().keys() == {*WEIGHTS, "inv_freq", "mask"}
    assert artifact.tokenizer_files == {"tokenizer.json"}
    assert ChatTemplate.load(out / "tokenizer", names=artifact.tokenizer_files) is None
    with raises(ArtifactErrors.NO_FILE, name="machine.json"):
        _ = artifact.target
    edit(out, "files", value={name: record for name, record in files_of(out).items() if "golden.json" not in name})
    (out / "golden/golden.json").unlink()
    os.mkfifo(out / "golden/golden.json")
    assert Artifact.load(out).golden() is None


def files_of(out: Path) -> dict[str, Any]:
    files: dict[str, Any] = json.loads((out / "manifest.json").read_text())["files"]
    return files


def test_an_artifact_that_is_replaced_while_it_is_read_is_read_again(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "other.rdu", mode="reference")
    check, checked = artifact_module.check_file, []

    def replacing(folder: Path, name: str, record: FileRecord) -> None:
        checked.append(name)
        if len(checked) == 3:
            shutil.rmtree(out)
            (tmp_path / "other.rdu").rename(out)
        check(folder, name, record)

    monkeypatch.setattr(artifact_module, "check_file", replacing)
    assert Artifact.load(out).manifest.weights.mode == "reference"


OTHER_FILES = {
    "missing weight": (
        (TENSORS[0], *TENSORS[2:]), ArtifactErrors.SPEC_DIFFERS,
        {"role": "weight", "tensor": "b", "held": "bf16 [4]", "expected": "missing"},
    ),
    "shape": (
        (replace(TENSORS[0], shape=(2, 4, 3)), *TENSORS[1:]), ArtifactErrors.SPEC_DIFFERS,
        {"role": "weight", "tensor": "w", "held": "f32 [2, 3, 4]", "expected": "f32 [2, 4, 3]"},
    ),
    "dtype": (
        (TENSORS[0], replace(TENSORS[1], dtype="f32"), *TENSORS[2:]), ArtifactErrors.SPEC_DIFFERS,
        {"role": "weight", "tensor": "b", "held": "bf16 [4]", "expected": "f32 [4]"},
    ),
    "more weights": (
        (*TENSORS, replace(TENSORS[1], name="c", address=448)), ArtifactErrors.SPEC_DIFFERS,
        {"role": "weight", "tensor": "c", "held": "missing", "expected": "bf16 [4]"},
    ),
    "constant": (
        (*TENSORS[:3], replace(TENSORS[3], shape=(2, 6)), *TENSORS[4:]), ArtifactErrors.SPEC_DIFFERS,
        {"role": "constant", "tensor": "inv_freq", "held": "f32 [2, 5]", "expected": "f32 [2, 6]"},
    ),
}


@pytest.mark.parametrize(("tensors", "kind", "fields"), OTHER_FILES.values(), ids=OTHER_FILES)
def test_a_program_that_wants_other_tensors_is_refused(
    tmp_path: Path, tensors: tuple[Tensor, ...], kind: ErrorKind, fields: dict[str, Any]
) -> None:
    with ArtifactWriter(tmp_path / "m.rdu") as writer:
        writer.write_program(program(tensors))
        writer.write_constants(layout_of(program(), "constant"), reading(CONSTANTS, "tiny"))
        record = WeightsRecord("embedded", writer.write_weights(LAYOUT, READ))
        writer.finish(Manifest("0.1", {}, "rdu", {}, SIGNATURE, record))
    with raises(kind, **fields):
        Artifact.load(tmp_path / "m.rdu")


def test_a_truncated_safetensors_header_is_refused(tmp_path: Path, out: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((out / "weights/constants.safetensors").read_bytes()[:40])
    with raises(SafetensorsErrors.HEADER_TRUNCATED):
        read_specs(path)
    with raises(FileErrors.CANNOT_READ):
        read_specs(tmp_path / "missing.safetensors")


def test_manifests_survive_their_file_form(out: Path) -> None:
    text = (out / "manifest.json").read_text()
    manifest = Manifest.from_json(text)
    assert manifest.to_json() == text
    assert replace(manifest, sscc="9").to_json() != text
    assert str(out) not in text
    assert artifact_files.SCHEDULE in manifest.files
