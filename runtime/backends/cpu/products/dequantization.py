"""Quantized weights in bodies: the steps that dequantize them, for products to read.

Native code does not run these steps: its products read the packed codes.
"""

from __future__ import annotations

from dataclasses import dataclass

from sscc.ir.operations import Dequantize
from sscc.ir.schedule import Body, Product, Reduction, Vector
from sscc.ir.weight_formats.registry import format_named
from sscc.ir.weight_formats.weight_format import WeightFormat
from sscc.runtime.backends.cpu.codegen.nests import Regions, nest_of


@dataclass(frozen=True)
class Dequantized:
    """A local [matrices, rows, k] with the numbers of a quantized weight.

    Attributes:
        parts: parameters of the body, in the order of the format's parts.
    """

    parts: tuple[str, ...]
    format: WeightFormat
    rows: int
    k: int


def dequantized_locals(body: Body, regions: Regions) -> dict[str, Dequantized]:
    """Return the locals of a body that hold dequantized weights and that only products read, as their second
    operand."""
    dequantized: dict[str, Dequantized] = {}
    writes: dict[str, int] = {}
    spoiled: set[str] = set()
    for step in body.steps:
        if isinstance(step, Dequantize):
            out = regions.resolve(step.out)
            parts = tuple(regions.resolve(part.bytes).region for part in step.parts)
            dequantized[out.region] = Dequantized(parts, format_named(step.format), *out.shape[-2:])
            writes[out.region] = writes.get(out.region, 0) + 1
            continue
        if not isinstance(step, Vector | Reduction | Product):
            spoiled |= {regions.resolve(name).region for name in regions.names_in(step)}
            continue
        nest = nest_of(step, regions)
        writes[nest.output.region] = writes.get(nest.output.region, 0) + 1
        read = nest.inputs[:1] if isinstance(step, Product) else nest.inputs
        spoiled |= {a.region for a in read} | {g.region for g in nest.loads.values()}
    params = {p.name for p in body.params}
    return {n: d for n, d in dequantized.items() if writes[n] == 1 and n not in spoiled and n not in params}


__all__ = ["Dequantized", "dequantized_locals"]
