"""Archives of `torch.export.save`, taken apart and put together again with other members."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from examples.own_decoder import Decoder, export

PROGRAM = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


def save_own(path: Path) -> Path:
    """Write the example's decoder."""
    torch.manual_seed(0)
    torch.export.save(export(Decoder(vocab=16, hidden=16, heads=2, kv_heads=1, layers=1)), path)
    return path


def members(path: Path) -> dict[str, bytes]:
    """Return the members of an archive, without their folder."""
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def write(path: Path, contents: dict[str, bytes], *, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in contents.items():
            archive.writestr(f"own/{name}", data)
    return path


@contextmanager
def edited(contents: dict[str, bytes], name: str) -> Iterator[Any]:
    """The JSON value of a member, which is changed in place."""
    value = json.loads(contents[name])
    yield value
    contents[name] = json.dumps(value).encode()


def with_edit(base: Path, path: Path, name: str, change: Callable[[Any], None]) -> Path:
    """A copy of an archive with another JSON value."""
    contents = members(base)
    with edited(contents, name) as value:
        change(value)
    return write(path, contents)
