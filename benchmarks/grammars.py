"""Cost of structured answers: steps of the engine with and without grammars, and two libraries that compute masks.

    python benchmarks/grammars.py [--models NAME ..] [--slots 8] [--write PAGE] [--json]

The engine runs one request per slot, alternately free and constrained, with equal prompts and equal numbers of new
tokens. The libraries are timed on one thread with the tokenizer of the model. xgrammar (which needs torch and
transformers) is timed if it is installed (`pip install xgrammar`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

import numpy as np

import sscc
from benchmarks import table
from benchmarks.command import parser
from benchmarks.gguf_files import FILES
from benchmarks.harness import say
from benchmarks.ours import FASTEST, compiled
from sscc.runtime.serving.engine import Engine, EngineOptions, Request
from sscc.runtime.serving.engine.constraints import GrammarCompiler
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.text.grammar import Grammar

BLOCK = "benchmarks/grammars.py"
_LIST = {"type": "array", "minItems": 1000, "maxItems": 1100}
SCHEMAS: dict[str, dict[str, Any]] = {
    "strings": _LIST | {"items": {"type": "string"}},
    "objects": _LIST
    | {
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "kind": {"enum": ["a", "b", "c"]}},
            "required": ["name", "age", "kind"],
            "additionalProperties": False,
        }
    },
    "any JSON": _LIST,
    "bounded strings": _LIST | {"items": {"type": "string", "minLength": 20, "maxLength": 400}},
    "500 values": _LIST | {"items": {"enum": [f"value number {number}" for number in range(500)]}},
    "patterns": _LIST | {"items": {"type": "string", "pattern": r"^([a-z]{2,9} ){5,30}[a-z]+$"}},
}
"""Schemas whose answers do not end within a measurement."""
PATTERNS = {"letters": r"(\p{L}{1,100}\s){1,100}", "far back": r"(?s:.*)a.{30}"}
"""Regular expressions with slow masks, as in the tests of hostile patterns."""


@dataclass(frozen=True)
class Steps:
    """Seconds of a decode step of all slots, free and constrained by a grammar."""

    name: str
    free: float
    constrained: float

    @property
    def more(self) -> float:
        """Relative overhead of a constrained step."""
        return self.constrained / self.free - 1


@dataclass(frozen=True)
class Masks:
    """Times of a library in seconds, and the memory that it adds to a process in bytes."""

    library: str
    start: float
    tokenizer: float
    compile: dict[str, float]
    median: dict[str, float]
    worst: dict[str, float]
    resident: int


def grammars() -> dict[str, Grammar]:
    return {name: Grammar.json_schema(schema) for name, schema in SCHEMAS.items()} | {
        name: Grammar.regex(pattern) for name, pattern in PATTERNS.items()
    }


def measure_steps(file: Path, slots: int, tokens: int, repeats: int, threads: int) -> list[Steps]:
    """Measure decode steps of the engine, alternately free and constrained.

    Args:
        file: GGUF file of the model.
        slots: decode slots.
        tokens: new tokens of a request.
        repeats: number of repeats.
        threads: threads of the interpreter.
    """
    options = ("--batch", slots, "--max-context", 1024, "--kv-budget", 1024, "--weights", "reference")
    session = sscc.load(compiled(file, f"grammars-batch{slots}", options), interpreter=FASTEST, threads=threads)
    prompt = tuple(session.tokenizer.encode("Write a long list.").ids)
    measured = []
    with Engine(session, session.tokenizer, EngineOptions()) as engine:

        def seconds(grammar: Grammar | None) -> float:
            sampling = [Sampling(temperature=1.0, seed=seed) for seed in range(slots)]
            requests = [Request(prompt, tokens, each, eos=frozenset(), grammar=grammar) for each in sampling]
            handles = engine.submit_all(requests)
            while engine.metrics().running < slots:
                time.sleep(0.002)
            steps, start = engine.metrics().decode_steps, time.perf_counter()
            while engine.metrics().running == slots and engine.metrics().decode_steps - steps < tokens * 3 // 4:
                time.sleep(0.005)
            took = time.perf_counter() - start
            made = engine.metrics().decode_steps - steps
            for handle in handles:
                handle.cancel()
            while engine.metrics().running:
                time.sleep(0.002)
            return took / max(made, 1)

        for name, grammar in grammars().items():
            seconds(grammar)
            pairs = [(seconds(None), seconds(grammar)) for _ in range(repeats)]
            free, constrained = (statistics.median(each) for each in zip(*pairs, strict=True))
            measured.append(Steps(name, free, constrained))
            say(f"{name}: {1e3 * free:.1f} ms free, {1e3 * constrained:.1f} ms constrained")
    return measured


# ------------------------------------------------------------------------------------------------------- libraries


def measure_masks(library: str, folder: Path) -> Masks:
    """Measure a library in a separate process, so that the time and memory of its imports are included."""
    words = [sys.executable, __file__, "--library", library, "--folder", str(folder)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return Masks(**json.loads(done.stdout.splitlines()[-1]))


def _walk(fill: Callable[[Any], None], consume: Callable[[int], bool], bits: Any, steps: int = 200) -> list[float]:
    """Return the seconds of each step of a random answer: computing the mask and consuming the token."""
    chance, times = random.Random(0), []
    for _ in range(steps):
        start = time.perf_counter()
        fill(bits)
        took = time.perf_counter() - start
        tokens = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        if not len(tokens):
            break
        token = int(tokens[chance.randrange(len(tokens))])
        start = time.perf_counter()
        going = consume(token)
        times.append(took + time.perf_counter() - start)
        if not going:
            break
    return times


def _masks(library: str, folder: Path) -> Masks:
    from sscc.runtime.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder / "tokenizer.json")
    vocabulary = tokenizer.get_vocab_size()
    ends = [token for token, added in tokenizer.get_added_tokens_decoder().items() if "end" in added.content][:1]
    before = _resident()
    start = time.perf_counter()
    importlib.import_module(library)
    imported = time.perf_counter() - start
    bits = np.zeros((vocabulary + 31) // 32, np.int32)
    run = _llguidance if library == "llguidance" else _xgrammar
    start = time.perf_counter()
    compile_ = run(tokenizer, vocabulary, ends)
    made = time.perf_counter() - start
    compiling, median, worst = {}, {}, {}
    for name, grammar in grammars().items():
        start = time.perf_counter()
        try:
            fill, consume = compile_(name, grammar)
        except RuntimeError:  # raised by xgrammar for unsupported grammars
            continue
        compiling[name] = time.perf_counter() - start
        times = _walk(fill, consume, bits)
        median[name], worst[name] = statistics.median(times), max(times)
    resident = _resident() - before
    return Masks(library, imported, made, compiling, median, worst, resident)


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _llguidance(tokenizer: Any, vocabulary: int, ends: list[int]) -> Any:
    compiler = GrammarCompiler(tokenizer, vocabulary, ends)
    compiler.tokens("")  # creates the state that all grammars share

    def compiled(name: str, grammar: Grammar) -> Any:
        matcher = compiler.compile(grammar)
        return lambda bits: matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes), matcher.consume_token

    return compiled


def _xgrammar(tokenizer: Any, vocabulary: int, ends: list[int]) -> Any:
    import torch
    import xgrammar
    from transformers import PreTrainedTokenizerFast

    torch.set_num_threads(1)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    info = xgrammar.TokenizerInfo.from_huggingface(fast, vocab_size=vocabulary, stop_token_ids=ends)
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compiled(name: str, grammar: Grammar) -> Any:
        made = (
            compiler.compile_json_schema(json.dumps(SCHEMAS[name]), strict_mode=False)
            if name in SCHEMAS
            else compiler.compile_regex(PATTERNS[name])
        )
        matcher = xgrammar.GrammarMatcher(made)

        def fill(bits: Any) -> None:
            matcher.fill_next_token_bitmask(torch.from_numpy(bits)[None])

        return fill, lambda token: matcher.accept_token(token) and not matcher.is_terminated()

    return compiled


# ----------------------------------------------------------------------------------------------------------- tables


def render_steps(measured: Sequence[Steps]) -> str:
    lines = ["| grammar | free ms | constrained ms | overhead |", "|---|---:|---:|---:|"]
    for each in measured:
        lines.append(
            f"| {each.name} | {1e3 * each.free:.1f} | {1e3 * each.constrained:.1f} | {100 * each.more:+.1f} % |"
        )
    return "\n".join(lines)


def render_masks(measured: Sequence[Masks]) -> str:
    names = list(measured[0].median)
    head = ["library", "import s", "tokenizer s", "memory MiB"]
    head += [f"{name}: compile, median, worst ms" for name in names]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for each in measured:
        cells = [each.library, f"{each.start:.2f}", f"{each.tokenizer:.2f}", f"{each.resident / 2**20:.0f}"]
        for name in names:
            times = (each.compile.get(name), each.median.get(name), each.worst.get(name))
            known = [1e3 * seconds for seconds in times if seconds is not None]
            cells.append("{:.0f}, {:.3f}, {:.2f}".format(*known) if known else "refused")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    options = parser("Measure the cost of structured answers.", tuple(FILES))
    options.add_argument("--slots", type=int, default=8)
    options.add_argument("--tokens", type=int, default=60, help="new tokens of an answer (60)")
    options.add_argument("--library", help="measure one library in this process, for internal use")
    options.add_argument("--folder", type=Path, help="folder of its tokenizer")
    words = options.parse_args()
    if words.library:
        measured = _masks(words.library, words.folder)
        print(json.dumps(vars(measured)))
        return
    file = FILES[words.models[0]].prepare(llama=False)
    steps = measure_steps(file, words.slots, words.tokens, words.repeats, words.threads)
    artifact = file.with_name(f"{file.name}-sscc-grammars-batch{words.slots}.rdu")
    libraries = [name for name in ("llguidance", "xgrammar") if importlib.util.find_spec(name) is not None]
    masks = [measure_masks(name, artifact / "tokenizer") for name in libraries]
    machine = f"{table.machine()}; {words.threads} threads; {words.slots} slots; medians of {words.repeats} repeats."
    text = "\n\n".join([machine, f"{file.stem}:", render_steps(steps), render_masks(masks)])
    document = {"machine": table.machine(), "steps": [vars(each) for each in steps], "masks": [vars(m) for m in masks]}
    print(json.dumps(document) if words.json else text)
    if words.write:
        words.write.write_text(table.replace_block(words.write.read_text(), words.block or BLOCK, text))


if __name__ == "__main__":
    main()
