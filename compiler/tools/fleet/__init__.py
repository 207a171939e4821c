"""Replicas of `sscc serve` behind one address, on Ray Serve. A deployment file names `sscc.compiler.tools.fleet:app`
(deploy/fleet.yaml)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sscc.ir.extras import FLEET, SERVE, require

if TYPE_CHECKING:
    from ray.serve import Application


def app(options: dict[str, Any]) -> Application:
    """Return the Ray Serve application of a deployment file.

    Args:
        options: the file's `args` (`sscc.compiler.tools.fleet.fleet_options.parse_options`).

    Raises UsageError and InputError.
    """
    for extra in (FLEET, SERVE):
        require(extra, "a fleet of replicas")
    from sscc.compiler.tools.fleet.fleet_options import parse_options, plan_of
    from sscc.compiler.tools.fleet.replicas import application

    parsed = parse_options(options)
    return application(parsed, plan_of(parsed))
