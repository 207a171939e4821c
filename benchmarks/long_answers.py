"""Long answers to short prompts: what a budget of rows costs before a text fills it, and behind that.

    python benchmarks/long_answers.py MODEL [--tokens 800] [--budgets 128 256 512 1024] [--json]

A program with a full cache answers each prompt greedily. A program of each budget answers it too, and then reads the
full cache's answer token by token. The table says at which token the texts part, and in nats how far the next-token
distributions of the answer are apart (the mean Kullback-Leibler divergence from the full cache's), by where the token
stands: while prompt and answer fit the budget, and behind. `--label` names the row, so that two versions of sscc can
be compared.
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
    """One prompt and one budget.

    Attributes:
        prompt: tokens of the prompt.
        parts: the answer's first token that is not the full cache's; None where all are.
        within, behind: mean divergence of tokens while prompt and answer fit the budget, and of those behind; None
            where there are none.
    """

    budget: int
    prompt: int
    parts: int | None
    within: float | None
    behind: float | None


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities [V] in f64."""
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def read(session: sscc.Session, prompt: list[int], answer: list[int]) -> list[np.ndarray]:
    """Log-probabilities after the prompt and after every token of an answer but the last one."""
    rows = [log_softmax(session.prefill(0, prompt))]
    rows += [log_softmax(session.decode({0: token})[0]) for token in answer[:-1]]
    return rows


def compared(
    session: sscc.Session, budget: int, prompt: list[int], answer: list[int], full: list[np.ndarray]
) -> Answered:
    """Answer a prompt with a budget, and read the full cache's answer."""
    own = list(session.generate(prompt, len(answer), slot=0))
    parts = next((n for n, (a, b) in enumerate(zip(own, answer, strict=False)) if a != b), None)
    rows = read(session, prompt, answer)
    apart = [float((np.exp(p) * (p - q)).sum()) for p, q in zip(full, rows, strict=True)]
    fits = max(budget - len(prompt) + 1, 0)
    means = [statistics.fmean(part) if part else None for part in (apart[:fits], apart[fits:])]
    return Answered(budget, len(prompt), parts, *means)


def prompts(artifact: Artifact, session: sscc.Session) -> list[list[int]]:
    """The tokens of the prompts, each the first message of a conversation."""
    assert artifact.tokenizer is not None
    template = ChatTemplate.load(artifact.tokenizer, names=artifact.tokenizer_files)
    assert template is not None
    texts = (template.render([{"role": "user", "content": text}]) for text in PROMPTS)
    return [session.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def measured(model: Path, tokens: int, budgets: list[int], context: int) -> list[Answered]:
    """Every prompt with every budget."""
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
    """A row per budget: medians over prompts of where texts part, means of divergences."""
    lines = ["| sscc | rows | texts as the full cache's | they part at | within the budget, nats | behind it, nats |"]
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
    parser.add_argument("--tokens", type=int, default=800, help="of each answer")
    parser.add_argument("--budgets", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--max-context", type=int, default=2048)
    parser.add_argument("--label", default="")
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    found = measured(words.model, words.tokens, words.budgets, words.max_context)
    print(json.dumps([asdict(each) for each in found]) if words.json else table(found, words.label, words.tokens))


if __name__ == "__main__":
    main()
