"""The driver: levels, dumps that compile onward, equal bytes, and outputs that are whole or not there."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.driver.driver import CompilationErrors, compile_model
from sscc.compiler.driver.dumps import DumpErrors, read_dump
from sscc.compiler.driver.preflight import PreflightErrors
from sscc.compiler.driver.referred_checkpoints import ReferredCheckpointErrors
from sscc.compiler.driver.sessions import open_session
from sscc.compiler.frontend.checkpoint import CheckpointErrors
from sscc.compiler.options.compile_options import CompileOptions, OptionErrors
from sscc.compiler.options.outputs import StdoutErrors
from sscc.compiler.tools.commands import cli
from sscc.ir.builders import FunctionErrors
from sscc.ir.choices import LEVELS
from sscc.ir.context import IrTextErrors, mlir
from sscc.ir.errors import ErrorKind, InputError, OutputError, SsccError
from sscc.ir.files import FileErrors
from sscc.ir.levels import LevelErrors
from sscc.passes.pass_pipeline import PIPELINE
from sscc.runtime.artifact import proofs
from sscc.runtime.artifact.writer import ArtifactOutputErrors
from sscc.runtime.backends.cpu.plan import library
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.support.user_cache import CacheErrors, cache_folder
from sscc.runtime.validator.kernels import KernelProofErrors
from tests.errors import check, one_line, raises, reported
from tests.limits import largest_file
from tests.models.tiny_llama import save_tiny_llama

Capture = pytest.CaptureFixture[str]
SHAPE: dict[str, Any] = {
    "kv_sink": 1,
    "kv_recent": 4,
    "kv_topk": 3,
    "kv_obs": 2,
    "kv_pool": 3,
    "max_context": 24,
    "batch": 2,
    "prefill_chunk": 8,
}


def write_model(folder: Path, seed: int) -> Path:
    shape = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1}
    vocabulary = {"vocab_size": 19, "eos_token_id": 18}
    return save_tiny_llama(folder, seed, num_hidden_layers=3, max_position_embeddings=32, **shape, **vocabulary)


def compiled(model: Path, output: Path, **options: Any) -> Path:
    shape = {} if "compile_from" in options else SHAPE
    return compile_model(CompileOptions(model, output, **shape, **options)).path


def onward(dumps: Path, output: Path, checkpoint: Path, **options: Any) -> Path:
    """An artifact from the last dump of IR: nothing is captured again, and no pass runs."""
    (dump,) = dumps.glob("*-place-stages.mlir")
    return compiled(dump, output, compile_from="placed", checkpoint=checkpoint, **options)


def written(level: str, dumps: Path, output: Path, checkpoint: Path) -> Path:
    """An artifact, or the dump of another level."""
    if level == "schedule":
        return onward(dumps, output, checkpoint)
    return compiled(dumps / "05-thread-cache.mlir", output, compile_from="graph", compile_to=level)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that an artifact refers to are packed into the test's own cache."""
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny", 0)


@pytest.fixture(scope="module")
def dumps(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dumps of a whole compilation, and next to them its artifact `direct.rdu`."""
    folder = tmp_path_factory.mktemp("dumps")
    compiled(model, folder / "direct.rdu", dump_ir_dir=folder / "ir")
    return folder / "ir"


@pytest.fixture(scope="module")
def direct(dumps: Path) -> Path:
    return dumps.parent / "direct.rdu"


def level_of(dump: Path) -> str:
    match = re.search(r'sscc\.level = "(\w+)"', dump.read_text())
    assert match is not None
    return match.group(1)


# ------------------------------------------------------------------------------------------------------- levels


def test_there_is_a_dump_per_level_and_pass(dumps: Path) -> None:
    steps = ["import", *(item.name for item in PIPELINE)]
    expected = [f"{number:02}-{name}.mlir" for number, name in enumerate(steps)]
    assert listing(dumps) == [*expected, f"{len(steps):02}-schedule.json"]
    assert [level_of(dumps / name) for name in expected] == ["import", *(item.level for item in PIPELINE)]


def test_dumps_hold_locations_and_no_weights(dumps: Path) -> None:
    for dump in dumps.glob("*.mlir"):
        text = dump.read_text()
        assert "transformers/models/llama/modeling_llama.py" in text
        assert "site-packages" not in text
        assert "dense_resource" not in text
        assert all(len(literal) < 1200 for literal in re.findall(r"dense<[^>]*>", text))


@pytest.mark.parametrize("level", LEVELS[:-1])
def test_compile_to_a_level_is_its_last_dump(level: str, model: Path, dumps: Path, tmp_path: Path) -> None:
    if level == "import":
        path = compiled(model, tmp_path / "out.mlir", compile_to=level)
    else:  # without capturing again
        path = compiled(dumps / "00-import.mlir", tmp_path / "out.mlir", compile_from="import", compile_to=level)
    last = [dump for dump in sorted(dumps.glob("*.mlir")) if level_of(dump) == level][-1]
    assert path.read_text() == last.read_text()
    assert listing(tmp_path) == ["out.mlir"]


@pytest.mark.parametrize("step", ["import", *(item.name for item in PIPELINE)])
def test_every_dump_compiles_onward_to_the_same_artifact(
    step: str, model: Path, dumps: Path, direct: Path, tmp_path: Path
) -> None:
    (dump,) = dumps.glob(f"*-{step}.mlir")
    again = compiled(dump, tmp_path / "out.rdu", compile_from=level_of(dump), checkpoint=model)
    assert contents(again) == contents(direct)


def test_a_dump_of_a_dump(model: Path, dumps: Path, tmp_path: Path) -> None:
    """From a dump on, the dumps are the same as of the whole compilation."""
    compiled(
        dumps / "00-import.mlir",
        tmp_path / "a.rdu",
        compile_from="import",
        checkpoint=model,
        dump_ir_dir=tmp_path / "ir",
    )
    assert listing(tmp_path / "ir") == ["00-from-import.mlir", *listing(dumps)[1:]]
    for name in listing(dumps)[1:]:
        assert (tmp_path / "ir" / name).read_bytes() == (dumps / name).read_bytes()


def test_the_checkpoint_is_known_again_in_another_dtype(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The digest is of the checkpoint as it is: what the compilation makes of its config does not count."""
    dump = compiled(model, tmp_path / "out.mlir", compile_to="kernels", dtype="bf16")
    compiled(dump, tmp_path / "out.rdu", compile_from="kernels", checkpoint=model)
    assert "checkpoint other than" not in caplog.text
    other = write_model(tmp_path / "other", 1)
    compiled(dump, tmp_path / "other.rdu", compile_from="kernels", checkpoint=other)
    assert "checkpoint other than" in caplog.text


# -------------------------------------------------------------------------------------------------------- bytes


@pytest.mark.usefixtures("exports_anew")
def test_a_repeated_compile_is_byte_identical(model: Path, direct: Path, tmp_path: Path) -> None:
    assert contents(compiled(model, tmp_path / "other-name.rdu")) == contents(direct)


def test_an_artifact_is_replaced_by_the_same(model: Path, dumps: Path, direct: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(direct, tmp_path / "out.rdu"))
    (copy / "old.txt").write_text("from an older version")
    assert contents(onward(dumps, copy, model)) == contents(direct)
    assert listing(tmp_path) == ["out.rdu"]


def test_the_schedule_dump_is_the_artifacts(dumps: Path, direct: Path) -> None:
    (dump,) = dumps.glob("*-schedule.json")
    assert dump.read_bytes() == (direct / "schedule.json").read_bytes()


# ------------------------------------------------------------------------------------------------------ refusals


def damaged(dumps: Path, tmp_path: Path, name: str, old: str, new: str) -> Path:
    text = (dumps / name).read_text()
    assert old in text
    path = tmp_path / "dump.mlir"
    path.write_text(text.replace(old, new))
    return path


def refused(dump: Path, level: str, tmp_path: Path) -> SsccError:
    """Return the error with which a dump is refused. Nothing is written."""
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(InputError) as caught:
        compiled(dump, out / "x.rdu", compile_from=level, weights="none")
    assert listing(out) == []
    return caught.value


def test_a_dump_of_another_level(dumps: Path, tmp_path: Path) -> None:
    with raises(CompilationErrors.OTHER_LEVEL, level="import", option="graph"):
        compiled(dumps / "00-import.mlir", tmp_path / "x.rdu", compile_from="graph", weights="none")


def test_not_a_dump(tmp_path: Path) -> None:
    path = tmp_path / "mine.mlir"
    path.write_text("func.func @f() {\n  return\n}\n")
    check(refused(path, "graph", tmp_path), DumpErrors.NO_LEVEL, file=path, cause=LevelErrors.NO_LEVEL)


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "dump.mlir"
    path.write_bytes(b"\xff\xfe\x00")
    check(refused(path, "graph", tmp_path), FileErrors.NOT_UTF8, path=path, position=0, byte=0xFF)


def test_a_missing_dump(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.mlir"
    check(refused(path, "graph", tmp_path), FileErrors.CANNOT_READ, path=path, reason=os.strerror(errno.ENOENT))


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9, 0.999])
def test_truncated_text(fraction: float, dumps: Path, tmp_path: Path) -> None:
    text = (dumps / "02-split-layers.mlir").read_text()
    path = tmp_path / "dump.mlir"
    path.write_text(text[: int(len(text) * fraction)])
    check(refused(path, "graph", tmp_path), IrTextErrors.INVALID, name=path)


DAMAGE = {
    "geometry": ("recent = 4 : i64", "recent = 40 : i64", IrTextErrors.INVALID, "kv.geometry is invalid"),
    "facts": ("batch = 2 : i64", 'batch = "2"', LevelErrors.DAMAGED, "batch is"),
    "level": ('sscc.level = "graph"', 'sscc.level = "grape"', DumpErrors.NO_LEVEL, "grape"),
    "shapes": ("tensor<1x2x8x4xf32>", "tensor<1x2x9x4xf32>", IrTextErrors.INVALID, "'linalg.transpose' op dim"),
    "illegal": ('sscc.level = "graph"', 'sscc.level = "import"', DumpErrors.ILLEGAL_LINE, "not legal at level import"),
}


@pytest.mark.parametrize(("old", "new", "kind", "named"), DAMAGE.values(), ids=DAMAGE)
def test_edited_dumps(old: str, new: str, kind: ErrorKind, named: str, dumps: Path, tmp_path: Path) -> None:
    path = damaged(dumps, tmp_path, "02-split-layers.mlir", old, new)
    error = refused(path, "import" if "import" in new else "graph", tmp_path)
    check(error, kind)
    assert any(named in str(field) for field in error.fields.values())


def test_an_edited_name(dumps: Path, tmp_path: Path) -> None:
    """An argument that lost its role is refused, by a pass, in a sentence."""
    path = damaged(dumps, tmp_path, "02-split-layers.mlir", "sscc.weight = ", "mine.weight = ")
    error = refused(path, "graph", tmp_path)
    check(error, FunctionErrors.ARGUMENT_ROLE, index=3, function="prefill.layer.0.captured")
    assert "sscc.weight" in error.fields["roles"]


def test_buffers_that_overlap_in_an_edited_dump(dumps: Path, tmp_path: Path) -> None:
    """If a buffer in a dump has been moved by hand, the validator reports an error of the dump, not of sscc."""
    (placed,) = dumps.glob("*-place-stages.mlir")
    path = tmp_path / "dump.mlir"
    path.write_text(re.sub(r"\baddress = [0-9]+", "address = 0", placed.read_text()))
    error = refused(path, "placed", tmp_path)
    check(error, CompilationErrors.DUMP_NOT_VALID, path=path, cause=KernelProofErrors.BUFFERS_OVERLAP)
    assert error.fields["cause"]["fields"]["address"] == 0


def test_an_error_in_a_dump_has_its_line(dumps: Path, tmp_path: Path) -> None:
    path = tmp_path / "dump.mlir"
    lines = (dumps / "02-split-layers.mlir").read_text().splitlines()
    path.write_text("\n".join([*lines[:20], "  nonsense here", *lines[20:]]))
    error = refused(path, "graph", tmp_path)
    check(error, IrTextErrors.INVALID, name=path)
    assert error.fields["diagnostic"].startswith(f"{path}:21:3: ")


def test_what_is_not_legal_at_a_dumps_level_has_its_line(dumps: Path, tmp_path: Path) -> None:
    path = damaged(dumps, tmp_path, "02-split-layers.mlir", 'sscc.level = "graph"', 'sscc.level = "import"')
    with mlir(), pytest.raises(InputError) as caught:
        read_dump(path)
    error = caught.value
    reason = "'tensor.empty' is not legal at level import"
    check(error, DumpErrors.ILLEGAL_LINE, file=path, level="import", reason=reason)
    assert error.fields["origin_hint"].startswith(" (of ")
    line = path.read_text().splitlines()[error.fields["line"] - 1]
    assert line[error.fields["column"] - 1 :].startswith("tensor.empty")
    assert caught.value.excerpt.split("\n")[1].endswith("^")


def test_a_dump_without_its_level_is_told_the_option(dumps: Path, tmp_path: Path) -> None:
    with raises(CheckpointErrors.DUMP, path=dumps / "02-split-layers.mlir"):
        compile_model(CompileOptions(dumps / "02-split-layers.mlir", output=tmp_path / "out.rdu"))


def test_a_dash_is_stdout_for_text_and_refused_for_all_else(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["compile", str(model), "--max-context", "24", "-o", "-"]
    assert cli.main([*command, "--compile-to", "import"]) == 0
    assert capsys.readouterr().out.startswith(("module", "#loc"))
    check(one_line(command, capsys), StdoutErrors.ARTIFACT)
    check(one_line(["pack", str(model), "-o", "-"], capsys), StdoutErrors.PACKED_CHECKPOINT)
    check(one_line(["eval", str(model), "-o", "-"], capsys), StdoutErrors.EVALUATION)
    assert listing(tmp_path) == []


def test_a_dump_needs_weights_or_none(dumps: Path, tmp_path: Path) -> None:
    with raises(OptionErrors.DUMP_WITHOUT_WEIGHTS):
        compiled(dumps / "00-import.mlir", tmp_path / "x.rdu", compile_from="import")


def test_a_dump_and_another_checkpoint(dumps: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = write_model(tmp_path / "other", 1)
    artifact = compiled(dumps / "07-outline-kernels.mlir", tmp_path / "x.rdu", compile_from="kernels", checkpoint=other)
    assert "a checkpoint other than" in caplog.text
    assert contents(artifact) == contents(compiled(other, tmp_path / "y.rdu"))


# --------------------------------------------------------------------------------------------------- native code


@pytest.mark.usefixtures("code_in_the_cache")
def test_compiling_fills_the_cache_and_not_the_artifact(
    model: Path, dumps: Path, direct: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = onward(dumps, tmp_path / "x.rdu", model, native_code=True)
    assert contents(artifact) == contents(direct)
    kept = {path.relative_to(cache_folder()).parts[0] for path in cache_folder().rglob("*") if path.is_file()}
    assert kept == {"native", proofs.TABLE.file}
    with monkeypatch.context() as patch:
        patch.setattr(library, "_generate", lambda *_: pytest.fail("it is compiled again"))
        first = tokens(artifact)
    shutil.rmtree(cache_folder())
    assert tokens(artifact) == first


def test_a_cache_that_others_can_write_is_refused_before_anything_is_done(model: Path, tmp_path: Path) -> None:
    cache_folder().chmod(0o777)
    with raises(CacheErrors.FOREIGN_WRITERS):
        compiled(model, tmp_path / "x.rdu", native_code=True)
    assert not (tmp_path / "x.rdu").exists()


# ------------------------------------------------------------------------------------------------------- weights


def tokens(artifact: Path, checkpoint: Path | None = None) -> list[int]:
    session = open_session(Artifact.load(artifact), checkpoint)
    return list(session.generate([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 8, Sampling(0.0, 0, 1.0, 0), (), 0))


def test_weights_by_reference_run_the_same(model: Path, dumps: Path, direct: Path, tmp_path: Path) -> None:
    artifact = onward(dumps, tmp_path / "x.rdu", model, weights="reference")
    assert not list(artifact.glob("weights/model-*"))
    assert (artifact / "schedule.json").read_bytes() == (direct / "schedule.json").read_bytes()
    assert tokens(artifact) == tokens(direct)


def test_a_referred_checkpoint_that_changed_is_refused(model: Path, dumps: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copytree(model, tmp_path / "model"))
    artifact = onward(dumps, tmp_path / "x.rdu", mine, weights="reference")
    shutil.rmtree(mine)
    with raises(ReferredCheckpointErrors.GONE, checkpoint=mine):
        tokens(artifact)
    write_model(mine, 1)
    with raises(ReferredCheckpointErrors.CHANGED, checkpoint=mine):
        tokens(artifact)


def test_another_checkpoint_is_another_model(dumps: Path, direct: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", 1)
    onward(dumps, tmp_path / "other.rdu", other)
    assert tokens(direct, other) == tokens(tmp_path / "other.rdu")
    assert tokens(direct, other) != tokens(direct)


def test_no_weights(model: Path, direct: Path, tmp_path: Path) -> None:
    """The config alone gives the same program; the weights are supplied when it runs."""
    bare = tmp_path / "config-only"
    bare.mkdir()
    shutil.copy(model / "config.json", bare)
    artifact = compiled(bare, tmp_path / "x.rdu", weights="none", dtype="f32")
    assert (artifact / "schedule.json").read_bytes() == (direct / "schedule.json").read_bytes()
    assert json.loads((artifact / "manifest.json").read_text())["weights"]["mode"] == "reference"
    with pytest.raises(InputError):
        tokens(artifact)
    assert tokens(artifact, model) == tokens(direct)


# -------------------------------------------------------------------------------------------------------- outputs


@pytest.mark.parametrize("name", ["x.rdu", "x.mlir"])
def test_a_full_disk_leaves_nothing(name: str, model: Path, dumps: Path, tmp_path: Path) -> None:
    level = "schedule" if name == "x.rdu" else "kernels"
    with largest_file(30_000), raises(FileErrors.CANNOT_WRITE, path=re.compile(name), reason="File too large"):
        written(level, dumps, tmp_path / name, model)
    assert listing(tmp_path) == []


def test_a_full_disk_keeps_the_old_artifact(model: Path, dumps: Path, direct: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(direct, tmp_path / "out.rdu"))
    with largest_file(30_000), pytest.raises(OutputError):
        onward(dumps, copy, model)
    assert contents(copy) == contents(direct)
    assert listing(tmp_path) == ["out.rdu"]


def test_what_is_no_artifact_is_not_replaced(model: Path, dumps: Path, tmp_path: Path) -> None:
    for make in (lambda path: path.write_text("mine"), lambda path: path.mkdir()):
        path = tmp_path / "x.rdu"
        make(path)
        with raises(ArtifactOutputErrors.NOT_AN_ARTIFACT):
            onward(dumps, path, model)
        assert listing(tmp_path) == ["x.rdu"]
        path.unlink() if path.is_file() else path.rmdir()


@pytest.mark.parametrize("where", ["/proc/nowhere", "{tmp}/missing", "{tmp}/file"])
@pytest.mark.parametrize("level", ["schedule", "kernels"])
def test_unwritable_outputs(where: str, level: str, model: Path, dumps: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    folder = Path(where.format(tmp=tmp_path))
    kind = PreflightErrors.NOT_A_FOLDER if folder.is_file() else PreflightErrors.NO_FOLDER
    with raises(kind, path=folder / "x", folder=folder):
        written(level, dumps, folder / "x", model)
    assert listing(tmp_path) == ["file"]


def test_unwritable_dumps(dumps: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with raises(PreflightErrors.NOT_A_FOLDER):
        compiled(
            dumps / "05-thread-cache.mlir",
            tmp_path / "x.mlir",
            compile_from="graph",
            compile_to="kernels",
            dump_ir_dir=tmp_path / "file" / "ir",
        )
    assert listing(tmp_path) == ["file"]


def test_the_command_line_shows_the_line_of_the_dump(dumps: Path, tmp_path: Path, capsys: Capture) -> None:
    path = damaged(dumps, tmp_path, "02-split-layers.mlir", *DAMAGE["illegal"][:2])
    words = ["compile", str(path), "--compile-from", "import", "--no-weights", "-o", str(tmp_path / "x.rdu")]
    error = reported(words)
    check(error, DumpErrors.ILLEGAL_LINE, file=path, level="import")
    message, line, caret = capsys.readouterr().err.splitlines()
    assert message == f"sscc: error: {error}"
    assert line == f"  {path.read_text().splitlines()[error.fields['line'] - 1]}"
    assert caret == "^".rjust(2 + error.fields["column"])


def test_dumps_in_a_folder_are_of_one_run(dumps: Path, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    for name in ("99-old.mlir", "99-old.json", "99-notes.txt", "notes.mlir"):
        (folder / name).write_text("old")
    compiled(
        dumps / "07-outline-kernels.mlir", tmp_path / "x.rdu", compile_from="kernels", checkpoint=model,
        dump_ir_dir=folder,
    )  # fmt: skip
    assert not (folder / "99-old.mlir").exists()
    assert not (folder / "99-old.json").exists()
    assert (folder / "99-notes.txt").exists()
    assert (folder / "notes.mlir").exists()


def test_dumps_of_one_function(dumps: Path, model: Path, tmp_path: Path) -> None:
    start, options = dumps / "07-outline-kernels.mlir", {"compile_from": "kernels", "checkpoint": model}
    folder = tmp_path / "dumps"
    compiled(start, tmp_path / "x.rdu", **options, dump_ir_dir=folder, ir_function="decode.head", ir_locations=False)
    steps = ["from-kernels", "form-stages", "tile-stages", "place-stages"]  # the passes that change it
    assert listing(folder) == [*(f"{n:02}-{step}.mlir" for n, step in enumerate(steps)), "04-schedule.json"]
    for path in folder.glob("*.mlir"):
        assert re.findall(r"func\.func .*@([\w.]+)\(", path.read_text()) == ["decode.head"]
    with raises(DumpErrors.EXCERPT):
        compiled(folder / "00-from-kernels.mlir", tmp_path / "y.rdu", **options)
    with raises(CompilationErrors.FUNCTION_NOT_SHOWN):
        compiled(start, tmp_path / "y.rdu", **options, dump_ir_dir=folder, ir_function="nobody")
    with raises(OptionErrors.NOTHING_SHOWN, option="--no-ir-locations"):
        compiled(start, tmp_path / "y.rdu", **options, ir_locations=False)
    compiled(start, tmp_path / "head.mlir", compile_from="kernels", compile_to="fused", ir_function="decode.head")
    assert (tmp_path / "head.mlir").read_text().startswith("// excerpt: functions decode.head; ")


def test_dumps_never_replace_the_dump_they_start_from(dumps: Path, model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(dumps, tmp_path / "dumps"))
    start = folder / "07-outline-kernels.mlir"
    with raises(CompilationErrors.DUMPS_HOLD_INPUT):
        compiled(start, tmp_path / "x.rdu", compile_from="kernels", checkpoint=model, dump_ir_dir=folder)
    assert start.exists()
