"""Which weights are packed for products, and how: decided by the schedule alone, before any code is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from sscc.runtime.codegen.features import LANES
from sscc.runtime.codegen.matmul import panels_for
from sscc.runtime.codegen.nests import Regions, Strides, nest_of
from sscc.runtime.codegen.packing import Panels
from sscc.runtime.codegen.stages import MemoryPort, ResolvedStage, compose, resolve_stages
from sscc.runtime.schedule import (
    DTYPE_BYTES,
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


def aliased_params(program: Program, kernel: Kernel) -> frozenset[str]:
    """Parameters that a launch lets overlap with another one that the kernel writes."""
    tensors = {t.name: t for t in program.tensors}
    found: set[str] = set()
    for launch in _launches(program):
        if launch.kernel != kernel.name:
            continue
        for param, view in zip(kernel.params, launch.args, strict=True):
            for other, target in zip(kernel.params, launch.args, strict=True):
                written = other is not param and other.access != "read"
                if written and overlap(tensors[view.tensor], tensors[target.tensor]):
                    found.add(param.name)
    return frozenset(found)


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


def packed_weights(program: Program) -> dict[str, Panels]:
    """How to pack each weight that only products (and gathers of rows) read; by name, per slice.

    A weight of shape [.., N, K] is a stack of slices that are packed one by one, for a `Panels` of n * k elements.
    """
    uses: dict[str, list[Use]] = {}
    bodies = {b.name: b for b in program.bodies}
    kernels = {k.name: k for k in program.kernels}
    weights = {t.name: t for t in program.tensors if t.role == "weight" and t.dtype in ("f32", "bf16")}
    stages = {k.name: _stages(program, k, bodies) for k in program.kernels}
    for launch in _launches(program):
        given = dict(zip((p.name for p in kernels[launch.kernel].params), launch.args, strict=True))
        for stage in stages[launch.kernel]:
            for place, port in enumerate(stage.ports):
                if isinstance(port, MemoryPort) and given[port.param].tensor in weights:
                    use = _use(stage, place, port, given[port.param], kernels[launch.kernel])
                    uses.setdefault(given[port.param].tensor, []).append(use)
    found = {name: _panels(weights[name], users) for name, users in uses.items()}
    return {name: panels for name, panels in found.items() if panels is not None}


def _stages(program: Program, kernel: Kernel, bodies: dict[str, Body]) -> list[ResolvedStage]:
    aliased = aliased_params(program, kernel)
    return [s for pipeline in pipelines(kernel.body) for s in resolve_stages(kernel, pipeline, bodies, aliased)]


def _use(stage: ResolvedStage, place: int, port: MemoryPort, given: View, kernel: Kernel) -> Use:
    """The strides of a launch's view stand for those of the parameter: packed weights are whole or nothing."""
    shape = next(p.shape for p in kernel.params if p.name == port.param)
    view = compose(port.view, shape, given)
    strides = tuple(p.view.strides for p in stage.ports)
    if view is None:
        return Use(stage.body, "", strides, 0, ())
    strides = (*strides[:place], view.strides, *strides[place + 1 :])
    return Use(stage.body, stage.body.params[place].name, strides, view.offset, tuple(c for _, c in view.terms))


def _panels(tensor: Tensor, uses: list[Use]) -> Panels | None:
    """Panels that serve every use, or None. Gathers of rows read any panels of whole rows."""
    wanted = None
    for use in uses:
        panels = _wanted(use, tensor)
        if panels is None:
            return None
        if panels is not _ROWS and (wanted is None or panels.n > wanted.n):
            wanted = panels
    if wanted is None:
        return None
    slice_elements = tensor.shape[-1] * tensor.shape[-2] if len(tensor.shape) >= 2 else 0
    rows = slice_elements // wanted.k
    whole = replace(wanted, n=rows)
    if rows * whole.k != slice_elements or whole.span != slice_elements:
        return None
    if all(_served(use, tensor, whole, slice_elements) for use in uses):
        return whole
    return None


_ROWS = Panels(1, 1, "f32", 1, 1)


def _wanted(use: Use, tensor: Tensor) -> Panels | None:
    """The panels of the rows that a use reads; `_ROWS` for one that gathers; None for any other."""
    if not use.param:
        return None
    regions = Regions(use.body, {p.name: s for p, s in zip(use.body.params, use.strides, strict=True)})
    found: Panels | None = None
    for step in use.body.steps:
        if isinstance(step, Product):
            nest = nest_of(step, regions)
            if nest.inputs[0].region == use.param:
                return None
            if nest.inputs[1].region == use.param:
                panels = panels_for(nest, tensor.dtype)
                if panels is None or found not in (None, panels):
                    return None
                found = panels
        elif isinstance(step, Vector | Reduction):
            nest = nest_of(step, regions)
            if any(a.region == use.param for a in nest.inputs):
                return None
            if any(g.region == use.param for g in nest.loads.values()):
                found = found or _ROWS
        elif any(regions.resolve(name).region == use.param for name in regions.names_in(step)):
            return None
    return found


def _served(use: Use, tensor: Tensor, whole: Panels, slice_elements: int) -> bool:
    """Whether packed slices hold what a use reads, as whole panels that begin where it begins."""
    panels = _wanted(use, tensor)
    if panels is None:
        return False
    if panels is _ROWS:
        return (
            tensor.shape[-2:] == (whole.n, whole.k)
            and whole.n_stride == whole.k
            and prod(tensor.shape) == slice_elements
            and use.offset == 0
            and not use.coefficients
        )
    if (panels.k, panels.n_stride, panels.k_stride) != (whole.k, whole.n_stride, whole.k_stride):
        return False
    step = whole.n_stride * LANES
    whole_slice = panels.n == whole.n
    aligned = whole.packed_bytes == slice_elements * DTYPE_BYTES[tensor.dtype] and panels.n % LANES == 0
    for offset in (use.offset, *use.coefficients):
        if offset % slice_elements == 0:
            continue
        if whole_slice or not aligned or offset % step:
            return False
    return whole_slice or aligned


def packed_offset(panels: Panels, slice_elements: int, dtype: str, offset: int) -> int:
    """Bytes from a packed weight's start to the panel that element number `offset` of the plain weight begins."""
    whole, rest = divmod(offset, slice_elements)
    return whole * panels.packed_bytes + rest // (panels.n_stride * LANES) * panels.panel_bytes
