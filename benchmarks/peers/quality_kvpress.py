"""Cells and examples of `sscc eval` run by kvpress on transformers, as an independent check.

    python benchmarks/peers/install.py kvpress
    .peers/kvpress/bin/python benchmarks/peers/quality_kvpress.py RESULTS MODEL -o OUT.json [--cells ..] [--examples N]

RESULTS is the folder of `sscc eval` with its examples (as tokens) and scores. MODEL is the checkpoint for transformers,
a Hugging Face folder or a .gguf file. The cells are those of RESULTS for which kvpress has a press: full, streamingllm
(StreamingLLMPress) and snapkv (SnapKVPress, average pooling), in f32 with eager attention.

Tokens, scores (answer_scores.py of the repository) and greedy decoding are the same, and the last token of the prompt
is fed again at its position with the compressed cache. The caches differ: kvpress's grows with new tokens, while sscc's
drops a recent row for each. Therefore kvpress keeps as many rows of the prompt as sscc has when it generates the last
token, which is budget - new tokens; for snapkv these are the window and the selected rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

if not __package__:  # modules of this folder have the names of packages: torch, kvpress
    sys.path[0] = str(Path(__file__).parents[2])

import torch
from kvpress import SnapKVPress, StreamingLLMPress
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

ROOT = Path(__file__).parents[2]
METRICS_FILE = ROOT / "compiler" / "tools" / "quality" / "answer_scores.py"


class InOrder:
    """Mixin of presses that keeps exactly `rows` rows in the order of positions, so that the last row is the last
    token's."""

    rows = 0

    def compress(
        self, module: Any, hidden_states: Any, keys: Any, values: Any, attentions: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        scores = self.score(module, hidden_states, keys, values, attentions, kwargs)  # type: ignore[attr-defined]
        kept = scores.topk(self.rows, dim=-1).indices.sort(dim=-1).values
        index = kept[..., None].expand(-1, -1, -1, keys.shape[-1])
        return keys.gather(2, index), values.gather(2, index)


class OrderedSnapKv(InOrder, SnapKVPress):  # type: ignore[misc]
    pass


class OrderedStreaming(InOrder, StreamingLLMPress):  # type: ignore[misc]
    pass


def press_for(cell: dict[str, Any], tokens: int, rows: int) -> Any:
    """Return the press that compresses a prompt of `tokens` tokens to `rows` rows, or None if it has no more rows."""
    if cell["method"] == "full" or rows >= tokens:
        return None
    geometry, ratio = cell["geometry"], 1 - rows / tokens
    press: InOrder
    if cell["method"] == "streamingllm":
        press = OrderedStreaming(compression_ratio=ratio, n_sink=geometry["sink"])
    elif geometry["pool_mode"] == "avg":
        press = OrderedSnapKv(compression_ratio=ratio, window_size=geometry["obs"], kernel_size=geometry["pool"])
    else:
        sys.exit("quality_kvpress: SnapKVPress uses average pooling, but the results use max pooling")
    press.rows = rows
    return press


def answer(model: Any, example: dict[str, Any], cell: dict[str, Any], ends: frozenset[int]) -> list[int]:
    """Return the tokens generated after the prompt with the compressed cache."""
    prompt, count = example["prompt_tokens"], example["max_new_tokens"]
    rows = len(prompt) if cell["method"] == "full" else cell["budget"] - count
    press = press_for(cell, len(prompt), rows)
    cache: Any = DynamicCache()

    def feed(tokens: Sequence[int], position: int) -> torch.Tensor:
        positions = torch.arange(position, position + len(tokens))
        with torch.inference_mode():
            output = model(
                input_ids=torch.tensor([tokens]),
                position_ids=positions[None],
                cache_position=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        logits: torch.Tensor = output.logits[0, -1]
        return logits

    with press(model) if press is not None else nullcontext():
        feed(prompt, 0)
    for layer in cache.layers:  # the last token's row is computed again
        layer.keys, layer.values = layer.keys[:, :, :-1], layer.values[:, :, :-1]
    answer_tokens = [int(feed(prompt[-1:], len(prompt) - 1).argmax())]
    while len(answer_tokens) < count and answer_tokens[-1] not in ends:
        answer_tokens.append(int(feed(answer_tokens[-1:], len(prompt) + len(answer_tokens) - 1).argmax()))
    return answer_tokens


def open_model(path: Path) -> tuple[Any, Any, frozenset[int]]:
    """Return the model, its tokenizer and its end tokens."""
    place = {"gguf_file": path.name} if path.is_file() else {}
    folder = path.parent if path.is_file() else path
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **place)
    ends = model.generation_config.eos_token_id
    listed = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return model.eval(), AutoTokenizer.from_pretrained(folder, **place), frozenset(listed)


def metrics() -> dict[str, Callable[[str, Sequence[str]], float]]:
    """Return the repository's metrics, which need only the standard library."""
    spec = importlib.util.spec_from_file_location("metrics", METRICS_FILE)
    if spec is None or spec.loader is None:
        sys.exit(f"quality_kvpress: {METRICS_FILE} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    metrics: dict[str, Callable[[str, Sequence[str]], float]] = module.METRICS
    return metrics


def run(words: argparse.Namespace) -> dict[str, Any]:
    results = json.loads((words.results / "results.json").read_text())
    records = [json.loads(line) for line in (words.results / "records.jsonl").read_text().splitlines()][1:]
    ours = {(record["cell"], record["example"]): record for record in records}
    examples = [json.loads(line) for line in (words.results / "examples.jsonl").read_text().splitlines()]
    model, tokenizer, ends = open_model(words.model)
    score = metrics()
    lines = []
    for cell in results["cells"]:
        if cell["method"] == "snapstream" or (words.cells and cell["name"] not in words.cells):
            continue
        for task in dict.fromkeys(example["task"] for example in examples):
            start = time.perf_counter()
            chosen = [e for e in examples if e["task"] == task and e["metric"] in score][: words.examples]
            theirs, same, own = [], 0, []
            for example in chosen:
                tokens = answer(model, example, cell, ends)
                said = tokenizer.decode(tokens, skip_special_tokens=True)
                theirs.append(score[example["metric"]](said, example["answers"]))
                record = ours[cell["name"], example["name"]]
                own.append(record["score"])
                same += record["tokens"] == tokens
            line = {
                "cell": cell["name"],
                "task": task,
                "n": len(chosen),
                "sscc": math.fsum(own) / len(own),
                "kvpress": math.fsum(theirs) / len(theirs),
                "differ": sum(a != b for a, b in zip(own, theirs, strict=True)),
                "same_tokens": same,
                "seconds": time.perf_counter() - start,
            }
            print(json.dumps(line), file=sys.stderr, flush=True)
            lines.append(line)
    versions = {name: version(name) for name in ("kvpress", "transformers", "torch")}
    return {"versions": versions, "results": results["model"], "lines": lines}


def table(outcome: dict[str, Any]) -> str:
    """Return Markdown with the scores of sscc and kvpress, and the number of examples on which they differ."""
    rows = ["| cache | task | n | sscc | kvpress | scores that differ | same tokens |", f"|{'---|' * 2}{'---:|' * 5}"]
    rows += [
        f"| {line['cell']} | {line['task']} | {line['n']} | {100 * line['sscc']:.0f} | {100 * line['kvpress']:.0f} | "
        f"{line['differ']} | {line['same_tokens']} |"
        for line in outcome["lines"]
    ]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run cells and examples of `sscc eval` with kvpress.")
    parser.add_argument("results", type=Path, help="folder of `sscc eval`")
    parser.add_argument("model", type=Path, help="Hugging Face folder or .gguf")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument(
        "--cells", nargs="+", default=[], help="names of cells, e.g. 'snapkv 256' (default: all supported ones)"
    )
    parser.add_argument("--examples", type=int, default=10**9, help="maximum examples of each task (default: all)")
    parser.add_argument("--threads", type=int, default=1)
    words = parser.parse_args()
    torch.set_num_threads(words.threads)
    outcome = run(words)
    words.output.write_text(json.dumps(outcome, indent=1) + "\n")
    print(table(outcome))


if __name__ == "__main__":
    main()
