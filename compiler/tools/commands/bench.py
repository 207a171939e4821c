"""`sscc bench`: speed of an artifact on this machine, and the share of the memory bandwidth that it uses."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from sscc.compiler.options.execution_options import ExecutionOptions
from sscc.compiler.options.progress import bar
from sscc.compiler.tools.commands.engines import followed, log_to_stderr, open_artifact, session_of
from sscc.compiler.tools.commands.model_arguments import (
    ModelArgument,
    add_compilation_options,
    announce,
    resolve_model,
)
from sscc.compiler.tools.commands.parser import CommonOptions, Parser
from sscc.compiler.tools.inspection.measurements import Measurement, Measurements, Test
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.option import option, options_of
from sscc.ir.sizes import format_bytes, format_seconds
from sscc.ir.terminal import listing

if TYPE_CHECKING:
    import numpy as np

    from sscc.runtime.session.artifact import Artifact
    from sscc.runtime.session.session import Session

Step = Literal["decode", "verify"]
"""Entries that feed tokens to all slots."""
PROMPT, NEW, DEPTH = 512, 128, 512
UNTIMED_STEPS = 2
CALIBRATION_BYTES = 256 << 20
SEED = 0
_MOST_DIGITS = 9


class BenchErrors(ErrorKind):
    NOT_NUMBERS = UsageError, "{text!r} is not a list of numbers, such as 512 or 512,1024"
    PROMPT_TOO_LONG = UsageError, "-p is {tokens}, but the program takes at most {context} tokens"
    TOO_MANY_SLOTS = UsageError, "-b is {asked}, but the program has {slots} slots"
    TOO_MANY_STEPS = UsageError, (
        "{depth} tokens (-d), {steps} steps (-n) and {untimed} untimed steps are {tokens} tokens, but the program "
        "takes at most {context}"
    )


TESTS = "tests (N,N,.. for several; every combination of steps, depth and batch is measured)"
"""Heading of these options in `--help`."""


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of "512,1024". Raises UsageError for other texts."""
    words = text.split(",")
    if not all(word.isdecimal() and len(word) <= _MOST_DIGITS for word in words):
        raise BenchErrors.NOT_NUMBERS(text=text)
    return tuple(map(int, words))


@dataclass(frozen=True)
class BenchOptions:
    """Options of the tests."""

    prompt_tokens: tuple[int, ...] | None = option(
        None, "tokens of the prefilled prompt, 0 for none", "N", group=TESTS, default=f"{PROMPT}, or the maximum",
        flags=("-p", "--prompt-tokens"), parse=_numbers,
    )  # fmt: skip
    new_tokens: tuple[int, ...] | None = option(
        None, "decode steps, 0 for none", "N", group=TESTS, default=f"{NEW}, or the maximum",
        flags=("-n", "--new-tokens"), parse=_numbers,
    )  # fmt: skip
    depth: tuple[int, ...] | None = option(
        None, "tokens in each slot before the decode steps", "N", group=TESTS, default=f"{DEPTH}, or the maximum",
        flags=("-d", "--depth"), parse=_numbers, least=1,
    )  # fmt: skip
    batch: tuple[int, ...] | None = option(
        None, "active slots of the decode steps", "N", group=TESTS, default="1, then all", flags=("-b", "--batch"),
        parse=_numbers, least=1,
    )  # fmt: skip
    repetitions: int = option(5, "repetitions of each test", "N", group=TESTS, flags=("-r", "--repetitions"), least=1)


def add_arguments(parser: Parser) -> None:
    parser.add_options(ModelArgument)
    parser.add_options(BenchOptions)
    parser.add_options(CommonOptions, json="print one JSON object with the seconds of every repetition")
    add_compilation_options(parser)
    parser.add_options(ExecutionOptions)


def main(args: argparse.Namespace) -> int:
    execution = options_of(ExecutionOptions, args)
    log_to_stderr(args.quiet)
    from sscc.runtime.serving.ranks.joining import ranks_of_this_machine
    from sscc.runtime.support import _native

    resolve_model(args, max(args.batch or [1]))
    if followed(args.artifact, execution):
        return 0
    artifact = open_artifact(args.artifact, verify=execution.digests)
    announce(args, artifact)
    plan = Plan.of(args, artifact.signature.batch, artifact.signature.geometry.max_context)
    threads = args.threads or _native.usable_threads()
    ranks, here = artifact.program.ranks, ranks_of_this_machine(artifact.program.ranks)
    results = []
    with closing(session_of(artifact, execution)) as session:
        if not args.json:
            print(listing([repr(artifact), _means(args.interpreter, threads, ranks, here), HEADER]), flush=True)
        with bar("measuring", alive=False) as (advance, update):
            bench = Bench(artifact, session, args.repetitions, threads, here, advance, update)
            for result in bench.run(plan):
                results.append(result)
                if not args.json:
                    print(_line(result), flush=True)
    if args.json:
        taken = Measurements(
            str(args.given_model), artifact.schedule_digest, args.interpreter, threads, ranks, here, tuple(results)
        )
        print(json.dumps(asdict(taken)))
    return 0


def _means(interpreter: str, threads: int, ranks: int, here: int) -> str:
    """Return the line that names the interpreter, ranks and threads of the measurements."""
    processes = f", {ranks} ranks" if ranks > 1 else ""
    processes += "" if here == ranks else f", {here} of which on this machine"
    return f"{interpreter} interpreter{processes}, {threads} thread{'s' * (threads > 1)}"


@dataclass(frozen=True)
class Plan:
    """The measurements: prefills of prompt lengths; decode steps for all combinations of depths and batches.

    Attributes:
        prompts: prompt lengths in tokens.
        steps: numbers of decode steps.
        depths: tokens in each slot before the decode steps.
        batches: numbers of active slots.
    """

    prompts: tuple[int, ...]
    steps: tuple[int, ...]
    depths: tuple[int, ...]
    batches: tuple[int, ...]

    @classmethod
    def of(cls, args: argparse.Namespace, slots: int, context: int) -> Plan:
        """Return the plan of the options. Raises UsageError for sizes that exceed those of the program.

        Args:
            args: parsed options.
            slots: decode slots of the program.
            context: maximum tokens of a slot.
        """
        steps = tuple(filter(None, args.new_tokens or (max(1, min(NEW, context // 4)),)))
        fits = max(1, min(DEPTH, context - UNTIMED_STEPS - max(steps, default=0)))
        plan = cls(
            prompts=tuple(filter(None, args.prompt_tokens or (min(PROMPT, context),))),
            steps=steps,
            depths=args.depth or (fits,),
            batches=args.batch or tuple(sorted({1, slots})),
        )
        if max(plan.batches) > slots:
            raise BenchErrors.TOO_MANY_SLOTS(asked=max(plan.batches), slots=slots)
        if max(plan.prompts, default=0) > context:
            raise BenchErrors.PROMPT_TOO_LONG(tokens=max(plan.prompts), context=context)
        most = max(plan.depths) + UNTIMED_STEPS + max(plan.steps, default=0)
        if plan.steps and most > context:
            raise BenchErrors.TOO_MANY_STEPS(
                depth=max(plan.depths), steps=max(plan.steps), untimed=UNTIMED_STEPS, tokens=most, context=context
            )
        return plan


class Bench:
    """Benchmark of a session with random tokens. The first repetition of each test is not counted.

    Args:
        artifact: artifact of the session.
        session: session to measure.
        repetitions: counted repetitions of each test.
        threads: threads of the session on this machine. The bandwidth is measured with the same number.
        ranks: number of ranks on this machine, which share its bandwidth.
        advance: callback between repetitions, with the number of finished repetitions of all tests and the total.
        update: callback with the name of the current test.
    """

    def __init__(
        self,
        artifact: Artifact,
        session: Session,
        repetitions: int,
        threads: int,
        ranks: int = 1,
        advance: Callable[[int, int], None] = lambda done, total: None,
        update: Callable[[str], None] = lambda text: None,
    ) -> None:
        import numpy as np

        self._artifact, self._session = artifact, session
        self._repetitions, self._threads, self._ranks = repetitions, threads, ranks
        self._random = np.random.default_rng(SEED)
        self._advance, self._update = advance, update
        self._done = self._all = 0

    def run(self, plan: Plan) -> Iterator[Measurement]:
        """Yield the measurement of every prompt, then of every number of steps at every depth and batch: steps of one
        token, and of several if the program has them."""
        entries: tuple[Step, ...] = ("decode", "verify") if self._artifact.signature.drafted else ("decode",)
        decodes = list(itertools.product(plan.depths, plan.batches, plan.steps, entries))
        self._done, self._all = 0, (len(plan.prompts) + len(decodes)) * (1 + self._repetitions)
        for tokens in plan.prompts:
            self._update(f"prefill {tokens}")
            yield self._prefill(tokens)
        for depth, slots, count, entry in decodes:
            self._update(f"{entry} {count} at {depth}, {slots} slot{'s' * (slots > 1)}")
            yield self._decode(count, depth, slots, entry)

    def _prefill(self, tokens: int) -> Measurement:
        prompt = self._tokens(tokens)
        seconds = self._repeated(lambda: self._timed(lambda: self._session.prefill(0, prompt)))
        return self._measurement("prefill", tokens, 1, 0, seconds, None)

    def _decode(self, count: int, depth: int, slots: int, entry: Step) -> Measurement:
        import numpy as np

        session, signature = self._session, self._artifact.signature
        batch, drafted = signature.batch, signature.drafted if entry == "verify" else 0
        session.reset()
        for slot in range(slots):
            session.prefill(slot, self._tokens(depth))
        kept = [session.snapshot(slot) for slot in range(slots)]
        active = np.arange(batch) < slots

        def step(tokens: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
            if not drafted:
                session.decode_step(tokens, active)
                return
            room = session.room(0)
            session.verify_step(np.repeat(tokens[:, None], drafted + 1, 1), active * min(drafted + 1, room))
            session.accept(active.astype(np.int64))

        def run(steps: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> None:
            for each in steps:
                step(each)

        def once() -> float:
            for slot, snapshot in enumerate(kept):
                session.restore(slot, snapshot)
            tokens = [self._tokens(batch) for _ in range(UNTIMED_STEPS + count)]
            run(tokens[:UNTIMED_STEPS])
            return self._timed(lambda: run(tokens[UNTIMED_STEPS:]))

        seconds = self._repeated(once)
        read = self._ranks * step_bytes(self._artifact, slots, depth)
        return self._measurement(entry, count, slots, depth, seconds, read)

    def _tokens(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self._random.integers(0, self._artifact.signature.vocab_size, count)

    def _timed(self, run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def _repeated(self, measure: Callable[[], float]) -> tuple[float, ...]:
        seconds = []
        for _ in range(1 + self._repetitions):
            seconds.append(measure())
            self._done += 1
            self._advance(self._done, self._all)
        return tuple(seconds[1:])

    def _measurement(
        self, test: Test, tokens: int, slots: int, depth: int, seconds: tuple[float, ...], step: int | None
    ) -> Measurement:
        from sscc.runtime.support import _native

        median = statistics.median(seconds)
        bandwidth = 1e9 * _native.read_bandwidth(self._threads, CALIBRATION_BYTES)
        share = None if step is None else step * tokens / median / bandwidth
        return Measurement(test, tokens, slots, depth, seconds, slots * tokens / median, bandwidth, step, share)


def step_bytes(artifact: Artifact, slots: int, tokens: int) -> int:
    """Return the bytes of weights and cache rows that a decode step must read, per rank.

    Args:
        artifact: artifact of the program.
        slots: number of active slots.
        tokens: tokens in each slot.
    """
    from sscc.compiler.tools.inspection.inspection import stored_bytes, time_decode

    timing = time_decode(artifact, artifact.target, mean_experts=True)
    weights = sum(stored_bytes(artifact.program, timing).values())
    return weights + round(artifact.signature.step_row_bytes(slots, tokens))


HEADER = f"{'test':32} {'tokens/s':>10}  {'slowest .. fastest':>20}  {'a step':>10}  {'reads':>10}  bandwidth"


def _line(m: Measurement) -> str:
    slowest, fastest = (m.slots * m.tokens / seconds for seconds in (max(m.seconds), min(m.seconds)))
    spread = f"{slowest:.1f} .. {fastest:.1f}"
    line = f"{m.name:32} {m.tokens_per_second:10.1f}  {spread:>20}"
    if m.bytes_per_step is None or m.share is None:
        return line
    step = format_seconds(statistics.median(m.seconds) / m.tokens)
    of = f"{100 * m.share:.0f}% of {m.bandwidth / 1e9:.1f} GB/s"
    return f"{line}  {step:>10}  {format_bytes(m.bytes_per_step):>10}  {of}"
