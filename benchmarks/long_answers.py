"""Effect of a budget of rows on long answers to short prompts, before and after the text fills it.

    python benchmarks/long_answers.py MODEL [--tokens 800] [--budgets 128 256 512 1024] [--json]

A program with a full cache and a program of each budget answer each prompt greedily. The latter then decode the full
cache's answer token by token. The table has the first token at which the texts differ, and the mean Kullback-Leibler
divergence of the next-token distributions from the full cache's in nats, for tokens within the budget (prompt and
answer together) and for later ones. `--label` names the row, to compare two versions of sscc.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import sscc
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.text.chat_template import ChatTemplate

PROMPTS = (
    "Write a long story about a lighthouse keeper who finds a map.",
    "Explain how a steam engine works, part by part, in as much detail as you can.",
    "Describe a walk through an old harbour town, from the station to the sea.",
    "List fifty facts about the planets of the solar system, and explain each.",
    "Write a letter of several pages from a sailor to his sister at home.",
    "Explain to a beginner how bread is made, and why each step matters.",
    "Tell the history of a small library, from its first book to today.",
    "Write a dialogue in which two gardeners argue about roses.",
)


@dataclass(frozen=True)
class Answered:
    """Result of a prompt with a budget.

    Attributes:
        budget: rows of the cache.
        prompt: tokens of the prompt.
        parts: index of the first token that differs from the full cache's answer; None if none does.
        within, behind: mean divergence of the tokens within the budget, and of later ones; None without any.
    """

    budget: int
    prompt: int
    parts: int | None
    within: float | None
    behind: float | None


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the log-probabilities [V] of logits, in f64."""
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def read(session: sscc.Session, prompt: list[int], answer: list[int]) -> list[np.ndarray]:
    """Return the log-probabilities after the prompt, and after every token of an answer except the last."""
    rows = [log_softmax(session.prefill(0, prompt))]
    rows += [log_softmax(session.decode({0: token})[0]) for token in answer[:-1]]
    return rows


def compared(
    session: sscc.Session, budget: int, prompt: list[int], answer: list[int], full: list[np.ndarray]
) -> Answered:
    """Compare a budget with the full cache: its own answer, and its log-probabilities for the full cache's answer.

    Args:
        session: session of the program with the budget.
        budget: rows of its cache.
        prompt: tokens of the prompt.
        answer: tokens of the full cache's answer.
        full: the full cache's log-probabilities of `read`.
    """
    own = list(session.generate(prompt, len(answer), slot=0))
    parts = next((n for n, (a, b) in enumerate(zip(own, answer, strict=False)) if a != b), None)
    rows = read(session, prompt, answer)
    apart = [float((np.exp(p) * (p - q)).sum()) for p, q in zip(full, rows, strict=True)]
    fits = max(budget - len(prompt) + 1, 0)
    means = [statistics.fmean(part) if part else None for part in (apart[:fits], apart[fits:])]
    return Answered(budget, len(prompt), parts, *means)


def prompts(artifact: Artifact, session: sscc.Session) -> list[list[int]]:
    """Return the tokens of the prompts, each the first message of a conversation."""
    assert artifact.tokenizer is not None
    template = ChatTemplate.load(artifact.tokenizer, names=artifact.tokenizer_files)
    assert template is not None
    texts = (template.render([{"role": "user", "content": text}]) for text in PROMPTS)
    return [session.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def measured(model: Path, tokens: int, budgets: list[int], context: int) -> list[Answered]:
    """Return the results of every prompt with every budget."""
    found: list[Answered] = []
    with tempfile.TemporaryDirectory() as name:

        def opened(budget: int) -> sscc.Session:
            options = {"kv_topk": 0} if budget == context else {}
            path = Path(name) / f"{budget}.rdu"
            sscc.compile(model, output=path, kv_budget=budget, max_context=context, batch=1, **options)
            return sscc.load(path)

        full = opened(context)
        asked = prompts(Artifact.load(Path(name) / f"{context}.rdu"), full)
        answers = [list(full.generate(prompt, tokens, slot=0)) for prompt in asked]
        references = [read(full, prompt, answer) for prompt, answer in zip(asked, answers, strict=True)]
        for budget in budgets:
            session = opened(budget)
            for prompt, answer, reference in zip(asked, answers, references, strict=True):
                found.append(compared(session, budget, prompt, answer, reference))
                print(found[-1], file=sys.stderr)
    return found


def table(found: list[Answered], label: str, tokens: int) -> str:
    """Return a table with a row per budget: the median of the first differing token, and the mean divergences."""
    lines = ["| sscc | rows | equal answers | first difference | within the budget, nats | beyond it, nats |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for budget in dict.fromkeys(each.budget for each in found):
        rows = [each for each in found if each.budget == budget]
        parts = statistics.median([tokens if each.parts is None else each.parts for each in rows])
        columns = ([each.within for each in rows], [each.behind for each in rows])
        known = [[mean for mean in column if mean is not None] for column in columns]
        shown = " | ".join(f"{statistics.fmean(means):.2g}" if means else "" for means in known)
        equal = sum(each.parts is None for each in rows)
        lines.append(f"| {label} | {budget} | {equal} of {len(rows)} | {parts:.0f} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=800, help="tokens of an answer")
    parser.add_argument("--budgets", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--max-context", type=int, default=2048)
    parser.add_argument("--label", default="")
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    found = measured(words.model, words.tokens, words.budgets, words.max_context)
    print(json.dumps([asdict(each) for each in found]) if words.json else table(found, words.label, words.tokens))


if __name__ == "__main__":
    main()
