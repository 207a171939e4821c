"""Packings of weights for products, which depend only on the schedule and are chosen before code is generated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from sscc.ir.errors import InternalError
from sscc.ir.operations import LookUp
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
from sscc.ir.weight_formats.registry import format_named
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.nests import Regions, Strides, nest_of
from sscc.runtime.backends.cpu.plan.stages import MemoryPort, ResolvedStage, compose, firings, resolve_stages
from sscc.runtime.backends.cpu.plan.storage import PanelPacking
from sscc.runtime.backends.cpu.products.dequantization import dequantized_locals
from sscc.runtime.backends.cpu.products.matmul import panels_for
from sscc.runtime.backends.cpu.products.packing import Panels
from sscc.runtime.backends.cpu.products.quantized_packing import QuantizedPanels


def aliased_params(program: Program) -> dict[str, frozenset[str]]:
    """Return the parameters of each kernel that overlap, in some launch, with another one that the kernel writes."""
    tensors = {t.name: t for t in program.tensors}
    kernels = {k.name: k for k in program.kernels}
    aliased: dict[str, set[str]] = {name: set() for name in kernels}
    for launch in _launches(program):
        pairs = list(zip(kernels[launch.kernel].params, launch.args, strict=True))
        for other, target in (pair for pair in pairs if pair[0].access != "read"):
            for param, view in pairs:
                known = view.tensor in tensors and target.tensor in tensors
                if other is not param and known and overlap(tensors[view.tensor], tensors[target.tensor]):
                    aliased[launch.kernel].add(param.name)
    return {name: frozenset(params) for name, params in aliased.items()}


def overlap(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors share bytes."""
    return a.tier == b.tier and a.address < b.address + b.nbytes and b.address < a.address + a.nbytes


def _launches(program: Program) -> Iterator[Launch]:
    for entry in program.entries:
        yield from launches(entry.body)


@dataclass(frozen=True)
class Use:
    """Use of a weight by a stage: the parameter of its body, and the window of the weight."""

    body: Body
    param: str
    strides: tuple[Strides, ...]
    offset: int
    coefficients: tuple[int, ...]


@dataclass(frozen=True)
class InPanels:
    """Layout for a product, which reads the rows of panels. `slice_stride` is the number of elements from one
    slice to the next if an index selects the slice, otherwise 0."""

    panels: Panels | QuantizedPanels
    slice_stride: int = 0


@dataclass(frozen=True)
class RowByRow:
    """Layout for a gather, which reads selected rows, from panels too."""


@dataclass(frozen=True)
class AsItLies:
    """Layout of the schedule, for all other uses and for windows without strides."""


WeightLayout = InPanels | RowByRow | AsItLies
"""Layout of a weight that a stage requires."""


def packed_weights(program: Program) -> dict[str, PanelPacking]:
    """Return the packing of each weight that only products (and gathers of rows) read, by name.

    A weight of shape [.., N, K] is a stack of slices that are packed separately.
    """
    uses: dict[str, list[Use | AsItLies]] = {}
    bodies = {b.name: b for b in program.bodies}
    kernels = {k.name: k for k in program.kernels}
    weights = {t.name: t for t in program.tensors if t.role == "weight" and t.dtype in ("f32", "bf16", "i8")}
    aliased = aliased_params(program)
    stages = {k.name: _stages(k, bodies, aliased[k.name]) for k in program.kernels}
    for launch in _launches(program):
        launch_views = dict(zip((p.name for p in kernels[launch.kernel].params), launch.args, strict=True))
        for stage in stages[launch.kernel]:
            for place, port in enumerate(stage.ports):
                if isinstance(port, MemoryPort) and launch_views[port.param].tensor in weights:
                    use = _use(stage, place, port, launch_views[port.param], kernels[launch.kernel])
                    uses.setdefault(launch_views[port.param].tensor, []).append(use)
    packings = {name: _packing(weights[name], users) for name, users in uses.items()}
    return {name: packing for name, packing in packings.items() if packing is not None}


def _stages(kernel: Kernel, bodies: dict[str, Body], aliased: frozenset[str]) -> list[ResolvedStage]:
    return [s for pipeline in pipelines(kernel.body) for s in resolve_stages(kernel, pipeline, bodies, aliased)]


def _use(stage: ResolvedStage, place: int, port: MemoryPort, launch_view: View, kernel: Kernel) -> Use | AsItLies:
    """Return the use of a weight by a port. The strides of the launch's view replace those of the parameter."""
    shape = next(p.shape for p in kernel.params if p.name == port.param)
    view = compose(port.view, shape, launch_view, firings(stage.stage))
    if view is None:
        return AsItLies()
    strides = tuple(p.view.strides for p in stage.ports)
    strides = (*strides[:place], view.strides, *strides[place + 1 :])
    return Use(stage.body, stage.body.params[place].name, strides, view.offset, tuple(c for _, c in view.terms))


def _packing(tensor: Tensor, uses: list[Use | AsItLies]) -> PanelPacking | None:
    """Return a packing that serves every use; None if the weight must keep the schedule's layout. Gathers of rows can
    read panels of whole rows."""
    layouts = [(use, _layout(use, tensor)) for use in uses]
    served = [
        (use, layout)
        for use, layout in layouts
        if not (isinstance(use, AsItLies) or isinstance(layout, AsItLies))
    ]
    products = [layout.panels for _, layout in served if isinstance(layout, InPanels)]
    if len(served) < len(uses) or not products or len(tensor.shape) < 2:
        return None
    widest = max(products, key=lambda panels: panels.n)
    slice_elements = tensor.shape[-1] * tensor.shape[-2]
    rows = tensor.shape[-2] if isinstance(widest, QuantizedPanels) else slice_elements // widest.k
    panels = replace(widest, n=rows)
    if isinstance(panels, Panels) and (rows * panels.k != slice_elements or panels.span != slice_elements):
        return None
    row = panels.n_stride if isinstance(panels, Panels) else tensor.shape[-1]
    packing = PanelPacking(panels, slice_elements, row)
    return packing if all(_serves(packing, use, layout, tensor) for use, layout in served) else None


def _layout(use: Use | AsItLies, tensor: Tensor) -> WeightLayout:
    if isinstance(use, AsItLies):
        return use
    regions = Regions(use.body, {p.name: s for p, s in zip(use.body.params, use.strides, strict=True)})
    try:
        return _layout_of_codes(use, regions) if tensor.dtype == "i8" else _layout_of_rows(use, regions, tensor.dtype)
    except InternalError:  # a window of memory that is not dense
        return AsItLies()


def _layout_of_codes(use: Use, regions: Regions) -> WeightLayout:
    """Return the layout of the first part of a quantized weight."""
    table = next((step for step in use.body.steps if isinstance(step, LookUp) and _is_table(step, use, regions)), None)
    if table is not None:
        weight_format = format_named(table.format)
        rows, nbytes = regions.resolve(table.tables[0].bytes).shape
        if _readers(use, regions) != 1 or not QuantizedPanels.fits(weight_format):
            return AsItLies()
        columns = weight_format.columns(weight_format.parts[0].name, nbytes)
        return InPanels(QuantizedPanels(rows, columns, weight_format))
    dequantized = {local: d for local, d in dequantized_locals(use.body, regions).items() if d.parts[0] == use.param}
    if len(dequantized) != 1 or _readers(use, regions) != 1:
        return AsItLies()
    ((local, codes),) = dequantized.items()
    slice_stride = 0
    for step in use.body.steps:
        if isinstance(step, Product):
            nest = nest_of(step, regions)
            panels = panels_for(nest, "f32") if nest.inputs[1].region == local else None
            if nest.inputs[1].region == local and (
                panels is None or (panels.n, panels.k, panels.n_stride) != (codes.rows, codes.k, codes.k)
            ):
                return AsItLies()
            if nest.inputs[1].region == local and nest.indirect is not None:
                first = codes.format.parts[0].name
                slice_stride = codes.format.stored(first, nest.indirect.stride)[-1]
    if not QuantizedPanels.fits(codes.format) and codes.format.group != codes.k:
        return AsItLies()
    return InPanels(QuantizedPanels(codes.rows, codes.k, codes.format), slice_stride)


def _is_table(step: LookUp, use: Use, regions: Regions) -> bool:
    """Return True if a look-up reads a whole table as its first part."""
    piece = regions.resolve(step.tables[0].bytes)
    return piece.region == use.param and not piece.constant


def _readers(use: Use, regions: Regions) -> int:
    """Return the number of accesses of a parameter in its body."""
    count = 0
    for step in use.body.steps:
        if isinstance(step, Product | Vector | Reduction):
            nest = nest_of(step, regions)
            count += sum(a.region == use.param for a in nest.accesses)
            count += sum(g.region == use.param for g in nest.loads.values())
        else:
            count += sum(regions.resolve(name).region == use.param for name in regions.names_in(step))
    return count


def _layout_of_rows(use: Use, regions: Regions, dtype: str) -> WeightLayout:
    layout: WeightLayout = AsItLies()  # if no step reads it
    for step in use.body.steps:
        if isinstance(step, Product):
            nest = nest_of(step, regions)
            if nest.inputs[0].region == use.param:
                return AsItLies()
            if nest.inputs[1].region == use.param:
                panels = panels_for(nest, dtype)
                if panels is None or (isinstance(layout, InPanels) and layout.panels != panels):
                    return AsItLies()
                slice_stride = nest.indirect.stride if nest.indirect is not None else 0
                if isinstance(layout, InPanels) and layout.slice_stride != slice_stride:
                    return AsItLies()
                layout = InPanels(panels, slice_stride)
        elif isinstance(step, Vector | Reduction):
            nest = nest_of(step, regions)
            if any(a.region == use.param for a in nest.inputs):
                return AsItLies()
            if any(g.region == use.param for g in nest.loads.values()):
                layout = layout if isinstance(layout, InPanels) else RowByRow()
        elif any(regions.resolve(name).region == use.param for name in regions.names_in(step)):
            return AsItLies()
    return layout


def _serves(packing: PanelPacking, use: Use, layout: InPanels | RowByRow, tensor: Tensor) -> bool:
    """Return True if the window of a use consists of whole panels of the packed slices."""
    whole = packing.panels
    if isinstance(layout, RowByRow):
        plain = isinstance(whole, Panels) and whole.n_stride == whole.k and tensor.shape[-2:] == (whole.n, whole.k)
        return plain and prod(tensor.shape) == packing.slice_elements and not use.offset and not use.coefficients
    part = layout.panels
    if replace(part, n=whole.n) != whole or layout.slice_stride % packing.slice_elements:
        return False
    rows = packing.row_elements * LANES
    whole_slice = part.n == whole.n
    divisible = not packing.padded and part.n % LANES == 0
    for offset in (use.offset, *use.coefficients):
        if offset % packing.slice_elements and (whole_slice or not divisible or offset % rows):
            return False
    return whole_slice or divisible
