"""Vector and reduction steps as loops over vectors of 16 lanes.

One dimension runs over the lanes, the others are loops around it in order. Values that do not depend on the lanes are
computed once, outside of the innermost loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import DTYPE_BYTES, Instr
from sscc.runtime.artifact.tensor_files import BFLOAT16
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.indices import cut_index
from sscc.runtime.backends.cpu.codegen.mlir import (
    BF16,
    F32,
    I8,
    I16,
    I64,
    Function,
    Value,
    lanes_of,
    vector,
    with_element,
)
from sscc.runtime.backends.cpu.codegen.nests import Gathered, LinearAccess, Nest
from sscc.runtime.backends.cpu.codegen.programs import (
    Arg,
    Ramp,
    apply,
    expand,
    is_floating,
    register_type,
    rounded,
    spread,
)

_STORED = {"f32": F32, "bf16": I16, "i64": I64, "i1": I8, "i8": I8}
"""The type in which a dtype is loaded and stored. bf16 is moved as bits: on a CPU without instructions for it, LLVM
would call functions of a library that is not linked. f16 needs no such treatment: all supported CPUs can convert it."""


class NativeElementErrors(ErrorKind):
    REDUCES_INDICES = InputError, "a reduction combines loop indices, but native code can only combine floats"
    INTEGER_POWER = InputError, "the exponent of fpowi must be a constant from 1 to 8 in native code, got {exponent}"
    VECTOR_INDEX = InputError, "an index differs between the lanes of a vector, but it must be a single number here"
    CONSTANT = InputError, "a constant is {value!r}, which is not a number"


@dataclass(frozen=True)
class RegionPointer:
    """A region as generated code accesses it: element o is ``offset(o)`` elements after `pointer`.

    Attributes:
        rows: for packed weights [N, K], the offset of an element given its row and column; None for plain memory.
    """

    pointer: Value
    dtype: str
    rows: Callable[[Function, Value, Value], Value] | None = None

    def at(self, f: Function, offset: Value | int) -> Value:
        return self.pointer + f.integer(offset) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Range:
    """The indices of one dimension that a nest visits: all of them, or those of a unit."""

    lower: Value | int
    upper: Value | int
    whole_vectors: bool


RegionPointers = Mapping[str, RegionPointer]


class Elementwise:
    """Emits one vector or reduction nest.

    Args:
        f: function to emit into.
        nest: nest to compute.
        places: regions by name.
        scalars: scalar parameters of the body, i64.
        split: dimension that is restricted to a range, and the range; None for all of every dimension.
        live: dimension of which only the first indices have to be computed, and their number; None for all dimensions.
    """

    def __init__(
        self,
        f: Function,
        nest: Nest,
        places: RegionPointers,
        scalars: Mapping[str, Value],
        split: tuple[int, Range] | None = None,
        live: tuple[int, Value] | None = None,
    ) -> None:
        self.f = f
        self.nest = nest
        self.places = places
        self.scalars = scalars
        self.ranges = [Range(0, extent, extent % LANES == 0) for extent in nest.dims]
        if split is not None and split[0] >= 0:
            self.ranges[split[0]] = split[1]
        if live is not None:
            bounds, lower = self.ranges[live[0]], f.integer(self.ranges[live[0]].lower)
            self.ranges[live[0]] = Range(lower, f.max(f.min(live[1], bounds.upper), lower), False)
        self.lane = _lane_dimension(nest)
        self.varying = _varying(nest, self.lane)

    def emit(self) -> None:
        outer = [d for d in range(len(self.nest.dims)) if d != self.lane and d not in self.nest.reduce]
        if self.nest.combine:
            inner = [d for d in range(len(self.nest.dims)) if d != self.lane and d in self.nest.reduce]
            self._nest(outer, {}, lambda index: self._reduce(inner, index))
        else:
            self._nest(outer, {}, self._row)

    # -- loops

    def _nest(self, dims: list[int], index: dict[int, Value], inside: Callable[[dict[int, Value]], None]) -> None:
        if not dims:
            inside(index)
            return
        bounds = self.ranges[dims[0]]
        with self.f.loop(bounds.lower, bounds.upper) as loop:
            self._nest(dims[1:], {**index, dims[0]: loop.index}, inside)

    def _row(self, index: dict[int, Value]) -> None:
        """Emit the innermost loop of a vector nest."""
        if self.lane < 0:
            self._store(self._evaluate(index, None, {}), index, None)
            return
        shared = self._uniform(index)

        def block(at: Value, mask: Value | None) -> None:
            here = {**index, self.lane: at}
            self._store(self._evaluate(here, mask, shared), here, mask)

        self._blocks(block)

    def _blocks(self, block: Callable[[Value, Value | None], None]) -> None:
        """Call `block` for each whole vector of the lanes' dimension, then for the rest under a mask."""
        f, bounds = self.f, self.ranges[self.lane]
        lower, upper = f.integer(bounds.lower), f.integer(bounds.upper)
        whole = upper if bounds.whole_vectors else upper - (upper - lower) % LANES
        with f.loop(lower, whole, LANES) as loop:
            block(loop.index, None)
        if not bounds.whole_vectors:
            with f.when(whole < upper):
                block(whole, f.first_lanes(upper - whole))

    # -- reductions

    def _reduce(self, inner: list[int], index: dict[int, Value]) -> None:
        if self.lane >= 0 and self.lane not in self.nest.reduce:

            def block(at: Value, mask: Value | None) -> None:
                here = {**index, self.lane: at}
                total = self._accumulate(inner, here, mask, self.f.splat(self.nest.init))
                self._store(total, here, mask)

            self._blocks(block)
            return
        if self.lane < 0:
            total = self._accumulate(inner, index, None, self.f.constant(self.nest.init, F32))
        else:
            start = self.f.splat(self._identity)
            lanes = self._accumulate(inner, index, None, start)
            kind = {"addf": "add", "mulf": "mul"}.get(self.nest.combine, self.nest.combine)
            total = self._combine(self.f.constant(self.nest.init, F32), self.f.reduce(kind, lanes))
        self._store(total, index, None)

    @property
    def _identity(self) -> float:
        return {"addf": 0.0, "mulf": 1.0, "maximumf": float("-inf"), "minimumf": float("inf")}[self.nest.combine]

    def _accumulate(self, inner: list[int], index: dict[int, Value], mask: Value | None, start: Value) -> Value:
        """Combine over the remaining dimensions, in one chain."""
        f = self.f
        if inner:
            bounds = self.ranges[inner[0]]
            with f.loop(bounds.lower, bounds.upper, 1, [start]) as loop:
                loop.carry(self._accumulate(inner[1:], {**index, inner[0]: loop.index}, mask, loop.state[0]))
            return loop.results[0]
        if self.lane in self.nest.reduce:
            return self._accumulate_lanes(index, start)
        return self._step(index, mask, {}, start)

    def _accumulate_lanes(self, index: dict[int, Value], start: Value) -> Value:
        f, extent = self.f, self.nest.dims[self.lane]
        whole = extent - extent % LANES
        shared = self._uniform(index)
        with f.loop(0, whole, LANES, [start]) as loop:
            loop.carry(self._step({**index, self.lane: loop.index}, None, shared, loop.state[0]))
        total = loop.results[0]
        if whole < extent:
            mask = f.first_lanes(extent - whole)
            last = self._step({**index, self.lane: f.constant(whole)}, mask, shared, total)
            total = f.select(mask, last, total)
        return total

    def _step(
        self, index: dict[int, Value], mask: Value | None, shared: dict[str, Arg], total: Value
    ) -> Value:
        if self.nest.product:
            a_access, b_access, *_ = self.nest.inputs
            factors = self._load(a_access, index, mask), self._load(b_access, index, mask, self._place(index))
            a, b = spread(self.f, *factors, total)[:2]
            return self.f.fma(a, b, total)
        value = self._evaluate(index, mask, shared)
        return self._combine(total, expand(self.f, value) if lanes_of(total.type) else value)

    def _combine(self, a: Value, b: Arg) -> Value:
        if isinstance(b, Ramp):
            raise NativeElementErrors.REDUCES_INDICES()
        f = self.f
        combined = {"addf": f.add, "mulf": f.mul, "maximumf": f.max, "minimumf": f.min}[self.nest.combine](a, b)
        return combined

    # -- the program at a point

    def _uniform(self, index: dict[int, Value]) -> dict[str, Arg]:
        """Return the values of the program that are the same in all lanes."""
        known: dict[str, Arg] = {}
        for number, access in enumerate(self.nest.inputs):
            if f"in{number}" not in self.varying:
                known[f"in{number}"] = self._load(access, index, None)
        for instr in self.nest.body:
            if instr.name not in self.varying:
                known[instr.name] = self._instr(instr, known, index, None)
        return known

    def _evaluate(self, index: dict[int, Value], mask: Value | None, shared: Mapping[str, Arg]) -> Arg:
        known = dict(shared)
        for number, access in enumerate(self.nest.inputs):
            if f"in{number}" not in known:
                known[f"in{number}"] = self._load(access, index, mask)
        for instr in self.nest.body:
            if instr.name not in known:
                known[instr.name] = self._instr(instr, known, index, mask)
        return known[self.nest.result]

    def _dtypes(self) -> dict[str, str]:
        types = {f"in{n}": self.places[a.region].dtype for n, a in enumerate(self.nest.inputs)}
        return types | {i.name: "i64" if i.type == "index" else i.type for i in self.nest.body}

    def _instr(
        self, instr: Instr, known: Mapping[str, Arg], index: dict[int, Value], mask: Value | None
    ) -> Arg:
        f = self.f
        if instr.op == "const":
            return self._argument(_number(instr.args[0]), known, _dtype(instr.type))
        if instr.op == "index":
            return self._index(int(instr.args[0]), index)
        if instr.op == "load":
            source = self.nest.loads[str(instr.args[0])]
            indices = [self._argument(a, known) for a in instr.args[1:]]
            checked = [
                index if self._is_inside(arg, extent) else self._cut(index, extent, mask)
                for arg, index, extent in zip(instr.args[1:], indices, source.shape, strict=True)
            ]
            return self._gather(source, checked, mask)
        if instr.op == "fpowi":
            return self._integer_power(self._argument(instr.args[0], known, instr.type), instr)
        dtypes = self._dtypes()
        names = [a for a in instr.args if isinstance(a, str)]
        kinds = [dtypes.get(name, "i64") for name in names]
        literal = _literal_dtype(instr, kinds)
        args = [self._argument(a, known, literal) for a in instr.args]
        return apply(f, instr, args, [dtypes.get(a, "i64") if isinstance(a, str) else "" for a in instr.args])

    def _argument(self, arg: int | float | str, known: Mapping[str, Arg], dtype: str = "i64") -> Arg:
        """Return the value of a name, or of a literal of a dtype."""
        if not isinstance(arg, str):
            return self.f.constant(float(BFLOAT16.type(arg)) if dtype == "bf16" else arg, register_type(dtype))
        return known[arg] if arg in known else self.scalars[arg]

    def _integer_power(self, base: Arg, instr: Instr) -> Arg:
        exponent = instr.args[1]
        if not isinstance(exponent, int) or isinstance(base, Ramp) or not 1 <= exponent <= 8:
            raise NativeElementErrors.INTEGER_POWER(exponent=exponent)
        result = base
        for _ in range(exponent - 1):
            result = result * base
        return rounded(self.f, result, instr.type)

    def _index(self, dimension: int, index: dict[int, Value]) -> Arg:
        """Return the value of ``index(dimension)`` in the original dimensions of the step."""
        f = self.f
        dim, divisor, extent = self.nest.original[dimension]
        if extent == 1:
            return f.constant(0)
        unmerged = divisor == 1 and extent == self.nest.dims[dim]
        if dim == self.lane and unmerged:
            return Ramp(index[dim])
        here: Value = expand(f, Ramp(index[dim])) if dim == self.lane else index[dim]
        if divisor != 1:
            here = here // divisor
        return here if divisor * extent == self.nest.dims[dim] else here % extent

    # -- memory

    def _place(self, index: dict[int, Value]) -> Value | None:
        """Return the offset in elements that the index of the indirect axis selects in a product's second operand, the
        same in all lanes; None without such an axis."""
        if self.nest.indirect is None:
            return None
        number = self._load(self.nest.inputs[2], index, None)
        assert isinstance(number, Value)  # a loaded value is never a ramp
        return cut_index(self.f, number, self.nest.indirect.size) * self.nest.indirect.stride

    def _offset(self, access: LinearAccess, index: dict[int, Value]) -> Value:
        offset = self.f.constant(access.constant)
        for dim, coefficient in enumerate(access.coefficients):
            if coefficient:
                offset = offset + index[dim] * coefficient
        return offset

    def _load(
        self, access: LinearAccess, index: dict[int, Value], mask: Value | None, further: Value | None = None
    ) -> Arg:
        """Load the element of an access, `further` elements later."""
        f, place = self.f, self.places[access.region]
        coefficient = access.coefficients[self.lane] if self.lane >= 0 else 0
        start = self._offset(access, index) if further is None else self._offset(access, index) + further
        if coefficient == 0:
            return _from_memory(f, f.load(place.at(f, start), _STORED[place.dtype]), place.dtype)
        if coefficient == 1:
            return self._load_run(place, start, mask)
        offsets = f.broadcast(start, LANES) + f.values([lane * coefficient for lane in range(LANES)], I64)
        return self._load_lanes(place, offsets, mask)

    def _load_run(self, place: RegionPointer, start: Value, mask: Value | None) -> Value:
        """Load one element per lane from consecutive elements."""
        f, type = self.f, vector(_STORED[place.dtype], LANES)
        pointer = place.at(f, start)
        raw = f.load(pointer, type) if mask is None else f.load_masked(pointer, mask, type)
        return _from_memory(f, raw, place.dtype)

    def _load_lanes(self, place: RegionPointer, offsets: Value, mask: Value | None) -> Value:
        """Load one element per lane; lanes outside of the mask read the element of lane 0."""
        f = self.f
        first = f.extract(offsets, 0)
        if mask is not None:
            offsets = f.select(mask, offsets, f.broadcast(first, LANES))
        type = vector(_STORED[place.dtype], LANES)
        value = f.constant(0, type)
        for lane in range(LANES):
            element = f.load(place.at(f, f.extract(offsets, lane)), _STORED[place.dtype])
            value = f.insert(element, value, lane)
        return _from_memory(f, value, place.dtype)

    def _is_inside(self, arg: int | float | str, extent: int) -> bool:
        """Return True if an index cannot leave 0 .. extent - 1, whatever the data are."""
        if not isinstance(arg, str):
            return 0 <= int(arg) < extent
        instr = next((i for i in self.nest.body if i.name == arg), None)
        return instr is not None and instr.op == "index" and self.nest.original[int(instr.args[0])][2] <= extent

    def _cut(self, index: Arg, extent: int, mask: Value | None) -> Arg:
        """Clamp an index to 0 .. extent - 1; one that was outside ends the run."""
        return cut_index(self.f, expand(self.f, index) if isinstance(index, Ramp) else index, extent, mask)

    def _gather(self, source: Gathered, indices: list[Arg], mask: Value | None) -> Arg:
        """Return source[indices], where every index is inside."""
        f, place = self.f, self.places[source.region]
        last = indices[-1]
        uniform = all(isinstance(i, Value) and not lanes_of(i.type) for i in indices[:-1])
        inside = self.nest.dims[self.lane] <= source.shape[-1]  # a ramp is as long as the lanes' dimension
        if isinstance(last, Ramp) and uniform and inside and source.strides[-1] == 1 and place.rows is None:
            return self._load_run(place, self._gather_offset(source, [*indices[:-1], last.base]), mask)
        if uniform and isinstance(last, Value) and not lanes_of(last.type):
            offset = self._gather_offset(source, indices)
            return _from_memory(f, f.load(place.at(f, offset), _STORED[place.dtype]), place.dtype)
        return self._load_lanes(place, self._gather_offset(source, [expand(f, i) for i in indices]), mask)

    def _gather_offset(self, source: Gathered, indices: list[Arg]) -> Value:
        f, place = self.f, self.places[source.region]
        values = [value for value in indices if not isinstance(value, Ramp)]
        if len(values) < len(indices):
            raise NativeElementErrors.VECTOR_INDEX()
        if place.rows is not None:
            row, column = values[-2:]
            return place.rows(f, row, column)
        offset = f.like(source.constant, values[0])
        for value, stride in zip(values, source.strides, strict=True):
            offset = offset + value * stride
        return offset

    def _store(self, value: Arg, index: dict[int, Value], mask: Value | None) -> None:
        f, output = self.f, self.nest.output
        place = self.places[output.region]
        coefficient = output.coefficients[self.lane] if self.lane >= 0 and self.lane not in self.nest.reduce else 0
        start = self._offset(output, {**index, self.lane: f.constant(0)} if self.lane in self.nest.reduce else index)
        if coefficient == 0:
            if isinstance(value, Ramp):
                value = value.base
            f.store(_to_memory(f, value, place.dtype), place.at(f, start))
            return
        raw = _to_memory(f, expand(f, value), place.dtype)
        if coefficient == 1:
            if mask is None:
                f.store(raw, place.at(f, start))
            else:
                f.store_masked(raw, place.at(f, start), mask)
            return
        for lane in range(LANES):
            pointer = place.at(f, start + lane * coefficient)
            if mask is None:
                f.store(f.extract(raw, lane), pointer)
            else:
                with f.when(f.extract(mask, lane)):
                    f.store(f.extract(raw, lane), pointer)


def _from_memory(f: Function, raw: Value, dtype: str) -> Value:
    if is_floating(dtype):
        return f.widen(raw)
    if dtype == "i1":
        return raw.owner.compare("ne", raw, 0)
    return f.cast("arith.extsi", raw, I64) if dtype == "i8" else raw


def _to_memory(f: Function, value: Value, dtype: str) -> Value:
    if dtype == "bf16":
        return f.bitcast(f.narrow(value, BF16), with_element(value.type, I16))
    if dtype == "f32":
        return value
    if dtype == "i1":
        return f.cast("arith.extui", value, I8)
    return f.cast("arith.trunci", value, I8) if dtype == "i8" else value


def _lane_dimension(nest: Nest) -> int:
    """Return the dimension that runs over the lanes; -1 if no access would become a vector."""
    best, lane = 0.0, -1
    for dim, extent in enumerate(nest.dims):
        if extent < 4 or (dim in nest.reduce and nest.combine == ""):
            continue
        if nest.indirect is not None and nest.inputs[2].coefficients[dim]:
            continue
        strides = [a.coefficients[dim] for a in nest.inputs]
        stored = nest.output.coefficients[dim]
        if dim in nest.reduce:
            stored = 1
        wide = sum(s == 1 for s in strides) + 2 * (stored == 1)
        narrow = sum(s not in (0, 1) for s in strides) + 2 * (stored not in (0, 1))
        score = 4.0 * wide - 8 * narrow + (nest.output.coefficients[dim] == 1) + min(extent, LANES) / LANES
        if stored and score > best:
            best, lane = score, dim
    return lane


def _varying(nest: Nest, lane: int) -> set[str]:
    """Return the names of the program's values that differ between lanes."""
    if lane < 0:
        return set()
    varying = {f"in{n}" for n, a in enumerate(nest.inputs) if a.coefficients[lane]}
    for instr in nest.body:
        if instr.op == "index":
            dim, _, extent = nest.original[int(instr.args[0])]
            if dim == lane and extent != 1:
                varying.add(instr.name)
        elif any(a in varying for a in instr.args if isinstance(a, str)):
            varying.add(instr.name)
    return varying


def _dtype(type: str) -> str:
    return "i64" if type == "index" else type


def _number(value: int | float | str) -> int | float:
    if isinstance(value, str):
        raise NativeElementErrors.CONSTANT(value=value)
    return value


def _literal_dtype(instr: Instr, kinds: list[str]) -> str:
    """Return the dtype of the literals among an operation's arguments; `kinds` are the dtypes of its named ones."""
    if instr.op.startswith("cmpf") or instr.op in ("truncf", "extf", "fptosi", "fptoui"):
        return kinds[0] if kinds else "f32"
    if instr.op.startswith("cmpi") or instr.op in ("sitofp", "uitofp", "trunci", "index_cast", "extsi"):
        return kinds[0] if kinds else "i64"
    return _dtype(instr.type)


__all__ = ["Elementwise", "Range", "RegionPointer"]
