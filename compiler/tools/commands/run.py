"""`sscc run`: text generation with an artifact, or a replay of its goldens."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import mmap
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sscc.compiler.options.execution_options import DraftOptions, SpeculationOptions, TracedExecutionOptions
from sscc.compiler.options.outputs import printing_beside
from sscc.compiler.options.progress import prompt_bar, status
from sscc.compiler.tools.commands.engines import (
    followed,
    log_to_stderr,
    open_artifact,
    opened_shortener,
    opened_speculation,
    session_of,
    traced,
)
from sscc.compiler.tools.commands.generation import (
    GENERATION,
    PromptOptions,
    prompt_of,
    prompt_text,
    sampling_of,
    template_of,
    tokenizer_of,
)
from sscc.compiler.tools.commands.kept_text import Part, needed_lines, record, shaded
from sscc.compiler.tools.commands.model_arguments import (
    ModelArgument,
    add_compilation_options,
    announce,
    resolve_model,
)
from sscc.compiler.tools.commands.parser import CommonOptions, Parser
from sscc.compiler.tools.inspection.kept_tokens import Token, shown_tokens
from sscc.compiler.tools.inspection.needed import checkpoint_of, needed_of
from sscc.ir.errors import ErrorKind, InputError, UsageError
from sscc.ir.files import check_output
from sscc.ir.option import option, options_of
from sscc.ir.sizes import format_bytes
from sscc.ir.terminal import listing, shown_text
from sscc.runtime.backends.interpreter import MemoryUse
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.support.serving_options import NEW_TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.compiler.frontend.full_attention import Needed
    from sscc.runtime.session.artifact import Artifact
    from sscc.runtime.session.excerpt import Excerpt
    from sscc.runtime.session.golden_replay import Check
    from sscc.runtime.session.kept_positions import Kept
    from sscc.runtime.session.session import Session
    from sscc.runtime.session.speculation import Speculation


class RunErrors(ErrorKind):
    DRAFT_AND_CHECK = UsageError, "--draft shortens a prompt, but --check replays a recorded one: leave one out"
    DRAFT_AND_NEEDED = UsageError, "--draft shortens the prompt, but --show-needed needs all of it: leave one out"
    KEPT_AND_CHECK = UsageError, (
        "--show-kept shows the text of a prompt, but --check replays a recorded run: leave one out"
    )
    KEPT_OF_RANKS = UsageError, (
        "--show-kept: {path} is compiled for {ranks} ranks, each of which records the positions of its own heads "
        "only: compile the model without --tp"
    )
    NO_GOLDENS = InputError, "{path} contains no goldens: compile the model with --save-golden"
    NO_PROMPT = UsageError, "there is no prompt: give --prompt, --prompt-file or --token-ids (or --check)"
    TRACE_AND_CHECK = UsageError, "--trace records text generation, but --check replays a recorded run: leave one out"


@dataclass(frozen=True)
class Figures:
    """Output of `--json`: the new tokens, their text, and the time and memory that they took.

    Attributes:
        tokens: new tokens, including the one that ends the text.
        text: their text; None if the artifact has no tokenizer.
        finish: "eos" after a token that ends the text, "length" at the limit.
        prompt_tokens: tokens of the prompt.
        read_tokens: tokens of the prompt that were prefilled; fewer than `prompt_tokens` with a draft.
        kept_rows: positions whose rows the cache holds, per KV head of a layer with the requested budget.
        evicted_rows: the other positions.
        budget_rows: maximum of `kept_rows`.
        kv_bytes: the cache of this sequence, over all layers.
        full_kv_bytes: an uncompressed cache of max_context rows.
        full_kv_bytes_now: an uncompressed cache of one row per token so far.
        draft_seconds: wall time of the draft; None without one.
        prefill_seconds: wall time up to the first new token.
        decode_seconds: wall time of the other new tokens.
        prefill_tokens_per_second: `read_tokens` over `prefill_seconds`.
        drafted_tokens, accepted_tokens: tokens that `--speculate` drafted, and those of them in the answer.
        verify_steps: steps that verified them.
        decode_tokens_per_second: tokens after the first over `decode_seconds`; None without any.
        weight_bytes: weights, memory-mapped where possible.
        state_bytes: caches and other states.
        working_bytes: the rest of the interpreter's memory.
        resident_bytes: resident memory of this process; None if the system does not report it.
        ranks: ranks of the program. All sizes in bytes are per rank.
    """

    tokens: list[int]
    text: str | None
    finish: str
    prompt_tokens: int
    read_tokens: int
    kept_rows: int
    evicted_rows: int
    budget_rows: int
    kv_bytes: int
    full_kv_bytes: int
    full_kv_bytes_now: int
    draft_seconds: float | None
    prefill_seconds: float
    decode_seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float | None
    drafted_tokens: int
    accepted_tokens: int
    verify_steps: int
    weight_bytes: int
    state_bytes: int
    working_bytes: int
    resident_bytes: int | None
    ranks: int


KEPT = "cache"
"""Heading of these options in `--help`."""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run."""

    check: bool = option(False, "replay the goldens; exit code 4 if a tensor differs", one_of="prompt")
    raw: bool = option(False, "do not apply the model's chat template to --prompt")
    max_new_tokens: int | None = option(
        None, "maximum number of new tokens", "N", group=GENERATION, default=f"{NEW_TOKENS}, if they fit"
    )
    ignore_eos: bool = option(False, "continue after a token that ends the text", group=GENERATION)
    show_kept: Part | None = option(
        None, "show the text afterwards, each token shaded by the share of KV heads (of all layers, or of one) that "
        "keep it", "LAYER[:HEAD]", group=KEPT, parse=Part.parse, optional_value=Part(),
    )  # fmt: skip
    show_needed: bool = option(
        False, "show the evicted text, too, to which the answer attends with a full cache, computed in eager PyTorch",
        group=KEPT,
    )  # fmt: skip


def add_arguments(parser: Parser) -> None:
    parser.add_options(ModelArgument)
    parser.add_options(PromptOptions)
    parser.add_options(RunOptions)
    parser.add_options(Sampling, heading=GENERATION, of_models=True)
    parser.add_options(CommonOptions)
    parser.add_options(SpeculationOptions)
    parser.add_options(DraftOptions)
    add_compilation_options(parser)
    parser.add_options(TracedExecutionOptions)


def main(args: argparse.Namespace) -> int:
    execution, draft = options_of(TracedExecutionOptions, args), options_of(DraftOptions, args)
    _check_arguments(args)
    log_to_stderr(args.quiet)
    resolve_model(args)
    if followed(args.artifact, execution):
        return 0
    artifact = open_artifact(args.artifact, verify=execution.digests)
    sampling = sampling_of(args, artifact)
    announce(args, artifact)
    if args.show_kept is not None:
        _check_shown(artifact, args)
    with closing(session_of(artifact, execution)) as session, traced(session, args.trace), printing_beside(args.trace):
        if args.check:
            return _check(artifact, session, args)
        return _generate(artifact, session, sampling, draft, execution, args)


def _check_arguments(args: argparse.Namespace) -> None:
    if not args.check and args.prompt is args.prompt_file is args.token_ids is None:
        raise RunErrors.NO_PROMPT()
    if args.show_needed and args.show_kept is None:
        args.show_kept = Part()
    if args.draft is not None and (args.check or args.show_needed):
        raise RunErrors.DRAFT_AND_CHECK() if args.check else RunErrors.DRAFT_AND_NEEDED()
    if args.check and args.trace is not None:
        raise RunErrors.TRACE_AND_CHECK()
    if args.check and args.show_kept is not None:
        raise RunErrors.KEPT_AND_CHECK()
    check_output(args.trace)


def _check_shown(artifact: Artifact, args: argparse.Namespace) -> None:
    """Raise UsageError, before the run, for a cache that could not be shown after it."""
    args.show_kept.check(artifact.signature)
    if artifact.program.ranks > 1:
        raise RunErrors.KEPT_OF_RANKS(path=artifact.path, ranks=artifact.program.ranks)
    if args.show_needed:
        checkpoint_of(artifact, args.checkpoint)


# --------------------------------------------------------------------------------------------------- generation


def _generate(
    artifact: Artifact,
    session: Session,
    sampling: Sampling,
    draft: DraftOptions,
    execution: TracedExecutionOptions,
    args: argparse.Namespace,
) -> int:
    tokenizer = tokenizer_of(artifact, needed=args.token_ids is None)
    given = prompt_of(tokenizer, args, None if args.raw or args.prompt is None else template_of(artifact))
    prompt, draft_seconds = _shortened(given, session, tokenizer, draft, execution, args)
    eos: tuple[int, ...] = () if args.ignore_eos else session.signature.eos_token_ids

    stream = _Output(tokenizer, silent=args.json)
    drafts = opened_speculation(options_of(SpeculationOptions, args), execution, session.signature)
    with drafts as speculation:
        start = time.perf_counter()
        with prompt_bar(len(prompt)) as seen:
            made = session.generate(prompt, args.max_new_tokens, sampling, eos, seen=seen, speculation=speculation)
            begin = list(itertools.islice(made, 1))
        first = time.perf_counter()
        for token in itertools.chain(begin, made):
            stream.push(token)
        end = time.perf_counter()
    stream.finish()

    tokens, finish = made.tokens, made.finish or "length"
    text = stream.text if tokenizer is not None else None
    memory = session.interpreter.memory() or MemoryUse(0, 0, 0)
    kept, ranks = session.kept(0), artifact.program.ranks
    times = draft_seconds, first - start, end - first
    figures = _figures(tokens, text, finish, len(given), kept, times, memory, ranks, speculation)
    shown = None
    if args.show_kept is not None:
        read = session.prompt(0).tokens.tokens.tolist()
        shown = _Shown.of(artifact, tokenizer, [*read, *tokens], kept, args)
    if args.json:
        print(json.dumps(asdict(figures) | ({} if shown is None else {"kept": shown.record()})))
    elif shown is not None:
        print("\n".join(["", *shown.lines()]))
    sys.stdout.flush()
    if not args.quiet:
        print("\n".join(_lines(figures)), file=sys.stderr)
    return 0


def _shortened(
    given: list[int],
    session: Session,
    tokenizer: Tokenizer | None,
    draft: DraftOptions,
    execution: TracedExecutionOptions,
    args: argparse.Namespace,
) -> tuple[list[int] | Excerpt, float | None]:
    """Return the shortened prompt, and the seconds of the draft; without a draft, `given` and None."""
    if draft.share is None:
        return given, None
    from sscc.runtime.session.excerpt import Excerpt

    opened = opened_shortener(draft, execution, session.signature, tokenizer)
    with opened as shortener, status("shortening the prompt"):
        assert shortener is not None
        prompt = session.check_request(given, 1)
        start = time.perf_counter()
        left = shortener.shorten(prompt.tokens, draft.share, prompt_text(args))
        seconds = time.perf_counter() - start
    return (left if isinstance(left, Excerpt) else left.tolist()), seconds


@dataclass(frozen=True)
class _Shown:
    """Output of `--show-kept` and `--show-needed`."""

    tokens: list[Token]
    part: Part
    kept: Kept
    needed: Needed | None

    @classmethod
    def of(
        cls, artifact: Artifact, tokenizer: Tokenizer | None, tokens: list[int], kept: Kept, args: argparse.Namespace
    ) -> _Shown:
        needed = None
        if args.show_needed:
            checkpoint = checkpoint_of(artifact, args.checkpoint)
            needed = needed_of(artifact, checkpoint, tokens[: kept.length], kept)
        part = args.show_kept
        return cls(shown_tokens(tokenizer, tokens, kept, part.layer, part.head, needed), part, kept, needed)

    def lines(self) -> Iterator[str]:
        each_step = any(not layer.choice_known for layer in self.kept.layers)
        width = shutil.get_terminal_size((100, 24)).columns
        yield from shaded(self.tokens, self.part, width, colours=sys.stdout.isatty(), fetched_each_step=each_step)
        if self.needed is not None:
            yield ""
            yield from needed_lines(self.tokens, self.needed)

    def record(self) -> dict[str, Any]:
        return record(self.tokens, self.part, self.needed)


class _Output:
    """Writer of generated text to stdout, token by token; of token ids without a tokenizer."""

    def __init__(self, tokenizer: Tokenizer | None, silent: bool) -> None:
        from sscc.runtime.text.tokenizer import TextStream

        self._stream = None if tokenizer is None else TextStream(tokenizer)
        self._silent = silent
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def push(self, token: int) -> None:
        self._write(f"{token} " if self._stream is None else self._stream.push(token))

    def finish(self) -> None:
        self._write("" if self._stream is None else self._stream.finish())
        if not self._silent:
            print()

    def _write(self, piece: str) -> None:
        self._pieces.append(piece)
        if piece and not self._silent:
            print(shown_text(piece, sys.stdout), end="", flush=True)


def _figures(
    tokens: list[int],
    text: str | None,
    finish: str,
    prompt_tokens: int,
    kept: Kept,
    times: tuple[float | None, float, float],
    memory: MemoryUse,
    ranks: int,
    speculation: Speculation | None,
) -> Figures:
    decoded = len(tokens) - 1
    draft_seconds, prefill_seconds, decode_seconds = times
    return Figures(
        tokens=tokens,
        text=text,
        finish=finish,
        prompt_tokens=prompt_tokens,
        read_tokens=kept.prompt_len,
        kept_rows=kept.kept,
        evicted_rows=kept.evicted,
        budget_rows=kept.budget,
        kv_bytes=kept.kv_bytes,
        full_kv_bytes=kept.full_bytes,
        full_kv_bytes_now=kept.full_bytes_now,
        draft_seconds=draft_seconds,
        prefill_seconds=prefill_seconds,
        decode_seconds=decode_seconds,
        prefill_tokens_per_second=kept.prompt_len / prefill_seconds,
        decode_tokens_per_second=decoded / decode_seconds if decoded else None,
        weight_bytes=memory.weights,
        state_bytes=memory.states,
        working_bytes=memory.working,
        resident_bytes=_resident_bytes(),
        ranks=ranks,
        drafted_tokens=0 if speculation is None else speculation.drafted,
        accepted_tokens=0 if speculation is None else speculation.accepted,
        verify_steps=0 if speculation is None else speculation.steps,
    )


def _resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes; None if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * mmap.PAGESIZE


def _lines(figures: Figures) -> Iterator[str]:
    length = figures.kept_rows + figures.evicted_rows
    share = figures.kv_bytes / figures.full_kv_bytes
    held, full = format_bytes(figures.kv_bytes), format_bytes(figures.full_kv_bytes)
    left = "" if figures.draft_seconds is None else f", {figures.read_tokens} of which are prefilled"
    yield f"prompt   {figures.prompt_tokens} tokens{left}, {len(figures.tokens)} new ({figures.finish})"
    yield (
        f"cache    {figures.kept_rows} of {length} positions kept, {figures.evicted_rows} evicted "
        f"(budget {figures.budget_rows} rows)"
    )
    yield f"KV       {held} against {full} for a full cache ({share:.1%})"
    if figures.draft_seconds is not None:
        yield f"draft    {figures.prompt_tokens / figures.draft_seconds:.1f} tokens/s ({figures.draft_seconds:.2f} s)"
    yield f"prefill  {figures.prefill_tokens_per_second:.1f} tokens/s ({figures.prefill_seconds:.2f} s)"
    if figures.decode_tokens_per_second is not None:
        yield f"decode   {figures.decode_tokens_per_second:.2f} tokens/s ({figures.decode_seconds:.2f} s)"
    if figures.verify_steps:
        yield (
            f"drafts   {figures.accepted_tokens} of {figures.drafted_tokens} drafted tokens accepted in "
            f"{figures.verify_steps} steps"
        )
    parts = (figures.weight_bytes, figures.state_bytes, figures.working_bytes)
    weights, states, working = (format_bytes(part) for part in parts)
    resident = "" if figures.resident_bytes is None else f"; {format_bytes(figures.resident_bytes)} resident"
    yield f"memory   weights {weights}, states {states}, working {working}{resident}"
    if figures.ranks > 1:
        yield f"ranks    {figures.ranks}, each with the KV and memory above"


# ------------------------------------------------------------------------------------------------------- goldens


def _check(artifact: Artifact, session: Session, args: argparse.Namespace) -> int:
    from sscc.runtime.session.golden_replay import replay

    golden = artifact.golden()
    if golden is None:
        raise RunErrors.NO_GOLDENS(path=artifact.path)
    report = replay(session, golden, quantized=any(tensor.encoding for tensor in artifact.program.tensors))
    if args.json:
        print(
            json.dumps({"passed": report.passed, "dtype": report.dtype, "checks": [_record(c) for c in report.checks]})
        )
    report.require()
    if not args.quiet:
        print(listing(report.summary().splitlines()), file=sys.stderr)
    return 0


def _record(check: Check) -> dict[str, Any]:
    """Return a check as a JSON object, with null for numbers that are not finite."""
    numbers = {name: value if math.isfinite(value) else None for name, value in asdict(check.difference).items()}
    return {"name": check.name, "passed": check.passed, "picks": check.picks, "excused": check.excused, **numbers}
