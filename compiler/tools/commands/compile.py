"""`sscc compile`: a model becomes an artifact."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from sscc.compiler.driver.compile_result import CompileResult
from sscc.compiler.options.compile_options import (
    DEFAULT_BATCH,
    DEFAULT_BUDGET,
    DEFAULT_CHUNK,
    DEFAULT_GOLDEN_TOKENS,
    CompileOptions,
    parse_weights,
)
from sscc.compiler.options.garbage import collected_rarely
from sscc.compiler.options.progress import status
from sscc.compiler.tools.commands.noise import add_quiet_argument
from sscc.ir.choices import DTYPES, LEVELS, SUMS
from sscc.ir.errors import ErrorKind, UsageError, printable
from sscc.ir.extras import COMPILE, require
from sscc.ir.files import STANDARD
from sscc.ir.geometry import (
    DEFAULT_LANDMARK_BITS,
    DEFAULT_OBS,
    DEFAULT_POOL,
    DEFAULT_RECENT,
    DEFAULT_SINK,
    KV_DTYPES,
    KV_POLICIES,
    KV_ROWS,
    POOL_MODES,
)
from sscc.ir.stopwatch import Stopwatch, recorded
from sscc.ir.terminal import send_log_to_stderr
from sscc.runtime.backends.registry import DEFAULT_BACKEND, backend_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        type=Path,
        metavar="MODEL",
        help="Hugging Face folder, .gguf, .pt, .pth or .pt2 file; a config.json with --no-weights; a dumped .mlir, "
        "- for one on stdin",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="OUT",
        help="- for stdout, of a lower level's text (default: MODEL's stem + .rdu, in this folder)",
    )
    parser.add_argument("--target", default="rdu", help="rdu, rdu:NAME or rdu:FILE: see `sscc targets`")
    parser.add_argument("--config", type=Path, metavar="FILE", help="config.json for a .pt with a bare state_dict")
    parser.add_argument(
        "--trust-pt2", action="store_true", help="load a .pt2 with torch's own reader, which runs code from the file"
    )
    parser.add_argument(
        "-O",
        dest="opt_level",
        type=int,
        default=2,
        metavar="LEVEL",
        help="0: one kernel per operation; 1: one per layer; 2: one per run of equal layers",
    )
    parser.add_argument(
        "--tp",
        type=int,
        metavar="N",
        help="tensor parallelism: cut heads, feed-forward, experts and vocabulary over N ranks, which run together "
        "(default: 1)",
    )
    parser.add_argument(
        "--tp-sums",
        choices=SUMS,
        default=SUMS[0],
        help="as what ranks exchange parts of sums: f32, as they are accumulated, or model, rounded to the program's "
        "dtype before, which halves the bytes in bf16",
    )
    _add_cache_arguments(parser.add_argument_group("cache (rows are tokens, per layer and KV head)"))
    _add_graph_arguments(parser.add_argument_group("static graphs"))
    _add_content_arguments(parser.add_argument_group("contents of the artifact"))
    _add_ir_arguments(parser.add_argument_group("intermediate representation"))
    noise = parser.add_mutually_exclusive_group()
    add_quiet_argument(noise)
    noise.add_argument("-v", "--verbose", action="store_true", help="print what each pass did")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout: path, report, warnings")


def _add_cache_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--kv-budget",
        type=int,
        metavar="ROWS",
        help="all rows; what sinks and ring leave is top-K "
        f"(default: {DEFAULT_BUDGET}, or a 16th of the context where that is more)",
    )
    group.add_argument("--kv-sink", type=int, metavar="ROWS", help=f"first tokens, kept (default: {DEFAULT_SINK})")
    group.add_argument("--kv-recent", type=int, metavar="ROWS", help=f"newest tokens (default: up to {DEFAULT_RECENT})")
    group.add_argument(
        "--kv-topk",
        type=int,
        metavar="ROWS",
        help="tokens picked from the prompt, 0 for StreamingLLM (default: the rest of the budget)",
    )
    group.add_argument(
        "--kv-topk-per-layer",
        metavar="ROWS",
        help="the same where layers differ: N,N,.. for each layer without a sliding window, pyramid:FIRST,LAST, or a "
        "file of numbers",
    )
    group.add_argument("--kv-obs", type=int, metavar="N", help=f"last queries that score (default: {DEFAULT_OBS})")
    group.add_argument("--kv-pool", type=int, metavar="N", help=f"odd width of the pooling (default: {DEFAULT_POOL})")
    group.add_argument(
        "--kv-pool-mode",
        choices=POOL_MODES,
        metavar="MODE",
        help=f"{' or '.join(POOL_MODES)} (default: {POOL_MODES[0]})",
    )
    group.add_argument(
        "--kv-policy",
        "--policy",
        metavar="WHO",
        help=f"{KV_POLICIES[0]}: the end of the prompt picks, once; {KV_POLICIES[1]}: all rows are kept and every step "
        f"picks anew; FILE.py or FILE.py:CLASS: the end of the prompt by a rule of your own, whose file is run "
        f"(default: {KV_POLICIES[0]})",
    )
    group.add_argument(
        "--kv-landmark-bits",
        type=int,
        metavar="BITS",
        help=f"with --kv-policy query: of the keys' copies that a step picks by, 1, 2, 4, or 16, the keys themselves "
        f"(default: {DEFAULT_LANDMARK_BITS})",
    )
    group.add_argument(
        "--kv-fetch",
        type=int,
        metavar="ROWS",
        help="with --kv-policy query: the most rows that a step brings from the store per KV head, up to --kv-topk; it "
        "attends to these and to rows that stay from the step before (default: no limit)",
    )
    group.add_argument(
        "--kv-rows",
        choices=KV_ROWS,
        metavar="WHERE",
        help=f"{KV_ROWS[0]}: picked rows are copied; {KV_ROWS[1]}: they stay in the prompt's K and V (default: "
        f"{KV_ROWS[0]}, and {KV_ROWS[1]} with --kv-policy query)",
    )
    group.add_argument(
        "--kv-dtype",
        choices=KV_DTYPES,
        metavar="TYPE",
        help=f"{KV_DTYPES[0]}: rows of the program's dtype; {KV_DTYPES[1]}: codes of 8 bits, a scale a row; "
        f"{KV_DTYPES[2]}: of 4 bits, one for 32 numbers (default: {KV_DTYPES[0]})",
    )


def _add_graph_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-context", type=int, metavar="N", help="prompt plus new tokens (default: the model's)")
    group.add_argument("--batch", type=int, metavar="B", help=f"sequences decoded at once (default: {DEFAULT_BATCH})")
    group.add_argument("--prefill-chunk", type=int, metavar="C", help=f"tokens (default: up to {DEFAULT_CHUNK})")
    group.add_argument(
        "--dtype", choices=DTYPES, metavar="TYPE", help=f"{' or '.join(DTYPES)} (default: what fits the weights)"
    )


def _add_content_arguments(group: argparse._ArgumentGroup) -> None:
    weights = group.add_mutually_exclusive_group()
    weights.add_argument(
        "--weights",
        metavar="HOW",
        help="embed, or reference by digest; int8 or int4, then :GROUP (32), then :zero-point: weights of products are "
        "quantized; keep: as a quantized checkpoint stores them; dense: as numbers; or both words: reference,int4 "
        "(default: embed, and keep for a quantized checkpoint)",
    )
    weights.add_argument(
        "--no-weights", action="store_true", help="from the config alone, for models too large to load"
    )
    group.add_argument(
        "--lora", type=Path, metavar="FOLDER", help="LoRA adapter to merge into the weights, as PEFT saves it"
    )
    group.add_argument(
        "--pack-for",
        default=DEFAULT_BACKEND,
        choices=backend_names(),
        metavar="BACKEND",
        help=f"pack weights as this backend reads them: {' or '.join(backend_names())}; other backends unpack them",
    )
    group.add_argument(
        "--no-native-code",
        dest="native_code",
        action="store_false",
        default=argparse.SUPPRESS,
        help="do not compile the schedule for this CPU; `sscc run` does it then",
    )
    group.add_argument(
        "--save-golden", action="store_true", help="record eager PyTorch's outputs for `sscc run --check`"
    )
    group.add_argument(
        "--golden-prompt-file",
        type=Path,
        metavar="FILE",
        help="prompt to record, - for stdin (default: a text built in)",
    )
    group.add_argument("--golden-tokens", type=int, metavar="N", help=f"to record (default: {DEFAULT_GOLDEN_TOKENS})")


def _add_ir_arguments(group: argparse._ArgumentGroup) -> None:
    levels = ", ".join(LEVELS)
    group.add_argument("--dump-ir-dir", type=Path, metavar="DIR", help="write a file per level and per pass that acted")
    group.add_argument("--print-ir-before", action="append", metavar="PASS", help="on stderr; a pass or all")
    group.add_argument("--print-ir-after", action="append", metavar="PASS", help="on stderr; a pass, all or change")
    add_excerpt_arguments(group)
    group.add_argument("--timing", action="store_true", help="report the seconds of each stage and pass")
    group.add_argument("--pass-statistics", action="store_true", help="report what each pass counted")
    group.add_argument(
        "--compile-to", default=LEVELS[-1], choices=LEVELS, metavar="LEVEL", help=f"stop after one of: {levels}"
    )
    group.add_argument("--compile-from", choices=LEVELS[:-1], metavar="LEVEL", help="MODEL is a dump of this level")
    group.add_argument(
        "--as-is",
        action="store_true",
        help="with --compile-from: go on with any module that is legal at its level, whatever passes have run on it",
    )
    add_load_pass_argument(group)
    group.add_argument("--checkpoint", type=Path, metavar="PATH", help="weights for --compile-from")


def add_load_pass_argument(group: argparse._ActionsContainer) -> None:
    """Add the option that loads passes of the user."""
    group.add_argument(
        "--load-pass",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a file with passes of yours, which is executed, or the name of an installed package's; repeatable",
    )


def add_excerpt_arguments(group: argparse._ActionsContainer) -> None:
    """What of the IR is shown, for all commands that print it."""
    group.add_argument(
        "--ir-function", metavar="NAME", help="show functions of this name, or pattern with * and ? (default: all)"
    )
    group.add_argument("--no-ir-locations", dest="ir_locations", action="store_false", help="leave out locations")


def options_from(args: argparse.Namespace) -> CompileOptions:
    """The checked options of a parsed command line. Raises UsageError."""
    names = [name for name in CompileOptions.__dataclass_fields__ if hasattr(args, name)]
    values: dict[str, Any] = {name: getattr(args, name) for name in names}
    values["weights"], values["weight_format"] = parse_weights(args.weights or "embed")
    if args.no_weights:
        values["weights"] = "none"
    for name in ("print_ir_before", "print_ir_after", "load_pass"):
        values[name] = tuple(values[name] or ())
    return CompileOptions(**values)


class CompileCommandErrors(ErrorKind):
    JSON_BESIDE_OUTPUT = UsageError, "--json prints on stdout, where the output goes too: name a file with --output"


def main(args: argparse.Namespace) -> int:
    options = options_from(args)
    if args.json and options.output_path == STANDARD:
        raise CompileCommandErrors.JSON_BESIDE_OUTPUT()
    printing = bool(options.print_ir_before or options.print_ir_after)
    with status("starting", quiet=args.quiet or args.verbose or printing) as update:
        result = _compile(args, options, Stopwatch(args.began, update))
    if not args.quiet:
        for line in result.report:
            print(printable(line), file=sys.stderr)
        if result.path != STANDARD:
            print(f"sscc: wrote {result.path}", file=sys.stderr)
    if args.json:
        warnings = [warning.as_json() for warning in result.warnings]
        print(json.dumps({"path": str(result.path), "report": list(result.report), "warnings": warnings}))
    return 0


def _compile(args: argparse.Namespace, options: CompileOptions, stopwatch: Stopwatch) -> CompileResult:
    level = logging.WARNING if args.quiet else logging.DEBUG if args.verbose else logging.INFO
    send_log_to_stderr(logging.ERROR if args.quiet else logging.WARNING)
    logging.getLogger("sscc").setLevel(level)

    require(COMPILE, "sscc compile")
    with collected_rarely():
        with stopwatch.phase("imports"):
            from sscc.compiler.driver.driver import compile_model
            from sscc.compiler.frontend.quiet import quiet_libraries

        with quiet_libraries() if args.quiet else nullcontext(), recorded(stopwatch):
            return compile_model(options)
