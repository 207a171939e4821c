"""Time to the first token of a long prompt, whole and shortened by a draft.

    python benchmarks/speculative_prefill.py [--model qwen] [--draft smollm2] [--tokens 8000]
        [--write docs/results/speed.md]

The models are those of docs/results/quality.md, with two tokenizers, or dense shapes with random weights
(benchmarks/models.py), with one; the time depends on shapes only. Each repeat prefills the whole prompt, scores it with
the draft, and prefills the kept part for each fraction. The table has the measured speed-up and the ratio of
operations: those of the whole prompt, divided by those of the draft and of the kept part.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

import numpy as np

import sscc
from benchmarks import models, quality, table
from benchmarks.harness import say
from benchmarks.ours import compiled
from benchmarks.peers.protocol import token_ids
from sscc.compiler.tools.quality.haystack import Haystack, fit
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.excerpt import PromptTokens
from sscc.runtime.session.session import Session
from sscc.runtime.session.shortening import Shortener
from sscc.runtime.session.speculative_prefill import Draft
from sscc.runtime.text.tokenizer import encode

BLOCK = "benchmarks/speculative_prefill.py"
KEEPS = (0.1, 0.2, 0.3, 0.5)
SEED, ROOM = 5, 192
LEARNED = ("qwen", "smollm2")
DENSE = tuple(name for name, shape in models.MODELS.items() if not isinstance(shape, models.ExpertShape))
TARGET, DRAFT = ("--kv-budget", "1024"), ("--kv-rows", "indexed", "--kv-budget", "2048")


@dataclass
class Times:
    """Seconds of every repeat, and prefilled tokens."""

    tokens: int
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def artifact(name: str, context: int, cache: Sequence[str]) -> Path:
    """Return a compiled model, compiled once."""
    source = quality.model(name) if name in LEARNED else models.checkpoint(name)
    shape = ("--dtype", "bf16", "--weights", "reference", "--max-context", context)
    return compiled(source, "-".join(("prefill", str(context), *cache[1::2])), (*shape, *cache))


def operations(program: Artifact, tokens: int) -> float:
    """Return the operations of a prompt: two per token and matrix element, and four per pair of positions, head and
    element of a head."""
    s = program.signature
    weights = [tensor for tensor in program.program.tensors if tensor.role == "weight" and len(tensor.shape) > 1]
    met = sum(math.prod(tensor.shape) for tensor in weights if s.vocab_size not in tensor.shape)
    widths = sum(len(group.layers) * group.heads * group.width for group in s.plan)
    return 2.0 * met * tokens + float(widths) * tokens**2


def measured(words: argparse.Namespace) -> str:
    """Return Markdown with a row for the whole prompt, and one for each fraction."""
    context = words.tokens + ROOM
    paths = artifact(words.model, context, TARGET), artifact(words.draft, context, DRAFT)
    programs = [Artifact.load(path) for path in paths]
    target, drafts = (sscc.load(path, threads=words.threads) for path in paths)
    shortener = Shortener(Draft(drafts), target.signature, target.tokenizer)

    text = prose(words.tokens, (target, drafts)) if words.model in LEARNED else None
    prompt = np.array(token_ids(words.tokens) if text is None else encode(target.tokenizer, text), np.int64)
    whole, scoring = Times(len(prompt)), Times(0)
    parts = {keep: Times(0) for keep in words.keeps}
    for repeat in range(words.repeats):
        say(f"repeat {repeat + 1} of {words.repeats}")
        whole.seconds.append(prefill_seconds(target, prompt))
        start = time.perf_counter()
        scored = shortener.scored(prompt, text)
        scoring.seconds.append(time.perf_counter() - start)
        scoring.tokens = 0 if scored.scores is None else len(scored.scores)
        for keep, part in parts.items():
            left = scored.left(keep)
            part.tokens = len(left)
            part.seconds.append(prefill_seconds(target, left))
    return render(programs, whole, scoring, parts, words)


def prose(tokens: int, sessions: Sequence[Session]) -> str:
    """Return a text of at most `tokens` tokens in the tokenizers of all sessions."""

    def count(text: str) -> int:
        return max(len(encode(session.tokenizer, text)) for session in sessions)

    return fit(Haystack.prose(Random(SEED)).text, tokens, count, "a text")


def prefill_seconds(session: Session, prompt: PromptTokens) -> float:
    start = time.perf_counter()
    session.prefill(0, prompt)
    return time.perf_counter() - start


def render(
    programs: Sequence[Artifact], whole: Times, scoring: Times, parts: dict[float, Times], words: argparse.Namespace
) -> str:
    target, draft = programs
    all_of_it, reading = operations(target, whole.tokens), operations(draft, scoring.tokens)
    lines = [
        f"{table.machine()}, {words.threads} threads; {words.draft} drafts for {words.model}, both bf16; "
        f"{whole.tokens} tokens of {words.model}, {scoring.tokens} of {words.draft}; medians of {words.repeats}.",
        "",
        "| prompt | prefilled tokens | draft, s | prefill, s | first token, s | speed-up | ratio of operations |",
        "|---|---:|---:|---:|---:|---:|---:|",
        f"| whole | {whole.tokens} | | {whole.median:.2f} | {whole.median:.2f} | 1 | 1 |",
    ]
    for keep, part in parts.items():
        first = scoring.median + part.median
        bound = all_of_it / (reading + operations(target, part.tokens))
        cells = [f"keep {keep:g}", str(part.tokens), f"{scoring.median:.2f}", f"{part.median:.2f}", f"{first:.2f}"]
        lines.append("| " + " | ".join([*cells, f"{whole.median / first:.2f}", f"{bound:.2f}"]) + " |")
    share = reading / all_of_it
    lines += ["", f"The draft has {share:.2f} of the operations of the whole prompt."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the time to the first token of whole and shortened prompts.")
    names = (*LEARNED, *DENSE)
    parser.add_argument("--model", default="qwen", choices=names, help="model that answers (qwen)")
    parser.add_argument("--draft", default="smollm2", choices=names, help="model that scores (smollm2)")
    parser.add_argument("--tokens", type=int, default=8000, help="tokens of the prompt (8000)")
    parser.add_argument("--keeps", type=float, nargs="+", default=KEEPS, metavar="SHARE")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the marked block of a Markdown page")
    words = parser.parse_args()
    if (words.model in LEARNED) != (words.draft in LEARNED):
        parser.error("--model and --draft must both have random weights, or both be trained models")
    text = measured(words)
    print(text)
    if words.write:
        name = f"{BLOCK} {words.draft} for {words.model}"
        words.write.write_text(table.replace_block(words.write.read_text(), name, text))


if __name__ == "__main__":
    main()
