"""`sscc diff`: differences between two artifacts or two dumps."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sscc.compiler.options.execution_options import ExecutionOptions
from sscc.compiler.options.modelling_options import ModellingOptions
from sscc.compiler.options.progress import prompt_bar
from sscc.compiler.tools.commands.engines import log_to_stderr, open_artifact, session_of
from sscc.compiler.tools.commands.generation import PromptOptions, parse_token_ids, prompt_of, tokenizer_of
from sscc.compiler.tools.commands.parser import CommonOptions, Parser
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.option import option, options_of
from sscc.ir.sizes import format_bytes, format_seconds
from sscc.ir.terminal import listing
from sscc.runtime.support.serving_options import NEW_TOKENS

if TYPE_CHECKING:
    from torch_mlir import ir

    from sscc.runtime.session.artifact import Artifact

DUMP = ".mlir"
MAIN_GROUP = "main"
"""Path component for the group of layers with the program's geometry, which is unnamed."""
TOKENS = "token comparison (both artifacts run, with greedy sampling)"
"""Heading of these options in `--help`."""


class DiffErrors(ErrorKind):
    DUMPS_DO_NOT_RUN = UsageError, (
        "only artifacts can be run and timed: compile the dumps with `sscc compile`, or leave out the prompt, "
        "--target and --context"
    )
    OTHER_KIND = UsageError, "{a} and {b} are an artifact and a dump (.mlir): give two artifacts or two dumps"


Facts = dict[str, Any]
"""Values by their dotted path in the output of `sscc inspect --json`."""


@dataclass(frozen=True)
class DiffOptions:
    """Options of a comparison."""

    a: Path = option(MISSING, "artifact, or dump (.mlir)", "A", positional=True)
    b: Path = option(MISSING, "second artifact or dump, of the same kind", "B", positional=True)
    all: bool = option(False, "show the equal facts, too")
    max_new_tokens: int | None = option(
        None, "tokens to compare", "N", group=TOKENS, default=f"{NEW_TOKENS}, if they fit"
    )


def add_arguments(parser: Parser) -> None:
    parser.add_options(DiffOptions)
    parser.add_options(CommonOptions, json="print one JSON object: the facts of both, and the names of differing facts")
    parser.add_options(ModellingOptions, ["target", "context"])
    parser.add_options(PromptOptions, heading=TOKENS)
    parser.add_options(ExecutionOptions)


def main(args: argparse.Namespace) -> int:
    dumps = [path.suffix == DUMP for path in (args.a, args.b)]
    runs = (args.prompt, args.prompt_file, args.token_ids) != (None, None, None)
    if dumps[0] != dumps[1]:
        raise DiffErrors.OTHER_KIND(a=args.a, b=args.b)
    if dumps[0] and (runs or args.target is not None or args.context is not None):
        raise DiffErrors.DUMPS_DO_NOT_RUN()
    facts = [(_dump_facts if dumps[0] else _artifact_facts)(path, args) for path in (args.a, args.b)]
    if runs:
        made = _tokens(args)
        for own, (tokens, text) in zip(facts, made, strict=True):
            own |= {"tokens": tokens, "text": text}
    differing = [name for name in {**facts[0], **facts[1]} if _absent_or(facts[0], name) != _absent_or(facts[1], name)]
    if args.json:
        print(json.dumps({"a": facts[0], "b": facts[1], "differing": differing}))
        return 0
    print(listing(_lines(facts[0], facts[1], differing, args.all)))
    return 0


def _absent_or(facts: Facts, name: str) -> Any:
    return facts.get(name, ...)


# ---------------------------------------------------------------------------------------------------------- artifacts


def _artifact_facts(path: Path, args: argparse.Namespace) -> Facts:
    """Return the facts that `sscc inspect --json` prints, and the digests of the schedule and the weights."""
    from sscc.compiler.tools.inspection.inspection import inspect_artifact

    artifact = open_artifact(path, verify=args.digests)
    target = options_of(ModellingOptions, args).target_of(artifact)
    facts = dict(_flat(asdict(inspect_artifact(artifact, target, context=args.context))))
    return {"schedule": artifact.schedule_digest, "weights": artifact.manifest.weights.digest, **facts}


def _flat(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a record with their paths, except the machine's assumptions. Records in lists are addressed
    by name."""
    for name, value in data.items():
        path = f"{above}{name}"
        if name == "assumptions":
            continue
        if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            value = {str(item.get("name", item.get("kernel", at)) or MAIN_GROUP): item for at, item in enumerate(value)}
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}.")
        else:
            yield path, list(value) if isinstance(value, tuple) else value


def _tokens(args: argparse.Namespace) -> Iterator[tuple[list[int], str | None]]:
    """Yield the tokens that each artifact generates, and their text (None without a tokenizer)."""
    from sscc.runtime.text.tokenizer import read_prompt

    log_to_stderr(args.quiet)
    if args.prompt_file is not None:  # read once for both artifacts: stdin cannot be read twice
        args.prompt, args.prompt_file = read_prompt(args.prompt_file), None
    if args.token_ids is not None:
        args.token_ids = ",".join(map(str, parse_token_ids(args.token_ids)))
    for path in (args.a, args.b):
        yield _generated(open_artifact(path, verify=args.digests), args)


def _generated(artifact: Artifact, args: argparse.Namespace) -> tuple[list[int], str | None]:
    from sscc.runtime.text.tokenizer import decode

    tokenizer = tokenizer_of(artifact, needed=args.token_ids is None)
    session = session_of(artifact, options_of(ExecutionOptions, args))
    try:
        prompt = prompt_of(tokenizer, args)
        with prompt_bar(len(prompt)) as seen:
            tokens = list(session.generate(prompt, args.max_new_tokens, seen=seen))
    finally:
        session.close()
    return tokens, None if tokenizer is None else decode(tokenizer, tokens)


# -------------------------------------------------------------------------------------------------------------- dumps


def _dump_facts(path: Path, args: argparse.Namespace) -> Facts:
    """Return the attributes of a dump, the names of its functions, and the number of operations of each kind."""
    from sscc.compiler.driver.dumps import read_dump
    from sscc.ir.context import mlir
    from sscc.ir.levels import get_facts, get_level, passes_done
    from sscc.ir.rewriting import functions

    with mlir():
        module = read_dump(path)
        facts, geometry = get_facts(module)
        names = [function.name.value for function in functions(module)]
        counts = _operations(module)
        described = {"level": get_level(module), "passes": list(passes_done(module))}
    program = {name: value for name, value in asdict(facts).items() if name != "config"}
    parts = {"geometry": geometry.to_dict(), "program": program, "operations": dict(sorted(counts.items()))}
    return {**described, **dict(_flat(parts)), "functions": sorted(names)}


def _operations(module: ir.Module) -> Counter[str]:
    from torch_mlir import ir

    counts: Counter[str] = Counter()

    def count(operation: ir.Operation) -> ir.WalkResult:
        counts[operation.name] += 1
        return ir.WalkResult.ADVANCE

    module.operation.walk(count)
    return counts


# ------------------------------------------------------------------------------------------------------------- output


def _lines(a: Facts, b: Facts, differing: list[str], everything: bool) -> Iterator[str]:
    shown = list({**a, **b}) if everything else differing
    rows = [(name, _short(name, a.get(name)), _short(name, b.get(name))) for name in shown]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for name, first, second in rows:
        note = _ratio(a.get(name), b.get(name)) if name in differing else "="
        yield f"{name:{widths[0]}}  {first:>{widths[1]}}  {second:>{widths[2]}}  {note}".rstrip()
        yield from _only(a.get(name), b.get(name))
    if "tokens" in a:
        yield _first_difference(a["tokens"], b["tokens"])
    yield f"{len(differing)} of {len({**a, **b})} facts differ"


def _only(a: Any, b: Any) -> Iterator[str]:
    """Yield lines with the names that are in only one of two lists, and nothing for other values."""
    if isinstance(a, list) and isinstance(b, list):
        for side, own, other in (("A", a, b), ("B", b, a)):
            names = [item for item in own if isinstance(item, str) and item not in other]
            if names:
                yield f"  only {side}: {', '.join(names)}"


def _ratio(a: Any, b: Any) -> str:
    """Return B as a multiple of A; empty if they are not numbers, or A is 0."""
    numbers = isinstance(a, int | float) and isinstance(b, int | float) and not isinstance(a, bool)
    return f"{b / a:.3f}x" if numbers and a else ""


def _short(name: str, value: Any) -> str:
    """Return a value as text, in the unit that its path implies (bytes, seconds, GB/s)."""
    *above, last = name.split(".")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if any(part.endswith("bytes") or part.endswith("_tiers") for part in (*above, last)):
            return format_bytes(int(value))
        if "bandwidth" in above:
            return f"{value / 1e9:.4g} GB/s"
        return format_seconds(value) if last.endswith("seconds") else f"{value:.6g}"
    if isinstance(value, list):
        return f"{len(value)} entries" if value else "none"
    text = "-" if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}.."


LONGEST = 24
"""Maximum number of characters of a text in the table."""


def _first_difference(a: list[int], b: list[int]) -> str:
    if a == b:
        return f"all {len(a)} new tokens are the same"
    common = next((at for at, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))
    first, second = (str(tokens[common]) if common < len(tokens) else "the end" for tokens in (a, b))
    return f"the first {common} new tokens are the same, then {first} and {second}"
