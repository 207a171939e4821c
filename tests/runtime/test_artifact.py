"""Artifacts: written whole or not at all, equal for equal inputs, refused when damaged."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sscc.ir.errors import InputError, InternalError, OutputError
from sscc.runtime import artifact_writer
from sscc.runtime.artifact import Artifact, ArtifactWriter, is_artifact
from sscc.runtime.golden import Golden
from sscc.runtime.manifest import FORMAT_VERSION, Manifest, WeightsRecord
from sscc.runtime.reference import ReferenceInterpreter
from sscc.runtime.schedule import Entry, Launch, Program
from sscc.runtime.tensor_files import TensorSpec, digest_of, plan_shards, read_specs
from tests.runtime.fake import SIGNATURE
from tests.runtime.programs import copy_kernel, lay_out, whole

WEIGHTS = {
    "model.w": torch.arange(12.0).view(3, 4),
    "model.b": torch.arange(4.0).bfloat16(),
    "model.scalar": torch.tensor(2.5),
}
CONSTANTS = {"inv_freq": torch.arange(5.0), "mask": torch.tensor([True, False, True])}
SPEC = {name: TensorSpec.of(tensor) for name, tensor in WEIGHTS.items()}
GOLDEN = Golden((1, 2), (3,), {"prefill_logits": torch.randn(4), "logits.0": torch.randn(4)})


def program() -> Program:
    """Copies weight model.w to an output."""
    tensors, arena = lay_out(
        ("model.w", (3, 4), "f32", "weight"), ("inv_freq", (5,), "f32", "constant"), ("y", (3, 4), "f32", "output")
    )
    entry = Entry("decode", (), ("y",), (), (), (Launch("copy", (whole(tensors[0]), whole(tensors[2]))),))
    return Program(tensors, (copy_kernel("copy", (3, 4)),), (entry,), arena)


def write(out: Path, mode: str = "embedded", shard_bytes: int | None = None) -> None:
    with ArtifactWriter(out) as writer:
        writer.write_program(program(), "a listing\n")
        writer.write_constants(CONSTANTS)
        writer.write_text("tokenizer/tokenizer.json", "{}")
        GOLDEN.save(writer)
        if mode == "embedded":
            record = WeightsRecord(mode, writer.write_weights(SPEC, WEIGHTS.__getitem__, shard_bytes), None, SPEC)
        else:
            record = WeightsRecord(mode, digest_of(SPEC, WEIGHTS.__getitem__), "/checkpoints/tiny", SPEC)
        model = {"model_type": "tiny", "scale": float("inf")}
        writer.finish(Manifest("0.1", {"torch": "2"}, "rdu", model, SIGNATURE, record))


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
    assert artifact.checkpoint_spec == SPEC
    assert artifact.manifest.model["scale"] == float("inf")
    assert artifact.tokenizer == out / "tokenizer"
    weights = artifact.weights(check_digest=True)
    for name, tensor in {**WEIGHTS, **CONSTANTS}.items():
        assert torch.equal(weights[name], tensor), name
    golden = artifact.golden()
    assert golden is not None
    assert (golden.prompt, golden.new_tokens) == (GOLDEN.prompt, GOLDEN.new_tokens)
    assert list(golden.tensors) == list(GOLDEN.tensors)
    assert torch.equal(golden.tensors["logits.0"], GOLDEN.tensors["logits.0"])
    y = ReferenceInterpreter(artifact.program, weights).run("decode", {})[0]["y"]
    assert torch.equal(y, WEIGHTS["model.w"])


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.rdu")
    write(tmp_path / "b.rdu")
    assert contents(tmp_path / "a.rdu") == contents(tmp_path / "b.rdu")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.rdu", "b.rdu"]


def test_other_readers_read_our_safetensors(out: Path) -> None:
    found = load_file(out / "weights/model-00001-of-00001.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in WEIGHTS.items())
    assert len(found) == len(WEIGHTS)
    data = (out / "weights/constants.safetensors").read_bytes()
    assert (int.from_bytes(data[:8], "little") + 8) % 64 == 0


def test_shards(tmp_path: Path) -> None:
    assert plan_shards(SPEC, 56) == [["model.b", "model.scalar"], ["model.w"]]
    assert plan_shards(SPEC, 1) == [["model.b"], ["model.scalar"], ["model.w"]]
    assert plan_shards({}) == [[]]
    write(tmp_path / "m.rdu", shard_bytes=1)
    names = [path.name for path in sorted((tmp_path / "m.rdu" / "weights").glob("model-*"))]
    assert names == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    weights = Artifact.load(tmp_path / "m.rdu").weights(check_digest=True)
    assert torch.equal(weights["model.w"], WEIGHTS["model.w"])


# ------------------------------------------------------------------------------------------ program and weights


def test_referenced_weights_need_a_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "m.rdu", mode="reference")
    artifact = Artifact.load(tmp_path / "m.rdu")
    with pytest.raises(InputError, match="holds no weights, it refers to /checkpoints/tiny: give them"):
        artifact.weights()
    asked = []

    def resolve(record: WeightsRecord) -> Mapping[str, torch.Tensor]:
        asked.append(record.source)
        return WEIGHTS

    assert torch.equal(artifact.weights(resolve, check_digest=True)["model.b"], WEIGHTS["model.b"])
    assert asked == ["/checkpoints/tiny"]


def test_another_checkpoint_of_the_same_spec_runs(out: Path) -> None:
    artifact = Artifact.load(out)
    other = {name: (tensor + 1).half() for name, tensor in WEIGHTS.items()}
    weights = artifact.weights(lambda _: other)
    assert torch.equal(weights["model.w"], WEIGHTS["model.w"] + 1)
    assert weights["model.b"].dtype is torch.bfloat16
    with pytest.raises(InputError, match="their digest differs"):
        artifact.weights(lambda _: other, check_digest=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.w": None}, r"has no tensor 'model.w', the program wants it as f32 \[3, 4\]"),
        ({"model.w": torch.zeros(4, 3)}, r"'model.w' is torch.float32 \[4, 3\]"),
        ({"model.w": torch.zeros(3, 4, dtype=torch.int8)}, "'model.w' is torch.int8"),
    ],
)
def test_a_checkpoint_of_another_spec_is_refused(out: Path, change: dict[str, Any], message: str) -> None:
    given = {name: tensor for name, tensor in {**WEIGHTS, **change}.items() if tensor is not None}
    with pytest.raises(InputError, match=message):
        Artifact.load(out).weights(lambda _: given)


# -------------------------------------------------------------------------------------------------------- writing


def test_an_artifact_is_replaced_and_anything_else_is_not(tmp_path: Path, out: Path) -> None:
    before = contents(out)
    (out / "stale").write_text("old")
    write(out)
    assert contents(out) == before
    for name in ("folder", "file"):
        path = tmp_path / name
        path.mkdir() if name == "folder" else path.write_text("precious")
        with pytest.raises(OutputError, match=r"exists and is not an .rdu artifact"):
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


def test_a_full_disk_is_an_output_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self) -> None:
            pass

    monkeypatch.setattr(Path, "open", lambda *_: Full())
    with pytest.raises(OutputError, match=r"cannot write .*m.rdu: No space left on device"):
        write(tmp_path / "m.rdu")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*: No such file or directory"):
        write(tmp_path / "missing" / "m.rdu")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write .*: Not a directory"):
        write(tmp_path / "file" / "m.rdu")


def test_errors_of_what_is_read_while_writing_keep_their_kind(tmp_path: Path) -> None:
    def read(name: str) -> torch.Tensor:
        raise FileNotFoundError(name)

    with pytest.raises(FileNotFoundError), ArtifactWriter(tmp_path / "m.rdu") as writer:
        writer.write_weights(SPEC, read)
    with pytest.raises(InputError, match=r"'model.b' is f32"), ArtifactWriter(tmp_path / "m.rdu") as writer:
        writer.write_weights(SPEC, lambda name: torch.zeros(SPEC[name].shape))
    assert list(tmp_path.iterdir()) == []


def test_a_failing_rename_brings_the_old_artifact_back(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, rename = contents(out), Path.rename

    def fail(self: Path, target: Path) -> Path:
        if ".tmp-" in self.name:
            raise OSError(errno.EIO, "broken")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OutputError, match="broken"):
        write(out)
    assert contents(out) == before
    assert [path.name for path in out.parent.iterdir()] == ["m.rdu"]


def test_misuse_of_the_writer_is_our_bug(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="without a manifest"), ArtifactWriter(tmp_path / "m.rdu"):
        pass


@pytest.mark.parametrize("path", ["schedule.json", "manifest.json", "../x"])
def test_a_file_that_exists_or_lies_outside_is_our_bug(tmp_path: Path, path: str) -> None:
    with ArtifactWriter(tmp_path / "m.rdu") as writer:
        writer.write_program(program())
        with pytest.raises(InternalError, match="cannot hold a file"):
            writer.write_text(path, "")
        record = WeightsRecord("reference", "", None, {})
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
    with pytest.raises(InputError, match=f"{path.name} is (missing|damaged)"):
        Artifact.load(out)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_flipped_bits_are_found(out: Path) -> None:
    shard = out / "weights/model-00001-of-00001.safetensors"
    flip(shard, -1)
    Artifact.load(out)  # sizes and headers are right; the digest of gigabytes is on request
    with pytest.raises(InputError, match=r"model-00001-of-00001.safetensors is damaged: its sha256"):
        Artifact.load(out, verify=True)
    flip(shard, -1)
    flip(shard, 9)
    with pytest.raises(InputError):
        Artifact.load(out)
    flip(shard, 9)
    flip(out / "weights/constants.safetensors", -1)
    with pytest.raises(InputError, match=r"constants.safetensors is damaged: its sha256"):
        Artifact.load(out)


def edit(out: Path, *path: str, value: Any) -> None:
    data = json.loads((out / "manifest.json").read_text())
    target = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    (out / "manifest.json").write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), FORMAT_VERSION + 1, "format version 2, this sscc reads 1: it was made by a newer sscc"),
        (("format",), "1", "format version 1, this sscc reads 1"),
        (("batch",), "2", "batch is '2', expected int"),
        (("batch",), 0, "expected integers of at least 1"),
        (("dtype",), "f8", "dtype is 'f8'"),
        (("geometry", "sink"), -1, "geometry: KV sink is -1"),
        (("geometry", "extra"), 1, "geometry: .*unexpected keyword"),
        (("eos_token_ids",), ["x"], "eos_token_ids is"),
        (("weights", "mode"), "none", "weights.mode is 'none'"),
        (("weights", "spec", "model.w"), 3, "weights.spec.model.w is '3'"),
        (("weights", "spec", "model.w", "shape"), [4, 3], r"weight 'model.w' is f32 \[3, 4\] in the shards"),
        (("weights", "spec", "model.z"), {"shape": [1], "dtype": "f32"}, "'model.z' is missing in the shards"),
        (("files", "../evil"), {"bytes": 0, "sha256": ""}, "files has an entry '../evil'"),
        (("files", "schedule.json"), None, "files has an entry 'schedule.json'"),
        (("files",), {}, "has no schedule.json"),
    ],
)
def test_a_malformed_manifest_is_refused(out: Path, path: tuple[str, ...], value: Any, message: str) -> None:
    edit(out, *path, value=value)
    with pytest.raises(InputError, match=message):
        Artifact.load(out)


def test_what_is_no_artifact_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match=r"is not an .rdu artifact: it has no manifest.json"):
            Artifact.load(path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="the manifest is not JSON"):
        Artifact.load(tmp_path)
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"manifest.json cannot be read"):
        Artifact.load(tmp_path)


def test_a_program_that_wants_other_weights_is_refused(tmp_path: Path) -> None:
    other = {name: spec for name, spec in SPEC.items() if name != "model.w"}
    with ArtifactWriter(tmp_path / "m.rdu") as writer:
        writer.write_program(program())
        writer.write_constants(CONSTANTS)
        digest = writer.write_weights(other, WEIGHTS.__getitem__)
        record = WeightsRecord("embedded", digest, None, other)
        writer.finish(Manifest("0.1", {}, "rdu", {}, SIGNATURE, record))
    with pytest.raises(InputError, match=r"the program wants weight 'model.w' as f32"):
        Artifact.load(tmp_path / "m.rdu")


def test_a_truncated_safetensors_header_is_refused(tmp_path: Path, out: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((out / "weights/constants.safetensors").read_bytes()[:40])
    with pytest.raises(InputError, match=r"x.safetensors is missing or damaged"):
        read_specs(path)
    with pytest.raises(InputError, match=r"missing.safetensors is missing or damaged"):
        read_specs(tmp_path / "missing.safetensors")


def test_manifests_survive_their_file_form(out: Path) -> None:
    text = (out / "manifest.json").read_text()
    manifest = Manifest.from_json(text)
    assert manifest.to_json() == text
    assert replace(manifest, sscc="9").to_json() != text
    assert str(out) not in text
    assert artifact_writer.SCHEDULE in manifest.files
