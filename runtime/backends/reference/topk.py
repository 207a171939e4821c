"""The largest numbers of each row."""

from __future__ import annotations

from torch import Tensor

from sscc.ir import operations
from sscc.ir.opspec import executes


@executes(operations.TopK)
def topk(source: Tensor, indices: Tensor, values: Tensor | None) -> None:
    """Execute the step `TopK` (see it for shapes). A stable sort keeps equal numbers in order."""
    descending, places = source.sort(dim=1, descending=True, stable=True)
    indices.copy_(places[:, : indices.shape[1]])
    if values is not None:
        values.copy_(descending[:, : indices.shape[1]])
