"""SnapStream with as many bytes of cache as another policy, for policies that read few rows but hold all of them."""

from __future__ import annotations

from dataclasses import replace

from sscc.compiler.tools.quality.cells import SNAPSTREAM, Cell
from sscc.ir.geometry import PLAIN, Geometry
from sscc.runtime.artifact.signature import Signature


def snapstream_that_holds(held: int, signature: Signature) -> Cell | None:
    """Return SnapStream's cell with the largest budget of at most `held` bytes, in rows of the model's dtype, with the
    sinks and the ring of another program of the same model.

    Return None if the budget does not exceed the rows that a step of the other program reads, or reaches the context.

    Args:
        held: bytes of one sequence over all layers.
        signature: signature of the other program.
    """
    g = signature.geometry
    plain = [
        replace(group, geometry=replace(group.geometry, dtype=PLAIN)).rows(signature.sizes) for group in signature.plan
    ]
    windows = sum(rows.held_bytes() for rows in plain if not rows.geometry.takes_budget)
    row = sum(rows.row_bytes * rows.layers for rows in plain if rows.geometry.takes_budget)
    topk = (held - windows) // row - g.sink_recent
    if g.topk < topk < g.max_context - g.sink_recent:
        return Cell(SNAPSTREAM, Geometry(g.sink, g.recent, topk, g.obs, g.pool, g.pool_mode, g.max_context))
    return None
