"""`sscc inspect`: sizes of an artifact, and the bytes and modelled time of a decode step."""

from __future__ import annotations

import argparse
import json
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sscc.compiler.options.modelling_options import MODELLED, ModellingOptions, Sweep, parse_sweep
from sscc.compiler.options.outputs import printing_beside
from sscc.compiler.tools.commands.engines import open_artifact
from sscc.compiler.tools.commands.parser import CommonOptions, Parser
from sscc.compiler.tools.inspection.inspection_words import described, stage_lines
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.files import check_output, replacing
from sscc.ir.option import option, options_of
from sscc.ir.terminal import listing

if TYPE_CHECKING:
    from sscc.compiler.tools.inspection.sweeps import SweepPoint
    from sscc.ir.target import Target
    from sscc.runtime.session.artifact import Artifact


class InspectErrors(ErrorKind):
    PLOT_WITHOUT_SWEEP = UsageError, "--plot needs --sweep NAME=VALUES"


@dataclass(frozen=True)
class InspectOptions:
    """Options of an inspection."""

    artifact: Path = option(MISSING, "artifact that `sscc compile` wrote", "OUT.rdu", positional=True)
    stages: bool = option(False, "list every stage: bytes, operations, busy time, and the resource that limits it")
    sweep: str | None = option(
        None, "model the decode step for several values of a figure of the machine: hbm.bandwidth=1e12,2e12, or "
        "hbm.bandwidth=1e12..4e12:7 for seven values", "NAME=VALUES", group=MODELLED,
    )  # fmt: skip
    plot: Path | None = option(None, "file for a plot of the sweep; needs matplotlib", "FILE.svg", group=MODELLED)
    trace: Path | None = option(
        None, "file for a Perfetto trace of the decode step, and of the prefill with --prompt; - for stdout, with "
        "other output on stderr", "FILE", group=MODELLED,
    )  # fmt: skip


def add_arguments(parser: Parser) -> None:
    parser.add_options(InspectOptions)
    parser.add_options(CommonOptions, ["json"], json="print one JSON object, with bytes as integers")
    parser.add_options(ModellingOptions)


def main(args: argparse.Namespace) -> int:
    from sscc.compiler.tools.inspection.inspection import PREFILL, inspection_of, time_prefill, time_steps
    from sscc.runtime.timing import write_trace

    check_output(args.trace)
    check_output(args.plot)
    sweep = None if args.sweep is None else parse_sweep(args.sweep)
    if args.plot is not None and sweep is None:
        raise InspectErrors.PLOT_WITHOUT_SWEEP()
    artifact = open_artifact(args.artifact)
    target = options_of(ModellingOptions, args).target_of(artifact)
    recorded = args.trace is not None
    timings = time_steps(artifact, target, args.context, staying=args.staying, record=recorded)
    if args.prompt is not None:
        timings[PREFILL] = time_prefill(artifact, target, args.prompt, record=recorded)
    inspection = inspection_of(artifact, timings, args.context, args.prompt)
    values: dict[str, Any] = asdict(inspection)
    lines = list(described(inspection))
    if args.stages:
        values["stages"] = {entry: [asdict(stage) for stage in timing.stages()] for entry, timing in timings.items()}
        for entry, timing in timings.items():
            lines += ["", *stage_lines(entry, timing)]
    if sweep is not None:
        table, points = _swept(artifact, target, sweep, args)
        values["sweep"] = {"figure": sweep.name, "points": [asdict(point) for point in points]}
        lines += ["", *table]
    if args.trace is not None:
        write_trace(args.trace, *timings.values())
    with printing_beside(args.trace):
        print(json.dumps(values) if args.json else listing(lines))
    return 0


def _swept(
    artifact: Artifact, target: Target, sweep: Sweep, args: argparse.Namespace
) -> tuple[list[str], tuple[SweepPoint, ...]]:
    """Return the table of a sweep and its points, and write the plot of `--plot`."""
    from sscc.compiler.tools.inspection.sweeps import sweep_lines, sweep_plot, swept

    points = swept(artifact, target, sweep.name, sweep.values, args.context, args.staying)
    unit = target.figures[sweep.name].unit
    if args.plot is not None:
        title = f"{artifact.path.name} on {target.name}, a decode step of {artifact.signature.batch} slots"
        with replacing(args.plot) as file:
            file.write(sweep_plot(sweep.name, unit, points, title))
    return list(sweep_lines(sweep.name, unit, points)), points
