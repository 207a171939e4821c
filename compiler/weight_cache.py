"""Weights that an artifact refers to, packed once into the user's cache so that later loads map them at once.

The cache is `$SSCC_CACHE`, else `$XDG_CACHE_HOME/sscc`, else `~/.cache/sscc`. A packed file holds the weights as
the program wants them, the layers of looped kernels stacked; it is named by their digest and can be deleted at any
time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sscc.ir.errors import InputError
from sscc.ir.files import output_errors, replacing
from sscc.runtime.manifest import WeightsRecord
from sscc.runtime.tensor_files import (
    Array,
    Layout,
    Packings,
    Reader,
    TensorSpec,
    read_specs,
    read_tensors,
    stored_specs,
    weights_digest,
    write_tensors,
)
from sscc.runtime.user_cache import cache_folder

HINT = "set SSCC_CACHE to another folder"

Progress = Callable[[int, int], None]
"""Called with (bytes packed, bytes in all)."""


def packed_weights(
    record: WeightsRecord, layout: Layout, read: Reader, progress: Progress, packings: Packings | None = None
) -> dict[str, Array]:
    """The weights of `record`, memory-mapped from the cache; packed there first if they are not yet.

    Args:
        layout: the weights that the program wants, and their sources.
        read: gives one source; called only while packing.
        progress: told how far packing is.
        packings: how some of them are packed for native code.

    Returns: the tensors of `layout` by name.

    Raises:
        InputError: what `read` gives is not what the artifact was compiled with; or a packed file is damaged.
        OutputError: the cache cannot be written.
    """
    path = cache_folder() / "weights" / f"{record.digest}.safetensors"
    if not path.is_file() or _packed_specs(path) != stored_specs(layout, packings or {}):
        _pack(path, record, layout, read, progress, packings)
    return read_tensors(path)


def _packed_specs(path: Path) -> dict[str, TensorSpec]:
    try:
        return read_specs(path)
    except InputError as error:
        raise InputError(f"{error}: delete it, and the weights are packed again") from None


def _pack(
    path: Path, record: WeightsRecord, layout: Layout, read: Reader, progress: Progress, packings: Packings | None
) -> None:
    total = sum(len(stack.sources) * stack.source.nbytes for stack in layout.values())
    done = 0

    def counted(source: str, spec: TensorSpec) -> Array:
        nonlocal done
        array = read(source, spec)
        done += spec.nbytes
        progress(done, total)
        return array

    with output_errors(path.parent, HINT):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, hint=HINT) as file:
        digests = write_tensors(file, layout, counted, packings)
        if weights_digest(digests, layout) != record.digest:
            raise InputError(
                f"the checkpoint {record.source} is not the one that this artifact was compiled with: its digest "
                "differs; give another one on purpose with --checkpoint"
            )
