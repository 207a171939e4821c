"""Speed of models with recurrent states with sscc and llama.cpp, and the time of a conversation's next turn.

    python benchmarks/hybrids.py [--models NAME ..] [--parts speed turn] [--write PAGE] [--json]

Both programs read the GGUF files of `benchmarks/hybrid_files.py`. docs/results/speed.md explains the table. For the
next turn, a text of `--turn` tokens is prefilled and answered, and a message of 32 tokens follows. The times are those
to the first token of both answers; without reuse the second would be slightly longer than the first.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

import sscc
from benchmarks.files import Report, speed_parser
from benchmarks.hybrid_files import FILES
from benchmarks.ours import BUDGET, FASTEST, OPTIONS, SEED, VOCABULARY, compiled
from sscc.runtime.serving.engine.engine import Engine
from sscc.runtime.serving.engine.request import Request

BLOCK = "benchmarks/hybrids.py"
PARTS = ("speed", "turn")
PREFILL = (2048,)
MESSAGE, ANSWER = 32, 32
"""Tokens of the second message, and of the answer before it."""


@dataclass(frozen=True)
class Turn:
    """Times to the first token of two answers.

    Attributes:
        model: name of the file.
        tokens: tokens of the first message.
        anew: seconds to the first token of the first answer.
        after: seconds to the first token of the second answer.
        cached: tokens that were not prefilled again for the second answer.
    """

    model: str
    tokens: int
    anew: float
    after: float
    cached: int


def next_turn(name: str, file: Path, tokens: int, threads: int, repeats: int) -> Turn:
    """Return the times of a conversation whose first message has `tokens` tokens."""
    context = -(-(tokens + ANSWER + MESSAGE + 64) // 1024) * 1024
    shape = ("--batch", 1, "--max-context", context, "--kv-budget", BUDGET)
    path = compiled(file, f"as stored-turn-context{context}", (*shape, *OPTIONS["as stored"]))
    random = Random(SEED)
    times: dict[str, list[float]] = {"anew": [], "after": []}
    cached = 0
    for _ in range(repeats):
        with Engine(sscc.load(path, interpreter=FASTEST, threads=threads)) as engine:
            text = [random.randrange(VOCABULARY) for _ in range(tokens)]
            first = engine.submit(Request(text, max_new_tokens=ANSWER)).result()
            text = [*text, *first.tokens, *(random.randrange(VOCABULARY) for _ in range(MESSAGE))]
            second = engine.submit(Request(text, max_new_tokens=1)).result()
        times["anew"].append(first.first_token_seconds)
        times["after"].append(second.first_token_seconds)
        cached = second.cached_tokens
    return Turn(name, tokens, median(times["anew"]), median(times["after"]), cached)


def render_turns(turns: list[Turn]) -> str:
    """Return the table of next turns."""
    lines = ["| file | tokens | reused | first turn s | next turn s | ratio |", "|---|---:|---:|---:|---:|---:|"]
    for turn in turns:
        figures = f"{turn.cached} | {turn.anew:.1f} | {turn.after:.2f} | **{turn.anew / turn.after:.0f}**"
        lines.append(f"| {turn.model} | {turn.tokens} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    options = speed_parser("Measure GGUF files of models with recurrent states.", FILES, PARTS, PREFILL)
    options.add_argument("--turn", type=int, default=32_768, metavar="N", help="tokens before the next turn (32768)")
    words = options.parse_args()
    report = Report(words)
    if "speed" in words.parts:
        report.add_speed(FILES)
    if "turn" in words.parts:
        files = {name: FILES[name].prepare(llama=False) for name in words.models}
        turns = [next_turn(name, file, words.turn, words.threads, words.repeats) for name, file in files.items()]
        report.add("turn", [asdict(turn) for turn in turns], render_turns(turns))
    report.publish(BLOCK)


if __name__ == "__main__":
    main()
