"""Tokenizers that transformers converts: no field of their configs has a file opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.frontend.tokenizer_files import TokenizerFilesErrors, folder_tokenizer
from sscc.compiler.frontend.tokenizer_folder import TokenizerFolderErrors, staged_tokenizer
from tests.errors import raises
from tests.fuzz.opened_files import opened_files

VOCABULARY = {letter: at for at, letter in enumerate([*"abcdefgh", "ab"])}
MERGES = "#version: 0.2\na b\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an older tokenizer, and beside it files of another one."""
    for name, vocabulary in (("model", VOCABULARY), ("outside", {**VOCABULARY, "secret": 9})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.json").write_text(json.dumps(vocabulary))
        (tmp_path / name / "merges.txt").write_text(MERGES)
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    configure(tmp_path / "model", {})
    return tmp_path / "model"


def configure(folder: Path, fields: dict[str, Any], name: str = "tokenizer_config.json") -> None:
    (folder / name).write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **fields}))


def test_an_older_tokenizer_is_converted(folder: Path) -> None:
    vocabulary = json.loads(folder_tokenizer(folder)["tokenizer.json"])["model"]["vocab"]
    assert {*VOCABULARY} <= {*vocabulary}


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("key", ["vocab", "vocab_file", "merges_file", "tokenizer_file", "name_or_path"])
def test_fields_that_name_files_do_not_count(folder: Path, key: str, file: str) -> None:
    outside = folder.parent / "outside"
    configure(folder, {key: str(outside / ("merges.txt" if key == "merges_file" else "vocab.json"))}, file)
    with opened_files(outside) as opened:
        files = folder_tokenizer(folder)
    assert opened.watched == []
    assert b"secret" not in files["tokenizer.json"]


def test_a_file_in_another_field_is_refused(folder: Path) -> None:
    path = str(folder.parent / "outside" / "vocab.json")
    for value in (path, [path], {"x": {path: 1}}):
        configure(folder, {"source_spm": value})
        with raises(TokenizerFolderErrors.NAMES_A_FILE, field="source_spm", file=path), staged_tokenizer(folder):
            pass
    configure(folder, {"eos_token": "</s>", "chat_template": "{% for m in messages %}/{% endfor %}"})
    folder_tokenizer(folder)


def test_a_panic_of_the_library_is_an_error(folder: Path) -> None:
    (folder / "vocab.json").write_text(json.dumps({letter: at for at, letter in enumerate("abcdefgh")}))
    with raises(TokenizerFilesErrors.NOT_CONVERTIBLE):
        folder_tokenizer(folder)


def test_a_damaged_config(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{")
    with raises(TokenizerFolderErrors.NOT_JSON, path=folder / "tokenizer_config.json"):
        folder_tokenizer(folder)
