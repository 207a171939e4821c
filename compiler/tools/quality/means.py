"""Means and their confidence intervals, per cell and group of examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sscc.compiler.tools.quality.cells import FULL, Cell
from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.journal import Record
from sscc.compiler.tools.quality.scoring import NATS
from sscc.runtime.artifact.signature import Signature

Z = 1.96  # 95 % of a normal distribution
DEPTHS = 4


@dataclass(frozen=True)
class Score:
    """One group of examples in one cell.

    Attributes:
        metric: "nats" (lower is better), or the name of a metric from 0 to 1.
        mean, standard_error: over the examples.
        low, high: 95 % confidence interval of the mean (`interval`).
        difference, difference_error: mean and standard error of the score minus the full cache's score of the same
            example; None without a full cache.
        by_depth: mean score and number of the examples with the answer in each quarter of the prompt, first to last;
            empty if answers have no single position.
    """

    group: str
    task: str
    length: int
    metric: str
    n: int
    mean: float
    standard_error: float
    low: float
    high: float
    difference: float | None
    difference_error: float | None
    prompt_tokens: float
    kept_rows: float
    seconds: float
    by_depth: list[tuple[float | None, int]] = field(default_factory=list)


@dataclass(frozen=True)
class CellSummary:
    """A cell and its scores.

    Attributes:
        scores: in the order of the groups.
        kv_bytes: bytes of one sequence, over all layers: K, V and quantized keys.
        read_bytes: the part of `kv_bytes` that a decode step reads at max_context.
        full_kv_bytes: bytes of an uncompressed cache of max_context rows.
        records: the records behind the scores, by the example's name.
    """

    cell: Cell
    scores: list[Score]
    kv_bytes: int
    read_bytes: int
    full_kv_bytes: int
    records: dict[str, Record]

    @property
    def mean(self) -> float | None:
        """Mean over the groups that are scored from 0 to 1; None if there are none."""
        means = [score.mean for score in self.scores if score.metric != NATS]
        return sum(means) / len(means) if means else None

    def to_dict(self) -> dict[str, Any]:
        cell = self.cell
        return {
            "name": cell.name,
            "method": cell.method,
            "budget": None if cell.method == FULL else cell.budget,
            "geometry": cell.geometry.to_dict(),
            "rows_read": cell.budget,
            "kv_bytes": self.kv_bytes,
            "read_bytes": self.read_bytes,
            "full_kv_bytes": self.full_kv_bytes,
            "mean": self.mean,
            "scores": [asdict(score) for score in self.scores],
        }


def summarise(
    cell: Cell,
    signature: Signature,
    examples: Sequence[Example],
    records: Sequence[Record],
    first: CellSummary | None,
) -> CellSummary:
    """Return the scores of a cell.

    Args:
        cell: the cell.
        signature: signature of its program.
        examples: all examples.
        records: the cell's record of each example.
        first: summary of the first cell, the baseline of differences if it is the full cache; None for the first cell.
    """
    full = first.records if first is not None and first.cell.method == FULL else None
    scores = []
    for group in dict.fromkeys(example.group for example in examples):
        chosen = [(e, r) for e, r in zip(examples, records, strict=True) if e.group == group]
        scores.append(_score(group, [e for e, _ in chosen], [r for _, r in chosen], full))
    return CellSummary(
        cell,
        scores,
        signature.held_bytes,
        signature.read_bytes,
        signature.full_kv_bytes(signature.geometry.max_context),
        {record.example: record for record in records},
    )


def _score(group: str, examples: list[Example], records: list[Record], full: dict[str, Record] | None) -> Score:
    values = [record.score for record in records]
    mean, error = mean_and_error(values)
    low, high = interval(values, examples[0].metric)
    difference = difference_error = None
    if full is not None:
        difference, difference_error = mean_and_error([r.score - full[r.example].score for r in records])
    return Score(
        group=group,
        task=examples[0].task,
        length=examples[0].length,
        metric=examples[0].metric,
        n=len(values),
        mean=mean,
        standard_error=error,
        low=low,
        high=high,
        difference=difference,
        difference_error=difference_error,
        prompt_tokens=mean_and_error([record.prompt_tokens for record in records])[0],
        kept_rows=mean_and_error([record.kept_rows for record in records])[0],
        seconds=sum(record.seconds for record in records),
        by_depth=_by_depth(records),
    )


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error (0 for a single value)."""
    n = len(values)
    mean = sum(values) / n
    if n == 1:
        return mean, 0.0
    variance = sum((value - mean) ** 2 for value in values) / (n - 1)
    return mean, math.sqrt(variance / n)


def interval(values: Sequence[float], metric: str) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean of a metric's scores. It contains the mean.

    For nats per token it is the mean -+ 1.96 standard errors. For scores from 0 to 1 it is the same, cut to that range,
    or Wilson's score interval if every score is 0 or 1.
    """
    mean, error = mean_and_error(values)
    if metric == NATS:
        return mean - Z * error, mean + Z * error
    if all(value in (0.0, 1.0) for value in values):
        return wilson(int(sum(values)), len(values))
    return max(0.0, mean - Z * error), min(1.0, mean + Z * error)


def wilson(right: int, n: int) -> tuple[float, float]:
    """Return Wilson's 95 % confidence interval of the fraction `right / n`. It lies in [0, 1], around the fraction.

    An end that equals the fraction (0 of n, n of n) is set exactly, because the formula rounds.
    """
    share = right / n
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def _by_depth(records: Sequence[Record]) -> list[tuple[float | None, int]]:
    placed = [(record.depth, record.score) for record in records if record.depth is not None]
    if not placed:
        return []
    quarters: list[list[float]] = [[] for _ in range(DEPTHS)]
    for depth, score in placed:
        quarters[min(int(depth * DEPTHS), DEPTHS - 1)].append(score)
    return [(mean_and_error(scores)[0] if scores else None, len(scores)) for scores in quarters]
