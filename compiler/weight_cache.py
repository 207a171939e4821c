"""Weights that an artifact refers to, packed once into the user's cache so that later loads map them at once.

The cache is `$SSCC_CACHE`, else `$XDG_CACHE_HOME/sscc`, else `~/.cache/sscc`. A packed file holds the weights as
the program wants them, the layers of looped kernels stacked; it is named by their digest and can be deleted at any
time. Beside it lies the sha256 of its bytes: a packed file that is damaged, or whose digest is not there because its
writer was ended, is packed again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from sscc.ir.errors import InputError
from sscc.ir.files import HashingFile
from sscc.ir.weight_format import Encoding
from sscc.runtime.artifact.manifest import WeightsRecord
from sscc.runtime.artifact.tensor_files import (
    Array,
    KeepingReader,
    Layout,
    Packings,
    Reader,
    Specs,
    TensorSpec,
    read_specs,
    read_tensors,
    stored_specs,
    weights_digest,
    write_tensors,
)
from sscc.runtime.user_cache import WEIGHTS, UnsafeCacheError, cache_folder, open_cached, replacing_cached
from sscc.runtime.verification import Claim, verify_files

DATA = ".safetensors"
DIGEST = ".sha256"
_DIGEST_BYTES = 64
_LOGGER = logging.getLogger("sscc")

Progress = Callable[[int, int], None]
"""Called with (bytes packed, bytes in all)."""


def packed_weights(
    record: WeightsRecord,
    layout: Layout,
    read: Reader,
    progress: Progress,
    packings: Packings | None = None,
    *,
    verify: bool = True,
) -> dict[str, Array]:
    """The weights of `record`, memory-mapped from the cache; packed there first if they are not yet.

    Args:
        layout: the weights that the program wants, and their sources.
        read: gives one source; called only while packing.
        progress: told how far packing is.
        packings: how some of them are packed for native code.
        verify: compare a packed file with its sha256, once as long as it does not change.

    Returns: the tensors of `layout` by name.

    Raises:
        InputError: what `read` gives is not what the artifact was compiled with.
        UnsafeCacheError: somebody else could have written what is in the cache.
        OutputError: the cache cannot be written.
    """
    name = f"{WEIGHTS}/{record.digest}"
    if not _is_packed(name, stored_specs(layout, packings or {}), verify):
        _pack(name, record, layout, read, progress, packings)
    return read_tensors(_data_path(name))


def _data_path(name: str) -> Path:
    return cache_folder() / f"{name}{DATA}"


def _is_packed(name: str, specs: Specs, verify: bool) -> bool:
    """Whether the cache has a packed file, whole, with tensors of these shapes. Damage is said through the logger."""
    try:
        digest = _recorded(name)
        data = open_cached(name + DATA)
        if digest is None or data is None:
            return False
        with data:
            if verify:
                verify_files([Claim(_data_path(name), data, digest)])
        return read_specs(_data_path(name)) == specs
    except UnsafeCacheError:
        raise
    except InputError as error:
        _LOGGER.warning(f"{error}: the weights are packed again")
        return False


def _recorded(name: str) -> str | None:
    """The sha256 that a packed file was written with."""
    file = open_cached(name + DIGEST)
    if file is None:
        return None
    with file:
        return file.read(_DIGEST_BYTES).decode("ascii", "replace")


def _pack(
    name: str, record: WeightsRecord, layout: Layout, read: Reader, progress: Progress, packings: Packings | None
) -> None:
    total = sum(len(stack.sources) * stack.source.nbytes for stack in layout.values())
    done = 0

    def count(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    def numbers(source: str, spec: TensorSpec) -> Array:
        array = read(source, spec)
        count(spec.nbytes)
        return array

    def kept(source: str, encoding: Encoding) -> Array | None:
        array = read.kept(source, encoding) if isinstance(read, KeepingReader) else None
        if array is not None:
            count(TensorSpec(encoding.source_shape(array.shape), "f32").nbytes)
        return array

    counted = KeepingReader(numbers, kept)
    with replacing_cached(name + DATA) as raw:
        file = HashingFile(raw)
        digests = write_tensors(file, layout, counted, packings)
        if weights_digest(digests, layout) != record.digest:
            raise InputError(
                f"the checkpoint {record.source} is not the one that this artifact was compiled with: its digest "
                "differs; give another one on purpose with --checkpoint"
            )
    with replacing_cached(name + DIGEST) as raw:
        raw.write(file.sha256().encode())
