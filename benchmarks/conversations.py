"""Conversations with a common system prompt: time to the first token on servers that reuse prefilled prompts.

    python benchmarks/conversations.py [--write docs/results/serving.md] [--json]

Four servers: sscc with the compressed cache of SnapStream, the same with `--prompt-cache 0`, sscc with selection by
query, and llama.cpp's llama-server with its prompt cache.
Every client has one conversation, and sends all earlier messages and answers with each message. Servers stay loaded,
and repeats interleave; every repeat has new conversations.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks import load, models, table
from benchmarks.harness import native_bandwidth, say
from benchmarks.load import MODEL, Answer
from benchmarks.ours import compiled
from benchmarks.peers.llama import TOOLS
from benchmarks.serving import CHUNK as BETWEEN_STEPS
from benchmarks.serving import Server, running, times
from sscc.runtime.session.artifact import Artifact

BLOCK = "benchmarks/conversations.py"
SEED = 11
CHUNK = 16  # tokens of a prefill step of sscc; up to that many are prefilled again


@dataclass
class Turns:
    """Answers of a server over all repeats, to first messages and to later ones."""

    first: list[Answer] = field(default_factory=list)
    later: list[Answer] = field(default_factory=list)

    def add(self, conversations: Sequence[Sequence[Answer]]) -> None:
        """Add the answers of conversations. Raises ValueError if an answer failed, because later ones depend on it."""
        answers = [answer for conversation in conversations for answer in conversation]
        failed = next((answer.error for answer in answers if answer.error), None)
        if failed is not None:
            raise ValueError(failed)
        self.first += [conversation[0] for conversation in conversations]
        self.later += [answer for conversation in conversations for answer in conversation[1:]]


@dataclass(frozen=True)
class Summary:
    """Summary of a server's answers. Times are 50th, 90th and 99th percentiles in seconds; numbers of tokens are means
    over later messages."""

    first_message: tuple[float, float, float]
    later_messages: tuple[float, float, float]
    between_tokens: tuple[float, float, float]
    prompt_tokens: float
    prefilled_tokens: float


def summary(turns: Turns) -> Summary:
    """Summarise the answers of a server. Raises statistics.StatisticsError without later messages."""
    return Summary(
        first_message=load.percentiles([answer.first for answer in turns.first]),
        later_messages=load.percentiles([answer.first for answer in turns.later]),
        between_tokens=load.percentiles([gap for answer in turns.later for gap in answer.gaps]),
        prompt_tokens=statistics.fmean(len(answer.request.prompt) for answer in turns.later),
        prefilled_tokens=statistics.fmean(len(answer.request.prompt) - answer.cached for answer in turns.later),
    )


def servers(words: argparse.Namespace, folder: Path) -> list[Server]:
    """Return the four servers, each with a slot of `max_context` tokens for every client."""
    clients, context = words.clients, words.max_context
    options = ("--dtype", "bf16", "--weights", "reference", "--max-context", context, "--prefill-chunk", words.chunk)
    rows = ("--kv-budget", words.budget, "--batch", clients)

    def ours(name: str, policy: str, cache: tuple[str, ...] = ()) -> Server:
        file = f"conversations-{policy}-{clients}x{context}-budget{words.budget}-chunk{words.chunk}"
        path = compiled(folder, file, (*options, "--kv-policy", policy, *rows))
        steps = Artifact.load(path).signature.prefill_steps(BETWEEN_STEPS)
        serve = (sys.executable, "-m", "sscc.compiler.tools.commands.cli", "serve", path, "--threads", words.threads)
        own = ("--served-model-name", MODEL, "--prefill-steps", steps, *cache)
        return Server(name, clients, context, lambda port: (*serve, *own, "--port", port))

    servers = [
        ours("sscc, SnapStream", "snapstream"),
        ours("sscc, by query", "query"),
        ours("sscc, SnapStream, --prompt-cache 0", "snapstream", ("--prompt-cache", "0")),
    ]
    program = TOOLS / "llama-server"
    if program.exists():
        file, total = models.gguf_file(words.model), clients * context
        peer = (program, "-m", file, "-t", words.threads, "-np", clients, "-c", total, "-fa", "on", "--no-webui")
        servers.append(Server("llama-server", clients, context, lambda port: (*peer, "--port", port)))
    else:
        say("llama.cpp is not installed: python benchmarks/peers/install.py llama")
    return servers


def measure(servers: Sequence[Server], words: argparse.Namespace) -> dict[Server, Turns]:
    """Run the conversations of every repeat on each server in turn."""
    results = {server: Turns() for server in servers}
    shape = (words.clients, words.turns, words.system, words.message, words.new_tokens)
    vocabulary = models.MODELS[words.model].vocab
    with ExitStack() as stack:
        urls = {server: stack.enter_context(running(server, words.threads)) for server in servers}
        for url in urls.values():  # the first request also touches the weights
            asyncio.run(load.converse(url, load.make_conversations(1, 1, 8, 8, 2, vocabulary, SEED), words.limit))
        for number in range(words.repeats):
            conversations = load.make_conversations(*shape, vocabulary, SEED + 1 + number)
            for server, url in urls.items():
                results[server].add(asyncio.run(load.converse(url, conversations, words.limit)))
                say(f"{server.name}: {times(summary(results[server]).later_messages)} ms to the first token")
    return results


def render(results: dict[Server, Summary], words: argparse.Namespace, bandwidth: float) -> str:
    """Return Markdown: a row per server, with the ratio to the first one."""
    lines = [
        f"{table.machine()}, {bandwidth / 1e9:.0f} GB/s; {words.model} in bf16, {words.threads} threads; "
        f"{words.clients} clients of {words.turns} messages each, a common system prompt of {words.system} tokens, "
        f"messages of {words.message} tokens, answers of {words.new_tokens}; chunks of {words.chunk}; {words.repeats} "
        "interleaved repeats. Times in ms: median / 90th / 99th percentile.",
        "",
        "| server | tokens of a later prompt | prefilled | first token, first message | first token, later messages "
        "| ratio | between tokens |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    first = next(iter(results.values())).later_messages[0]
    for server, s in results.items():
        cells = [server.name, f"{s.prompt_tokens:.0f}", f"{s.prefilled_tokens:.0f}", times(s.first_message)]
        cells += [times(s.later_messages), f"{s.later_messages[0] / first:.1f}", times(s.between_tokens)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the first token in conversations with a common system prompt.")
    parser.add_argument("--model", default="m125", choices=models.MODELS, metavar="NAME", help="m125 (default), m1b")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8, help="clients, and slots of every server (8)")
    parser.add_argument("--turns", type=int, default=6, help="messages of each client (6)")
    parser.add_argument("--system", type=int, default=2048, help="tokens of the system prompt (2048)")
    parser.add_argument("--message", type=int, default=48, help="tokens of a message (48)")
    parser.add_argument("--new-tokens", type=int, default=48, help="tokens of an answer (48)")
    parser.add_argument("--max-context", type=int, default=4096, help="maximum tokens of a sequence (4096)")
    parser.add_argument("--budget", type=int, default=1024, help="rows that a decode step of sscc reads (1024)")
    parser.add_argument("--chunk", type=int, default=CHUNK, help=f"tokens of a prefill step of sscc ({CHUNK})")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--limit", type=float, default=600.0, help="maximum seconds between events of an answer (600)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="servers whose name contains a WORD")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the marked block of a Markdown page")
    words = parser.parse_args()
    bandwidth = native_bandwidth(words.threads)()
    chosen = [
        server
        for server in servers(words, models.checkpoint(words.model))
        if not words.only or any(word in server.name for word in words.only)
    ]
    results = {server: summary(turns) for server, turns in measure(chosen, words).items()}
    text = render(results, words, bandwidth)
    print(json.dumps({server.name: asdict(s) for server, s in results.items()}) if words.json else text)
    if words.write:
        words.write.write_text(table.replace_block(words.write.read_text(), BLOCK, text))


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    main()
