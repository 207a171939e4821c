"""Weights that an artifact refers to, packed once into the user's cache so that later loads map them at once.

The cache is `$SSCC_CACHE`, else `$XDG_CACHE_HOME/sscc`, else `~/.cache/sscc`. A packed file is named by the
digest of its weights and can be deleted at any time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from sscc.ir.errors import InputError, OutputError
from sscc.runtime.manifest import WeightsRecord
from sscc.runtime.tensor_files import Reader, read_specs, read_tensors, weights_digest, write_tensors

Progress = Callable[[int, int], None]
"""Called with (bytes packed, bytes in all)."""


def cache_folder() -> Path:
    """Where packed weights lie."""
    given = os.environ.get("SSCC_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sscc"


def packed_weights(record: WeightsRecord, read: Reader, progress: Progress) -> dict[str, torch.Tensor]:
    """The weights of `record`, memory-mapped from the cache; packed there first if they are not yet.

    Args:
        read: gives one weight in the record's dtype and shape; called only while packing.
        progress: told how far packing is.

    Raises:
        InputError: what `read` gives is not what the artifact was compiled with.
        OutputError: the cache cannot be written.
    """
    path = cache_folder() / "weights" / f"{record.digest}.safetensors"
    if path.is_file() and read_specs(path) == dict(record.spec):
        return read_tensors(path)
    _pack(path, record, read, progress)
    return read_tensors(path)


def _pack(path: Path, record: WeightsRecord, read: Reader, progress: Progress) -> None:
    total = sum(spec.nbytes for spec in record.spec.values())
    done = 0

    def reading(name: str) -> torch.Tensor:
        nonlocal done
        tensor = read(name)
        done += record.spec[name].nbytes
        progress(done, total)
        return tensor

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path.parent} cannot be made: {error.strerror} (set SSCC_CACHE)") from None
    try:
        with temporary.open("wb") as file:
            digests = write_tensors(file, record.spec, reading)
        if weights_digest(digests, record.spec) != record.digest:
            raise InputError(
                f"the checkpoint {record.source} is not the one that this artifact was compiled with: its digest "
                "differs; give another one on purpose with --checkpoint"
            )
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error} (set SSCC_CACHE)") from None
    finally:
        temporary.unlink(missing_ok=True)
