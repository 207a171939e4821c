"""`sscc inspect`: sizes of an artifact, bytes that a decode step moves, and its time on the modelled machine."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sscc.compiler.options.outputs import printing_beside
from sscc.compiler.tools.commands.engines import open_artifact
from sscc.compiler.tools.commands.modelling import Sweep, add_modelling_arguments, parse_sweep, target_of
from sscc.compiler.tools.inspection.inspection_words import described, stage_lines
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.files import check_output, replacing
from sscc.ir.terminal import listing

if TYPE_CHECKING:
    from sscc.compiler.tools.inspection.sweeps import SweepPoint
    from sscc.ir.target import Target
    from sscc.runtime.session.artifact import Artifact


class InspectErrors(ErrorKind):
    PLOT_WITHOUT_SWEEP = UsageError, "--plot draws a sweep: give --sweep NAME=VALUES, too"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="OUT.rdu", help="what `sscc compile` wrote")
    parser.add_argument("--json", action="store_true", help="one object, for programs; bytes as integers")
    parser.add_argument(
        "--stages", action="store_true", help="every stage: bytes, operations, busy time, and the limit of its time"
    )
    add_modelling_arguments(parser, prompt="time the prefill of N tokens too (default: no prefill)")
    parser.add_argument(
        "--sweep",
        metavar="NAME=VALUES",
        help="the decode step for each value of a figure of the machine: hbm.bandwidth=1e12,2e12 or "
        "hbm.bandwidth=1e12..4e12:7",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the sweep; needs matplotlib")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write a trace for Perfetto of the decode step, and of the prefill with --prompt; - for stdout, and then "
        "what else is printed goes to stderr",
    )


def main(args: argparse.Namespace) -> int:
    from sscc.compiler.tools.inspection.inspection import inspect_artifact, time_decode, time_prefill
    from sscc.runtime.timing import write_trace

    check_output(args.trace)
    check_output(args.plot)
    sweep = None if args.sweep is None else parse_sweep(args.sweep)
    if args.plot is not None and sweep is None:
        raise InspectErrors.PLOT_WITHOUT_SWEEP()
    artifact = open_artifact(args.artifact)
    target = target_of(artifact, args)
    inspection = inspect_artifact(artifact, target, context=args.context, prompt=args.prompt, staying=args.staying)
    values: dict[str, Any] = asdict(inspection)
    lines = list(described(inspection))
    if args.stages:
        timings = {"decode": time_decode(artifact, target, args.context, staying=args.staying)}
        if args.prompt:
            timings["prefill"] = time_prefill(artifact, target, args.prompt)
        values["stages"] = {entry: [asdict(stage) for stage in timing.stages()] for entry, timing in timings.items()}
        for entry, timing in timings.items():
            lines += ["", *stage_lines(entry, timing)]
    if sweep is not None:
        table, points = _swept(artifact, target, sweep, args)
        values["sweep"] = {"figure": sweep.name, "points": [asdict(point) for point in points]}
        lines += ["", *table]
    if args.trace is not None:
        recordings = [time_decode(artifact, target, args.context, staying=args.staying, record=True)]
        if args.prompt:
            recordings.append(time_prefill(artifact, target, args.prompt, record=True))
        write_trace(args.trace, *recordings)
    with printing_beside(args.trace):
        print(json.dumps(values) if args.json else listing(lines))
    return 0


def _swept(
    artifact: Artifact, target: Target, sweep: Sweep, args: argparse.Namespace
) -> tuple[list[str], tuple[SweepPoint, ...]]:
    """Return the table of a sweep and its points, and draw the plot that --plot asks for."""
    from sscc.compiler.tools.inspection.sweeps import sweep_lines, sweep_plot, swept

    points = swept(artifact, target, sweep.name, sweep.values, args.context, args.staying)
    unit = target.figures[sweep.name].unit
    if args.plot is not None:
        title = f"{artifact.path.name} on {target.name}, a decode step of {artifact.signature.batch} slots"
        with replacing(args.plot) as file:
            file.write(sweep_plot(sweep.name, unit, points, title))
    return list(sweep_lines(sweep.name, unit, points)), points
