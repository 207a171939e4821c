"""Targets like the shipped one, with other figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sscc.ir.target import Target, load_target, parse_target


def description() -> dict[str, Any]:
    """The file form of the shipped target."""
    data: dict[str, Any] = json.loads(load_target("rdu").to_json())
    return data


def figure(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The figure that `Target.figures` calls `name`, in a file form."""
    owner, _, what = name.rpartition(".")
    named = {item["name"]: item for item in (*data["levels"], *data["links"])}
    parts = [named[owner]] if owner else [data, data["units"], data["costs"]]
    found: dict[str, Any] = next(part[what] for part in parts if what in part)
    return found


def described(figures: Mapping[str, float], base: Target | None = None) -> dict[str, Any]:
    """The file form of `base`, or the shipped target, with other figures."""
    data: dict[str, Any] = description() if base is None else json.loads(base.to_json())
    for name, value in figures.items():
        figure(data, name)["value"] = value
    return data


def changed(figures: Mapping[str, float], base: Target | None = None) -> Target:
    return parse_target(json.dumps(described(figures, base)), "of a test")


def with_chip(nbytes: int, base: Target | None = None) -> Target:
    """Return the target with an on-chip memory of this size, in one memory unit."""
    return changed({"sram.capacity": nbytes, "pmu_bytes": nbytes}, base)
