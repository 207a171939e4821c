"""Proof of a single body: names, shapes, access maps inside their operands, nothing read before it is written.

Conditions on its users are returned as `BodyFacts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from sscc.ir import operations
from sscc.ir import schedule as sch
from sscc.ir.kv_rows import format_of, numbers_in
from sscc.ir.opspec import Op, Operand, Pattern, Sizes, spec_of_step
from sscc.ir.sharding import ranks_along
from sscc.ir.sizes import dense_strides
from sscc.runtime.validator.failure import Limits, ProofKind, check_numbers
from sscc.runtime.validator.linear import ANY, Range
from sscc.runtime.validator.programs import Integer, VectorProgram
from sscc.runtime.validator.regions import Region, covered, injective, overlap
from sscc.runtime.validator.steps import check_sizes


class BodyProofErrors(ProofKind):
    """Bodies with invalid names, shapes, access maps or steps."""

    NAME_TWICE = "the name {name!r} is used twice"
    EMPTY_SHAPE = "every size of {name!r} must be at least 1, got [{shape}]"
    WINDOW_OF_NOTHING = "window {window!r} shows {tensor!r}, which is neither a parameter nor a local"
    WINDOW_FORM = "window {window!r} has shape [{shape}], strides [{strides}] and {terms} terms"
    WINDOW_OUT_OF_RANGE = "window {window!r} reaches elements {low} .. {high} of {tensor!r}, which has {elements}"
    UNKNOWN_NAME = "it names {name!r}, which does not exist; the names are {names!r}"
    UNKNOWN_SCALAR = "it names scalar {scalar!r}, which does not exist; the scalars are {scalars!r}"
    READ_BEFORE_WRITTEN = "it reads elements of {name!r} that no step before it has written"
    WRITES_READ_ONLY = "it writes parameter {name!r}, which is declared read"
    UPDATES_UNWRITTEN_LOCAL = "it updates some elements of the local {name!r}, which is not written before"
    UPDATES_UNDEFINED = "it updates some elements of {name!r}, which is declared {access}"
    WRITTEN_TWICE = "it writes elements of {name!r} more than once"
    OPERAND = "{operand} must be {pattern}{sizes_hint}, but {name!r} is {dtype} [{shape}]"
    MIXED_ROWS = "its rows must be all encoded or all floats, but {encoded!r} are i8 and {floats!r} are not"
    ROW_FORMATS = "its rows must have the same encoding, but {names!r} are {formats}"
    OPERANDS_OVERLAP = "its {operand} and its {other} share elements of {name!r}"
    EMPTY_DIMENSIONS = "its dimensions must be at least 1, got [{dims}]"
    INDIRECT_AXIS = "{name!r} has an indirect axis, which only operand b of a product may have"
    IDLE_DIMENSION = "it iterates {size} times over dimension {dim}, on which none of its operands depends"
    REDUCED_DIMENSIONS = "it reduces dimensions [{reduce}] of [{dims}]"
    INDIRECT_MAP = "axis {axis} of {name!r} is indirect, but its access map is {map}"
    INDEX_DTYPE = "the index {index!r} of {name!r} must be i64, got {dtype}"
    MAP_FORM = "an access map of {name!r} must have {rows} rows of {columns} numbers, but is {map}"
    MAP_OUT_OF_RANGE = "an access map reaches {low} .. {high} of axis {axis} of {name!r}, whose size is {size}"
    OUTPUT_REDUCED = "its output {name!r} depends on a dimension that it reduces, [{reduce}]"
    OUTPUT_DTYPE = "its result is {dtype}, but its output {name!r} is {actual}"
    READS_WHAT_IT_WRITES = "it reads elements of {name!r} that it writes at other points"
    PRODUCT_DTYPE = "a product needs floats, but {name!r} is {dtype}"
    COMBINATION = "it must combine floats by one of {choices!r}, got {dtype} by {combine!r}"
    RANK_AXES = "it uses axes [{axes}] of the grid [{grid}] of ranks"
    SUM_DTYPE = "it sums {name!r}, which is {dtype} instead of a float"
    SPLIT_AXIS = "it splits {name!r} of shape [{shape}] along axis {axis}"
    JOIN_AXIS = "it joins {name!r} of shape [{shape}] along axis {axis}"
    SPLIT_PARTS = "it splits {name!r} of shape [{shape}] along axis {axis} into {parts} parts"
    PARTS_DIFFER = "its result for {parts} parts of {dtype} [{shape}] is {actual} [{actual_shape}]"
    SOURCE_OVERLAPS = "its operand and its result share elements of {name!r}"
    LOAD_FORM = "load {load!r} returns {type} for {indices} indices, but {name!r} is {dtype} [{shape}]"
    LOAD_FLOAT_INDEX = "load {load!r} has a float as index of axis {axis}"
    LOAD_OUT_OF_RANGE = "load {load!r} reaches {low} .. {high} of axis {axis} of {name!r}, whose size is {size}"


_FLOATS = ("f32", "bf16")
_COMBINE = ("addf", "mulf", "maximumf", "minimumf")


def well_formed(view: sch.View) -> bool:
    """Return True for one stride per dimension, none negative, and no empty dimension."""
    strides, shape = view.strides, view.shape
    return len(strides) == len(shape) and all(stride >= 0 for stride in strides) and all(size > 0 for size in shape)


def view_pairs(view: sch.View | _Place) -> list[tuple[int, int]]:
    """Return (stride, size) per dimension."""
    return list(zip(view.strides, view.shape, strict=True))


@dataclass
class ParamUse:
    """Use of a parameter by a body in one firing.

    Attributes:
        stored: True if any element is written.
        complete: True if every element is.
        bounded: True if an element may be left out, because a scalar determines their number.
    """

    stored: bool = False
    complete: bool = False
    bounded: bool = False


@dataclass(frozen=True)
class BodyFacts:
    """Conditions of a body on its users.

    Attributes:
        uses: use of each parameter.
        needs: (scalar of the body, lowest, highest, step) that must hold at every firing.
        dense: parameters that must be dense, because a window shows them.
        data: accesses at places that depend on tensors' contents; the interpreters check those.
        grid: the ranks of the program.
    """

    body: sch.Body
    uses: dict[str, ParamUse]
    needs: tuple[tuple[str, int, int, str], ...]
    dense: frozenset[str]
    data: tuple[str, ...]
    grid: Sequence[int]


@dataclass(frozen=True)
class _Place:
    """Meaning of a name in a body: a view of a parameter or of a local."""

    base: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str

    def region(self) -> Region:
        return Region.of(self.offset, view_pairs(self))


_Reach = tuple[_Place, list[tuple[int, int]], int]
"""A place, (stride, size) per dimension and the offset, in elements of the place's base."""


@dataclass
class _State:
    """The written elements of one parameter or local."""

    elements: int
    defined: bool
    regions: list[Region] = field(default_factory=list)
    bounded: bool = False


class _BodyProof:
    def __init__(
        self, body: sch.Body, limits: Limits, scalars: Mapping[str, Range], grid: Sequence[int]
    ) -> None:
        self._body, self._limits, self._scalars, self._grid = body, limits, scalars, grid
        self.where = f"body {body.name!r}" + (f" ({body.location})" if body.location else "")
        self._params = {param.name: param for param in body.params}
        self._uses = {param.name: ParamUse() for param in body.params}
        self._needs: list[tuple[str, int, int, str]] = []
        self._data: list[str] = []
        self._places: dict[str, _Place] = {}
        self._state: dict[str, _State] = {}
        self._dense: set[str] = set()
        self._declare()

    def prove(self) -> BodyFacts:
        outer = self.where
        for number, step in enumerate(self._body.steps):
            self.where = f"{outer}, step {number} ({step.kind})"
            if isinstance(step, sch.Vector | sch.Reduction | sch.Product):
                self._affine(step)
            elif isinstance(step, sch.Collective):
                self._collective(step)
            else:
                self._operands(step)
        self.where = outer
        for name, use in self._uses.items():
            state = self._state[name]
            use.bounded = state.bounded
            use.complete = self._written(state, Region.of(0, [(1, state.elements)])) is True
        needs, data = tuple(self._needs), tuple(self._data)
        return BodyFacts(self._body, self._uses, needs, frozenset(self._dense), data, self._grid)

    # -- names

    def _declare(self) -> None:
        body = self._body
        names = [*(param.name for param in body.params), *body.scalars]
        names += [*(local.name for local in body.locals), *(window.name for window in body.windows)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise BodyProofErrors.NAME_TWICE(where=self.where, name=twice[0])
        items: list[sch.Param | sch.Local] = [*body.params, *body.locals]
        for item in items:
            if any(size < 1 for size in item.shape):
                raise BodyProofErrors.EMPTY_SHAPE(where=self.where, name=item.name, shape=item.shape)
            check_numbers(self.where, repr(item.name), (prod(item.shape),))
            self._places[item.name] = _Place(item.name, item.shape, dense_strides(item.shape), 0, item.dtype)
            defined = isinstance(item, sch.Param) and item.access != "write"
            self._state[item.name] = _State(prod(item.shape), defined)
        for window in body.windows:
            self._window(window)

    def _window(self, window: sch.Window) -> None:
        view = window.view
        if view.tensor not in self._state:
            raise BodyProofErrors.WINDOW_OF_NOTHING(where=self.where, window=window.name, tensor=view.tensor)
        if view.terms or not well_formed(view):
            raise BodyProofErrors.WINDOW_FORM(
                where=self.where, window=window.name, shape=view.shape, strides=view.strides, terms=len(view.terms)
            )
        check_numbers(self.where, f"window {window.name!r}", (view.offset, *view.shape, *view.strides))
        place = _Place(view.tensor, view.shape, view.strides, view.offset, self._places[view.tensor].dtype)
        region, elements = place.region(), self._state[view.tensor].elements
        if region.offset < 0 or region.offset + region.span >= elements:
            raise BodyProofErrors.WINDOW_OUT_OF_RANGE(
                where=self.where, window=window.name, low=region.offset, high=region.offset + region.span,
                tensor=view.tensor, elements=elements,
            )  # fmt: skip
        self._places[window.name] = place
        if view.tensor in self._params:
            self._dense.add(view.tensor)

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            raise BodyProofErrors.UNKNOWN_NAME(where=self.where, name=name, names=list(self._places))
        return self._places[name]

    def _scalar(self, name: str) -> None:
        if name not in self._body.scalars:
            raise BodyProofErrors.UNKNOWN_SCALAR(where=self.where, scalar=name, scalars=self._body.scalars)

    # -- reads and writes

    def _read(self, place: _Place, region: Region) -> None:
        state = self._state[place.base]
        if not state.defined and not state.bounded and self._written(state, region) is not True:
            raise BodyProofErrors.READ_BEFORE_WRITTEN(where=self.where, name=place.base)

    def _write(self, place: _Place, region: Region, mode: str, stored: bool = True) -> None:
        param = self._params.get(place.base)
        if param is not None and param.access == "read":
            raise BodyProofErrors.WRITES_READ_ONLY(where=self.where, name=place.base)
        state = self._state[place.base]
        if mode == "update" and not state.defined and self._written(state, region) is not True:
            if param is None:
                raise BodyProofErrors.UPDATES_UNWRITTEN_LOCAL(where=self.where, name=place.base)
            raise BodyProofErrors.UPDATES_UNDEFINED(where=self.where, name=place.base, access=param.access)
        if mode == "write":
            state.regions.append(region)
        state.bounded = state.bounded or mode == "part"
        if param is not None and stored:
            self._uses[place.base].stored = True

    def _written(self, state: _State, region: Region) -> bool | None:
        return covered(state.regions, region, self._limits.painted)

    # -- steps of the algorithm

    def _operands(self, step: Op) -> None:
        spec = spec_of_step(step)
        names = spec.regions(step)
        used = {field_name: spec.operands[field_name] for field_name in names}
        sizes: dict[str, int] = {}
        patterns = {field_name: spec.step_pattern(field_name, step) for field_name in names}
        for field_name, name, pattern in spec.matching(step, lambda region: self._place(region).dtype):
            self._match(name, field_name, pattern, sizes)
        for elements in (("row", "any"), ("prompt",)):
            self._alike([names[name] for name, operand in used.items() if operand.element in elements])
        self._one_format({names[f]: sizes[dims[-1]] for f, (dtype, dims) in patterns.items() if dtype == "row"})
        if isinstance(step, operations.GatherRows) and self._place(step.source).dtype == "i8":
            self._alike([step.source, step.out])
        self._apart(names, used)
        check_sizes(step, sizes, self.where)
        amounts = {**sizes, **spec.settings(step), "valid": spec.rows(sizes), "live": sizes.get("T", 0)}
        for field_name, number in spec.numbers.items():
            self._scalar(getattr(step, field_name))
            amounts[field_name] = number.most(amounts)
            if number.low is not None and number.high is not None:
                low, high = number.low(amounts), number.high(amounts)
                self._needs.append((getattr(step, field_name), low, high, f"{step.kind} {field_name}"))
        for reading in (True, False):
            for field_name, operand in used.items():
                self._move(self._place(names[field_name]), operand, amounts, reading)
        self._data += [f"{self.where}: rows of {names[f]!r}" for f, operand in used.items() if operand.by]

    def _move(self, place: _Place, operand: Operand, amounts: Sizes, reading: bool) -> None:
        reads, writes = operand.moved(amounts, place.shape)
        if reading and reads:
            self._read(place, place.region())
        if not reading and operand.mode != "read":
            if not injective(view_pairs(place)):
                raise BodyProofErrors.WRITTEN_TWICE(where=self.where, name=place.base)
            self._write(place, place.region(), operand.mode, writes > 0)

    def _match(self, name: str, field_name: str, pattern: Pattern, sizes: dict[str, int]) -> None:
        place = self._place(name)
        dtype, dims = pattern
        whichever = (*_FLOATS, "i8")
        takes = {"f": _FLOATS, "encoded": ("i8",), "row": whichever, "any": whichever}.get(dtype, (dtype,))
        fits, shape = place.dtype in takes and len(dims) == len(place.shape), place.shape
        if fits and place.dtype == "i8" and dtype in ("encoded", "row"):
            shape = (*shape[:-1], numbers_in(shape[-1], sizes.get(dims[-1])))
            fits = shape[-1] >= 1
        for letter, size in zip(dims, shape, strict=False):
            fits = fits and size == (int(letter) if letter.isdigit() else sizes.setdefault(letter, size))
        if not fits:
            known = ", ".join(f"{letter} = {size}" for letter, size in sizes.items() if letter in dims)
            raise BodyProofErrors.OPERAND(
                where=self.where, operand=field_name, pattern=_spelled(dtype, dims), name=name, dtype=place.dtype,
                sizes_hint=f" with {known}" if known else "", shape=place.shape,
            )  # fmt: skip

    def _alike(self, names: Sequence[str]) -> None:
        encoded = [name for name in names if self._place(name).dtype == "i8"]
        floats = [name for name in names if name not in encoded]
        if encoded and floats:
            raise BodyProofErrors.MIXED_ROWS(where=self.where, encoded=encoded, floats=floats)

    def _one_format(self, dims: Mapping[str, int]) -> None:
        """Check that encoded rows of each width have the same encoding: one code reads those of all segments."""
        encoded = [name for name in dims if self._place(name).dtype == "i8"]
        formats = {name: format_of(dims[name], self._place(name).shape[-1]) for name in encoded}
        if len(set(formats.values())) > 1:
            known = [row_format.name if row_format else "none" for row_format in formats.values()]
            raise BodyProofErrors.ROW_FORMATS(where=self.where, names=list(formats), formats=known)

    def _apart(self, names: Mapping[str, str], used: Mapping[str, Operand]) -> None:
        """Check that a written operand is not another operand too, except a cache that is both read and updated."""
        written = [field_name for field_name, operand in used.items() if operand.mode != "read"]
        for field_name, other_name in ((a, b) for a in written for b in used if a != b):
            place, other = self._place(names[field_name]), self._place(names[other_name])
            if place.base != other.base or (place == other and used[other_name].copy_of == field_name):
                continue
            if self._meet(place.region(), other.region()):
                raise BodyProofErrors.OPERANDS_OVERLAP(
                    where=self.where, operand=field_name, other=other_name, name=place.base
                )

    # -- affine steps

    def _affine(self, step: Any) -> None:
        if any(size < 1 for size in step.dims):
            raise BodyProofErrors.EMPTY_DIMENSIONS(where=self.where, dims=step.dims)
        inputs = (step.a, step.b) if isinstance(step, sch.Product) else step.inputs
        chosen = step.b.indirect if isinstance(step, sch.Product) else None
        if chosen is not None:
            inputs = (step.a, sch.Access(step.b.param, step.b.map), chosen.index)
        for access in (*inputs, step.output):
            if access.indirect is not None:
                raise BodyProofErrors.INDIRECT_AXIS(where=self.where, name=access.param)
        for dim, size in enumerate(step.dims):
            rows = [row for access in (*inputs, step.output) for row in access.map]
            if size > 1 and not any(row[dim : dim + 1] not in ((), (0,)) for row in rows):
                raise BodyProofErrors.IDLE_DIMENSION(where=self.where, size=size, dim=dim)
        reduce = () if isinstance(step, sch.Vector) else step.reduce
        if len(set(reduce)) != len(reduce) or any(not 0 <= dim < len(step.dims) for dim in reduce):
            raise BodyProofErrors.REDUCED_DIMENSIONS(where=self.where, reduce=reduce, dims=step.dims)
        reads = [self._access(access, step.dims) for access in inputs]
        if chosen is not None:
            self._indirect(step.b, chosen, reads[1], reads[2][0])
        for place, pairs, offset in reads:
            self._read(place, Region.of(offset, pairs))
        result = self._result(step, [place for place, _, _ in reads[: 2 if chosen else None]])
        self._output(step, reduce, reads, result)

    def _indirect(self, access: sch.Access, indirect: sch.Indirect, reach: _Reach, source: _Place) -> None:
        """Let an access reach all of its indirect axis; `source` holds the indices along it."""
        (place, pairs, _), axis = reach, indirect.axis
        if not 0 <= axis < len(place.shape) or any(access.map[axis]):
            raise BodyProofErrors.INDIRECT_MAP(where=self.where, axis=axis, name=access.param, map=str(access.map))
        if source.dtype != "i64":
            raise BodyProofErrors.INDEX_DTYPE(
                where=self.where, index=source.base, name=access.param, dtype=source.dtype
            )
        pairs.append((place.strides[axis], place.shape[axis]))
        self._data.append(f"{self.where}: axis {axis} of {access.param!r}")

    def _access(self, access: sch.Access, dims: tuple[int, ...]) -> _Reach:
        """Return the place, and (stride, size) per iteration dimension and the offset, in elements of its base."""
        place = self._place(access.param)
        rows = access.map
        if len(rows) != len(place.shape) or any(len(row) != len(dims) + 1 for row in rows):
            raise BodyProofErrors.MAP_FORM(
                where=self.where, name=access.param, rows=len(place.shape), columns=len(dims) + 1, map=str(rows)
            )
        for axis, (row, size) in enumerate(zip(rows, place.shape, strict=True)):
            check_numbers(self.where, f"an access map of {access.param!r}", row)
            steps = [factor * (count - 1) for factor, count in zip(row, dims, strict=False)]
            low = row[-1] + sum(min(step, 0) for step in steps)
            high = row[-1] + sum(max(step, 0) for step in steps)
            if low < 0 or high >= size:
                raise BodyProofErrors.MAP_OUT_OF_RANGE(
                    where=self.where, low=low, high=high, axis=axis, name=access.param, size=size
                )
        strides = [sum(row[d] * s for row, s in zip(rows, place.strides, strict=True)) for d in range(len(dims))]
        offset = place.offset + sum(row[-1] * s for row, s in zip(rows, place.strides, strict=True))
        return place, list(zip(strides, dims, strict=True)), offset

    def _output(self, step: Any, reduce: Sequence[int], reads: list[Any], result: str) -> None:
        place, pairs, offset = self._access(step.output, step.dims)
        if any(row[dim] for dim in reduce for row in step.output.map):
            raise BodyProofErrors.OUTPUT_REDUCED(where=self.where, name=place.base, reduce=reduce)
        if not injective([pair for dim, pair in enumerate(pairs) if dim not in reduce]):
            raise BodyProofErrors.WRITTEN_TWICE(where=self.where, name=place.base)
        if place.dtype != result and not (result == "float" and place.dtype in _FLOATS):
            raise BodyProofErrors.OUTPUT_DTYPE(where=self.where, dtype=result, name=place.base, actual=place.dtype)
        region = Region.of(offset, pairs)
        for other, other_pairs, other_offset in reads:
            same = isinstance(step, sch.Vector) and other_offset == offset and other_pairs == pairs
            source = Region.of(other_offset, other_pairs)
            if other.base == place.base and not same and self._meet(region, source):
                raise BodyProofErrors.READS_WHAT_IT_WRITES(where=self.where, name=place.base)
        self._write(place, region, "write")

    def _meet(self, a: Region, b: Region) -> bool:
        return overlap(a.dims, b.dims, b.offset - a.offset) is not False

    def _result(self, step: Any, inputs: list[_Place]) -> str:
        """Return the dtype of a step's result; "float" if it is rounded to the output's own."""
        if isinstance(step, sch.Product):
            for place in inputs:
                if place.dtype not in _FLOATS:
                    raise BodyProofErrors.PRODUCT_DTYPE(where=self.where, name=place.base, dtype=place.dtype)
            return "float"
        result = VectorProgram(step, [place.dtype for place in inputs], self).result()
        if isinstance(step, sch.Vector):
            return result
        if step.combine not in _COMBINE or result not in _FLOATS:
            raise BodyProofErrors.COMBINATION(
                where=self.where, dtype=result, combine=step.combine, choices=_COMBINE
            )
        return "float"

    # -- collectives

    def _collective(self, step: sch.Collective) -> None:
        """Check a collective: its result has the dtype of its operand and, except for axes that are split or joined,
        its shape."""
        size = ranks_along(self._grid, step.axes)
        if size is None:
            raise BodyProofErrors.RANK_AXES(where=self.where, axes=step.axes, grid=self._grid)
        name, made, split, joined = _sides(step)
        source, result = self._place(name), self._place(made)
        if isinstance(step, sch.AllReduce | sch.ReduceScatter) and source.dtype not in _FLOATS:
            raise BodyProofErrors.SUM_DTYPE(where=self.where, name=name, dtype=source.dtype)
        shape = list(source.shape)
        for axis, kind in ((split, BodyProofErrors.SPLIT_AXIS), (joined, BodyProofErrors.JOIN_AXIS)):
            if axis is not None and not 0 <= axis < len(shape):
                raise kind(where=self.where, name=name, shape=source.shape, axis=axis)
        if split is not None and (shape[split] % size or split == joined):
            raise BodyProofErrors.SPLIT_PARTS(
                where=self.where, name=name, shape=source.shape, axis=split, parts=size
            )
        if split is not None:
            shape[split] //= size
        if joined is not None:
            shape[joined] *= size
        if (result.dtype, list(result.shape)) != (source.dtype, shape):
            raise BodyProofErrors.PARTS_DIFFER(
                where=self.where, parts=size, dtype=source.dtype, shape=source.shape, actual=result.dtype,
                actual_shape=result.shape,
            )  # fmt: skip
        if not injective(view_pairs(result)):
            raise BodyProofErrors.WRITTEN_TWICE(where=self.where, name=result.base)
        if result.base == source.base and self._meet(result.region(), source.region()):
            raise BodyProofErrors.SOURCE_OVERLAPS(where=self.where, name=result.base)
        self._read(source, source.region())
        self._write(result, result.region(), "write")

    # -- called by vector programs

    def load(self, instr: sch.Instr, indices: Sequence[Integer | None]) -> None:
        """Check a load: its indices, if their range is known, and that the elements it reads are written."""
        place = self._place(str(instr.args[0]))
        if len(indices) != len(place.shape) or instr.type != place.dtype:
            raise BodyProofErrors.LOAD_FORM(
                where=self.where, load=instr.name, type=instr.type, indices=len(indices), name=place.base,
                dtype=place.dtype, shape=place.shape,
            )  # fmt: skip
        for axis, (index, size) in enumerate(zip(indices, place.shape, strict=True)):
            if index is None:
                raise BodyProofErrors.LOAD_FLOAT_INDEX(where=self.where, load=instr.name, axis=axis)
            if index.low >= 0 and index.high < size:
                continue
            if index.exact or index.low >= size or index.high < 0:
                raise BodyProofErrors.LOAD_OUT_OF_RANGE(
                    where=self.where, load=instr.name, low=index.low, high=index.high, axis=axis, name=place.base,
                    size=size,
                )  # fmt: skip
            self._data.append(f"{self.where}: load {instr.name!r}, axis {axis} of {place.base!r}")
        self._read(place, place.region())

    def scalar(self, name: str) -> Range:
        """Return the range of a scalar of the body."""
        self._scalar(name)
        return self._scalars.get(name, ANY)


def _spelled(dtype: str, dims: Sequence[str]) -> str:
    """Return a pattern for messages."""
    encoded = f"i8 [{', '.join(dims)} + 4]"
    words = {"f": "float", "row": "float", "any": "float or i8"}
    plain = f"{words.get(dtype, dtype)} [{', '.join(dims)}]"
    return {"encoded": encoded, "row": f"{plain} or {encoded}"}.get(dtype, plain)


def _sides(step: sch.Collective) -> tuple[str, str, int | None, int | None]:
    """Return the operand and the result of a collective, and the axes along which it splits and joins."""
    if isinstance(step, sch.AllReduce):
        return step.part, step.total, None, None
    if isinstance(step, sch.ReduceScatter):
        return step.part, step.piece, step.axis, None
    if isinstance(step, sch.AllGather):
        return step.part, step.whole, None, step.axis
    if isinstance(step, sch.AllSlice):
        return step.whole, step.part, step.axis, None
    return step.part, step.joined, step.split, step.axis


def prove_body(
    body: sch.Body, limits: Limits, scalars: Mapping[str, Range] | None = None, grid: Sequence[int] = ()
) -> BodyFacts:
    """Prove a body. Raises InputError naming the body and the invalid step.

    Args:
        scalars: range of each scalar of the body in the stage that fires it; None for any value.
        grid: the ranks of the program (`Program.grid`).
    """
    return _BodyProof(body, limits, scalars or {}, grid).prove()
