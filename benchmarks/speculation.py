"""Speculative decoding against plain decoding of the same program: tasks with prompt lookup, and a draft of known
quality.

    python benchmarks/speculation.py [--models NAME ..] [--parts lookup draft] [--verify V ..] [--write PAGE] [--json]

`lookup` answers three prompts greedily: an edit of code, an extraction, prose. `draft` decodes the random model m1b in
bf16 with a drafter that runs m125, and whose tokens are the true ones with a given probability, drawn independently:
random models do not predict each other. Both ways of decoding take turns. docs/results/speed.md explains the tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

import numpy as np

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

import sscc
from benchmarks import models
from benchmarks.command import parser
from benchmarks.files import FILES, Report
from benchmarks.ours import FASTEST, OPTIONS, SEED, compiled, interpreter_of
from benchmarks.peers.registry import AS_STORED, INT8_ACTIVATIONS
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine import Engine, Request
from sscc.runtime.session.draft_model import DraftModel
from sscc.runtime.session.drafting import PromptLookup
from sscc.runtime.session.session import Session
from sscc.runtime.session.speculation import Speculation
from sscc.runtime.text.chat_template import ChatTemplate
from sscc.runtime.text.tokenizer import encode

BLOCK = "benchmarks/speculation.py"
PARTS = ("lookup", "draft")
CONTEXT, BUDGET = 2048, 1024
NEW = 256
"""Maximum number of tokens of an answer."""
WEIGHTS = {
    AS_STORED.dtype: OPTIONS[AS_STORED.dtype],
    INT8_ACTIVATIONS.dtype: OPTIONS[INT8_ACTIVATIONS.dtype],
    "bf16": ("--dtype", "bf16", "--weights", "reference,dense"),
}
CODE = """class Wallet:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("insufficient funds")
        self.balance -= amount
        return self.balance

    def transfer(self, other, amount):
        self.withdraw(amount)
        other.deposit(amount)
        return self.balance, other.balance

    def __repr__(self):
        return f"Wallet({self.owner!r}, {self.balance})"
"""
RECORDS = "\n".join(
    f"order {4100 + 37 * number}: customer C-{(number * 7919) % 977:03d}, {number % 9 + 1} pieces of item "
    f"{'AKLMPRST'[number % 8]}{(number * 31) % 100:02d}, shipped from warehouse {number % 4 + 1}"
    for number in range(40)
)
TASKS = {
    "edit": "Rename the class Wallet to Account and the method withdraw to take_out. Answer with the whole file only."
    f"\n\n```python\n{CODE}```",
    "extraction": f"{RECORDS}\n\nCopy all orders that were shipped from warehouse 3, line by line, and nothing else.",
    "prose": "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
}


@dataclass(frozen=True)
class Result:
    """Speeds of one workload, in tokens per second of all sequences together.

    Attributes:
        name: name of the workload.
        drafted: V.
        batch: number of sequences.
        plain, speculative: medians.
        steps: tokens per step of the speculative run.
        accepted: share of drafted tokens that were accepted; 0 without any.
    """

    name: str
    drafted: int
    batch: int
    plain: float
    speculative: float
    steps: float
    accepted: float


class KnownDraft(DraftModel):
    """A draft model whose tokens are replaced by the true ones with a probability, else by wrong ones.

    Args:
        answers: the true tokens of each slot, by their position in prompt and answer.
        chance: probability of a true token.
    """

    def __init__(self, session: Session, target: Session, answers: Array, chance: float) -> None:
        super().__init__(session, target.signature)
        self._answers, self._chance, self._random = answers, chance, np.random.default_rng(SEED)

    def draft(self, most: Array) -> tuple[Array, Array]:
        """See `Drafter`."""
        own, lengths = super().draft(most)
        tokens = own.copy()
        for slot in np.flatnonzero(lengths).tolist():
            first = int(self._texts.counts[slot])
            true = self._answers[slot, first : first + lengths[slot]]
            right = self._random.random(len(true)) < self._chance
            tokens[slot, : len(true)] = np.where(right, true, (true + 1) % 1000)
        return tokens, lengths


def measured(
    name: str,
    session: Session,
    prompts: Sequence[Sequence[int]],
    speculation: Callable[[], Speculation],
    repeats: int,
    ends: frozenset[int] | None = None,
) -> Result:
    """Return the speeds of answers to prompts, one in each slot. Raises RuntimeError if tokens differ.

    Args:
        ends: tokens that end an answer; None for the model's.
    """
    requests = [Request(tuple(prompt), NEW, eos=ends) for prompt in prompts]
    rates: dict[bool, list[float]] = {False: [], True: []}
    answers: dict[bool, list[tuple[int, ...]]] = {}
    metrics = None
    for _ in range(repeats):
        for drafts in (False, True):
            with Engine(session, speculation=speculation() if drafts else None) as engine:
                handles = [engine.submit(request) for request in requests]
                done = [handle.result() for handle in handles]
                metrics = engine.metrics()
            first = max(each.queued_seconds + each.first_token_seconds for each in done)
            last = max(each.seconds for each in done)
            rates[drafts].append(sum(len(each.tokens) - 1 for each in done) / (last - first))
            answers[drafts] = [each.tokens for each in done]
        if answers[False] != answers[True]:
            raise RuntimeError(f"{name}: drafts changed the answer")
    assert metrics is not None
    accepted = metrics.accepted_tokens / max(1, metrics.drafted_tokens)
    steps = sum(len(tokens) - 1 for tokens in answers[True]) / max(1, metrics.decode_steps)
    speeds = median(rates[False]), median(rates[True])
    return Result(name, session.signature.drafted, len(prompts), *speeds, steps, accepted)


def looked_up(name: str, file: Path, weights: str, drafted: int, batch: int, words: argparse.Namespace) -> list[Result]:
    """Return the speeds of all tasks with prompt lookup."""
    shape = ("--batch", batch, "--max-context", CONTEXT, "--kv-budget", BUDGET, "--verify", drafted)
    path = compiled(file, f"{weights}-batch{batch}-verify{drafted}", (*shape, *WEIGHTS[weights]))
    session = sscc.load(path, interpreter=interpreter_of(weights), threads=words.threads)
    template = ChatTemplate.load(path / "tokenizer")
    assert template is not None
    results = []
    for task, text in ((task, TASKS[task]) for task in words.tasks):
        rendered = template.render([{"role": "user", "content": text}])
        prompt = encode(session.tokenizer, rendered, special=False)
        prompts = [prompt] * batch
        fresh = lambda: Speculation(session.signature, PromptLookup.of(session.signature))  # noqa: E731
        results.append(measured(f"{name}, {weights}, {task}", session, prompts, fresh, words.repeats))
    session.close()
    return results


def drafted(chance: float, most: int, batch: int, words: argparse.Namespace) -> Result:
    """Return the speed of m1b with m125 as a draft of known quality."""
    names = {"m1b": models.checkpoint("m1b"), "m125": models.checkpoint("m125")}
    shape = ("--batch", batch, "--max-context", CONTEXT, "--kv-budget", BUDGET, "--verify", most)
    opened = {
        name: sscc.load(
            compiled(folder, f"bf16-batch{batch}-verify{most}", (*shape, *OPTIONS["bf16"])),
            interpreter=FASTEST, threads=words.threads,
        )
        for name, folder in names.items()
    }  # fmt: skip
    random = Random(SEED)
    prompts = [[random.randrange(1000) for _ in range(128)] for _ in range(batch)]
    with Engine(opened["m1b"]) as engine:
        handles = [engine.submit(Request(tuple(prompt), NEW, eos=frozenset())) for prompt in prompts]
        truth = np.array([[*prompt, *handle.result().tokens] for prompt, handle in zip(prompts, handles, strict=True)])

    def fresh() -> Speculation:
        draft = KnownDraft(opened["m125"], opened["m1b"], truth, chance)
        return Speculation(opened["m1b"].signature, draft)

    return measured(f"m1b, bf16, draft {chance:g}", opened["m1b"], prompts, fresh, words.repeats, frozenset())


def render(results: Sequence[Result]) -> str:
    """Return the table of speeds."""
    lines = [
        "| workload | V | batch | plain tokens/s | speculative tokens/s | ratio | tokens per step | accepted |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in results:
        speeds = f"{each.plain:.1f} | {each.speculative:.1f} | **{each.speculative / each.plain:.2f}**"
        rest = f"{speeds} | {each.steps:.2f} | {each.accepted:.0%} |"
        lines.append(f"| {each.name} | {each.drafted} | {each.batch} | {rest}")
    return "\n".join(lines)


def main() -> None:
    options = parser("Measure speculative decoding.", tuple(FILES))
    options.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, metavar="PART", help=", ".join(PARTS))
    options.add_argument("--tasks", nargs="+", default=tuple(TASKS), choices=tuple(TASKS), metavar="TASK")
    options.add_argument("--weights", nargs="+", default=tuple(WEIGHTS), choices=tuple(WEIGHTS), metavar="KIND")
    options.add_argument("--verify", nargs="+", type=int, default=[3, 7], metavar="V", help="drafted tokens (3 7)")
    options.add_argument("--batches", nargs="+", type=int, default=[1, 4], metavar="B", help="sequences (1 4)")
    options.add_argument("--chances", nargs="+", type=float, default=[0.8], metavar="P", help="of a true token (0.8)")
    words = options.parse_args()
    report, began = Report(words), perf_counter()
    cases = [(drafts, batch) for batch in words.batches for drafts in words.verify]
    if "lookup" in words.parts:
        results = [
            result
            for name in words.models
            for weights in words.weights
            for drafts, batch in cases
            for result in looked_up(name, FILES[name].prepare(llama=False), weights, drafts, batch, words)
        ]
        report.add("lookup", [asdict(result) for result in results], render(results))
    if "draft" in words.parts:
        results = [drafted(chance, drafts, batch, words) for chance in words.chances for drafts, batch in cases]
        report.add("draft", [asdict(result) for result in results], render(results))
    report.publish(BLOCK)
    print(f"{perf_counter() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
