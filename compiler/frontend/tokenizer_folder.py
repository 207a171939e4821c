"""Safe folders of tokenizers for transformers: their configs name no file.

transformers opens the file that `"vocab": "/some/file"` of a tokenizer_config.json or special_tokens_map.json names,
and its contents end up in the artifact's vocabulary. It finds the files of a vocabulary by their names in the folder
anyway, so nothing is lost without such fields.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sscc.ir.errors import ErrorKind, InputError, quoted
from sscc.ir.files import read_text

CONFIGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".py")
_FILES = frozenset(("vocab", "merges", "tokenizer_object", "auto_map", "name_or_path", "_name_or_path"))
"""Fields that name files, besides those that end in `_file`, or are ignored."""


class TokenizerFolderErrors(ErrorKind):
    NAMES_A_FILE = InputError, (
        "{path}: the field {field!r} names the file {file!r}: all files of a tokenizer must be in its folder, and no "
        "field may name another file"
    )
    NOT_JSON = InputError, "{path} is not JSON: {reason}"


@contextmanager
def staged_tokenizer(folder: Path) -> Iterator[Path]:
    """Create a temporary folder with a tokenizer's files, whose configs name no file.

    Raises InputError if a config is damaged, or names a file in an unknown field.
    """
    with tempfile.TemporaryDirectory() as name:
        staged = Path(name)
        for file in sorted(folder.iterdir()):
            if not file.is_file() or file.name.endswith(_WEIGHTS):
                continue
            if file.name in CONFIGS:
                (staged / file.name).write_text(json.dumps(_without_files(file)), encoding="utf-8")
            else:
                (staged / file.name).symlink_to(file.resolve())
        yield staged


def _without_files(path: Path) -> Any:
    try:
        config = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise TokenizerFolderErrors.NOT_JSON(path=path, reason=quoted(error)) from None
    if not isinstance(config, dict):
        return config
    kept = {key: value for key, value in config.items() if key not in _FILES and not key.endswith("_file")}
    for key, value in kept.items():
        for text in _texts(value):
            if os.sep in text and os.path.lexists(text):
                raise TokenizerFolderErrors.NAMES_A_FILE(path=path, field=key, file=text)
    return kept


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            pending += item
