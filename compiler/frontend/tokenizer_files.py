"""The files of a tokenizer: those in a folder, converted from an older form, or packed in a `.pt`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers

from sscc.compiler.frontend.tokenizer_folder import staged_tokenizer
from sscc.ir.errors import InputError
from sscc.runtime.chat_template import ChatTemplate

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a file beside others, never of a path
SLOW_TOKENIZER_FILES = ("tokenizer.model", "vocab.json", "spiece.model")


def folder_tokenizer(folder: Path) -> dict[str, bytes]:
    """The tokenizer's files in a Hugging Face folder, tokenizer.json made from older forms where it lacks."""
    try:
        files = _known_files(folder)
    except OSError as error:
        raise InputError(f"{folder}: its tokenizer cannot be read: {error.strerror}") from error
    if "tokenizer.json" in files or not any((folder / name).is_file() for name in SLOW_TOKENIZER_FILES):
        return files
    with tempfile.TemporaryDirectory() as saved, staged_tokenizer(folder) as staged:
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                staged, local_files_only=True, trust_remote_code=False
            )
            tokenizer.save_pretrained(saved)
        except BaseException as error:  # a missing sentencepiece, a damaged vocabulary, a panic of Rust, ...
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise InputError(
                f"{folder} has no tokenizer.json and its older tokenizer cannot be converted "
                f"({' '.join(str(error).split())[:160]}): save it with transformers' save_pretrained"
            ) from error
        return files | _known_files(Path(saved))


def _known_files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}


def check_chat_template(path: Path, files: Mapping[str, bytes]) -> None:
    """Refuses a chat template that nobody could render: it would fail only when it is served.

    Raises:
        InputError: naming the file at `path`, the checkpoint.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        try:
            ChatTemplate.load(Path(folder))
        except InputError as error:
            raise InputError(str(error).replace(folder, str(path)) + ": mend the template, or take it out") from None


def packed_tokenizer(path: Path, files: Any) -> dict[str, bytes]:
    """The tokenizer's files inside a `.pt`, checked; empty if it has none."""
    if files is None:
        return {}
    if not isinstance(files, Mapping) or not all(isinstance(data, (bytes, str)) for data in files.values()):
        raise InputError(f"{path}: tokenizer must be a dict from file name to bytes")
    for name in files:
        if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
            raise InputError(
                f"{path}: the tokenizer has a file named {name!r:.80}: names are of letters, digits, '.', '_' and '-'"
            )
    try:
        return {name: data.encode() if isinstance(data, str) else data for name, data in files.items()}
    except UnicodeEncodeError as error:
        raise InputError(f"{path}: a file of the tokenizer is not text: {error}") from error
