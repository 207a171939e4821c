"""Plots of quality over cache rows and cache bytes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sscc.compiler.tools.inspection.svg import svg_of
from sscc.compiler.tools.quality.cells import FULL
from sscc.compiler.tools.quality.means import CellSummary, Score
from sscc.compiler.tools.quality.scoring import NATS
from sscc.ir.extras import EVAL, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIB = 2**20
APART = 0.07
"""Distance in octaves between points of different series with the same x value."""
TICKS = 7
"""Largest number of tick labels on an x axis."""


def require_plotting() -> None:
    """Raise UsageError if matplotlib is not installed."""
    require(EVAL, "the plot (skipped with --no-plot)")


def plot(cells: Sequence[CellSummary], title: str) -> bytes:
    """Return an SVG with a column per group of examples: scores over cache rows above, over cache bytes below. Equal
    results give equal bytes."""
    groups = len(cells[0].scores)

    def draw(pyplot: Any) -> Any:
        size = 1.2 + 2.8 * groups, 5.6
        figure, axes = pyplot.subplots(2, groups, figsize=size, squeeze=False, layout="constrained")
        for column in range(groups):
            _draw(axes[0][column], cells, column, lambda cell: cell.cell.budget, "cache rows per layer and KV head")
            _draw(axes[1][column], cells, column, lambda cell: cell.kv_bytes / MIB, "KV cache per sequence (MiB)")
            axes[0][column].set_title(cells[0].scores[column].group, fontsize=8)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(2 * groups, len(labels)), fontsize=7)
        figure.suptitle(title, fontsize=9)
        return figure

    return svg_of(draw, 8)


def _draw(
    axes: Axes, cells: Sequence[CellSummary], column: int, place: Callable[[CellSummary], float], label: str
) -> None:
    series: dict[str, list[tuple[float, Score]]] = {}
    for cell in cells:
        score = cell.scores[column]
        if cell.cell.method == FULL:
            axes.axhline(score.mean, linestyle="--", color="gray", linewidth=1, label=cell.cell.series)
        else:
            series.setdefault(cell.cell.series, []).append((place(cell), score))
    at: dict[float, list[str]] = {}
    for name, points in series.items():
        points.sort(key=lambda point: point[0])
        for x in dict.fromkeys(x for x, _ in points):
            at.setdefault(x, []).append(name)
    for name, points in series.items():
        places = [x * 2 ** (APART * (at[x].index(name) - (len(at[x]) - 1) / 2)) for x, _ in points]
        means = [score.mean for _, score in points]
        spread: Any = [[m - s.low for m, (_, s) in zip(means, points, strict=True)]]
        spread.append([s.high - m for m, (_, s) in zip(means, points, strict=True)])
        axes.errorbar(places, means, yerr=spread, marker="o", markersize=3, capsize=2, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(_ticks(sorted(at)))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.4g}")
    axes.minorticks_off()
    axes.set_xlabel(label)
    if cells[0].scores[column].metric == NATS:
        axes.set_ylabel("nats per token")
    else:
        axes.set_ylabel("score (0 to 1)")
        axes.set_ylim(-0.05, 1.05)


def _ticks(places: Sequence[float]) -> list[float]:
    """Return the sorted places without those whose labels would overlap others on a logarithmic axis."""
    ticks: list[float] = []
    for place in places:
        if not ticks or math.log2(place / ticks[-1]) * TICKS >= math.log2(places[-1] / places[0]):
            ticks.append(place)
    return ticks
