"""What an operation of the algorithm reads and writes, declared once.

An operation is a record (`Op`) whose fields say in their annotations what they are: operands with their shapes and
modes, scalars with their ranges, attributes. Everything that must know is derived from it: the class of the `kv`
dialect, the step of a schedule and its file form, how one becomes the other, what the validator checks, and how many
bytes move.

Shapes are patterns: ``"B Hkv R D:row"`` has a size per dimension, each a number or a letter that stands for the same
size in all operands of the operation, then the element type: ``f`` any float (the same one everywhere in an operation
of the dialect), ``f32``, ``i64``, ``i1``, ``encoded`` (rows of `sscc.ir.kv_rows`, whose last size is the width of the
numbers), or ``row``: floats, or encoded where the cache is.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal

Sizes = Mapping[str, int]
"""The sizes of an operation's dimensions by their letters, and the values of its scalars and whole-numbered attributes
by their names. The entry `valid` is the number of cache rows that hold a token."""

Pattern = tuple[str, tuple[str, ...]]
"""Element type, and a size per dimension."""

Count = Callable[[Sizes], int]
Mode = Literal["read", "write", "part", "update"]


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
        fetched: whether the operation fetches the rows that it needs from memory by itself, as it goes.
        padded: whether rows of a chunk are undefined where they are behind the prompt's end; nothing depends on them.
        optional: whether a step may go without it ("").
        forms: other patterns that a step may have instead.
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
    fetched: bool = False
    padded: bool = False
    optional: bool = False
    forms: tuple[str, ...] = ()
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
        default: its value where an operation of the dialect does not say; None where each must.
    """

    geometry: str = ""
    default: int | None = None


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
    """What `spec_of` finds in the annotations of an operation."""

    record: type[Op]
    operands: Mapping[str, Operand]
    numbers: Mapping[str, Number]
    attributes: Mapping[str, Attribute]

    @property
    def name(self) -> str:
        return f"kv.{self.record.op}"

    @functools.cached_property
    def inputs(self) -> tuple[str, ...]:
        """Operands of the dialect's operation, in order."""
        others = {*self.only_results, *self.attributes}
        return self._ordered([name for name in self.fields if name not in others])

    @functools.cached_property
    def only_results(self) -> tuple[str, ...]:
        """Operands of a step that are results of the dialect's operation, and not operands of it too."""
        return tuple(n for n, o in self.operands.items() if o.mode in ("write", "part") and not o.updated)

    @functools.cached_property
    def results(self) -> tuple[str, ...]:
        """Results of the dialect's operation, in order: what it makes, then the operands that it updates."""
        updated = [operand.updated for operand in self.operands.values() if operand.updated]
        return self._ordered([*self.only_results, *updated])

    def patterns(self, ranks: Sequence[int] = ()) -> dict[str, str]:
        """The pattern of every operand and then every result of the dialect's operation.

        Args:
            ranks: the ranks of the operands at hand, which tell the forms of an operand that has several apart. Where
                an operand has the form without slots, the other operands are of one slot.
        """
        patterns = dict.fromkeys(self.numbers, ":index")
        for name, operand in self.operands.items():
            patterns[name] = patterns[operand.updated] = operand.pattern
        for name, rank in zip(self.inputs, ranks, strict=False):
            forms = self.operands[name].forms if name in self.operands else ()
            form = next((form for form in forms if len(form.split()) == rank), None)
            if form is not None:
                patterns = {key: re.sub(r"^B ", "1 ", pattern) for key, pattern in patterns.items()} | {name: form}
        return {name: patterns[name] for name in (*self.inputs, *self.results)}

    def step_patterns(self, ranks: Mapping[str, int]) -> dict[str, Pattern]:
        """Element type and letters of the operands of a step.

        Args:
            ranks: by name, of those that the step has.
        """
        patterns = self.patterns([ranks.get(name, 0) for name in self.inputs])
        operand_patterns = {}
        for name, operand in ((name, self.operands[name]) for name in ranks):
            dims, _, element = patterns[name].partition(":")
            letters = tuple(dims.split())
            operand_patterns[name] = (element, letters[:-1] if operand.flat else letters)
        return operand_patterns

    @property
    def own_attributes(self) -> tuple[str, ...]:
        """Attributes that the dialect's operation must have by itself, because the geometry does not."""
        own = {name: attribute for name, attribute in self.attributes.items() if not attribute.geometry}
        return tuple(name for name, attribute in own.items() if attribute.default is None)

    def settings(self, step: Op) -> dict[str, int]:
        """The values of a step's whole-numbered attributes."""
        return {name: getattr(step, name) for name in self.attributes if self.kind(name) is int}

    def kind(self, name: str) -> Any:
        """The Python type of a field."""
        return typing.get_type_hints(self.record)[name]

    @functools.cached_property
    def ties(self) -> Mapping[int, int]:
        """Which results are which operands, updated in place."""
        pairs = {operand.updated: name for name, operand in self.operands.items() if operand.updated}
        return {self.results.index(result): self.inputs.index(name) for result, name in pairs.items()}

    @functools.cached_property
    def fetched(self) -> tuple[int, ...]:
        """Operands that it fetches by itself."""
        return tuple(i for i, name in enumerate(self.inputs) if name in self.operands and self.operands[name].fetched)

    @property
    def fields(self) -> tuple[str, ...]:
        """Operands, scalars and attributes in the order in which they are declared."""
        return tuple(_annotations(self.record))

    def _ordered(self, names: list[str]) -> tuple[str, ...]:
        order = self.record.order
        return tuple(sorted(names, key=order.index)) if order else tuple(names)


def _annotations(record: type[Op]) -> dict[str, Any]:
    hints = typing.get_type_hints(record, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if typing.get_origin(hint) is typing.Annotated}


_KNOWN: dict[type[Op], OpSpec] = {}


def spec_of(record: type[Op]) -> OpSpec:
    """The specification of an operation, read once."""
    if record not in _KNOWN:
        annotations = _annotations(record)

        def of(kind: type) -> dict[str, Any]:
            return {name: item for name, item in annotations.items() if isinstance(item, kind)}

        _KNOWN[record] = OpSpec(record, of(Operand), of(Number), of(Attribute))
    return _KNOWN[record]
