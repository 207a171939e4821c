"""Specifications of the algorithm's operations: the operands that each reads and writes, declared once.

An operation is a record (`Op`) whose annotated fields declare its operands with shapes and access modes, its scalars
with ranges, and its attributes. Everything else is derived from it: the class of the `kv` dialect, the step of a
schedule and its file form, the lowering between the two, the validator's checks, and the bytes that move.

Shapes are patterns: ``"B Hkv R D:row"`` has one size per dimension, each a number or a letter that stands for the same
size in all operands of the operation, then the element type: ``f`` any float (the same in all operands of an operation
of the dialect), ``f32``, ``bf16``, ``i64``, ``i8``, ``i1``; ``encoded``, rows of `sscc.ir.kv_rows`, whose last size
counts the encoded numbers; ``row``, floats, or encoded if the cache is; ``prompt``, floats, or encoded if the rows of a
prompt are during prefill (`Geometry.encodes_prompts`); ``quantized_key``, i8, or floats if quantized keys are keys;
``any``, floats or i8 of any meaning.

An operation may have any number of members of a group of operands (`Group`), behind its other operands. Its
specification is made for the members it has: operand ``key`` of member 0 of ``segments`` is called ``segments[0].key``,
and the letters of its pattern that differ between members carry the member's number.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from types import FunctionType
from typing import Any, ClassVar, Literal, TypeVar

from sscc.ir.choices import PLAIN_BITS

Sizes = Mapping[str, int]
"""Sizes by letter, and the values of the operation's scalars and integer attributes by name. `valid`: rows that hold a
token, of all rows that attention covers; `live`: positions of a slot, the current one included, if the rows of all of
them are kept (`T`). For an operand of a group also `before`: rows in front of those of its member."""

Pattern = tuple[str, tuple[str, ...]]
"""Element type, and one size per dimension."""

Count = Callable[[Sizes], int]
Mode = Literal["read", "write", "part", "update"]
Members = tuple[tuple[str, ...], ...]
"""Names of the operands that each member of a group has."""


@dataclass(frozen=True)
class Operand:
    """A tensor that an operation reads or writes.

    Attributes:
        pattern: sizes and element type.
        mode: "read"; "write": every element; "part": some, the others are undefined; "update": some, the others are
            unchanged.
        updated: name of the operation's result that is this operand's new value; "" for none.
        along: the dimension of which only a part moves; "" if all of it moves.
        reads, writes: number of indices of `along` read and written in one firing.
        by: the operand whose contents select the rows of this one; "" if the operation's scalars do.
        copy_of: an updated operand whose previous rows this one is: the same place, or a copy.
        value_of: the operand of keys for which this one has the values. An operation has values for all of its keys, or
            for none: then the first numbers of a key are its value (latent rows).
        fetched: True if the operation fetches the rows that it needs from memory by itself, on demand.
        padded: True if rows of a chunk behind the prompt's end are undefined; nothing depends on them.
        optional: True if a step may omit it ("", or None if that is the field's default).
        omissible: True if an operation of the dialect may omit it, with its result.
        flat: True if a step has it without the last dimension, which is 1.
    """

    pattern: str
    mode: Mode
    updated: str = ""
    along: str = ""
    reads: Count | None = None
    writes: Count | None = None
    by: str = ""
    copy_of: str = ""
    value_of: str = ""
    fetched: bool = False
    padded: bool = False
    optional: bool = False
    omissible: bool = False
    flat: bool = False

    @property
    def dims(self) -> tuple[str, ...]:
        """Letters of an operand of the dialect."""
        return tuple(self.pattern.partition(":")[0].split())

    @property
    def step_dims(self) -> tuple[str, ...]:
        """Letters of an operand of a step."""
        return self.dims[:-1] if self.flat else self.dims

    @property
    def element(self) -> str:
        return self.pattern.partition(":")[2]

    def moved(self, sizes: Sizes, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the numbers of elements that one firing reads and writes of a step's operand that is stored in
        `shape`. An element that is read twice counts twice."""
        whole = prod(shape)
        if not self.along:
            return (whole, 0) if self.mode == "read" else (0, whole)
        size = shape[self.step_dims.index(self.along)]
        counts = ((count(sizes) if count else 0) for count in (self.reads, self.writes))
        read, written = (whole // size * count if size else 0 for count in counts)
        return read, written


@dataclass(frozen=True)
class Number:
    """A scalar operand.

    Attributes:
        low, high: range of values; None for no bound.
        most: the value with which the operation moves the most bytes.
    """

    low: Count | None
    high: Count | None
    most: Count


@dataclass(frozen=True)
class Attribute:
    """A number or word that is part of the operation.

    Attributes:
        geometry: the field of the cache's geometry that gives its value; "" for an attribute of the operation itself.
        optional: True if an operation may omit it.
    """

    geometry: str = ""
    optional: bool = False


def quantized_key_element(bits: int) -> str:
    """Return the element type of quantized keys of `bits` bits."""
    return "f" if bits == PLAIN_BITS else "i8"


class Group:
    """Base of groups of operands that belong together and of which an operation may have several. `R` counts the rows
    of a member.

    Class attributes:
        own: letters with a separate size in each member.
        alike: letters to replace in members that lack an optional operand, by the name of that operand.
        in_place: True if a member's rows replace some of the cache's rows instead of following them.
    """

    own: ClassVar[tuple[str, ...]] = ()
    in_place: ClassVar[bool] = False
    alike: ClassVar[Mapping[str, Mapping[str, str]]] = {}


@dataclass(frozen=True)
class Several:
    """Marks the field of an operation that holds the members of a group, as a tuple.

    Attributes:
        most: maximum number of members in the dialect; a step may have any number.
    """

    record: type[Group]
    most: int

    @property
    def needed(self) -> list[str]:
        """Operands that every member has."""
        return [name for name, operand in group_operands(self.record).items() if not operand.optional]

    @property
    def spelled(self) -> str:
        """Operands of a member, for messages."""
        names = group_operands(self.record)
        return f"({', '.join(name if name in self.needed else f'optional {name}' for name in names)})"


@dataclass(frozen=True)
class Op:
    """Base of all operations. Their docstrings define their semantics.

    Class attributes:
        op: name in the `kv` dialect.
        kind: name of the step; "" for an operation that is lowered to a vector program.
        order: order of operands and results in the dialect, if it is not that of the fields.
        stored: True if R counts the rows of the cache itself, without indexed ones.
    """

    op: ClassVar[str]
    kind: ClassVar[str] = ""
    order: ClassVar[tuple[str, ...]] = ()
    stored: ClassVar[bool] = False


@dataclass(frozen=True)
class OpSpec:
    """Specification of an operation with given members of its group.

    Attributes:
        operands: operands that are present, those of members included.
        several: the group of each field that holds members; empty without a group.
    """

    record: type[Op]
    operands: Mapping[str, Operand]
    numbers: Mapping[str, Number]
    attributes: Mapping[str, Attribute]
    several: Mapping[str, Several]
    members: Members

    @property
    def name(self) -> str:
        return f"kv.{self.record.op}"

    @functools.cached_property
    def inputs(self) -> tuple[str, ...]:
        """Operands of the dialect's operation, in order; those of a group's members are last."""
        names = [name for name in self.fields if name in self.operands or name in self.numbers]
        names += [name for name in self.operands if name not in names]
        return self._ordered([name for name in names if name not in self.only_results])

    @functools.cached_property
    def only_results(self) -> tuple[str, ...]:
        """Operands of a step that are results but not operands in the dialect."""
        return tuple(n for n, o in self.operands.items() if o.mode in ("write", "part") and not o.updated)

    @functools.cached_property
    def results(self) -> tuple[str, ...]:
        """Results of the dialect's operation, in order: the new tensors, then the updated operands."""
        updated = [operand.updated for operand in self.operands.values() if operand.updated]
        return self._ordered([*self.only_results, *updated])

    @functools.cached_property
    def patterns(self) -> dict[str, str]:
        """Pattern of every operand and then every result of the dialect's operation."""
        patterns = dict.fromkeys(self.numbers, ":index")
        for name, operand in self.operands.items():
            patterns[name] = patterns[operand.updated] = operand.pattern
        return {name: patterns[name] for name in (*self.inputs, *self.results)}

    @functools.cached_property
    def step_patterns(self) -> dict[str, Pattern]:
        """Element type and letters of a step's operands. A step does not know the encoding of its cache."""
        elements = {name: operand.element.replace("prompt", "row") for name, operand in self.operands.items()}
        return {name: (elements[name], operand.step_dims) for name, operand in self.operands.items()}

    def step_pattern(self, name: str, step: Op) -> Pattern:
        """Return the pattern of one operand of a step, with the element type that its quantized keys have."""
        element, dims = self.step_patterns[name]
        return (quantized_key_element(self.settings(step)["bits"]) if element == "quantized_key" else element), dims

    def matching(self, step: Op, dtype_of: Callable[[str], str]) -> Iterator[tuple[str, str, Pattern]]:
        """Return a step's operands as (field, region, pattern), in the order in which shapes are matched: the order of
        fields, but encoded rows whose bytes do not determine their number of elements come last."""
        known: set[str] = set()
        late = []
        for field, region in self.regions(step).items():
            element, dims = pattern = self.step_pattern(field, step)
            if element in ("encoded", "row") and dtype_of(region) == "i8" and dims[-1] not in known:
                late.append((field, region, pattern))
            else:
                yield field, region, pattern
                known.update(dims)
        yield from late

    @functools.cached_property
    def values_of(self) -> Mapping[str, str]:
        """Operands of values that the operation may have, by the operand of their keys."""
        own = {o.value_of: n for n, o in _annotations(self.record).items() if isinstance(o, Operand) and o.value_of}
        for group, several in self.several.items():
            for name, operand in group_operands(several.record).items():
                if operand.value_of:
                    prefixes = (f"{group}[{number}]." for number in range(len(self.members)))
                    own |= {f"{prefix}{operand.value_of}": f"{prefix}{name}" for prefix in prefixes}
        return own

    def has_values(self, there: Container[str]) -> bool:
        """Return True if an operation with these operands has the values of all its keys."""
        return not self._valueless(there)

    def missing_values(self, there: Container[str]) -> list[str]:
        """Return the operands of values that are missing from an operation that has values for some of its keys."""
        missing = self._valueless(there)
        return missing if len(missing) < sum(key in there for key in self.values_of) else []

    def _valueless(self, there: Container[str]) -> list[str]:
        return [value for key, value in self.values_of.items() if key in there and value not in there]

    def rows(self, sizes: Sizes) -> int:
        """Return the number of rows that attention covers: those of the cache and of the members behind it."""
        behind = not any(several.record.in_place for several in self.several.values())
        return sizes.get("R", 0) + behind * sum(sizes.get(f"R{number}", 0) for number in range(len(self.members)))

    def regions(self, step: Op) -> dict[str, str]:
        """Return the regions that a step names, by operand."""
        regions = {name: getattr(step, name) for name in self.operands if name in self.fields}
        for group in self.several:
            for number, member in enumerate(getattr(step, group)):
                names = group_operands(type(member))
                regions |= {f"{group}[{number}].{name}": getattr(member, name) for name in names}
        return {name: regions[name] for name, operand in self.operands.items() if regions[name] or not operand.optional}

    def step(self, values: Mapping[str, Any]) -> Op:
        """Return the step with these values of fields and of members' operands. Omitted values become the field's
        default, or ""."""
        missing = spec_of(self.record).operands.keys() - self.operands.keys()
        fields: dict[str, Any] = {name: getattr(self.record, name, "") for name in missing}
        fields |= {name: value for name, value in values.items() if name in self.fields}
        for group, several in self.several.items():
            fields[group] = tuple(
                several.record(**{n: values.get(f"{group}[{number}].{n}", "") for n in group_operands(several.record)})
                for number in range(len(self.members))
            )
        return self.record(**fields)

    @property
    def own_attributes(self) -> tuple[str, ...]:
        """Attributes that the dialect's operation must have itself, because they are not part of the geometry."""
        return tuple(name for name, a in self.attributes.items() if not a.geometry and not a.optional)

    @property
    def optional_attributes(self) -> tuple[str, ...]:
        """Attributes that the dialect's operation may have."""
        return tuple(name for name, attribute in self.attributes.items() if attribute.optional)

    def settings(self, step: Op) -> dict[str, int]:
        """Return the values of a step's integer attributes, as far as it has them."""
        values = {name: getattr(step, name) for name in self.attributes if self.kind(name) in (int, int | None)}
        return {name: value for name, value in values.items() if value is not None}

    def kind(self, name: str) -> Any:
        """Return the Python type of a field."""
        record: type = self.record
        return _hints(record)[name]

    @functools.cached_property
    def ties(self) -> Mapping[int, int]:
        """Operand index of each result that updates an operand in place, by result index."""
        pairs = {operand.updated: name for name, operand in self.operands.items() if operand.updated}
        return {self.results.index(result): self.inputs.index(name) for result, name in pairs.items()}

    @functools.cached_property
    def fetched(self) -> tuple[int, ...]:
        """Indices of operands whose rows the operation fetches by itself."""
        return tuple(i for i, name in enumerate(self.inputs) if name in self.operands and self.operands[name].fetched)

    @functools.cached_property
    def fields(self) -> tuple[str, ...]:
        """Operands, scalars and attributes, in order of declaration."""
        return tuple(_annotations(self.record))

    def _ordered(self, names: list[str]) -> tuple[str, ...]:
        order = self.record.order
        return tuple(sorted(names, key=order.index)) if order else tuple(names)


_HINTS: dict[tuple[type, bool], Mapping[str, Any]] = {}


def _hints(record: type, extras: bool = False) -> Mapping[str, Any]:
    """Return the Python type of each field. Cached, because evaluating annotations compiles each of them."""
    if (record, extras) not in _HINTS:
        _HINTS[record, extras] = typing.get_type_hints(record, include_extras=extras)
    return _HINTS[record, extras]


_ANNOTATIONS: dict[type, Mapping[str, Any]] = {}


def _annotations(record: type) -> Mapping[str, Any]:
    """Return the declarations in the annotations of a record's fields. Cached."""
    if record not in _ANNOTATIONS:
        marked = {n: h for n, h in _hints(record, extras=True).items() if typing.get_origin(h) is typing.Annotated}
        _ANNOTATIONS[record] = {name: hint.__metadata__[0] for name, hint in marked.items()}
    return _ANNOTATIONS[record]


_KNOWN: dict[tuple[type[Op], Members, frozenset[str]], OpSpec] = {}


def spec_of(record: type[Op], members: Members = (), without: frozenset[str] = frozenset()) -> OpSpec:
    """Return the specification of an operation with these members of its group and without these operands. Cached."""
    if (record, members, without) not in _KNOWN:
        annotations = _annotations(record)

        def of(kind: type) -> dict[str, Any]:
            return {name: item for name, item in annotations.items() if isinstance(item, kind)}

        operands, several = of(Operand), of(Several)
        operands = {name: operand for name, operand in operands.items() if name not in without}
        for group, item in several.items():
            for number, names in enumerate(members):
                operands |= {f"{group}[{number}].{name}": _member(item.record, names, number, name) for name in names}
        _KNOWN[record, members, without] = OpSpec(record, operands, of(Number), of(Attribute), several, members)
    return _KNOWN[record, members, without]


Marked = TypeVar("Marked", bound=Callable[..., Any])


def executes(*records: type) -> Callable[[Marked], Marked]:
    """Mark a function as an interpreter's implementation of the steps, or operations, of these records.

    `functions_of` finds the marked functions of an interpreter's modules.
    """

    def mark(function: Marked) -> Marked:
        vars(function)["executes"] = records
        return function

    return mark


def functions_of(*namespaces: Mapping[str, Any]) -> dict[Any, Callable[..., Any]]:
    """Return the functions that `executes` marked in the namespaces of modules, by record."""
    found = (item for namespace in namespaces for item in namespace.values() if isinstance(item, FunctionType))
    return {record: function for function in found for record in vars(function).get("executes", ())}


def spec_of_step(step: Op) -> OpSpec:
    """Return the specification of a step, with the members that it has."""
    record = type(step)
    (members,) = [getattr(step, group) for group in spec_of(record).several] or [()]
    present = [
        [name for name, item in group_operands(type(member)).items() if getattr(member, name) or not item.optional]
        for member in members
    ]
    return spec_of(record, tuple(map(tuple, present)))


def group_operands(record: type[Group]) -> Mapping[str, Operand]:
    """Return the operands of a group's members."""
    return _annotations(record)


def _member(record: type[Group], names: tuple[str, ...], number: int, name: str) -> Operand:
    """Return an operand of a member: the group's operand with the member's own letters."""
    operand = group_operands(record)[name]
    alike = {a: b for missing, pairs in record.alike.items() if missing not in names for a, b in pairs.items()}

    def own(letter: str) -> str:
        letter = alike.get(letter, letter)
        return f"{letter}{number}" if letter in record.own else letter

    def counted(count: Count | None) -> Count | None:
        def within(n: Sizes) -> int:
            assert count is not None
            before = n.get("R", 0) + sum(n.get(f"R{other}", 0) for other in range(number))
            letters = {letter: n[own(letter)] for letter in record.own if own(letter) in n}
            return count({**n, **letters, "before": before})

        return None if count is None else within

    dims = " ".join(map(own, operand.dims))
    by = operand.by if operand.by in names else ""
    return replace(
        operand, pattern=f"{dims}:{operand.element}", along=own(operand.along) if operand.along else "", by=by,
        reads=counted(operand.reads),
    )  # fmt: skip
