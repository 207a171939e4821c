"""A server that runs pytest repeatedly, in forks of a process with imports that are slow and never mutated."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path

HEAVY = ("torch", "numpy", "ml_dtypes", "transformers", "safetensors", "hypothesis", "pytest", "torch_mlir.ir", "gguf")
"""Packages that the tests import, where they are installed. None of them imports sscc."""


def main() -> None:
    """Reads requests, lines of JSON [words for pytest, limit in seconds], answers each with pytest's exit code or null.

    A run that ended before its limit, and whatever it started, is gone when the answer is there.
    """
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if any(name.split(".")[0] == "sscc" for name in sys.modules):
        raise RuntimeError("sscc is imported before it is mutated: every test would run the same modules")
    spec = importlib.util.find_spec("sscc")
    if spec is None or not Path(spec.origin or "").resolve().is_relative_to(Path.cwd().resolve()):
        raise RuntimeError(f"sscc would be imported from {spec and spec.origin}, and not from the copy that is mutated")
    context = multiprocessing.get_context("fork")
    for line in sys.stdin:
        words, limit = json.loads(line)
        process = context.Process(target=_run, args=(words,))
        process.start()
        process.join(limit)
        code = process.exitcode
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, 9)
        process.join()
        sys.stdout.write(json.dumps(code) + "\n")
        sys.stdout.flush()


def _run(words: list[str]) -> None:
    """pytest in a process group of its own, silent."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore, and tests send
    import pytest

    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    os._exit(int(pytest.main(words)))


if __name__ == "__main__":
    main()
