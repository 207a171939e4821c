"""Quantised weights in bodies: the vector step that makes a local of codes and scales, for products to read.

Native code never makes that local. Where the step is recognised, the products that read it read the packed codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from sscc.ir.schedule import Body, Product, Reduction, Vector
from sscc.ir.weight_format import FLOAT8_DTYPE, RANKS
from sscc.runtime.backends.cpu.nests import Nest, Regions, nest_of


@dataclass(frozen=True)
class Dequantised:
    """A local [rows, k], or one such matrix per expert, that is ``(code - zero) * scale`` or
    ``code * scale + minimum``, groups along k.

    Attributes:
        values, scales: parameters of the body.
        bits: of a code.
        zero_point, minimum: which of them a group has, if any.
        scale_dtype: of scales and minimums.
        floating: whether codes are floats.
    """

    values: str
    scales: str
    bits: int
    zero_point: bool
    minimum: bool
    scale_dtype: str
    floating: bool
    group: int
    rows: int
    k: int


def dequantised_locals(body: Body, regions: Regions) -> dict[str, Dequantised]:
    """The locals of a body that are dequantised weights and that only products read, as their second operand."""
    dequantised: dict[str, Dequantised] = {}
    writes: dict[str, int] = {}
    spoiled: set[str] = set()
    for step in body.steps:
        if not isinstance(step, Vector | Reduction | Product):
            spoiled |= {regions.resolve(name).region for name in regions.names_in(step)}
            continue
        nest = nest_of(step, regions)
        weight = _recognise(nest, regions) if isinstance(step, Vector) else None
        if weight is not None:
            dequantised[nest.output.region] = weight
        writes[nest.output.region] = writes.get(nest.output.region, 0) + 1
        read = nest.inputs[:1] if isinstance(step, Product) else nest.inputs
        spoiled |= {a.region for a in read} | {g.region for g in nest.loads.values()}
    params = {p.name for p in body.params}
    return {n: d for n, d in dequantised.items() if writes[n] == 1 and n not in spoiled and n not in params}


_CODES = {8: ("sitofp",), 4: ("index", "index_cast", "muli", "shrsi", "andi", "sitofp")}


def _operations(bits: int, base: str, scale_dtype: str, floating: bool) -> tuple[str, ...]:
    """The operations of the vector program, without a last rounding."""
    wide = () if scale_dtype == "f32" else ("extf",)
    zero = ("sitofp", "subf") if base == "zero-point" else ("subf",) if bits == 4 and not base else ()
    if floating:
        return ("extf", *wide, "mulf") if bits == 8 and not base else ()
    return (*_CODES[bits], *zero, *wide, "mulf", *((*wide, "addf") if base == "minimum" else ()))


def _recognise(nest: Nest, regions: Regions) -> Dequantised | None:
    operations = tuple(i.op for i in nest.body if i.op != "truncf")
    if len(nest.inputs) not in (2, 3):
        return None
    dtypes = [regions.dtypes[access.region] for access in nest.inputs]
    bases = ("",) if len(nest.inputs) == 2 else ("zero-point",) if dtypes[2] == "i8" else ("minimum",)
    floating = dtypes[0] == FLOAT8_DTYPE
    chains = {(bits, base): _operations(bits, base, dtypes[1], floating) for bits in _CODES for base in bases}
    forms = [form for form, listed in chains.items() if listed == operations]
    if not forms or dtypes[0] not in ("i8", FLOAT8_DTYPE) or (bases == ("minimum",) and dtypes[2] != dtypes[1]):
        return None
    ((bits, base),) = forms
    out = nest.output.coefficients
    elements = _dense(nest)
    values, *others = nest.inputs
    group = _group(nest)
    if elements is None or group is None or any(a.constant for a in nest.accesses):
        return None
    if values.coefficients != tuple(c * bits // 8 for c in out):
        return None
    if any(a.coefficients != tuple(c // group for c in out) for a in others):
        return None
    shape = regions.shapes[values.region]
    all_rows = prod(shape[:-1])
    if len(shape) not in RANKS or elements % all_rows:
        return None
    parts = (values.region, others[0].region, bits, base == "zero-point", base == "minimum", dtypes[1], floating)
    return Dequantised(*parts, group, shape[-2], elements // all_rows)


def _dense(nest: Nest) -> int | None:
    """How many elements the step writes, if it writes them in order."""
    step = 1
    for coefficient, extent in zip(reversed(nest.output.coefficients), reversed(nest.dims), strict=True):
        if coefficient != step:
            return None
        step *= extent
    return step


def _group(nest: Nest) -> int | None:
    """Elements that share a scale: what the first dimension that moves the scales steps over."""
    scales = nest.inputs[1].coefficients
    for out, scale in zip(reversed(nest.output.coefficients), reversed(scales), strict=True):
        if scale:
            return out // scale if out % scale == 0 else None
    return None


__all__ = ["Dequantised", "dequantised_locals"]
