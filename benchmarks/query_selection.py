"""Decode steps whose queries choose their rows, beside SnapStream with as many rows and the full cache.

    python benchmarks/query_selection.py MODEL [--cases 1x16384 1x65536 8x65536] [--threads 1 2] [--steps 64]

A case is BATCHxCONTEXT. Caches are not filled by a prompt but with random bytes that stand for small numbers, which
takes a second instead of minutes and costs a step the same; slots stand at the end of the context. Prints milliseconds
of the fastest step and the median. Programs are compiled into a temporary folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

import sscc
from sscc.compiler.cli import main as sscc_command
from sscc.runtime.session import Session

BUDGET = 1024
TOKEN = 5
BURST = 4
POLICIES = {
    "snapstream": ("--kv-budget", str(BUDGET)),
    "query": ("--kv-budget", str(BUDGET), "--kv-policy", "query"),
    "full": ("--kv-budget", "CONTEXT"),
}


def compiled(model: Path, policy: str, batch: int, context: int, folder: Path, dtype: str) -> Path:
    """The program of a case. Raises SystemExit where the compiler refuses."""
    path = folder / f"{policy}-{batch}x{context}.rdu"
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
    for slot in range(session.signature.batch):
        session._fill(slot, length, TOKEN)


def interleaved(sessions: Sequence[Session], count: int) -> list[list[float]]:
    """Seconds of `count` steps of all slots of each session, sorted. Sessions take turns, `BURST` steps each, the first
    of which warms up."""
    times: list[list[float]] = [[] for _ in sessions]
    while len(times[-1]) < count:
        for session, found in zip(sessions, times, strict=True):
            tokens = dict.fromkeys(range(session.signature.batch), TOKEN)
            for number in range(BURST):
                start = time.perf_counter()
                session.decode(tokens)
                if number:
                    found.append(time.perf_counter() - start)
    return [sorted(found) for found in times]


def measure(options: argparse.Namespace, folder: Path) -> None:
    print("| case | threads | " + " | ".join(f"{policy}, ms" for policy in options.policies) + " |")
    print("|---|---:|" + "---:|" * len(options.policies))
    for case in options.cases:
        batch, context = (int(word) for word in case.split("x"))
        paths = [compiled(options.model, policy, batch, context, folder, options.dtype) for policy in options.policies]
        for threads in options.threads:
            sessions = [sscc.load(path, threads=threads) for path in paths]
            for session in sessions:
                fill(session, context - 2 * (options.steps + BURST))
            cells = [
                f"{found[0] * 1e3:.2f} ({found[len(found) // 2] * 1e3:.2f})"
                for found in interleaved(sessions, options.steps)
            ]
            print(f"| {case} | {threads} | {' | '.join(cells)} |", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--cases", nargs="+", default=["1x16384", "1x65536", "8x65536"], metavar="BATCHxCONTEXT")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--policies", nargs="+", choices=tuple(POLICIES), default=list(POLICIES))
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="where programs are kept, and taken from where they are there")
    options = parser.parse_args(words)
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        measure(options, options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder))


if __name__ == "__main__":
    main()
