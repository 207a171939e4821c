"""Artifacts of models in the user's cache: compiled once, and used by content."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest import mock

import pytest

from sscc.compiler.driver import model_cache
from sscc.compiler.driver.model_cache import ModelCacheErrors, ModelOptions, artifact_of, cached_models, is_model
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.tools.commands import cli
from sscc.compiler.tools.commands.cache import KINDS, CacheCommandErrors
from sscc.compiler.tools.commands.model_arguments import ModelOptionErrors
from sscc.ir import extras
from sscc.ir.errors import SsccError
from sscc.runtime.session.artifact import Artifact
from tests.compiler.commands.chatting import TEMPLATE
from tests.errors import check, one_line, raises
from tests.models.tiny_llama import byte_tokenizer, save_tiny_llama

Capture = pytest.CaptureFixture[str]
SMALL = ModelOptions(kv_budget=48, max_context=64, batch=1)
WORDS = ["--kv-budget", "48", "--max-context", "64"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_llama(
        tmp_path_factory.mktemp("model") / "tiny", tokenizer=byte_tokenizer(), max_position_embeddings=128
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def filled(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one artifact of the model."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSCC_CACHE", str(cache))
        artifact_of(model, SMALL)
    return cache


@pytest.fixture(autouse=True)
def cache(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    shutil.copytree(filled, folder)
    monkeypatch.setenv("SSCC_CACHE", str(folder))
    return folder


def never_compiled() -> mock._patch[mock.MagicMock]:
    return mock.patch.object(model_cache, "_compile", side_effect=AssertionError("compiled again"))


def test_a_model_is_compiled_once(model: Path) -> None:
    with never_compiled():
        artifact = Artifact.load(artifact_of(model, SMALL))
    assert artifact.signature.geometry.max_context == 64
    assert artifact.signature.geometry.budget == 48
    (listed,) = cached_models()
    assert (Path(listed.model), listed.options) == (model, {"kv_budget": 48, "max_context": 64, "batch": 1})
    assert listed.nbytes > 0


def test_equal_files_elsewhere_are_the_same_model(model: Path, tmp_path: Path, capsys: Capture) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    with never_compiled():
        first, second = artifact_of(model, SMALL), artifact_of(other, SMALL)
        assert first == second
        assert cli.main(["run", str(other), *WORDS, "--prompt", "ab", "--max-new-tokens", "2"]) == 0


def test_other_bytes_options_or_versions_are_another_artifact(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = shutil.copytree(model, tmp_path / "changed")
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps(config | {"rope_theta": 5000.0}))
    with never_compiled():
        for path, options in ((changed, SMALL), (model, ModelOptions(kv_budget=50, max_context=64))):
            with pytest.raises(AssertionError, match="compiled again"):
                artifact_of(path, options)
        monkeypatch.setattr(model_cache, "own_version", lambda: "another")
        with pytest.raises(AssertionError, match="compiled again"):
            artifact_of(model, SMALL)


def test_a_failed_compilation_leaves_nothing(model: Path, cache: Path) -> None:
    before = sorted(path.name for path in (cache / "models").iterdir() if path.is_dir())
    with pytest.raises(SsccError):
        artifact_of(model, ModelOptions(kv_budget=1, max_context=64))
    assert sorted(path.name for path in (cache / "models").iterdir() if path.is_dir()) == before


def test_the_context_is_the_models_own_where_its_states_fit(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = Artifact.load(artifact_of(model, ModelOptions(kv_budget=48)))
    assert artifact.signature.geometry.max_context == 128
    tokens = model_cache._LEAST_CONTEXT
    checkpoint = open_checkpoint(model)
    assert checkpoint.config is not None
    checkpoint.config.max_position_embeddings = 1 << 20
    assert model_cache._default_context(checkpoint, 1) == 1 << 20
    monkeypatch.setattr(model_cache, "usable_memory", lambda: 64 << 20)
    some = model_cache._default_context(checkpoint, 1)
    assert some is not None
    assert tokens < some < 1 << 20
    assert some & (some - 1) == 0
    monkeypatch.setattr(model_cache, "usable_memory", lambda: 1)
    assert model_cache._default_context(checkpoint, 1) == tokens


def test_artifacts_and_models_are_told_apart(model: Path, tmp_path: Path) -> None:
    assert is_model(model)
    assert not is_model(artifact_of(model, SMALL))
    assert is_model(Path("x.GGUF"))
    assert not is_model(tmp_path)
    with raises(ModelCacheErrors.NO_FILES):
        artifact_of(tmp_path / "missing.gguf", SMALL)


def test_options_of_a_compilation_are_refused_with_an_artifact(model: Path, capsys: Capture) -> None:
    artifact = artifact_of(model, SMALL)
    error = one_line(["run", str(artifact), "--kv-budget", "9", "--weights", "keep", "--prompt", "a"], capsys)
    check(error, ModelOptionErrors.OF_ARTIFACT, options=["--kv-budget", "--weights"])


def test_a_prompt_is_a_message_of_the_user(model: Path, capsys: Capture) -> None:
    def count(*words: str) -> int:
        assert cli.main(["run", str(model), *WORDS, "--json", "--max-new-tokens", "1", *words]) == 0
        return int(json.loads(capsys.readouterr().out)["prompt_tokens"])

    assert count("--prompt", "hello") == len("u:hello;a:")
    assert count("--prompt", "hello", "--raw") == len("hello")


def test_a_line_says_context_and_rows(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "sscc")
    assert cli.main(["run", str(model), *WORDS, "--prompt", "a", "--max-new-tokens", "1"]) == 0
    first = caplog.messages[0]
    assert "context 64 tokens" in first
    assert "48 rows" in first


def test_the_cache_is_listed_and_cleared(model: Path, cache: Path, capsys: Capture) -> None:
    assert cli.main(["cache"]) == 0
    out = capsys.readouterr().out
    assert all(kind in out for kind in KINDS)
    assert "--kv-budget 48" in out
    assert cli.main(["cache", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["models"][0]["model"] == str(model)
    assert listed["bytes"]["models"] > 0
    assert cli.main(["cache", "--clear", "models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["freed_bytes"] == listed["bytes"]["models"]
    assert not list(cached_models())
    assert (cache / "checkpoints").is_dir()
    assert cli.main(["cache", "--clear"]) == 0
    assert not (cache / "checkpoints").exists()


def test_an_unknown_kind_is_refused(capsys: Capture) -> None:
    check(one_line(["cache", "--clear", "modles"], capsys), CacheCommandErrors.UNKNOWN, name="modles")


def test_without_the_compiler_one_line_names_what_to_install(model: Path, capsys: Capture) -> None:
    words = ["run", str(model), "--kv-budget", "16", "--max-context", "64", "--prompt", "a"]
    with mock.patch.object(extras, "_is_installed", return_value=False):
        check(one_line(words, capsys), extras.ExtraErrors.NOT_INSTALLED, extra="compile")
