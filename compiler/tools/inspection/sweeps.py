"""Modelled times of a decode step for several values of one figure of the target, as a table and a plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sscc.compiler.tools.inspection.inspection import time_decode
from sscc.compiler.tools.inspection.svg import svg_of
from sscc.ir.extras import EVAL, require
from sscc.ir.sizes import format_seconds

if TYPE_CHECKING:
    from sscc.ir.target import Target
    from sscc.runtime.session.artifact import Artifact


@dataclass(frozen=True)
class SweepPoint:
    """A decode step on a machine with one value of the figure.

    Attributes:
        value: value of the figure, in its unit.
        seconds: modelled time of a step of all slots.
        tokens_per_second: tokens/s of all slots.
        roofline_fraction: share of main memory's bandwidth.
        slowest: the kernel that takes longest.
        bound: limit of its slowest stage: "compute", "memory" or "firings".
    """

    value: float
    seconds: float
    tokens_per_second: float
    roofline_fraction: float
    slowest: str
    bound: str


def swept(
    artifact: Artifact, target: Target, name: str, values: Sequence[float], context: int | None, staying: float
) -> tuple[SweepPoint, ...]:
    """Return the modelled decode step for each value of the figure `name` of `target`.

    Raises:
        UsageError: the target has no such figure.
        InputError: a value is out of range.
    """
    points = []
    for value in values:
        timing = time_decode(artifact, target.with_figures({name: value}), context, staying=staying)
        slowest = timing.kernels()[0]
        rate = artifact.signature.batch / timing.seconds
        points.append(
            SweepPoint(value, timing.seconds, rate, timing.roofline_fraction, slowest.name, slowest.bound)
        )
    return tuple(points)


def sweep_lines(name: str, unit: str, points: Sequence[SweepPoint]) -> Iterator[str]:
    """Yield the lines of a table, with speedups relative to the first value."""
    label = f"{name} ({unit})" if unit else name
    yield f"{label:>28} {'step':>12} {'tokens/s':>10} {'speedup':>8} {'roofline':>9}  slowest"
    for point in points:
        yield (
            f"{point.value:28.6g} {format_seconds(point.seconds):>12} {point.tokens_per_second:10.4g} "
            f"{points[0].seconds / point.seconds:8.3f} {100 * point.roofline_fraction:8.1f}%  "
            f"{point.slowest} ({point.bound})"
        )


def sweep_plot(name: str, unit: str, points: Sequence[SweepPoint], title: str) -> bytes:
    """Return a plot of tokens per second over the values, as SVG. Equal points give equal bytes.

    Raises:
        UsageError: matplotlib is not installed.
    """
    require(EVAL, "--plot")

    def draw(pyplot: Any) -> Any:
        figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
        axes.plot([point.value for point in points], [point.tokens_per_second for point in points], marker="o")
        axes.set_xlabel(f"{name} ({unit})" if unit else name)
        axes.set_ylabel("tokens/s, modelled")
        axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=9)
        return figure

    return svg_of(draw, 9)
