"""Typed mutations of a schedule's JSON: one field, item or record becomes another one of its kind.

Every place of the tree belongs to a group, the kind of record and the field that it stands in ("Port.lag",
"View.strides", "Vector.inputs"). A group is chosen first and then a place in it, so that rare fields are changed as
often as those of which there are thousands.
"""

from __future__ import annotations

import random
import typing
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args

from sscc.ir import operations
from sscc.ir import schedule as sch
from sscc.ir.choices import Tier
from sscc.runtime.backends.cpu.plan.plan import OPS

Json = Any
Path = tuple[str | int, ...]

BORDERS = (0, 1, -1, 2, 7, 64, 2**31 - 1, 2**31, 2**32, 2**45, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64)
FLOATS = (0.0, -1.0, 1e-30, 1e30, float("inf"), float("nan"), 0.5)
OPERATIONS = (
    "addf subf mulf divf negf maximumf minimumf exp rsqrt tanh sqrt addi subi muli divsi remsi floordivsi maxsi minsi "
    "select cmpf_olt cmpf_oge cmpi_slt cmpi_eq cmpi_sge index load const index_cast sitofp truncf extf trunci extsi"
).split()
WORDS: dict[str, Sequence[str]] = {
    "Scalar.op": OPS,
    "Instr.op": OPERATIONS,
    "Instr.type": ("f32", "bf16", "i64", "i32", "i8", "i1", "index"),
    "Reduction.combine": ("addf", "mulf", "maximumf", "minimumf"),
    "Tensor.role": get_args(sch.Role),
    "Stage.when": get_args(sch.When),
    **{f"{record}.dtype": get_args(sch.Dtype) for record in ("Tensor", "Param", "Local", "Buffer")},
    **{f"{record}.tier": get_args(Tier) for record in ("Tensor", "Buffer")},
    "Param.access": get_args(sch.ParamAccess),
    "Pool.mode": ("avg", "max"),
}


@dataclass(frozen=True)
class JsonPlace:
    path: Path
    group: str


@dataclass(frozen=True)
class Change:
    """Description of a mutation."""

    path: Path
    old: Json
    new: Json

    def __str__(self) -> str:
        where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in self.path).lstrip(".")
        return f"{where}: {str(self.old)[:120]} -> {str(self.new)[:120]}"


class Mutator:
    """Mutations of one schedule, given as the data of its JSON.

    Args:
        data: it is not changed, and the results share parts of it.
    """

    def __init__(self, data: dict[str, Json]) -> None:
        self.data = data
        self._groups: dict[str, list[JsonPlace]] = defaultdict(list)
        self._values: dict[str, list[Json]] = defaultdict(list)
        for place, value in places(data):
            self._groups[place.group].append(place)
            values = self._values[place.group]
            if len(values) < 200 and value not in values:
                values.append(value)
        self._names = sorted({v for values in self._values.values() for v in values if isinstance(v, str)})
        self._order = sorted(self._groups)

    def mutated(self, rng: random.Random) -> tuple[dict[str, Json], list[Change]]:
        """The data after one to three changes, and these."""
        data, changes = self.data, list[Change]()
        count = rng.choice((1, 1, 1, 2, 2, 3))
        for _ in range(20):
            if len(changes) == count:
                break
            place = rng.choice(self._groups[rng.choice(self._order)])
            try:
                old = at(data, place.path)
            except (KeyError, IndexError, TypeError):
                continue  # an earlier change took the place away
            new = self._another(old, place.group, rng)
            changed = replaced(data, place.path, new)
            if not _same(old, new) and changed != self.data:  # which a change that undoes another one gives
                changes.append(Change(place.path, old, new))
                data = changed
        return data, changes

    def _another(self, old: Json, group: str, rng: random.Random) -> Json:
        if isinstance(old, list):
            return self._list(old, group, rng)
        if rng.random() < 0.4:
            return rng.choice(self._values[group])
        if isinstance(old, dict):
            return rng.choice(self._values[group])
        if isinstance(old, str):
            return rng.choice(WORDS[group]) if group in WORDS and rng.random() < 0.9 else rng.choice(self._names)
        if isinstance(old, float):
            return rng.choice((*FLOATS, -old, old * 2))
        return rng.choice((_number(old, rng), _number(old, rng), rng.choice(BORDERS)))

    def _list(self, old: list[Json], group: str, rng: random.Random) -> list[Json]:
        actions: list[Callable[[], list[Json]]] = [lambda: list(rng.choice(self._values[group]))]
        items = self._values.get(group + "[]", [])
        where = rng.randrange(len(old) + 1)
        if items:
            actions.append(lambda: [*old[:where], rng.choice(items), *old[where:]])
        if old:
            one, two = rng.randrange(len(old)), rng.randrange(len(old))
            actions += [
                lambda: [*old[:one], *old[one + 1 :]],
                lambda: [*old[:where], old[one], *old[where:]],
                lambda: [old[two] if i == one else old[one] if i == two else item for i, item in enumerate(old)],
                lambda: [*old[:one], *old[one + 1 : where], old[one], *old[max(where, one + 1) :]],
            ]
        return rng.choice(actions)()


def _number(old: int, rng: random.Random) -> int:
    steps = (1, -1, 4, -4, 16, 64, -64)
    return rng.choice((*(old + step for step in steps), -old, old * 2, old * 4, old // 2))


def _same(a: Json, b: Json) -> bool:
    return type(a) is type(b) and bool(a == b)


# ------------------------------------------------------------------------------------------------- trees


def at(data: Json, path: Path) -> Json:
    for key in path:
        data = data[key]
    return data


def replaced(data: Json, path: Path, value: Json) -> Json:
    """The tree with another value at a place; what is not on the way to it is shared."""
    if not path:
        return value
    copy: Json = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = replaced(data[path[0]], path[1:], value)
    return copy


def places(data: dict[str, Json]) -> list[tuple[JsonPlace, Json]]:
    """Return every place of a schedule's tree with its value, except the root."""
    places: list[tuple[JsonPlace, Json]] = []
    _walk(data, (), "Program", places)
    return places


def _walk(data: Json, path: Path, group: str, places: list[tuple[JsonPlace, Json]]) -> None:
    if path:
        places.append((JsonPlace(path, group), data))
    if isinstance(data, dict):
        record = _KINDS.get(data.get("kind", ""), group.removesuffix("[]"))
        record = _RECORDS.get(record, record)
        for key, value in data.items():
            if key not in ("kind", "location"):
                _walk(value, (*path, key), f"{record}.{key}", places)
    elif isinstance(data, list):
        for i, item in enumerate(data):
            _walk(item, (*path, i), f"{group}[]", places)


def _record_of(hint: Any) -> str | None:
    """The name of the record that a field holds, alone or in a list."""
    for part in (hint, *get_args(hint)):
        if isinstance(part, type) and is_dataclass(part):
            return part.__name__
    return None


_CLASSES = [c for m in (sch, operations) for c in vars(m).values() if isinstance(c, type) and is_dataclass(c)]
_KINDS = {c.kind: c.__name__ for c in _CLASSES if getattr(c, "kind", "")}
_RECORDS = {
    f"{c.__name__}.{f.name}": record
    for c in _CLASSES
    for f in fields(c)
    if (record := _record_of(typing.get_type_hints(c)[f.name])) is not None
}
