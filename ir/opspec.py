"""What an operation of the algorithm reads and writes, declared once.

An operation is a record (`Op`) whose fields say in their annotations what they are: operands with their shapes and
modes, scalars with their ranges, attributes. Everything that must know is derived from it: the class of the `kv`
dialect, the step of a schedule and its file form, how one becomes the other, what the validator checks, and how many
bytes move.

Shapes are patterns: ``"B Hkv R D:row"`` has a size per dimension, each a number or a letter that stands for the same
size in all operands of the operation, then the element type: ``f`` any float (the same one everywhere in an operation
of the dialect), ``f32``, ``bf16``, ``i64``, ``i8``, ``i1``, ``encoded`` (rows of `sscc.ir.kv_rows`, whose last size is
the width of the numbers), ``row``: floats, or encoded where the cache is, ``prompt``: floats, or encoded where a
prompt's rows are while it is prefilled (`Geometry.encodes_prompts`), ``landmark``: i8, or floats where landmarks are
keys, or ``any``: floats or i8, whatever they stand for.

An operation may have any number of a group of operands (`Group`), behind its others. Its specification is made for the
members at hand: an operand ``key`` of member 0 of ``segments`` is ``segments[0].key`` in it, and of its patterns'
letters those that each member has for itself bear its number.
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
"""Sizes by letter, and the values of the operation's scalars and whole-numbered attributes by name; `valid`: rows that
hold a token, of all that attention is over; `live`: positions of a slot, the current one included, where rows of all of
them are kept (`T`). For an operand of a group also `before`: rows in front of its member's."""

Pattern = tuple[str, tuple[str, ...]]
"""Element type, and a size per dimension."""

Count = Callable[[Sizes], int]
Mode = Literal["read", "write", "part", "update"]
Members = tuple[tuple[str, ...], ...]
"""Of each member of a group the names of the operands that it has."""


@dataclass(frozen=True)
class Operand:
    """A tensor that an operation reads or writes.

    Attributes:
        pattern: sizes and element type.
        mode: "read"; "write": every element; "part": some, the others are left undefined; "update": some, the
            others keep their bytes.
        updated: the name of the operation's result that is this operand's new value; "" where it has none.
        along: the dimension of which only a part moves, where not all of it does.
        reads, writes: how many indices of `along` are read and written in one firing.
        by: the operand whose contents decide which rows of this one are touched; "" where the operation's scalars do.
        copy_of: an operand that is updated, of which this one is the rows as they were: the same place, or a copy.
        value_of: the operand of keys of which these are the values. An operation has the values of all its keys, or
            none: then the first numbers of a key are its value (latent rows).
        fetched: whether the operation fetches the rows that it needs from memory by itself, as it goes.
        padded: whether rows of a chunk are undefined where they are behind the prompt's end; nothing depends on them.
        optional: whether a step may go without it ("", or None where that is the field's default).
        omissible: whether an operation of the dialect may too; it then has no result for it either.
        flat: whether a step has it without the last dimension, which is 1.
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
        """The letters of an operand of the dialect."""
        return tuple(self.pattern.partition(":")[0].split())

    @property
    def step_dims(self) -> tuple[str, ...]:
        """The letters of a step's operand."""
        return self.dims[:-1] if self.flat else self.dims

    @property
    def element(self) -> str:
        return self.pattern.partition(":")[2]

    def moved(self, sizes: Sizes, shape: tuple[int, ...]) -> tuple[int, int]:
        """How many elements one firing reads and how many it writes, of a step's operand that is stored in `shape`. An
        element that is read twice counts twice."""
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
        low, high: its range; None where it may have any value.
        most: the value with which the operation moves the most bytes.
    """

    low: Count | None
    high: Count | None
    most: Count


@dataclass(frozen=True)
class Attribute:
    """A number or word that the operation itself has.

    Attributes:
        geometry: the field of the cache's geometry that it is; "" where it is the operation's own.
        optional: whether an operation may go without it.
    """

    geometry: str = ""
    optional: bool = False


def landmark_element(bits: int) -> str:
    """The element type of landmarks of so many bits."""
    return "f" if bits == PLAIN_BITS else "i8"


class Group:
    """Base of what an operation has any number of: operands that belong together. `R` counts the rows of a member.

    Class attributes:
        own: letters that stand for another size in each member.
        alike: by the name of an optional operand the letters that are another one where a member has none of it.
        in_place: True if a member's rows stand in the place of some of the cache's, and not behind them.
    """

    own: ClassVar[tuple[str, ...]] = ()
    in_place: ClassVar[bool] = False
    alike: ClassVar[Mapping[str, Mapping[str, str]]] = {}


@dataclass(frozen=True)
class Several:
    """Marks the field of an operation that holds the members of a group, as a tuple.

    Attributes:
        most: members of an operation of the dialect; a step has as many as it likes.
    """

    record: type[Group]
    most: int

    @property
    def needed(self) -> list[str]:
        """Operands that every member has."""
        return [name for name, operand in group_operands(self.record).items() if not operand.optional]

    @property
    def spelled(self) -> str:
        """The operands of a member, for a reader."""
        names = group_operands(self.record)
        return f"({', '.join(name if name in self.needed else f'perhaps {name}' for name in names)})"


@dataclass(frozen=True)
class Op:
    """Base of all operations: their docstrings define them.

    Class attributes:
        op: the name in the `kv` dialect.
        kind: the name of the step; "" where it has none, because it becomes a vector program.
        order: operands, then results, of the dialect's operation, where it is not that of the fields.
        stored: whether R counts the rows that the cache itself has, without those that are indexed.
    """

    op: ClassVar[str]
    kind: ClassVar[str] = ""
    order: ClassVar[tuple[str, ...]] = ()
    stored: ClassVar[bool] = False


@dataclass(frozen=True)
class OpSpec:
    """What `spec_of` finds in the annotations of an operation with these members of its group.

    Attributes:
        operands: those of the members too, without what the operation goes without.
        several: the field that holds members, and of what; empty where the operation has no group.
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
        """Operands of the dialect's operation, in order; those of a group's members are the last."""
        names = [name for name in self.fields if name in self.operands or name in self.numbers]
        names += [name for name in self.operands if name not in names]
        return self._ordered([name for name in names if name not in self.only_results])

    @functools.cached_property
    def only_results(self) -> tuple[str, ...]:
        """Operands of a step that are results of the dialect's operation, and not operands of it too."""
        return tuple(n for n, o in self.operands.items() if o.mode in ("write", "part") and not o.updated)

    @functools.cached_property
    def results(self) -> tuple[str, ...]:
        """Results of the dialect's operation, in order: what it makes, then the operands that it updates."""
        updated = [operand.updated for operand in self.operands.values() if operand.updated]
        return self._ordered([*self.only_results, *updated])

    @functools.cached_property
    def patterns(self) -> dict[str, str]:
        """The pattern of every operand and then every result of the dialect's operation."""
        patterns = dict.fromkeys(self.numbers, ":index")
        for name, operand in self.operands.items():
            patterns[name] = patterns[operand.updated] = operand.pattern
        return {name: patterns[name] for name in (*self.inputs, *self.results)}

    @functools.cached_property
    def step_patterns(self) -> dict[str, Pattern]:
        """Element type and letters of the operands of a step, which does not know what its cache encodes."""
        elements = {name: operand.element.replace("prompt", "row") for name, operand in self.operands.items()}
        return {name: (elements[name], operand.step_dims) for name, operand in self.operands.items()}

    def step_pattern(self, name: str, step: Op) -> Pattern:
        """That of one operand of a step, whose landmarks are what its number of bits says."""
        element, dims = self.step_patterns[name]
        return (landmark_element(self.settings(step)["bits"]) if element == "landmark" else element), dims

    def matching(self, step: Op, dtype_of: Callable[[str], str]) -> Iterator[tuple[str, str, Pattern]]:
        """A step's operands as (field, region, pattern), in the order in which shapes are matched: that of the fields,
        but last those of encoded rows whose bytes alone do not say how many numbers they are."""
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
        """The operands of values that the operation may have, by those of their keys."""
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
        """Return the operands of values that an operation lacks which has the values of some of its keys."""
        missing = self._valueless(there)
        return missing if len(missing) < sum(key in there for key in self.values_of) else []

    def _valueless(self, there: Container[str]) -> list[str]:
        return [value for key, value in self.values_of.items() if key in there and value not in there]

    def rows(self, sizes: Sizes) -> int:
        """Return how many rows attention is over: those of the cache and of members behind it."""
        behind = not any(several.record.in_place for several in self.several.values())
        return sizes.get("R", 0) + behind * sum(sizes.get(f"R{number}", 0) for number in range(len(self.members)))

    def regions(self, step: Op) -> dict[str, str]:
        """What a step names, by the operands that it has."""
        regions = {name: getattr(step, name) for name in self.operands if name in self.fields}
        for group in self.several:
            for number, member in enumerate(getattr(step, group)):
                names = group_operands(type(member))
                regions |= {f"{group}[{number}].{name}": getattr(member, name) for name in names}
        return {name: regions[name] for name, operand in self.operands.items() if regions[name] or not operand.optional}

    def step(self, values: Mapping[str, Any]) -> Op:
        """The step with these values of fields and of operands of members; what it goes without is the field's default,
        or ""."""
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
        """Attributes that the dialect's operation must have by itself, because the geometry does not."""
        return tuple(name for name, a in self.attributes.items() if not a.geometry and not a.optional)

    @property
    def optional_attributes(self) -> tuple[str, ...]:
        """Attributes that the dialect's operation may have."""
        return tuple(name for name, attribute in self.attributes.items() if attribute.optional)

    def settings(self, step: Op) -> dict[str, int]:
        """The values of a step's whole-numbered attributes, of those that it has."""
        values = {name: getattr(step, name) for name in self.attributes if self.kind(name) in (int, int | None)}
        return {name: value for name, value in values.items() if value is not None}

    def kind(self, name: str) -> Any:
        """The Python type of a field."""
        record: type = self.record
        return _hints(record)[name]

    @functools.cached_property
    def ties(self) -> Mapping[int, int]:
        """Which results are which operands, updated in place."""
        pairs = {operand.updated: name for name, operand in self.operands.items() if operand.updated}
        return {self.results.index(result): self.inputs.index(name) for result, name in pairs.items()}

    @functools.cached_property
    def fetched(self) -> tuple[int, ...]:
        """Operands that it fetches by itself."""
        return tuple(i for i, name in enumerate(self.inputs) if name in self.operands and self.operands[name].fetched)

    @functools.cached_property
    def fields(self) -> tuple[str, ...]:
        """Operands, scalars and attributes in the order in which they are declared."""
        return tuple(_annotations(self.record))

    def _ordered(self, names: list[str]) -> tuple[str, ...]:
        order = self.record.order
        return tuple(sorted(names, key=order.index)) if order else tuple(names)


_HINTS: dict[tuple[type, bool], Mapping[str, Any]] = {}


def _hints(record: type, extras: bool = False) -> Mapping[str, Any]:
    """The Python type of each field, read once: each annotation is a text that has to be compiled."""
    if (record, extras) not in _HINTS:
        _HINTS[record, extras] = typing.get_type_hints(record, include_extras=extras)
    return _HINTS[record, extras]


_ANNOTATIONS: dict[type, Mapping[str, Any]] = {}


def _annotations(record: type) -> Mapping[str, Any]:
    """What the annotations of a record's fields say that they are, read once."""
    if record not in _ANNOTATIONS:
        marked = {n: h for n, h in _hints(record, extras=True).items() if typing.get_origin(h) is typing.Annotated}
        _ANNOTATIONS[record] = {name: hint.__metadata__[0] for name, hint in marked.items()}
    return _ANNOTATIONS[record]


_KNOWN: dict[tuple[type[Op], Members, frozenset[str]], OpSpec] = {}


def spec_of(record: type[Op], members: Members = (), without: frozenset[str] = frozenset()) -> OpSpec:
    """The specification of an operation with these members of its group and without these operands, read once."""
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
    """Mark a function as the one by which an interpreter executes steps, or operations, of these records.

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
    """The specification of a step, with the members that it has."""
    record = type(step)
    (members,) = [getattr(step, group) for group in spec_of(record).several] or [()]
    present = [
        [name for name, item in group_operands(type(member)).items() if getattr(member, name) or not item.optional]
        for member in members
    ]
    return spec_of(record, tuple(map(tuple, present)))


def group_operands(record: type[Group]) -> Mapping[str, Operand]:
    """The operands of a group's members."""
    return _annotations(record)


def _member(record: type[Group], names: tuple[str, ...], number: int, name: str) -> Operand:
    """An operand of a member: as its group has it, with letters of its own."""
    operand = group_operands(record)[name]
    alike = {a: b for missing, pairs in record.alike.items() if missing not in names for a, b in pairs.items()}

    def own(letter: str) -> str:
        letter = alike.get(letter, letter)
        return f"{letter}{number}" if letter in record.own else letter

    def counted(count: Count | None) -> Count | None:
        def within(n: Sizes) -> int:
            assert count is not None
            before = n.get("R", 0) + sum(n.get(f"R{other}", 0) for other in range(number))
            return count({**n, **{letter: n[own(letter)] for letter in record.own}, "before": before})

        return None if count is None else within

    dims = " ".join(map(own, operand.dims))
    by = operand.by if operand.by in names else ""
    return replace(
        operand, pattern=f"{dims}:{operand.element}", along=own(operand.along) if operand.along else "", by=by,
        reads=counted(operand.reads),
    )  # fmt: skip
