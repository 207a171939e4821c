"""Which weights are packed for products, and how: decided by the schedule alone, before any code is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from sscc.ir.errors import InternalError
from sscc.ir.schedule import (
    Body,
    Kernel,
    Launch,
    Product,
    Program,
    Reduction,
    Tensor,
    Vector,
    View,
    launches,
    pipelines,
)
from sscc.runtime.backends.cpu.dequantisation import dequantised_locals
from sscc.runtime.backends.cpu.features import LANES
from sscc.runtime.backends.cpu.matmul import panels_for
from sscc.runtime.backends.cpu.nests import Regions, Strides, nest_of
from sscc.runtime.backends.cpu.packing import Panels
from sscc.runtime.backends.cpu.quantised_packing import QuantisedPanels
from sscc.runtime.backends.cpu.stages import MemoryPort, ResolvedStage, compose, firings, resolve_stages
from sscc.runtime.backends.cpu.storage import Packing


def aliased_params(program: Program) -> dict[str, frozenset[str]]:
    """Parameters of each kernel that a launch lets overlap with another one that the kernel writes."""
    tensors = {t.name: t for t in program.tensors}
    kernels = {k.name: k for k in program.kernels}
    found: dict[str, set[str]] = {name: set() for name in kernels}
    for launch in _launches(program):
        pairs = list(zip(kernels[launch.kernel].params, launch.args, strict=True))
        for other, target in (pair for pair in pairs if pair[0].access != "read"):
            for param, view in pairs:
                known = view.tensor in tensors and target.tensor in tensors
                if other is not param and known and overlap(tensors[view.tensor], tensors[target.tensor]):
                    found[launch.kernel].add(param.name)
    return {name: frozenset(params) for name, params in found.items()}


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share bytes."""
    return a.tier == b.tier and a.address < b.address + b.nbytes and b.address < a.address + a.nbytes


def _launches(program: Program) -> Iterator[Launch]:
    for entry in program.entries:
        yield from launches(entry.body)


@dataclass(frozen=True)
class Use:
    """How a stage reads a weight: its body's parameter, and the window that it sees."""

    body: Body
    param: str
    strides: tuple[Strides, ...]
    offset: int
    coefficients: tuple[int, ...]


def packed_weights(program: Program) -> dict[str, Packing]:
    """How to pack each weight that only products (and gathers of rows) read, by name.

    A weight of shape [.., N, K] is a stack of slices that are packed one by one.
    """
    uses: dict[str, list[Use]] = {}
    bodies = {b.name: b for b in program.bodies}
    kernels = {k.name: k for k in program.kernels}
    weights = {t.name: t for t in program.tensors if t.role == "weight" and t.dtype in ("f32", "bf16", "i8")}
    aliased = aliased_params(program)
    stages = {k.name: _stages(k, bodies, aliased[k.name]) for k in program.kernels}
    for launch in _launches(program):
        given = dict(zip((p.name for p in kernels[launch.kernel].params), launch.args, strict=True))
        for stage in stages[launch.kernel]:
            for place, port in enumerate(stage.ports):
                if isinstance(port, MemoryPort) and given[port.param].tensor in weights:
                    use = _use(stage, place, port, given[port.param], kernels[launch.kernel])
                    uses.setdefault(given[port.param].tensor, []).append(use)
    found = {name: _packing(weights[name], users) for name, users in uses.items()}
    return {name: packing for name, packing in found.items() if packing is not None}


def _stages(kernel: Kernel, bodies: dict[str, Body], aliased: frozenset[str]) -> list[ResolvedStage]:
    return [s for pipeline in pipelines(kernel.body) for s in resolve_stages(kernel, pipeline, bodies, aliased)]


def _use(stage: ResolvedStage, place: int, port: MemoryPort, given: View, kernel: Kernel) -> Use:
    """The strides of a launch's view stand for those of the parameter: packed weights are whole or nothing."""
    shape = next(p.shape for p in kernel.params if p.name == port.param)
    view = compose(port.view, shape, given, firings(stage.stage))
    strides = tuple(p.view.strides for p in stage.ports)
    if view is None:
        return Use(stage.body, "", strides, 0, ())
    strides = (*strides[:place], view.strides, *strides[place + 1 :])
    return Use(stage.body, stage.body.params[place].name, strides, view.offset, tuple(c for _, c in view.terms))


def _packing(tensor: Tensor, uses: list[Use]) -> Packing | None:
    """What serves every use, or None. Gathers of rows read panels of whole rows."""
    wanted = [_wanted(use, tensor) for use in uses]
    widest = max((w for w in wanted if w is not None and w.panels is not None), key=_rows, default=None)
    if widest is None or widest.panels is None or any(w is None for w in wanted) or len(tensor.shape) < 2:
        return None
    slice_elements = tensor.shape[-1] * tensor.shape[-2]
    rows = tensor.shape[-2] if isinstance(widest.panels, QuantisedPanels) else slice_elements // widest.panels.k
    panels = replace(widest.panels, n=rows)
    if isinstance(panels, Panels) and (rows * panels.k != slice_elements or panels.span != slice_elements):
        return None
    row = panels.n_stride if isinstance(panels, Panels) else tensor.shape[-1]
    packing = Packing(panels, slice_elements, row)
    served = all(_served(use, w, tensor, packing) for use, w in zip(uses, wanted, strict=True) if w is not None)
    return packing if served else None


@dataclass(frozen=True)
class Wanted:
    """What a use reads: the panels of its rows, or (None) rows that it picks itself."""

    panels: Panels | QuantisedPanels | None


def _rows(wanted: Wanted) -> int:
    return 0 if wanted.panels is None else wanted.panels.n


def _wanted(use: Use, tensor: Tensor) -> Wanted | None:
    """None where a use is neither of a product nor a gather."""
    if not use.param:
        return None
    regions = Regions(use.body, {p.name: s for p, s in zip(use.body.params, use.strides, strict=True)})
    try:
        return _wanted_codes(use, regions) if tensor.dtype == "i8" else _wanted_rows(use, regions, tensor.dtype)
    except InternalError:  # a window of memory that is not dense
        return None


def _wanted_codes(use: Use, regions: Regions) -> Wanted | None:
    """Of the values of a quantised weight."""
    made = {local: d for local, d in dequantised_locals(use.body, regions).items() if d.values == use.param}
    if len(made) != 1 or _readers(use, regions) != 1:
        return None
    ((local, found),) = made.items()
    for step in use.body.steps:
        if isinstance(step, Product):
            nest = nest_of(step, regions)
            panels = panels_for(nest, "f32") if nest.inputs[1].region == local else None
            if nest.inputs[1].region == local and (
                panels is None or (panels.n, panels.k, panels.n_stride) != (found.rows, found.k, found.k)
            ):
                return None
    if found.group % 8 and found.group != found.k:
        return None
    return Wanted(QuantisedPanels(found.rows, found.k, found.bits, found.group, bool(found.zeros)))


def _readers(use: Use, regions: Regions) -> int:
    """Accesses of a parameter in its body."""
    count = 0
    for step in use.body.steps:
        if isinstance(step, Product | Vector | Reduction):
            nest = nest_of(step, regions)
            count += sum(a.region == use.param for a in nest.accesses)
            count += sum(g.region == use.param for g in nest.loads.values())
        else:
            count += sum(regions.resolve(name).region == use.param for name in regions.names_in(step))
    return count


def _wanted_rows(use: Use, regions: Regions, dtype: str) -> Wanted | None:
    found: Wanted | None = None
    for step in use.body.steps:
        if isinstance(step, Product):
            nest = nest_of(step, regions)
            if nest.inputs[0].region == use.param:
                return None
            if nest.inputs[1].region == use.param:
                panels = panels_for(nest, dtype)
                if panels is None or (found is not None and found.panels not in (None, panels)):
                    return None
                found = Wanted(panels)
        elif isinstance(step, Vector | Reduction):
            nest = nest_of(step, regions)
            if any(a.region == use.param for a in nest.inputs):
                return None
            if any(g.region == use.param for g in nest.loads.values()):
                found = found or Wanted(None)
        elif any(regions.resolve(name).region == use.param for name in regions.names_in(step)):
            return None
    return found


def _served(use: Use, wanted: Wanted, tensor: Tensor, packing: Packing) -> bool:
    """Whether packed slices hold what a use reads, as whole panels that begin where it begins."""
    whole, part = packing.panels, wanted.panels
    if part is None:
        plain = isinstance(whole, Panels) and whole.n_stride == whole.k and tensor.shape[-2:] == (whole.n, whole.k)
        return plain and prod(tensor.shape) == packing.slice_elements and not use.offset and not use.coefficients
    if replace(part, n=whole.n) != whole:
        return False
    rows = packing.row_elements * LANES
    whole_slice = part.n == whole.n
    divisible = not packing.padded and part.n % LANES == 0
    for offset in (use.offset, *use.coefficients):
        if offset % packing.slice_elements and (whole_slice or not divisible or offset % rows):
            return False
    return whole_slice or divisible
