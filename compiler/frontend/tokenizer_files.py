"""The files of a tokenizer: those in a folder, converted from an older form, or packed in a `.pt`."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers

from sscc.compiler.frontend.model_config import parse_json
from sscc.compiler.frontend.tokenizer_folder import staged_tokenizer
from sscc.ir.errors import ErrorKind, InputError, SsccError, quoted
from sscc.runtime.session.generation_config import GENERATION_FILE
from sscc.runtime.text.chat_template import CONFIG_FILE, DEFAULT_NAME, TEMPLATE_FILE, ChatTemplate

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    GENERATION_FILE,
    "chat_template.jinja",
)
ADDITIONAL_TEMPLATES = "additional_chat_templates"
PROCESSOR_TEMPLATES = ("processor_config.json", "chat_template.json")
"""Files in which a processor has the template that its tokenizer lacks: the first one counts, as in transformers."""
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # a plain file name, never a path
SLOW_TOKENIZER_FILES = ("tokenizer.model", "vocab.json", "spiece.model")
_SENTENCEPIECE_START = b"\n"  # the tag of a sentencepiece model's first field; tiktoken's form is lines of base64


class TokenizerFilesErrors(ErrorKind):
    NOT_READABLE = InputError, "{path}: its tokenizer cannot be read: {reason}"
    NO_PACKAGE = (
        InputError,
        "{path} has no tokenizer.json, and reading its {file} needs {package}, which is not installed: pip install "
        "{packages}, or save the tokenizer with transformers' save_pretrained",
    )
    NOT_CONVERTIBLE = (
        InputError,
        "{path} has no tokenizer.json, and transformers cannot convert its older tokenizer ({cause}): save the "
        "tokenizer with transformers' save_pretrained",
    )
    BAD_TEMPLATE = InputError, "{cause}: correct the template, or remove it"
    NOT_A_DICTIONARY = InputError, "{path}: tokenizer must be a dict from file name to bytes"
    BAD_NAME = (
        InputError,
        "{path}: the tokenizer has a file named {name!r:.80}: names consist of letters, digits, '.', '_' and '-'",
    )
    NOT_TEXT = InputError, "{path}: a file of the tokenizer is not text: {cause}"
    TEMPLATE_NOT_TEXT = InputError, "{path}: chat_template must be a text, got a JSON {type}"
    NO_DEFAULT_TEMPLATE = InputError, "{path} has the chat templates {names}, but none called {default!r}"


def folder_tokenizer(folder: Path) -> dict[str, bytes]:
    """Return the tokenizer's files in a Hugging Face folder by name.

    A missing tokenizer.json is made from older forms. A chat template in another file is returned as
    chat_template.jinja (`_template`).
    """
    try:
        files = _known_files(folder)
    except OSError as error:
        raise TokenizerFilesErrors.NOT_READABLE(path=folder, reason=error.strerror) from error
    if "tokenizer.json" not in files:
        slow = [name for name in SLOW_TOKENIZER_FILES if (folder / name).is_file()]
        if slow:
            files |= _converted(folder, slow[0])
    template = _template(folder, files)
    return files if template is None else files | {TEMPLATE_FILE: template}


def _converted(folder: Path, slow: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as saved, staged_tokenizer(folder) as staged:
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                staged, local_files_only=True, trust_remote_code=False
            )
            tokenizer.save_pretrained(saved)
        except BaseException as error:  # a missing package, a damaged vocabulary, a panic of Rust, ...
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise _conversion_error(folder, slow, error) from error
        return _known_files(Path(saved))


def _conversion_error(folder: Path, slow: str, error: BaseException) -> SsccError:
    """Return the reason why a tokenizer is not converted. transformers asks for tiktoken where sentencepiece lacks."""
    if slow.endswith(".model"):
        with (folder / slow).open("rb") as file:
            is_sentencepiece = file.read(1) == _SENTENCEPIECE_START
        package = "sentencepiece" if is_sentencepiece else "tiktoken"
        if importlib.util.find_spec(package) is None:
            packages = "sentencepiece protobuf" if is_sentencepiece else package
            return TokenizerFilesErrors.NO_PACKAGE(path=folder, file=slow, package=package, packages=packages)
    return TokenizerFilesErrors.NOT_CONVERTIBLE(path=folder, cause=quoted(error))


def _known_files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}


def _template(folder: Path, files: Mapping[str, bytes]) -> bytes | None:
    """Return the chat template that is neither in chat_template.jinja nor in tokenizer_config.json; None if there is
    none, or if one of these takes precedence.

    The order is that of transformers: the default one in the folder of additional templates, chat_template.jinja,
    tokenizer_config.json, and for a checkpoint whose tokenizer has no template the files of its processor.
    """
    additional = folder / ADDITIONAL_TEMPLATES
    try:
        names = sorted(path.stem for path in additional.glob("*.jinja"))
        if DEFAULT_NAME in names:
            return (additional / f"{DEFAULT_NAME}.jinja").read_bytes()
        if TEMPLATE_FILE in files:
            return None
        if names:  # these would replace the one in tokenizer_config.json
            raise TokenizerFilesErrors.NO_DEFAULT_TEMPLATE(path=additional, names=names, default=DEFAULT_NAME)
        if CONFIG_FILE in files and _template_in(files[CONFIG_FILE], folder / CONFIG_FILE) is not None:
            return None
        for name in PROCESSOR_TEMPLATES:
            path = folder / name
            template = _template_in(path.read_bytes(), path) if path.is_file() else None
            if template is not None:
                return _default_of(template, path).encode()
    except OSError as error:
        raise TokenizerFilesErrors.NOT_READABLE(path=folder, reason=error.strerror) from error
    return None


def _template_in(data: bytes, path: Path) -> Any:
    """Return the field `chat_template` of a JSON file; None where the file is damaged, which its reader reports."""
    if path.name == CONFIG_FILE:
        try:
            return parse_json(data, str(path)).get("chat_template")
        except InputError:
            return None
    return parse_json(data, str(path)).get("chat_template")


def _default_of(template: Any, path: Path) -> str:
    """Return a template, or the default one of several named ones."""
    if isinstance(template, dict):
        if DEFAULT_NAME not in template:
            raise TokenizerFilesErrors.NO_DEFAULT_TEMPLATE(path=path, names=sorted(template), default=DEFAULT_NAME)
        template = template[DEFAULT_NAME]
    if not isinstance(template, str):
        raise TokenizerFilesErrors.TEMPLATE_NOT_TEXT(path=path, type=type(template).__name__)
    return template


def check_chat_template(path: Path, files: Mapping[str, bytes]) -> None:
    """Check that a checkpoint's chat template can be rendered: a template that cannot would fail only when it is
    served.

    Raises:
        InputError: naming the file at `path`, the checkpoint.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        try:
            ChatTemplate.load(Path(folder))
        except InputError as error:
            # The cause names its file in the temporary folder.
            raise TokenizerFilesErrors.BAD_TEMPLATE(cause=str(error).replace(folder, str(path))) from None


def packed_tokenizer(path: Path, files: Any) -> dict[str, bytes]:
    """Return the tokenizer's files inside a `.pt`, checked; empty if it has none."""
    if files is None:
        return {}
    if not isinstance(files, Mapping) or not all(isinstance(data, (bytes, str)) for data in files.values()):
        raise TokenizerFilesErrors.NOT_A_DICTIONARY(path=path)
    for name in files:
        if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
            raise TokenizerFilesErrors.BAD_NAME(path=path, name=name)
    try:
        return {name: data.encode() if isinstance(data, str) else data for name, data in files.items()}
    except UnicodeEncodeError as error:
        raise TokenizerFilesErrors.NOT_TEXT(path=path, cause=quoted(error)) from error
