"""Perplexity of a GGUF file with sscc and with llama-perplexity, on the same tokens of a text.

llama-perplexity splits a text into chunks of 512 tokens and averages the negative log-probabilities of the tokens in
the second half of each chunk, after the tokens before them in the chunk. sscc computes the same with a prefill of the
first half and decode steps for the second.
"""

from __future__ import annotations

import math
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import sscc
from benchmarks.harness import RunnerError, say
from benchmarks.ours import FASTEST, compiled
from benchmarks.peers.llama import TOOLS
from sscc.runtime.text.tokenizer import encode

CHUNK = 512
SLOTS = 4


@dataclass(frozen=True)
class Perplexity:
    """Perplexities of a file with sscc and llama.cpp on the same tokens."""

    name: str
    ours: float
    llama: float

    @property
    def difference(self) -> float:
        """Relative difference of sscc's perplexity from llama.cpp's."""
        return self.ours / self.llama - 1

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"difference": self.difference}


def measure(file: Path, text: Path, threads: int, chunks: int, interpreter: str = FASTEST) -> Perplexity:
    """Measure a file on the first chunks of a text. Raises RunnerError if llama-perplexity fails."""
    name = file.stem if interpreter == FASTEST else f"{file.stem}, {interpreter}"
    say(f"{name}: perplexity")
    ours, llama = _ours(file, text, threads, chunks, interpreter), _llama(file, text, threads, chunks)
    return Perplexity(name, ours, llama)


def render(measured: list[Perplexity]) -> str:
    lines = ["| file | sscc | llama.cpp | difference |", "|---|---:|---:|---:|"]
    for each in measured:
        lines.append(f"| {each.name} | {each.ours:.4f} | {each.llama:.4f} | {100 * each.difference:+.2f} % |")
    return "\n".join(lines)


def _ours(file: Path, text: Path, threads: int, chunks: int, interpreter: str) -> float:
    options = ("--batch", SLOTS, "--max-context", CHUNK, "--kv-budget", CHUNK, "--weights", "reference")
    session = sscc.load(compiled(file, "perplexity", options), interpreter=interpreter, threads=threads)
    ids = encode(session.tokenizer, text.read_text())
    total, count = 0.0, 0
    for start in range(0, chunks, SLOTS):
        rows = [ids[CHUNK * n : CHUNK * (n + 1)] for n in range(start, min(start + SLOTS, chunks))]
        if any(len(row) < CHUNK for row in rows):
            raise ValueError(f"{text} has {len(ids)} tokens, but {chunks} chunks need {chunks * CHUNK}")
        total += _nats(session, rows)
        count += len(rows) * (CHUNK // 2 - 1)
    return math.exp(total / count)


def _nats(session: sscc.Session, rows: list[list[int]]) -> float:
    """Return the sum of negative log-probabilities over the second half of each row."""
    session.reset()
    half = CHUNK // 2 + 1
    logits = [torch.as_tensor(session.prefill(slot, row[:half])) for slot, row in enumerate(rows)]
    total = 0.0
    for position in range(half, CHUNK):
        for slot, row in enumerate(rows):
            total -= torch.log_softmax(logits[slot].double(), -1)[row[position]].item()
        if position + 1 < CHUNK:
            decoded = torch.as_tensor(session.decode({slot: row[position] for slot, row in enumerate(rows)}))
            logits = [decoded[slot].clone() for slot in range(len(rows))]
    return total


def _llama(file: Path, text: Path, threads: int, chunks: int) -> float:
    words = ("-m", file, "-f", text, "-c", CHUNK, "--chunks", chunks, "-t", threads)
    command = [str(word) for word in (TOOLS / "llama-perplexity", *words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    found = re.search(r"PPL = ([0-9.]+)", done.stdout + done.stderr)
    if done.returncode or not found:
        raise RunnerError(f"llama-perplexity ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return float(found[1])
