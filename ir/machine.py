"""The machine description: every figure of the modelled hardware, as data, with where it comes from.

`rdu` names the description that ships with sscc, `rdu:FILE` one's own in the same form. Nothing else in the
code knows a hardware figure.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from sscc.ir.errors import InputError, UsageError, quoted

DEFAULT = "sn40l"
FAMILY = "rdu"
LARGEST = 1e30  # of any figure in its unit; products of several are far from what floats end at
ORIGINS = ("published", "assumed", "fitted", "chosen")


@dataclass(frozen=True)
class Figure:
    """One number of a machine.

    Attributes:
        origin: "published"; "assumed" where no source gives it; "fitted" to a published result; "chosen".
    """

    value: float
    unit: str
    origin: str
    note: str


@dataclass(frozen=True)
class Machine:
    """An SN40L-like RDU. Every field but the first two is a `Figure`; units are in the figures.

    Attributes:
        sockets: sockets that work together.
        pcus, pmus, pmu_bytes: compute units, memory units, SRAM of one memory unit.
        bf16_flops, f32_flops: peak of dense products, by the operands' dtype.
        simd_lanes, simd_stages: elements that a PCU takes per cycle, and operations that it does on each of them,
            in its mode for element-wise work.
        sram_bandwidth, hbm_bandwidth, ddr_bandwidth: bytes/s per socket and tier.
        hbm_bytes, ddr_bytes: capacities per socket.
        clock: Hz. link_bandwidth: bytes/s between sockets. launch_seconds: of one kernel launch.
        firing_seconds: of one firing of a stage, whatever it computes.
        boundary_seconds: lost at each launch besides, while pipelines drain and refill.
    """

    name: str
    note: str
    sockets: Figure
    pcus: Figure
    pmus: Figure
    pmu_bytes: Figure
    bf16_flops: Figure
    f32_flops: Figure
    simd_lanes: Figure
    simd_stages: Figure
    sram_bandwidth: Figure
    hbm_bytes: Figure
    hbm_bandwidth: Figure
    ddr_bytes: Figure
    ddr_bandwidth: Figure
    clock: Figure
    link_bandwidth: Figure
    launch_seconds: Figure
    firing_seconds: Figure
    boundary_seconds: Figure

    @property
    def figures(self) -> dict[str, Figure]:
        """Name -> figure, in order."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, Figure)}

    @property
    def sram_bytes(self) -> float:
        """SRAM of one socket."""
        return self.pmus.value * self.pmu_bytes.value

    def hbm_seconds(self, nbytes: float) -> float:
        """The least time in which all sockets together move `nbytes` through HBM."""
        return nbytes / (self.hbm_bandwidth.value * self.sockets.value)

    def ddr_seconds(self, nbytes: float) -> float:
        """The same through DDR."""
        return nbytes / (self.ddr_bandwidth.value * self.sockets.value)

    def with_sockets(self, sockets: int) -> Machine:
        """The same machine with another number of sockets. Raises UsageError below 1."""
        if sockets < 1:
            raise UsageError(f"a machine of {sockets} sockets does not exist: give at least 1")
        chosen = dataclasses.replace(self.sockets, value=sockets, origin="chosen")
        return dataclasses.replace(self, sockets=chosen)

    def to_json(self) -> str:
        """The file form; `parse_machine` reads it back."""
        figures = {name: dataclasses.asdict(figure) for name, figure in self.figures.items()}
        return json.dumps({"name": self.name, "note": self.note, "figures": figures}, indent=2) + "\n"


def load_machine(target: str) -> Machine:
    """The machine that ``--target`` names: ``rdu``, or ``rdu:FILE``.

    Raises:
        UsageError: another family. InputError: a file that is missing, or not a machine description.
    """
    family, colon, file = target.partition(":")
    if family != FAMILY or (colon and not file):
        raise UsageError(f"--target is {target!r}, it must be {FAMILY} or {FAMILY}:FILE")
    if not colon:
        text = files("sscc.ir").joinpath("machines", f"{DEFAULT}.json").read_text(encoding="utf-8")
        return parse_machine(text, DEFAULT)
    try:
        return parse_machine(Path(file).read_text(encoding="utf-8"), file)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the machine description {file} cannot be read: {error}") from None


def parse_machine(text: str, origin: str) -> Machine:
    """A description from its file form. Raises InputError naming what is missing, unknown or out of range."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the machine description {origin} is not JSON: {error}") from None
    given = data.get("figures") if isinstance(data, dict) else None
    if not isinstance(given, dict) or not all(isinstance(data.get(key), str) for key in ("name", "note")):
        raise InputError(f"the machine description {origin} needs name, note and figures")
    unknown = sorted(set(data) - {"name", "note", "figures"})
    if unknown:
        raise InputError(f"the machine description {origin} has the unknown {', '.join(unknown)[:80]}")
    wanted = [field.name for field in dataclasses.fields(Machine) if field.name not in ("name", "note")]
    odd = sorted(set(wanted) ^ set(given))
    if odd:
        raise InputError(f"the machine description {origin} has missing or unknown figures: {quoted(', '.join(odd))}")
    return Machine(data["name"], data["note"], **{name: _figure(given[name], name, origin) for name in wanted})


def _figure(data: Any, name: str, origin: str) -> Figure:
    wanted = {"value", "unit", "origin", "note"}
    if not isinstance(data, dict) or set(data) != wanted:
        raise InputError(f"the machine description {origin}: {name} needs {', '.join(sorted(wanted))}")
    value = data["value"]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LARGEST:
        shown = quoted(repr(value))
        raise InputError(
            f"the machine description {origin}: {name} is {shown}, it must be a positive number up to {LARGEST:.0e}"
        )
    if not isinstance(data["origin"], str) or data["origin"] not in ORIGINS:
        raise InputError(f"the machine description {origin}: origin of {name} must be one of {', '.join(ORIGINS)}")
    return Figure(value, str(data["unit"]), data["origin"], str(data["note"]))
