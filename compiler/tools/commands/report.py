"""`sscc report`: an HTML page about an artifact, or its graph for another viewer."""

from __future__ import annotations

import argparse
import sys
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.compiler.options.modelling_options import ModellingOptions
from sscc.compiler.tools.commands.engines import open_artifact
from sscc.compiler.tools.commands.parser import CommonOptions, Parser
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.files import STANDARD
from sscc.ir.option import option, options_of
from sscc.ir.sizes import format_bytes

if TYPE_CHECKING:
    from sscc.compiler.tools.report.report_inputs import Sources

SUFFIXES = {"html": ".html", "dot": ".dot", "model-explorer": ".json"}


class ReportCommandErrors(ErrorKind):
    OPTION_OF_PAGE = (
        UsageError,
        "--{form} writes only the graph, but --bench, --ir-dir and --prompt-file are for the page: leave them out",
    )


PAGE = "further contents of the page"
"""Heading of these options in `--help`."""


@dataclass(frozen=True)
class ReportOptions:
    """Options of a report."""

    artifact: Path = option(MISSING, "artifact that `sscc compile` wrote", "OUT.rdu", positional=True)
    output: Path | None = option(
        None, "file to write; - for stdout", "FILE", flags=("-o", "--output"),
        default="OUT.html, with --dot OUT.dot, with --model-explorer OUT.json",
    )  # fmt: skip
    dot: bool = option(
        False, "write only the graph of kernels and stages, as Graphviz text", one_of="form"
    )
    model_explorer: bool = option(
        False, "write the same graph as JSON for Google's Model Explorer", one_of="form"
    )
    bench: Path | None = option(
        None, "measurements of `sscc bench OUT.rdu --json`, to compare with the modelled times", "FILE", group=PAGE
    )
    ir_dir: Path | None = option(
        None, "folder of `sscc compile --dump-ir-dir`, to show the changes of each pass", "DIR", group=PAGE
    )
    prompt_file: Path | None = option(
        None, "prompt whose kept tokens the page shows by layer and head; - for stdin", "FILE",
        group=PAGE,
    )  # fmt: skip


def add_arguments(parser: Parser) -> None:
    parser.add_options(ReportOptions)
    parser.add_options(CommonOptions, ["quiet"])
    parser.add_options(ModellingOptions)


def main(args: argparse.Namespace) -> int:
    from sscc.compiler.options.outputs import write_text
    from sscc.compiler.tools.report.report_inputs import Sources

    form = "dot" if args.dot else "model-explorer" if args.model_explorer else "html"
    if form != "html" and (args.bench, args.ir_dir, args.prompt_file) != (None, None, None):
        raise ReportCommandErrors.OPTION_OF_PAGE(form=form)
    artifact = open_artifact(args.artifact)
    sources = Sources.read(
        artifact,
        options_of(ModellingOptions, args).target_of(artifact),
        context=args.context,
        prompt=args.prompt,
        staying=args.staying,
        bench=args.bench,
        dumps=args.ir_dir,
        text=args.prompt_file,
    )
    text = _text(sources, form)
    output = args.output or Path(Path(sources.name).stem + SUFFIXES[form])
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
