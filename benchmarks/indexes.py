"""Speed of decode steps with rows selected by a learned index, by length of the text.

    python benchmarks/indexes.py [--contexts N ..] [--steps N] [--repeats N] [--write PAGE]

The model has the layer shape of DeepSeek-V3.2, but two layers, 8 experts and 32,000 tokens, with random bf16 weights.
The cache is filled with random rows and index keys instead of a prefilled text, like the rows of a cached prefix. The
table has the time of a step, of the index scores with the selection, and of the attention to the selected rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

import numpy as np

import sscc
from benchmarks import table
from benchmarks.models import FOLDER
from benchmarks.ours import FASTEST, compiled
from sscc.runtime.session.session import Session

CONFIG = Path(__file__).parent / "configs" / "deepseek-v3.2.json"
CUT = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "n_routed_experts": 8, "n_group": 1, "topk_group": 1,
       "vocab_size": 32000, "num_nextn_predict_layers": 0}  # fmt: skip
SEED = 20_261_128
BLOCK = "benchmarks/indexes.py"
INDEX, ATTENTION = "choose_by_index", "attend_chosen"
"""Parts of the names of the stages of selection, and of the attention to selected rows."""


@dataclass(frozen=True)
class Step:
    """Median times of a decode step, in seconds.

    Attributes:
        context: tokens of the text.
        whole: time of the step.
        parts: times of selection and of the attention to selected rows, over all layers.
    """

    context: int
    whole: float
    parts: dict[str, float]

    @property
    def rest(self) -> float:
        """Time of the step without selection."""
        return self.whole - self.parts[INDEX]


def checkpoint() -> Path:
    """Return the folder of the model, created at its first use."""
    folder = FOLDER / "deepseek-v3.2-2-layers"
    if not (folder / "model.safetensors").exists():
        import torch
        from transformers import AutoModelForCausalLM, DeepseekV32Config

        torch.manual_seed(SEED)
        fields = {k: v for k, v in json.loads(CONFIG.read_text()).items() if k != "quantization_config"}
        config = DeepseekV32Config.from_dict(fields | CUT)
        with tempfile.TemporaryDirectory(dir=FOLDER) as partial:
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            model.save_pretrained(partial, max_shard_size="100GB")
            folder.mkdir(exist_ok=True)
            for file in Path(partial).iterdir():
                file.rename(folder / file.name)
    return folder


def begun(session: Session, context: int) -> None:
    """Fill slot 0 with a text of `context` tokens: random rows, except for its last chunk, which is prefilled."""
    random = np.random.default_rng(SEED)
    prompt = random.integers(0, CUT["vocab_size"], context).tolist()
    chunks = []
    for _ in range(session.reusable_chunks(context)):
        copy = session.empty_chunk()
        for part in session.rows.copies[copy.number].values():
            numbers = random.standard_normal(part.shape, np.float32)
            part[...] = (numbers.view(np.uint32) >> 16).astype(part.dtype) if part.dtype.itemsize == 2 else numbers
        chunks.append(copy)
    session.start_prefill(0, prompt, chunks)
    while not session.step_prefill(8):
        pass


def measure(session: Session, context: int, steps: int, repeats: int) -> Step:
    """Return the median over `repeats` of the mean time of `steps` steps after a text of `context` tokens."""
    begun(session, context)
    session.decode({0: 1})
    wholes = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(steps):
            session.decode({0: 1})
        wholes.append((time.perf_counter() - start) / steps)
    tracer = session.start_trace()
    for _ in range(steps):
        session.decode({0: 1})
    tracer.stop()
    spent: Counter[str] = Counter()
    for event in tracer.events():
        if event.get("ph") == "X" and event.get("tid") == 0:
            for part in (INDEX, ATTENTION):
                if part in str(event["name"]):
                    spent[part] += event["dur"]
    return Step(context, median(wholes), {part: spent[part] / steps / 1e6 for part in (INDEX, ATTENTION)})


def render(steps: list[Step]) -> str:
    """Return the table, with a row for each context and its ratio to the first one."""
    lines = ["| context | step ms | index scores ms | attention ms | rest, relative to the first row |",
             "|---:|---:|---:|---:|---:|"]  # fmt: skip
    for step in steps:
        figures = [step.whole * 1e3, step.parts[INDEX] * 1e3, step.parts[ATTENTION] * 1e3]
        ratio = step.rest / steps[0].rest
        lines.append(f"| {step.context} | {' | '.join(f'{figure:.1f}' for figure in figures)} | **{ratio:.2f}** |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", nargs="+", type=int, default=[4096, 16384, 65536], metavar="N")
    parser.add_argument("--steps", type=int, default=8, help="decode steps of a measurement (8)")
    parser.add_argument("--repeats", type=int, default=5, help="number of measurements (5)")
    parser.add_argument("--threads", type=int, default=None, help="threads of the interpreter (all processors)")
    parser.add_argument("--write", type=Path, help="replace the marked block of a Markdown page")
    words = parser.parse_args()
    room = (words.steps * (words.repeats + 1) + 1 + 1023) // 1024 * 1024
    context = max(words.contexts) + room
    options = ("--batch", 1, "--max-context", context, "--dtype", "bf16", "--weights", "reference")
    path = compiled(checkpoint(), f"indexes-context{context}", options)
    session = sscc.load(path, interpreter=FASTEST, threads=words.threads)
    steps = []
    for each in words.contexts:
        session.reset()
        steps.append(measure(session, each, words.steps, words.repeats))
    text = f"{table.machine()}; medians of {words.repeats} repeats.\n\n{render(steps)}"
    print(text)
    if words.write:
        words.write.write_text(table.replace_block(words.write.read_text(), BLOCK, text))


if __name__ == "__main__":
    main()
