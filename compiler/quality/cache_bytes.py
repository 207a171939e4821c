"""What a cell holds of one sequence, and what a step reads of it: a policy that reads little may hold everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sscc.compiler.quality.cells import QUERY, SNAPSTREAM, Cell
from sscc.ir.cache_plan import LayerGroup
from sscc.ir.choices import PLAIN_BITS
from sscc.ir.geometry import PLAIN
from sscc.ir.landmarks import SCALE_BYTES, code_bytes
from sscc.ir.schedule import DTYPE_BYTES
from sscc.runtime.artifact.signature import Signature


@dataclass(frozen=True)
class CacheBytes:
    """Bytes of K and V, and of landmarks, of one sequence over all layers.

    Attributes:
        held: of everything that is kept.
        read: what a decode step reads of a sequence of max_context tokens.
    """

    held: int
    read: int


def cache_bytes(cell: Cell, signature: Signature) -> CacheBytes:
    """Args:
    signature: of a program of the same model; where the cell chooses by query, of any budget.
    """
    if cell.method != QUERY:
        return CacheBytes(signature.held_bytes, signature.read_bytes)
    g, held, read = cell.geometry, 0, 0
    for group in signature.plan:
        layers, row = len(group.layers), signature.row_bytes(group)
        if group.geometry.window:
            held += row * signature.held_rows(group)
            read += row * sum(group.budgets)
            continue
        row = signature.row_bytes(replace(group, geometry=g))
        landmarks = g.max_context * group.kv_heads * _landmark_bytes(group, cell, signature)
        resident = 0 if cell.fetch is None else g.topk
        held += layers * (row * (g.sink_recent + resident + g.max_context) + landmarks)
        read += layers * (row * g.budget + landmarks)
    return CacheBytes(held, read)


def _landmark_bytes(group: LayerGroup, cell: Cell, signature: Signature) -> int:
    """Bytes of one key's landmark."""
    width = group.key.width
    if cell.landmark_bits < PLAIN_BITS:
        return code_bytes(width, cell.landmark_bits) + SCALE_BYTES
    g = cell.geometry
    return g.row_format.width(width) if g.encoded else width * DTYPE_BYTES[signature.dtype]


def cells_of_equal_bytes(cells: Sequence[Cell], signature: Signature) -> list[Cell]:
    """SnapStream's cells that hold as many bytes as those that choose by query, in rows of the model's dtype, and have
    sinks and ring of the same size. None where a full cache would hold no more.

    Args:
        signature: of a program of the same model.
    """
    equal = []
    for cell in cells:
        if cell.method == QUERY:
            g = replace(cell.geometry, dtype=PLAIN)
            governed = [replace(group, geometry=g) for group in signature.plan if not group.geometry.window]
            held = cache_bytes(cell, signature).held
            windows = sum(signature.row_bytes(w) * signature.held_rows(w) for w in signature.plan if w.geometry.window)
            row = sum(signature.row_bytes(group) * len(group.layers) for group in governed)
            topk = (held - windows) // row - g.sink_recent
            if g.topk < topk < g.max_context - g.sink_recent:
                equal.append(Cell(SNAPSTREAM, replace(g, topk=topk)))
    return equal
