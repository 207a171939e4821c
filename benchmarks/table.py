"""Tables of results in Markdown pages: one per model, with a row per peer and dtype and a column per workload."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import PeerResult

UNITS = 1e9


def render(results: Sequence[PeerResult], skipped: Sequence[str], heading: str) -> str:
    """Return Markdown: the heading, a table for every model, and notes on missing cells and peers."""
    parts = [heading]
    for model in dict.fromkeys(result.model for result in results):
        parts.append(_table(model, [result for result in results if result.model == model]))
    return "\n\n".join([*parts, *notes(results, skipped)]) + "\n"


def notes(results: Sequence[PeerResult], skipped: Sequence[str]) -> list[str]:
    """Return paragraphs on missing cells and peers, and on the versions of the peers."""
    failures = [result for result in results if result.error]
    missing = [f"{result.peer} {result.dtype}, {result.workload.label}: {result.error}" for result in failures]
    missing = [*dict.fromkeys([*missing, *skipped])]
    versions = dict.fromkeys(f"{result.peer} {result.version}" for result in results if result.version)
    parts = []
    if missing:
        parts.append("Not measured:\n\n" + "\n".join(f"* {note}" for note in missing))
    if versions:
        parts.append("Versions: " + ", ".join(versions) + ".")
    return parts


def _table(model: str, results: Sequence[PeerResult]) -> str:
    workloads = list(dict.fromkeys(result.workload for result in results))
    cells = {(result.peer, result.dtype, result.workload): result for result in results}
    lines = [
        "| " + " | ".join([f"{model}, tokens/s", "weights", *(each.label for each in workloads), "read GB/s"]) + " |",
        "|" + "|".join(["---", "---", *("---:" for _ in workloads), "---:"]) + "|",
    ]
    for peer, dtype in dict.fromkeys((result.peer, result.dtype) for result in results):
        row = [cells[peer, dtype, workload] for workload in workloads if (peer, dtype, workload) in cells]
        figures = [cell(cells.get((peer, dtype, workload))) for workload in workloads]
        lines.append("| " + " | ".join([peer, dtype, *figures, calibration(row)]) + " |")
    return "\n".join(lines)


def cell(result: PeerResult | None) -> str:
    """Return the text of a cell: median tokens per second, best repeat, and fraction of the read bandwidth."""
    if result is None or not result.seconds:
        return ""
    text = f"{_figure(result.rate)} (best {_figure(result.best)}"
    return text + (")" if result.share is None else f"; {100 * result.share:.0f}%)")


def calibration(row: Sequence[PeerResult]) -> str:
    """Return the range of a row's read bandwidths, one for each workload, in GB/s."""
    values = sorted(result.calibration / UNITS for result in row if result.bandwidth)
    if not values:
        return ""
    low, high = f"{values[0]:.0f}", f"{values[-1]:.0f}"
    return low if low == high else f"{low} to {high}"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def machine() -> str:
    """Return Linux's name of the processor, its extensions for small dtypes, and the number of usable processors."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()}, {os.cpu_count()} processors"
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    named = {name.strip(): value.strip() for name, value in fields.items()}
    small_type_flags = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
    flags = [flag for flag in small_type_flags if flag in named.get("flags", "").split()]
    name = named.get("model name", platform.machine())
    return f"{name} ({', '.join(flags)}), {len(os.sched_getaffinity(0))} processors"


def replace_block(page: str, name: str, text: str) -> str:
    """Return a page with another text between its lines `<!-- NAME: begin -->` and `<!-- NAME: end -->`.

    Raises ValueError unless the page has each of the two lines once, in this order.
    """
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, opening, rest = page.partition(begin)
    _, closing, after = rest.partition(end)
    if not opening or not closing or begin in rest or end in after:
        raise ValueError(f"the page must have the lines {begin.strip()} and {end} once")
    return f"{before}{begin}\n{text.strip()}\n\n{end}{after}"
