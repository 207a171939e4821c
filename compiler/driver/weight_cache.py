"""Cache of packed weights for artifacts without weights: they are packed once, and later loads only map them.

The cache is `$SSCC_CACHE`, else `$XDG_CACHE_HOME/sscc`, else `~/.cache/sscc`. A packed file holds the weights in the
program's layout, with the layers of looped kernels stacked. Its name is their digest. It can be deleted at any time.
The sha256 of its bytes is stored beside it: a packed file that is damaged, or lacks its digest because its writer was
killed, is packed again.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.files import HashingFile
from sscc.ir.weight_formats.registry import Encoding
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
from sscc.runtime.support.user_cache import WEIGHTS, UnsafeCacheError, cache_folder, open_cached, replacing_cached
from sscc.runtime.support.verification import Claim, note_written, verify_files

DATA = ".safetensors"
DIGEST = ".sha256"
_DIGEST_BYTES = 64
_SWITCH_SECONDS = 2e-4
"""Seconds after which a thread releases the GIL while weights are packed: the packing thread, which needs it between
long calls of native code, would otherwise wait 5 ms each time."""
_LOGGER = logging.getLogger("sscc")


class WeightCacheErrors(ErrorKind):
    DIGEST_DIFFERS = InputError, (
        "the checkpoint is not the one from which this artifact was compiled: the digest of its weights is {digest} "
        "instead of {expected}. To run other weights, name their checkpoint with --checkpoint"
    )
    LOST = InputError, "{path} was removed while it was read: try again"


Progress = Callable[[int, int], None]
"""Called with (bytes packed, total bytes)."""


def packed_weights(
    record: WeightsRecord,
    layout: Layout,
    read: Reader,
    progress: Progress,
    packings: Packings | None = None,
    *,
    verify: bool = True,
) -> dict[str, Array]:
    """Return the weights of `record`, memory-mapped from the cache; they are packed there first if necessary.

    Args:
        layout: weights of the program, and their sources.
        read: returns one source; called only while packing.
        progress: called repeatedly while packing.
        packings: packed forms of some weights for native code.
        verify: compare a packed file with its sha256, unless it has not changed since the last comparison.

    Returns: the tensors of `layout` by name.

    Raises:
        InputError: `read` returns other weights than those with which the artifact was compiled.
        UnsafeCacheError: another user could have written to the cache.
        OutputError: the cache cannot be written.
    """
    name = f"{WEIGHTS}/{record.digest}"
    packed = _packed(name, stored_specs(layout, packings or {}), verify)
    if packed is None:
        pack_weights(layout, read, progress, packings, expected=record.digest)
        file = open_cached(name + DATA)
        if file is None:
            raise WeightCacheErrors.LOST(path=_data_path(name))
        with file:
            packed = read_tensors(_data_path(name), file)
    return packed


def _data_path(name: str) -> Path:
    return cache_folder() / f"{name}{DATA}"


def _packed(name: str, specs: Specs, verify: bool) -> dict[str, Array] | None:
    """Return the tensors of a packed file; None if it is missing, damaged or has other shapes. Damage is logged."""
    try:
        digest = _recorded(name)
        data = open_cached(name + DATA)
        if digest is None or data is None:
            return None
        path = _data_path(name)
        with data:
            if verify:
                verify_files([Claim(path, data, digest)])
            return read_tensors(path, data) if read_specs(path, data) == specs else None
    except UnsafeCacheError:
        raise
    except InputError as error:
        _LOGGER.warning(f"{error}: the weights are packed again")
        return None


def _recorded(name: str) -> str | None:
    """Return the recorded sha256 of a packed file; None without one."""
    file = open_cached(name + DIGEST)
    if file is None:
        return None
    with file:
        return file.read(_DIGEST_BYTES).decode("ascii", "replace")


def pack_weights(
    layout: Layout,
    read: Reader,
    progress: Progress,
    packings: Packings | None = None,
    *,
    expected: str | None = None,
) -> str:
    """Pack weights into the cache and return their digest, which is also their name there.

    Args:
        expected: required digest; None for any.

    Raises as `packed_weights` does.
    """
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

    digest = ""
    unnamed = f"{WEIGHTS}/packing-{os.getpid()}-{threading.get_ident()}"
    with replacing_cached(unnamed, lambda: f"{digest}{DATA}") as raw:
        file = HashingFile(raw)
        digest = weights_digest(write_tensors(file, layout, KeepingReader(numbers, kept), packings), layout)
        if expected is not None and digest != expected:
            raise WeightCacheErrors.DIGEST_DIFFERS(digest=digest, expected=expected)
    with replacing_cached(f"{WEIGHTS}/{digest}{DIGEST}") as raw:
        raw.write(file.sha256().encode())
    data = open_cached(f"{WEIGHTS}/{digest}{DATA}")
    if data is not None:
        with data:
            note_written(data, file.sha256())
    return digest


@contextmanager
def packed_ahead(pack: Callable[[Progress], str]) -> Iterator[Callable[[], str]]:
    """Run `pack` in a separate thread during the block, and yield a function that waits for its result. `pack` must
    report its progress to its argument, where it stops if the block has ended."""

    def proceed(done: int, total: int) -> None:
        if stopped.is_set():
            raise _Stopped

    stopped = threading.Event()
    usual = sys.getswitchinterval()
    with ThreadPoolExecutor(1) as worker:
        sys.setswitchinterval(_SWITCH_SECONDS)
        packing = worker.submit(copy_context().run, pack, proceed)
        try:
            yield packing.result
        finally:
            stopped.set()
            sys.setswitchinterval(usual)


class _Stopped(Exception):
    """The packed weights are no longer needed."""
