"""`sscc bisect`: search for the first pass that changes a model's outputs."""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sscc.compiler.options.compile_options import CACHE, GRAPH, CompileOptions
from sscc.compiler.options.progress import status
from sscc.compiler.tools.commands.compile import WeightlessOption
from sscc.compiler.tools.commands.parser import CommonOptions, Parser
from sscc.ir.choices import LEVELS, PRECISIONS
from sscc.ir.errors import CheckError, ErrorKind, InputError, SsccError, UsageError
from sscc.ir.extras import COMPILE, require
from sscc.ir.files import STANDARD, shown_name
from sscc.ir.option import FINITE, option, option_like, options_of, records_of
from sscc.ir.terminal import send_log_to_stderr
from sscc.ir.weight_formats.registry import WeightChoice, order_of, parse_format

if TYPE_CHECKING:
    from torch import Tensor
    from torch_mlir import ir

    from sscc.compiler.driver.driver import Source
    from sscc.compiler.interpret.bisection import Bisection, StepOutcome
    from sscc.runtime.artifact.tensor_files import Layout

DUMP = ".mlir"
TOLERANCE = {"f32": 1e-5, "bf16": 5e-2, "f64": 1e-9}
"""Largest ||a - b|| / ||b|| of a step's logits, by the dtype in which they are computed. A pass may change the order of
sums and, in bf16, where intermediate values are rounded."""


class BisectErrors(ErrorKind):
    STDIN_TWICE = UsageError, "both dumps are -, but stdin holds one: give a file name for the other"
    NOT_TWO_DUMPS = UsageError, "two files are compared without passes: give two .mlir dumps, and no --pass-pipeline"
    LACKS_LAYERS = InputError, "{dump} lacks layers, because {cause}: start from the model"
    NOTHING_RUN = (
        UsageError,
        "no executable level was reached: --compile-to or --pass-pipeline ends too early",
    )
    OUTPUTS_CHANGED = (
        CheckError,
        "{step} changes the outputs: ||a - b|| / ||b|| against {first} is {error:.3g}, above the tolerance of "
        "{tolerance:g}",
    )
    NOT_RUNNABLE = CheckError, "the program no longer runs after {step}: {problem}"


SEED = 0
"""Seed of tokens and random weights."""
TRIAL = "inputs and comparison"
"""Heading of these options in `--help`."""


@dataclass(frozen=True)
class BisectOptions:
    """Options of a search for the pass that changes outputs."""

    other: Path | None = option(
        None, "second dump, compared with the first without running passes", "OTHER.mlir", positional=True
    )
    pass_pipeline: str | None = option(
        None, "passes to run on the dump or the model", "PASSES", default="the remaining passes of the -O level"
    )
    weight_format: WeightChoice | None = option(
        None, "format of quantized weights in every run: keep, dense, or int8 or int4, then :GROUP, then "
        ":zero-point", "FORMAT", default="keep for a quantized checkpoint", flags=("--weights",),
        parse=parse_format,
    )  # fmt: skip
    compile_to: str = option_like(CompileOptions, "compile_to", LEVELS[-1], group="", choices=LEVELS[1:])
    tolerance: float | None = option(
        None, "largest ||a - b|| / ||b|| that is accepted as rounding", "X", group=TRIAL,
        default=", ".join(f"{value:.0e} in {name}" for name, value in TOLERANCE.items()), least=0, most=FINITE,
    )  # fmt: skip
    prompt_tokens: int | None = option(
        None, "random tokens of the prompt", "N", group=TRIAL, default="1.25 times the cache"
    )
    steps: int = option(4, "decode steps", "N", group=TRIAL)
    precision: str = option(
        "f32", "precision of the interpreter: f32, the program's dtypes, or f64", "TYPE", group=TRIAL,
        choices=PRECISIONS,
    )  # fmt: skip


def add_arguments(parser: Parser) -> None:
    model = "model, as for `sscc compile`, or a dump (.mlir); - for a dump on stdin"
    parser.add_options(CompileOptions, ["model"], model=model)
    parser.add_options(BisectOptions)
    names = ("opt_level", "load_pass", "tp", "target", "config", "trust_pt2", "checkpoint")
    parser.add_options(CompileOptions, names, heading="", checkpoint="weights of a dump (default: random ones)")
    parser.add_options(WeightlessOption, heading="", no_weights="use random weights, from the config alone")
    parser.add_options(CommonOptions, json="print one JSON object per line")
    records = records_of(CompileOptions)
    parser.add_options(CompileOptions, [name for name in records if records[name].group in (CACHE, GRAPH)])


def main(args: argparse.Namespace) -> int:
    if args.model == args.other == STANDARD:
        raise BisectErrors.STDIN_TWICE()
    if args.other is not None and (args.pass_pipeline is not None or not _is_dump(args.model)):
        raise BisectErrors.NOT_TWO_DUMPS()
    require(COMPILE, "sscc bisect")
    send_log_to_stderr(logging.WARNING)

    from sscc.compiler.driver.dumps import read_dump
    from sscc.ir.context import mlir
    from sscc.passes.split_layers import LayersDiffer

    with mlir():
        dump = read_dump(args.model) if _is_dump(args.model) else None
        options = _options(args, dump)
        try:
            return _bisect(args, options, _open(options, dump))
        except LayersDiffer as difference:
            if options.compile_from is not None:
                raise BisectErrors.LACKS_LAYERS(dump=args.model, cause=difference) from None
            return _bisect(args, options, _open(options, dump, every_layer=True))


# ----------------------------------------------------------------------------------------- starting module


def _is_dump(model: Path) -> bool:
    return model.suffix == DUMP or model == STANDARD


def _options(args: argparse.Namespace, dump: ir.Module | None) -> CompileOptions:
    """Return the options of the compilation. A dump's attributes contain its level, so no option gives it."""
    others: dict[str, Any] = {"weight_format": args.weight_format}
    if dump is not None:
        from sscc.ir.levels import get_level

        others |= {"compile_from": get_level(dump), "compile_to": LEVELS[-1]}
    without = args.no_weights or (dump is not None and args.checkpoint is None)
    if args.model == STANDARD:  # an artifact would need a name; nothing is written here
        others["output"] = Path("stdin.rdu")
    return options_of(CompileOptions, args, weights="none" if without else "reference", **others)


def _open(options: CompileOptions, dump: ir.Module | None, *, every_layer: bool = False) -> Source:
    from sscc.compiler.driver import driver

    if dump is not None:
        return driver._from_dump(options, dump)
    return driver._from_model(options, driver._opened(options, None), every_layer=every_layer)


# ----------------------------------------------------------------------------------------------- comparison


def _dtype(source: Source) -> str:
    """Return the dtype of the program's activations."""
    from sscc.ir.context import mlir
    from sscc.ir.levels import get_facts

    with mlir():
        return get_facts(source.module)[0].dtype


def _bisect(args: argparse.Namespace, options: CompileOptions, source: Source) -> int:
    from sscc.compiler.interpret.bisection import Bisection, Trial

    bisection = Bisection(
        lambda weights, constants: _tensors(args, source, weights, constants),
        lambda signature: Trial.random(signature, args.prompt_tokens, args.steps, SEED),
        args.precision,
        *(() if source.checkpoint is None else (source.checkpoint.kept,)),
    )
    dtype = "f64" if args.precision == "f64" else _dtype(source)
    tolerance = TOLERANCE[dtype] if args.tolerance is None else args.tolerance
    first = ""
    with status("running the program before all passes") as update:
        for outcome in _outcomes(args, options, source, bisection):
            _print(outcome, args.json, header=not first)
            if not outcome.error <= tolerance:
                raise _verdict(outcome, first, tolerance)
            first = first or outcome.name
            update(f"running the passes after {outcome.name}")
    if not first:
        raise BisectErrors.NOTHING_RUN()
    if not args.json:
        print(f"all agree within {tolerance:g}")
    return 0


def _outcomes(
    args: argparse.Namespace, options: CompileOptions, source: Source, bisection: Bisection
) -> Iterator[StepOutcome]:
    from sscc.compiler.driver.dumps import read_dump
    from sscc.compiler.interpret.module import is_runnable
    from sscc.ir.context import parse_module, print_module
    from sscc.ir.levels import passes_done
    from sscc.passes.base import run_passes, step_text
    from sscc.passes.pass_pipeline import WHOLE, load, parse_pipeline, passes_between, shard_of
    from sscc.passes.shard import Shard

    module = source.module
    if args.other is not None:
        for path, dump in ((args.model, module), (args.other, read_dump(args.other))):
            yield bisection.module(shown_name(path), dump)
        return
    loaded = load(options.load_pass)
    # Parsed first, so that a wrong pipeline is reported before a long run.
    asked = None if args.pass_pipeline is None else parse_pipeline(args.pass_pipeline)
    if options.compile_from is not None and is_runnable(module):
        yield bisection.module(shown_name(args.model), module)
    if asked is not None:
        yield from bisection.passes(module, asked)
        return
    done, weights = passes_done(module), source.weights
    shard = None if options.tp is None else Shard(options.tp)
    steps = passes_between(done, args.compile_to, options.opt_level, weights, shard, loaded=loaded)
    if shard_of(list(map(step_text, steps))).ranks > 1:
        whole = parse_module(print_module(module), str(args.model))
        run_passes(whole, passes_between(done, "graph", options.opt_level, weights, WHOLE))
        yield bisection.module("one rank", whole)
    yield from bisection.passes(module, steps)
    if args.compile_to == LEVELS[-1]:
        yield bisection.schedule(module)


def _tensors(args: argparse.Namespace, source: Source, weights: Layout, constants: Layout) -> dict[str, Tensor]:
    """Return the checkpoint's tensors (random tensors without a checkpoint) and the constants of the program."""
    from sscc.compiler.interpret.random_weights import random_tensors
    from sscc.runtime.backends.reference.arrays import to_tensors

    checkpoint = source.checkpoint
    if checkpoint is None or not checkpoint.has_weights:
        tensors = random_tensors(weights, SEED)
    else:
        names = {name for stack in weights.values() for name in stack.sources}
        tensors = {name: checkpoint.tensor(name) for name in names & checkpoint.names().keys()}
        # Later passes read them.
        orders = {name: checkpoint.order(name) for name in tensors}
        tensors |= to_tensors({order_of(name): order for name, order in orders.items() if order is not None})
    return {**tensors, **(source.constants() if constants else {})}


def _verdict(outcome: StepOutcome, first: str, tolerance: float) -> SsccError:
    if outcome.problem:
        return BisectErrors.NOT_RUNNABLE(step=outcome.name, problem=outcome.problem)
    return BisectErrors.OUTPUTS_CHANGED(step=outcome.name, error=outcome.error, first=first, tolerance=tolerance)


def _print(outcome: StepOutcome, as_json: bool, *, header: bool) -> None:
    if as_json:
        print(json.dumps(_record(outcome)))
        return
    if header:
        print(f"{'after':42} {'level':10} {'normwise':>9} {'max abs':>9} {'correlation':>12}")
    difference = outcome.difference
    if outcome.problem:
        figures = "cannot be run"
    elif difference is None:
        figures = "compared with"
    else:
        figures = f"{difference.rowwise:9.2e} {difference.max_abs:9.2e} {difference.correlation:12.8f}"
    print(f"{outcome.name:42} {outcome.level:10} {figures}", flush=True)


def _record(outcome: StepOutcome) -> dict[str, Any]:
    """Return an outcome as a JSON object, with null for numbers that are not finite."""
    record = asdict(outcome)
    if outcome.difference is not None:
        numbers = asdict(outcome.difference)
        record["difference"] = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return record
