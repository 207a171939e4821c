"""`sscc eval`: what a fixed KV budget costs a model in quality."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.compiler.tools.commands.engines import add_interpreter_arguments
from sscc.compiler.tools.commands.noise import add_quiet_argument
from sscc.compiler.tools.commands.shortening import add_draft_arguments, check_draft_arguments, keeps_of
from sscc.compiler.tools.quality import defaults
from sscc.compiler.tools.quality.cells import METHODS
from sscc.compiler.tools.quality.tasks import TASKS
from sscc.ir.choices import DTYPES
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.extras import COMPILE, require
from sscc.ir.geometry import DEFAULT_OBS, DEFAULT_POOL, KV_DTYPES, PLAIN, POOL_MODES
from sscc.ir.terminal import send_log_to_stderr, terminal_text

if TYPE_CHECKING:
    from sscc.compiler.options.policy import Rule
    from sscc.compiler.tools.quality.evaluation_plan import EvalOptions


class EvalCommandErrors(ErrorKind):
    BUILT_IN_POLICY = UsageError, "--policy {policy} is a policy that comes with sscc: give it with --methods"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="Hugging Face folder, .gguf, .pt, .pth or .pt2 file")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="RESULTS", help="folder; a run that was ended goes on there"
    )
    add_quiet_argument(parser)
    _add_task_arguments(parser.add_argument_group("tasks"))
    _add_cell_arguments(parser.add_argument_group("caches to compare"))
    add_draft_arguments(parser.add_argument_group("speculative prefill, beside whole prompts"), several=True)
    machine = parser.add_argument_group("execution")
    machine.add_argument(
        "--dtype", choices=DTYPES, metavar="TYPE", help=f"{' or '.join(DTYPES)} (default: what fits the weights)"
    )
    machine.add_argument(
        "--weights", metavar="FORMAT", help="int8 or int4, then :GROUP, as of `sscc compile` (default: as they are)"
    )
    machine.add_argument("--prefill-chunk", type=int, metavar="C", help="tokens, as of `sscc compile`")
    add_interpreter_arguments(machine)
    parser.add_argument("--no-plot", action="store_true", help="write no plot.svg")


def _add_task_arguments(group: argparse._ArgumentGroup) -> None:
    excluded = [name for name in TASKS if name not in defaults.TASKS]
    group.add_argument(
        "--tasks",
        nargs="+",
        metavar="TASK",
        help=f"{', '.join(TASKS)} (default: all but {', '.join(excluded)}, unless --examples-file is given); "
        "perplexity with --text; ruler:NAME, of RULER itself (the extra `ruler`)",
    )
    group.add_argument(
        "--lengths",
        nargs="+",
        type=int,
        default=defaults.LENGTHS,
        metavar="N",
        help="prompt tokens",
    )
    group.add_argument(
        "--examples",
        type=int,
        metavar="N",
        help=f"per task and length (default: {defaults.EXAMPLES}; all of an --examples-file)",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the examples")
    group.add_argument("--text", type=Path, metavar="FILE", help="a long text for the task perplexity, - for stdin")
    group.add_argument(
        "--score-tokens", type=int, default=defaults.SCORED, metavar="N", help="per window of perplexity"
    )
    group.add_argument(
        "--examples-file",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="JSON lines with prompt and answers, or as LongBench and RULER write them",
    )
    group.add_argument("--max-prompt", type=int, metavar="N", help="longer prompts of files lose their middle")
    group.add_argument(
        "--chat",
        action="store_true",
        help="ask in a user's turn of the checkpoint's chat template, instead of plain text to be continued; --lengths "
        "count the template's tokens too",
    )


def _add_cell_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--methods",
        nargs="+",
        default=list(defaults.METHODS),
        metavar="METHOD",
        help=f"of {', '.join(METHODS)}, the last of which holds every row",
    )
    group.add_argument(
        "--policy",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="rules of your own, FILE.py or FILE.py:CLASS as of `sscc compile`, each beside the methods; files are run",
    )
    group.add_argument(
        "--budgets",
        nargs="+",
        type=int,
        default=defaults.BUDGETS,
        metavar="ROWS",
        help="of each method's cache",
    )
    group.add_argument(
        "--kv-topk-per-layer",
        nargs="+",
        default=[],
        metavar="ROWS",
        help="of snapstream, as of `sscc compile`; each is compared with the same rows in all, shared alike",
    )
    group.add_argument(
        "--kv-landmark-bits",
        nargs="+",
        type=int,
        default=list(defaults.LANDMARK_BITS),
        metavar="BITS",
        help="of query: bits of a key's numbers to choose by, 1, 2, 4 or 16",
    )
    group.add_argument(
        "--kv-fetch",
        nargs="+",
        type=int,
        default=[],
        metavar="ROWS",
        help="of query: the most rows that a step brings anew per KV head, beside a cell without a limit",
    )
    group.add_argument(
        "--equal-bytes",
        action="store_true",
        help="also compare query in encoded rows with snapstream that holds as many bytes in plain ones",
    )
    group.add_argument(
        "--kv-dtype", nargs="+", default=[PLAIN], metavar="TYPE", choices=KV_DTYPES, help=f"{', '.join(KV_DTYPES)}"
    )
    group.add_argument("--kv-obs", type=int, metavar="N", help=f"last queries that score (default: {DEFAULT_OBS})")
    group.add_argument(
        "--kv-pool",
        nargs="+",
        type=int,
        default=[],
        metavar="N",
        help=f"odd width of the pooling (default: {DEFAULT_POOL}); several are compared",
    )
    group.add_argument(
        "--kv-pool-mode",
        choices=POOL_MODES,
        metavar="MODE",
        help=f"{' or '.join(POOL_MODES)} (default: {POOL_MODES[0]})",
    )
    group.add_argument("--kv-sink", type=int, metavar="ROWS", help="of snapstream, query and streamingllm (default: 4)")
    group.add_argument("--kv-recent", type=int, metavar="ROWS", help="of snapstream and query (default: by the budget)")


def options_from(args: argparse.Namespace) -> EvalOptions:
    """The checked options of a parsed command line. Raises UsageError."""
    from sscc.compiler.options.layer_topk import LayerTopk
    from sscc.compiler.tools.quality.cells import Selection
    from sscc.compiler.tools.quality.evaluation_plan import EvalOptions
    from sscc.compiler.tools.quality.model_files import Numbers
    from sscc.ir.weight_formats.registry import parse_format

    check_draft_arguments(args)
    default_tasks = () if args.examples_file else defaults.TASKS
    tasks = default_tasks if args.tasks is None else tuple(args.tasks)
    examples = defaults.EXAMPLES if args.examples is None and tasks else args.examples
    weights = None if args.weights is None else parse_format(args.weights)
    pool, pools = (args.kv_pool[0], ()) if len(args.kv_pool) == 1 else (None, tuple(args.kv_pool))
    return EvalOptions(
        model=args.model,
        tasks=tasks,
        files=tuple(args.examples_file),
        lengths=tuple(args.lengths),
        budgets=tuple(args.budgets),
        methods=tuple(args.methods),
        kv_dtypes=tuple(args.kv_dtype),
        selection=Selection(args.kv_obs, pool, args.kv_pool_mode, args.kv_sink, args.kv_recent),
        layer_topks=tuple(map(LayerTopk.parse, args.kv_topk_per_layer)),
        landmark_bits=tuple(args.kv_landmark_bits),
        pools=pools,
        fetches=tuple(args.kv_fetch),
        rules=tuple(map(_rule, args.policy)),
        draft=args.draft,
        keeps=() if args.draft is None else tuple(keeps_of(args)),
        delimiter=args.keep_delimiter,
        equal_bytes=args.equal_bytes,
        examples=examples,
        seed=args.seed,
        text=args.text,
        scored=args.score_tokens,
        longest=args.max_prompt,
        chat=args.chat,
        numbers=Numbers(args.dtype, weights, args.prefill_chunk),
        interpreter=args.interpreter,
        threads=args.threads,
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
    # The results of hours of work come first: a plot that fails takes none of them along.
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
