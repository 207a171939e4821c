"""Functions for a body, given the strides that one of its stages passes; each computes a range of units.

Affine steps that have units in common become one function, which processes its units in blocks that are small enough
for the locals between the steps to stay in cache. Every other step has phases of its own (`steps.py`). Results that one
function leaves for the next one are in scratch that all threads share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from sscc.ir.errors import InputError
from sscc.ir.operations import Dequantize, ObservationScores, Pool, Select
from sscc.ir.opspec import Op
from sscc.ir.schedule import DTYPE_BYTES, AllSlice, Body, Product, Reduction, Step, Vector
from sscc.ir.sizes import align
from sscc.runtime.backends.cpu.codegen.elementwise import Elementwise, Range, RegionPointer
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.figures import L2_BYTES
from sscc.runtime.backends.cpu.codegen.mlir import I64, PTR, Function, Module, Value
from sscc.runtime.backends.cpu.codegen.nests import LinearAccess, Nest, Regions, Strides, is_tangled, nest_of, untangle
from sscc.runtime.backends.cpu.codegen.partition import Member, Split, StepGroup, group_steps
from sscc.runtime.backends.cpu.codegen.phases import Context, Operand, Phase, Stream
from sscc.runtime.backends.cpu.codegen.positions import Positions
from sscc.runtime.backends.cpu.codegen.refusal import NoNativeCode
from sscc.runtime.backends.cpu.codegen.steps import lower_step
from sscc.runtime.backends.cpu.plan.collectives import (
    Box,
    Exchange,
    Windows,
    box_of,
    boxes_of,
    exchange_nests,
    part_bytes,
    slice_nest,
)
from sscc.runtime.backends.cpu.plan.plan import NOTE_BYTES
from sscc.runtime.backends.cpu.products.dequantization import dequantized_locals
from sscc.runtime.backends.cpu.products.matmul import Matmul, matmul_of, packed_element
from sscc.runtime.backends.cpu.products.packing import Panels
from sscc.runtime.backends.cpu.products.quantized_packing import QuantizedPanels

PARAMS = (("args", PTR), ("scalars", PTR), ("begin", I64), ("end", I64), ("scratch", PTR))


class NativeBodyErrors(NoNativeCode):
    STEP = "body {body!r}: {cause}"
    NO_RANKS = "body {body!r}: {step} exchanges data with other ranks, but the program has only one rank"
    PACKED_ELEMENTS = (
        "body {body!r}: the packed weight {weight!r} is read by a loop over elements, because the strides in a "
        "launch rule out a product"
    )


@dataclass(frozen=True)
class Routine:
    """A generated function: units [begin, end) of one phase of a body. With `meets`, ranks have to meet before it."""

    function: str
    units: int
    meets: bool = False


@dataclass(frozen=True)
class NativeBody:
    """A body as functions that run in order, with a barrier between them.

    Attributes:
        routines: functions of the body. Their arguments are the body's parameters, then the shared scratch. A body with
            collectives has further arguments after all others, described by `boxes_of`; for windows, they point to the
            place of the firing.
        shared_bytes: scratch that the functions of one firing share.
        private_bytes: scratch that each thread needs.
    """

    routines: tuple[Routine, ...]
    shared_bytes: int
    private_bytes: int


@dataclass(frozen=True)
class Variant:
    """A body as its stages use it.

    Attributes:
        strides: strides of each parameter, in elements.
        packed: parameters that are packed weights, with their packing.
        positions: C, if a firing works on C positions of a prompt and the last ones may be padding. The functions then
            take one more scalar after the body's own: the number of positions that are not padding. Their results for
            the other positions are undefined.
        stream_bytes: size of the data that the next stage reads (`Stream`); 0 for none. Otherwise the functions take a
            pointer to this data, after the shared scratch.
        windows: windows for the exchanges of ranks, if the body has collectives.
    """

    body: Body
    strides: tuple[Strides, ...]
    packed: tuple[tuple[str, Panels | QuantizedPanels], ...] = ()
    positions: int | None = None
    stream_bytes: int = 0
    windows: Windows | None = None

    @property
    def regions(self) -> Regions:
        return Regions(self.body, {p.name: s for p, s in zip(self.body.params, self.strides, strict=True)})


def lower_body(module: Module, name: str, variant: Variant, features: Features) -> NativeBody:
    """Generate the functions of a body.

    Raises:
        InputError: a step has no native code (`NoNativeCode`).
    """
    try:
        return _Lowering(module, name, variant, features).run()
    except InputError as error:
        if isinstance(error.kind, NoNativeCode):
            raise
        raise NativeBodyErrors.STEP(body=variant.body.name, cause=error) from None


class _Lowering:
    def __init__(self, module: Module, name: str, variant: Variant, features: Features) -> None:
        self.module = module
        self.name = re.sub(r"[^A-Za-z0-9_]", "_", name)
        self.body = variant.body
        self.regions = variant.regions
        self.packed = dict(variant.packed)
        self.positions = variant.positions
        self.stream_bytes = variant.stream_bytes
        self.windows = variant.windows
        self.boxes = boxes_of(self.body, self.regions)
        # regions of windows: index among the pointers to them, size in bytes
        self.exchanged: dict[str, tuple[int, int]] = {}
        self.features = features
        self.routines: list[Routine] = []
        self.private_bytes = 0
        self.shared: dict[str, int] = {}
        self.shared_bytes = 0
        self.nests: dict[int, Nest] = {}
        self.temporaries: list[str] = []
        codes = {d.parts[0]: local for local, d in dequantized_locals(self.body, self.regions).items()}
        quantized = [name for name, panels in variant.packed if isinstance(panels, QuantizedPanels)]
        self.codes = {codes[name]: name for name in quantized if name in codes}  # others are tables of look-ups
        self.unread = {number for number, step in enumerate(self.body.steps) if self._is_unread(step)}
        for number, step in enumerate(self.body.steps):
            if isinstance(step, Vector | Reduction | Product):
                self._add_nest(2 * number, nest_of(step, self.regions))
            elif isinstance(step, Exchange):
                self._add_exchange(2 * number, step)
            elif isinstance(step, AllSlice):
                own = f"own.{number}"
                self.nests[2 * number] = slice_nest(step, self.regions, own)
                self._add_box(own, box_of(step, self.body, self.regions), step.part)

    def _is_unread(self, step: Step) -> bool:
        """Return True for a step whose numbers nobody reads, because products read the codes instead."""
        return isinstance(step, Dequantize) and self.regions.resolve(step.out).region in self.codes

    def _add_exchange(self, number: int, step: Exchange) -> None:
        """Add a copy into the window of this rank, then a meeting, then the computation on the windows of all ranks."""
        if self.windows is None:
            raise NativeBodyErrors.NO_RANKS(body=self.body.name, step=step.kind)
        outbox, inbox = f"outbox.{number}", f"inbox.{number}"
        self.nests[number], self.nests[number + 1] = exchange_nests(step, self.regions, self.windows, outbox, inbox)
        self._add_box(outbox, Box((), part_bytes(self.body)), step.part)
        self._add_box(inbox, box_of(step, self.body, self.regions), step.part)

    def _add_box(self, name: str, box: Box, like: str) -> None:
        """Add the memory behind a pointer for collectives as a region with the dtype of `like`."""
        dtype, nbytes = self.regions.dtype(like), box.nbytes
        if box.axes and not box.parameter and self.windows is not None:
            nbytes += self.windows.offsets(box.axes)[-1]
        self.regions.add(name, (nbytes // DTYPE_BYTES[dtype],), dtype)
        self.exchanged[name] = self.boxes.index(box), nbytes

    def _add_nest(self, number: int, nest: Nest) -> None:
        """Add a nest. If the step reads elements that it overwrites, it writes to a temporary first, so all reads come
        first."""
        if nest.product and nest.inputs[1].region in self.codes:
            a, b, *index = nest.inputs
            nest = replace(nest, inputs=(a, replace(b, region=self.codes[b.region]), *index))
        if not is_tangled(nest):
            self.nests[number] = nest
            return
        name = f"temporary.{number}"
        through, copy = untangle(nest, name)
        kept = [d for d in range(len(nest.dims)) if d not in nest.reduce]
        self.regions.add(name, tuple(nest.dims[d] for d in kept), self.regions.dtypes[nest.output.region])
        self.temporaries.append(name)
        self.nests[number], self.nests[number + 1] = through, copy

    def run(self) -> NativeBody:
        pending: list[tuple[int, Nest]] = []
        parts: list[StepGroup | tuple[int, Op]] = []
        for number, step in enumerate(self.body.steps):
            if number in self.unread:
                continue
            if isinstance(step, Vector | Reduction | Product | AllSlice):
                pending += [(n, self.nests[n]) for n in (2 * number, 2 * number + 1) if n in self.nests]
                continue
            if isinstance(step, Exchange):
                # Earlier steps are grouped with the copy to the window, later ones with the computation on all windows.
                parts += group_steps([*pending, (2 * number, self.nests[2 * number])])
                pending = [(2 * number + 1, self.nests[2 * number + 1])]
                continue
            parts += group_steps(pending)
            parts.append((number, step))
            pending = []
        parts += group_steps(pending)
        private = [self._private_locals(part) if isinstance(part, StepGroup) else set() for part in parts]
        for name in (*(local.name for local in self.body.locals), *self.temporaries):
            if name not in self.codes and not any(name in names for names in private):
                elements, dtype = prod(self.regions.shapes[name]), self.regions.dtypes[name]
                self.shared[name] = self._share(elements * DTYPE_BYTES[dtype])
        for part, names in zip(parts, private, strict=True):
            if isinstance(part, StepGroup):
                self._emit_group(part, names)
            else:
                self._emit_step(*part)
        return NativeBody(tuple(self.routines), self.shared_bytes, self.private_bytes)

    def _share(self, nbytes: int) -> int:
        offset = self.shared_bytes
        self.shared_bytes += align(nbytes)
        return offset

    def _private_locals(self, group: StepGroup) -> set[str]:
        """Return the locals that are used only within one block of units of the group."""
        if not group.splits:
            return set()
        locals_ = {*(local.name for local in self.body.locals), *self.temporaries}
        outside = {r for n, nest in self.nests.items() if n not in group.members for r in _touched(nest)}
        for number, step in enumerate(self.body.steps):
            outside |= self._regions_of(number) if isinstance(step, Op) and number not in self.unread else set()
        return {r for r in group.splits if r in locals_ and r not in outside}

    # -- functions

    def _begin(self, units: int, what: str, *, meets: bool = False) -> tuple[Function, dict[str, Value], Value]:
        f = self.module.function(f"{self.name}_{len(self.routines)}", PARAMS, exported=True)
        self.routines.append(Routine(f.name, units, meets))
        pointers = {p.name: f.load(f["args"] + 8 * i, PTR) for i, p in enumerate(self.body.params)}
        shared = f.load(f["args"] + 8 * len(self.body.params), PTR)
        limited = [f.limit(pointer, self._extent(name)) for name, pointer in pointers.items()]
        limited += [f.limit(shared, lambda: self.shared_bytes), f.limit(f["scratch"], lambda: self.private_bytes)]
        f.operands(f"body {self.body.name!r}, {what}", limited)
        return f, pointers, shared

    def _shared_local(self, f: Function, name: str, shared: Value) -> Value:
        """Return a local that all threads see."""
        nbytes = prod(self.regions.shapes[name]) * DTYPE_BYTES[self.regions.dtypes[name]]
        return f.limit(shared + self.shared[name], nbytes)

    def _extent(self, param: str) -> int:
        """Return the bytes from the first to the last element of a parameter, with the strides that its stages pass."""
        shape, strides = self.regions.shapes[param], self.regions.strides[param]
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if param in self.packed:
            panels = self.packed[param]
            elements = panels.n * panels.k
            if isinstance(panels, QuantizedPanels):
                elements = prod(panels.format.stored(panels.format.parts[0].name, panels.n, panels.k))
            return (last // elements + 1) * panels.packed_bytes
        return (1 + last) * DTYPE_BYTES[self.regions.dtypes[param]]

    def _scalars(self, f: Function) -> dict[str, Value]:
        return {name: f.load(f["scalars"] + 8 * i, I64) for i, name in enumerate(self.body.scalars)}

    def _emit_step(self, number: int, step: Op) -> None:
        meta = {}
        for name in self.regions.names_in(step):
            piece = self.regions.resolve(name)
            meta[name] = (piece.shape, piece.strides, self.regions.dtypes[piece.region])
        packed = {
            name: self.packed[region]
            for name in meta
            if (region := self.regions.resolve(name).region) in self.packed
        }
        lowered = lower_step(step, meta, self.features, packed)
        base = self._share(lowered.shared_bytes) if lowered.shared_bytes else 0
        selection = self._selection_from(number)
        for phase in lowered.phases:
            if selection is not None:
                phase = replace(phase, emit=partial(_emit_where_scored, selection, phase.emit))
            self._emit_phase(f"step {number} ({step.kind})", phase, meta, base)

    def _selection_from(self, number: int) -> Select | None:
        """Return the selection that alone uses the scores (or pooled scores) computed by a step."""
        step = self.body.steps[number]
        if not isinstance(step, ObservationScores | Pool):
            return None
        scores = step.scores if isinstance(step, ObservationScores) else step.pooled
        others = [n for n in range(len(self.body.steps)) if n != number and scores in self._regions_of(n)]
        if len(others) != 1 or others[0] < number or all(local.name != scores for local in self.body.locals):
            return None
        reader = self.body.steps[others[0]]
        return reader if isinstance(reader, Select) else self._selection_from(others[0])

    def _regions_of(self, number: int) -> set[str]:
        """Return the regions that a step touches."""
        step = self.body.steps[number]
        if isinstance(step, Op):
            return {self.regions.resolve(name).region for name in self.regions.names_in(step)}
        return {r for n in (2 * number, 2 * number + 1) if n in self.nests for r in _touched(self.nests[n])}

    def _emit_phase(
        self, what: str, phase: Phase, meta: Mapping[str, tuple[tuple[int, ...], Strides, str]], shared_base: int
    ) -> None:
        f, pointers, shared = self._begin(phase.units, what)
        operands = {}
        for name, (shape, strides, dtype) in meta.items():
            piece = self.regions.resolve(name)
            base = pointers.get(piece.region)
            if base is None:
                base = self._shared_local(f, piece.region, shared)
            operands[name] = Operand(base + piece.constant * DTYPE_BYTES[dtype], shape, strides, dtype)
        behind = f["args"] + 8 * (len(self.body.params) + 1)
        stream = Stream(f.load(behind, PTR), self.stream_bytes) if self.stream_bytes else None
        context = Context(
            f, operands, self._scalars(f), f["begin"], f["end"], f["scratch"], shared + shared_base, stream
        )  # fmt: skip
        phase.emit(context)
        f.returns()
        self.private_bytes = max(self.private_bytes, phase.private_bytes)

    # -- groups of affine steps

    def _emit_group(self, group: StepGroup, private: set[str]) -> None:
        block = self._block(group, private)
        numbers = sorted(group.members)
        meets = any(isinstance(self.body.steps[n // 2], Exchange) and n % 2 for n in numbers)
        f, pointers, shared = self._begin(group.units, f"steps {[n // 2 for n in numbers]}", meets=meets)
        scalars = self._scalars(f)
        places = {p.name: self._place(p.name, pointers[p.name]) for p in self.body.params}
        for name in self.shared:
            places[name] = RegionPointer(self._shared_local(f, name, shared), self.regions.dtypes[name])
        for name, (place, nbytes) in self.exchanged.items():
            behind = len(self.body.params) + 1 + bool(self.stream_bytes) + place
            window = f.limit(f.load(f["args"] + 8 * behind, PTR), nbytes)
            places[name] = RegionPointer(window, self.regions.dtypes[name])
        offsets, used = {}, NOTE_BYTES
        for name in sorted(private):
            offsets[name] = used
            used += align(self._unit_bytes(name, group.splits[name]) * block)
        narrow = {name: (group.splits[name], block) for name in private}
        steps = self._member_steps(group, narrow)
        rows: dict[tuple[object, ...], Value] = {}
        sharings = list(_packed_rows(steps, private).items())[: NOTE_BYTES // 8]
        for number, (key, sharing) in enumerate(sharings):
            rows[key] = f["scratch"] + used
            matmul, live = sharing[0].matmul, sharing[0].live(self._live(f))
            assert matmul is not None
            with f.when(f["begin"] < f["end"]):
                matmul.emit_packing(f, places, self.regions.dtypes, rows[key], live, f["scratch"] + 8 * number)
            used += align(max(step.private_bytes for step in sharing))
        with f.loop(f["begin"], f["end"], block) as loop:
            first, last = loop.index, f.min(loop.index + block, f["end"])
            for name in offsets:
                dtype = self.regions.dtypes[name]
                shift = first * (-group.splits[name].stride * DTYPE_BYTES[dtype])
                block_bytes = self._unit_bytes(name, group.splits[name]) * block
                places[name] = RegionPointer(f.limit(f["scratch"] + offsets[name], block_bytes) + shift, dtype)
            extra = self._emit_members(f, steps, rows, places, scalars, first, last, used)
        f.returns()
        self.private_bytes = max(self.private_bytes, used + extra)

    def _member_steps(self, group: StepGroup, narrow: Mapping[str, tuple[Split, int]]) -> list[_MemberStep]:
        """Return the steps of a group in the order in which they run."""
        steps, positions = [], Positions(self.positions or 0)
        for member in group.members.values():
            nest = _narrowed(member.nest, narrow)
            matmul = matmul_of(nest, self.packed, self.features) if nest.product else None
            if matmul is None:
                self._check_plain(nest)
                steps.append(_MemberStep(member, nest, None, positions.dimension(member.nest)))
                continue
            rows = matmul.shape.groups[:1] if matmul.sorts_rows else matmul.shape.rows
            rows_per_position = positions.product(member.nest, rows)
            whole = bool(rows_per_position) and (matmul.sorts_rows or not matmul.shape.groups)
            key, live = matmul.packed_rows(self.regions.dtypes), rows_per_position if whole else None
            nbytes = matmul.private_bytes(self.regions.dtypes)
            steps.append(_MemberStep(member, nest, matmul, live, nbytes, None if key is None else (*key, live)))
        return steps

    def _emit_members(
        self,
        f: Function,
        steps: Sequence[_MemberStep],
        rows: Mapping[tuple[object, ...], Value],
        places: Mapping[str, RegionPointer],
        scalars: Mapping[str, Value],
        first: Value,
        last: Value,
        scratch: int,
    ) -> int:
        """Emit the steps of a block of units. Return the scratch that they need in addition to locals and packed rows.

        Args:
            rows: addresses of packed rows, by `_MemberStep.packed_rows`.
        """
        needed = 0
        for step in steps:
            split = None if step.member.dim < 0 else (step.member.dim, _range(f, step.member, first, last))
            if step.matmul is None:
                dim = None if step.positions is None else (step.positions, self._live(f))
                Elementwise(f, step.nest, places, scalars, split, dim).emit()
                continue
            live, packed = step.live(self._live(f)), rows.get(step.packed_rows or ())
            if packed is None:
                needed = max(needed, step.private_bytes)
            where = f["scratch"] + scratch if packed is None else packed
            step.matmul.emit(f, places, split, where, live, packed=packed is not None)
        return needed

    def _check_plain(self, nest: Nest) -> None:
        """Refuse packed weights in a loop over elements, which cannot locate single elements in them. The strides that
        a launch passes may turn a product into such a loop."""
        packed = [access.region for access in nest.inputs if access.region in self.packed]
        if packed:
            raise NativeBodyErrors.PACKED_ELEMENTS(body=self.body.name, weight=packed[0])

    def _live(self, f: Function) -> Value:
        """Return the number of positions that are not padding."""
        return f.load(f["scalars"] + 8 * len(self.body.scalars), I64)

    def _place(self, name: str, pointer: Value) -> RegionPointer:
        panels = self.packed.get(name)
        if not isinstance(panels, Panels):
            return RegionPointer(pointer, self.regions.dtypes[name])
        return RegionPointer(pointer, self.regions.dtypes[name], partial(packed_element, panels))

    def _unit_bytes(self, name: str, split: Split) -> int:
        elements = prod(self.regions.shapes[name])
        return -(-elements // split.span) * split.stride * DTYPE_BYTES[self.regions.dtypes[name]]

    def _block(self, group: StepGroup, private: set[str]) -> int:
        """Return the number of units that are processed together."""
        per_unit = sum(self._unit_bytes(name, group.splits[name]) for name in private)
        if per_unit == 0:
            return max(1, group.units)
        return max(1, min(group.units, L2_BYTES // per_unit))


@dataclass(frozen=True)
class _MemberStep:
    """A step of a group.

    Attributes:
        nest: nest whose accesses to private locals are narrowed to a block of units.
        matmul: the product; None for a loop over elements.
        positions: for a loop, the dimension that runs over positions; for a product, its rows per position; None if all
            positions are computed.
        private_bytes: scratch of a product.
        packed_rows: key that is equal for products that can share packed rows; None if the product cannot share them.
    """

    member: Member
    nest: Nest
    matmul: Matmul | None
    positions: int | None
    private_bytes: int = 0
    packed_rows: tuple[object, ...] | None = None

    def live(self, positions: Value) -> Value | None:
        """Return the rows of a product that have to be written; None for all."""
        return None if self.positions is None else positions * self.positions


def _packed_rows(
    steps: Sequence[_MemberStep], private: Collection[str]
) -> dict[tuple[object, ...], list[_MemberStep]]:
    """Return the products by the rows that are packed for them once, before the first block of units."""
    written = {step.nest.output.region for step in steps} | set(private)
    sharing: dict[tuple[object, ...], list[_MemberStep]] = {}
    for step in steps:
        key = step.packed_rows
        if key is not None and step.nest.inputs[0].region not in written:
            sharing.setdefault(key, []).append(step)
    return sharing


def _emit_where_scored(selection: Select, emit: Callable[[Context], None], context: Context) -> None:
    """Emit the computation of scores for a selection, which is skipped if all candidates are chosen."""
    candidates = context.scalars[selection.length] - (selection.sink + selection.recent)
    with context.f.when(candidates > context.scalars[selection.topk]):
        emit(context)


def _range(f: Function, member: Member, first: Value, last: Value) -> Range:
    extent = member.nest.dims[member.dim]
    upper = last * member.granule
    if extent % member.granule:
        upper = f.min(upper, extent)
    return Range(first * member.granule, upper, member.granule % LANES == 0 and extent % LANES == 0)


def _narrowed(nest: Nest, narrow: Mapping[str, tuple[Split, int]]) -> Nest:
    """Return the nest with new accesses to private locals, which hold only one block of units."""

    def access(a: LinearAccess) -> LinearAccess:
        if a.region not in narrow:
            return a
        split, block = narrow[a.region]
        width = split.stride * block

        def resize(c: int) -> int:
            return c // split.span * width if c % split.span == 0 else c

        constant = a.constant // split.span * width + a.constant % split.span
        return LinearAccess(a.region, constant, tuple(resize(c) for c in a.coefficients))

    return replace(nest, inputs=tuple(access(a) for a in nest.inputs), output=access(nest.output))


def _touched(nest: Nest) -> set[str]:
    return {a.region for a in nest.accesses} | {g.region for g in nest.loads.values()}


__all__ = ["NativeBody", "Routine", "Variant", "lower_body"]
