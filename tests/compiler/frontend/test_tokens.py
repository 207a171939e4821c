"""Ends of an answer, tokens that the model lacks, chat templates in other files, and whole prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from sscc.compiler.frontend.checkpoint import open_checkpoint, pack
from sscc.compiler.frontend.model_config import ModelConfigErrors, config_from_dict, file_form
from sscc.compiler.frontend.special_tokens import TokenErrors, TokenWarnings, check_vocabulary, stated_ends
from sscc.compiler.frontend.tokenizer_files import TokenizerFilesErrors, folder_tokenizer
from sscc.compiler.options.warning import collecting
from sscc.runtime.text.tokenizer import encode, load_tokenizer
from tests.errors import check, raises
from tests.models.tiny_llama import END, byte_tokenizer, save_tiny_llama

FOLDER = Path("model")


def files(tokenizer: Tokenizer, **config: Any) -> dict[str, bytes]:
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }


# ------------------------------------------------------------------------------------------------------ whole prompts


@pytest.mark.parametrize("length", [3, 100, 300])
def test_prompts_are_neither_cut_nor_padded(length: int, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=200, pad_id=0)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    ids = encode(load_tokenizer(tmp_path / "tokenizer.json"), "a" * length)
    assert len(ids) == length
    assert ids == theirs("a" * length)["input_ids"]


# --------------------------------------------------------------------------------------------------------------- ends


def config(**values: Any) -> transformers.PreTrainedConfig:
    return config_from_dict({"model_type": "llama", "vocab_size": END + 1} | values, "config.json")


@pytest.mark.parametrize(
    ("stated", "generation", "token", "expected"),
    [
        ({"eos_token_id": 5}, 7, "<|end|>", (7, 5, END)),
        ({"eos_token_id": [5, 7]}, [7, 9], "<|end|>", (7, 9, 5, END)),
        ({"eos_token_id": [5, END]}, None, "<|end|>", (5, END)),
        ({}, None, "<|end|>", (END,)),  # the default of the class, 2, is nobody's end
        ({}, [], None, (2,)),  # but where nothing else says any
        ({"eos_token_id": None}, None, None, ()),
        ({"eos_token_id": 5}, None, "<|nowhere|>", (5,)),
    ],
)
def test_ends_are_the_union_of_all_that_is_stated(
    stated: dict[str, Any], generation: object, token: str | None, expected: tuple[int, ...]
) -> None:
    held = files(byte_tokenizer(), **({} if token is None else {"eos_token": token}))
    held["generation_config.json"] = json.dumps({"eos_token_id": generation}).encode()
    ends = stated_ends(config(**stated), None, held)
    assert tuple(dict.fromkeys(token for tokens in ends.values() for token in tokens)) == expected


def test_the_older_file_of_special_tokens_names_an_end_too() -> None:
    held = files(byte_tokenizer())
    held["special_tokens_map.json"] = json.dumps({"eos_token": {"content": "<|end|>", "special": True}}).encode()
    assert stated_ends(config(eos_token_id=5), None, held)["eos_token of the tokenizer"] == (END,)


@pytest.mark.parametrize("value", ["2", 1.5, [1, "2"], -1, True])
def test_ends_that_are_no_tokens(value: object) -> None:
    with raises(ModelConfigErrors.BAD_TOKENS, field="eos_token_id"):
        stated_ends(config(), None, {"generation_config.json": json.dumps({"eos_token_id": value}).encode()})


def test_a_packed_checkpoint_states_what_its_folder_states(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path / "model", tokenizer=byte_tokenizer())
    values = json.loads((folder / "config.json").read_text())
    del values["eos_token_id"]
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "generation_config.json").write_text('{"eos_token_id": 9}')
    checkpoint = open_checkpoint(folder)
    assert checkpoint.eos_token_ids == (9,)
    pack(checkpoint, tmp_path / "model.pt")
    packed = open_checkpoint(tmp_path / "model.pt")
    assert packed.eos_token_ids == (9,)
    assert packed.digest == checkpoint.digest


def test_a_config_is_written_as_it_was_read() -> None:
    assert "eos_token_id" not in file_form(config())
    assert file_form(config(eos_token_id=2))["eos_token_id"] == 2


# --------------------------------------------------------------------------------------------------------- vocabulary


def test_tokens_beyond_the_vocabulary_are_named() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([f"<|{number}|>" for number in range(10)])
    with collecting() as warnings:
        check_vocabulary(FOLDER, {"config": (END,)}, files(tokenizer), END + 1)
        check_vocabulary(FOLDER, {"config": (END,)}, files(tokenizer), END + 11)
    [warning] = warnings
    names = [f"<|{number}|>" for number in range(8)]
    check(warning, TokenWarnings.BEYOND_VOCABULARY, path="model", count=10, size=END + 1, tokens=names)
    assert "<|7|>" in str(warning)


def test_an_end_beyond_the_vocabulary_is_refused() -> None:
    with raises(TokenErrors.END_BEYOND_VOCABULARY, field="eos_token_id of the config", token=END, last=END - 1):
        check_vocabulary(FOLDER, {"eos_token_id of the config": (3, END)}, {}, END)


@pytest.mark.parametrize("added", [True, False])
def test_a_bos_beyond_the_vocabulary_is_refused(added: bool) -> None:
    """One that the tokenizer puts before a text, or one that its chat template may write."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<|begin|>"])
    begin = tokenizer.token_to_id("<|begin|>")
    if added:
        tokenizer.post_processor = TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    held = files(tokenizer, **({} if added else {"bos_token": "<|begin|>"}))
    with raises(TokenErrors.BOS_BEYOND_VOCABULARY, text="<|begin|>", token=begin, last=begin - 1):
        check_vocabulary(FOLDER, {}, held, begin)
    check_vocabulary(FOLDER, {}, held, begin + 1)


def test_a_damaged_tokenizer_is_refused() -> None:
    with raises(TokenErrors.NO_TOKENIZER):
        check_vocabulary(FOLDER, {}, {"tokenizer.json": b"{}"}, END)


# ------------------------------------------------------------------------------------------------------ chat templates


def write(folder: Path, name: str, content: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content)


PROCESSOR = json.dumps({"chat_template": "processor"})
CONFIG = json.dumps({"chat_template": "config"})
PLACES = {
    "additional_chat_templates/default.jinja": "additional",
    "chat_template.jinja": "jinja",
    "tokenizer_config.json": CONFIG,
    "processor_config.json": PROCESSOR,
    "chat_template.json": json.dumps({"chat_template": "legacy"}),
}
"""From the first that counts to the last."""


@pytest.mark.parametrize("first", range(len(PLACES)))
def test_where_a_chat_template_may_be(first: int, tmp_path: Path) -> None:
    present = dict(list(PLACES.items())[first:])
    for name, content in present.items():
        write(tmp_path, name, content)
    held = folder_tokenizer(tmp_path)
    if first == 2:  # left where it is
        assert "chat_template.jinja" not in held
        return
    expected = ["additional", "jinja", "", "processor", "legacy"][first]
    assert held["chat_template.jinja"] == expected.encode()


def test_the_order_of_a_tokenizer_s_templates_is_that_of_transformers(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    for name in ("tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/default.jinja"):
        content = PLACES[name]
        if name == "tokenizer_config.json":
            content = json.dumps({"chat_template": "config", "tokenizer_class": "PreTrainedTokenizerFast"})
        write(tmp_path, name, content)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
        held = folder_tokenizer(tmp_path)
        ours = held.get("chat_template.jinja", b"config").decode()
        assert ours == theirs.get_chat_template()


def test_a_processor_s_template_is_that_of_transformers(tmp_path: Path) -> None:
    write(tmp_path, "chat_template.json", json.dumps({"chat_template": "{{ messages[0]['content'] }}!"}))
    processor, _ = transformers.ProcessorMixin.get_processor_dict(str(tmp_path))
    assert folder_tokenizer(tmp_path)["chat_template.jinja"].decode() == processor["chat_template"]


def test_templates_of_which_none_is_the_default(tmp_path: Path) -> None:
    for name in ("rag", "tool_use"):
        write(tmp_path, f"additional_chat_templates/{name}.jinja", name)
    with raises(TokenizerFilesErrors.NO_DEFAULT_TEMPLATE, names=["rag", "tool_use"]):
        folder_tokenizer(tmp_path)


@pytest.mark.parametrize("template", [5, ["a"], {"default": 5}])
def test_a_template_that_is_no_text(template: object, tmp_path: Path) -> None:
    write(tmp_path, "chat_template.json", json.dumps({"chat_template": template}))
    with raises(TokenizerFilesErrors.TEMPLATE_NOT_TEXT):
        folder_tokenizer(tmp_path)


# ------------------------------------------------------------------------------------------------------ older forms


@pytest.mark.parametrize(
    ("content", "package", "packages"),
    [(b"\n\x0e\n\x05", "sentencepiece", "sentencepiece protobuf"), (b"IQ== 0\n", "tiktoken", "tiktoken")],
)
def test_a_package_that_an_older_tokenizer_needs_is_named(
    content: bytes, package: str, packages: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("`tiktoken` is required to read a `tiktoken` file")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", refuse)
    (tmp_path / "tokenizer.model").write_bytes(content)
    with raises(TokenizerFilesErrors.NO_PACKAGE, file="tokenizer.model", package=package, packages=packages):
        folder_tokenizer(tmp_path)
