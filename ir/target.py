"""Descriptions of the hardware that a program is compiled for: every figure of the model, as data with its origin.

`rdu` names the default description, `rdu:NAME` another shipped one, and `rdu:FILE` a user's file in the same form. A
description may name a shipped one as its `base` and inherits all figures that it does not set, so that the facts of a
socket stand in one file for nodes of any number of sockets. No other code contains hardware figures. The CPU that
executes schedules is not described here: it is a backend (`sscc.runtime.backends`) with its own figures.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

from sscc.ir.choices import TIERS, Tier
from sscc.ir.errors import ErrorKind, InputError, UsageError, quoted
from sscc.ir.file_form import decode, shown
from sscc.ir.files import check_name
from sscc.ir.suggestions import did_you_mean


class TargetErrors(ErrorKind):
    """Unknown targets, and invalid descriptions of targets."""

    NO_TIER = InputError, "the target {target} has no memory level {tier}, which the program uses"
    NO_SOCKETS = UsageError, "a machine cannot have {sockets} sockets: give at least 1"
    NO_LINKS_FOR_SOCKETS = UsageError, "{target} has no links, which {sockets} sockets need: describe one under `links`"
    NO_LINKS_FOR_RANKS = UsageError, "{target} has no links, which {ranks} ranks need: describe one under `links`"
    SOCKETS_NOT_SHARED = UsageError, "the {sockets} sockets of {target} cannot be shared equally by {ranks} ranks"
    UNKNOWN = UsageError, "--target must be one of {names} or {family}:FILE, got {target!r}{similar_hint}"
    UNREADABLE = (
        InputError,
        "the target description {name} cannot be read: {cause}; sscc ships with {shipped}{similar_hint}",
    )
    NOT_JSON = InputError, "{where} is not JSON: {cause}"
    FORMAT_VERSION = (
        InputError,
        "{where} has format {version!r}; this sscc reads {known}. `sscc targets --json` prints a description to start "
        "from. Programs that were compiled for another format must be recompiled",
    )
    UNKNOWN_BASE = InputError, "the base of {where} must be one of {shipped}, got {base!r}"
    FIGURE = InputError, "{where}: {figure} must be a positive number up to {most:.0e}, got {value!r}"
    LEVELS = InputError, "{where}: its levels must be the first two or more of {known}, got {levels}"
    LINK_NAME = InputError, "{where}: {link!r} is not a name for a link; it must be a word of letters, digits and _"
    NAME_TWICE = InputError, "{where}: the names {names} are not unique"
    PMU_BYTES = InputError, "{where}: {level}.capacity is not a multiple of pmu_bytes"
    PARTIAL_SOCKETS = InputError, "{where}: sockets must be a whole number, got {sockets}"
    UNKNOWN_FIGURE = UsageError, "the target {target} has no figure {name!r}; it has: {known}{similar_hint}"
    NO_LINKS = InputError, "{where} has {sockets:g} sockets, but no links between them"


DEFAULT = "sn40l"
FAMILY = "rdu"
FORMAT_VERSION = 2
LARGEST = 1e30  # limit of every figure, in its unit; products of several stay far below the largest float


@dataclass(frozen=True)
class Figure:
    """One figure of a target.

    Attributes:
        origin: "published"; "assumed" if no source gives it; "fitted" to a published result; "chosen" by the user.
    """

    value: int | float
    unit: str
    origin: Literal["published", "assumed", "fitted", "chosen"]
    note: str

    def chosen(self, value: float) -> Figure:
        """Return the figure with another value, whose origin is "chosen"."""
        whole = isinstance(self.value, int) and float(value).is_integer()
        return dataclasses.replace(self, value=int(value) if whole else value, origin="chosen")


@dataclass(frozen=True)
class MemoryLevel:
    """One level of memory, per socket.

    Attributes:
        name: tier in schedules (`sscc.ir.choices.Tier`).
        capacity: bytes.
        bandwidth: bytes/s.
        latency: minimum time in seconds of a firing that transfers data at this level; None if it is negligible beside
            the cost of every firing.
    """

    name: Tier
    capacity: Figure
    bandwidth: Figure
    latency: Figure | None = None

    @property
    def label(self) -> str:
        """Name in reports."""
        return self.name.upper()


@dataclass(frozen=True)
class Units:
    """Compute units, per socket.

    Attributes:
        pcus: number of compute units.
        pmu_bytes: bytes of a memory unit; the nearest memory level consists of these.
        bf16_flops, f32_flops: peak FLOP/s of dense products, by the operands' dtype.
        simd_lanes, simd_stages: elements that a PCU processes per cycle in element-wise mode, and operations on each.
        clock: Hz.
    """

    pcus: Figure
    pmu_bytes: Figure
    bf16_flops: Figure
    f32_flops: Figure
    simd_lanes: Figure
    simd_stages: Figure
    clock: Figure


@dataclass(frozen=True)
class Costs:
    """Fixed costs in seconds.

    Attributes:
        launch_seconds: one kernel launch.
        boundary_seconds: additional time of each launch, while pipelines drain and refill.
        firing_seconds: one firing of a stage.
    """

    launch_seconds: Figure
    firing_seconds: Figure
    boundary_seconds: Figure


@dataclass(frozen=True)
class SocketLink:
    """A link between sockets.

    Attributes:
        bandwidth: bytes/s.
        latency: minimum seconds of a message; None if unknown.
    """

    name: str
    bandwidth: Figure
    latency: Figure | None = None


@dataclass(frozen=True)
class Target:
    """An SN40L-like RDU: sockets that each have levels of memory, compute units, and costs.

    Attributes:
        sockets: number of sockets that work together.
        levels: memory levels, nearest first: the one on the chip, for buffers; main memory, for programs; and any
            others, for tensors that exceed main memory. They are the first ones of `TIERS`.
        links: links between sockets, shortest first; none for a single socket.
    """

    name: str
    note: str
    sockets: Figure
    levels: tuple[MemoryLevel, ...]
    units: Units
    costs: Costs
    links: tuple[SocketLink, ...] = ()

    @property
    def nearest(self) -> MemoryLevel:
        """On-chip memory."""
        return self.levels[0]

    @property
    def memories(self) -> tuple[MemoryLevel, ...]:
        """Levels of tensors: main memory, then farther ones."""
        return self.levels[1:]

    @property
    def main(self) -> MemoryLevel:
        """Main memory."""
        return self.levels[1]

    @property
    def far(self) -> tuple[MemoryLevel, ...]:
        """Levels behind main memory, nearest first; may be empty."""
        return self.levels[2:]

    @property
    def pmus(self) -> int:
        """Memory units of a socket."""
        return int(self.nearest.capacity.value // self.units.pmu_bytes.value)

    @property
    def figures(self) -> dict[str, Figure]:
        """Figures by name, in order. Those of a level or a link are prefixed with its name (`hbm.bandwidth`)."""
        parts: list[MemoryLevel | SocketLink] = [*self.levels, *self.links]
        named = {f"{part.name}.{name}": figure for part in parts for name, figure in _figures_of(part).items()}
        return {"sockets": self.sockets} | named | _figures_of(self.units) | _figures_of(self.costs)

    def level(self, tier: str) -> MemoryLevel:
        """Return the memory level of a tier. Raises InputError if the target has none."""
        for level in self.levels:
            if level.name == tier:
                return level
        raise TargetErrors.NO_TIER(target=self.name, tier=tier.upper())

    def capacity(self, tier: str) -> int:
        """Return the bytes of a level in all sockets."""
        return int(self.level(tier).capacity.value * self.sockets.value)

    def bandwidth(self, tier: str) -> float:
        """Return the bytes/s of a level in all sockets."""
        return self.level(tier).bandwidth.value * self.sockets.value

    @property
    def link_bandwidth(self) -> float:
        """Bytes/s that all sockets together send to others, each over its own shortest link."""
        return self.links[0].bandwidth.value * self.sockets.value

    @property
    def link_latency(self) -> float:
        """Minimum seconds of a message over the shortest link; 0 if unknown."""
        latency = self.links[0].latency
        return 0.0 if latency is None else latency.value

    def seconds(self, nbytes: Mapping[str, int]) -> float:
        """Return the minimum seconds in which all sockets move `nbytes` through each tier concurrently."""
        return max((moved / self.bandwidth(tier) for tier, moved in nbytes.items()), default=0.0)

    def with_sockets(self, sockets: int) -> Target:
        """Return the target with another number of sockets. Raises UsageError below 1, and for several sockets without
        links."""
        if sockets < 1:
            raise TargetErrors.NO_SOCKETS(sockets=sockets)
        if sockets > 1 and not self.links:
            raise TargetErrors.NO_LINKS_FOR_SOCKETS(target=self.name, sockets=sockets)
        return dataclasses.replace(self, sockets=self.sockets.chosen(sockets))

    def with_figures(self, values: Mapping[str, float]) -> Target:
        """Return the target with other values of some figures, by their names in `figures`; their origin is "chosen".

        Raises:
            UsageError: the target has no figure of that name.
            InputError: a value is out of range, or inconsistent with other figures.
        """
        figures = self.figures
        for name in values:
            if name not in figures:
                similar = did_you_mean(name, figures)
                raise TargetErrors.UNKNOWN_FIGURE(
                    target=self.name, name=name, known=list(figures), similar_hint=similar
                )
        chosen = {name: figures[name].chosen(value) for name, value in values.items()}
        target = dataclasses.replace(
            self,
            sockets=chosen.get("sockets", self.sockets),
            levels=tuple(_with(level, chosen, f"{level.name}.") for level in self.levels),
            links=tuple(_with(link, chosen, f"{link.name}.") for link in self.links),
            units=_with(self.units, chosen),
            costs=_with(self.costs, chosen),
        )
        _check(target, f"the target {self.name} with the given figures")
        return target

    def of_rank(self, ranks: int) -> Target:
        """Return the target of one of `ranks` ranks: its share of the sockets, or the whole target if it has a single
        socket.

        Raises UsageError if the sockets cannot be divided equally, or have no links.
        """
        if ranks == 1:
            return self
        sockets = int(self.sockets.value)
        if sockets > 1 and sockets % ranks:
            raise TargetErrors.SOCKETS_NOT_SHARED(sockets=sockets, target=self.name, ranks=ranks)
        if not self.links:
            raise TargetErrors.NO_LINKS_FOR_RANKS(target=self.name, ranks=ranks)
        return self.with_sockets(max(1, sockets // ranks))

    def to_json(self) -> str:
        """Return the file form; `parse_target` reads it back."""
        data = {"format": FORMAT_VERSION, **dataclasses.asdict(self)}
        for item in (*data["levels"], *data["links"]):
            if item["latency"] is None:
                del item["latency"]
        return json.dumps(data, indent=2) + "\n"


Part = TypeVar("Part", MemoryLevel, SocketLink, Units, Costs)


def _with(part: Part, figures: Mapping[str, Figure], prefix: str = "") -> Part:
    """Return a part of a target with the values of `figures` whose names begin with `prefix`."""
    changes: dict[str, Any] = {
        item.name: figures[prefix + item.name] for item in dataclasses.fields(part) if prefix + item.name in figures
    }
    return dataclasses.replace(part, **changes)


def _figures_of(record: Any) -> dict[str, Figure]:
    """Return the figures of a part of a target, by name."""
    field_values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {name: value for name, value in field_values.items() if isinstance(value, Figure)}


def shipped_targets() -> tuple[str, ...]:
    """Return the names of the shipped descriptions."""
    names = (Path(file.name) for file in files("sscc.ir").joinpath("targets").iterdir())
    return tuple(sorted(name.stem for name in names if name.suffix == ".json"))


def load_target(target: str) -> Target:
    """Return the target that ``--target`` names: ``rdu``, ``rdu:NAME`` for a shipped one, or ``rdu:FILE``.

    Raises:
        UsageError: another family.
        InputError: a file that is missing, or is not a description of a target.
    """
    family, colon, name = target.partition(":")
    shipped = shipped_targets()
    if family != FAMILY or (colon and not name):
        names = [FAMILY, *(f"{FAMILY}:{known}" for known in shipped)]
        raise TargetErrors.UNKNOWN(target=target, names=names, family=FAMILY, similar_hint=did_you_mean(target, names))
    if not colon or name in shipped:
        return parse_target(_shipped(name or DEFAULT), name or DEFAULT)
    check_name(Path(name))
    try:
        return parse_target(Path(name).read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise TargetErrors.UNREADABLE(
            name=name, cause=quoted(error), shipped=shipped, similar_hint=did_you_mean(name, shipped)
        ) from None


def _shipped(name: str) -> str:
    return files("sscc.ir").joinpath("targets", f"{name}.json").read_text(encoding="utf-8")


def parse_target(text: str, origin: str) -> Target:
    """Return the target of a file form. Raises InputError naming the missing, unknown or out-of-range field."""
    where = f"the target description {origin}"
    target: Target = decode(_parse(text, where), Target, "it", where)
    _check(target, where)
    return target


def _parse(text: str, where: str) -> Any:
    """Return the records of a file form, merged with those of its base, without the format field."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TargetErrors.NOT_JSON(where=where, cause=quoted(error)) from None
    if not isinstance(data, dict):
        return data
    version = data.pop("format", 1)
    if version != FORMAT_VERSION:
        raise TargetErrors.FORMAT_VERSION(where=where, version=shown(version), known=FORMAT_VERSION)
    if "base" not in data:
        return data
    base, shipped = data.pop("base"), shipped_targets()
    if base not in shipped:
        raise TargetErrors.UNKNOWN_BASE(where=where, base=shown(base), shipped=shipped)
    return _changed(_parse(_shipped(base), f"the target description {base}"), data)


def _changed(base: Any, changes: Any) -> Any:
    """Return records with changes: fields of a record by key, records of a list by name. New records are appended."""
    if isinstance(base, dict) and isinstance(changes, dict):
        return base | {key: _changed(base.get(key), value) for key, value in changes.items()}
    if isinstance(base, list) and isinstance(changes, list):
        records = [item for item in (*base, *changes) if isinstance(item, dict) and isinstance(item.get("name"), str)]
        if len(records) == len(base) + len(changes):
            named: dict[str, Any] = {}
            for item in records:
                named[item["name"]] = _changed(named.get(item["name"]), item)
            return list(named.values())
    return changes


def _check(target: Target, where: str) -> None:
    """Check the figures of a target, and their consistency."""
    for name, figure in target.figures.items():
        if not 0 < figure.value <= LARGEST:
            raise TargetErrors.FIGURE(where=where, figure=name, value=figure.value, most=LARGEST)
    names = tuple(level.name for level in target.levels)
    if len(names) < 2 or names != TIERS[: len(names)]:
        raise TargetErrors.LEVELS(where=where, levels=names, known=TIERS)
    links = [link.name for link in target.links]
    for link in links:
        if not link.isidentifier():
            raise TargetErrors.LINK_NAME(where=where, link=link)
    if len({*links, *names}) < len(links) + len(names):
        raise TargetErrors.NAME_TWICE(where=where, names=(*names, *links))
    if target.nearest.capacity.value % target.units.pmu_bytes.value:
        raise TargetErrors.PMU_BYTES(where=where, level=target.nearest.name)
    if target.sockets.value % 1:
        raise TargetErrors.PARTIAL_SOCKETS(where=where, sockets=target.sockets.value)
    if target.sockets.value > 1 and not links:
        raise TargetErrors.NO_LINKS(where=where, sockets=target.sockets.value)
