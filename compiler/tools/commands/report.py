"""`sscc report`: a page about an artifact, or its graph for another viewer."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.compiler.tools.commands.engines import open_artifact
from sscc.compiler.tools.commands.modelling import add_modelling_arguments, target_of
from sscc.compiler.tools.commands.noise import add_quiet_argument
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.files import STANDARD
from sscc.ir.sizes import format_bytes

if TYPE_CHECKING:
    from sscc.compiler.tools.report.report_inputs import Sources

SUFFIXES = {"html": ".html", "dot": ".dot", "model-explorer": ".json"}


class ReportCommandErrors(ErrorKind):
    OPTION_OF_PAGE = (
        UsageError,
        "--{form} writes the graph alone, and --bench, --ir-dir and --prompt-file are for the page: leave them out",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="OUT.rdu", help="what `sscc compile` wrote")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="where to write; - for stdout (default: OUT.html, with --dot OUT.dot, with --model-explorer OUT.json)",
    )
    add_quiet_argument(parser)
    forms = parser.add_mutually_exclusive_group()
    forms.set_defaults(form="html")
    forms.add_argument(
        "--dot",
        dest="form",
        action="store_const",
        const="dot",
        help="the graph of kernels and stages alone, as Graphviz text, instead of the page",
    )
    forms.add_argument(
        "--model-explorer",
        dest="form",
        action="store_const",
        const="model-explorer",
        help="the same graph as JSON that Google's Model Explorer opens",
    )
    more = parser.add_argument_group("what else the page shows")
    measured = "measurements that `sscc bench OUT.rdu --json` wrote, beside the model"
    more.add_argument("--bench", type=Path, metavar="FILE", help=measured)
    more.add_argument(
        "--ir-dir",
        type=Path,
        metavar="DIR",
        help="the folder of `sscc compile --dump-ir-dir`: what each pass changed",
    )
    more.add_argument(
        "--prompt-file",
        type=Path,
        metavar="FILE",
        help="a text, - for stdin, which the program runs: what its cache keeps of it, by layer and head",
    )
    machine = parser.add_argument_group("modelled times")
    add_modelling_arguments(machine, prompt="tokens of the prefill (default: a chunk)")


def main(args: argparse.Namespace) -> int:
    from sscc.compiler.options.outputs import write_text
    from sscc.compiler.tools.report.report_inputs import Sources

    if args.form != "html" and (args.bench, args.ir_dir, args.prompt_file) != (None, None, None):
        raise ReportCommandErrors.OPTION_OF_PAGE(form=args.form)
    artifact = open_artifact(args.artifact)
    sources = Sources.read(
        artifact,
        target_of(artifact, args),
        context=args.context,
        prompt=args.prompt,
        staying=args.staying,
        bench=args.bench,
        dumps=args.ir_dir,
        text=args.prompt_file,
    )
    text = _text(sources, args.form)
    output = args.output or Path(Path(sources.name).stem + SUFFIXES[args.form])
    write_text(output, text)
    if output != STANDARD and not args.quiet:
        print(f"sscc: wrote {output}: {format_bytes(len(text.encode()))}", file=sys.stderr)
    return 0


def _text(sources: Sources, form: str) -> str:
    if form == "html":
        from sscc.compiler.tools.report.page import render

        return render(sources)
    from sscc.compiler.tools.report.dot import dot_text
    from sscc.compiler.tools.report.graph import kernel_graphs
    from sscc.compiler.tools.report.model_explorer import model_explorer_text

    graphs = [g for timing in sources.timings.values() for g in kernel_graphs(sources.artifact.program, timing)]
    return (dot_text if form == "dot" else model_explorer_text)(sources.name, graphs)
