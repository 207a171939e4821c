"""`sscc inspect`: what an artifact is, what a decode step moves, and how long the modelled machine takes for it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from sscc.compiler.options.outputs import printing_beside
from sscc.compiler.tools.commands.engines import open_artifact
from sscc.compiler.tools.commands.modelling import add_modelling_arguments, target_of
from sscc.compiler.tools.inspection.inspection_words import described
from sscc.ir.files import check_output
from sscc.ir.terminal import listing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="OUT.rdu", help="what `sscc compile` wrote")
    parser.add_argument("--json", action="store_true", help="one object, for programs; bytes as integers")
    add_modelling_arguments(parser, prompt="time the prefill of N tokens too (default: no prefill)")
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
    artifact = open_artifact(args.artifact)
    target = target_of(artifact, args)
    inspection = inspect_artifact(artifact, target, context=args.context, prompt=args.prompt, staying=args.staying)
    if args.trace is not None:
        timings = [time_decode(artifact, target, args.context, staying=args.staying, record=True)]
        if args.prompt:
            timings.append(time_prefill(artifact, target, args.prompt, record=True))
        write_trace(args.trace, *timings)
    with printing_beside(args.trace):
        print(json.dumps(asdict(inspection)) if args.json else listing(described(inspection)))
    return 0
