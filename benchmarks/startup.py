"""Time of `sscc run` from the start of its process to the first token, and of `sscc --version`.

    python benchmarks/startup.py [--model NAME] [--interpreter NAME] [--write docs/results/speed.md] [--json]

The artifact is compiled with its weights inside. The prompt is one token, so that prefill is short. The time includes
the end of the process.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks import models, table
from benchmarks.ours import FASTEST

BLOCK = "benchmarks/startup.py"
SSCC = (sys.executable, "-m", "sscc.compiler.tools.commands.cli")


def compiled(name: str) -> Path:
    """Compile a model and return its artifact: bf16, 1024 rows, weights inside."""
    path = models.FOLDER / f"{name}-startup.rdu"
    shutil.rmtree(path, ignore_errors=True)
    command = (*SSCC, "compile", models.checkpoint(name), "--target", "rdu", "-o", path, "--dtype", "bf16", "-q")
    subprocess.run([str(word) for word in command], check=True)
    return path


def seconds(command: list[str]) -> float:
    """Return the wall seconds of a process. Raises subprocess.CalledProcessError if it fails."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    options = argparse.ArgumentParser(description="Measure the start of sscc run.")
    options.add_argument("--model", default="m125", choices=models.MODELS)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--interpreter", default=FASTEST)
    options.add_argument("--json", action="store_true", help="print one JSON object instead of the text")
    options.add_argument("--write", type=Path, metavar="PAGE", help="replace the marked block of a Markdown page")
    words = options.parse_args()
    path = compiled(words.model)
    run = [*SSCC, "run", str(path), "--token-ids", "5", "--max-new-tokens", "1", "--interpreter", words.interpreter]
    version = [*SSCC, "--version"]
    taken: dict[str, list[float]] = {"first token": [], "sscc --version": []}
    for _ in range(words.repeats):
        taken["first token"].append(seconds(run))
        taken["sscc --version"].append(seconds(version))
    figures = [f"{name} {statistics.median(each):.2f} s (best {min(each):.2f})" for name, each in taken.items()]
    text = f"{words.model}, {words.interpreter} interpreter, {table.machine()}: {'; '.join(figures)}."
    document = {"model": words.model, "interpreter": words.interpreter, "seconds": taken}
    print(json.dumps(document) if words.json else text)
    if words.write:
        words.write.write_text(table.replace_block(words.write.read_text(), BLOCK, text))


if __name__ == "__main__":
    main()
