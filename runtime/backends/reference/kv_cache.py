"""Steps that move rows: into the caches, and by an index."""

from __future__ import annotations

import torch
from torch import Tensor

from sscc.ir import operations
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.opspec import executes
from sscc.runtime.backends.reference.encoded_rows import as_stored


class ReferenceCacheErrors(ErrorKind):
    UPDATED_OUTSIDE = InputError, "a cache of {size} rows is updated at the rows {rows}"
    TOO_MANY = InputError, "a step selects {topk} rows of a prompt, its cache has {most} between sinks and ring"
    GATHERED_OUTSIDE = InputError, "row {row} is gathered from a source of {size} rows"


@executes(operations.UpdateRows)
def update_rows(cache: Tensor, new: Tensor, row: Tensor, active: Tensor) -> None:
    """The step `UpdateRows` (shapes there): rows of floats, or the bytes of encoded ones.

    Raises InputError where an active slot's row is not in the cache.
    """
    slots = active.nonzero()[:, 0]
    rows = row[slots]
    check_rows(rows, cache.shape[2])
    cache[slots, :, rows] = new[slots, :, 0].to(cache.dtype)


def check_rows(rows: Tensor, size: int) -> None:
    """Raises InputError where a row to be updated is not one of a cache's `size`."""
    if bool(((rows < 0) | (rows >= size)).any()):
        raise ReferenceCacheErrors.UPDATED_OUTSIDE(rows=rows.tolist(), size=size)


@executes(operations.GatherRows)
def gather_rows(source: Tensor, index: Tensor, out: Tensor) -> None:
    """The step `GatherRows` (shapes there). Raises InputError where an index is beyond the source."""
    out.copy_(as_stored(gathered(source, index[None]), out))


def gathered(source: Tensor, index: Tensor) -> Tensor:
    """Rows of `source` [B, Hkv, T, D] at `index` [B, Hkv, J]: [B, Hkv, J, D], zeros where it is negative.

    Raises InputError where an index is beyond the source.
    """
    if bool((index >= source.shape[2]).any()):
        raise ReferenceCacheErrors.GATHERED_OUTSIDE(row=int(index.max()), size=source.shape[2])
    slots = torch.arange(source.shape[0])[:, None, None]
    heads = torch.arange(source.shape[1])[:, None]
    return torch.where((index < 0)[..., None], 0, source[slots, heads, index.clamp(min=0)])
