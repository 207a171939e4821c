"""Decode steps whose queries choose their rows, beside SnapStream with as many rows and the full cache.

    python benchmarks/query_selection.py [MODEL] [--cases 1x16384 1x65536 8x65536] [--threads 2] [--steps 64] \
      [--folder FOLDER] [--write docs/results/speed.md]

A case is BATCHxCONTEXT, MODEL a name of `models.py` or a folder. Caches are not filled by a prompt but with random
bytes that stand for small numbers, which takes a second instead of minutes and costs a step the same; slots stand at
the end of the context. Prints milliseconds of the median and the fastest step, what its bytes allow, and where a step
whose query chooses spends its time. llama.cpp reads its prompt, so that only the cases of `--peer-cases` are asked of
it; it is left out where it is not installed, or MODEL is a folder.
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
from sscc.ir.landmarks import SCALE_BYTES, code_bytes
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.prompt import Prompt
from sscc.runtime.session.session import Session

BLOCK = "benchmarks/query_selection.py"
MODEL = "m125-long"
BUDGET = 1024
TOKEN = 5
BURST = 4
PEER_LIMIT = 600.0  # seconds; most of them read the prompt
POLICIES = {
    "snapstream": ("--kv-budget", str(BUDGET)),
    "query": ("--kv-budget", str(BUDGET), "--kv-policy", "query"),
    "full": ("--kv-budget", "CONTEXT"),
}
PHASES = {
    4: ("scoring", "choosing", "attention", "merging"),
    2: ("scoring and choosing", "attention"),
}
"""Of the stage of attention, by how many there are: where there are slots and heads enough, a unit does what takes two
phases elsewhere. Where not, who scores a slot and KV head alone chooses in the phase of scoring too, so that there is
left for the second one only what several threads have scored."""


@dataclass
class Measured:
    """What was measured of a case: seconds of steps by policy, sorted, and bytes that a step reads; seconds of the
    parts of a step whose query chooses; bytes/s that memory was read with before and after; seconds of a step of
    llama.cpp, and its name."""

    case: str
    threads: int
    steps: dict[str, list[float]]
    nbytes: dict[str, float]
    parts: dict[str, float]
    bandwidth: float
    peer: dict[str, float] = field(default_factory=dict)


def compiled(model: Path, policy: str, batch: int, context: int, folder: Path, dtype: str) -> Path:
    """The program of a case. Raises SystemExit where the compiler refuses."""
    path = folder / f"{model.name}-{dtype}-{policy}-{batch}x{context}.rdu"
    shape = ["--batch", str(batch), "--max-context", str(context), "--dtype", dtype, "--weights", "reference"]
    words = [word.replace("CONTEXT", str(context)) for word in POLICIES[policy]]
    if not path.exists() and sscc_command(["compile", str(model), "-o", str(path), *shape, *words, "-q"]):
        raise SystemExit(1)
    return path


def fill(session: Session, length: int) -> None:
    """Random numbers in every state, and all slots at position `length`."""
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
        if state.name.endswith("landmark_scales"):
            piece &= np.asarray(0x7FFF, flat.dtype)
        for start in range(0, flat.size, piece.size):
            flat[start : start + piece.size] = piece[: flat.size - start]
    tokens, logits = np.full(length, TOKEN, np.int64), np.zeros(session.signature.vocab_size, np.float32)
    for slot in range(session.signature.batch):
        session._slots.fill(slot, Prompt(Excerpt.whole(tokens), logits))


def decode(session: Session) -> float:
    """Seconds of a step of all slots."""
    tokens = dict.fromkeys(range(session.signature.batch), TOKEN)
    start = perf_counter()
    session.decode(tokens)
    return perf_counter() - start


def interleaved(sessions: Sequence[Session], count: int) -> list[list[float]]:
    """Seconds of `count` steps of all slots of each session, sorted. Sessions take turns, `BURST` steps each, the first
    of which warms up."""
    times: list[list[float]] = [[] for _ in sessions]
    while len(times[-1]) < count:
        for session, found in zip(sessions, times, strict=True):
            found += [decode(session) for _ in range(BURST)][1:]
    return [sorted(found) for found in times]


def parts(session: Session) -> dict[str, float]:
    """Seconds that a step spends in each phase of attention, waiting at barriers, and elsewhere, of the thread that it
    takes longest there: the least of `BURST` steps.

    Raises ValueError where attention's phases are not those of a query that chooses.
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
            raise ValueError(f"{len(attention)} runs of attention in {layers} layers are no phases that are known")
        threads[thread] = {name: sum(attention[i :: len(names)]) for i, name in enumerate(names)} | spent
    return {name: max(spent[name] for spent in threads.values()) for name in threads[0]}


def step_bytes(shape: models.LlamaShape, session: Session, context: int, dtype: str) -> float:
    """Bytes that a decode step cannot avoid to read: weights once, and of each slot the rows that it attends to, and
    the landmarks of those that it chooses among."""
    g, size = session.signature.geometry, {"bf16": 2, "f32": 4}[dtype]
    heads = shape.layers * shape.kv_heads
    slot = min(context, g.sink + g.recent + g.topk) * heads * 2 * shape.head_dim * size
    if g.by_query:
        candidates = context - g.sink - g.recent
        slot += candidates * heads * (code_bytes(shape.head_dim, g.landmark_bits) + SCALE_BYTES)
    return shape.weights_per_step(session.signature.batch) * size + session.signature.batch * slot


def shape_of(folder: Path) -> models.LlamaShape:
    """The sizes of a Llama, by its config."""
    config = json.loads((folder / "config.json").read_text())
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    return models.LlamaShape(*(config[name] for name in names), config["vocab_size"])


def peer_step(model: str, batch: int, context: int, steps: int, threads: int) -> dict[str, float]:
    """Seconds of a step of llama.cpp with its full cache, by its name and version; empty where it is not installed or
    cannot."""
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
    """A case without llama.cpp; on return its caches are gone."""
    context, read = int(case.split("x")[1]), native_bandwidth(threads)
    sessions = {policy: sscc.load(path, threads=threads) for policy, path in paths.items()}
    for session in sessions.values():
        fill(session, context - 2 * (options.steps + 2 * BURST))
    before = read()
    steps = dict(zip(sessions, interleaved([*sessions.values()], options.steps), strict=True))
    bandwidth = (before + read()) / 2
    nbytes = {policy: step_bytes(shape, session, context, options.dtype) for policy, session in sessions.items()}
    return Measured(case, threads, steps, nbytes, parts(sessions["query"]) if "query" in sessions else {}, bandwidth)


# ----------------------------------------------------------------------------------------------------- the tables


def render(results: Sequence[Measured], policies: Sequence[str], model: str) -> str:
    """Markdown: a table of steps, and one of the parts of those whose query chooses."""
    heads = ["case", "threads", *(f"{name}, ms" for name in policies)]
    heads += [f"query, times {other}'s speed" for other in policies if other != "query" and "query" in policies]
    heads += [*(["llama.cpp, ms"] if any(result.peer for result in results) else []), "read GB/s"]
    lines = [_line(heads), _line(["---", *["---:"] * (len(heads) - 1)])]
    for result in results:
        cells = [result.case, str(result.threads), *(_step(result, name) for name in policies)]
        cells += [_speed(result, name) for name in policies if name != "query" and "query" in policies]
        if "llama.cpp, ms" in heads:
            cells.append(", ".join(_milliseconds(seconds) for seconds in result.peer.values()))
        lines.append(_line([*cells, f"{result.bandwidth / 1e9:.0f}"]))
    heading = (
        f"{table.machine()}; {model}, budget {BUDGET}; a step of all slots, the median, in brackets the best and the "
        "share of the read bandwidth that the bytes of the median come to. Speeds are of medians, in brackets what "
        "bytes alone allow."
    )
    parts_of = [result for result in results if result.parts]
    if parts_of:
        names = list(dict.fromkeys(name for result in parts_of for name in result.parts))
        names = sorted(names, key=lambda name: name in ("barriers", "everything else"))
        lines += ["", "Parts of a step whose query chooses, in ms of the thread that takes longest there:", ""]
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
    parser.add_argument("model", nargs="?", default=MODEL, help=f"a name, or a folder ({MODEL})")
    parser.add_argument("--cases", nargs="+", default=["1x16384", "1x65536", "8x65536"], metavar="BATCHxCONTEXT")
    parser.add_argument("--peer-cases", nargs="*", default=["1x16384"], metavar="BATCHxCONTEXT", help="for llama.cpp")
    parser.add_argument("--threads", nargs="+", type=int, default=[2])
    parser.add_argument("--policies", nargs="+", choices=tuple(POLICIES), default=list(POLICIES))
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f32"))
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="where programs are kept, and taken from where they are there")
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
