"""Proofs of artifacts are remembered by schedule, signature and sources, and only where nobody else could write."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.options.compile_options import CompileOptions
from sscc.ir.errors import InputError
from sscc.runtime.artifact import proofs
from sscc.runtime.artifact.artifact_files import MANIFEST
from sscc.runtime.session.artifact import Artifact
from tests.families import Compiler


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSCC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(compiled: Compiler, tmp_path: Path, cache: Path) -> Path:
    path = shutil.copytree(compiled("llama").artifact.path, tmp_path / "model.rdu")
    shutil.rmtree(cache, ignore_errors=True)  # which remembers it if it was compiled just now
    return Path(path)


@pytest.fixture
def prove() -> Iterator[mock.MagicMock]:
    with mock.patch.object(proofs, "prove", side_effect=proofs.prove) as prove:
        yield prove


def test_an_artifact_is_proved_once(path: Path, prove: mock.MagicMock) -> None:
    Artifact.load(path)
    Artifact.load(path)
    assert prove.call_count == 1


def test_a_compiled_artifact_is_proved_already(compiled: Compiler, tmp_path: Path, prove: mock.MagicMock) -> None:
    compile_model(CompileOptions(compiled.checkpoint("llama"), tmp_path / "new.rdu", prefill_chunk=4))
    Artifact.load(tmp_path / "new.rdu")
    assert prove.call_count == 0


def test_another_signature_is_proved(path: Path, prove: mock.MagicMock) -> None:
    Artifact.load(path)
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["vocab_size"] += 1
    (path / MANIFEST).write_text(json.dumps(manifest, sort_keys=True, indent=1) + "\n")
    with pytest.raises(InputError):
        Artifact.load(path)
    assert prove.call_count == 2


def test_other_sources_prove_again(path: Path, prove: mock.MagicMock) -> None:
    Artifact.load(path)
    with mock.patch.object(proofs, "_validator", return_value="0" * 64):
        Artifact.load(path)
    assert prove.call_count == 2


def test_what_others_could_have_written_is_not_believed(path: Path, cache: Path, prove: mock.MagicMock) -> None:
    Artifact.load(path)
    (cache / proofs.TABLE.file).chmod(0o666)
    Artifact.load(path)
    assert prove.call_count == 2
