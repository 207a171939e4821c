"""`sscc eval`: quality of a model with fixed KV budgets, against the full cache."""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.compiler.options.compile_options import CompileOptions
from sscc.compiler.options.execution_options import DEFAULT_KEEP, EXECUTION
from sscc.compiler.tools.commands.parser import CommonOptions, Parser
from sscc.compiler.tools.quality.cells import Selection
from sscc.compiler.tools.quality.eval_options import CELLS, DEFAULT_EXAMPLES, DEFAULT_TASKS, EvalOptions, Numbers
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.extras import COMPILE, require
from sscc.ir.option import option, options_of, records_of
from sscc.ir.terminal import send_log_to_stderr, terminal_text
from sscc.ir.weight_formats.registry import parse_format

if TYPE_CHECKING:
    from sscc.compiler.options.policy import Rule


class EvalCommandErrors(ErrorKind):
    BUILT_IN_POLICY = UsageError, "--kv-policy {policy} is a built-in policy: use --methods {policy}"


@dataclass(frozen=True)
class ResultOptions:
    """Options of the results of an evaluation."""

    output: Path = option(
        MISSING, "folder of the results; an interrupted run with the same folder continues", "RESULTS",
        flags=("-o", "--output"),
    )
    no_plot: bool = option(False, "do not write plot.svg")
    weights: str | None = option(
        None, "format of quantized weights: int8 or int4, then :GROUP, as in `sscc compile`", "FORMAT", group=EXECUTION,
        default="as stored",
    )  # fmt: skip


def add_arguments(parser: Parser) -> None:
    parser.add_options(EvalOptions, ["model"])
    parser.add_options(ResultOptions)
    parser.add_options(CommonOptions, ["quiet"])
    parser.add_options(EvalOptions, [name for name in records_of(EvalOptions) if name != "model"])
    parser.add_options(CompileOptions, ["kv_obs", "kv_pool_mode", "kv_sink", "kv_recent"], heading=CELLS)
    parser.add_options(CompileOptions, ["dtype", "prefill_chunk"], heading=EXECUTION)


def options_from(args: argparse.Namespace) -> EvalOptions:
    """Return the checked options of a parsed command line. Raises UsageError."""
    from sscc.compiler.options.layer_topk import LayerTopk

    default_tasks = () if args.files else DEFAULT_TASKS
    tasks = default_tasks if args.tasks is None else tuple(args.tasks)
    pool, pools = (args.pools[0], ()) if len(args.pools) == 1 else (None, tuple(args.pools))
    weights = None if args.weights is None else parse_format(args.weights)
    return options_of(
        EvalOptions,
        args,
        tasks=tasks,
        examples=DEFAULT_EXAMPLES if args.examples is None and tasks else args.examples,
        selection=Selection(args.kv_obs, pool, args.kv_pool_mode, args.kv_sink, args.kv_recent),
        pools=pools,
        layer_topks=tuple(map(LayerTopk.parse, args.layer_topks)),
        rules=tuple(map(_rule, args.rules)),
        keeps=tuple(args.keeps) or (() if args.draft is None else (DEFAULT_KEEP,)),
        numbers=Numbers(args.dtype, weights, args.prefill_chunk),
    )


def _rule(file: str) -> Rule:
    from sscc.compiler.options.policy import Rule, policy_of

    rule = policy_of(file)
    if not isinstance(rule, Rule):
        raise EvalCommandErrors.BUILT_IN_POLICY(policy=file)
    return rule


def main(args: argparse.Namespace) -> int:
    send_log_to_stderr(logging.WARNING, "sscc: %(message)s")
    from sscc.compiler.options.outputs import StdoutErrors, refuse_stdout, write_text

    refuse_stdout(args.output, StdoutErrors.EVALUATION)
    options = options_from(args)
    require(COMPILE, "sscc eval")
    from sscc.compiler.tools.quality import tables as report
    from sscc.compiler.tools.quality.plot import plot, require_plotting
    from sscc.compiler.tools.quality.runner import evaluate
    from sscc.ir.files import replacing

    if not args.no_plot:
        require_plotting()
    evaluation = evaluate(options, args.output)
    # Written before the plot, so that an error of the plot does not lose hours of results.
    write_text(args.output / "results.json", report.to_json(report.results(options, evaluation)))
    write_text(args.output / "report.md", report.page(options, evaluation, None))
    shown = [*report.tables(evaluation.cells), report.paired(evaluation.cells)]
    print(terminal_text("\n\n".join(report.text(table) for table in shown if table is not None)))
    if not args.no_plot:
        drawn = args.output / "plot.svg"
        with replacing(drawn) as file:
            file.write(plot(evaluation.cells, options.model.name))
        write_text(args.output / "report.md", report.page(options, evaluation, drawn))
    if not args.quiet:
        print(f"sscc: wrote {args.output}", file=sys.stderr)
    return 0
