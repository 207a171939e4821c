"""Time of decode steps with selection by query, with SnapStream of the same budget, and with the full cache.

    python benchmarks/query_selection.py [MODEL] [--cases 1x16384 1x65536 8x65536] [--threads 2] [--steps 64] \
      [--folder FOLDER] [--write docs/results/speed.md]

A case is BATCHxCONTEXT, MODEL is a name of `models.py` or a folder. Caches are filled with random bytes of small
numbers instead of a prompt, which takes a second instead of minutes and does not change the time of a step. Slots are
at the end of the context. Prints the milliseconds of the median and the fastest step, the limit set by their bytes, and
the parts of a step with selection by query. llama.cpp has to prefill its prompt, so it runs the cases of `--peer-cases`
only; it is skipped if it is not installed, or if MODEL is a folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

import sscc
from benchmarks import models, table
from benchmarks.harness import Runner, RunnerError, command, environment, native_bandwidth
from benchmarks.peers.registry import PEERS
from sscc.compiler.tools.commands.cli import main as sscc_command
from sscc.ir.quantized_keys import SCALE_BYTES, code_bytes
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.prompt import Prompt
from sscc.runtime.session.session import Session

BLOCK = "benchmarks/query_selection.py"
MODEL = "m125-long"
BUDGET = 1024
TOKEN = 5
BURST = 4
PEER_LIMIT = 600.0  # seconds, most of them for prefill
POLICIES = {
    "snapstream": ("--kv-budget", str(BUDGET)),
    "query": ("--kv-budget", str(BUDGET), "--kv-policy", "query"),
    "full": ("--kv-budget", "CONTEXT"),
}
PHASES = {
    4: ("scoring", "selection", "attention", "merging"),
    2: ("scoring and selection", "attention"),
}
"""Names of the phases of the attention stage, by their number. With enough slots and heads, one unit of work does what
otherwise takes two phases. With fewer, a thread that scores a slot and KV head alone also selects in the scoring phase,
and the selection phase is left with those that several threads have scored."""


@dataclass
class Measured:
    """Measurements of a case.

    Attributes:
        case: BATCHxCONTEXT.
        threads: threads of the interpreter.
        steps: sorted seconds of steps, by policy.
        nbytes: bytes that a step reads, by policy.
        parts: seconds of the parts of a step with selection by query.
        bandwidth: read bandwidth in bytes/s, measured before and after.
        peer: seconds of a step of llama.cpp, by its name and version.
    """

    case: str
    threads: int
    steps: dict[str, list[float]]
    nbytes: dict[str, float]
    parts: dict[str, float]
    bandwidth: float
    peer: dict[str, float] = field(default_factory=dict)


def compiled(model: Path, policy: str, batch: int, context: int, folder: Path, dtype: str) -> Path:
    """Return the compiled program of a case. Raises SystemExit if the compiler fails."""
    path = folder / f"{model.name}-{dtype}-{policy}-{batch}x{context}.rdu"
    shape = ["--batch", str(batch), "--max-context", str(context), "--dtype", dtype, "--weights", "reference"]
    words = [word.replace("CONTEXT", str(context)) for word in POLICIES[policy]]
    if not path.exists() and sscc_command(["compile", str(model), "-o", str(path), *shape, *words, "-q"]):
        raise SystemExit(1)
    return path


def fill(session: Session, length: int) -> None:
    """Fill every state with random numbers, and set all slots to position `length`."""
    random = np.random.default_rng(0)
    states = [tensor for tensor in session.interpreter.program.tensors if tensor.role == "state"]
    pieces = {
        "bf16": random.normal(size=1 << 20).astype(np.float32).view(np.uint32) >> 16,
        "f32": random.normal(size=1 << 20).astype(np.float32).view(np.uint32),
        "i8": random.integers(0, 256, 1 << 20),
    }
    for state in states:
        view = session.interpreter.tensor(state.name)
        if state.dtype == "i64":
            continue
        flat = view.reshape(-1).view(f"u{view.dtype.itemsize}")
        piece = pieces[state.dtype].astype(flat.dtype)
        if state.name.endswith("quantized_key_scales"):
            piece &= np.asarray(0x7FFF, flat.dtype)
        for start in range(0, flat.size, piece.size):
            flat[start : start + piece.size] = piece[: flat.size - start]
    tokens, logits = np.full(length, TOKEN, np.int64), np.zeros(session.signature.vocab_size, np.float32)
    for slot in range(session.signature.batch):
        session._slots.fill(slot, Prompt(Excerpt.whole(tokens), logits))


def decode(session: Session) -> float:
    """Return the seconds of a decode step of all slots."""
    tokens = dict.fromkeys(range(session.signature.batch), TOKEN)
    start = perf_counter()
    session.decode(tokens)
    return perf_counter() - start


def interleaved(sessions: Sequence[Session], count: int) -> list[list[float]]:
    """Return the sorted seconds of `count` steps of all slots of each session. Sessions take turns of `BURST` steps,
    the first of which is a warm-up."""
    times: list[list[float]] = [[] for _ in sessions]
    while len(times[-1]) < count:
        for session, found in zip(sessions, times, strict=True):
            found += [decode(session) for _ in range(BURST)][1:]
    return [sorted(found) for found in times]


def parts(session: Session) -> dict[str, float]:
    """Return the seconds of a step in each phase of attention, at barriers and elsewhere: each the maximum over
    threads, for the fastest of `BURST` steps.

    Raises ValueError if the phases of attention are not those of selection by query.
    """
    core, best = session.interpreter.core, dict[str, float]()
    for _ in range(BURST):
        core.trace(True)
        decode(session)
        events = core.events()
        core.trace(False)
        found = _parts_of(events, [*core.labels], session.signature.layers)
        if not best or sum(found.values()) < sum(best.values()):
            best = found
    return best


def _parts_of(events: Sequence[tuple[int, int, int, int]], labels: Sequence[str], layers: int) -> dict[str, float]:
    threads: dict[int, dict[str, float]] = {}
    for thread in sorted({thread for _, thread, _, _ in events}):
        spent = {"barriers": 0.0, "everything else": 0.0}
        attention = []
        for label, of, start, end in events:
            if of != thread:
                continue
            if label >= 0 and labels[label].endswith("query_attention"):
                attention.append((end - start) / 1e9)
            else:
                spent["everything else" if label >= 0 else "barriers"] += (end - start) / 1e9
        names = PHASES.get(len(attention) // layers)
        if names is None or len(attention) % layers:
            raise ValueError(f"{len(attention)} runs of attention in {layers} layers match no known phases")
        threads[thread] = {name: sum(attention[i :: len(names)]) for i, name in enumerate(names)} | spent
    return {name: max(spent[name] for spent in threads.values()) for name in threads[0]}


def step_bytes(shape: models.LlamaShape, session: Session, context: int, dtype: str) -> float:
    """Return the bytes that a decode step must read: the weights once, and for each slot the rows that it attends to
    and the quantized keys that it scores."""
    g, size = session.signature.geometry, {"bf16": 2, "f32": 4}[dtype]
    heads = shape.layers * shape.kv_heads
    slot = min(context, g.sink + g.recent + g.topk) * heads * 2 * shape.head_dim * size
    if g.by_query:
        candidates = context - g.sink - g.recent
        slot += candidates * heads * (code_bytes(shape.head_dim, g.key_bits) + SCALE_BYTES)
    return shape.weights_per_step(session.signature.batch) * size + session.signature.batch * slot


def shape_of(folder: Path) -> models.LlamaShape:
    """Return the sizes of a Llama from its config."""
    config = json.loads((folder / "config.json").read_text())
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    return models.LlamaShape(*(config[name] for name in names), config["vocab_size"])


def peer_step(model: str, batch: int, context: int, steps: int, threads: int) -> dict[str, float]:
    """Return the seconds of a step of llama.cpp with its full cache, by its name and version; empty if it is not
    installed or fails."""
    peer = next(peer for peer in PEERS if peer.name == "llama.cpp")
    if peer.missing():
        print(peer.missing(), file=sys.stderr)
        return {}
    folder = models.checkpoint(model)
    models.gguf_file(model)
    request: dict[str, object] = {"measure": "decode", "batch": batch, "context": context, "steps": steps}
    started = command(peer, peer.precisions[0], folder, threads)
    with tempfile.TemporaryFile("w+") as log:
        try:
            with Runner(started, environment(threads, passive=False), log) as runner:
                return {f"{peer.name} {runner.version}": runner.ask(request, PEER_LIMIT) / steps}
        except RunnerError as error:
            print(f"{peer.name}: {error}", file=sys.stderr)
            return {}


def measure(options: argparse.Namespace, folder: Path) -> list[Measured]:
    named = options.model in models.MODELS
    model, results = models.checkpoint(options.model) if named else Path(options.model), []
    for case in options.cases:
        batch, context = (int(word) for word in case.split("x"))
        sizes = (batch, context, folder, options.dtype)
        paths = {policy: compiled(model, policy, *sizes) for policy in options.policies}
        for threads in options.threads:
            result = _measured(case, threads, paths, shape_of(model), options)
            if named and case in options.peer_cases:
                result.peer = peer_step(options.model, batch, context, options.steps, threads)
            results.append(result)
    return results


def _measured(
    case: str, threads: int, paths: dict[str, Path], shape: models.LlamaShape, options: argparse.Namespace
) -> Measured:
    """Measure a case with sscc. Its caches are freed on return."""
    context, read = int(case.split("x")[1]), native_bandwidth(threads)
    sessions = {policy: sscc.load(path, threads=threads) for policy, path in paths.items()}
    for session in sessions.values():
        fill(session, context - 2 * (options.steps + 2 * BURST))
    before = read()
    steps = dict(zip(sessions, interleaved([*sessions.values()], options.steps), strict=True))
    bandwidth = (before + read()) / 2
    nbytes = {policy: step_bytes(shape, session, context, options.dtype) for policy, session in sessions.items()}
    return Measured(case, threads, steps, nbytes, parts(sessions["query"]) if "query" in sessions else {}, bandwidth)


# --------------------------------------------------------------------------------------------------------- tables


def render(results: Sequence[Measured], policies: Sequence[str], model: str) -> str:
    """Return Markdown: a table of steps, and one of the parts of steps with selection by query."""
    heads = ["case", "threads", *(f"{name}, ms" for name in policies)]
    heads += [f"query, speed-up over {other}" for other in policies if other != "query" and "query" in policies]
    heads += [*(["llama.cpp, ms"] if any(result.peer for result in results) else []), "read GB/s"]
    lines = [_line(heads), _line(["---", *["---:"] * (len(heads) - 1)])]
    for result in results:
        cells = [result.case, str(result.threads), *(_step(result, name) for name in policies)]
        cells += [_speed(result, name) for name in policies if name != "query" and "query" in policies]
        if "llama.cpp, ms" in heads:
            cells.append(", ".join(_milliseconds(seconds) for seconds in result.peer.values()))
        lines.append(_line([*cells, f"{result.bandwidth / 1e9:.0f}"]))
    heading = (
        f"{table.machine()}; {model}, budget {BUDGET}; median step of all slots, in brackets the fastest step and "
        "the fraction of the read bandwidth in the median. Speed-ups are ratios of medians, in brackets the ratios of "
        "bytes."
    )
    parts_of = [result for result in results if result.parts]
    if parts_of:
        names = list(dict.fromkeys(name for result in parts_of for name in result.parts))
        names = sorted(names, key=lambda name: name in ("barriers", "everything else"))
        lines += ["", "Parts of a step with selection by query, in ms of the slowest thread of each part:", ""]
        lines += [_line(["case", "threads", *names]), _line(["---", *["---:"] * (len(names) + 1)])]
        for result in parts_of:
            cells = [_milliseconds(result.parts[name]) if name in result.parts else "" for name in names]
            lines.append(_line([result.case, str(result.threads), *cells]))
    versions = dict.fromkeys(name for result in results for name in result.peer)
    versions_line = ["", "Versions: " + ", ".join(versions) + "."] if versions else []
    return "\n".join([heading, "", *lines, *versions_line]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _step(result: Measured, policy: str) -> str:
    seconds = result.steps[policy]
    share = result.nbytes[policy] / statistics.median(seconds) / result.bandwidth
    return f"{_milliseconds(statistics.median(seconds))} ({_milliseconds(seconds[0])}; {share:.0%})"


def _speed(result: Measured, other: str) -> str:
    query, than = (statistics.median(result.steps[name]) for name in ("query", other))
    return f"{than / query:.2f} ({result.nbytes[other] / result.nbytes['query']:.2f})"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=MODEL, help=f"name or folder ({MODEL})")
    parser.add_argument("--cases", nargs="+", default=["1x16384", "1x65536", "8x65536"], metavar="BATCHxCONTEXT")
    parser.add_argument("--peer-cases", nargs="*", default=["1x16384"], metavar="BATCHxCONTEXT", help="for llama.cpp")
    parser.add_argument("--threads", nargs="+", type=int, default=[2])
    parser.add_argument("--policies", nargs="+", choices=tuple(POLICIES), default=list(POLICIES))
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f32"))
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="folder in which programs are kept and reused")
    parser.add_argument("--write", type=Path, metavar="PAGE", help=f"replace the block {BLOCK!r} of a Markdown page")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        text = render(measure(options, folder), options.policies, f"{Path(options.model).name} in {options.dtype}")
    print(text)
    if options.write:
        options.write.write_text(table.replace_block(options.write.read_text(), BLOCK, text))


if __name__ == "__main__":
    main()
