"""Results as tables (text or Markdown) and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sscc.compiler.options.versions import own_version, tool_versions
from sscc.compiler.tools.quality.cells import FULL, QUERY
from sscc.compiler.tools.quality.eval_options import EvalOptions
from sscc.compiler.tools.quality.means import CellSummary, Score, Z
from sscc.compiler.tools.quality.runner import Evaluation
from sscc.compiler.tools.quality.scoring import NATS
from sscc.ir.sizes import format_bytes

FORMAT = 1
LARGEST_EXPONENT = 709.0
"""Nats per token above which the perplexity exceeds the range of f64."""

Table = list[list[str]]
"""Rows of a table; the first one is the heading."""


def tables(cells: Sequence[CellSummary]) -> list[Table]:
    """Return a table of scores in percent and one of nats per token, each only if it has scores.

    If a cell selects by query, the tables have columns for the rows and bytes that a decode step reads.
    """
    tables = []
    caches = ["cache", *_cost_heading(cells)]
    groups = [score for score in cells[0].scores if score.metric != NATS]
    if groups:
        more = ["mean"] if len(groups) > 1 else []
        heading = [*caches, *(f"{score.group} (n={score.n})" for score in groups), *more]
        tables.append([heading, *([*_cache(cell, cells), *_score_row(cell, bool(more))] for cell in cells)])
    texts = [score for score in cells[0].scores if score.metric == NATS]
    if texts:
        heading = [*caches, *(f"{score.group} (n={score.n})" for score in texts)]
        tables.append([heading, *([*_cache(cell, cells), *map(_nats, _of(cell, nats=True))] for cell in cells)])
    return tables


def paired(cells: Sequence[CellSummary]) -> Table | None:
    """Return the differences of each cell's scores from the full cache's for the same examples, in points, with their
    95 % confidence intervals.

    Return None without a full cache, without scores in percent, and if no cell selects by query, has a user's rule, is
    one of several pooling widths, or shortens prompts.
    """
    groups = _of(cells[0], nats=False)
    separate = (cell.cell.one_of_pools or cell.cell.rule is not None or cell.cell.keep is not None for cell in cells)
    compared = _by_query(cells) or any(separate)
    if not compared or cells[0].cell.method != FULL or not groups:
        return None
    heading = ["minus full", *_cost_heading(cells), *(f"{score.group} (n={score.n})" for score in groups)]
    rows = [[*_cache(cell, cells), *map(_points, _of(cell, nats=False))] for cell in cells[1:]]
    return [heading, *rows]


def markdown(table: Table) -> str:
    """Return the table in Markdown, with numbers right-aligned."""
    rule = ["---", *("---:" for _ in table[0][1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in [table[0], rule, *table[1:]])


def text(table: Table) -> str:
    """Return the table as plain text with aligned columns."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = []
    for row in table:
        first, *rest = zip(row, widths, strict=True)
        lines.append("  ".join([first[0].ljust(first[1]), *(word.rjust(width) for word, width in rest)]))
    return "\n".join(lines)


def results(options: EvalOptions, evaluation: Evaluation) -> dict[str, Any]:
    """Return all results as JSON values."""
    return {
        "format": FORMAT,
        "versions": {"sscc": own_version(), **tool_versions()},
        "model": {"name": options.model.name, "sha256": evaluation.digest},
        "options": options.described() | {"examples": options.examples},
        "cells": [cell.to_dict() for cell in evaluation.cells],
    }


def page(options: EvalOptions, evaluation: Evaluation, plot: Path | None) -> str:
    """Return the Markdown of a report."""
    parts = [f"# {options.model.name}", f"{LEGEND} {CHAT}" if options.chat else LEGEND]
    parts += [markdown(table) for table in tables(evaluation.cells)]
    differences = paired(evaluation.cells)
    if differences is not None:
        parts += [PAIRED, markdown(differences)]
    if plot is not None:
        parts.append(f"![quality against budget]({plot.name})")
    return "\n\n".join(parts) + "\n"


def to_json(values: dict[str, Any]) -> str:
    """Return `results` as JSON text, with null for numbers that are not finite."""
    return json.dumps(_finite(values), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


LEGEND = (
    "Scores are in percent, with 95 % confidence intervals. Perplexity is in nats per token with its standard error, "
    "followed by the difference from the full cache on the same tokens. KV (or held): cache bytes of one sequence. "
    "All methods with the same budget keep the same number of rows; query keeps all rows, and reads that number per "
    "step."
)

PAIRED = (
    "Differences from the full cache's score of the same example, in points: the mean -+ 1.96 standard errors. An "
    "interval of zero width means that the difference is the same for all examples."
)

CHAT = "Prompts are turns of the model's chat template."


def _score_row(cell: CellSummary, with_mean: bool) -> list[str]:
    mean = [] if not with_mean or cell.mean is None else [f"{100 * cell.mean:.0f}"]
    return [*map(_percent, _of(cell, nats=False)), *mean]


def _by_query(cells: Sequence[CellSummary]) -> bool:
    return any(cell.cell.method == QUERY for cell in cells)


def _cost_heading(cells: Sequence[CellSummary]) -> list[str]:
    return ["rows a step", "read a step", "held"] if _by_query(cells) else ["KV"]


def _cache(cell: CellSummary, cells: Sequence[CellSummary]) -> list[str]:
    """Return the name and costs of a cell, in the columns of a table of `cells`."""
    read = [str(cell.cell.budget), format_bytes(cell.read_bytes)] if _by_query(cells) else []
    return [cell.cell.name, *read, format_bytes(cell.kv_bytes)]


def _of(cell: CellSummary, *, nats: bool) -> list[Score]:
    return [score for score in cell.scores if (score.metric == NATS) == nats]


def _percent(score: Score) -> str:
    return f"{100 * score.mean:.0f} ({100 * score.low:.0f} to {100 * score.high:.0f})"


def _points(score: Score) -> str:
    if score.difference is None or score.difference_error is None:
        return ""
    half = Z * score.difference_error
    low, high = (100 * (score.difference + side) for side in (-half, half))
    return f"{100 * score.difference:+.0f} ({low:+.0f} to {high:+.0f})"


def _nats(score: Score) -> str:
    """Return nats and perplexity, and the difference from the full cache on the same windows."""
    perplexity = math.exp(score.mean) if score.mean < LARGEST_EXPONENT else math.inf
    cell = f"{score.mean:.3f} +- {score.standard_error:.3f} (ppl {perplexity:.2f}"
    if score.difference is None or score.difference_error is None:
        return f"{cell})"
    return f"{cell}; {score.difference:+.3f} +- {score.difference_error:.3f})"
