"""Steps that move rows: into caches, or by an index."""

from __future__ import annotations

import torch
from torch import Tensor

from sscc.ir import operations
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.opspec import executes
from sscc.runtime.backends.reference.encoded_rows import as_stored


class ReferenceCacheErrors(ErrorKind):
    UPDATED_OUTSIDE = InputError, "rows {rows} of a cache cannot be written: it has {size} rows"
    TOO_MANY = (
        InputError,
        "a step selects {topk} rows of a prompt, but its cache has only {most} between sinks and ring",
    )
    GATHERED_OUTSIDE = InputError, "row {row} cannot be gathered: the source has {size} rows"


@executes(operations.UpdateRows)
def update_rows(cache: Tensor, new: Tensor, row: Tensor, active: Tensor) -> None:
    """Execute the step `UpdateRows` (see it for shapes) on rows of floats or on the bytes of encoded rows.

    Raises InputError if the row of an active token is not in the cache.
    """
    tokens = active.nonzero()[:, 0]
    rows = row[tokens]
    check_rows(rows, cache.shape[2])
    cache[tokens // (len(new) // len(cache)), :, rows] = new[tokens, :, 0].to(cache.dtype)


def check_rows(rows: Tensor, size: int) -> None:
    """Raise InputError if a row to be updated is outside of a cache of `size` rows."""
    if bool(((rows < 0) | (rows >= size)).any()):
        raise ReferenceCacheErrors.UPDATED_OUTSIDE(rows=rows.tolist(), size=size)


@executes(operations.GatherRows)
def gather_rows(source: Tensor, index: Tensor, out: Tensor) -> None:
    """Execute the step `GatherRows` (see it for shapes). Raises InputError if an index is beyond the source."""
    out.copy_(as_stored(gathered(source, index[None]), out))


def gathered(source: Tensor, index: Tensor) -> Tensor:
    """Return rows of `source` [B, Hkv, T, D] at `index` [B, Hkv, J] as [B, Hkv, J, D], zeros where the index is
    negative.

    Raises InputError if an index is beyond the source.
    """
    if bool((index >= source.shape[2]).any()):
        raise ReferenceCacheErrors.GATHERED_OUTSIDE(row=int(index.max()), size=source.shape[2])
    slots = torch.arange(source.shape[0])[:, None, None]
    heads = torch.arange(source.shape[1])[:, None]
    return torch.where((index < 0)[..., None], 0, source[slots, heads, index.clamp(min=0)])
