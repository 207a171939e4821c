"""sscc's runner: compiles the model for a workload, and times prefill and decode steps of a session.

Compiled programs are kept beside the models until a source file of sscc is newer. A sequence of more than BUDGET tokens
keeps BUDGET rows, a shorter one all rows.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import sscc
from benchmarks.peers.protocol import Setup, Stepper, serve, token_ids
from benchmarks.peers.registry import AS_STORED, INT8_ACTIVATIONS, ROOT
from sscc.runtime.backends.registry import DEFAULT_BACKEND, NATIVE_INT8
from sscc.runtime.session.session import Session

SOURCES = ("compiler", "ir", "passes", "runtime")
BUDGET = 1024
OPTIONS = {
    "f32": ("--dtype", "f32", "--weights", "reference"),
    "bf16": ("--dtype", "bf16", "--weights", "reference"),
    "bf16-kv8": ("--dtype", "bf16", "--weights", "reference", "--kv-dtype", "int8"),
    "int8": ("--dtype", "bf16", "--weights", "reference,int8"),
    "int8-kv8": ("--dtype", "bf16", "--weights", "reference,int8", "--kv-dtype", "int8"),
    AS_STORED.dtype: ("--weights", "reference"),
    INT8_ACTIVATIONS.dtype: ("--weights", "reference"),
    "int4": ("--dtype", "bf16", "--weights", "reference,int4"),
}
"""Options of `sscc compile` by type of weights. "kv8" stands for int8 cache rows."""
FASTEST = DEFAULT_BACKEND
SEED = 20_261_101  # seed of tokens, which are random so that each chooses different experts
VOCABULARY = 32_000


class Ours(Stepper):
    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.setup = setup
        self._loaded: tuple[int, int] | None = None
        self._session: Session | None = None
        self._batch = 0
        self._random = Random(SEED)

    def session(self, batch: int, tokens: int) -> Session:
        """Return an empty session of `batch` slots for sequences of `tokens` tokens, which replaces a different one."""
        context = max(BUDGET, -(-tokens // 1024) * 1024)
        if self._session is None or self._loaded != (batch, context):
            self._session = None  # frees the weights before others are loaded
            path = artifact(self.setup.model, self.setup.dtype, batch, context)
            self._session = sscc.load(path, interpreter=interpreter_of(self.setup.dtype), threads=self.setup.threads)
            self._loaded = (batch, context)
        self._session.reset()
        return self._session

    def start(self, batch: int, context: int, room: int) -> None:
        session = self.session(batch, context + room)
        for slot in range(batch):
            session.prefill(slot, [self._random.randrange(VOCABULARY) for _ in range(context)])
        self._batch = batch

    def step(self) -> None:
        if self._session is None:
            raise RuntimeError("no sequence was started")
        self._session.decode({slot: self._random.randrange(VOCABULARY) for slot in range(self._batch)})

    def prefill(self, tokens: int) -> float:
        self.session(1, tokens)  # compiling and loading are not timed
        return super().prefill(tokens)

    def prompt(self, tokens: int) -> None:
        self.session(1, tokens).prefill(0, token_ids(tokens))


def interpreter_of(dtype: str) -> str:
    """Return the name of the interpreter for a type of weights."""
    return NATIVE_INT8 if dtype == INT8_ACTIVATIONS.dtype else FASTEST


def artifact(model: Path, dtype: str, batch: int, context: int) -> Path:
    """Return the artifact of a model for `batch` slots and `context` tokens, compiled if missing.

    Raises subprocess.CalledProcessError if the compiler fails; its message is on stderr.
    """
    shape = ("--batch", batch, "--max-context", context, "--kv-budget", BUDGET)
    return compiled(model, f"{dtype}-batch{batch}-context{context}", (*shape, *OPTIONS[dtype]))


def compiled(model: Path, name: str, options: Sequence[object]) -> Path:
    """Return the artifact of a model with options of `sscc compile`, compiled if missing or older than a source file.

    Raises subprocess.CalledProcessError if the compiler fails; its message is on stderr.
    """
    path = model.with_name(f"{model.name}-sscc-{name}.rdu")
    if not path.exists() or path.stat().st_mtime < _newest_source():
        partial = path.with_name(path.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        program = [sys.executable, "-m", "sscc.compiler.tools.commands.cli"]
        command = [*program, "compile", model, "--target", "rdu", "-o", partial]
        subprocess.run([str(word) for word in (*command, *options, "-q")], check=True, stdout=2)
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
    return path


def _newest_source() -> float:
    """Return the time of the last change of sscc's source files, in seconds since 1970."""
    files = (file for folder in SOURCES for file in (ROOT / folder).rglob("*.py"))
    return max(file.stat().st_mtime for file in files)


def make(setup: Setup) -> tuple[Ours, str]:
    return Ours(setup), f"{sscc.__version__} ({interpreter_of(setup.dtype)} interpreter)"


if __name__ == "__main__":
    serve(make)
