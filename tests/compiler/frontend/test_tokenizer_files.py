"""The files of a tokenizer: which of a folder's count, and names in a `.pt` that could leave the artifact."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
import transformers
from transformers import LlamaConfig

from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.tokenizer_files import (
    TOKENIZER_FILES,
    TokenizerFilesErrors,
    check_chat_template,
    folder_tokenizer,
    packed_tokenizer,
)
from tests.compiler.frontend.test_checkpoint import SIZES
from tests.errors import check, one_line, raises

FILE = Path("model.pt")


def test_only_the_files_of_a_tokenizer_count(tmp_path: Path) -> None:
    held = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"}
    held |= {"chat_template.jinja"}
    for name in (*held, "README.md", "config.json", "tokenizer.py"):
        (tmp_path / name).write_text(name)
    assert folder_tokenizer(tmp_path) == {name: name.encode() for name in held}


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    assert folder_tokenizer(tmp_path) == {}
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert folder_tokenizer(tmp_path) == {"tokenizer_config.json": b"{}"}


def test_an_older_tokenizer_that_cannot_be_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error depends on the packages that are installed, so the test says which ones are."""
    (tmp_path / "tokenizer.model").write_bytes(b"no sentencepiece")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    find_spec = importlib.util.find_spec
    for installed, error in ((False, TokenizerFilesErrors.NO_PACKAGE), (True, TokenizerFilesErrors.NOT_CONVERTIBLE)):

        def found(name: str, package: str | None = None, *, there: bool = installed) -> object:
            return there or None if name == "tiktoken" else find_spec(name, package)

        monkeypatch.setattr(importlib.util, "find_spec", found)
        with raises(error):
            folder_tokenizer(tmp_path)


@pytest.mark.parametrize("older", ["tokenizer.model", "vocab.json", "spiece.model"])
def test_an_older_tokenizer_is_converted_without_asking_anybody(
    older: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer that transformers saves replaces the folder's files, except a tokenizer.json, which comes first."""
    asked: list[tuple[dict[str, str], dict[str, bool]]] = []

    class Converted:
        def save_pretrained(self, folder: str) -> None:
            for name in ("tokenizer.json", "tokenizer_config.json", "notes.txt"):
                (Path(folder) / name).write_text(f"converted {name}")

    def from_pretrained(folder: Path, **options: bool) -> Converted:
        asked.append(({path.name: path.read_text() for path in folder.iterdir()}, options))
        return Converted()

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
    for name in (older, "tokenizer_config.json", "generation_config.json"):
        (tmp_path / name).write_text("own")
    (tmp_path / "tokenizer_config.json").write_text('{"own": 1, "vocab_file": "/x"}')
    assert folder_tokenizer(tmp_path) == {
        "generation_config.json": b"own",
        "tokenizer.json": b"converted tokenizer.json",
        "tokenizer_config.json": b"converted tokenizer_config.json",
    }
    given = {older: "own", "generation_config.json": "own", "tokenizer_config.json": '{"own": 1}'}
    assert asked == [(given, {"local_files_only": True, "trust_remote_code": False})]
    (tmp_path / "tokenizer.json").write_text("own")
    assert folder_tokenizer(tmp_path)["tokenizer.json"] == b"own"
    assert len(asked) == 1


@pytest.mark.parametrize(
    "name",
    [
        "../tokenizer.json",
        "..",
        ".",
        "",
        "/etc/tokenizer.json",
        "a/b",
        "a\\b",
        "tokenizer.json\0",
        "\0",
        "tokenizer.json\n",
        ".hidden",
        "-o",
        "ä",
        "a b",
        "a" * 101,
        7,
        None,
        b"tokenizer.json",
    ],
    ids=repr,
)
def test_names_in_a_file_that_are_no_names(name: object) -> None:
    with raises(TokenizerFilesErrors.BAD_NAME, path="model.pt"):
        packed_tokenizer(FILE, {"tokenizer.json": b"{}", name: b""})


def test_names_that_are_taken() -> None:
    names = [*TOKENIZER_FILES, "a" * 100, "0", "merges_2.txt-old"]
    assert packed_tokenizer(FILE, dict.fromkeys(names, b"x")) == dict.fromkeys(names, b"x")


def test_what_a_file_of_a_tokenizer_may_be() -> None:
    assert packed_tokenizer(FILE, None) == {}
    assert packed_tokenizer(FILE, {"a": "ä", "b": b"\xff"}) == {"a": "ä".encode(), "b": b"\xff"}
    with raises(TokenizerFilesErrors.NOT_TEXT):
        packed_tokenizer(FILE, {"a": "\ud800"})
    for files in ([b""], b"", {"a": 1}, {"a": None}, {"a": b"", "b": [b""]}):
        with raises(TokenizerFilesErrors.NOT_A_DICTIONARY):
            packed_tokenizer(FILE, files)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("chat_template.jinja", "{% if x %}" * 300 + "{% endif %}" * 300, "expressions are nested too deeply"),
        ("chat_template.jinja", "{% if x %}", "is not a chat template that can be read: Unexpected end"),
        ("tokenizer_config.json", '{"chat_template": 5}', "chat_template is neither a template nor a list"),
        ("tokenizer_config.json", "{", "is not JSON"),
    ],
)  # fmt: skip
def test_a_chat_template_that_nobody_can_render(
    name: str, content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before the model is captured."""
    (tmp_path / "config.json").write_text(json.dumps(LlamaConfig(**SIZES).to_dict()))
    (tmp_path / name).write_text(content)
    command = ["compile", str(tmp_path), "--no-weights", "-o", str(tmp_path / "x.rdu"), "--max-context", "32"]
    error = one_line(command, capsys)
    check(error, TokenizerFilesErrors.BAD_TEMPLATE)
    assert error.fields["cause"].startswith(str(tmp_path / name))
    assert words in error.fields["cause"]


def test_templates_that_are_fine(tmp_path: Path) -> None:
    check_chat_template(tmp_path, {})
    check_chat_template(
        tmp_path, {"tokenizer.json": b"{", "tokenizer_config.json": b'{"chat_template": "{{ messages }}"}'}
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../outside", "a\0b"])
def test_a_packed_checkpoint_that_would_leave_its_folder(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    config = LlamaConfig(num_hidden_layers=1).to_dict()
    torch.save({"config": config, "state_dict": {"a": torch.ones(1)}, "tokenizer": {name: b"{}"}}, path)
    with raises(TokenizerFilesErrors.BAD_NAME):
        open_checkpoint(path)
    assert [left.name for left in tmp_path.iterdir()] == ["model.pt"]
