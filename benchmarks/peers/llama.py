"""llama.cpp, measured by its own tools: llama-bench for one sequence, llama-batched-bench for several.

Every measurement is a process of the tool, which loads the model, fills the cache and times the following steps.
Types of a folder are BF16 (the GGUF file beside it), Q8_0 and Q4_0 (converted from that by llama-quantize). A GGUF file
is measured with its own types.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from benchmarks.peers.protocol import Measure, Setup, Unsupported, serve

TOOLS = Path(__file__).parents[2] / ".peers" / "llama" / "build" / "bin"


class Llama(Measure):
    def __init__(self, file: Path, threads: int) -> None:
        self.file = file
        self.threads = threads

    def decode(self, batch: int, context: int, steps: int) -> float:
        if batch == 1:
            return self._bench("-p", 0, "-n", steps, "-d", context)
        if batch * (context + steps) > 65_536:
            raise Unsupported(f"llama-batched-bench does not run {batch} sequences of {context} tokens here")
        rows = -(-(context + steps) // 256) * 256
        # The tool prints from a separate thread, and may end before the last line is written. Therefore another shape
        # follows the requested one.
        words = ("-c", batch * rows, "-npp", f"{context},1", "-ntg", steps, "-npl", batch, "-fa", "on")
        lines = self._run("llama-batched-bench", *words, "--output-format", "jsonl").splitlines()
        for result in (json.loads(line) for line in lines if line.startswith("{")):
            if result["pp"] == context:
                return float(result["t_tg"])
        raise Unsupported(f"llama-batched-bench printed no result for {batch} sequences of {context} tokens")

    def prefill(self, tokens: int) -> float:
        return self._bench("-p", tokens, "-n", 0)

    def _bench(self, *words: object) -> float:
        (result,) = json.loads(self._run("llama-bench", *words, "-r", 1, "-fa", 1, "-o", "json"))
        return float(result["avg_ns"]) / 1e9

    def _run(self, tool: str, *words: object) -> str:
        command = [TOOLS / tool, "-m", self.file, "-t", self.threads, *words]
        done = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True)
        if done.returncode:
            raise Unsupported(f"{tool} ended with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}")
        return done.stdout


def make(setup: Setup) -> tuple[Llama, str]:
    file = setup.model if setup.model.is_file() else setup.model.with_name(setup.model.name + ".gguf")
    if setup.model.is_dir() and setup.dtype != "BF16":
        source, file = file, file.with_name(f"{setup.model.name}-{setup.dtype}.gguf")
        if not file.exists():
            partial = file.with_suffix(".partial")
            command = [TOOLS / "llama-quantize", "--pure", source, partial, setup.dtype]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            partial.rename(file)
    (source_folder,) = TOOLS.parents[1].glob("source/*")
    return Llama(file, setup.threads), f"({source_folder.name})"


if __name__ == "__main__":
    serve(make)
