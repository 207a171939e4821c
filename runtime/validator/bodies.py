"""A body, proved by itself: names, shapes, access maps inside their operands, nothing read before it is written.

What stays open depends on who uses it, and is handed on as `BodyFacts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NoReturn

from sscc.ir import schedule as sch
from sscc.ir.kv_rows import format_of, numbers_in
from sscc.ir.opspec import Op, Operand, Pattern, Sizes, spec_of_step
from sscc.ir.sharding import ranks_along
from sscc.ir.sizes import dense_strides
from sscc.runtime.validator.failure import Limits, check_numbers, refuse
from sscc.runtime.validator.linear import ANY, Range
from sscc.runtime.validator.programs import Integer, VectorProgram
from sscc.runtime.validator.regions import Region, covered, injective, overlap
from sscc.runtime.validator.steps import check_sizes

_FLOATS = ("f32", "bf16")
_COMBINE = ("addf", "mulf", "maximumf", "minimumf")


def well_formed(view: sch.View) -> bool:
    """One stride per dimension, none negative, no dimension empty."""
    strides, shape = view.strides, view.shape
    return len(strides) == len(shape) and all(stride >= 0 for stride in strides) and all(size > 0 for size in shape)


def view_pairs(view: sch.View | _Place) -> list[tuple[int, int]]:
    """(stride, size) per dimension."""
    return list(zip(view.strides, view.shape, strict=True))


@dataclass
class ParamUse:
    """How a body uses one of its parameters in one firing.

    Attributes:
        stored: whether any element is written.
        complete: whether every element is.
        bounded: whether an element may be left out, because a scalar says how many there are.
    """

    stored: bool = False
    complete: bool = False
    bounded: bool = False


@dataclass(frozen=True)
class BodyFacts:
    """What a body asks of those who use it.

    Attributes:
        uses: per parameter.
        needs: (scalar of the body, lowest, highest, step) that must hold at every firing.
        dense: parameters that must be dense, because a window names them.
        data: accesses whose place is decided by tensors' contents; the interpreters check those.
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
    """What a name of a body stands for: a view of a parameter or of a local."""

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
    """What is written so far of one parameter or local."""

    elements: int
    defined: bool
    regions: list[Region] = field(default_factory=list)
    bounded: bool = False


class _BodyProof:
    def __init__(
        self, body: sch.Body, limits: Limits, scalars: Mapping[str, Range], grid: Sequence[int]
    ) -> None:
        self._body, self._limits, self._scalars, self._grid = body, limits, scalars, grid
        self._where = f"body {body.name!r}" + (f" ({body.location})" if body.location else "")
        self._params = {param.name: param for param in body.params}
        self._uses = {param.name: ParamUse() for param in body.params}
        self._needs: list[tuple[str, int, int, str]] = []
        self._data: list[str] = []
        self._places: dict[str, _Place] = {}
        self._state: dict[str, _State] = {}
        self._dense: set[str] = set()
        self._declare()

    def prove(self) -> BodyFacts:
        outer = self._where
        for number, step in enumerate(self._body.steps):
            self._where = f"{outer}, step {number} ({step.kind})"
            if isinstance(step, sch.Vector | sch.Reduction | sch.Product):
                self._affine(step)
            elif isinstance(step, sch.Collective):
                self._collective(step)
            else:
                self._operands(step)
        self._where = outer
        for name, use in self._uses.items():
            state = self._state[name]
            use.bounded = state.bounded
            use.complete = self._written(state, Region.of(0, [(1, state.elements)])) is True
        needs, data = tuple(self._needs), tuple(self._data)
        return BodyFacts(self._body, self._uses, needs, frozenset(self._dense), data, self._grid)

    def _refuse(self, reason: str) -> NoReturn:
        refuse(self._where, reason)

    # -- names

    def _declare(self) -> None:
        body = self._body
        names = [*(param.name for param in body.params), *body.scalars]
        names += [*(local.name for local in body.locals), *(window.name for window in body.windows)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            self._refuse(f"the name {twice[0]!r} is given twice")
        items: list[sch.Param | sch.Local] = [*body.params, *body.locals]
        for item in items:
            if any(size < 1 for size in item.shape):
                self._refuse(f"{item.name!r} has shape {list(item.shape)}")
            check_numbers(self._where, repr(item.name), (prod(item.shape),))
            self._places[item.name] = _Place(item.name, item.shape, dense_strides(item.shape), 0, item.dtype)
            defined = isinstance(item, sch.Param) and item.access != "write"
            self._state[item.name] = _State(prod(item.shape), defined)
        for window in body.windows:
            self._window(window)

    def _window(self, window: sch.Window) -> None:
        view = window.view
        if view.tensor not in self._state:
            self._refuse(f"window {window.name!r} is of {view.tensor!r}, which is no parameter and no local")
        if view.terms or not well_formed(view):
            self._refuse(f"window {window.name!r} has shape {list(view.shape)}, strides {list(view.strides)} and terms")
        check_numbers(self._where, f"window {window.name!r}", (view.offset, *view.shape, *view.strides))
        place = _Place(view.tensor, view.shape, view.strides, view.offset, self._places[view.tensor].dtype)
        region, elements = place.region(), self._state[view.tensor].elements
        if region.offset < 0 or region.offset + region.span >= elements:
            self._refuse(
                f"window {window.name!r} reaches elements {region.offset} .. {region.offset + region.span} of "
                f"{view.tensor!r}, which has {elements}"
            )
        self._places[window.name] = place
        if view.tensor in self._params:
            self._dense.add(view.tensor)

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            self._refuse(f"it names {name!r}, which does not exist; there are {list(self._places)}")
        return self._places[name]

    def _scalar(self, name: str) -> None:
        if name not in self._body.scalars:
            self._refuse(f"it names scalar {name!r}, which does not exist; there are {list(self._body.scalars)}")

    # -- reads and writes

    def _read(self, place: _Place, region: Region) -> None:
        state = self._state[place.base]
        if not state.defined and not state.bounded and self._written(state, region) is not True:
            self._refuse(f"it reads elements of {place.base!r} that no step before it has written")

    def _write(self, place: _Place, region: Region, mode: str, stored: bool = True) -> None:
        param = self._params.get(place.base)
        if param is not None and param.access == "read":
            self._refuse(f"it writes parameter {place.base!r}, which is declared read")
        state = self._state[place.base]
        if mode == "update" and not state.defined and self._written(state, region) is not True:
            access = "a local that is not written before" if param is None else f"declared {param.access}"
            self._refuse(f"it updates some elements of {place.base!r}, which is {access}")
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
        if isinstance(step, sch.GatherRows) and self._place(step.source).dtype == "i8":
            self._alike([step.source, step.out])
        self._apart(names, used)
        check_sizes(step, sizes, self._refuse)
        amounts = {**sizes, **spec.settings(step), "valid": spec.rows(sizes), "live": sizes.get("T", 0)}
        for field_name, number in spec.numbers.items():
            self._scalar(getattr(step, field_name))
            amounts[field_name] = number.most(sizes)
            if number.low is not None and number.high is not None:
                low, high = number.low(sizes), number.high(sizes)
                self._needs.append((getattr(step, field_name), low, high, f"{step.kind} {field_name}"))
        for reading in (True, False):
            for field_name, operand in used.items():
                self._move(self._place(names[field_name]), operand, amounts, reading)
        self._data += [f"{self._where}: rows of {names[f]!r}" for f, operand in used.items() if operand.by]

    def _move(self, place: _Place, operand: Operand, amounts: Sizes, reading: bool) -> None:
        reads, writes = operand.moved(amounts, place.shape)
        if reading and reads:
            self._read(place, place.region())
        if not reading and operand.mode != "read":
            if not injective(view_pairs(place)):
                self._refuse(f"it writes elements of {place.base!r} more than once")
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
            known = {letter: size for letter, size in sizes.items() if letter in dims}
            self._refuse(
                f"{field_name} must be {_spelled(dtype, dims)} with {known}, "
                f"{name!r} is {place.dtype} {list(place.shape)}"
            )

    def _alike(self, names: Sequence[str]) -> None:
        dtypes = {name: self._place(name).dtype for name in names}
        if len({dtype == "i8" for dtype in dtypes.values()}) > 1:
            detail = ", ".join(f"{name!r} is {dtype}" for name, dtype in dtypes.items())
            self._refuse(f"its rows must be all encoded, or all floats: {detail}")

    def _one_format(self, dims: Mapping[str, int]) -> None:
        """Rows of so many numbers, where they are encoded, are encoded alike: one code reads those of all segments."""
        encoded = [name for name in dims if self._place(name).dtype == "i8"]
        formats = {name: format_of(dims[name], self._place(name).shape[-1]) for name in encoded}
        if len(set(formats.values())) > 1:
            known = {name: row_format.name if row_format else "none" for name, row_format in formats.items()}
            detail = ", ".join(f"{name!r} is {known[name]}" for name in formats)
            self._refuse(f"its rows must be encoded alike: {detail}")

    def _apart(self, names: Mapping[str, str], used: Mapping[str, Operand]) -> None:
        """What is written is no other operand too, but for a cache that is read as it was written."""
        written = [field_name for field_name, operand in used.items() if operand.mode != "read"]
        for field_name, other_name in ((a, b) for a in written for b in used if a != b):
            place, other = self._place(names[field_name]), self._place(names[other_name])
            if place.base != other.base or (place == other and used[other_name].copy_of == field_name):
                continue
            if self._meet(place.region(), other.region()):
                self._refuse(f"its {field_name} and its {other_name} share elements of {place.base!r}")

    # -- affine steps

    def _affine(self, step: Any) -> None:
        if any(size < 1 for size in step.dims):
            self._refuse(f"its dimensions are {list(step.dims)}")
        inputs = (step.a, step.b) if isinstance(step, sch.Product) else step.inputs
        chosen = step.b.indirect if isinstance(step, sch.Product) else None
        if chosen is not None:
            inputs = (step.a, sch.Access(step.b.param, step.b.map), chosen.index)
        for access in (*inputs, step.output):
            if access.indirect is not None:
                self._refuse(f"{access.param!r} has an indirect axis, only operand b of a product may have one")
        for dim, size in enumerate(step.dims):
            rows = [row for access in (*inputs, step.output) for row in access.map]
            if size > 1 and not any(row[dim : dim + 1] not in ((), (0,)) for row in rows):
                self._refuse(f"it goes {size} times through dimension {dim}, with which none of its operands moves")
        reduce = () if isinstance(step, sch.Vector) else step.reduce
        if len(set(reduce)) != len(reduce) or any(not 0 <= dim < len(step.dims) for dim in reduce):
            self._refuse(f"it reduces dimensions {list(reduce)} of {list(step.dims)}")
        reads = [self._access(access, step.dims) for access in inputs]
        if chosen is not None:
            self._indirect(step.b, chosen, reads[1], reads[2][0])
        for place, pairs, offset in reads:
            self._read(place, Region.of(offset, pairs))
        result = self._result(step, [place for place, _, _ in reads[: 2 if chosen else None]])
        self._output(step, reduce, reads, result)

    def _indirect(self, access: sch.Access, indirect: sch.Indirect, reach: _Reach, source: _Place) -> None:
        """Lets an access reach all of its indirect axis, along which `source` holds the places."""
        (place, pairs, _), axis = reach, indirect.axis
        if not 0 <= axis < len(place.shape) or any(access.map[axis]):
            self._refuse(f"axis {axis} of {access.param!r} is indirect, its access map is {list(access.map)}")
        if source.dtype != "i64":
            self._refuse(f"the index {source.base!r} of {access.param!r} is {source.dtype}, it must be i64")
        pairs.append((place.strides[axis], place.shape[axis]))
        self._data.append(f"{self._where}: axis {axis} of {access.param!r}")

    def _access(self, access: sch.Access, dims: tuple[int, ...]) -> _Reach:
        """The place, and (stride, size) per iteration dimension and the offset, in elements of its base."""
        place = self._place(access.param)
        rows = access.map
        if len(rows) != len(place.shape) or any(len(row) != len(dims) + 1 for row in rows):
            self._refuse(
                f"an access map of {access.param!r} must have {len(place.shape)} rows of {len(dims) + 1} numbers, "
                f"it is {rows}"
            )
        for axis, (row, size) in enumerate(zip(rows, place.shape, strict=True)):
            check_numbers(self._where, f"an access map of {access.param!r}", row)
            steps = [factor * (count - 1) for factor, count in zip(row, dims, strict=False)]
            low = row[-1] + sum(min(step, 0) for step in steps)
            high = row[-1] + sum(max(step, 0) for step in steps)
            if low < 0 or high >= size:
                self._refuse(
                    f"an access map reaches {low} .. {high} of axis {axis} of {access.param!r}, whose size is {size}"
                )
        strides = [sum(row[d] * s for row, s in zip(rows, place.strides, strict=True)) for d in range(len(dims))]
        offset = place.offset + sum(row[-1] * s for row, s in zip(rows, place.strides, strict=True))
        return place, list(zip(strides, dims, strict=True)), offset

    def _output(self, step: Any, reduce: Sequence[int], reads: list[Any], result: str) -> None:
        place, pairs, offset = self._access(step.output, step.dims)
        if any(row[dim] for dim in reduce for row in step.output.map):
            self._refuse(f"its output {place.base!r} depends on a dimension that it reduces, {list(reduce)}")
        if not injective([pair for dim, pair in enumerate(pairs) if dim not in reduce]):
            self._refuse(f"it writes elements of {place.base!r} more than once")
        if place.dtype != result and not (result == "float" and place.dtype in _FLOATS):
            self._refuse(f"it gives {result}, its output {place.base!r} is {place.dtype}")
        region = Region.of(offset, pairs)
        for other, other_pairs, other_offset in reads:
            same = isinstance(step, sch.Vector) and other_offset == offset and other_pairs == pairs
            source = Region.of(other_offset, other_pairs)
            if other.base == place.base and not same and self._meet(region, source):
                self._refuse(f"it reads elements of {place.base!r} that it writes at other points")
        self._write(place, region, "write")

    def _meet(self, a: Region, b: Region) -> bool:
        return overlap(a.dims, b.dims, b.offset - a.offset) is not False

    def _result(self, step: Any, inputs: list[_Place]) -> str:
        """The dtype of what is written; "float" where it is rounded to the output's own."""
        if isinstance(step, sch.Product):
            odd = [place.base for place in inputs if place.dtype not in _FLOATS]
            if odd:
                self._refuse(f"a product takes floats, {odd[0]!r} is not")
            return "float"
        result = VectorProgram(step, [place.dtype for place in inputs], self).result()
        if isinstance(step, sch.Vector):
            return result
        if step.combine not in _COMBINE or result not in _FLOATS:
            self._refuse(f"it combines {result} by {step.combine!r}, it must be floats by one of {list(_COMBINE)}")
        return "float"

    # -- what ranks do together

    def _collective(self, step: sch.Collective) -> None:
        """What comes of it has the dtype and, but for axes that are split or joined, the shape of what goes in."""
        size = ranks_along(self._grid, step.axes)
        if size is None:
            self._refuse(f"it goes along axes {list(step.axes)} of the grid {list(self._grid)} of ranks")
        name, made, split, joined = _sides(step)
        source, result = self._place(name), self._place(made)
        if isinstance(step, sch.AllReduce | sch.ReduceScatter) and source.dtype not in _FLOATS:
            self._refuse(f"it sums {name!r}, which is {source.dtype}")
        shape = list(source.shape)
        for axis, does in ((split, "splits"), (joined, "joins")):
            if axis is not None and not 0 <= axis < len(shape):
                self._refuse(f"it {does} {name!r} of shape {list(source.shape)} along axis {axis}")
        if split is not None and (shape[split] % size or split == joined):
            self._refuse(f"it splits {name!r} of shape {list(source.shape)} along axis {split} into {size} parts")
        if split is not None:
            shape[split] //= size
        if joined is not None:
            shape[joined] *= size
        if (result.dtype, list(result.shape)) != (source.dtype, shape):
            self._refuse(
                f"of {size} parts of {source.dtype} {list(source.shape)} it makes {result.dtype} {list(result.shape)}"
            )
        if not injective(view_pairs(result)):
            self._refuse(f"it writes elements of {result.base!r} more than once")
        if result.base == source.base and self._meet(result.region(), source.region()):
            self._refuse(f"what it takes and what it makes share elements of {result.base!r}")
        self._read(source, source.region())
        self._write(result, result.region(), "write")

    # -- asked by vector programs

    def load(self, instr: sch.Instr, indices: Sequence[Integer | None]) -> None:
        """Checks a load: its indices, where their range is known, and that what it reads is there."""
        place = self._place(str(instr.args[0]))
        if len(indices) != len(place.shape) or instr.type != place.dtype:
            self._refuse(
                f"load {instr.name!r} gives {instr.type} from {len(indices)} indices, {place.base!r} is "
                f"{place.dtype} {list(place.shape)}"
            )
        for axis, (index, size) in enumerate(zip(indices, place.shape, strict=True)):
            if index is None:
                self._refuse(f"load {instr.name!r} takes a float as index of axis {axis}")
            if index.low >= 0 and index.high < size:
                continue
            if index.exact or index.low >= size or index.high < 0:
                self._refuse(
                    f"load {instr.name!r} reaches {index.low} .. {index.high} of axis {axis} of {place.base!r}, whose "
                    f"size is {size}"
                )
            self._data.append(f"{self._where}: load {instr.name!r}, axis {axis} of {place.base!r}")
        self._read(place, place.region())

    def scalar(self, name: str) -> Range:
        """The range of a scalar of the body."""
        self._scalar(name)
        return self._scalars.get(name, ANY)

    def fail(self, reason: str) -> NoReturn:
        self._refuse(reason)


def _spelled(dtype: str, dims: Sequence[str]) -> str:
    """A pattern for a reader."""
    encoded = f"i8 [{', '.join(dims)} + 4]"
    words = {"f": "float", "row": "float", "any": "float or i8"}
    plain = f"{words.get(dtype, dtype)} [{', '.join(dims)}]"
    return {"encoded": encoded, "row": f"{plain} or {encoded}"}.get(dtype, plain)


def _sides(step: sch.Collective) -> tuple[str, str, int | None, int | None]:
    """What a collective takes and what it makes, and the axes of which it takes a part and along which it joins."""
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
    """Raises InputError naming the body and the step where it is not right.

    Args:
        scalars: the range of each scalar of the body, where a stage fires it; None: any value.
        grid: the ranks of the program (`Program.grid`).
    """
    return _BodyProof(body, limits, scalars or {}, grid).prove()
