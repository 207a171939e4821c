"""Measurements section, separate from modelled times, because the measured machine is not the modelled one."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from sscc.compiler.tools.inspection.inspection import time_decode, time_prefill
from sscc.compiler.tools.report.report_inputs import Sources
from sscc.ir.errors import UsageError


@dataclass(frozen=True)
class Row:
    """One measured test.

    Attributes:
        seconds, fastest, slowest: median, minimum and maximum time of a step, or of a whole prompt.
        least: lower bound of the time by the measured bandwidth alone; None for prefill.
        modelled: modelled time, for the same number of tokens in every slot; None if the test has fewer slots than the
            program, or does not fit the context.
    """

    name: str
    tokens_per_second: float
    seconds: float
    fastest: float
    slowest: float
    least: float | None
    share: float | None
    modelled: float | None


@dataclass(frozen=True)
class Measured:
    interpreter: str
    threads: int
    ranks: int
    bandwidth: float
    machine: str
    rows: tuple[Row, ...]


def measured(sources: Sources) -> Measured | None:
    """Return the section; None if no measurements were given."""
    bench = sources.bench
    if bench is None:
        return None
    rows = []
    for result in bench.results:
        steps = 1 if result.test == "prefill" else result.tokens
        median = statistics.median(result.seconds) / steps
        least = None if result.bytes_per_step is None else result.bytes_per_step / result.bandwidth
        rows.append(
            Row(
                name=result.name,
                tokens_per_second=result.tokens_per_second,
                seconds=median,
                fastest=min(result.seconds) / steps,
                slowest=max(result.seconds) / steps,
                least=least,
                share=result.share,
                modelled=_modelled(sources, result.test, result.tokens, result.depth, result.slots),
            )
        )
    bandwidth = max((result.bandwidth for result in bench.results), default=0.0)
    return Measured(bench.interpreter, bench.threads, bench.ranks, bandwidth, sources.machine.name, tuple(rows))


def _modelled(sources: Sources, test: str, tokens: int, depth: int, slots: int) -> float | None:
    artifact = sources.artifact
    try:
        if test == "prefill":
            return time_prefill(artifact, sources.target, tokens).seconds
        if slots < artifact.signature.batch:
            return None  # the model covers only steps of all slots
        return time_decode(artifact, sources.target, depth, staying=sources.staying, entry=test).seconds
    except UsageError:
        return None
